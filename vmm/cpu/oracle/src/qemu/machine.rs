// SPDX-License-Identifier: AGPL-3.0-or-later
//! One QEMU process and what gets it into long mode: a firmware of ours that is a few instructions long.

use super::gdb::Gdb;
use super::start_up;
use super::world::{self, World};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const BINARY: &str = "qemu-system-x86_64";
/// Size of the firmware, which ends at 4 GiB.
const FIRMWARE_BYTES: usize = 0x10000;
/// The model whose choices are AMD's, with what ours has beyond it.
const CPU: &str = "qemu64,+smep,+smap,+ssse3,+sse4.1,+sse4.2,+popcnt";

/// A stopped QEMU with its stub.
pub struct Qemu {
    /// The stub.
    pub gdb: Gdb,
    child: Child,
    folder: PathBuf,
}

/// Whether QEMU is installed; the error says what is missing.
pub fn available() -> Result<(), String> {
    match Command::new(BINARY).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{BINARY} --version ended with {status}")),
        Err(error) => Err(format!("{BINARY} cannot be run: {error}")),
    }
}

impl Qemu {
    /// Starts QEMU, with a folder of its own for its socket.
    pub fn start() -> io::Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("cpu-oracle-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let firmware = folder.join("firmware");
        std::fs::write(&firmware, self::firmware())?;
        let socket = folder.join("gdb");
        let child = Command::new(BINARY)
            .args(["-S", "-nodefaults", "-display", "none", "-accel", "tcg", "-M", "pc", "-m", "16", "-cpu", CPU])
            .arg("-bios")
            .arg(&firmware)
            .arg("-chardev")
            .arg(format!("socket,path={},server=on,wait=off,id=gdb", socket.display()))
            .args(["-gdb", "chardev:gdb"])
            .stdin(Stdio::null())
            .spawn()?;
        let stream = connect(&socket)?;
        Ok(Self { gdb: Gdb::new(stream), child, folder })
    }

    /// Resets the machine, loads `world` and runs to its first instruction.
    pub fn load(&mut self, world: &World) -> io::Result<()> {
        self.gdb.monitor("system_reset")?;
        self.gdb.physical(true)?;
        let (from, to) = world.shape.memory();
        self.gdb.write(from, &world.ram.bytes()[from as usize..to as usize])?;
        self.gdb.write(world::DONE, &world.ram.bytes()[world::DONE as usize..][..1])?;
        let mark = &world.ram.bytes()[start_up::MARK as usize..][..8];
        self.gdb.write(start_up::MARK, mark)?;
        self.gdb.physical(false)?;
        self.gdb.breakpoint(world.shape.start(), true)?;
        self.gdb.run()?;
        self.gdb.breakpoint(world.shape.start(), false)
    }
}

fn connect(path: &std::path::Path) -> io::Result<UnixStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..500 {
        match UnixStream::connect(path) {
            Ok(stream) => {
                stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(last)
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// From the reset vector to the world's 64-bit entry. The descriptor table and the page tables are the world's.
fn firmware() -> Vec<u8> {
    let mut rom = vec![0xf4; FIRMWARE_BYTES];
    let linear = |offset: usize| (world::FIRMWARE as u32 + offset as u32).to_le_bytes();
    let code32 = 0x40usize;
    let table = 0x200usize;
    let mut put = |at: usize, bytes: &[u8]| rom[at..at + bytes.len()].copy_from_slice(bytes);
    // jmp to offset 0.
    put(0xfff0, &[0xe9, 0x0d, 0x00]);
    // A descriptor table for the way: 8 is 32-bit code, 0x10 64-bit code, 0x18 data.
    put(table, &[0x1f, 0x00]);
    put(table + 2, &linear(table + 0x10));
    for (index, descriptor) in
        [0u64, 0x00cf_9b00_0000_ffff, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff].iter().enumerate()
    {
        put(table + 0x10 + 8 * index, &descriptor.to_le_bytes());
    }
    // xor edx, edx; mov cx, [MARK]; jcxz long; jmp far [MARK + 2]: a world of real mode starts from here.
    let mark = (start_up::MARK as u16).to_le_bytes();
    let pointer = (start_up::MARK as u16 + 2).to_le_bytes();
    put(0, &[0x66, 0x31, 0xd2, 0x8b, 0x0e, mark[0], mark[1], 0xe3, 0x04, 0xff, 0x2e, pointer[0], pointer[1]]);
    // cli; o32 lgdt cs:[table]; mov eax, cr0; or al, 1; mov cr0, eax; o32 jmp 8:code32
    put(
        13,
        &[0xfa, 0x2e, 0x66, 0x0f, 0x01, 0x16, 0x00, 0x02, 0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0, 0x66, 0xea],
    );
    put(31, &linear(code32));
    put(35, &[8, 0]);
    let mut code: Vec<u8> = vec![0x66, 0xb8, 0x18, 0x00, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0];
    let mut load = |value: u32, then: &[u8]| {
        code.push(0xb8);
        code.extend(value.to_le_bytes());
        code.extend(then);
    };
    load(world::CR4 as u32, &[0x0f, 0x22, 0xe0]);
    load(world::TABLES as u32, &[0x0f, 0x22, 0xd8]);
    // mov ecx, EFER; xor edx, edx; wrmsr (without LMA, which the CPU sets itself)
    load(world::EFER as u32 & !0x400, &[0xb9, 0x80, 0x00, 0x00, 0xc0, 0x31, 0xd2, 0x0f, 0x30]);
    load(world::CR0 as u32, &[0x0f, 0x22, 0xc0]);
    code.push(0xea);
    code.extend((world::ENTRY as u32).to_le_bytes());
    code.extend([0x10, 0x00]);
    put(code32, &code);
    rom
}
