// SPDX-License-Identifier: Apache-2.0
//! Guests that do what no guest should, for tests of the host. `misbehave=WHAT` on the kernel command line, or as an argument,
//! chooses:
//!
//! | what | it does |
//! |---|---|
//! | `panic` | makes the kernel panic after setup |
//! | `die` | exits with code 3 before setup |
//! | `crash` | is killed by a signal before setup |
//! | `spin` | loops for ever before setup, without a system call |
//! | `spin-after` | the same after setup |
//! | `flood` | writes to the console for ever after setup |
//! | `garbage` | writes random bytes into the coverage map and every slot and rings every doorbell after setup |
//! | `mute` | sleeps for ever before setup |
//! | `fail` | fails an assertion after setup |
//! | `end` | exits with code 0 after setup |
//! | `steer` | sends text that would steer a terminal everywhere it can after setup, then fails an assertion |
//! | `steer-die` | writes such text to the console and exits with code 3 before setup |

use chaoscontrol_protocol::layout::{COVERAGE_OFFSET, SLOTS};
use chaoscontrol_protocol::{DOORBELL_BYTES, REGION_ADDRESS, WINDOW_BYTES};
use chaoscontrol_sdk::{LogLevel, assert_agree, assert_always, details, guest, log, send_event, setup_complete};
use std::os::fd::AsRawFd;
use std::time::Duration;

fn main() {
    let argument = std::env::args().find_map(|word| word.strip_prefix("misbehave=").map(str::to_owned));
    let what = argument.or_else(|| guest::parameter("misbehave")).unwrap_or_default();
    println!("chaos-misbehave: {what}");
    match what.as_str() {
        "die" => std::process::exit(3),
        "steer-die" => {
            println!("{STEERING}");
            std::process::exit(3)
        }
        "crash" => std::process::abort(),
        "spin" => spin(),
        "mute" => sleep_for_ever(),
        "panic" | "spin-after" | "flood" | "garbage" | "fail" | "end" | "steer" => {}
        _ => {
            println!(
                "chaos-misbehave: misbehave= must be panic, die, crash, spin, spin-after, flood, garbage, mute, fail, end, steer or \
                 steer-die"
            );
            std::process::exit(2);
        }
    }
    if let Err(error) = setup_complete(details! { what: what }) {
        println!("chaos-misbehave: {error}");
    }
    std::thread::sleep(Duration::from_millis(100));
    match what.as_str() {
        "panic" => panic_kernel(),
        "spin-after" => spin(),
        "flood" => flood(),
        "garbage" => garbage(),
        "steer" => steer(),
        "fail" => {
            assert_always!(std::hint::black_box(false), "this guest never fails", details! { why: "it was asked to" });
            sleep_for_ever()
        }
        _ => {}
    }
}

/// Clears the screen, renames the window, rings, reorders what follows, and the same with single characters (ECMA-48 8.2,
/// Unicode UAX 9).
const STEERING: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}dekcatta\u{2066}\u{8}\r";

fn steer() -> ! {
    println!("{STEERING}");
    // What cannot be sent is not shown either.
    let _ = send_event(STEERING, details! { text: STEERING });
    let _ = log(LogLevel::Error, STEERING);
    let _ = assert_agree!("\u{1b}[1mnamespace\u{9b}", STEERING, STEERING);
    assert_always!(std::hint::black_box(false), "\u{1b}[31mred\u{202e} message\u{9b}", details! { text: STEERING });
    sleep_for_ever()
}

fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// The kernel panics when process 1 dies, and a kernel with the magic key panics when it is told to.
fn panic_kernel() -> ! {
    let asked = std::fs::write("/proc/sysrq-trigger", "c");
    println!("chaos-misbehave: no magic key ({asked:?}), killing process 1");
    // SAFETY: sends a signal. Process 1 ignores it unless it handles it, so a broken instruction follows below.
    unsafe { libc::kill(1, libc::SIGKILL) };
    // Memory of process 1 is within root's reach: its next instruction becomes a broken one.
    if let Err(error) = break_init() {
        println!("chaos-misbehave: cannot break process 1: {error}");
    }
    sleep_for_ever()
}

fn break_init() -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string("/proc/1/maps")?;
    let memory = std::fs::File::options().write(true).open("/proc/1/mem")?;
    for line in maps.lines().filter(|line| line.contains(" r-xp ")) {
        let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap_or_default();
        let number = |text| u64::from_str_radix(text, 16).map_err(std::io::Error::other);
        let (start, end) = (number(start)?, number(end)?);
        // UD2 everywhere: whatever runs next is an invalid instruction.
        let broken: Vec<u8> = [0x0f, 0x0b].into_iter().cycle().take((end - start) as usize).collect();
        // Pages that cannot be written (the vdso) are not needed.
        let _ = memory.write_at(&broken, start);
    }
    Ok(())
}

fn flood() -> ! {
    let line = "0123456789abcdef".repeat(8);
    loop {
        println!("{line}");
    }
}

/// Overwrites the whole window but its header with pseudo-random bytes, and rings every doorbell value that could mean
/// something, again and again.
fn garbage() -> ! {
    let Some(region) = map_region() else {
        println!("chaos-misbehave: there is no region to write to");
        sleep_for_ever()
    };
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    loop {
        for offset in (u64::from(COVERAGE_OFFSET)..WINDOW_BYTES).step_by(4) {
            let address = (DOORBELL_BYTES + offset) as usize;
            // SAFETY: the mapping covers the whole region; nobody else in this guest uses it any more.
            unsafe { region.add(address).cast::<u32>().write_volatile(next()) };
        }
        for bell in (0..SLOTS + 2).chain([0x1000_0002, 0x2fff_ffff, u32::MAX, next()]) {
            // SAFETY: the doorbell page is mapped.
            unsafe { region.cast::<u32>().write_volatile(bell) };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn map_region() -> Option<*mut u8> {
    let (path, offset) = if std::path::Path::new("/dev/chaos").exists() {
        ("/dev/chaos", 0)
    } else if guest::vm().is_some() {
        ("/dev/mem", REGION_ADDRESS)
    } else {
        return None;
    };
    let file = std::fs::File::options().read(true).write(true).open(path).ok()?;
    let bytes = (DOORBELL_BYTES + WINDOW_BYTES) as usize;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh shared mapping at an address the kernel chooses.
    let region = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), offset as libc::off_t)
    };
    (region != libc::MAP_FAILED).then(|| region.cast())
}
