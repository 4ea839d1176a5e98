// SPDX-License-Identifier: AGPL-3.0-or-later
//! From real mode as a start-up message leaves it, through protected mode without and with each kind of paging, to long mode.
//! QEMU checks no segment limits, so the limits of real mode are judged by the CPU's own tests.

use super::build::{OK, Program};
use crate::qemu::start_up::{
    CODE16, CODE32, COUNT, COUNTING, DATA, GATE_TARGET, GDT, GDT_BYTES, IDT, RESUME16, RESUME32, STACK, TABLES,
    USER_STACK, selector,
};
use crate::qemu::world::DONE;
use crate::ram::{P, U, W};
use iced_x86::code_asm::CodeAssembler;

/// Offset in the 16-bit segment of the pointers for LGDT and LIDT.
const POINTERS: u32 = 0x6e00;
const CR0_PE: u32 = 1;
const CR0_PG: u32 = 1 << 31;
const CR0_WP: u32 = 1 << 16;

pub fn programs() -> Vec<Program> {
    vec![
        real_instructions(),
        real_addressing(),
        real_strings(),
        real_events(),
        big_real(),
        protected_segments(),
        protected_events(),
        two_levels(),
        three_levels(),
        climb(),
    ]
}

/// Start-up code in the making: 16-bit code first, then 32-bit code.
struct Code {
    low: Vec<u8>,
    wide: Vec<u8>,
    in_wide: bool,
    setup: Vec<(u64, Vec<u8>)>,
}

impl Code {
    fn new() -> Self {
        let mut pointers = Vec::new();
        pointers.extend((GDT_BYTES - 1).to_le_bytes());
        pointers.extend(GDT.to_le_bytes());
        pointers.extend(0x3ffu16.to_le_bytes());
        pointers.extend(IDT.to_le_bytes());
        let setup = vec![(u64::from(POINTERS), pointers)];
        let mut code = Self { low: Vec::new(), wide: Vec::new(), in_wide: false, setup };
        // xor ax, ax; mov ds, es, ss; mov esp, STACK
        code.raw(&[0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, 0x66, 0xbc]);
        code.raw(&STACK.to_le_bytes());
        code
    }

    fn at(&self) -> u32 {
        if self.in_wide { CODE32 + self.wide.len() as u32 } else { self.low.len() as u32 }
    }

    fn raw(&mut self, bytes: &[u8]) {
        if self.in_wide { self.wide.extend(bytes) } else { self.low.extend(bytes) }
    }

    fn asm(&mut self, code: impl FnOnce(&mut CodeAssembler)) {
        let mut asm = CodeAssembler::new(if self.in_wide { 32 } else { 16 }).expect(OK);
        code(&mut asm);
        let bytes = asm.assemble(u64::from(self.at())).expect(OK);
        self.raw(&bytes);
    }

    /// Code that may fault; behind it DS and the stack are as they were.
    fn attempt(&mut self, bytes: &[u8]) {
        if self.in_wide {
            // mov dword [RESUME32], next; ...; mov esp, STACK
            let next = self.at() + 10 + bytes.len() as u32;
            self.raw(&[0xc7, 0x05]);
            self.raw(&RESUME32.to_le_bytes());
            self.raw(&next.to_le_bytes());
            self.raw(bytes);
            self.raw(&[0xbc]);
            self.raw(&STACK.to_le_bytes());
        } else {
            let next = self.at() + 6 + bytes.len() as u32;
            self.raw(&[0xc7, 0x06]);
            self.raw(&RESUME16.to_le_bytes());
            self.raw(&(next as u16).to_le_bytes());
            self.raw(bytes);
            // mov sp, STACK; push 0; pop ds
            self.raw(&[0xbc]);
            self.raw(&(STACK as u16).to_le_bytes());
            self.raw(&[0x6a, 0x00, 0x1f]);
        }
    }

    fn set32(&mut self, register: u8, value: u32) {
        if !self.in_wide {
            self.raw(&[0x66]);
        }
        self.raw(&[0xb8 | register]);
        self.raw(&value.to_le_bytes());
    }

    fn memory(&mut self, at: u32, bytes: &[u8]) {
        self.setup.push((at.into(), bytes.to_vec()));
    }

    fn word(&mut self, at: u32, value: u64) {
        self.memory(at, &value.to_le_bytes());
    }

    fn load_tables(&mut self) {
        // cli; o32 lgdt [POINTERS]; o32 lidt [POINTERS + 6]
        for (extension, at) in [(0x16u8, POINTERS), (0x1e, POINTERS + 6)] {
            self.raw(&[0x66, 0x0f, 0x01, extension]);
            self.raw(&(at as u16).to_le_bytes());
        }
    }

