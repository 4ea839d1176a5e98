// SPDX-License-Identifier: AGPL-3.0-or-later
//! PUSH, POP, PUSHA, POPA, PUSHF, POPF, ENTER, LEAVE, and the stack itself.
//!
//! Segment registers are pushed zero-extended. The stack pointer moves only when the whole instruction has succeeded.

use crate::core_state::Core;
use crate::flags::bit;
use crate::forms::{Operand, bits, handler_by_width, operand};
use crate::op::{Handler, Op, Step, Trap, attr};
use crate::segment::desc;
use crate::state::seg;
use crate::table::Entry;
use crate::width::Width;
use iced_x86::{Code, Mnemonic, OpCodeOperandKind};

const FAMILY: &str = "stack";
pub(crate) const RSP: u8 = 4;
const RBP: u8 = 5;

/// A stack pointer that is being moved; [`Core::set_stack`] makes it real.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    pub pointer: u64,
    /// Bits of the pointer that count: 64-bit code, or SS.B.
    mask: u64,
    long: bool,
}

impl Core {
    /// The current stack.
    #[inline(always)]
    pub fn stack(&self, long: bool) -> Stack {
        let mask = if long {
            u64::MAX
        } else if self.segments[seg::SS].attributes & desc::BIG != 0 {
            0xffff_ffff
        } else {
            0xffff
        };
        Stack { pointer: self.gpr[usize::from(RSP)], mask, long }
    }

    /// Makes a moved stack pointer real.
    #[inline(always)]
    pub fn set_stack(&mut self, stack: Stack) {
        let old = self.gpr[usize::from(RSP)];
        // A 32-bit stack pointer is written as a 32-bit register is.
        let keep = if stack.mask == 0xffff { old & !0xffff } else { 0 };
        self.gpr[usize::from(RSP)] = (stack.pointer & stack.mask) | keep;
    }

    fn stack_address(&mut self, stack: &Stack, bytes: u64, write: bool) -> Result<u64, Trap> {
        let offset = stack.pointer & stack.mask;
        if stack.long { Ok(offset) } else { self.segmented(seg::SS as u8, offset, bytes, write) }
    }

    /// Pushes onto a stack that is being moved.
    #[inline(always)]
    pub fn push_on<T: Width>(&mut self, stack: &mut Stack, value: T) -> Step {
        stack.pointer = stack.pointer.wrapping_sub(T::BYTES);
        let address = self.stack_address(stack, T::BYTES, true)?;
        self.write(address, seg::SS as u8, value)
    }

    /// Pops from a stack that is being moved.
    #[inline(always)]
    pub fn pop_from<T: Width>(&mut self, stack: &mut Stack) -> Result<T, Trap> {
        let address = self.stack_address(stack, T::BYTES, false)?;
        let value = self.read(address, seg::SS as u8)?;
        stack.pointer = stack.pointer.wrapping_add(T::BYTES);
        Ok(value)
    }

    /// Pushes one value if that takes nothing but a hit in the translation cache, and says whether it did. Handlers that leave
    /// the rest to a function they end with save no registers.
    #[inline(always)]
    pub fn push_cached<T: Width>(&mut self, op: &Op, value: T) -> bool {
        let pointer = self.gpr[usize::from(RSP)].wrapping_sub(T::BYTES);
        let pushed = op.has(attr::LONG) && self.write_cached(pointer, value);
        if pushed {
            self.gpr[usize::from(RSP)] = pointer;
        }
        pushed
    }

    /// [`Core::push`], out of line.
    #[cold]
    #[inline(never)]
    pub fn push_slow<T: Width>(&mut self, op: &Op, value: T) -> Step {
        self.push(op, value)
    }

    /// Pops one value if that takes nothing but a hit in the translation cache.
    #[inline(always)]
    pub fn pop_cached<T: Width>(&mut self, op: &Op) -> Option<T> {
        if !op.has(attr::LONG) {
            return None;
        }
        let pointer = self.gpr[usize::from(RSP)];
        let value = self.read_cached(pointer)?;
        self.gpr[usize::from(RSP)] = pointer.wrapping_add(T::BYTES);
        Some(value)
    }

