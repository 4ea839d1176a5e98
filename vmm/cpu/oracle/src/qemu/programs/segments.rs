// SPDX-License-Identifier: AGPL-3.0-or-later
//! Segment loads, queries, far transfers and call gates.

use super::build::{Builder, OK, Program};
use crate::qemu::world::{DATA, GDT, KERNEL_CS, LDT, TSS, USER_CS32, USER_CS64};
use crate::ram::{gate, system_descriptor};
use iced_x86::code_asm::{dword_ptr, qword_ptr, r13, rax, rcx, word_ptr};

pub fn programs() -> Vec<Program> {
    vec![loads(), queries(), far(), call_gates(), tables()]
}

/// Where transfers go: an INT 40 in ring-3 memory, so that every ring can run it.
const LANDING: u64 = DATA + 0x800;

/// Descriptors beyond the world's own: selector and value.
const EXTRA: &[(u64, u64)] = &[
    // Data, not present; data, read-only; data, expand down; code, execute only; code, conforming.
    (0x100, 0x00cf_1300_0000_ffff),
    (0x108, 0x00cf_f100_0000_ffff),
    (0x110, 0x00cf_f700_0000_0fff),
    (0x118, 0x00af_f900_0000_ffff),
    (0x120, 0x00af_9f00_0000_ffff),
    // Data DPL 1; data with a base; code 64 and 32 at once; not accessed data; not accessed code.
    (0x128, 0x00cf_b300_0000_ffff),
    (0x130, 0x12cf_f345_6789_ffff),
    (0x138, 0x00ef_fb00_0000_ffff),
    (0x140, 0x00cf_f200_0000_ffff),
    (0x148, 0x00af_9a00_0000_ffff),
    // Byte granularity; all zero; 16-bit code.
    (0x150, 0x0040_f300_1000_0fff),
    (0x158, 0),
    (0x160, 0x000f_fb00_0000_ffff),
];

/// Selectors worth trying.
fn selectors() -> Vec<u16> {
    let mut list = vec![0, 1, 2, 3, 4, 0x1f8, 0x200, 0xfff8, 0xffff, 0x40, 0x43, 0x48];
    for base in [0x08u16, 0x10, 0x18, 0x20, 0x28, 0x30] {
        list.extend([base, base | 3]);
    }
    for (selector, _) in EXTRA {
        list.extend([*selector as u16, *selector as u16 | 1, *selector as u16 | 3]);
    }
    list
}

fn with_extra(name: &str) -> Builder {
    let mut builder = Builder::new(name);
    for (selector, descriptor) in EXTRA {
        builder.word(GDT + selector, *descriptor);
    }
    builder
}

/// MOV to every segment register, from both rings.
fn loads() -> Program {
    let mut builder = with_extra("segment loads");
    for selector in selectors() {
        for register in [0xc0u8, 0xd0, 0xd8, 0xe0, 0xe8, 0xc8] {
            if register == 0xd0 && (1..4).contains(&selector) {
                // QEMU lets ring 0 load a null SS with another RPL; SDM 2, MOV: #GP.
                continue;
            }
            let bytes = [0xb8, selector as u8, (selector >> 8) as u8, 0, 0, 0x8e, register];
            builder.attempt_bytes(&bytes);
            // SS back to what ring 0 has.
            builder.attempt_bytes(&[0xb8, 0x18, 0, 0, 0, 0x8e, 0xd0]);
        }
        let selector = selector.to_le_bytes();
        builder.user_bytes(USER_CS64, &[0xb8, selector[0], selector[1], 0, 0, 0x8e, 0xd8, 0x8e, 0xe0]);
        builder.user_bytes(USER_CS64, &[0xb8, selector[0], selector[1], 0, 0, 0x8e, 0xd0, 0x6a, 0x2b, 0x17]);
        // push imm; pop gs, in 64-bit and in 32-bit code.
        builder.user_bytes(USER_CS64, &[0x68, selector[0], selector[1], 0, 0, 0x0f, 0xa9]);
        builder.user_bytes(USER_CS32, &[0x68, selector[0], selector[1], 0, 0, 0x07]);
    }
    builder.finish()
}

