// SPDX-License-Identifier: AGPL-3.0-or-later
//! x87 control instructions: words, environment, whole state. None of them changes the last instruction's pointers.

use super::x87::begin;
use crate::core_state::Core;
use crate::fp::x87::arith;
use crate::fp::x87::f80::F80;
use crate::fp::x87::flag::{ALL, SF};
use crate::mmu::Kind;
use crate::op::{Op, Step, Trap};
use crate::state::X87;

/// FWAIT.
pub fn fwait(core: &mut Core, _op: &Op) -> Step {
    core.check_wait()
}

/// FNOP.
pub fn fnop(core: &mut Core, op: &Op) -> Step {
    begin(core, op)
}

/// FNINIT.
pub fn fninit(core: &mut Core, _op: &Op) -> Step {
    core.check_x87_available()?;
    core.x87.init();
    Ok(())
}

/// FNCLEX: clears the exception flags, SF, ES and B.
pub fn fnclex(core: &mut Core, _op: &Op) -> Step {
    core.check_x87_available()?;
    core.x87.status &= !(ALL | SF);
    core.x87.update_summary();
    Ok(())
}

/// The 8087's and 80287's control instructions that do nothing since the 80387.
pub fn nothing(core: &mut Core, _op: &Op) -> Step {
    core.check_x87_available()
}

/// FLDCW: unmasking a flag that is set makes an exception pending.
pub fn fldcw(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let control = core.load::<u16>(op)?;
    core.x87.set_control(control);
    Ok(())
}

/// FNSTCW.
pub fn fnstcw(core: &mut Core, op: &Op) -> Step {
    core.check_x87_available()?;
    let control = core.x87.control;
    core.store::<u16>(op, control)
}

/// FNSTSW m16.
pub fn fnstsw(core: &mut Core, op: &Op) -> Step {
    core.check_x87_available()?;
    let status = core.x87.status;
    core.store::<u16>(op, status)
}

/// FNSTSW AX.
pub fn fnstsw_ax(core: &mut Core, _op: &Op) -> Step {
    core.check_x87_available()?;
    let status = core.x87.status;
    core.set_reg::<u16>(0, status);
    Ok(())
}

/// FFREE, and FFREEP where `POP`.
pub fn ffree<const POP: bool>(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.raise(0);
    core.x87.free(op.dst);
    if POP {
        core.x87.pop();
    }
    Ok(())
}

/// FINCSTP and FDECSTP: TOP moves by `STEP` modulo 8, C1 is cleared.
pub fn move_top<const STEP: u16>(core: &mut Core, op: &Op) -> Step {
    begin(core, op)?;
    core.x87.raise(0);
    core.x87.set_top(core.x87.top() + STEP);
    Ok(())
}

/// The tag word by what the registers hold: valid 0, zero 1, special 2, empty 3.
fn full_tags(x87: &X87) -> u16 {
    let tag = |register: usize| {
        if x87.tag >> (2 * register) & 3 == 3 {
            return 3;
        }
        let value = F80 { se: x87.sign_exponent[register], sig: x87.significand[register] };
        match arith::examine(value) {
            (true, false, false) => 1,
            (false, true, false) => 0,
            _ => 2,
        }
    };
    (0..8).map(|register| tag(register) << (2 * register)).sum()
}

/// The environment in the 28-byte protected-mode format, or the 14-byte one. Reserved halves are ones, selectors zero.
fn environment<const WIDE: bool>(x87: &X87) -> Vec<u8> {
    let words = [x87.control, x87.status, full_tags(x87)];
    let (ip, data) = (x87.instruction_pointer as u32, x87.data_pointer as u32);
    if !WIDE {
        let fields = [words[0], words[1], words[2], ip as u16, 0, data as u16, 0];
        return fields.iter().flat_map(|field| field.to_le_bytes()).collect();
    }
    let reserved = |word: u16| 0xffff_0000 | u32::from(word);
    let opcode = u32::from(x87.opcode) << 16;
    let fields = [reserved(words[0]), reserved(words[1]), reserved(words[2]), ip, opcode, data, 0xffff_0000];
    fields.iter().flat_map(|field| field.to_le_bytes()).collect()
}

