// SPDX-License-Identifier: AGPL-3.0-or-later
//! Descriptor tables and segment registers: LGDT, LIDT, SGDT, SIDT, LLDT, LTR, SLDT, STR, MOV Sreg, LAR, LSL, VERR, VERW, ARPL,
//! BOUND.

use crate::core_state::{Core, vector};
use crate::flags::{LazyFlags, bit};
use crate::forms::{bits, handler_by_width};
use crate::int::branch::is_canonical;
use crate::op::{Op, Step, Trap, attr};
use crate::segment::{Descriptor, desc, error_of, is_null};
use crate::state::{DescriptorTable, Segment, seg};
use crate::table::Entry;
use crate::width::Width;
use iced_x86::{Code, Mnemonic};

const FAMILY: &str = "tables";
const LDT: u16 = 2;
const TSS_AVAILABLE: u16 = 9;
const TSS_BUSY: u16 = 11;
const TSS16_AVAILABLE: u16 = 1;
/// Bit of a TSS type that says busy.
const BUSY: u16 = 2;
const CALL_GATE: u16 = 12;

fn load_table(core: &mut Core, op: &Op) -> Result<DescriptorTable, Trap> {
    core.check_supervisor()?;
    let long = op.has(attr::LONG);
    let address = core.linear(op, if long { 10 } else { 6 }, false)?;
    let limit = core.read::<u16>(address, op.segment)?;
    let at = address.wrapping_add(2);
    let base = if long { core.read::<u64>(at, op.segment)? } else { u64::from(core.read::<u32>(at, op.segment)?) };
    // With 16-bit operands the base has 24 bits.
    let short = matches!(op.code, Code::Lgdt_m1632_16 | Code::Lidt_m1632_16);
    let base = if short { base & 0xff_ffff } else { base };
    if is_canonical(base) { Ok(DescriptorTable { base, limit }) } else { Err(core.gp0()) }
}

fn lgdt(core: &mut Core, op: &Op) -> Step {
    core.gdtr = load_table(core, op)?;
    Ok(())
}

fn lidt(core: &mut Core, op: &Op) -> Step {
    core.idtr = load_table(core, op)?;
    Ok(())
}

fn store_table(core: &mut Core, op: &Op, table: DescriptorTable) -> Step {
    let long = op.has(attr::LONG);
    let bytes = if long { 10 } else { 6 };
    let address = core.linear(op, bytes, true)?;
    core.probe(address, bytes, crate::mmu::Kind::Write, op.segment)?;
    core.write(address, op.segment, table.limit)?;
    let at = address.wrapping_add(2);
    if long { core.write(at, op.segment, table.base) } else { core.write(at, op.segment, table.base as u32) }
}

fn sgdt(core: &mut Core, op: &Op) -> Step {
    store_table(core, op, core.gdtr)
}

fn sidt(core: &mut Core, op: &Op) -> Step {
    store_table(core, op, core.idtr)
}

/// Reads the r/m16 operand of the selector instructions.
fn selector_operand(core: &mut Core, op: &Op, register: u8) -> Result<u16, Trap> {
    if op.has(attr::MEMORY) { core.load::<u16>(op) } else { Ok(core.reg::<u16>(register)) }
}

/// Stores a selector: 16 bits to memory, zero-extended to wider registers.
fn store_selector(core: &mut Core, op: &Op, selector: u16) -> Step {
    if op.has(attr::MEMORY) {
        return core.store(op, selector);
    }
    match bits(op.code, 0) {
        16 => core.set_reg(op.dst, selector),
        _ => core.set_reg(op.dst, u64::from(selector)),
    }
    Ok(())
}

/// What names descriptors does not exist in real mode.
fn check_protected(core: &mut Core) -> Step {
    if core.in_real_mode() { Err(core.ud()) } else { Ok(()) }
}

fn lldt(core: &mut Core, op: &Op) -> Step {
    check_protected(core)?;
    core.check_supervisor()?;
    let selector = selector_operand(core, op, op.dst)?;
    if is_null(selector) {
        core.ldtr = Segment { selector, ..Segment::default() };
        return Ok(());
    }
    let descriptor = system_load(core, selector, LDT)?;
    core.ldtr = descriptor.system_segment(selector);
    Ok(())
}

