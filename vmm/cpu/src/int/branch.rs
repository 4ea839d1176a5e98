// SPDX-License-Identifier: AGPL-3.0-or-later
//! Near control transfers: JMP, Jcc, CALL, RET, LOOP, JCXZ.

use crate::core_state::{Core, vector};
use crate::forms::{bits, handler_by_width};
use crate::int::cond::{condition_of, with_condition};
use crate::int::stack::RSP;
use crate::op::{Handler, Op, Step, attr};
use crate::state::seg;
use crate::table::Entry;
use crate::width::Width;
use iced_x86::{Code, Mnemonic, OpCodeOperandKind};

const FAMILY: &str = "branch";
const RCX: usize = 1;

/// A 48-bit address in canonical form.
#[inline(always)]
pub(crate) fn is_canonical(address: u64) -> bool {
    (address as i64) << 16 >> 16 == address as i64
}

impl Core {
    /// Checks the target of a near transfer: canonical, or inside the code segment.
    #[inline(always)]
    pub fn check_target(&mut self, op: &Op, target: u64) -> Step {
        if is_canonical(target) && !op.has(attr::SEGMENTED_CODE) { Ok(()) } else { self.check_far_target(op, target) }
    }

    #[cold]
    #[inline(never)]
    fn check_far_target(&mut self, op: &Op, target: u64) -> Step {
        let inside = op.has(attr::SEGMENTED_CODE) && target <= u64::from(self.segments[seg::CS].limit);
        if inside { Ok(()) } else { Err(self.fault_code(vector::GP, 0)) }
    }

    #[inline(always)]
    fn jump(&mut self, op: &Op, target: u64) -> Step {
        self.check_target(op, target)?;
        self.rip = target;
        Ok(())
    }

    #[inline(always)]
    fn call<T: Width>(&mut self, op: &Op, target: u64) -> Step {
        self.check_target(op, target)?;
        self.push(op, T::cut(op.next_ip))?;
        self.rip = target;
        Ok(())
    }
}

fn jcc<const CC: u8>(core: &mut Core, op: &Op) -> Step {
    if core.condition::<CC>() { core.jump(op, op.imm) } else { Ok(()) }
}

fn jmp(core: &mut Core, op: &Op) -> Step {
    core.jump(op, op.imm)
}

fn jmp_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.jump(op, core.reg::<T>(op.dst).zx())
}

fn jmp_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let target = core.load::<T>(op)?;
    core.jump(op, target.zx())
}

fn call<T: Width>(core: &mut Core, op: &Op) -> Step {
    // A target outside the canonical half or the segment takes the slow way, where it is refused.
    if op.has(attr::LONG) && is_canonical(op.imm) && core.push_cached(op, T::cut(op.next_ip)) {
        core.rip = op.imm;
        return Ok(());
    }
    call_slow::<T>(core, op)
}

#[cold]
#[inline(never)]
fn call_slow<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.call::<T>(op, op.imm)
}

fn call_reg<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.call::<T>(op, core.reg::<T>(op.dst).zx())
}

fn call_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let target = core.load::<T>(op)?;
    core.call::<T>(op, target.zx())
}

fn ret<T: Width>(core: &mut Core, op: &Op) -> Step {
    let pointer = core.gpr[usize::from(RSP)];
    if op.has(attr::LONG)
        && let Some(target) = core.read_cached::<T>(pointer).map(Width::zx)
        && is_canonical(target)
    {
        core.gpr[usize::from(RSP)] = pointer.wrapping_add(T::BYTES).wrapping_add(op.imm);
        core.rip = target;
        return Ok(());
    }
    ret_slow::<T>(core, op)
}

#[cold]
#[inline(never)]
fn ret_slow<T: Width>(core: &mut Core, op: &Op) -> Step {
    if op.has(attr::LONG) {
        let pointer = core.gpr[usize::from(RSP)];
        let target = core.read::<T>(pointer, seg::SS as u8)?.zx();
        core.check_target(op, target)?;
        core.gpr[usize::from(RSP)] = pointer.wrapping_add(T::BYTES).wrapping_add(op.imm);
        core.rip = target;
        return Ok(());
    }
    ret_segmented::<T>(core, op)
}

#[cold]
#[inline(never)]
fn ret_segmented<T: Width>(core: &mut Core, op: &Op) -> Step {
    let mut stack = core.stack(false);
    let target = core.pop_from::<T>(&mut stack)?.zx();
    core.check_target(op, target)?;
    stack.pointer = stack.pointer.wrapping_add(op.imm);
    core.set_stack(stack);
    core.rip = target;
    Ok(())
}

