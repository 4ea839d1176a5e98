// SPDX-License-Identifier: AGPL-3.0-or-later
//! The virtio devices under Linux's own drivers: disk, network, entropy, console.
//!
//! Needs a guest kernel (`CHAOS_TEST_KERNEL`, or one that `guest/kernel/build` left in the user's cache), a static busybox, and for
//! the file-system tests `mkfs.ext4`. Where one is missing the test says that it was skipped.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use chaoscontrol_machine::entropy::{Purpose, Stream};
use chaoscontrol_machine::pages::PageMap;
use chaoscontrol_machine::virtio::block::{DiskFault, Effect, EffectKind, Survivors};
use chaoscontrol_machine::{DiskConfig, Firmware, GuestNs, Machine, NetConfig, Stop, VmConfig};
use common::linux::{archive, kernel};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const DISK_BYTES: u64 = 8 << 20;

/// An initrd of a static busybox and `script` as init.
fn initrd(script: &str) -> Option<Vec<u8>> {
    let Ok(busybox) = std::fs::read("/bin/busybox") else {
        eprintln!("skipped: no /bin/busybox (apt-get install busybox-static)");
        return None;
    };
    let script =
        format!("#!/bin/busybox sh\nexport PATH=/bin\n/bin/busybox --install -s /bin\n{SETUP}{script}\npoweroff -f\n");
    let directories = ["bin", "dev", "proc", "sys", "mnt"].map(|name| (name, 0o040_755, &[][..]));
    let files = [("bin/busybox", 0o100_755, busybox.as_slice()), ("init", 0o100_755, script.as_bytes())];
    Some(archive(&[&directories[..], &files].concat()))
}

/// What every script starts with: devices, and `step NAME`, which tells the host and waits for its answer.
const SETUP: &str = r#"
mount -t devtmpfs dev /dev 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
exec </dev/ttyS0 >/dev/ttyS0 2>&1
stty -echo 2>/dev/null
step() { echo "step $1"; read answer; }
"#;

struct Guest {
    machine: Machine,
    serial: String,
}

impl Guest {
    fn boot(script: &str, disk: Option<&PageMap>, number: u8) -> Option<Self> {
        Self::boot_with(script, disk, number, Firmware::default())
    }

    fn boot_with(script: &str, disk: Option<&PageMap>, number: u8, firmware: Firmware) -> Option<Self> {
        let mut config = VmConfig::new(64 << 20, kernel("vmlinux")?.into());
        config.initrd = Some(initrd(script)?.into());
        config.rng_seed = [number; 32];
        config.firmware = firmware;
        config.net = Some(NetConfig { mac: [0x52, 0x54, 0, 0, 0, number] });
        let disks = disk.into_iter().map(|image| DiskConfig {
            image: Arc::new(image.clone()),
            size_bytes: DISK_BYTES,
            flush: true,
            read_only: false,
        });
        config.disks = disks.collect();
        let mut machine = Machine::new(Arc::new(config)).expect("the configuration is good");
        machine.load().expect("the kernel loads");
        Some(Guest { machine, serial: String::new() })
    }

    /// Runs one round of a millisecond at most.
    fn round(&mut self) -> Stop {
        let end = self.machine.now().after(MS);
        let stop = self.machine.run_until(end).expect("the machine runs");
        if let Stop::Idle { .. } = stop {
            self.machine.skip_to(end);
        }
        self.serial.push_str(&String::from_utf8_lossy(&self.machine.take_serial()));
        stop
    }

    /// Runs until the guest writes `text`, and takes everything up to the end of that line.
    fn until(&mut self, text: &str) -> String {
        let limit = self.machine.now().after(5 * SECOND);
        while self.machine.now() < limit {
            if let Some(found) = self.serial.find(text)
                && let Some(line) = self.serial[found..].find('\n')
            {
                let rest = self.serial.split_off(found + line + 1);
                return std::mem::replace(&mut self.serial, rest);
            }
            let stop = self.round();
            if !matches!(stop, Stop::Deadline | Stop::Idle { .. }) && !self.serial.contains(text) {
                panic!("stopped with {stop:?} before {text:?}:\n{}", self.serial);
            }
        }
        panic!("{text:?} did not come within five seconds of guest time:\n{}", self.serial);
    }

