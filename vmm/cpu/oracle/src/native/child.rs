// SPDX-License-Identifier: AGPL-3.0-or-later
//! The child of the native runner: the loop over batches and the signal handler that drives the cases.
//!
//! From the first case on, the FS base is the test's, so nothing here may use thread-local storage: no libc wrapper that
//! sets `errno`, no panic, no allocation. The only calls are raw system calls.

use super::Shared;
use super::mapping::TestPages;
use crate::case::{Case, Fx};
use crate::compare::ENDLESS;
use crate::layout::{CODE, DATA_BYTES, FILLER, FS_BASE, GS_BASE, USER_CS32, USER_CS64, USER_DS};
use core::arch::{asm, naked_asm};
use std::ptr;
use std::sync::atomic::Ordering;

/// Where the handler is in its work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No case runs: a signal is a fault of the runner.
    Idle,
    /// The next signal comes from the loop and starts a batch.
    Starting,
    /// A case runs.
    Running,
}

struct Globals {
    phase: Phase,
    shared: *mut Shared,
    code: *mut u8,
    data: *mut u8,
    base: *const u8,
    /// Ring 3 may read its segment bases; else they are set again after every case.
    reads_bases: bool,
    /// Cases started so far.
    started: u64,
    /// What `started` was at the last tick of the timer.
    ticked: u64,
    /// The loop's own registers while cases run.
    loop_gregs: [i64; 23],
    loop_fx: Fx,
}

static mut GLOBALS: Globals = Globals {
    phase: Phase::Idle,
    shared: ptr::null_mut(),
    code: ptr::null_mut(),
    data: ptr::null_mut(),
    base: ptr::null(),
    reads_bases: false,
    started: 0,
    ticked: u64::MAX,
    loop_gregs: [0; 23],
    loop_fx: Fx([0; 512]),
};

/// Bytes of the signal stack; frames with all of AVX-512 and AMX take about 12 KiB.
const STACK_BYTES: usize = 1 << 18;
/// User time between two ticks of the timer that ends endless cases; a case takes a few microseconds.
const TICK_US: i64 = 20_000;
/// Encoding order of the general registers in a signal frame.
const GREG_OF_GPR: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Serves batches until the parent goes away.
///
/// # Safety
/// Only in a freshly forked child; `shared` and `pages` stay mapped.
pub unsafe fn main(shared: *mut Shared, pages: &TestPages, socket: i32) -> ! {
    // SAFETY: the child has one thread, and the handler runs only while that thread waits in `trap`.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if !pages.map_fixed() {
            exit(90);
        }
        let base = libc::mmap(
            ptr::null_mut(),
            DATA_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        ptr::copy_nonoverlapping(pages.data(), base.cast::<u8>(), DATA_BYTES);
        let globals = &raw mut GLOBALS;
        (*globals).shared = shared;
        (*globals).code = pages.code();
        (*globals).data = pages.data();
        (*globals).base = base.cast::<u8>();
        // HWCAP2_FSGSBASE.
        (*globals).reads_bases = libc::getauxval(libc::AT_HWCAP2) & 2 != 0;
        install_handlers();
        set_segments();
        loop {
            let mut byte = 0u8;
            if syscall3(libc::SYS_read, socket as u64, &raw mut byte as u64, 1) != 1 {
                exit(0);
            }
            (*globals).phase = Phase::Starting;
            trap();
            if syscall3(libc::SYS_write, socket as u64, &raw const byte as u64, 1) != 1 {
                exit(0);
            }
        }
    }
}

/// # Safety
/// The handler must be ready for it.
unsafe fn trap() {
    // SAFETY: the handler gives every register back as it was; memory that it changes is clobbered by the barrier that
    // `asm!` without `nomem` is.
    unsafe { asm!("int3") }
}

