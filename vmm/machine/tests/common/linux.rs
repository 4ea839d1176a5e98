// SPDX-License-Identifier: AGPL-3.0-or-later
//! A real kernel for tests, where one is built, and an initrd made here.

use std::path::PathBuf;
use std::time::SystemTime;

use iced_x86::code_asm::*;

use super::{HEADER_BYTES, elf};

/// Where the test program lies in its address space.
const PROGRAM: u64 = 0x40_0000;

/// The guest kernel, from `CHAOS_TEST_KERNEL` or the one that was built last; says so where there is none.
pub fn kernel(file: &str) -> Option<Vec<u8>> {
    find(file, "CHAOS_TEST_KERNEL", "guest/kernel/build", false)
}

/// The guest kernel for several CPUs, from `CHAOS_TEST_KERNEL_SMP` or the one that was built last.
pub fn smp_kernel(file: &str) -> Option<Vec<u8>> {
    find(file, "CHAOS_TEST_KERNEL_SMP", "guest/kernel/build --smp", true)
}

fn find(file: &str, variable: &str, builder: &str, smp: bool) -> Option<Vec<u8>> {
    let found = std::env::var_os(variable).map(|path| PathBuf::from(path).with_file_name(file));
    let path = found.or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
        let mut built: Vec<(SystemTime, PathBuf)> = std::fs::read_dir(cache.join("chaoscontrol/kernel"))
            .ok()?
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                // Not the PIC-only variant: it has no ACPI.
                let config = std::fs::read_to_string(path.join("config")).ok()?;
                let has = |option| config.lines().any(|line| line == option);
                let wanted = has("CONFIG_ACPI=y") && has("CONFIG_SMP=y") == smp;
                let built = path.join(file).metadata().ok()?.modified().ok()?;
                wanted.then(|| (built, path.join(file)))
            })
            .collect();
        built.sort();
        built.pop().map(|(_, path)| path)
    });
    let data = path.and_then(|path| std::fs::read(path).ok());
    if data.is_none() {
        eprintln!("skipped: no {file}: build one with {builder}, or set {variable} to a vmlinux");
    }
    data
}

fn cpio_entry(archive: &mut Vec<u8>, name: &str, mode: u32, data: &[u8]) {
    let fields = [0, mode, 0, 0, 1, 0, data.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
    archive.extend(b"070701");
    fields.iter().for_each(|field| archive.extend(format!("{field:08x}").bytes()));
    archive.extend(name.bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(data);
    archive.resize(archive.len().next_multiple_of(4), 0);
}

/// A newc archive of these (name, mode, contents).
pub fn archive(entries: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, mode, data) in entries {
        cpio_entry(&mut archive, name, *mode, data);
    }
    cpio_entry(&mut archive, "TRAILER!!!", 0, &[]);
    archive
}

/// An initrd with this program at `name`.
pub fn initrd(name: &str, program: &[u8]) -> Vec<u8> {
    archive(&[("dev", 0o040_755, &[]), (name, 0o100_755, program)])
}

fn call(a: &mut CodeAssembler, number: u32) {
    a.mov(eax, number).unwrap();
    a.syscall().unwrap();
}

/// An init that prints `reached-init`, then ten times 16 random bytes and `ticked`, sleeping 20 ms and dirtying 16 pages between, with
/// x87 and SSE registers in use; then it powers off.
pub fn ticking_init() -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    let (mut again, mut pages) = (a.create_label(), a.create_label());
    let (mut go, mut tick, mut pause) = (a.create_label(), a.create_label(), a.create_label());
    let write = |a: &mut CodeAssembler, bytes: u32| {
        a.mov(edi, 1).unwrap();
        a.mov(edx, bytes).unwrap();
        call(a, 1);
    };
    a.lea(rsi, qword_ptr(go)).unwrap();
    write(&mut a, 13);
    // Anonymous memory of 16 pages at r12.
    a.xor(edi, edi).unwrap();
    a.mov(esi, 0x1_0000).unwrap();
    a.mov(edx, 3).unwrap();
    a.mov(r10d, 0x22).unwrap();
    a.mov(r8, -1i64).unwrap();
    a.xor(r9d, r9d).unwrap();
    call(&mut a, 9);
    a.mov(r12, rax).unwrap();
    a.xor(r13d, r13d).unwrap();
    a.fldpi().unwrap();
    a.set_label(&mut again).unwrap();
    // getrandom(buffer, 16, 0), then write it.
    a.mov(rdi, r12).unwrap();
    a.mov(esi, 16).unwrap();
    a.xor(edx, edx).unwrap();
    call(&mut a, 318);
    a.mov(rsi, r12).unwrap();
    write(&mut a, 16);
    a.lea(rsi, qword_ptr(tick)).unwrap();
    write(&mut a, 7);
    // Work that leaves marks in memory and in both register files.
    a.xor(ecx, ecx).unwrap();
    a.set_label(&mut pages).unwrap();
    a.imul_3(rbx, rbx, 0x5_1ed7).unwrap();
    a.add(rbx, 11).unwrap();
    a.movq(xmm7, rbx).unwrap();
    a.mov(qword_ptr(r12 + rcx + 0x80), rbx).unwrap();
    a.fld1().unwrap();
    a.faddp(st1, st0).unwrap();
    a.add(ecx, 0x1000).unwrap();
    a.cmp(ecx, 0x1_0000).unwrap();
    a.jb(pages).unwrap();
    a.lea(rdi, qword_ptr(pause)).unwrap();
    a.xor(esi, esi).unwrap();
    call(&mut a, 35);
    a.inc(r13d).unwrap();
    a.cmp(r13d, 10).unwrap();
    a.jb(again).unwrap();
    // reboot(MAGIC1, MAGIC2, POWER_OFF)
    a.mov(edi, 0xfee1_deadu32).unwrap();
    a.mov(esi, 672_274_793).unwrap();
    a.mov(edx, 0x4321_fedc).unwrap();
    call(&mut a, 169);
    a.ud2().unwrap();
    a.set_label(&mut go).unwrap();
    a.db(b"reached-init\n").unwrap();
    a.set_label(&mut tick).unwrap();
    a.db(b"ticked\n").unwrap();
    a.set_label(&mut pause).unwrap();
    a.dq(&[0, 20_000_000]).unwrap();
    elf(&a.assemble(PROGRAM + HEADER_BYTES).unwrap(), PROGRAM)
}