/// LAR, LSL, VERR, VERW of every selector.
fn queries() -> Program {
    let mut builder = with_extra("segment queries");
    for selector in selectors() {
        let selector = selector.to_le_bytes();
        let bytes = [
            0xb8,
            selector[0],
            selector[1],
            0,
            0, // mov eax, selector
            0x0f,
            0x02,
            0xc8, // lar ecx, eax
            0x0f,
            0x03,
            0xd0, // lsl edx, eax
            0x48,
            0x0f,
            0x02,
            0xd8, // lar rbx, eax
            0x66,
            0x0f,
            0x03,
            0xf0, // lsl si, ax
            0x0f,
            0x00,
            0xe0, // verr ax
            0x9c,
            0x5f, // pushfq; pop rdi
            0x0f,
            0x00,
            0xe8, // verw ax
        ];
        builder.attempt_bytes(&bytes);
        builder.user_bytes(USER_CS64, &bytes);
    }
    builder.finish()
}

/// Far jumps, calls and returns to every selector.
fn far() -> Program {
    let mut builder = with_extra("far transfers");
    let landing = LANDING;
    builder.memory(landing, &[0x90, 0xcd, 40]);
    // Code that is 64-bit and 32-bit at once is reserved (#GP), which QEMU does not check; and a target beyond the limit of a
    // small segment is #GP(0) (SDM 2, JMP), where QEMU gives the selector. Nor does QEMU set accessed bits in
    // far transfers.
    for selector in selectors().into_iter().filter(|selector| !matches!(selector & !3, 0x138 | 0x148 | 0x160)) {
        // jmp far [pointer] and call far [pointer], with 16- and 32-bit offsets (REX.W, which changes nothing on
        // AMD's CPUs, makes it 64 bits on Intel's and QEMU's); lret.
        for prefix in [&[][..], &[0x66u8]] {
            for form in [0x2cu8, 0x1c] {
                pointer(&mut builder, selector, landing, prefix == [0x66]);
                let mut bytes = prefix.to_vec();
                bytes.extend([0xff, form, 0x25]);
                bytes.extend((DATA as u32).to_le_bytes());
                leave(&mut builder, |asm| asm.db(&bytes).expect(OK));
                builder.user_bytes(USER_CS64, &bytes);
            }
        }
        leave(&mut builder, |asm| {
            asm.push(i32::from(crate::qemu::world::USER_DS)).expect(OK);
            asm.push(crate::qemu::world::USER_STACK as i32 - 0x200).expect(OK);
            asm.push(i32::from(selector as i16)).expect(OK);
            asm.push(landing as i32).expect(OK);
            asm.db(&[0x48, 0xcb]).expect(OK);
        });
        let low = selector.to_le_bytes();
        let mut bytes = vec![0x6a, 0x2b, 0x68, 0, 0xf0, 0x15, 0, 0x68, low[0], low[1], 0, 0, 0x68];
        bytes.extend((landing as u32).to_le_bytes());
        bytes.extend([0x48, 0xca, 0x00, 0x00]);
        builder.user_bytes(USER_CS64, &bytes);
    }
    builder.finish()
}

/// Stores a far pointer at the start of the data.
fn pointer(builder: &mut Builder, selector: u16, offset: u64, narrow: bool) {
    let asm = &mut builder.asm;
    asm.mov(rax, offset).expect(OK);
    asm.mov(qword_ptr(DATA), rax).expect(OK);
    let at = DATA + if narrow { 2 } else { 4 };
    asm.mov(word_ptr(at), i32::from(selector as i16)).expect(OK);
}

/// An attempt that may land in the INT 40 of the landing place.
fn leave(builder: &mut Builder, code: impl FnOnce(&mut iced_x86::code_asm::CodeAssembler)) {
    builder.attempt(|asm| {
        let mut behind = asm.create_label();
        asm.lea(r13, qword_ptr(behind)).expect(OK);
        asm.mov(qword_ptr(crate::qemu::world::KERNEL_RESUME), r13).expect(OK);
        // A fault behind the transfer goes on in its code segment, which need not be ring 0's.
        asm.mov(r13, LANDING).expect(OK);
        asm.mov(qword_ptr(crate::qemu::world::RESUME), r13).expect(OK);
        code(asm);
        asm.set_label(&mut behind).expect(OK);
        asm.nop().expect(OK);
    });
    // Back to ring 0's segments, whatever the transfer loaded.
    builder.attempt_bytes(&[0xb8, 0x18, 0, 0, 0, 0x8e, 0xd0]);
}