/// # Safety
/// Once, in the child.
unsafe fn install_handlers() {
    // SAFETY: all structures are plain data that zero initializes, and the stack is a new mapping.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let stack = libc::mmap(ptr::null_mut(), STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        let alternate = libc::stack_t { ss_sp: stack, ss_flags: 0, ss_size: STACK_BYTES };
        libc::sigaltstack(&alternate, ptr::null_mut());
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = signal_entry as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // The timer's signal waits while the handler is at work.
        libc::sigaddset(&raw mut action.sa_mask, libc::SIGVTALRM);
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            libc::sigaction(signal, &action, ptr::null_mut());
        }
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        action.sa_sigaction = tick_entry as *const () as usize;
        libc::sigaction(libc::SIGVTALRM, &action, ptr::null_mut());
        let tick = libc::timeval { tv_sec: 0, tv_usec: TICK_US };
        let timer = libc::itimerval { it_interval: tick, it_value: tick };
        libc::setitimer(libc::ITIMER_VIRTUAL, &timer, ptr::null_mut());
    }
}

/// Gives the segment registers the values that every case starts with.
///
/// # Safety
/// From here on there is no thread-local storage.
unsafe fn set_segments() {
    const ARCH_SET_GS: u64 = 0x1001;
    const ARCH_SET_FS: u64 = 0x1002;
    // SAFETY: flat data segments change nothing in 64-bit mode; the bases are this module's promise.
    unsafe {
        asm!("mov ds, {0:e}", "mov es, {0:e}", in(reg) u32::from(USER_DS), options(nostack, preserves_flags));
        syscall3(libc::SYS_arch_prctl, ARCH_SET_FS, FS_BASE, 0);
        syscall3(libc::SYS_arch_prctl, ARCH_SET_GS, GS_BASE, 0);
    }
}

/// # Safety
/// As the system call.
unsafe fn syscall3(number: i64, a: u64, b: u64, c: u64) -> i64 {
    let result: i64;
    // SAFETY: the kernel clobbers RCX and R11 and keeps everything else.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

fn exit(code: u64) -> ! {
    // SAFETY: ends the process.
    unsafe { syscall3(libc::SYS_exit_group, code, 0, 0) };
    loop {
        std::hint::spin_loop();
    }
}

/// Clears AC, NT and ID: the kernel leaves them as the case had them, but compiled code is not made for alignment checks, and
/// what a signal frame does not restore would stay for the next case.
#[unsafe(naked)]
unsafe extern "C" fn signal_entry() {
    naked_asm!("push 0x202", "popfq", "jmp {handler}", handler = sym on_signal)
}

/// As `signal_entry`.
#[unsafe(naked)]
unsafe extern "C" fn tick_entry() {
    naked_asm!("push 0x202", "popfq", "jmp {handler}", handler = sym on_tick)
}

/// A case that is running at two ticks in a row is endless: ends it.
unsafe extern "C" fn on_tick(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the timer's signal is blocked in `on_signal`, so nothing else uses the globals now.
    unsafe {
        let pointer = &raw mut GLOBALS;
        let globals = &mut *pointer;
        if globals.phase != Phase::Running {
            globals.ticked = u64::MAX;
            return;
        }
        if globals.started != globals.ticked {
            globals.ticked = globals.started;
            return;
        }
        globals.ticked = u64::MAX;
        (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_TRAPNO as usize] = i64::from(ENDLESS);
        on_signal(signal, info, context);
    }
}

unsafe extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid frame, and the handler is the only one that runs.
    unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        let fx = &mut *context.uc_mcontext.fpregs.cast::<Fx>();
        let gregs = &mut context.uc_mcontext.gregs;
        let pointer = &raw mut GLOBALS;
        let globals = &mut *pointer;
        let shared = &mut *globals.shared;
        let next = match globals.phase {
            Phase::Idle => exit(91),
            Phase::Starting => {
                globals.loop_gregs = *gregs;
                globals.loop_fx = *fx;
                shared.logged = 0;
                0
            }
            Phase::Running => {
                // The handler itself must not fault as a case.
                globals.phase = Phase::Idle;
                let index = shared.current.load(Ordering::Relaxed) as usize;
                store_outcome(globals, shared, index, gregs, fx);
                index + 1
            }
        };
        shared.current.store(next as u32, Ordering::Release);
        if next == shared.count as usize {
            globals.phase = Phase::Idle;
            *gregs = globals.loop_gregs;
            *fx = globals.loop_fx;
        } else {
            load_case(globals, &shared.cases[next], gregs, fx);
            globals.started += 1;
            globals.phase = Phase::Running;
        }
    }
}