/// Loads an environment from its bytes.
fn set_environment<const WIDE: bool>(x87: &mut X87, bytes: &[u8]) {
    let u16_at = |offset: usize| u16::from_le_bytes([bytes[offset], bytes[offset + 1]]);
    let step = if WIDE { 4 } else { 2 };
    let pointer = |offset: usize| match WIDE {
        true => u64::from(u16_at(offset)) | u64::from(u16_at(offset + 2)) << 16,
        false => u64::from(u16_at(offset)),
    };
    x87.control = (u16_at(0) & 0x1f7f) | 0x40;
    x87.load_status(u16_at(step));
    let tags = u16_at(2 * step);
    x87.tag = (0..8).map(|i| if tags >> (2 * i) & 3 == 3 { 3 << (2 * i) } else { 0 }).sum();
    x87.instruction_pointer = pointer(3 * step);
    x87.opcode = if WIDE { u16_at(18) & 0x7ff } else { 0 };
    x87.data_pointer = pointer(5 * step);
}

const fn environment_bytes(wide: bool) -> usize {
    if wide { 28 } else { 14 }
}

/// Writes bytes to the memory operand after checking all of it, in units of 4 bytes, or 2 in the narrow format (which is what
/// alignment checks look at).
fn store_bytes<const WIDE: bool>(core: &mut Core, op: &Op, bytes: &[u8]) -> Step {
    let address = core.linear(op, bytes.len() as u64, true)?;
    core.probe(address, bytes.len() as u64, Kind::Write, op.segment)?;
    let unit = if WIDE { 4 } else { 2 };
    for (i, piece) in bytes.chunks_exact(unit).enumerate() {
        let at = address.wrapping_add((unit * i) as u64);
        match *piece {
            [a, b, c, d] => core.write::<u32>(at, op.segment, u32::from_le_bytes([a, b, c, d]))?,
            [a, b] => core.write::<u16>(at, op.segment, u16::from_le_bytes([a, b]))?,
            _ => {}
        }
    }
    Ok(())
}

/// Reads the first `used` bytes of the memory operand, in the same units.
fn load_bytes<const N: usize, const WIDE: bool>(core: &mut Core, op: &Op, used: usize) -> Result<[u8; N], Trap> {
    let address = core.linear(op, used as u64, false)?;
    core.probe(address, used as u64, Kind::Read, op.segment)?;
    let mut bytes = [0; N];
    let unit = if WIDE { 4 } else { 2 };
    for (i, piece) in bytes[..used].chunks_exact_mut(unit).enumerate() {
        let at = address.wrapping_add((unit * i) as u64);
        if WIDE {
            piece.copy_from_slice(&core.read::<u32>(at, op.segment)?.to_le_bytes());
        } else {
            piece.copy_from_slice(&core.read::<u16>(at, op.segment)?.to_le_bytes());
        }
    }
    Ok(bytes)
}

/// FNSTENV: then all exceptions are masked.
pub fn fnstenv<const WIDE: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_x87_available()?;
    let bytes = environment::<WIDE>(&core.x87);
    store_bytes::<WIDE>(core, op, &bytes)?;
    let control = core.x87.control | ALL;
    core.x87.set_control(control);
    Ok(())
}

/// FLDENV.
pub fn fldenv<const WIDE: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let bytes = load_bytes::<28, WIDE>(core, op, environment_bytes(WIDE))?;
    set_environment::<WIDE>(&mut core.x87, &bytes);
    Ok(())
}

/// FNSAVE: environment and registers in stack order; then the unit is initialized.
pub fn fnsave<const WIDE: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_x87_available()?;
    let mut bytes = environment::<WIDE>(&core.x87);
    for i in 0..8 {
        let value = core.x87.st(i);
        bytes.extend_from_slice(&value.sig.to_le_bytes());
        bytes.extend_from_slice(&value.se.to_le_bytes());
    }
    store_bytes::<WIDE>(core, op, &bytes)?;
    core.x87.init();
    Ok(())
}

/// FRSTOR.
pub fn frstor<const WIDE: bool>(core: &mut Core, op: &Op) -> Step {
    core.check_x87()?;
    let start = environment_bytes(WIDE);
    let bytes = load_bytes::<108, WIDE>(core, op, start + 80)?;
    set_environment::<WIDE>(&mut core.x87, &bytes);
    for i in 0..8 {
        let register = core.x87.physical(i as u8);
        let slot = &bytes[start + 10 * i..][..10];
        let mut sig = [0; 8];
        sig.copy_from_slice(&slot[..8]);
        core.x87.significand[register] = u64::from_le_bytes(sig);
        core.x87.sign_exponent[register] = u16::from_le_bytes([slot[8], slot[9]]);
    }
    Ok(())
}
