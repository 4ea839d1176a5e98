// SPDX-License-Identifier: Apache-2.0
//! What code that was compiled with LLVM's SanitizerCoverage calls (`trace-pc-guard`): each edge of the program has a guard, a word
//! of its own, and is a count in the [coverage map](crate::coverage).
//!
//! LLVM leaves functions whose name begins with `__sanitizer_` alone, so that these two are not instrumented even where the whole
//! program is, this crate included. The one that counts calls nothing: it is a few instructions of assembly, which no pass
//! instruments and which a debug build does not turn into calls.

use crate::coverage::{SLOTS, slot_of};

/// Numbers the guards of a module (a program or a shared library), each with its slot plus 1; 0 is a guard without a number.
///
/// The slots of a module follow each other, so that edges of one module share none before there are more than slots. Where they
/// begin depends on how many there are and where in its page the first lies: not on where the module was loaded.
///
/// # Safety
/// `start` to `stop` are the module's guards. Only code that the compiler put into the module calls this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sanitizer_cov_trace_pc_guard_init(start: *mut u32, stop: *mut u32) {
    // Every object file of a module has a constructor that makes this call, with the same range.
    // SAFETY: the caller says that the range is words; only an empty one has no first.
    if start == stop || unsafe { *start } != 0 {
        return;
    }
    let guards = (stop as usize - start as usize) / size_of::<u32>();
    let mut slot = slot_of(guards as u64, start as u64 % 4096);
    for number in 0..guards {
        // SAFETY: the guard is inside the range.
        unsafe { *start.add(number) = slot as u32 + 1 };
        slot = (slot + 1) % SLOTS;
    }
}

/// Counts the edge of a guard.
///
/// # Safety
/// `guard` points to a guard. Only code that the compiler put into the module calls this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sanitizer_cov_trace_pc_guard(guard: *const u32) {
    // Guests are x86-64 machines. A program that is tried out on another host counts nothing there.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a guard's number is 0 or a slot plus 1, and `MAP` has all slots. Adding the carry's complement saturates: 255 and 1 make 0
    // and a carry, which is taken away again.
    unsafe {
        core::arch::asm!(
            "mov {slot:e}, dword ptr [{guard}]",
            "test {slot:e}, {slot:e}",
            "je 2f",
            "mov {map}, qword ptr [rip + {home}]",
            "movzx {count:e}, byte ptr [{map} + {slot} - 1]",
            "add {count:l}, 1",
            "sbb {count:l}, 0",
            "mov byte ptr [{map} + {slot} - 1], {count:l}",
            "2:",
            guard = in(reg) guard,
            slot = out(reg) _,
            map = out(reg) _,
            count = out(reg) _,
            home = sym crate::coverage::MAP,
            options(nostack),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = guard;
}