unsafe fn store_outcome(globals: &Globals, shared: &mut Shared, index: usize, gregs: &[i64; 23], fx: &Fx) {
    let out = &mut shared.registers[index];
    out.fx = *fx;
    for (register, &greg) in out.gpr.iter_mut().zip(&GREG_OF_GPR) {
        *register = gregs[greg as usize] as u64;
    }
    out.rip = gregs[libc::REG_RIP as usize] as u64;
    out.rflags = gregs[libc::REG_EFL as usize] as u64;
    out.vector = gregs[libc::REG_TRAPNO as usize] as u32;
    out.error = gregs[libc::REG_ERR as usize] as u32;
    out.cr2 = gregs[libc::REG_CR2 as usize] as u64;
    let packed = gregs[libc::REG_CSGSFS as usize] as u64;
    let data = read_data_selectors();
    out.selectors = [data[0], packed as u16, (packed >> 48) as u16, data[1], data[2], data[3]];
    if data != [USER_DS, USER_DS, 0, 0] || !globals.reads_bases || read_bases() != [FS_BASE, GS_BASE] {
        // SAFETY: the child is past the use of thread-local storage.
        unsafe { set_segments() };
    }
    // SAFETY: both pointers are `DATA_BYTES` of mapped memory, aligned to pages.
    let (data, base) = unsafe {
        (
            std::slice::from_raw_parts_mut(globals.data.cast::<u64>(), DATA_BYTES / 8),
            std::slice::from_raw_parts(globals.base.cast::<u64>(), DATA_BYTES / 8),
        )
    };
    let case = &shared.cases[index];
    let mut logged = shared.logged as usize;
    for word in 0..data.len() {
        if data[word] != base[word] {
            if logged < shared.log.len() {
                shared.log[logged] = (word as u32, data[word]);
                logged += 1;
            }
            data[word] = base[word];
        }
    }
    shared.logged = logged as u32;
    shared.log_end[index] = logged as u32;
    let offset = (case.rip - CODE) as usize;
    // SAFETY: `load_case` checked that the code lies inside the code pages.
    unsafe { ptr::write_bytes(globals.code.add(offset), FILLER, case.code_len as usize) };
}

/// ES, DS, FS, GS.
fn read_data_selectors() -> [u16; 4] {
    let (es, ds, fs, gs): (u32, u32, u32, u32);
    // SAFETY: reading selectors has no effect.
    unsafe {
        asm!("mov {0:e}, es", "mov {1:e}, ds", "mov {2:e}, fs", "mov {3:e}, gs",
            out(reg) es, out(reg) ds, out(reg) fs, out(reg) gs, options(nomem, nostack, preserves_flags));
    }
    [es as u16, ds as u16, fs as u16, gs as u16]
}

/// The FS and GS bases; only where `Globals::reads_bases`.
fn read_bases() -> [u64; 2] {
    let (fs, gs): (u64, u64);
    // SAFETY: the kernel has enabled the instructions, and they only read.
    unsafe { asm!("rdfsbase {0}", "rdgsbase {1}", out(reg) fs, out(reg) gs, options(nomem, nostack, preserves_flags)) };
    [fs, gs]
}

unsafe fn load_case(globals: &Globals, case: &Case, gregs: &mut [i64; 23], fx: &mut Fx) {
    let offset = case.rip.wrapping_sub(CODE) as usize;
    let len = case.code_len as usize;
    if len > case.code.len() || offset > crate::layout::CODE_BYTES - len {
        exit(92);
    }
    // SAFETY: the code was just checked to fit, and patches fit by construction.
    unsafe {
        ptr::copy_nonoverlapping(case.code.as_ptr(), globals.code.add(offset), len);
        case.apply_patches(std::slice::from_raw_parts_mut(globals.data, DATA_BYTES));
    }
    // The bytes from 416 on belong to the kernel's frame.
    fx.0[..416].copy_from_slice(&case.fx.0[..416]);
    for (&register, &greg) in case.gpr.iter().zip(&GREG_OF_GPR) {
        gregs[greg as usize] = register as i64;
    }
    gregs[libc::REG_RIP as usize] = case.rip as i64;
    gregs[libc::REG_EFL as usize] = case.rflags as i64;
    let cs = if case.bits == 64 { USER_CS64 } else { USER_CS32 };
    gregs[libc::REG_CSGSFS as usize] = (u64::from(cs) | u64::from(USER_DS) << 48) as i64;
}
