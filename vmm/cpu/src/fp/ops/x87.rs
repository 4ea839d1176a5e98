// SPDX-License-Identifier: AGPL-3.0-or-later
//! x87 arithmetic, comparison, moves between registers, loads and stores.

use crate::core_state::Core;
use crate::flags::{LazyFlags, bit};
use crate::fp::soft::Rounding;
use crate::fp::soft::sse::{F32, F64};
use crate::fp::x87::arith::{self, Operation};
use crate::fp::x87::f80::{Control, F80, Outcome};
use crate::fp::x87::flag::{C0, C2, C3};
use crate::fp::x87::memory::{self, UNORDERED};
use crate::fp::x87::stack::UNDERFLOW;
use crate::mmu::Kind;
use crate::op::{Op, Step, Trap, attr};
use crate::width::{Mem, Width};

/// Records the instruction as the last one that is not a control instruction. The decoder puts its 11-bit opcode into `imm`.
#[inline(always)]
pub fn note(core: &mut Core, op: &Op) {
    core.x87.instruction_pointer = op.ip();
    core.x87.opcode = op.imm as u16 & 0x7ff;
    if op.has(attr::MEMORY) {
        core.x87.data_pointer = core.effective(op);
    }
}

/// The checks of a waiting instruction without memory operand, and its note.
#[inline(always)]
pub fn begin(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    note(core, op);
    Ok(())
}

/// The operation of a ModRM opcode extension; 2 and 3 are comparisons.
const fn operation(extension: u8) -> Operation {
    match extension {
        0 => Operation::Add,
        1 => Operation::Mul,
        4 => Operation::Sub,
        5 => Operation::SubReversed,
        6 => Operation::Div,
        _ => Operation::DivReversed,
    }
}

/// FADD and its like on registers.
pub fn registers<const EXTENSION: u8, const POP: bool>(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.replace(op.dst, op.src, POP, |a, b, control| arith::operate(operation(EXTENSION), a, b, false, control));
    Ok(())
}

/// A memory operand in one of four formats.
pub trait Operand {
    /// The value, and whether it was denormal.
    fn fetch(core: &mut Core, op: &Op) -> Result<(F80, bool), Trap>;
}

/// m32fp
pub struct Single;
/// m64fp
pub struct Double;
/// m16int
pub struct Word;
/// m32int
pub struct Dword;

impl Operand for Single {
    #[inline(always)]
    fn fetch(core: &mut Core, op: &Op) -> Result<(F80, bool), Trap> {
        Ok(memory::widen::<F32>(u64::from(core.load::<u32>(op)?)))
    }
}

impl Operand for Double {
    #[inline(always)]
    fn fetch(core: &mut Core, op: &Op) -> Result<(F80, bool), Trap> {
        Ok(memory::widen::<F64>(core.load::<u64>(op)?))
    }
}

impl Operand for Word {
    #[inline(always)]
    fn fetch(core: &mut Core, op: &Op) -> Result<(F80, bool), Trap> {
        Ok((F80::from_i64(core.load::<u16>(op)?.sx() as i64), false))
    }
}

impl Operand for Dword {
    #[inline(always)]
    fn fetch(core: &mut Core, op: &Op) -> Result<(F80, bool), Trap> {
        Ok((F80::from_i64(core.load::<u32>(op)?.sx() as i64), false))
    }
}

/// FADD and its like with a memory operand; FCOM and FCOMP too.
pub fn with_memory<O: Operand, const EXTENSION: u8>(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let (b, denormal) = O::fetch(core, op)?;
    note(core, op);
    if EXTENSION == 2 || EXTENSION == 3 {
        compare(core, None, b, true, denormal, EXTENSION - 2);
        return Ok(());
    }
    core.x87.replace(0, 0, false, |a, _, control| arith::operate(operation(EXTENSION), a, b, denormal, control));
    Ok(())
}

/// Compares ST(0) with `b` (from register `source`, if given) into the condition codes, then pops.
fn compare(core: &mut Core, source: Option<u8>, b: F80, quiet_invalid: bool, denormal: bool, pops: u8) {
    let x87 = &mut core.x87;
    let outcome = if x87.empty(0) || source.is_some_and(|source| x87.empty(source)) {
        Outcome { value: UNORDERED, flags: UNDERFLOW }
    } else {
        memory::compare(x87.st(0), b, quiet_invalid, denormal)
    };
    let permitted = x87.raise(outcome.flags);
    x87.set_codes(outcome.value);
    if permitted {
        for _ in 0..pops {
            x87.pop();
        }
    }
}

