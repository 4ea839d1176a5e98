// SPDX-License-Identifier: AGPL-3.0-or-later
//! A test case and what came out of it, as plain data that can lie in memory shared with the child.

/// Most bytes of code in a case.
pub const CODE_MAX: usize = 64;
/// Most patches of the data in a case.
pub const PATCH_MAX: usize = 8;

/// An FXSAVE image in its 64-bit form (AMD64 APM vol. 2, 11.4.4.3).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Fx(pub [u8; 512]);

/// Bytes that a case puts over the base image of the data.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Patch {
    /// Offset from `layout::DATA`.
    pub offset: u32,
    /// How many of `bytes` count.
    pub len: u32,
    /// The bytes.
    pub bytes: [u8; 16],
}

/// Everything the code under test can see.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Case {
    /// x87, MMX and SSE state.
    pub fx: Fx,
    /// General registers in encoding order.
    pub gpr: [u64; 16],
    /// Where the code starts.
    pub rip: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// 64 or 32: the code segment's size.
    pub bits: u32,
    /// How many of `code` count.
    pub code_len: u32,
    /// The code; INT3 follows.
    pub code: [u8; CODE_MAX],
    /// How many of `patches` count.
    pub patch_count: u32,
    /// Changes to the data.
    pub patches: [Patch; PATCH_MAX],
}

/// How a case ended, except for memory. Every case ends in an exception; a case that ran to its end in #BP.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// x87, MMX and SSE state.
    pub fx: Fx,
    /// General registers in encoding order.
    pub gpr: [u64; 16],
    /// Instruction pointer that the exception saved.
    pub rip: u64,
    /// RFLAGS that the exception saved.
    pub rflags: u64,
    /// Exception vector.
    pub vector: u32,
    /// Error code, 0 where the exception has none.
    pub error: u32,
    /// CR2; counts after #PF only.
    pub cr2: u64,
    /// ES, CS, SS, DS, FS, GS selectors.
    pub selectors: [u16; 6],
}

/// How a case ended.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Registers and the exception.
    pub registers: Registers,
    /// Every changed 8-byte word of the data: its index and its new value, in ascending order.
    pub memory: Vec<(u32, u64)>,
}

impl Case {
    /// An empty case: all zero but what must not be.
    pub fn empty(bits: u32) -> Self {
        Self {
            fx: Fx::initial(),
            gpr: [0; 16],
            rip: crate::layout::CODE,
            rflags: 0x202,
            bits,
            code_len: 0,
            code: [0; CODE_MAX],
            patch_count: 0,
            patches: [Patch::default(); PATCH_MAX],
        }
    }

    /// The code that counts.
    pub fn code(&self) -> &[u8] {
        &self.code[..self.code_len as usize]
    }

    /// Replaces the code; what does not fit is cut.
    pub fn set_code(&mut self, code: &[u8]) {
        let len = code.len().min(CODE_MAX);
        self.code = [0; CODE_MAX];
        self.code[..len].copy_from_slice(&code[..len]);
        self.code_len = len as u32;
    }

    /// Puts `bytes` (at most 16) into the data at `offset`, unless that is outside or the list is full.
    pub fn patch(&mut self, offset: u64, bytes: &[u8]) {
        let count = self.patch_count as usize;
        let end = offset.checked_add(bytes.len() as u64);
        if count >= PATCH_MAX || bytes.len() > 16 || end.is_none_or(|end| end > crate::layout::DATA_BYTES as u64) {
            return;
        }
        let patch = &mut self.patches[count];
        *patch = Patch { offset: offset as u32, len: bytes.len() as u32, bytes: [0; 16] };
        patch.bytes[..bytes.len()].copy_from_slice(bytes);
        self.patch_count += 1;
    }

    /// Puts the patches into `data`.
    pub fn apply_patches(&self, data: &mut [u8]) {
        for patch in &self.patches[..self.patch_count as usize] {
            let (start, len) = (patch.offset as usize, patch.len as usize);
            data[start..start + len].copy_from_slice(&patch.bytes[..len]);
        }
    }
}

impl Fx {
    /// As FNINIT and reset leave the state: all registers zero.
    pub fn initial() -> Self {
        let mut fx = Self([0; 512]);
        fx.set_u16(0, 0x37f);
        fx.set_u32(24, 0x1f80);
        fx
    }

    /// Sixteen bits at `offset`.
    pub fn u16(&self, offset: usize) -> u16 {
        u16::from_le_bytes([self.0[offset], self.0[offset + 1]])
    }

    /// Thirty-two bits at `offset`.
    pub fn u32(&self, offset: usize) -> u32 {
        u32::from(self.u16(offset)) | u32::from(self.u16(offset + 2)) << 16
    }

    /// Sixty-four bits at `offset`.
    pub fn u64(&self, offset: usize) -> u64 {
        u64::from(self.u32(offset)) | u64::from(self.u32(offset + 4)) << 32
    }

    /// Stores sixteen bits at `offset`.
    pub fn set_u16(&mut self, offset: usize, value: u16) {
        self.0[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Stores thirty-two bits at `offset`.
    pub fn set_u32(&mut self, offset: usize, value: u32) {
        self.0[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// ST(`index`) as significand and sign with exponent.
    pub fn st(&self, index: usize) -> (u64, u16) {
        (self.u64(32 + 16 * index), self.u16(40 + 16 * index))
    }

    /// Sets ST(`index`).
    pub fn set_st(&mut self, index: usize, significand: u64, sign_exponent: u16) {
        let at = 32 + 16 * index;
        self.0[at..at + 8].copy_from_slice(&significand.to_le_bytes());
        self.set_u16(at + 8, sign_exponent);
    }

    /// XMM register `index`.
    pub fn xmm(&self, index: usize) -> u128 {
        let at = 160 + 16 * index;
        u128::from(self.u64(at)) | u128::from(self.u64(at + 8)) << 64
    }

    /// Sets XMM register `index`.
    pub fn set_xmm(&mut self, index: usize, value: u128) {
        let at = 160 + 16 * index;
        self.0[at..at + 16].copy_from_slice(&value.to_le_bytes());
    }
}

impl Registers {
    /// All zero.
    pub const ZERO: Self =
        Self { fx: Fx([0; 512]), gpr: [0; 16], rip: 0, rflags: 0, vector: 0, error: 0, cr2: 0, selectors: [0; 6] };
}
