// SPDX-License-Identifier: AGPL-3.0-or-later
//! Exceptions of every class, gates, stacks, IRET.

use super::build::{Builder, OK, Program};
use crate::qemu::world::{
    CR0, DATA, GDT, HANDLERS, IDT, KERNEL_CS, KERNEL_DS, STACK, TSS, USER_CS32, USER_CS64, USER_DS, USER_STACK,
};
use crate::ram::gate;
use iced_x86::code_asm::{dword_ptr, qword_ptr, r13, rax, rcx, rdx, rsp};

pub fn programs() -> Vec<Program> {
    vec![faults(), gates(), stacks(), iret(), double_faults(), traps()]
}

const NON_CANONICAL: u64 = 0x8000_0000_0000;

/// One fault of each class, from both rings.
fn faults() -> Program {
    let mut builder = Builder::new("faults");
    let pieces: &[&[u8]] = &[
        // div al with 0; idiv of the smallest number by -1 would need setup: div ecx with 0.
        &[0x31, 0xc9, 0xf7, 0xf1],
        // int3, icebp is left out: QEMU stops there itself. ud2, ud1.
        &[0x0f, 0x0b],
        &[0x0f, 0xb9, 0xc0],
        // int 32 (DPL 3), int 50 (DPL 0), int 63 (DPL 0).
        &[0xcd, 0x20],
        &[0xcd, 0x32],
        &[0xcd, 0x3f],
        // Beyond the IDT's limit.
        &[0xcd, 0x80],
        &[0xcd, 0xff],
        // lock on a register form and on an instruction without lock.
        &[0xf0, 0x01, 0xc0],
        &[0xf0, 0x90],
        // push es and other removed instructions.
        &[0x06],
        &[0x27],
        &[0x37],
        &[0x60],
        &[0x61],
        &[0x9a, 0, 0, 0, 0, 0, 0],
        &[0xd6],
        // Privileged ones: nothing in ring 0 but what the state allows.
        &[0xfa],
        &[0x0f, 0x06],
        &[0x0f, 0x09],
        &[0x0f, 0x20, 0xc0],
        &[0x0f, 0x20, 0xe0],
        &[0x0f, 0x20, 0xd8],
        &[0x0f, 0x21, 0xf8],
        &[0x0f, 0x01, 0xf8],
        // rsm outside of SMM.
        &[0x0f, 0xaa],
        // movaps from an odd address.
        &[0x48, 0xc7, 0xc1, 0x01, 0x10, 0x16, 0x00, 0x0f, 0x28, 0x01],
        // fxsave at an odd address.
        &[0x48, 0xc7, 0xc1, 0x08, 0x10, 0x16, 0x00, 0x0f, 0xae, 0x01],
        // cmpxchg16b at an odd address.
        &[0x48, 0xc7, 0xc1, 0x08, 0x10, 0x16, 0x00, 0x48, 0x0f, 0xc7, 0x09],
        // Too long: fifteen prefixes.
        &[0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x90],
        // popf changes IOPL and IF in ring 0 only.
        &[0x68, 0x02, 0x32, 0x00, 0x00, 0x9d, 0x9c, 0x58],
        // sti, cli.
        &[0xfb, 0xfa],
        // in al, 0x80 in ring 3: no permission. In ring 0 it would leave to a device, so test its fault only there.
        &[0xf4],
    ];
    for bytes in pieces {
        if *bytes != [0xf4] && *bytes != [0xfb, 0xfa] {
            builder.attempt_bytes(bytes);
            // IOPL may have changed.
            builder.attempt_bytes(&[0x6a, 0x02, 0x9d]);
        }
        builder.user_bytes(USER_CS64, bytes);
        builder.attempt_bytes(&[0x6a, 0x02, 0x9d]);
    }
    for bytes in [&[0xe4u8, 0x80][..], &[0xee], &[0x6c], &[0x6f]] {
        builder.user_bytes(USER_CS64, bytes);
    }
    for (cr0, bytes) in task_switched() {
        builder.asm.mov(rax, cr0).expect(OK);
        builder.asm.mov(iced_x86::code_asm::cr0, rax).expect(OK);
        builder.attempt_bytes(bytes);
        builder.asm.mov(rax, CR0).expect(OK);
        builder.asm.mov(iced_x86::code_asm::cr0, rax).expect(OK);
    }
    // Unmasked x87 and SSE exceptions are the host's: QEMU pops where it must not and raises no #XM at all.
    builder.finish()
}

/// CR0 with EM, TS or MP, and an instruction that looks at it.
fn task_switched() -> Vec<(u64, &'static [u8])> {
    const X87: &[u8] = &[0xd9, 0xe8];
    const WAIT: &[u8] = &[0x9b];
    const MMX: &[u8] = &[0x0f, 0xef, 0xc0];
    const SSE: &[u8] = &[0x0f, 0x57, 0xc0];
    let (mp, em, ts) = (2u64, 4u64, 8u64);
    let mut list = Vec::new();
    // With both EM and TS, MMX and SSE raise #UD (SDM 3A, 2.5); QEMU raises #NM.
    for cr0 in [CR0 | ts, CR0 | em, CR0 & !mp | ts, CR0 & !mp | em] {
        for bytes in [X87, WAIT, MMX, SSE] {
            list.push((cr0, bytes));
        }
    }
    list
}