/// FCOM, FCOMP (and FUCOM, FUCOMP where `QUIET_INVALID` is false) on registers.
pub fn fcom<const QUIET_INVALID: bool, const POPS: u8>(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let b = core.x87.st(op.src);
    compare(core, Some(op.src), b, QUIET_INVALID, false, POPS);
    Ok(())
}

/// FCOMPP and FUCOMPP.
pub fn fcompp<const QUIET_INVALID: bool>(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let b = core.x87.st(1);
    compare(core, Some(1), b, QUIET_INVALID, false, 2);
    Ok(())
}

/// FTST.
pub fn ftst(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    compare(core, None, F80::ZERO, true, false, 0);
    Ok(())
}

/// FCOMI, FUCOMI and their popping forms: into RFLAGS; OF, SF and AF are cleared.
pub fn fcomi<const QUIET_INVALID: bool, const POP: bool>(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let x87 = &mut core.x87;
    let (codes, permitted) = if x87.empty(0) || x87.empty(op.src) {
        (UNORDERED, x87.raise(UNDERFLOW))
    } else {
        let outcome = memory::compare(x87.st(0), x87.st(op.src), QUIET_INVALID, false);
        (outcome.value, x87.raise_only(outcome.flags))
    };
    if permitted && POP {
        x87.pop();
    }
    let flag = |code: u16, bit: u64| if codes & code != 0 { bit } else { 0 };
    core.flags = LazyFlags::from_bits(flag(C0, bit::CF) | flag(C2, bit::PF) | flag(C3, bit::ZF));
    Ok(())
}

/// FLD m32fp, m64fp.
pub fn fld_single(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let value = core.load::<u32>(op)?;
    note(core, op);
    core.x87.push(memory::load_single(value));
    Ok(())
}

/// FLD m64fp.
pub fn fld_double(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let value = core.load::<u64>(op)?;
    note(core, op);
    core.x87.push(memory::load_double(value));
    Ok(())
}

/// The ten bytes of an m80 operand.
fn load_ten(core: &mut Core, op: &Op) -> Result<(u64, u16), Trap> {
    let address = core.linear(op, 10, false)?;
    core.probe(address, 10, Kind::Read, op.segment)?;
    let low = core.read::<u64>(address, op.segment)?;
    let high = core.read::<u16>(address.wrapping_add(8), op.segment)?;
    Ok((low, high))
}

fn store_ten(core: &mut Core, op: &Op, low: u64, high: u16) -> Step {
    let address = core.linear(op, 10, true)?;
    // The significand is stored first, also when the rest faults.
    core.write::<u64>(address, op.segment, low)?;
    core.write::<u16>(address.wrapping_add(8), op.segment, high)
}

/// FLD m80fp: no exception but a stack overflow.
pub fn fld_extended(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let (sig, se) = load_ten(core, op)?;
    note(core, op);
    core.x87.push(Outcome::exact(F80 { se, sig }));
    Ok(())
}

/// FBLD.
pub fn fbld(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let (low, high) = load_ten(core, op)?;
    note(core, op);
    core.x87.push(Outcome::exact(memory::from_decimal(u128::from(low) | u128::from(high) << 64)));
    Ok(())
}

/// FILD.
pub fn fild<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let value = core.load::<T>(op)?.sx() as i64;
    note(core, op);
    core.x87.push(Outcome::exact(F80::from_i64(value)));
    Ok(())
}

/// FLD ST(i).
pub fn fld_register(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let x87 = &mut core.x87;
    if x87.empty(op.dst) {
        if x87.raise(UNDERFLOW) {
            x87.push_over(F80::DEFAULT_NAN);
        }
    } else {
        x87.push(Outcome::exact(x87.st(op.dst)));
    }
    Ok(())
}

/// The outcome of converting ST(0) for a store; `indefinite` for an empty one.
fn converted<T>(core: &Core, indefinite: T, convert: impl FnOnce(F80, Control) -> Outcome<T>) -> Outcome<T> {
    if core.x87.empty(0) {
        return Outcome { value: indefinite, flags: UNDERFLOW };
    }
    convert(core.x87.st(0), core.x87.environment())
}