fn ltr(core: &mut Core, op: &Op) -> Step {
    check_protected(core)?;
    core.check_supervisor()?;
    let selector = selector_operand(core, op, op.dst)?;
    if is_null(selector) {
        return Err(core.gp0());
    }
    let descriptor = system_load(core, selector, TSS_AVAILABLE)?;
    core.mark_busy(&descriptor)?;
    core.tr = descriptor.system_segment(selector);
    core.tr.attributes |= BUSY;
    Ok(())
}

/// Reads and checks the descriptor for LLDT and LTR.
fn system_load(core: &mut Core, selector: u16, kind: u16) -> Result<Descriptor, Trap> {
    if selector & 4 != 0 {
        return Err(core.fault_code(vector::GP, error_of(selector)));
    }
    let descriptor = core.system_descriptor(selector, vector::GP)?;
    let extended_type = descriptor.high >> 40 & 0x1f;
    let short_tss = kind == TSS_AVAILABLE && descriptor.system_type() == TSS16_AVAILABLE && !core.in_long_mode();
    let right_type = descriptor.system_type() == kind || short_tss;
    if !descriptor.is_system() || !right_type || extended_type != 0 {
        return Err(core.fault_code(vector::GP, error_of(selector)));
    }
    if !descriptor.has(desc::PRESENT) {
        return Err(core.fault_code(vector::NP, error_of(selector)));
    }
    if !is_canonical(descriptor.system_segment(selector).base) {
        return Err(core.fault_code(vector::GP, error_of(selector)));
    }
    Ok(descriptor)
}

fn sldt(core: &mut Core, op: &Op) -> Step {
    check_protected(core)?;
    store_selector(core, op, core.ldtr.selector)
}

fn str_(core: &mut Core, op: &Op) -> Step {
    check_protected(core)?;
    store_selector(core, op, core.tr.selector)
}

fn mov_from_segment(core: &mut Core, op: &Op) -> Step {
    store_selector(core, op, core.segments[usize::from(op.src & 7).min(5)].selector)
}

fn mov_to_segment(core: &mut Core, op: &Op) -> Step {
    let register = usize::from(op.dst);
    if register == seg::CS || register > seg::GS {
        return Err(core.ud());
    }
    let selector = selector_operand(core, op, op.src)?;
    core.load_segment(register, selector)?;
    if register == seg::SS {
        core.hold_interrupts(op);
        core.attention = true;
    }
    Ok(())
}

fn set_zero(core: &mut Core, zero: bool) -> Step {
    let flags = core.flags.bits() & !bit::ZF;
    core.flags = LazyFlags::from_bits(flags | if zero { bit::ZF } else { 0 });
    Ok(())
}

/// The descriptor for LAR, LSL, VERR and VERW: None where the selector names nothing the current privilege may see.
fn visible(core: &mut Core, selector: u16) -> Result<Option<Descriptor>, Trap> {
    check_protected(core)?;
    if is_null(selector) {
        return Ok(None);
    }
    let descriptor = match core.descriptor(selector, vector::GP) {
        Ok(descriptor) => descriptor,
        Err(Trap::Fault) if core.pending_fault.vector == vector::GP => return Ok(None),
        Err(trap) => return Err(trap),
    };
    let lowest = core.cpl().max((selector & 3) as u8);
    let allowed = descriptor.is_conforming_code() || lowest <= descriptor.dpl();
    Ok(allowed.then_some(descriptor))
}

fn lar<T: Width>(core: &mut Core, op: &Op) -> Step {
    let selector = selector_operand(core, op, op.src)?;
    let legacy = !core.in_long_mode();
    let found = visible(core, selector)?.filter(|descriptor| {
        !descriptor.is_system()
            || matches!(descriptor.system_type(), LDT | TSS_AVAILABLE | TSS_BUSY | CALL_GATE)
            || legacy && matches!(descriptor.system_type(), 1 | 3..=5)
    });
    if let Some(descriptor) = found {
        core.set_reg(op.dst, T::cut(descriptor.low >> 32 & 0x00ff_ff00));
    }
    set_zero(core, found.is_some())
}