    /// Lets the guest's `step` go on.
    fn answer(&mut self) {
        assert_eq!(self.machine.type_serial(b"\n"), 1);
    }

    /// Waits for `step NAME`, does `action`, lets the guest go on; returns what it wrote until then.
    fn at_step(&mut self, name: &str, action: impl FnOnce(&mut Machine)) -> String {
        let output = self.until(&format!("step {name}"));
        action(&mut self.machine);
        self.answer();
        output
    }

    fn add_fault(&mut self, name: &str, effect: Effect) -> (String, u64) {
        let mut id = None;
        let output = self.at_step(name, |machine| {
            id = machine.disk_mut(0).expect("there is a disk").faults_mut().add(DiskFault::certain(effect));
        });
        (output, id.expect("there is room for a fault"))
    }

    fn end_fault(&mut self, name: &str, id: u64) -> (String, u64) {
        let mut observed = 0;
        let output = self.at_step(name, |machine| {
            let ended = machine.disk_mut(0).expect("there is a disk").faults_mut().remove(id);
            observed = ended.expect("the fault is active").observed;
        });
        (output, observed)
    }
}

fn medium_bytes(machine: &Machine, from: u64, bytes: usize) -> Vec<u8> {
    let medium = machine.disk(0).expect("there is a disk").medium();
    (from..from + bytes as u64)
        .map(|at| medium.get(at / 4096).map_or(0, |page| page.bytes()[(at % 4096) as usize]))
        .collect()
}

/// 4 KiB of each letter from the start of the disk.
fn letters() -> PageMap {
    let bytes: Vec<u8> = (0..26u8).flat_map(|letter| [b'a' + letter; 4096]).collect();
    PageMap::from_bytes(&bytes)
}

const DISK_SCRIPT: &str = r#"
read_page() { dd if=/dev/vda bs=4096 count=1 skip=$1 iflag=direct 2>&1 | head -c 300; echo; }
write_page() { head -c 4096 /dev/zero | tr '\000' "$2" | dd of=/dev/vda bs=4096 seek=$1 oflag=direct conv=notrunc$3 2>&1; echo "status $?"; }
echo "size $(cat /sys/block/vda/size) cache $(cat /sys/block/vda/queue/write_cache) id $(cat /sys/block/vda/serial)"
read_page 3
write_page 4 X
step written
write_page 5 Y ,fsync
step flushed
step read_error
read_page 6
step read_error_over
read_page 6
step write_error
write_page 7 Z
step write_error_over
read_page 7
step torn
write_page 8 Z
step torn_over
dd if=/dev/vda bs=4096 count=1 skip=8 iflag=direct 2>/dev/null | tr -d '\n' | sed 's/Zi.*/ZI/;s/^Z*ZI/torn/'; echo
step corrupt
dd if=/dev/vda bs=4096 count=1 skip=9 iflag=direct 2>/dev/null | tr -d j | wc -c
step corrupt_over
dd if=/dev/vda bs=4096 count=1 skip=9 iflag=direct 2>/dev/null | tr -d j | wc -c
step full
write_page 10 Z
step full_over
write_page 10 Z
echo finished
"#;