/// Stores a converted ST(0) unless an unmasked exception forbids it, then pops if asked.
fn finish_store<T: Copy>(
    core: &mut Core,
    op: &Op,
    outcome: Outcome<T>,
    pop: bool,
    store: impl FnOnce(&mut Core, T) -> Step,
) -> Step {
    let permitted = core.x87.permits_store(outcome.flags);
    if permitted {
        store(core, outcome.value)?;
    }
    note(core, op);
    core.x87.raise(outcome.flags);
    if permitted && pop {
        core.x87.pop();
    }
    Ok(())
}

/// FST, FSTP m32fp.
pub fn fst_single<const POP: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let outcome = converted(core, 0xffc0_0000, memory::store::<F32>);
    finish_store(core, op, outcome, POP, |core, value| core.store::<u32>(op, value as u32))
}

/// FST, FSTP m64fp.
pub fn fst_double<const POP: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let outcome = converted(core, 0xfff8_0000_0000_0000, memory::store::<F64>);
    finish_store(core, op, outcome, POP, |core, value| core.store::<u64>(op, value))
}

/// FSTP m80fp.
pub fn fstp_extended(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let outcome = converted(core, F80::DEFAULT_NAN, |a, _| Outcome::exact(a));
    finish_store(core, op, outcome, true, |core, value| store_ten(core, op, value.sig, value.se))
}

/// FBSTP.
pub fn fbstp(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let outcome = converted(core, memory::DECIMAL_INDEFINITE, memory::to_decimal);
    finish_store(core, op, outcome, true, |core, value| store_ten(core, op, value as u64, (value >> 64) as u16))
}

/// FIST, FISTP, and FISTTP where `TRUNCATE`.
pub fn fist<T: Width + Mem, const TRUNCATE: bool, const POP: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let outcome = converted(core, i64::MIN >> (64 - T::BITS), |a, control| {
        let rounding = if TRUNCATE { Rounding::Zero } else { control.rounding() };
        memory::to_integer(a, T::BITS, rounding)
    });
    finish_store(core, op, outcome, POP, |core, value| core.store::<T>(op, T::cut(value as u64)))
}

/// FST, FSTP ST(i).
pub fn fst_register<const POP: bool>(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let outcome = converted(core, F80::DEFAULT_NAN, |a, _| Outcome::exact(a));
    let x87 = &mut core.x87;
    if x87.raise(outcome.flags) {
        x87.set_st(op.dst, outcome.value);
        if POP {
            x87.pop();
        }
    }
    Ok(())
}

/// FSTPNCE: FSTP ST(i) without a stack fault; an empty register is popped and not copied.
pub fn fstpnce(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let x87 = &mut core.x87;
    x87.raise(0);
    if !x87.empty(0) {
        let value = x87.st(0);
        x87.set_st(op.dst, value);
    }
    x87.pop();
    Ok(())
}

/// FXCH: an empty register counts as the default NaN once the stack fault is masked.
pub fn fxch(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let x87 = &mut core.x87;
    let contents = |i: u8| if x87.empty(i) { F80::DEFAULT_NAN } else { x87.st(i) };
    let (a, b) = (contents(0), contents(op.src));
    let flags = if x87.empty(0) || x87.empty(op.src) { UNDERFLOW } else { 0 };
    if x87.raise(flags) {
        x87.set_st(0, b);
        x87.set_st(op.src, a);
    }
    Ok(())
}

/// FCMOVcc: `CONDITION` is 0 for B, 1 for E, 2 for BE, 3 for U; `NOT` inverts it.
pub fn fcmov<const CONDITION: u8, const NOT: bool>(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    let holds = match CONDITION {
        0 => core.flags.cf(),
        1 => core.flags.zf(),
        2 => core.flags.cf() || core.flags.zf(),
        _ => core.flags.pf(),
    };
    let x87 = &mut core.x87;
    if x87.empty(0) || x87.empty(op.src) {
        if x87.raise(UNDERFLOW) {
            x87.set_st(0, F80::DEFAULT_NAN);
        }
    } else if holds != NOT {
        let value = x87.st(op.src);
        x87.set_st(0, value);
    }
    Ok(())
}