    /// `mov eax, cr0; or eax, bits; mov cr0, eax`.
    fn set_cr0(&mut self, bits: u32, clear: u32) {
        self.raw(&[0x0f, 0x20, 0xc0]);
        for (operation, value) in [(0x0d, bits), (0x25, !clear)] {
            if !self.in_wide {
                self.raw(&[0x66]);
            }
            self.raw(&[operation]);
            self.raw(&value.to_le_bytes());
        }
        self.raw(&[0x0f, 0x22, 0xc0]);
    }

    fn set_cr(&mut self, number: u8, value: u32) {
        self.set32(0, value);
        self.raw(&[0x0f, 0x22, 0xc0 | number << 3]);
    }

    /// Into 32-bit protected mode, with flat segments and the TSS.
    fn protect(&mut self) {
        self.load_tables();
        self.set_cr0(CR0_PE, 0);
        // o32 jmp CODE32:CODE32
        self.raw(&[0x66, 0xea]);
        self.raw(&CODE32.to_le_bytes());
        self.raw(&selector::CODE32.to_le_bytes());
        self.in_wide = true;
        // mov eax, data; mov ds, es, ss, fs, gs; mov esp, STACK; mov eax, tss; ltr ax
        self.raw(&[
            0xb8,
            selector::DATA as u8,
            0,
            0,
            0,
            0x8e,
            0xd8,
            0x8e,
            0xc0,
            0x8e,
            0xd0,
            0x8e,
            0xe0,
            0x8e,
            0xe8,
            0xbc,
        ]);
        self.raw(&STACK.to_le_bytes());
        self.raw(&[0xb8, selector::TSS as u8, 0, 0, 0, 0x0f, 0x00, 0xd8]);
    }

    /// Code of ring 3 that ends with an interrupt to [`Code::kernel`].
    fn user(&mut self, bytes: &[u8]) {
        let after = u32::from(selector::USER_DATA);
        // mov eax, user data; mov ds, es; push ss, esp, eflags, cs, eip; iretd
        self.set32(0, after);
        self.raw(&[0x8e, 0xd8, 0x8e, 0xc0, 0x6a, selector::USER_DATA as u8, 0x68]);
        self.raw(&USER_STACK.to_le_bytes());
        self.raw(&[0x9c, 0x6a, selector::USER_CODE as u8, 0x68]);
        // The code follows behind the IRET.
        let start = self.at() + 5;
        self.raw(&start.to_le_bytes());
        self.raw(&[0xcf]);
        // mov dword [RESUME32], behind; bytes; int 0x30
        let mut code = vec![0xc7, 0x05];
        code.extend(RESUME32.to_le_bytes());
        let end = start + 10 + bytes.len() as u32;
        code.extend(end.to_le_bytes());
        code.extend(bytes);
        self.raw(&code);
        // The call gate leads back to ring 0: lcall GATE:0, whose target pops the way here.
        self.raw(&[0x9a, 0, 0, 0, 0, selector::GATE as u8, 0]);
        // Ring 0 again: mov eax, data; mov ds, es, ss; mov esp, STACK
        self.raw(&[0xb8, selector::DATA as u8, 0, 0, 0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, 0xbc]);
        self.raw(&STACK.to_le_bytes());
    }

    fn finish(mut self, name: &str) -> Program {
        if !self.in_wide {
            self.protect();
        }
        // mov eax, DONE; jmp eax
        self.set32(0, DONE as u32);
        self.raw(&[0xff, 0xe0]);
        assert!(self.low.len() < 0x6000 && self.wide.len() < 0x8000, "{name} is too long");
        // The gate's target, in ring 0 on the inner stack: eip, cs, two parameters, esp, ss. It goes on behind the call with
        // flat segments: mov eax, [esp]; jmp eax
        self.setup.push((GATE_TARGET.into(), vec![0x36, 0x8b, 0x04, 0x24, 0xff, 0xe0]));
        self.setup.push((CODE16.into(), self.low));
        self.setup.push((CODE32.into(), self.wide));
        Program::start_up(name, self.setup)
    }
}

