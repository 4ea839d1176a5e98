// SPDX-License-Identifier: AGPL-3.0-or-later
//! A small x86-64 assembler: only what the compiler emits, straight into a buffer (Intel SDM vol. 2, chapter 2).

/// A host register: general or XMM, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reg(pub u8);

pub(super) const RAX: Reg = Reg(0);
pub(super) const RCX: Reg = Reg(1);
pub(super) const RDX: Reg = Reg(2);
pub(super) const RBX: Reg = Reg(3);
pub(super) const RSP: Reg = Reg(4);
pub(super) const RBP: Reg = Reg(5);
pub(super) const RSI: Reg = Reg(6);
pub(super) const RDI: Reg = Reg(7);
pub(super) const R8: Reg = Reg(8);
pub(super) const R9: Reg = Reg(9);
pub(super) const R10: Reg = Reg(10);
pub(super) const R11: Reg = Reg(11);
pub(super) const R12: Reg = Reg(12);
pub(super) const R13: Reg = Reg(13);
pub(super) const R14: Reg = Reg(14);
pub(super) const R15: Reg = Reg(15);

/// What a ModRM byte can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rm {
    Reg(Reg),
    /// Base, displacement.
    Base(Reg, i32),
    /// Base, index, shift of the index, displacement.
    Index(Reg, Reg, u8, i32),
    /// Index, shift of the index, displacement; no base.
    Scaled(Reg, u8, i32),
    /// A host address within 2 GiB of the code, encoded relative to RIP.
    Near(u64),
}

/// A place in the code being emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(u32);

const UNBOUND: u32 = u32::MAX;

/// Two-operand arithmetic, by the number in its opcode.
pub(super) mod alu {
    pub const ADD: u8 = 0;
    pub const OR: u8 = 1;
    pub const ADC: u8 = 2;
    pub const SBB: u8 = 3;
    pub const AND: u8 = 4;
    pub const SUB: u8 = 5;
    pub const XOR: u8 = 6;
    pub const CMP: u8 = 7;
}

/// Conditions, by their encoding.
pub(super) mod cc {
    pub const C: u8 = 2;
    pub const AE: u8 = 3;
    pub const Z: u8 = 4;
    pub const NZ: u8 = 5;
    pub const BE: u8 = 6;
    pub const S: u8 = 8;
}

/// Shifts, by the number in their ModRM byte.
pub(super) mod shift {
    pub const ROL: u8 = 0;
    pub const ROR: u8 = 1;
    pub const SHL: u8 = 4;
    pub const SHR: u8 = 5;
    pub const SAR: u8 = 7;
}

/// Code under construction: the straight code, then stubs that execute elsewhere.
pub(super) struct Asm {
    bytes: Vec<u8>,
    /// Address at which the first byte will execute.
    origin: u64,
    /// Position of the first byte of the stubs.
    split: usize,
    /// How much further on the stubs execute than if they came right after the straight code; 0 until they begin.
    gap: u64,
    labels: Vec<u32>,
    /// Positions of 32-bit distances to labels.
    fixups: Vec<(u32, Label)>,
}

