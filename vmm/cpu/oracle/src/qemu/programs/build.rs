// SPDX-License-Identifier: AGPL-3.0-or-later
//! Builds programs out of attempts: code that may fault, after which the program goes on behind it.

use crate::qemu::world::{
    DONE, KERNEL_RESUME, RESUME, START, Shape, TO_KERNEL, USER_CODE, USER_CS32, USER_CS64, USER_DS, USER_STACK, World,
};
use iced_x86::code_asm::{CodeAssembler, qword_ptr, r14, r15, rax, rsp};

/// Bytes between two pieces of ring-3 code.
const USER_SLOT: u64 = 64;

/// Code for both rings and what to change in the world beforehand.
pub struct Program {
    /// For reports.
    pub name: String,
    kernel: Vec<u8>,
    user: Vec<u8>,
    setup: Vec<(u64, Vec<u8>)>,
    shape: Shape,
}

impl Program {
    /// The world in which the program runs.
    pub fn world(&self) -> World {
        if self.shape == Shape::StartUp {
            return crate::qemu::start_up::world(&self.setup);
        }
        let mut world = World::new(&self.kernel, &self.user);
        for (at, bytes) in &self.setup {
            world.ram.write_bytes(*at, bytes);
        }
        world
    }
}

impl Program {
    /// A program of real mode: `setup` is all its memory beside the tables.
    pub fn start_up(name: impl Into<String>, setup: Vec<(u64, Vec<u8>)>) -> Self {
        Self { name: name.into(), kernel: Vec::new(), user: Vec::new(), setup, shape: Shape::StartUp }
    }
}

/// A program in the making.
pub struct Builder {
    name: String,
    /// Ring-0 code; use it freely between attempts. R13 to R15 are the builder's.
    pub asm: CodeAssembler,
    user: Vec<u8>,
    setup: Vec<(u64, Vec<u8>)>,
}

/// Assembling cannot fail for operands that exist.
pub const OK: &str = "valid operands";

impl Builder {
    /// An empty program.
    pub fn new(name: impl Into<String>) -> Self {
        let asm = CodeAssembler::new(64).expect(OK);
        Self { name: name.into(), asm, user: Vec::new(), setup: Vec::new() }
    }

    /// Bytes that are in memory before the program starts.
    pub fn memory(&mut self, at: u64, bytes: &[u8]) {
        self.setup.push((at, bytes.to_vec()));
    }

    /// A word that is in memory before the program starts.
    pub fn word(&mut self, at: u64, value: u64) {
        self.memory(at, &value.to_le_bytes());
    }

    /// Stores a word.
    pub fn store(&mut self, at: u64, value: u64) {
        let asm = &mut self.asm;
        asm.mov(rax, value).expect(OK);
        asm.mov(qword_ptr(at), rax).expect(OK);
    }

    /// Sets a register by number of its encoding: `mov r64, imm64`.
    pub fn set(&mut self, register: u8, value: u64) {
        let mut bytes = vec![0x48 | register >> 3, 0xb8 | register & 7];
        bytes.extend(value.to_le_bytes());
        self.asm.db(&bytes).expect(OK);
    }

    /// Code in ring 0 that may fault; the stack pointer is restored behind it.
    pub fn attempt(&mut self, code: impl FnOnce(&mut CodeAssembler)) {
        let asm = &mut self.asm;
        let mut behind = asm.create_label();
        asm.lea(r15, qword_ptr(behind)).expect(OK);
        asm.mov(qword_ptr(RESUME), r15).expect(OK);
        asm.mov(r14, rsp).expect(OK);
        code(asm);
        asm.set_label(&mut behind).expect(OK);
        asm.mov(rsp, r14).expect(OK);
    }

    /// Raw bytes in ring 0 that may fault.
    pub fn attempt_bytes(&mut self, bytes: &[u8]) {
        self.attempt(|asm| asm.db(bytes).expect(OK));
    }

    /// Code in ring 3, in 64-bit mode, that may fault; then back to ring 0.
    pub fn user(&mut self, code: impl FnOnce(&mut CodeAssembler)) {
        let mut asm = CodeAssembler::new(64).expect(OK);
        code(&mut asm);
        let start = self.user_start();
        let bytes = asm.assemble(start).expect(OK);
        self.user_bytes(USER_CS64, &bytes);
    }

    /// Where the next piece of ring-3 code will lie.
    pub fn user_start(&self) -> u64 {
        USER_CODE + self.user.len() as u64
    }

    /// Raw bytes in ring 3, in the code segment of `selector`.
    pub fn user_bytes(&mut self, selector: u16, bytes: &[u8]) {
        let start = self.user_start();
        if selector == USER_CS32 {
            // mov eax, USER_DS; mov ds, eax; mov es, eax: ring 0's segments do not survive the way to ring 3.
            self.user.extend_from_slice(&[0xb8, USER_DS as u8, 0, 0, 0, 0x8e, 0xd8, 0x8e, 0xc0]);
        }
        self.user.extend_from_slice(bytes);
        let end = USER_CODE + self.user.len() as u64;
        self.user.extend_from_slice(&[0xcd, TO_KERNEL as u8]);
        let padded = (self.user.len() as u64).next_multiple_of(USER_SLOT) as usize;
        self.user.resize(padded, 0xcc);
        self.store(RESUME, end);
        let asm = &mut self.asm;
        let mut back = asm.create_label();
        asm.lea(r15, qword_ptr(back)).expect(OK);
        asm.mov(qword_ptr(KERNEL_RESUME), r15).expect(OK);
        asm.push(i32::from(USER_DS)).expect(OK);
        asm.push(USER_STACK as i32).expect(OK);
        asm.pushfq().expect(OK);
        asm.push(i32::from(selector)).expect(OK);
        asm.push(start as i32).expect(OK);
        asm.iretq().expect(OK);
        asm.set_label(&mut back).expect(OK);
    }

    /// Ends the program.
    pub fn finish(mut self) -> Program {
        self.asm.mov(rax, DONE).expect(OK);
        self.asm.jmp(rax).expect(OK);
        let kernel = self.asm.assemble(START).expect(OK);
        Program { name: self.name, kernel, user: self.user, setup: self.setup, shape: Shape::Long }
    }
}