fn real_instructions() -> Program {
    let mut code = Code::new();
    let pieces: &[&[u8]] = &[
        // 16-bit arithmetic and flags, 32-bit operands by prefix.
        &[
            0xb8, 0x34, 0x12, 0xbb, 0xcd, 0xab, 0x01, 0xd8, 0x11, 0xc3, 0x29, 0xd8, 0x66, 0x01, 0xd8, 0x66, 0x0f, 0xaf,
            0xc3,
        ],
        // mul, imul, xchg, movzx, bswap with a 32-bit operand.
        &[0xb9, 0x07, 0x00, 0xf7, 0xe1, 0xf7, 0xe9, 0x91, 0x0f, 0xb6, 0xc1, 0x66, 0x0f, 0xb7, 0xd1, 0x66, 0x0f, 0xc8],
        // pusha, popa in both sizes, push and pop of immediates, flags, segments.
        &[
            0x60, 0x61, 0x66, 0x60, 0x66, 0x61, 0x6a, 0xfe, 0x68, 0x34, 0x12, 0x66, 0x68, 0x78, 0x56, 0x34, 0x12, 0x66,
            0x58,
        ],
        &[0x9c, 0x58, 0x66, 0x9c, 0x66, 0x58, 0x06, 0x0e, 0x16, 0x1e, 0x0f, 0xa0, 0x0f, 0xa8, 0x0f, 0xa9, 0x07],
        // popf and popfd with every flag set that can be, then back.
        &[0x68, 0xd5, 0x7e, 0x9d, 0x9c, 0x5a, 0x66, 0x68, 0x02, 0x00, 0x20, 0x00, 0x66, 0x9d, 0x66, 0x9c, 0x66, 0x5a],
        &[0x6a, 0x02, 0x9d],
        // enter, leave.
        &[
            0xbd, 0x00, 0x50, 0xc8, 0x10, 0x00, 0x00, 0xc9, 0xc8, 0x08, 0x00, 0x03, 0xc9, 0x66, 0xc8, 0x08, 0x00, 0x01,
            0x66, 0xc9,
        ],
        // call, ret, ret imm, with 32-bit operands too.
        &[0xe8, 0x00, 0x00, 0x58, 0x66, 0xe8, 0x00, 0x00, 0x00, 0x00, 0x66, 0x58],
        &[0xe8, 0x02, 0x00, 0xeb, 0x01, 0xc3],
        // loop, loopne, jcxz, jecxz.
        &[
            0xb9, 0x03, 0x00, 0xe2, 0xfe, 0xe3, 0x00, 0x66, 0xb9, 0x02, 0x00, 0x00, 0x00, 0x67, 0xe2, 0xfd, 0x67, 0xe3,
            0x00,
        ],
        // daa, aaa, aam, aad, das, salc left out.
        &[0xb0, 0x9a, 0x27, 0x37, 0xd4, 0x0a, 0xd5, 0x0a, 0x2f, 0x3f],
        // smsw, lmsw that changes nothing, clts, mov from control registers.
        &[0x0f, 0x01, 0xe0, 0x0f, 0x06, 0x0f, 0x20, 0xc3, 0x0f, 0x20, 0xd9, 0x0f, 0x20, 0xe2],
        // Instructions of protected mode raise #UD: sldt, str, lldt, ltr, lar, verr, arpl.
        &[0x0f, 0x00, 0xc0],
        &[0x0f, 0x00, 0xc8],
        &[0x0f, 0x00, 0xd0],
        &[0x0f, 0x00, 0xd8],
        &[0x0f, 0x02, 0xc3],
        &[0x0f, 0x00, 0xe3],
        &[0x63, 0xd8],
        // x87 and SSE moves after fninit; CR4 has no OSFXSR.
        &[0xdb, 0xe3, 0xd9, 0xe8, 0xd9, 0xeb, 0xd8, 0xc1, 0xdd, 0xd8],
    ];
    for piece in pieces {
        code.attempt(piece);
    }
    code.finish("real mode, instructions")
}