/// 64-bit call gates with every fault they can have.
fn call_gates() -> Program {
    let mut builder = with_extra("call gates");
    let landing = LANDING;
    builder.memory(landing, &[0x90, 0xcd, 40]);
    // Not to conforming code: QEMU 7.2 gives CS its DPL as RPL there, and not the CPL.
    let variants: &[(u16, u8)] = &[
        (KERNEL_CS, 0xec),
        (KERNEL_CS | 3, 0xec),
        (KERNEL_CS, 0x8c),
        (KERNEL_CS, 0x6c),
        (USER_CS64, 0xec),
        (0, 0xec),
        (0x18, 0xec),
        (0x08, 0xec),
        (0xfff8, 0xec),
        (0x100, 0xec),
    ];
    for &(selector, kind) in variants {
        let words = gate(selector, landing, 0, kind);
        builder.store(GDT + 0x180, words[0]);
        builder.store(GDT + 0x188, words[1]);
        for form in [0x2cu8, 0x1c] {
            pointer(&mut builder, 0x183, 0, false);
            let mut bytes = vec![0xff, form, 0x25];
            bytes.extend((DATA as u32).to_le_bytes());
            leave(&mut builder, |asm| asm.db(&bytes).expect(OK));
            builder.user_bytes(USER_CS64, &bytes);
        }
    }
    builder.finish()
}

/// LGDT, LIDT, LLDT, LTR and their stores; LDT selectors.
fn tables() -> Program {
    let mut builder = with_extra("descriptor tables");
    let ldt = system_descriptor(LDT, 0x1f, 0x82);
    builder.word(GDT + 0x190, ldt[0]);
    builder.word(GDT + 0x198, ldt[1]);
    let tss = system_descriptor(TSS, 0x67, 0x89);
    builder.word(GDT + 0x1a0, tss[0]);
    builder.word(GDT + 0x1a8, tss[1]);
    builder.word(LDT + 8, 0x00cf_f300_0000_ffff);
    builder.word(LDT + 16, 0x00af_fb00_0000_ffff);
    // sgdt, sidt, sldt, str, smsw.
    builder.attempt(|asm| {
        asm.sgdt(dword_ptr(DATA)).expect(OK);
        asm.sidt(dword_ptr(DATA + 16)).expect(OK);
        asm.sldt(rax).expect(OK);
        asm.str(rcx).expect(OK);
        asm.smsw(rax).expect(OK);
    });
    for selector in [0x190u16, 0x193, 0x1a0, 0x40, 0x18, 0, 3, 0x4, 0xfff8, 0x100] {
        let low = selector.to_le_bytes();
        builder.attempt_bytes(&[0xb8, low[0], low[1], 0, 0, 0x0f, 0x00, 0xd0]);
        for inner in [0x0fu8, 0x0c, 0x17, 0x1c, 0x24] {
            builder.attempt_bytes(&[0xb8, inner, 0, 0, 0, 0x8e, 0xe0]);
        }
        // QEMU lets LTR load a null selector; SDM 2, LTR: #GP.
        if selector > 3 {
            builder.attempt_bytes(&[0xb8, low[0], low[1], 0, 0, 0x0f, 0x00, 0xd8]);
        }
        builder.attempt_bytes(&[0x0f, 0x00, 0xc9, 0x0f, 0x00, 0xc0]);
    }
    builder.user_bytes(USER_CS64, &[0x31, 0xc0, 0x0f, 0x00, 0xd0]);
    builder.user_bytes(USER_CS64, &[0x0f, 0x01, 0x14, 0x25, 0x00, 0x10, 0x16, 0x00]);
    builder.user_bytes(USER_CS64, &[0x0f, 0x01, 0x04, 0x25, 0x00, 0x10, 0x16, 0x00]);
    builder.finish()
}