/// Gates with every fault that delivery can meet.
fn gates() -> Program {
    let mut builder = Builder::new("gates");
    let handler = |vector: u64| HANDLERS + vector * 16;
    let code_not_present = 0x0020_1b00_0000_0000u64;
    let code_dpl3 = 0x0020_fb00_0000_0000u64;
    let conforming = 0x0020_9f00_0000_0000u64;
    for (index, descriptor) in [code_not_present, code_dpl3, conforming].iter().enumerate() {
        builder.word(GDT + 0x100 + 8 * index as u64, *descriptor);
    }
    let variants: &[(u16, u64, u8, u8)] = &[
        // Trap gate, DPL 3; interrupt gate, DPL 3; not present; wrong types.
        (KERNEL_CS, handler(41), 0, 0xef),
        (KERNEL_CS, handler(41), 0, 0xee),
        (KERNEL_CS, handler(41), 0, 0x6e),
        (KERNEL_CS, handler(41), 0, 0xe6),
        (KERNEL_CS, handler(41), 0, 0xe5),
        (KERNEL_CS, handler(41), 0, 0xec),
        // Selectors: null, data, beyond the table, 32-bit code, not present, DPL 3, conforming, in an LDT that is not there.
        (0, handler(41), 0, 0xee),
        (KERNEL_DS, handler(41), 0, 0xee),
        (0xff8, handler(41), 0, 0xee),
        (0x08, handler(41), 0, 0xee),
        (0x100, handler(41), 0, 0xee),
        (0x108, handler(41), 0, 0xee),
        (0x110, handler(41), 0, 0xee),
        (0x0c, handler(41), 0, 0xee),
        // IST 1 and 2, and one whose stack is null.
        (KERNEL_CS, handler(41), 1, 0xee),
        (KERNEL_CS, handler(41), 2, 0xee),
        // RPL in the selector does not matter.
        (KERNEL_CS | 3, handler(41), 0, 0xee),
    ];
    for &(selector, offset, ist, kind) in variants {
        let words = gate(selector, offset, ist, kind);
        builder.store(IDT + 41 * 16, words[0]);
        builder.store(IDT + 41 * 16 + 8, words[1]);
        builder.attempt_bytes(&[0xcd, 41]);
        builder.user_bytes(USER_CS64, &[0xcd, 41]);
        // From 32-bit code.
        builder.user_bytes(USER_CS32, &[0xcd, 41]);
    }
    builder.finish()
}

/// Stack pointers that are not aligned, not canonical or not mapped.
fn stacks() -> Program {
    let mut builder = Builder::new("stacks");
    for offset in 0..16u64 {
        builder.attempt(|asm| {
            asm.sub(rsp, offset as i32).expect(OK);
            asm.ud2().expect(OK);
        });
    }
    let words = gate(KERNEL_CS, HANDLERS + 12 * 16, 1, 0x8e);
    builder.word(IDT + 12 * 16, words[0]);
    let words = gate(KERNEL_CS, HANDLERS + 8 * 16, 2, 0x8e);
    builder.word(IDT + 8 * 16, words[0]);
    // QEMU raises #GP where a stack is not canonical, and not #SS; the table tests have that.
    // No page at the stack: #UD, then #PF, which becomes a double fault since its frame has no place either.
    builder.attempt(|asm| {
        asm.mov(rsp, 0x5000u64).expect(OK);
        asm.ud2().expect(OK);
    });
    builder.finish()
}

/// IRETQ and IRETD to all kinds of frames.
fn iret() -> Program {
    let mut builder = Builder::new("iret");
    let conforming = 0x0020_9f00_0000_0000u64;
    builder.word(GDT + 0x110, conforming);
    let targets: &[(u16, u16, u64)] = &[
        (KERNEL_CS, KERNEL_DS, 0x2),
        (KERNEL_CS, 0, 0x2),
        (KERNEL_CS, USER_DS, 0x2),
        (KERNEL_CS, 0x100, 0x2),
        (USER_CS64, USER_DS, 0x202),
        (USER_CS64, 0, 0x202),
        (USER_CS64, 3, 0x202),
        (USER_CS64, KERNEL_DS, 0x202),
        (USER_CS64, USER_CS64, 0x202),
        (USER_CS64 & !3, KERNEL_DS, 0x2),
        (USER_CS32, USER_DS, 0x202),
        (USER_CS32, 0, 0x202),
        (0, KERNEL_DS, 0x2),
        (3, KERNEL_DS, 0x2),
        (KERNEL_DS, KERNEL_DS, 0x2),
        (0xff8, KERNEL_DS, 0x2),
        (0x110, KERNEL_DS, 0x2),
        (0x113, USER_DS, 0x2),
        (0x0c, KERNEL_DS, 0x2),
        (KERNEL_CS, KERNEL_DS, 0x3f_7fd7 & !0x100 & !0x4000 & !0x2_0000),
        (KERNEL_CS | 1, KERNEL_DS | 1, 0x2),
    ];
    for &(cs, ss, flags) in targets {
        for nt in [0u64, 0x4000] {
            frame(&mut builder, cs, ss, flags, nt);
        }
    }
    builder.finish()
}