fn real_addressing() -> Program {
    let mut code = Code::new();
    for at in 0..0x200u32 {
        code.memory(DATA + at, &[(at * 7 + 3) as u8]);
    }
    for (register, value) in [(3u8, DATA + 0x10), (5, DATA + 0x20), (6, 0x30), (7, 0xfff0)] {
        code.set32(register, 0xabcd_0000 | value);
    }
    // mov ax, every 16-bit addressing mode with each displacement size; then the same as a store of AL.
    for rm in 0..8u8 {
        for (mode, displacement) in [(0u8, &[][..]), (0x40, &[0x11]), (0x40, &[0xf0]), (0x80, &[0x34, 0x01])] {
            let displacement = if mode == 0 && rm == 6 { &[0x10, 0x20][..] } else { displacement };
            for opcode in [0x8bu8, 0x8d, 0x30] {
                let mut bytes = vec![opcode, mode | rm];
                bytes.extend(displacement);
                // Stores stay in the data.
                if opcode != 0x30 || matches!(rm, 6 | 7) && mode == 0x40 {
                    code.raw(&bytes);
                }
            }
        }
    }
    // 32-bit addressing by prefix, sums that leave 16 bits only in between, xlat, moffs.
    code.set32(3, DATA);
    code.set32(6, 8);
    code.raw(&[
        0x67, 0x8b, 0x44, 0x73, 0x04, 0x67, 0x66, 0x8b, 0x04, 0xf3, 0xb0, 0x05, 0xd7, 0xa1, 0x10, 0x20, 0xa2, 0x80,
        0x20,
    ]);
    // Segment bases: mov ax, 0x1f0; mov es, ax; mov ax, es:[0x104]; fs and gs, lds, les, lfs, lss.
    code.raw(&[
        0xb8, 0xf0, 0x01, 0x8e, 0xc0, 0x26, 0xa1, 0x04, 0x01, 0x8e, 0xe0, 0x8e, 0xe8, 0x64, 0x8b, 0x1e, 0x02, 0x01,
    ]);
    code.raw(&[0x65, 0x66, 0xa1, 0x00, 0x01, 0x65, 0x88, 0x0e, 0x90, 0x01]);
    code.memory(DATA + 0x300, &[0x34, 0x12, 0xf8, 0x01, 0x78, 0x56, 0x34, 0x12, 0x00, 0x02]);
    code.attempt(&[0xc4, 0x1e, 0x00, 0x23, 0xc5, 0x1e, 0x00, 0x23, 0xa1, 0x80, 0x00]);
    code.attempt(&[0x66, 0x0f, 0xb4, 0x1e, 0x04, 0x23, 0x0f, 0xb5, 0x1e, 0x00, 0x23]);
    // Above 1 MiB with the highest selector: A20 is on.
    code.attempt(&[0xb8, 0xff, 0xff, 0x8e, 0xc0, 0x26, 0xa1, 0x80, 0x00]);
    // The stack through another base: mov ax, 0x200; mov ss, ax; mov sp, 0x1000; push; pop; back.
    code.raw(&[0xb8, 0x00, 0x02, 0x8e, 0xd0, 0xbc, 0x00, 0x10, 0x50, 0x66, 0x50, 0x66, 0x59, 0x5a]);
    code.raw(&[0x31, 0xc0, 0x8e, 0xd0, 0xbc, 0x00, 0x60]);
    code.finish("real mode, addressing")
}

fn real_strings() -> Program {
    let mut code = Code::new();
    for at in 0..0x80u32 {
        code.memory(DATA + at, &[if at % 7 == 6 { 0x42 } else { 0x41 }]);
    }
    for operation in [0xa4u8, 0xa5, 0xaa, 0xab, 0xac, 0xad, 0xa6, 0xa7, 0xae, 0xaf] {
        for prefixes in [&[0xf3u8][..], &[0xf2], &[], &[0x66, 0xf3], &[0x67, 0xf3], &[0x26, 0xf3]] {
            for (count, down) in [(0u32, false), (5, false), (5, true)] {
                // Upper halves of the registers must stay; with 32-bit addresses they count.
                let upper = if prefixes[..].first() == Some(&0x67) { 0 } else { 0x00be_0000 };
                code.set32(1, count | upper);
                code.set32(6, (DATA + 0x20) | upper);
                code.set32(7, (DATA + 0x25) | upper);
                code.set32(0, 0x4141_4141);
                code.raw(&[if down { 0xfd } else { 0xfc }]);
                code.raw(prefixes);
                code.raw(&[operation, 0xfc]);
            }
        }
    }
    // Across segments, and a destination that wraps at 64 KiB: es = 0x1000 - 0x1000.
    code.raw(&[0xb8, 0x00, 0x03, 0x8e, 0xc0]);
    code.set32(1, 6);
    code.set32(6, DATA);
    code.set32(7, 0x20);
    code.raw(&[0xf3, 0xa4]);
    code.finish("real mode, strings")
}