fn lsl<T: Width>(core: &mut Core, op: &Op) -> Step {
    let selector = selector_operand(core, op, op.src)?;
    let legacy = !core.in_long_mode();
    let found = visible(core, selector)?.filter(|descriptor| {
        !descriptor.is_system()
            || matches!(descriptor.system_type(), LDT | TSS_AVAILABLE | TSS_BUSY)
            || legacy && matches!(descriptor.system_type(), 1 | 3)
    });
    if let Some(descriptor) = found {
        core.set_reg(op.dst, T::cut(descriptor.segment(selector).limit.into()));
    }
    set_zero(core, found.is_some())
}

fn verr(core: &mut Core, op: &Op) -> Step {
    let selector = selector_operand(core, op, op.dst)?;
    let found = visible(core, selector)?.is_some_and(|descriptor| descriptor.is_readable());
    set_zero(core, found)
}

fn verw(core: &mut Core, op: &Op) -> Step {
    let selector = selector_operand(core, op, op.dst)?;
    let found = visible(core, selector)?.is_some_and(|descriptor| descriptor.is_writable_data());
    set_zero(core, found)
}

/// ARPL (not in 64-bit mode): raises the destination's RPL to the source's.
fn arpl(core: &mut Core, op: &Op) -> Step {
    check_protected(core)?;
    let rpl = core.reg::<u16>(op.src) & 3;
    let adjust = |old: u16| if old & 3 < rpl { (old & !3) | rpl } else { old };
    let raised;
    if op.has(attr::MEMORY) {
        // Memory is written only where something changes.
        let old = core.load::<u16>(op)?;
        raised = adjust(old) != old;
        if raised {
            core.store::<u16>(op, adjust(old))?;
        }
    } else {
        let old = core.reg::<u16>(op.dst);
        raised = adjust(old) != old;
        core.set_reg(op.dst, adjust(old));
    }
    set_zero(core, raised)
}

/// BOUND (not in 64-bit mode): #BR where a signed index lies outside a pair of bounds.
fn bound<T: Width>(core: &mut Core, op: &Op) -> Step {
    let address = core.linear(op, T::BYTES * 2, false)?;
    let lower = core.read::<T>(address, op.segment)?.sx() as i64;
    let upper = core.read::<T>(address.wrapping_add(T::BYTES), op.segment)?.sx() as i64;
    let index = core.reg::<T>(op.dst).sx() as i64;
    if index < lower || index > upper { Err(core.fault(vector::BR)) } else { Ok(()) }
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    match code.mnemonic() {
        Mnemonic::Lgdt => Entry::one(FAMILY, lgdt),
        Mnemonic::Lidt => Entry::one(FAMILY, lidt),
        Mnemonic::Sgdt => Entry::one(FAMILY, sgdt),
        Mnemonic::Sidt => Entry::one(FAMILY, sidt),
        Mnemonic::Lldt => Entry::one(FAMILY, lldt),
        Mnemonic::Ltr => Entry::one(FAMILY, ltr),
        Mnemonic::Sldt => Entry::one(FAMILY, sldt),
        Mnemonic::Str => Entry::one(FAMILY, str_),
        Mnemonic::Verr => Entry::one(FAMILY, verr),
        Mnemonic::Verw => Entry::one(FAMILY, verw),
        Mnemonic::Lar => Entry::one(FAMILY, handler_by_width!(bits(code, 0), lar)),
        Mnemonic::Lsl => Entry::one(FAMILY, handler_by_width!(bits(code, 0), lsl)),
        Mnemonic::Arpl => Entry::one(FAMILY, arpl),
        Mnemonic::Bound => Entry::one(FAMILY, handler_by_width!(bits(code, 0), bound)),
        _ => match code {
            Code::Mov_rm16_Sreg | Code::Mov_r32m16_Sreg | Code::Mov_r64m16_Sreg => Entry::one(FAMILY, mov_from_segment),
            Code::Mov_Sreg_rm16 | Code::Mov_Sreg_r32m16 | Code::Mov_Sreg_r64m16 => Entry::one(FAMILY, mov_to_segment),
            _ => None,
        },
    }
}