impl Asm {
    pub fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(4096),
            origin: 0,
            split: usize::MAX,
            gap: 0,
            labels: Vec::new(),
            fixups: Vec::new(),
        }
    }

    /// Begins anew at an address.
    pub fn start(&mut self, origin: u64) {
        self.bytes.clear();
        self.labels.clear();
        self.fixups.clear();
        self.origin = origin;
        (self.split, self.gap) = (usize::MAX, 0);
    }

    /// The rest are stubs, which will execute from this address on, above the straight code.
    pub fn begin_stubs(&mut self, address: u64) {
        self.gap = address - self.here();
        self.split = self.bytes.len();
    }

    /// The straight code and the stubs.
    pub fn parts(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.split.min(self.bytes.len()))
    }

    /// Address of the next byte.
    pub fn here(&self) -> u64 {
        self.origin + self.bytes.len() as u64 + self.gap
    }

    pub fn label(&mut self) -> Label {
        self.labels.push(UNBOUND);
        Label(self.labels.len() as u32 - 1)
    }

    pub fn bind(&mut self, label: Label) {
        self.labels[label.0 as usize] = (self.here() - self.origin) as u32;
    }

    /// Address of a bound label.
    pub fn address(&self, label: Label) -> u64 {
        self.origin + u64::from(self.labels[label.0 as usize])
    }

    /// Fills in the distances to labels, all of which are bound.
    pub fn finish(&mut self) {
        for &(at, label) in &self.fixups {
            let target = self.labels[label.0 as usize];
            assert_ne!(target, UNBOUND, "a jump leads to a label that was never bound");
            let gap = if at as usize >= self.split { self.gap as u32 } else { 0 };
            let distance = target.wrapping_sub(at + 4 + gap);
            self.bytes[at as usize..at as usize + 4].copy_from_slice(&distance.to_le_bytes());
        }
        self.fixups.clear();
    }

    #[inline(always)]
    fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    #[inline(always)]
    fn dword(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn near(&mut self, address: u64, tail: u64) {
        let after = self.here() + 4 + tail;
        let distance = i32::try_from(address.wrapping_sub(after) as i64).expect("near data lies near the code");
        self.dword(distance);
    }

    /// One instruction with a ModRM byte. `code` is the opcode with its escape bytes, and a mandatory prefix in its top byte. `size` 8 sets REX.W, 2 the operand-size prefix; `byte` says that register operands
    /// are byte registers; `tail` is the number of immediate bytes that follow.
    #[inline]
    pub fn op(&mut self, size: u8, code: u32, reg: u8, rm: Rm, byte: (bool, bool), tail: u64) {
        let (prefix, opcode) = ((code >> 24) as u8, code & 0xff_ffff);
        if size == 2 {
            self.byte(0x66);
        }
        if prefix != 0 {
            self.byte(prefix);
        }
        let mut rex = if size == 8 { 0x48 } else { 0 } | (reg >> 3) << 2;
        match rm {
            Rm::Reg(r) => rex |= r.0 >> 3,
            Rm::Base(b, _) => rex |= b.0 >> 3,
            Rm::Index(b, i, ..) => rex |= b.0 >> 3 | (i.0 >> 3) << 1,
            Rm::Scaled(i, ..) => rex |= (i.0 >> 3) << 1,
            Rm::Near(_) => {}
        }
        let needs = |number: u8| (4..8).contains(&number);
        let forced = (byte.0 && needs(reg)) || (byte.1 && matches!(rm, Rm::Reg(r) if needs(r.0)));
        if rex != 0 || forced {
            self.byte(0x40 | rex);
        }
        if opcode > 0xffff {
            self.byte((opcode >> 16) as u8);
        }
        if opcode > 0xff {
            self.byte((opcode >> 8) as u8);
        }
        self.byte(opcode as u8);
        self.modrm(reg & 7, rm, tail);
    }

    fn modrm(&mut self, reg: u8, rm: Rm, tail: u64) {
        let reg = reg << 3;
        match rm {
            Rm::Reg(r) => self.byte(0xc0 | reg | (r.0 & 7)),
            Rm::Base(b, disp) => {
                let (mode, b) = (Self::mode(b, disp), b.0 & 7);
                self.byte(mode | reg | b);
                if b == 4 {
                    self.byte(0x24);
                }
                self.displacement(mode, disp);
            }
            Rm::Index(b, i, scale, disp) => {
                let mode = Self::mode(b, disp);
                self.byte(mode | reg | 4);
                self.byte(scale << 6 | (i.0 & 7) << 3 | (b.0 & 7));
                self.displacement(mode, disp);
            }
            Rm::Scaled(i, scale, disp) => {
                self.byte(reg | 4);
                self.byte(scale << 6 | (i.0 & 7) << 3 | 5);
                self.dword(disp);
            }
            Rm::Near(address) => {
                self.byte(reg | 5);
                self.near(address, tail);
            }
        }
    }

    /// RBP and R13 as a base always have a displacement.
    fn mode(base: Reg, disp: i32) -> u8 {
        match disp {
            0 if base.0 & 7 != 5 => 0,
            -128..=127 => 0x40,
            _ => 0x80,
        }
    }

    fn displacement(&mut self, mode: u8, disp: i32) {
        match mode {
            0 => {}
            0x40 => self.byte(disp as u8),
            _ => self.dword(disp),
        }
    }

    fn immediate(&mut self, size: u8, value: i32) {
        match size {
            1 => self.byte(value as u8),
            2 => self.bytes.extend_from_slice(&(value as u16).to_le_bytes()),
            _ => self.dword(value),
        }
    }

    fn tail(size: u8) -> u64 {
        u64::from(size.min(4))
    }

    /// dst = dst op rm.
    pub fn alu_load(&mut self, op: u8, size: u8, dst: Reg, src: Rm) {
        self.op(size, u32::from(op * 8 + if size == 1 { 2 } else { 3 }), dst.0, src, (size == 1, size == 1), 0);
    }

    /// rm = rm op src.
    pub fn alu_store(&mut self, op: u8, size: u8, dst: Rm, src: Reg) {
        self.op(size, u32::from(op * 8 + u8::from(size != 1)), src.0, dst, (size == 1, size == 1), 0);
    }

    /// rm = rm op immediate.
    pub fn alu_imm(&mut self, op: u8, size: u8, dst: Rm, value: i32) {
        if size != 1 && (-128..=127).contains(&value) {
            self.op(size, 0x83, op, dst, (false, false), 1);
            self.byte(value as u8);
        } else {
            let opcode = if size == 1 { 0x80 } else { 0x81 };
            self.op(size, opcode, op, dst, (false, size == 1), Self::tail(size));
            self.immediate(size, value);
        }
    }

    pub fn test(&mut self, size: u8, rm: Rm, reg: Reg) {
        self.op(size, if size == 1 { 0x84 } else { 0x85 }, reg.0, rm, (size == 1, size == 1), 0);
    }

    pub fn test_imm(&mut self, size: u8, rm: Rm, value: i32) {
        self.op(size, if size == 1 { 0xf6 } else { 0xf7 }, 0, rm, (false, size == 1), Self::tail(size));
        self.immediate(size, value);
    }

    pub fn load(&mut self, size: u8, dst: Reg, src: Rm) {
        self.op(size, if size == 1 { 0x8a } else { 0x8b }, dst.0, src, (size == 1, size == 1), 0);
    }

    pub fn store(&mut self, size: u8, dst: Rm, src: Reg) {
        self.op(size, if size == 1 { 0x88 } else { 0x89 }, src.0, dst, (size == 1, size == 1), 0);
    }

    /// Moves between 64-bit registers.
    pub fn mov(&mut self, dst: Reg, src: Reg) {
        if dst != src {
            self.load(8, dst, Rm::Reg(src));
        }
    }

    /// A store of an immediate, sign-extended to 8 bytes.
    pub fn store_imm(&mut self, size: u8, dst: Rm, value: i32) {
        self.op(size, if size == 1 { 0xc6 } else { 0xc7 }, 0, dst, (false, size == 1), Self::tail(size));
        self.immediate(size, value);
    }

    /// A 64-bit constant in its shortest form; no flag changes.
    pub fn constant(&mut self, dst: Reg, value: u64) {
        if let Ok(small) = u32::try_from(value) {
            if dst.0 >= 8 {
                self.byte(0x41);
            }
            self.byte(0xb8 | dst.0 & 7);
            self.dword(small as i32);
        } else if let Ok(small) = i32::try_from(value as i64) {
            self.store_imm(8, Rm::Reg(dst), small);
        } else {
            self.byte(0x48 | dst.0 >> 3);
            self.byte(0xb8 | dst.0 & 7);
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// Zero-extends from 1, 2 or 4 bytes into a register of `size`.
    pub fn load_zero(&mut self, size: u8, from: u8, dst: Reg, src: Rm) {
        match from {
            1 => self.op(size.max(4), 0x0fb6, dst.0, src, (false, true), 0),
            2 => self.op(size.max(4), 0x0fb7, dst.0, src, (false, false), 0),
            _ => self.load(from, dst, src),
        }
    }

    /// Sign-extends from 1, 2 or 4 bytes into a register of `size`.
    pub fn load_sign(&mut self, size: u8, from: u8, dst: Reg, src: Rm) {
        match (from, size) {
            (1, _) => self.op(size, 0x0fbe, dst.0, src, (false, true), 0),
            (2, 4 | 8) => self.op(size, 0x0fbf, dst.0, src, (false, false), 0),
            (4, 8) => self.op(8, 0x63, dst.0, src, (false, false), 0),
            _ => self.load(size, dst, src),
        }
    }

    pub fn lea(&mut self, size: u8, dst: Reg, src: Rm) {
        self.op(size, 0x8d, dst.0, src, (false, false), 0);
    }

    pub fn shift_imm(&mut self, kind: u8, size: u8, rm: Rm, count: u8) {
        if count == 1 {
            self.op(size, if size == 1 { 0xd0 } else { 0xd1 }, kind, rm, (false, size == 1), 0);
        } else {
            self.op(size, if size == 1 { 0xc0 } else { 0xc1 }, kind, rm, (false, size == 1), 1);
            self.byte(count);
        }
    }

    /// Shifts by CL.
    pub fn shift_cl(&mut self, kind: u8, size: u8, rm: Rm) {
        self.op(size, if size == 1 { 0xd2 } else { 0xd3 }, kind, rm, (false, size == 1), 0);
    }

    /// The group of opcode F7: 2 NOT, 3 NEG, 4 MUL, 5 IMUL, 6 DIV, 7 IDIV.
    pub fn unary(&mut self, kind: u8, size: u8, rm: Rm) {
        self.op(size, if size == 1 { 0xf6 } else { 0xf7 }, kind, rm, (false, size == 1), 0);
    }

    /// 0 INC, 1 DEC.
    pub fn step(&mut self, kind: u8, size: u8, rm: Rm) {
        self.op(size, if size == 1 { 0xfe } else { 0xff }, kind, rm, (false, size == 1), 0);
    }

    pub fn imul(&mut self, size: u8, dst: Reg, src: Rm) {
        self.op(size, 0x0faf, dst.0, src, (false, false), 0);
    }

    pub fn imul_imm(&mut self, size: u8, dst: Reg, src: Rm, value: i32) {
        self.op(size, 0x69, dst.0, src, (false, false), Self::tail(size));
        self.immediate(size, value);
    }

    /// BT (4), BTS (5), BTR (6), BTC (7) by an immediate.
    pub fn bit_imm(&mut self, kind: u8, size: u8, rm: Rm, index: u8) {
        self.op(size, 0x0fba, kind, rm, (false, false), 1);
        self.byte(index);
    }

    /// The same by a register.
    pub fn bit(&mut self, kind: u8, size: u8, rm: Rm, index: Reg) {
        self.op(size, 0x0f83 + u32::from(kind) * 8, index.0, rm, (false, false), 0);
    }

    /// BSF (0), BSR (1).
    pub fn scan(&mut self, kind: u8, size: u8, dst: Reg, src: Rm) {
        self.op(size, 0x0fbc + u32::from(kind), dst.0, src, (false, false), 0);
    }

    /// Compares with the accumulator; without LOCK.
    pub fn cmpxchg(&mut self, size: u8, rm: Rm, reg: Reg) {
        self.op(size, 0x0fb1, reg.0, rm, (false, false), 0);
    }

    pub fn xadd(&mut self, size: u8, rm: Rm, reg: Reg) {
        self.op(size, 0x0fc1, reg.0, rm, (false, false), 0);
    }

    /// AH, zero-extended into EAX.
    pub fn zero_extend_ah(&mut self) {
        self.op(4, 0x0fb6, 0, Rm::Reg(Reg(4)), (false, false), 0);
    }

    pub fn set(&mut self, condition: u8, rm: Rm) {
        self.op(1, 0x0f90 + u32::from(condition), 0, rm, (false, true), 0);
    }

    pub fn cmov(&mut self, condition: u8, size: u8, dst: Reg, src: Rm) {
        self.op(size, 0x0f40 + u32::from(condition), dst.0, src, (false, false), 0);
    }

    pub fn jcc(&mut self, condition: u8, target: Label) {
        self.byte(0x0f);
        self.byte(0x80 | condition);
        self.distance(target);
    }

    pub fn jmp(&mut self, target: Label) {
        self.byte(0xe9);
        self.distance(target);
    }

    fn distance(&mut self, target: Label) {
        self.fixups.push((self.bytes.len() as u32, target));
        self.dword(0);
    }

    /// Jumps to an address near the code.
    pub fn jmp_to(&mut self, address: u64) {
        self.byte(0xe9);
        self.near(address, 0);
    }

    pub fn jcc_to(&mut self, condition: u8, address: u64) {
        self.byte(0x0f);
        self.byte(0x80 | condition);
        self.near(address, 0);
    }

    pub fn jmp_rm(&mut self, rm: Rm) {
        self.op(4, 0xff, 4, rm, (false, false), 0);
    }

    pub fn call(&mut self, target: Label) {
        self.byte(0xe8);
        self.distance(target);
    }

    pub fn call_to(&mut self, address: u64) {
        self.byte(0xe8);
        self.near(address, 0);
    }

    pub fn call_rm(&mut self, rm: Rm) {
        self.op(4, 0xff, 2, rm, (false, false), 0);
    }

    pub fn ret(&mut self) {
        self.byte(0xc3);
    }

    pub fn push(&mut self, reg: Reg) {
        if reg.0 >= 8 {
            self.byte(0x41);
        }
        self.byte(0x50 | reg.0 & 7);
    }

    /// Pushes a sign-extended immediate.
    pub fn push_imm(&mut self, value: i32) {
        self.byte(0x68);
        self.dword(value);
    }

    pub fn pop(&mut self, reg: Reg) {
        if reg.0 >= 8 {
            self.byte(0x41);
        }
        self.byte(0x58 | reg.0 & 7);
    }

    /// AH = SF ZF 0 AF 0 PF 1 CF.
    pub fn lahf(&mut self) {
        self.byte(0x9f);
    }

    pub fn sahf(&mut self) {
        self.byte(0x9e);
    }

    /// Sign of the accumulator into RDX or EDX.
    pub fn cdq(&mut self, size: u8) {
        if size == 8 {
            self.byte(0x48);
        }
        self.byte(0x99);
    }

    pub fn bswap(&mut self, size: u8, reg: Reg) {
        let rex = if size == 8 { 8 } else { 0 } | reg.0 >> 3;
        if rex != 0 {
            self.byte(0x40 | rex);
        }
        self.byte(0x0f);
        self.byte(0xc8 | reg.0 & 7);
    }

    pub fn ldmxcsr(&mut self, rm: Rm) {
        self.op(4, 0x0fae, 2, rm, (false, false), 0);
    }

    pub fn stmxcsr(&mut self, rm: Rm) {
        self.op(4, 0x0fae, 3, rm, (false, false), 0);
    }

    /// An SSE instruction: mandatory prefix (0 for none), opcode with its escape bytes, operands.
    pub fn sse(&mut self, size: u8, prefix: u8, opcode: u32, reg: Reg, rm: Rm) {
        self.op(size, u32::from(prefix) << 24 | opcode, reg.0, rm, (false, false), 0);
    }

    /// [`Asm::sse`] with an immediate byte.
    pub fn sse_imm(&mut self, size: u8, prefix: u8, opcode: u32, reg: Reg, rm: Rm, value: u8) {
        self.op(size, u32::from(prefix) << 24 | opcode, reg.0, rm, (false, false), 1);
        self.byte(value);
    }
}