fn real_events() -> Program {
    let mut code = Code::new();
    code.memory(COUNT, &[0, 0, 0, 0]);
    // INT n with a handler that returns, INT3, INTO, with flags that the handler clears.
    code.attempt(&[0xfb, 0xcd, COUNTING, 0x9c, 0x58, 0xfa]);
    code.attempt(&[0xcc]);
    code.attempt(&[0xb0, 0x7f, 0x04, 0x01, 0xce]);
    // #DE, #UD, #NM (TS set, then cleared), #BR.
    code.attempt(&[0x31, 0xc9, 0xf7, 0xf1]);
    code.attempt(&[0x0f, 0x0b]);
    code.attempt(&[0xb8, 0x08, 0x00, 0x0f, 0x01, 0xf0, 0xd9, 0xe8]);
    code.raw(&[0x0f, 0x06]);
    code.memory(DATA, &[5, 0, 9, 0]);
    code.attempt(&[0xb8, 0x0a, 0x00, 0x62, 0x06, 0x00, 0x20]);
    // Far calls and jumps, immediate and through memory, in both sizes; iret and iretd.
    let at = code.at();
    let target = at + 5;
    // call far CS:target, whose code is retf's landing: pop ip and cs again.
    code.raw(&[0x9a]);
    code.raw(&(target as u16).to_le_bytes());
    code.raw(&((CODE16 >> 4) as u16).to_le_bytes());
    code.raw(&[0x58, 0x58]);
    // The same bytes under another selector: base 0x8000 = 0x7ff:0x10.
    let target = code.at() + 5 + 0x10;
    code.raw(&[0xea]);
    code.raw(&(target as u16).to_le_bytes());
    code.raw(&((CODE16 >> 4) as u16 - 1).to_le_bytes());
    let target = code.at() + 8;
    code.raw(&[0x66, 0xea]);
    code.raw(&target.to_le_bytes());
    code.raw(&((CODE16 >> 4) as u16).to_le_bytes());
    // push cs; push target; retf, then retf imm, retfd.
    for (bytes, length) in [(&[0xcbu8][..], 1u32), (&[0xca, 4, 0], 3)] {
        code.raw(&[0x0e, 0x68]);
        let target = code.at() + 2 + length;
        code.raw(&(target as u16).to_le_bytes());
        code.raw(bytes);
    }
    code.raw(&[0xbc, 0x00, 0x60, 0x66, 0x0e, 0x66, 0x68]);
    let target = code.at() + 4 + 2;
    code.raw(&target.to_le_bytes());
    code.raw(&[0x66, 0xcb]);
    // pushf; push cs; push target; iret; then with 32-bit operands and flags beyond 16 bits.
    code.raw(&[0x68, 0xd7, 0x72, 0x0e, 0x68]);
    let target = code.at() + 2 + 1;
    code.raw(&(target as u16).to_le_bytes());
    code.raw(&[0xcf, 0x9c, 0x58]);
    code.raw(&[0x66, 0x68, 0x02, 0x00, 0x24, 0x00, 0x66, 0x0e, 0x66, 0x68]);
    let target = code.at() + 4 + 2;
    code.raw(&target.to_le_bytes());
    code.raw(&[0x66, 0xcf, 0x66, 0x9c, 0x66, 0x58, 0x6a, 0x02, 0x9d]);
    // Indirect far call and jump.
    code.memory(DATA + 0x10, &[0, 0]);
    let call = code.at() + 6 + 6 + 4;
    code.raw(&[0xc7, 0x06, 0x10, 0x20]);
    code.raw(&(call as u16).to_le_bytes());
    code.raw(&[0xc7, 0x06, 0x12, 0x20]);
    code.raw(&((CODE16 >> 4) as u16).to_le_bytes());
    code.raw(&[0xff, 0x1e, 0x10, 0x20]);
    code.raw(&[0x5b, 0x59]);
    // An interrupt vector table elsewhere: lidt with a base of 24 bits.
    code.memory(0x6e20, &[0xff, 0x01, 0x00, 0x30, 0x00, 0xff]);
    code.memory(0x3000, &(0..0x80u32).flat_map(|vector| (0xf000 + vector * 8).to_le_bytes()).collect::<Vec<_>>());
    code.attempt(&[0x0f, 0x01, 0x1e, 0x20, 0x6e, 0xcd, 0x41]);
    code.finish("real mode, events and far transfers")
}