/// Additions of each thread of [`threaded_init`].
const ADDITIONS: u32 = 20_000;

/// An init that starts a thread for each CPU, each of which binds itself to its CPU, checks that it is there, and adds to a
/// counter that all share. It prints `threads-done` if all is right, `threads-wrong` if not, and powers off.
pub fn threaded_init(threads: u32) -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    let (mut start, mut child, mut wait, mut wrong, mut say) =
        (a.create_label(), a.create_label(), a.create_label(), a.create_label(), a.create_label());
    let (mut done, mut bad) = (a.create_label(), a.create_label());
    // Anonymous memory at r12: counter, threads that are done, threads on the right CPU; masks, CPUs, stacks.
    a.xor(edi, edi).unwrap();
    a.mov(esi, 0x10_0000).unwrap();
    a.mov(edx, 3).unwrap();
    a.mov(r10d, 0x22).unwrap();
    a.mov(r8, -1i64).unwrap();
    a.xor(r9d, r9d).unwrap();
    call(&mut a, 9);
    a.mov(r12, rax).unwrap();
    a.xor(r13d, r13d).unwrap();
    a.set_label(&mut start).unwrap();
    // clone(VM | FS | FILES | SIGHAND | THREAD, stack)
    a.mov(rsi, r13).unwrap();
    a.shl(rsi, 14).unwrap();
    a.lea(rsi, qword_ptr(r12 + rsi + 0x1_3ff0)).unwrap();
    a.mov(edi, 0x1_0f00).unwrap();
    a.xor(edx, edx).unwrap();
    a.xor(r10d, r10d).unwrap();
    a.xor(r8d, r8d).unwrap();
    call(&mut a, 56);
    a.test(eax, eax).unwrap();
    a.je(child).unwrap();
    a.inc(r13d).unwrap();
    a.cmp(r13d, threads as i32).unwrap();
    a.jb(start).unwrap();
    a.set_label(&mut wait).unwrap();
    call(&mut a, 24);
    a.cmp(dword_ptr(r12 + 8), threads as i32).unwrap();
    a.jb(wait).unwrap();
    a.lea(rsi, qword_ptr(done)).unwrap();
    a.cmp(dword_ptr(r12 + 16), threads as i32).unwrap();
    a.jne(wrong).unwrap();
    a.cmp(dword_ptr(r12), (threads * ADDITIONS) as i32).unwrap();
    a.je(say).unwrap();
    a.set_label(&mut wrong).unwrap();
    a.lea(rsi, qword_ptr(bad)).unwrap();
    a.set_label(&mut say).unwrap();
    a.mov(edi, 1).unwrap();
    a.mov(edx, 14).unwrap();
    call(&mut a, 1);
    a.mov(edi, 0xfee1_deadu32).unwrap();
    a.mov(esi, 672_274_793).unwrap();
    a.mov(edx, 0x4321_fedc).unwrap();
    call(&mut a, 169);
    a.ud2().unwrap();
    a.set_label(&mut child).unwrap();
    thread(&mut a);
    a.set_label(&mut done).unwrap();
    a.db(b"threads-done \n").unwrap();
    a.set_label(&mut bad).unwrap();
    a.db(b"threads-wrong\n").unwrap();
    elf(&a.assemble(PROGRAM + HEADER_BYTES).unwrap(), PROGRAM)
}

/// What each thread does; its number is in r13.
fn thread(a: &mut CodeAssembler) {
    let (mut again, mut elsewhere) = (a.create_label(), a.create_label());
    // sched_setaffinity(0, 8, mask)
    a.mov(ecx, r13d).unwrap();
    a.mov(eax, 1).unwrap();
    a.shl(eax, cl).unwrap();
    a.mov(qword_ptr(r12 + r13 * 8 + 0x100), rax).unwrap();
    a.lea(rdx, qword_ptr(r12 + r13 * 8 + 0x100)).unwrap();
    a.xor(edi, edi).unwrap();
    a.mov(esi, 8).unwrap();
    call(a, 203);
    // getcpu(cpu, 0, 0)
    a.lea(rdi, qword_ptr(r12 + r13 * 8 + 0x200)).unwrap();
    a.xor(esi, esi).unwrap();
    a.xor(edx, edx).unwrap();
    call(a, 309);
    a.cmp(dword_ptr(r12 + r13 * 8 + 0x200), r13d).unwrap();
    a.jne(elsewhere).unwrap();
    a.lock().inc(dword_ptr(r12 + 16)).unwrap();
    a.set_label(&mut elsewhere).unwrap();
    a.mov(ebx, ADDITIONS).unwrap();
    a.set_label(&mut again).unwrap();
    a.lock().inc(dword_ptr(r12)).unwrap();
    a.dec(ebx).unwrap();
    a.jne(again).unwrap();
    a.lock().inc(dword_ptr(r12 + 8)).unwrap();
    a.xor(edi, edi).unwrap();
    call(a, 60);
    a.ud2().unwrap();
}
