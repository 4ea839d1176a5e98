// SPDX-License-Identifier: AGPL-3.0-or-later
//! Control, debug and model-specific registers; SYSCALL, SYSRET, SWAPGS.

use super::build::{Builder, OK, Program};
use crate::qemu::world::{CR0, CR4, DATA, EFER, RESUME, TABLES, USER_CS32, USER_CS64};
use iced_x86::code_asm::{CodeAssembler, cr0, cr3, cr4, eax, ecx, edx, qword_ptr, r13, rax, rsp};

pub fn programs() -> Vec<Program> {
    vec![control(), debug(), msrs(), syscall()]
}

const NON_CANONICAL: u64 = 0x8000_0000_0000;

/// MOV to and from control registers.
fn control() -> Program {
    let mut builder = Builder::new("control registers");
    // Values that are refused are in the table test: QEMU refuses none.
    for value in [CR0 | 1 << 30, CR0 | 3 << 29, CR0 | 8, CR0 & !2, CR0] {
        builder.attempt(|asm| {
            asm.mov(rax, value).expect(OK);
            asm.mov(cr0, rax).expect(OK);
        });
        builder.asm.mov(rax, cr0).expect(OK);
    }
    for value in [CR4 | 1 << 20, CR4 | 1 << 21, CR4 | 8, CR4 | 0x10, CR4] {
        builder.attempt(|asm| {
            asm.mov(rax, value).expect(OK);
            asm.mov(cr4, rax).expect(OK);
        });
        builder.asm.mov(rax, cr4).expect(OK);
    }
    for value in [TABLES | 0x18, TABLES] {
        builder.attempt(|asm| {
            asm.mov(rax, value).expect(OK);
            asm.mov(cr3, rax).expect(OK);
        });
        builder.asm.mov(rax, cr3).expect(OK);
    }
    for value in [0u64, 5, 15, 0] {
        builder.set(0, value);
        // mov cr8, rax; mov rcx, cr8
        builder.attempt_bytes(&[0x44, 0x0f, 0x22, 0xc0]);
        builder.attempt_bytes(&[0x44, 0x0f, 0x20, 0xc1]);
    }
    // clts, lmsw (which cannot clear PE), smsw.
    builder.set(0, CR0 | 8);
    builder.attempt_bytes(&[0x0f, 0x22, 0xc0, 0x0f, 0x06]);
    for value in [0u64, 0xe, 1, 0xf] {
        builder.set(0, value);
        builder.attempt_bytes(&[0x0f, 0x01, 0xf0, 0x0f, 0x01, 0xe1]);
    }
    builder.set(0, CR0);
    builder.attempt_bytes(&[0x0f, 0x22, 0xc0]);
    // Control registers that do not exist.
    for modrm in [0xc8u8, 0xe8, 0xf0, 0xf8] {
        builder.attempt_bytes(&[0x0f, 0x20, modrm]);
        builder.attempt_bytes(&[0x0f, 0x22, modrm]);
    }
    builder.finish()
}

/// MOV to and from debug registers. DR7 enables nothing: QEMU's stub and the guest would both want the breakpoints.
fn debug() -> Program {
    let mut builder = Builder::new("debug registers");
    for modrm in [0xc0u8, 0xc8, 0xd0, 0xd8] {
        builder.set(0, 0x1234_5678_9abc);
        builder.attempt_bytes(&[0x0f, 0x23, modrm]);
        builder.attempt_bytes(&[0x0f, 0x21, modrm | 1]);
        builder.user_bytes(USER_CS64, &[0x0f, 0x21, modrm]);
        builder.user_bytes(USER_CS64, &[0x0f, 0x23, modrm]);
    }
    builder.finish()
}

