// SPDX-License-Identifier: AGPL-3.0-or-later
//! A shell script that runs many real programs: in a guest with both tiers of the CPU side by side, and by the host's own CPU.
//!
//! Needs a guest kernel (`CHAOS_TEST_KERNEL`, or one that `guest/kernel/build` left in the user's cache) and a static busybox. Where one
//! is missing the test says that it was skipped.

mod common;

use std::process::Command;
use std::sync::Arc;

use chaoscontrol_machine::exact::{TierChoice, choose_tier};
use chaoscontrol_machine::pages::Digest;
use chaoscontrol_machine::{GuestNs, Machine, Stop, VmConfig};
use common::linux::{archive, kernel};

/// Prints only what follows from the programs: no times, numbers of processes or inodes.
const SCRIPT: &str = r#"
cd "$WORK"
awk 'BEGIN { for (i = 1; i <= 3000; i++) { x = (x * 1103515245 + 12345) % 2147483648; y = y / 3.7 + x / 1000003; printf "%d %.9g %.9g line%d\n", x, y, y * y / (i + 0.1), x % 97 } }' >numbers
wc numbers
sort -n numbers | md5sum
sort -k2 -g numbers | sha1sum
cut -d' ' -f4 numbers | sort | uniq -c | sort -rn -k1,1 -k2 | head -5
sed -n 's/^\([0-9]*\)7 .*line\(.*\)$/\2:\1/p' numbers | tr 0-9 a-j | sha256sum
grep -c 'line[1-3][0-9]$' numbers
grep -E '^(1|2).*e[+]' numbers | tail -n 3
for how in gzip bzip2; do
    $how -c numbers >packed.$how
    $how -dc packed.$how | cmp - numbers && echo "$how is whole"
done
xz -c numbers >packed.xz 2>/dev/null && xz -dc packed.xz | sha512sum
base64 numbers | sha3sum
od -An -tx4 -N64 numbers
xxd -l 32 numbers
mkdir -p tree/a/b tree/c
for file in a/1 a/b/2 c/3; do head -c 700 numbers | rev >tree/$file; done
ln -s a/1 tree/link
tar cf - tree | tar tf - | sort
(cd tree && find . -type f | sort | xargs crc32)
find tree | sort | cpio -o -H newc 2>/dev/null | cpio -it 2>/dev/null | sort
head -n 1500 numbers >front && tail -n 1500 numbers >back
cat back front | tac | head -n 2
nl front | paste -d: - back | fold -w 40 | head -n 4
seq 1 400 >left && seq 3 3 400 >right
diff left right | sha256sum
cp left patched && diff -u left right >change && patch -s patched change && cmp patched right && echo patched
echo 'scale=60; 4*a(1); e(1); sqrt(2)' | bc -l
echo '2 300 ^ p 17 3 / p' | dc
factor 1234567890123 600851475143
expr 12345 '*' 6789 % 1000
fib() { if [ "$1" -lt 2 ]; then echo "$1"; else echo $(($(fib $(($1 - 1))) + $(fib $(($1 - 2))))); fi; }
fib 9
total=0; i=0; while [ $i -lt 5000 ]; do total=$(((total * 31 + i) % 1000003)); i=$((i + 1)); done; echo $total
yes chaos | head -n 5000 | sha256sum
dd if=numbers bs=1000 skip=3 count=5 2>/dev/null | md5sum
printf '%s %05d %x %o\n' word 42 255 8
env -i PATH="$PATH" sh -c 'echo "$0 $#"' name one two
"#;
/// Around what the script prints.
const MARKS: [&str; 2] = ["=== begin", "=== end"];
const LIMIT: GuestNs = GuestNs(600_000_000_000);

/// What lies between the marks.
fn between(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let from = text.find(MARKS[0]).unwrap_or_else(|| panic!("the script did not begin: {text}")) + MARKS[0].len();
    let to = text.find(MARKS[1]).unwrap_or_else(|| panic!("the script did not end: {text}"));
    text[from..to].trim().to_owned()
}

fn marked(work: &str, path: &str) -> String {
    format!(
        "export WORK={work} PATH={path} LC_ALL=C\n/bin/busybox --install -s {path}\necho '{}'\n({SCRIPT}) 2>&1\necho '{}'\n",
        MARKS[0], MARKS[1]
    )
}

/// Runs the script in a guest; gives its output, what the machine was at the end, and how many instructions it took.
fn in_guest(kernel: Vec<u8>, busybox: &[u8], tier: TierChoice) -> (String, Digest, u64) {
    choose_tier(tier);
    let script = format!(
        "#!/bin/busybox sh\n/bin/busybox mount -t proc proc /proc\n/bin/busybox mount -t devtmpfs dev /dev\n{}poweroff -f\n",
        marked("/work", "/bin")
    );
    let directories = ["bin", "dev", "proc", "work"].map(|name| (name, 0o040_755, &[][..]));
    let files = [("bin/busybox", 0o100_755, busybox), ("init", 0o100_755, script.as_bytes())];
    let mut config = VmConfig::new(96 << 20, kernel.into());
    config.initrd = Some(archive(&[&directories[..], &files].concat()).into());
    let mut machine = Machine::new(Arc::new(config)).expect("a machine");
    machine.load().expect("loads");
    let end = loop {
        match machine.run_until(LIMIT).unwrap_or_else(|error| panic!("{tier:?}: {error}")) {
            Stop::Idle { .. } => machine.skip_to(LIMIT),
            Stop::Doorbell { .. } | Stop::RestartPoint => {}
            stop => break stop,
        }
    };
    let console = String::from_utf8_lossy(&machine.take_serial()).into_owned();
    assert_eq!(end, Stop::PowerOff, "{console}");
    (between(&console), machine.memory_hash(), machine.instructions())
}

#[test]
fn a_script_of_many_programs_prints_what_the_host_prints_and_both_tiers_agree_on_every_step() {
    let Some(kernel) = kernel("vmlinux") else { return };
    let Ok(busybox) = std::fs::read("/bin/busybox") else {
        eprintln!("skipped: no /bin/busybox (apt-get install busybox-static)");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (work, path) = (folder.path().join("work"), folder.path().join("bin"));
    std::fs::create_dir(&work).and_then(|()| std::fs::create_dir(&path)).expect("folders");
    let script = marked(work.to_str().expect("a path"), path.to_str().expect("a path"));
    let natively = Command::new("/bin/busybox").args(["sh", "-c", &script]).env_clear().output().expect("busybox runs");
    let expected = between(&String::from_utf8_lossy(&natively.stdout));
    assert!(!expected.contains("not found") && !expected.contains("can't open"), "{expected}");

    let (printed, memory, instructions) = in_guest(kernel.clone(), &busybox, TierChoice::Both);
    assert_eq!(printed, expected);
    for tier in [TierChoice::Compiled, TierChoice::Reference] {
        assert!((expected.clone(), memory, instructions) == in_guest(kernel.clone(), &busybox, tier), "{tier:?}");
    }
    eprintln!("{instructions} instructions, {} lines", expected.lines().count());
}