#[test]
fn linux_sees_each_disk_effect() {
    let Some(mut guest) = Guest::boot(DISK_SCRIPT, Some(&letters()), 1) else { return };
    let page = 4096;
    let output = guest.until("step written");
    assert!(output.contains("size 16384 cache write back id chaos-disk-0"), "{output}");
    assert!(output.contains("dddddddd"), "page 3 is read: {output}");
    assert!(output.contains("status 0"), "{output}");
    assert_eq!(medium_bytes(&guest.machine, 4 * page, 1), b"e", "nobody flushed");
    assert_eq!(guest.machine.disk(0).unwrap().device().pending_writes().len(), 1);
    guest.answer();
    guest.at_step("flushed", |machine| {
        assert_eq!(medium_bytes(machine, 4 * page, 4096), [b'X'; 4096], "the flush covers both");
        assert_eq!(medium_bytes(machine, 5 * page, 4096), [b'Y'; 4096]);
        assert_eq!(machine.disk(0).unwrap().device().pending_writes(), []);
    });

    let (_, id) = guest.add_fault("read_error", Effect::ReadError);
    let (output, observed) = guest.end_fault("read_error_over", id);
    assert!(output.contains("I/O error") && observed > 0, "{output}");
    let (output, id) = guest.add_fault("write_error", Effect::WriteError);
    assert!(output.contains("gggggggg"), "reads work again: {output}");
    let (output, observed) = guest.end_fault("write_error_over", id);
    assert!(output.contains("I/O error") && observed > 0, "{output}");
    let (output, id) = guest.add_fault("torn", Effect::TornWrite { bytes: 700 });
    assert!(output.contains("hhhhhhhh"), "the failed write changed nothing: {output}");
    let (output, observed) = guest.end_fault("torn_over", id);
    assert!(output.contains("I/O error") && observed > 0, "{output}");
    let (output, id) = guest.add_fault("corrupt", Effect::CorruptRead { bit: None });
    assert!(output.contains("torn"), "the first bytes were written: {output}");
    let (output, observed) = guest.end_fault("corrupt_over", id);
    assert!(output.lines().any(|line| line == "1") && observed == 1, "one byte differs, {observed} reads: {output:?}");
    let (output, id) = guest.add_fault("full", Effect::Full);
    assert!(output.lines().any(|line| line == "0"), "the disk itself is intact: {output:?}");
    let (output, observed) = guest.end_fault("full_over", id);
    assert!(output.contains("I/O error") && observed > 0, "{output}");
    let output = guest.until("finished");
    assert!(output.contains("status 0"), "{output}");

    let counts = guest.machine.disk(0).unwrap().device().faults().counts().clone();
    let kinds = [
        EffectKind::ReadError,
        EffectKind::WriteError,
        EffectKind::TornWrite,
        EffectKind::CorruptRead,
        EffectKind::Full,
    ];
    for kind in kinds {
        assert!(counts[&kind].applied == 1 && counts[&kind].observed > 0, "{kind:?}: {:?}", counts[&kind]);
    }
}

#[test]
fn linux_reads_the_seeded_entropy_and_writes_to_the_console() {
    let script = r#"
echo "rng $(cat /sys/class/misc/hw_random/rng_current)"
echo "bytes $(dd if=/dev/hwrng bs=16 count=1 2>/dev/null | od -An -tx1 | tr -d ' \n')"
echo "through virtio" >/dev/hvc0
echo finished
"#;
    let Some(mut guest) = Guest::boot(script, None, 2) else { return };
    let output = guest.until("finished");
    assert!(output.contains("rng virtio_rng"), "{output}");
    let shown = output.split("bytes ").nth(1).and_then(|rest| rest.get(..32)).expect("16 bytes in hex");
    let mut stream = vec![0; 1 << 16];
    Stream::new(&[2; 32], Purpose::VirtioRng).fill(&mut stream);
    let stream: String = stream.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(stream.contains(shown), "{shown} is not in the machine's stream");
    let console = String::from_utf8(guest.machine.take_console()).unwrap();
    assert!(console.contains("through virtio"), "{console:?}");
}

#[test]
fn two_guests_ping_each_other() {
    let script = |own: u8, peer: u8| {
        format!(
            "ip addr add 10.0.0.{own}/24 dev eth0\nip link set eth0 up\necho up\n\
             ping -c 3 -s 1400 10.0.0.{peer} && echo pinged\nstep done\n"
        )
    };
    let Some(first) = Guest::boot(&script(1, 2), None, 1) else { return };
    // One with an I/O APIC, one with a PIC only.
    let Some(second) = Guest::boot_with(&script(2, 1), None, 2, Firmware::Legacy) else { return };
    let mut guests = [first, second];
    let mut frames = 0;
    for _ in 0..60_000 {
        for index in 0..2 {
            guests[index].round();
            for frame in guests[index].machine.take_frames() {
                frames += u32::from(guests[1 - index].machine.deliver_frame(&frame.bytes));
            }
        }
        if guests.iter().all(|guest| guest.serial.contains("pinged")) {
            break;
        }
    }
    for guest in &guests {
        assert!(guest.serial.contains("3 packets received") && guest.serial.contains("pinged"), "{}", guest.serial);
    }
    // At least ARP, and a request and a reply for each ping.
    assert!(frames >= 14, "{frames} frames");
    assert_eq!(guests[0].machine.net().unwrap().device().counters().transmit_malformed, 0);
}