    /// Pushes one value.
    #[inline(always)]
    pub fn push<T: Width>(&mut self, op: &Op, value: T) -> Step {
        if !op.has(attr::LONG) {
            return self.push_segmented(value);
        }
        let pointer = self.gpr[usize::from(RSP)].wrapping_sub(T::BYTES);
        self.write(pointer, seg::SS as u8, value)?;
        self.gpr[usize::from(RSP)] = pointer;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn push_segmented<T: Width>(&mut self, value: T) -> Step {
        let mut stack = self.stack(false);
        self.push_on(&mut stack, value)?;
        self.set_stack(stack);
        Ok(())
    }

    /// Pops one value.
    #[inline(always)]
    pub fn pop<T: Width>(&mut self, op: &Op) -> Result<T, Trap> {
        if !op.has(attr::LONG) {
            return self.pop_segmented();
        }
        let pointer = self.gpr[usize::from(RSP)];
        let value = self.read(pointer, seg::SS as u8)?;
        self.gpr[usize::from(RSP)] = pointer.wrapping_add(T::BYTES);
        Ok(value)
    }

    #[cold]
    #[inline(never)]
    fn pop_segmented<T: Width>(&mut self) -> Result<T, Trap> {
        let mut stack = self.stack(false);
        let value = self.pop_from(&mut stack)?;
        self.set_stack(stack);
        Ok(value)
    }
}

fn push_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    let value = core.reg::<T>(op.dst);
    if core.push_cached(op, value) { Ok(()) } else { core.push_slow(op, value) }
}

fn push_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let value = core.load::<T>(op)?;
    core.push(op, value)
}

fn push_imm<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.push(op, T::cut(op.imm))
}

fn push_segment<T: Width>(core: &mut Core, op: &Op) -> Step {
    let selector = core.segments[usize::from(op.dst)].selector;
    core.push(op, T::cut(selector.into()))
}

fn pop_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    match core.pop_cached::<T>(op) {
        Some(value) => {
            core.set_reg(op.dst, value);
            Ok(())
        }
        None => pop_reg_slow::<T>(core, op),
    }
}

#[cold]
#[inline(never)]
fn pop_reg_slow<T: Width>(core: &mut Core, op: &Op) -> Step {
    let value = core.pop::<T>(op)?;
    core.set_reg(op.dst, value);
    Ok(())
}

/// The address of the destination is computed with the stack pointer already moved.
fn pop_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let pointer = core.gpr[usize::from(RSP)];
    let value = core.pop::<T>(op)?;
    let stored = core.store(op, value);
    if stored.is_err() {
        core.gpr[usize::from(RSP)] = pointer;
    }
    stored
}

fn pop_segment<T: Width>(core: &mut Core, op: &Op) -> Step {
    let mut stack = core.stack(op.has(attr::LONG));
    let selector = core.pop_from::<T>(&mut stack)?.zx() as u16;
    core.load_segment(usize::from(op.dst), selector)?;
    core.set_stack(stack);
    if usize::from(op.dst) == seg::SS {
        core.hold_interrupts(op);
        core.attention = true;
    }
    Ok(())
}

fn push_all<T: Width>(core: &mut Core, op: &Op) -> Step {
    let mut stack = core.stack(op.has(attr::LONG));
    for register in 0..8 {
        core.push_on(&mut stack, core.reg::<T>(register))?;
    }
    core.set_stack(stack);
    Ok(())
}

fn pop_all<T: Width>(core: &mut Core, op: &Op) -> Step {
    let mut stack = core.stack(op.has(attr::LONG));
    let mut values = [T::cut(0); 8];
    for register in (0..8).rev() {
        values[register] = core.pop_from::<T>(&mut stack)?;
    }
    for (register, value) in values.into_iter().enumerate().filter(|(register, _)| *register != usize::from(RSP)) {
        core.set_reg(register as u8, value);
    }
    core.set_stack(stack);
    Ok(())
}

/// RF and VM are not pushed.
fn push_flags<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.push(op, T::cut(core.rflags() & !(bit::RF | bit::VM)))
}

fn pop_flags<T: Width>(core: &mut Core, op: &Op) -> Step {
    let value = core.pop::<T>(op)?.zx();
    let mut writable = bit::STATUS | bit::TF | bit::DF | bit::NT;
    if T::BITS > 16 {
        writable |= bit::AC | bit::ID;
    }
    writable |= core.privileged_flags();
    core.set_rflags((core.rflags() & !writable & !bit::RF) | (value & writable));
    Ok(())
}

impl Core {
    /// Which of IF and IOPL the current privilege may change.
    pub fn privileged_flags(&self) -> u64 {
        let interrupt = if u64::from(self.cpl()) <= self.iopl() { bit::IF } else { 0 };
        interrupt | if self.cpl() == 0 { bit::IOPL } else { 0 }
    }

    /// I/O privilege level.
    pub fn iopl(&self) -> u64 {
        (self.system_flags & bit::IOPL) >> 12
    }
}