/// RDMSR and WRMSR of the registers that the CPU keeps.
fn msrs() -> Program {
    let mut builder = Builder::new("model-specific registers");
    let kept = [
        0xc000_0081u32,
        0xc000_0082,
        0xc000_0083,
        0xc000_0084,
        0xc000_0100,
        0xc000_0101,
        0xc000_0102,
        0x174,
        0x175,
        0x176,
    ];
    for index in kept {
        // The masks and what SYSENTER uses have 32 bits on AMD's CPUs, which QEMU does not check.
        let wide = index != 0xc000_0084 && !(0x174..=0x176).contains(&index);
        let middle = if index == 0x174 { 0x5678 } else { 0x1234_5678 };
        for value in [0u64, middle, if wide { 0x7fff_ffff_ffff } else { 0x5679 }] {
            builder.attempt(|asm| write_msr(asm, index, value));
            builder.attempt(|asm| {
                asm.mov(ecx, index).expect(OK);
                asm.rdmsr().expect(OK);
            });
        }
    }
    for value in [EFER, EFER & !1, EFER] {
        builder.attempt(|asm| write_msr(asm, 0xc000_0080, value));
        builder.attempt(|asm| {
            asm.mov(ecx, 0xc000_0080u32).expect(OK);
            asm.rdmsr().expect(OK);
        });
    }
    builder.user(|asm| {
        asm.mov(ecx, 0xc000_0080u32).expect(OK);
        asm.rdmsr().expect(OK);
    });
    builder.user(|asm| write_msr(asm, 0xc000_0080, EFER));
    builder.finish()
}

fn write_msr(asm: &mut CodeAssembler, index: u32, value: u64) {
    asm.mov(ecx, index).expect(OK);
    asm.mov(eax, value as u32).expect(OK);
    asm.mov(edx, (value >> 32) as u32).expect(OK);
    asm.wrmsr().expect(OK);
}

/// SYSCALL from both kinds of ring-3 code, SYSRET to both, SWAPGS.
fn syscall() -> Program {
    let mut builder = Builder::new("syscall");
    builder.attempt(|asm| write_msr(asm, 0xc000_0081, 0x0023_0010 << 32));
    builder.attempt(|asm| write_msr(asm, 0xc000_0084, 0x4_7701));
    builder.attempt(|asm| write_msr(asm, 0xc000_0102, 0x1234_5000));
    let landing = DATA + 0x800;
    builder.memory(landing, &[0x90, 0xcd, 40]);
    // The entry: swapgs; swapgs; int 40.
    let entry = crate::qemu::world::HANDLERS + 0x1100;
    builder.memory(entry, &[0x0f, 0x01, 0xf8, 0x0f, 0x01, 0xf8, 0xcd, 40]);
    builder.attempt(|asm| write_msr(asm, 0xc000_0082, entry));
    builder.attempt(|asm| write_msr(asm, 0xc000_0083, entry));
    builder.user_bytes(USER_CS64, &[0xf9, 0xfd, 0x0f, 0x05]);
    builder.user_bytes(USER_CS32, &[0xf9, 0x0f, 0x05]);
    for (wide, flags, target) in [
        (true, 0x202u64, landing),
        (false, 0x202, landing),
        (true, 0x24_7ed7, landing),
        (false, 0x8d7, landing),
        (true, 2, NON_CANONICAL),
    ] {
        builder.attempt(|asm| {
            let mut behind = asm.create_label();
            asm.lea(r13, qword_ptr(behind)).expect(OK);
            asm.mov(qword_ptr(crate::qemu::world::KERNEL_RESUME), r13).expect(OK);
            // Ring 3 could not go on behind the label.
            asm.mov(rax, landing).expect(OK);
            asm.mov(qword_ptr(RESUME), rax).expect(OK);
            asm.mov(iced_x86::code_asm::r11, flags).expect(OK);
            asm.mov(iced_x86::code_asm::rcx, target).expect(OK);
            asm.mov(rsp, crate::qemu::world::USER_STACK).expect(OK);
            asm.db(if wide { &[0x48, 0x0f, 0x07] } else { &[0x0f, 0x07] }).expect(OK);
            asm.set_label(&mut behind).expect(OK);
            asm.nop().expect(OK);
        });
    }
    // Without EFER.SCE both are undefined.
    builder.attempt(|asm| write_msr(asm, 0xc000_0080, EFER & !1));
    builder.attempt_bytes(&[0x0f, 0x05]);
    builder.attempt_bytes(&[0x48, 0x0f, 0x07]);
    builder.user_bytes(USER_CS64, &[0x0f, 0x05]);
    builder.attempt(|asm| write_msr(asm, 0xc000_0080, EFER));
    builder.user_bytes(USER_CS64, &[0x48, 0x0f, 0x07]);
    builder.user_bytes(USER_CS64, &[0x0f, 0x01, 0xf8]);
    builder.finish()
}