/// Limits and attributes from protected mode go on in real mode, and the table of real mode works again.
fn big_real() -> Program {
    let mut code = Code::new();
    code.load_tables();
    code.set_cr0(CR0_PE, 0);
    // mov ax, data; mov fs, ax; mov gs, ax
    code.raw(&[0xb8, selector::DATA as u8, 0, 0x8e, 0xe0, 0x8e, 0xe8]);
    code.set_cr0(0, CR0_PE);
    // mov eax, fs:[0x10000 + ...] with 32-bit addresses, then a new selector whose limit stays.
    code.raw(&[0x67, 0x64, 0x66, 0xa1]);
    code.raw(&CODE32.to_le_bytes());
    code.raw(&[0xb8, 0x00, 0x01, 0x8e, 0xe8, 0x67, 0x65, 0x66, 0xa3]);
    code.raw(&0x7_0000u32.to_le_bytes());
    // lidt of the vector table: limit 0x3ff, base 0.
    code.memory(0x6e20, &[0xff, 0x03, 0, 0, 0, 0]);
    code.raw(&[0x66, 0x0f, 0x01, 0x1e, 0x20, 0x6e]);
    code.attempt(&[0xcd, COUNTING, 0x0f, 0x0b]);
    // 16-bit protected code, there and back.
    code.load_tables();
    code.set_cr0(CR0_PE, 0);
    let target = code.at() + 5;
    code.raw(&[0xea]);
    code.raw(&(target as u16).to_le_bytes());
    code.raw(&selector::CODE16_BASED.to_le_bytes());
    code.raw(&[0xb8, selector::DATA16 as u8, 0, 0x8e, 0xd8, 0x8e, 0xd0, 0x50, 0x5b, 0xa1, 0x00, 0x20]);
    code.set_cr0(0, CR0_PE);
    let target = code.at() + 5;
    code.raw(&[0xea]);
    code.raw(&(target as u16).to_le_bytes());
    code.raw(&((CODE16 >> 4) as u16).to_le_bytes());
    code.raw(&[0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0x66, 0x0f, 0x01, 0x1e, 0x20, 0x6e]);
    code.attempt(&[0xcd, COUNTING]);
    code.finish("big real mode")
}

/// Segment loads and far transfers of 32-bit protected mode without paging.
fn protected_segments() -> Program {
    let mut code = Code::new();
    code.protect();
    for selector in [0u8, 3, 0x08, 0x10, 0x11, 0x18, 0x20, 0x28, 0x33, 0x3b, 0x38, 0x40, 0x50, 0x58, 0x60, 0x78, 0x84] {
        for load in [0xd8u8, 0xc0, 0xe0, 0xd0, 0xc8] {
            // mov eax, selector; mov sreg, ax; then flat segments again.
            let mut bytes = vec![0xb8, selector, 0, 0, 0, 0x8e, load];
            bytes.extend([0xb8, selector::DATA as u8, 0, 0, 0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0]);
            code.attempt(&bytes);
        }
        // lar, lsl, verr, verw; ljmp, lcall to offset 0 of what is no code here.
        code.attempt(&[
            0xb9, selector, 0, 0, 0, 0x0f, 0x02, 0xc1, 0x0f, 0x03, 0xd1, 0x0f, 0x00, 0xe1, 0x0f, 0x00, 0xe9,
        ]);
        if !matches!(selector, 0x08 | 0x18 | 0x28 | 0x40 | 0x50 | 0x58) {
            code.attempt(&[0xea, 0, 0, 0, 0, selector, 0]);
            code.attempt(&[0x9a, 0, 0, 0, 0, selector, 0]);
        }
    }
    // A far call in the same segment and back, push cs; push target; retf.
    let target = code.at() + 7;
    code.raw(&[0x9a]);
    code.raw(&target.to_le_bytes());
    code.raw(&[selector::CODE32 as u8, 0, 0x58, 0x5b, 0x0e, 0x68]);
    let target = code.at() + 5;
    code.raw(&target.to_le_bytes());
    code.raw(&[0xcb]);
    // Through the call gate on the same level: its target jumps back behind the call.
    code.raw(&[0x9a, 0, 0, 0, 0, selector::GATE as u8, 0]);
    code.raw(&[0xbc]);
    code.raw(&STACK.to_le_bytes());
    // Into ring 3, whose data segments are its own; there loads, a far return, what it may not do, and back by the gate.
    code.user(&[0x60, 0x61, 0x0e, 0x16, 0x1e, 0x58, 0x58, 0x58, 0x9c, 0x58]);
    for bytes in
        [&[0xf4u8][..], &[0xfa], &[0x0f, 0x20, 0xc0], &[0xb8, 0x10, 0, 0, 0, 0x8e, 0xd8], &[0xe4, 0x80], &[0xcd, 0x0d]]
    {
        code.user(bytes);
    }
    code.finish("protected mode, segments")
}