/// Returns through a frame to an INT 40, which is in ring-3 memory so that every ring can run it.
fn frame(builder: &mut Builder, cs: u16, ss: u16, flags: u64, nt: u64) {
    let stack = if cs & 3 == 3 { USER_STACK - 0x100 } else { STACK - 0x100 };
    let target = LANDING;
    builder.memory(target, &[0x90, 0xcd, 40]);
    builder.attempt(|asm| {
        let mut behind = asm.create_label();
        asm.lea(r13, qword_ptr(behind)).expect(OK);
        asm.mov(qword_ptr(crate::qemu::world::KERNEL_RESUME), r13).expect(OK);
        asm.pushfq().expect(OK);
        asm.or(dword_ptr(rsp), nt as i32).expect(OK);
        asm.popfq().expect(OK);
        for value in [u64::from(ss), stack, flags, u64::from(cs), target] {
            asm.push(value as i32).expect(OK);
        }
        asm.iretq().expect(OK);
        asm.set_label(&mut behind).expect(OK);
        asm.nop().expect(OK);
    });
    builder.attempt_bytes(&[0x6a, 0x02, 0x9d]);
    if nt == 0 {
        // The 32-bit form.
        builder.attempt(|asm| {
            let mut behind = asm.create_label();
            asm.lea(r13, qword_ptr(behind)).expect(OK);
            asm.mov(qword_ptr(crate::qemu::world::KERNEL_RESUME), r13).expect(OK);
            asm.sub(rsp, 20).expect(OK);
            for (slot, value) in [target, u64::from(cs), flags, stack, u64::from(ss)].iter().enumerate() {
                asm.mov(dword_ptr(rsp + 4 * slot as i32), *value as i32).expect(OK);
            }
            asm.iretd().expect(OK);
            asm.set_label(&mut behind).expect(OK);
            asm.nop().expect(OK);
        });
        builder.attempt_bytes(&[0x6a, 0x02, 0x9d]);
    }
}

const LANDING: u64 = DATA + 0x800;

/// Faults in the delivery of faults.
fn double_faults() -> Program {
    let mut builder = Builder::new("double faults");
    let words = |vector: u64, kind: u8| gate(KERNEL_CS, HANDLERS + vector * 16, 0, kind)[0];
    // Without a page-fault handler: #PF, then #NP becomes #DF.
    builder.store(IDT + 14 * 16, words(14, 0x0e));
    builder.attempt(|asm| asm.mov(rcx, qword_ptr(0x10)).expect(OK));
    builder.store(IDT + 14 * 16, words(14, 0x8e));
    // #GP without handler: #NP after #GP is a double fault.
    builder.store(IDT + 13 * 16, words(13, 0x0e));
    builder.attempt(|asm| {
        asm.mov(r13, NON_CANONICAL).expect(OK);
        asm.mov(rcx, qword_ptr(r13)).expect(OK);
    });
    builder.store(IDT + 13 * 16, words(13, 0x8e));
    // #UD without handler: benign, then #NP is delivered.
    builder.store(IDT + 6 * 16, words(6, 0x0e));
    builder.attempt(|asm| asm.ud2().expect(OK));
    builder.store(IDT + 6 * 16, words(6, 0x8e));
    // #DE is contributory.
    builder.store(IDT, words(0, 0x0e));
    builder.attempt(|asm| {
        asm.xor(rcx, rcx).expect(OK);
        asm.xor(rdx, rdx).expect(OK);
        asm.div(rcx).expect(OK);
    });
    builder.store(IDT, words(0, 0x8e));
    // A TSS whose ring-0 stack is not mapped.
    builder.store(TSS + 4, 0x6000);
    let through = gate(KERNEL_CS, HANDLERS + 8 * 16, 1, 0x8e);
    builder.store(IDT + 8 * 16, through[0]);
    let through = gate(KERNEL_CS, HANDLERS + 40 * 16, 1, 0xee);
    builder.store(IDT + 40 * 16, through[0]);
    builder.user_bytes(USER_CS64, &[0x0f, 0x0b]);
    builder.finish()
}

/// Traps: single step in both rings, also over what changes the stack segment, and breakpoints in the debug registers.
fn traps() -> Program {
    let mut builder = Builder::new("traps");
    builder.attempt_bytes(&[0xcc]);
    builder.user_bytes(USER_CS64, &[0xcc]);
    builder.user_bytes(USER_CS32, &[0xcc]);
    builder.user_bytes(USER_CS32, &[0xb0, 0x7f, 0x04, 0x01, 0xce]);
    // bound in 32-bit code.
    builder.user_bytes(USER_CS32, &[0xb8, 0x05, 0, 0, 0, 0x62, 0x05, 0x00, 0x10, 0x16, 0x00]);
    builder.finish()
}