/// An empty ext4 file system.
fn ext4() -> Option<PageMap> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(DISK_BYTES).expect("room for the image");
    let tool = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"].into_iter().find(|path| Path::new(path).exists());
    let Some(tool) = tool else {
        eprintln!("skipped: no mkfs.ext4 (apt-get install e2fsprogs)");
        return None;
    };
    let done = Command::new(tool).args(["-q", "-F", "-b", "1024"]).arg(file.path()).status().expect("mkfs.ext4 runs");
    assert!(done.success());
    Some(PageMap::from_bytes(&std::fs::read(file.path()).expect("the image can be read")))
}

const WRITER: &str = r#"
mount -t ext4 /dev/vda /mnt || echo "mount failed"
ls /mnt | tr '\n' ' '; echo
n=$(ls /mnt | grep -c file)
step mounted
while true; do n=$((n+1)); echo "contents $n" > /mnt/file$n; sync; echo "synced $n"; done
"#;

/// Wherever a snapshot is taken, requests in flight included, the restored machine and the one that was never stopped stay
/// the same.
#[test]
fn a_machine_restored_amid_disk_traffic_goes_on_as_if_never_stopped() {
    let Some(disk) = ext4() else { return };
    let Some(mut guest) = Guest::boot(WRITER, Some(&disk), 3) else { return };
    guest.at_step("mounted", |_| {});
    let mut other = guest.machine.fork().expect("the machine forks");
    let mut in_flight = 0;
    let mut cached = 0;
    for step in 0..500 {
        let snapshot = guest.machine.snapshot();
        let disk = guest.machine.disk(0).unwrap();
        in_flight += usize::from(disk.next_completion().is_some());
        cached += usize::from(disk.device().disk().cached_bytes() > 0);
        other.restore(&snapshot).expect("its own snapshot");
        // Steps that fall between the completions of requests.
        let end = guest.machine.now().after(37_123);
        for machine in [&mut guest.machine, &mut other] {
            if let Stop::Idle { .. } = machine.run_until(end).expect("the machine runs") {
                machine.skip_to(end);
            }
        }
        assert_eq!(other.register_hash(), guest.machine.register_hash(), "step {step}");
        assert_eq!(
            other.disk(0).unwrap().device().hash(),
            guest.machine.disk(0).unwrap().device().hash(),
            "step {step}"
        );
        assert_eq!(other.memory_hash(), guest.machine.memory_hash(), "step {step}");
    }
    assert_eq!(other.snapshot(), guest.machine.snapshot());
    assert!(in_flight > 5 && cached > 5, "{in_flight} snapshots with requests in flight, {cached} with a filled cache");
}

/// Whatever survives a power cut, ext4 recovers and holds every file that was synced before it.
#[test]
fn ext4_keeps_what_was_synced_through_power_cuts() {
    let Some(mut disk) = ext4() else { return };
    let mut synced = 0;
    let mut stream = Stream::new(&[77; 32], Purpose::SdkChoice);
    for cut in 0..4u8 {
        let Some(mut guest) = Guest::boot(WRITER, Some(&disk), 10 + cut) else { return };
        let output = guest.at_step("mounted", |_| {});
        assert!(!output.contains("mount failed"), "after cut {cut}: {output}");
        for file in 1..=synced {
            assert!(output.contains(&format!("file{file} ")), "after cut {cut} file{file} is lost: {output}");
        }
        let stop_at = GuestNs(guest.machine.now().0 + 20 * MS + stream.below(40 * MS));
        while guest.machine.now() < stop_at {
            guest.round();
        }
        let lines: Vec<&str> = guest.serial.lines().filter(|line| line.starts_with("synced ")).collect();
        // The last line may be cut short.
        let done = lines.iter().rev().nth(1).and_then(|line| line[7..].trim().parse::<u32>().ok());
        synced = synced.max(done.unwrap_or(synced));
        let block = guest.machine.disk_mut(0).unwrap();
        let pending = block.pending_writes().len();
        let result = block.power_cut(&Survivors::from_bits(pending, stream.next_u64(), 1, 300));
        eprintln!("cut {cut}: {synced} synced, {pending} pending, {result:?}");
        disk = block.disk().medium().clone();
    }
    assert!(synced > 3, "only {synced} files were ever synced");
}