fn protected_events() -> Program {
    let mut code = Code::new();
    code.protect();
    let pieces: &[&[u8]] = &[
        &[0xcd, COUNTING],
        &[0xcc],
        &[0x0f, 0x0b],
        &[0x31, 0xc9, 0xf7, 0xf1],
        &[0xb0, 0x7f, 0x04, 0x01, 0xce],
        // Past the end of the IDT, and a gate that is not present.
        &[0xcd, 0x90],
        // iretd and iretw on the same level.
        &[0x9c, 0x0e, 0xe8, 0x01, 0, 0, 0, 0x90, 0xcf],
        // 16-bit operands: pusha, popa, push, call.
        &[0x66, 0x60, 0x66, 0x61, 0x66, 0x50, 0x66, 0x5a, 0x66, 0x9c, 0x66, 0x9d],
        // 16-bit addressing, sgdt, sidt, sldt, str.
        &[0xbb, 0, 0x20, 0, 0, 0x67, 0x8b, 0x07, 0x0f, 0x01, 0x05, 0, 0x21, 0, 0, 0x0f, 0x01, 0x0d, 8, 0x21, 0, 0],
        &[0x0f, 0x00, 0xc0, 0x0f, 0x00, 0xc9],
        // #NM, #GP of CR4's reserved bits and of paging without protection.
        &[0xb8, 0x09, 0, 0, 0, 0x0f, 0x01, 0xf0, 0xd9, 0xe8],
        &[0x0f, 0x06],
    ];
    for piece in pieces {
        code.attempt(piece);
    }
    code.word(IDT + 0x41 * 8, 0x0000_0e00_0008_0000 | 0xc410);
    // A 16-bit gate, whose frame has words: its handler is 32-bit code that drops it.
    code.word(IDT + 0x42 * 8, 0x0000_e600_0008_0000 | 0x1_b100 & 0xffff);
    code.attempt(&[0xcd, 0x41]);
    code.user(&[0xcd, COUNTING]);
    code.user(&[0x0f, 0x0b]);
    code.user(&[0x31, 0xc9, 0xf7, 0xf1]);
    code.finish("protected mode, events")
}

/// Two-level tables at [`TABLES`]: the first 4 MiB one to one by a table, the next by a 4 MiB page, and some that fault.
fn two_level_tables(code: &mut Code) {
    let table = TABLES + 0x1000;
    let mut entries = Vec::new();
    for page in 0..1024u32 {
        let flags = match page {
            0x30 => P | W,
            0x31 => P | U,
            0x32 => 0,
            0x33 => P,
            _ => P | W | U,
        } as u32;
        entries.extend((page << 12 | flags).to_le_bytes());
    }
    code.memory(table, &entries);
    code.memory(TABLES, &(table | 7).to_le_bytes());
    // 4 MiB pages: linear 4 MiB is physical 0; 8 MiB is read-only; 12 MiB has the reserved bit.
    for (slot, value) in [(1u32, 0x87u32), (2, 0x85), (3, 0x20_0087)] {
        code.memory(TABLES + slot * 4, &value.to_le_bytes());
    }
}

/// Reads and writes of a linear address, from ring 0.
fn touch(code: &mut Code, address: u32) {
    let bytes = address.to_le_bytes();
    let with = |opcode: &[u8]| [opcode, &bytes[..]].concat();
    code.attempt(&with(&[0xa1]));
    code.attempt(&with(&[0xfe, 0x05]));
    code.attempt(&with(&[0xa3]));
}