/// LOOP and its kind: `A` is the address size, which counts; `ZERO` is what ZF has to be, if it matters.
fn counted<A: Width>(core: &mut Core, op: &Op, condition: bool) -> Step {
    let count = A::cut(core.reg::<A>(RCX as u8).zx().wrapping_sub(1));
    if count.zx() != 0 && condition {
        core.jump(op, op.imm)?;
    }
    core.set_reg(RCX as u8, count);
    Ok(())
}

fn loop_always<A: Width>(core: &mut Core, op: &Op) -> Step {
    counted::<A>(core, op, true)
}

fn loop_equal<A: Width>(core: &mut Core, op: &Op) -> Step {
    counted::<A>(core, op, core.flags.zf())
}

fn loop_not_equal<A: Width>(core: &mut Core, op: &Op) -> Step {
    counted::<A>(core, op, !core.flags.zf())
}

fn jump_if_zero<A: Width>(core: &mut Core, op: &Op) -> Step {
    if core.reg::<A>(RCX as u8).zx() == 0 { core.jump(op, op.imm) } else { Ok(()) }
}

/// The address size that LOOP and JCXZ count with, from the name of the code.
fn count_width(code: Code) -> u32 {
    match code {
        Code::Jcxz_rel8_16 | Code::Jcxz_rel8_32 => 16,
        Code::Jrcxz_rel8_16 | Code::Jrcxz_rel8_64 => 64,
        Code::Loop_rel8_16_CX | Code::Loop_rel8_32_CX => 16,
        Code::Loope_rel8_16_CX | Code::Loope_rel8_32_CX => 16,
        Code::Loopne_rel8_16_CX | Code::Loopne_rel8_32_CX => 16,
        Code::Loop_rel8_16_RCX | Code::Loop_rel8_64_RCX => 64,
        Code::Loope_rel8_16_RCX | Code::Loope_rel8_64_RCX => 64,
        Code::Loopne_rel8_16_RCX | Code::Loopne_rel8_64_RCX => 64,
        _ => 32,
    }
}

fn jmp_entry(code: Code) -> Option<Entry> {
    use OpCodeOperandKind as Kind;
    match code.op_code().op_kind(0) {
        Kind::br16_1 | Kind::br32_1 | Kind::br64_1 | Kind::br16_2 | Kind::br32_4 | Kind::br64_4 => {
            Entry::one(FAMILY, jmp)
        }
        Kind::r16_or_mem | Kind::r32_or_mem | Kind::r64_or_mem => {
            let width = bits(code, 0);
            Entry::rm(FAMILY, handler_by_width!(width, jmp_reg), handler_by_width!(width, jmp_mem))
        }
        _ => None,
    }
}

fn call_entry(code: Code) -> Option<Entry> {
    match code {
        Code::Call_rel16 => Entry::one(FAMILY, call::<u16>),
        Code::Call_rel32_32 => Entry::one(FAMILY, call::<u32>),
        Code::Call_rel32_64 => Entry::one(FAMILY, call::<u64>),
        Code::Call_rm16 | Code::Call_rm32 | Code::Call_rm64 => {
            let width = bits(code, 0);
            Entry::rm(FAMILY, handler_by_width!(width, call_reg), handler_by_width!(width, call_mem))
        }
        _ => None,
    }
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let width = count_width(code);
    match code.mnemonic() {
        Mnemonic::Jmp => jmp_entry(code),
        Mnemonic::Call => call_entry(code),
        Mnemonic::Ret => match code {
            Code::Retnw | Code::Retnw_imm16 => Entry::one(FAMILY, ret::<u16>),
            Code::Retnd | Code::Retnd_imm16 => Entry::one(FAMILY, ret::<u32>),
            _ => Entry::one(FAMILY, ret::<u64>),
        },
        Mnemonic::Loop => Entry::one(FAMILY, handler_by_width!(width, loop_always)),
        Mnemonic::Loope => Entry::one(FAMILY, handler_by_width!(width, loop_equal)),
        Mnemonic::Loopne => Entry::one(FAMILY, handler_by_width!(width, loop_not_equal)),
        Mnemonic::Jcxz | Mnemonic::Jecxz | Mnemonic::Jrcxz => {
            Entry::one(FAMILY, handler_by_width!(width, jump_if_zero))
        }
        _ if code.is_jcc_short_or_near() => {
            let condition = condition_of(code)?;
            let handler: Handler = with_condition!(condition, jcc);
            Entry::one(FAMILY, handler)
        }
        _ => None,
    }
}