/// ENTER size, level (Intel SDM vol. 2A). The frame's last byte must be writable.
fn enter<T: Width>(core: &mut Core, op: &Op) -> Step {
    let size = op.imm & 0xffff;
    let level = (op.imm >> 32) & 31;
    let mut stack = core.stack(op.has(attr::LONG));
    core.push_on(&mut stack, core.reg::<T>(RBP))?;
    let frame = stack.pointer;
    let mut outer = stack;
    outer.pointer = core.gpr[usize::from(RBP)];
    for _ in 1..level {
        outer.pointer = outer.pointer.wrapping_sub(T::BYTES);
        let address = core.stack_address(&outer, T::BYTES, false)?;
        let link = core.read::<T>(address, seg::SS as u8)?;
        core.push_on(&mut stack, link)?;
    }
    if level > 0 {
        core.push_on(&mut stack, T::cut(frame))?;
    }
    stack.pointer = stack.pointer.wrapping_sub(size);
    let address = core.stack_address(&stack, T::BYTES, true)?;
    core.probe(address, T::BYTES, crate::mmu::Kind::Write, seg::SS as u8)?;
    core.set_reg(RBP, T::cut(frame));
    core.set_stack(stack);
    Ok(())
}

fn leave<T: Width>(core: &mut Core, op: &Op) -> Step {
    let mut stack = core.stack(op.has(attr::LONG));
    stack.pointer = core.gpr[usize::from(RBP)];
    let frame = core.pop_from::<T>(&mut stack)?;
    core.set_reg(RBP, frame);
    core.set_stack(stack);
    Ok(())
}

fn is_segment(kind: OpCodeOperandKind) -> bool {
    use OpCodeOperandKind as Kind;
    matches!(kind, Kind::seg_reg | Kind::es | Kind::cs | Kind::ss | Kind::ds | Kind::fs | Kind::gs)
}

/// Operand size of a push or pop without a general-purpose operand, from the code's own operand size.
fn stack_width(code: Code) -> u32 {
    match code {
        Code::Pushw_imm8 | Code::Push_imm16 => 16,
        Code::Pushd_imm8 | Code::Pushd_imm32 => 32,
        Code::Pushq_imm8 | Code::Pushq_imm32 => 64,
        Code::Pushw_ES | Code::Pushw_CS | Code::Pushw_SS | Code::Pushw_DS | Code::Pushw_FS | Code::Pushw_GS => 16,
        Code::Pushd_ES | Code::Pushd_CS | Code::Pushd_SS | Code::Pushd_DS | Code::Pushd_FS | Code::Pushd_GS => 32,
        Code::Popw_ES | Code::Popw_CS | Code::Popw_SS | Code::Popw_DS | Code::Popw_FS | Code::Popw_GS => 16,
        Code::Popd_ES | Code::Popd_SS | Code::Popd_DS | Code::Popd_FS | Code::Popd_GS => 32,
        _ => 64,
    }
}

fn push_entry(code: Code) -> Option<Entry> {
    let width = match bits(code, 0) {
        0 => stack_width(code),
        width => width,
    };
    if is_segment(code.op_code().op_kind(0)) {
        return Entry::one(FAMILY, handler_by_width!(width, push_segment));
    }
    match operand(code, 0) {
        Operand::Immediate => Entry::one(FAMILY, handler_by_width!(stack_width(code), push_imm)),
        _ => Entry::rm(FAMILY, handler_by_width!(width, push_reg), handler_by_width!(width, push_mem)),
    }
}

fn pop_entry(code: Code) -> Option<Entry> {
    if code == Code::Popw_CS {
        return Some(Entry::Ud("only on the 8086"));
    }
    if is_segment(code.op_code().op_kind(0)) {
        return Entry::one(FAMILY, handler_by_width!(stack_width(code), pop_segment));
    }
    let width = bits(code, 0);
    Entry::rm(FAMILY, handler_by_width!(width, pop_reg), handler_by_width!(width, pop_mem))
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let handler: Handler = match code {
        Code::Pushaw => push_all::<u16>,
        Code::Pushad => push_all::<u32>,
        Code::Popaw => pop_all::<u16>,
        Code::Popad => pop_all::<u32>,
        Code::Pushfw => push_flags::<u16>,
        Code::Pushfd => push_flags::<u32>,
        Code::Pushfq => push_flags::<u64>,
        Code::Popfw => pop_flags::<u16>,
        Code::Popfd => pop_flags::<u32>,
        Code::Popfq => pop_flags::<u64>,
        Code::Enterw_imm16_imm8 => enter::<u16>,
        Code::Enterd_imm16_imm8 => enter::<u32>,
        Code::Enterq_imm16_imm8 => enter::<u64>,
        Code::Leavew => leave::<u16>,
        Code::Leaved => leave::<u32>,
        Code::Leaveq => leave::<u64>,
        _ => {
            return match code.mnemonic() {
                Mnemonic::Push => push_entry(code),
                Mnemonic::Pop => pop_entry(code),
                _ => None,
            };
        }
    };
    Entry::one(FAMILY, handler)
}
