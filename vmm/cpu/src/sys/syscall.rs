// SPDX-License-Identifier: AGPL-3.0-or-later
//! SYSCALL, SYSRET, SYSENTER, SYSEXIT, INT n and its kind, SWAPGS.
//!
//! SYSCALL and SYSRET follow AMD where vendors differ: both work in compatibility mode, and SYSRET does not check RCX (the
//! fetch at CPL 3 faults instead). SYSRET loads SS with flat attributes. SYSENTER and SYSEXIT work in long mode, as Intel has it.
//! In protected mode SYSCALL goes to the address in STAR; in real mode there is neither (#UD, SYSENTER and SYSEXIT #GP(0)).

use crate::core_state::{Core, cr, vector};
use crate::flags::bit;
use crate::int::branch::is_canonical;
use crate::op::{Handler, Op, Step, attr};
use crate::segment::{flat_code_attributes, flat_stack_attributes};
use crate::state::{Segment, seg};
use crate::table::Entry;
use iced_x86::Code;

const FAMILY: &str = "syscall";
const RCX: usize = 1;
const RDX: usize = 2;
const RSP: usize = 4;
const R11: usize = 11;

fn flat_code(selector: u16, dpl: u8, long: bool) -> Segment {
    Segment { selector, base: 0, limit: 0xffff_ffff, attributes: flat_code_attributes(dpl, long) }
}

fn flat_stack(selector: u16, dpl: u8) -> Segment {
    Segment { selector, base: 0, limit: 0xffff_ffff, attributes: flat_stack_attributes(dpl) }
}

fn syscall(core: &mut Core, op: &Op) -> Step {
    if core.msrs.efer & cr::EFER_SCE == 0 || core.in_real_mode() {
        return Err(core.ud());
    }
    if !core.in_long_mode() {
        return legacy_syscall(core, op);
    }
    let long = op.has(attr::LONG);
    core.gpr[RCX] = op.next_ip;
    core.gpr[R11] = core.rflags() & !bit::RF;
    core.rip = if long { core.msrs.lstar } else { core.msrs.cstar };
    let selector = (core.msrs.star >> 32) as u16 & !3;
    let flags = core.rflags() & !core.msrs.sfmask & !bit::RF;
    core.set_code_and_stack(flat_code(selector, 0, true), Some(flat_stack(selector.wrapping_add(8), 0)));
    core.set_rflags(flags);
    Ok(())
}

/// Protected mode: the target is in STAR's low half, and of the flags only IF and RF change.
fn legacy_syscall(core: &mut Core, op: &Op) -> Step {
    core.gpr[RCX] = op.next_ip;
    core.rip = core.msrs.star & 0xffff_ffff;
    let selector = (core.msrs.star >> 32) as u16 & !3;
    let flags = core.rflags() & !(bit::IF | bit::RF);
    core.set_code_and_stack(flat_code(selector, 0, false), Some(flat_stack(selector.wrapping_add(8), 0)));
    core.set_rflags(flags);
    Ok(())
}

fn sysret(core: &mut Core, op: &Op) -> Step {
    if core.msrs.efer & cr::EFER_SCE == 0 || core.in_real_mode() {
        return Err(core.ud());
    }
    core.check_supervisor()?;
    if !core.in_long_mode() {
        let base = (core.msrs.star >> 48) as u16;
        core.rip = core.gpr[RCX] & 0xffff_ffff;
        let flags = core.rflags() | bit::IF;
        core.set_code_and_stack(flat_code(base | 3, 3, false), Some(flat_stack(base.wrapping_add(8) | 3, 3)));
        core.set_rflags(flags);
        return Ok(());
    }
    let base = (core.msrs.star >> 48) as u16;
    let long = op.code == Code::Sysretq;
    let (selector, rip) =
        if long { (base.wrapping_add(16), core.gpr[RCX]) } else { (base, core.gpr[RCX] & 0xffff_ffff) };
    let flags = core.gpr[R11] & !(bit::RF | bit::VM);
    core.rip = rip;
    core.set_code_and_stack(flat_code(selector | 3, 3, long), Some(flat_stack(base.wrapping_add(8) | 3, 3)));
    core.set_rflags(flags);
    Ok(())
}

fn sysenter(core: &mut Core, _op: &Op) -> Step {
    let selector = core.msrs.sysenter_cs as u16 & !3;
    if selector == 0 || core.in_real_mode() {
        return Err(core.gp0());
    }
    let long = core.in_long_mode();
    let mask = if long { u64::MAX } else { 0xffff_ffff };
    core.gpr[RSP] = core.msrs.sysenter_esp & mask;
    core.rip = core.msrs.sysenter_eip & mask;
    let flags = core.rflags() & !(bit::IF | bit::VM | bit::RF);
    core.set_code_and_stack(flat_code(selector, 0, long), Some(flat_stack(selector.wrapping_add(8), 0)));
    core.set_rflags(flags);
    Ok(())
}

fn sysexit(core: &mut Core, op: &Op) -> Step {
    let selector = core.msrs.sysenter_cs as u16 & !3;
    let long = op.code == Code::Sysexitq;
    let (rip, rsp) = (core.gpr[RDX], core.gpr[RCX]);
    if selector == 0 || core.in_real_mode() || core.cpl() != 0 || (long && !(is_canonical(rip) && is_canonical(rsp))) {
        return Err(core.gp0());
    }
    let (cs, ss, mask) = if long {
        (selector.wrapping_add(32), selector.wrapping_add(40), u64::MAX)
    } else {
        (selector.wrapping_add(16), selector.wrapping_add(24), 0xffff_ffff)
    };
    core.rip = rip & mask;
    core.gpr[RSP] = rsp & mask;
    core.set_code_and_stack(flat_code(cs | 3, 3, long), Some(flat_stack(ss | 3, 3)));
    Ok(())
}

fn swapgs(core: &mut Core, _op: &Op) -> Step {
    core.check_supervisor()?;
    std::mem::swap(&mut core.segments[seg::GS].base, &mut core.msrs.kernel_gs_base);
    core.update_segment_bases();
    Ok(())
}

fn int_n(core: &mut Core, op: &Op) -> Step {
    core.software_interrupt(op.imm as u8, true, op.next_ip)
}

fn int3(core: &mut Core, op: &Op) -> Step {
    core.software_interrupt(vector::BP, true, op.next_ip)
}

/// INT1 raises #DB without a check of the gate's DPL.
fn int1(core: &mut Core, op: &Op) -> Step {
    core.software_interrupt(vector::DB, false, op.next_ip)
}

fn into(core: &mut Core, op: &Op) -> Step {
    core.rip = op.next_ip;
    if core.flags.of() { core.software_interrupt(vector::OF, true, op.next_ip) } else { Ok(()) }
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let handler: Handler = match code {
        Code::Syscall => syscall,
        Code::Sysretd | Code::Sysretq => sysret,
        Code::Sysenter => sysenter,
        Code::Sysexitd | Code::Sysexitq => sysexit,
        Code::Swapgs => swapgs,
        Code::Int_imm8 => int_n,
        Code::Int3 => int3,
        Code::Int1 => int1,
        Code::Into => into,
        _ => return None,
    };
    Entry::one(FAMILY, handler)
}