fn two_levels() -> Program {
    let mut code = Code::new();
    two_level_tables(&mut code);
    code.protect();
    code.set_cr(3, TABLES);
    code.set_cr(4, 0x10);
    code.set_cr0(CR0_PG, 0);
    let pages = [0x3_0000u32, 0x3_1000, 0x3_2ffe, 0x3_3004, 0x40_2000, 0x43_0ffe, 0x80_2010, 0xc0_0000, 0x100_0000];
    for wp in [false, true] {
        code.set_cr0(if wp { CR0_WP } else { 0 }, if wp { 0 } else { CR0_WP });
        for page in pages {
            touch(&mut code, page);
        }
        for page in pages {
            code.user(&[&[0xa1][..], &page.to_le_bytes()].concat());
            code.user(&[&[0xfe, 0x05][..], &page.to_le_bytes()].concat());
        }
    }
    // Entries that change take effect at once: page 0x32 appears, page 0x31 goes and comes back elsewhere.
    for (slot, value) in [(0x32u32, 0x3_2007u32), (0x31, 0), (0x31, 0x3_4007)] {
        let location = TABLES + 0x1000 + slot * 4;
        let mut bytes = vec![0xc7, 0x05];
        bytes.extend(location.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        bytes.extend([0x0f, 0x01, 0x3d]);
        bytes.extend((slot << 12).to_le_bytes());
        code.raw(&bytes);
        touch(&mut code, slot << 12 | 8);
    }
    // Without PSE the bit means nothing, and the entry is a table's: paging off, on again.
    code.set_cr0(0, CR0_PG);
    code.raw(&[0xc7, 0x05]);
    code.raw(&(TABLES + 4).to_le_bytes());
    code.raw(&(TABLES + 0x1087).to_le_bytes());
    code.set_cr(4, 0);
    code.set_cr0(CR0_PG, 0);
    touch(&mut code, 0x40_2000);
    code.finish("two-level paging")
}

/// PAE tables behind [`TABLES`] + 0x4000.
fn three_level_tables(code: &mut Code) -> u32 {
    let root = TABLES + 0x4000;
    let directory = root + 0x1000;
    let table = root + 0x2000;
    for page in 0..512u32 {
        let flags = match page {
            0x30 => P | W,
            0x31 => P | U,
            0x32 => 0,
            0x34 => P | W | U | 1 << 63,
            0x35 => P | W | U | 1 << 45,
            _ => P | W | U,
        };
        code.word(table + page * 8, u64::from(page << 12) | flags);
    }
    code.word(root, u64::from(directory) | 1);
    code.word(root + 8, u64::from(directory) | 1);
    code.word(directory, u64::from(table) | 7);
    // 2 MiB pages.
    code.word(directory + 8, 0x87);
    code.word(directory + 16, 0x85);
    code.word(directory + 24, 0x2087);
    root
}

fn three_levels() -> Program {
    let mut code = Code::new();
    let root = three_level_tables(&mut code);
    code.protect();
    code.set_cr(3, root);
    code.set_cr(4, 0x20);
    // mov ecx, EFER; mov eax, NXE; xor edx, edx; wrmsr
    code.set32(1, 0xc000_0080);
    code.set32(0, 0x800);
    code.raw(&[0x31, 0xd2, 0x0f, 0x30]);
    code.set_cr0(CR0_PG, 0);
    let pages = [
        0x3_0000u32,
        0x3_1000,
        0x3_2ffe,
        0x3_4000,
        0x3_5000,
        0x20_2000,
        0x40_2000,
        0x60_0000,
        0x4003_0000,
        0x8000_0000,
    ];
    for wp in [false, true] {
        code.set_cr0(if wp { CR0_WP } else { 0 }, if wp { 0 } else { CR0_WP });
        for page in pages {
            touch(&mut code, page);
        }
        for page in pages {
            code.user(&[&[0xa1][..], &page.to_le_bytes()].concat());
            code.user(&[&[0xfe, 0x05][..], &page.to_le_bytes()].concat());
        }
    }
    // Into the page that may not be executed.
    code.attempt(&[0xb8, 0x00, 0x40, 0x03, 0x00, 0xff, 0xe0]);
    // QEMU 7.2 sets the accessed bit also in the first level, where it is reserved (SDM 3A, 4.4.1): put the entries back.
    code.set_cr0(0, CR0_PG);
    for at in [root, root + 8] {
        code.raw(&[0xc7, 0x05]);
        code.raw(&at.to_le_bytes());
        code.raw(&(root + 0x1000 + 1).to_le_bytes());
    }
    code.finish("three-level paging")
}

/// All the way: real, protected, paging with four levels, compatibility mode, 64-bit mode, and what leaving would break.
fn climb() -> Program {
    let mut code = Code::new();
    let root = TABLES + 0x8000;
    code.word(root, u64::from(root + 0x1000) | 7);
    code.word(root + 0x1000, u64::from(root + 0x2000) | 7);
    code.word(root + 0x2000, 0x87);
    code.protect();
    // Long mode needs PAE: without it, #GP.
    code.set32(1, 0xc000_0080);
    code.set32(0, 0x100);
    code.raw(&[0x31, 0xd2, 0x0f, 0x30]);
    code.set_cr(4, 0x20);
    code.set_cr(3, root);
    code.set_cr0(CR0_PG, 0);
    code.asm(|asm| {
        asm.nop().expect(OK);
        asm.nop().expect(OK);
    });
    // Compatibility mode; then 64-bit code: ljmp CODE64:next.
    let target = code.at() + 7;
    code.raw(&[0xea]);
    code.raw(&target.to_le_bytes());
    code.raw(&[selector::CODE64 as u8, 0]);
    // mov r8, rsp; push; pop; 64-bit sums; back to compatibility mode by a far return, paging off, protected mode again.
    code.raw(&[
        0x49,
        0x89,
        0xe0,
        0x41,
        0x50,
        0x41,
        0x59,
        0x4d,
        0x01,
        0xc1,
        0x48,
        0xff,
        0xc8,
        0x6a,
        selector::CODE32 as u8,
        0x68,
    ]);
    let target = code.at() + 4 + 2;
    code.raw(&target.to_le_bytes());
    code.raw(&[0x48, 0xcb]);
    code.set_cr0(0, CR0_PG);
    code.attempt(&[0xcd, COUNTING]);
    code.set_cr0(CR0_PG, 0);
    // mov eax, DONE; jmp eax, in compatibility mode: the first 2 MiB are mapped.
    code.finish("from real to long mode")
}
