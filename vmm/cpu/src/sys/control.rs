// SPDX-License-Identifier: AGPL-3.0-or-later
//! Control and debug registers, and the instructions that change what the CPU does next: CLI, STI, HLT, CLTS, STAC, CLAC.

use crate::core_state::{Core, cr, vector};
use crate::exit::Exit;
use crate::flags::bit;
use crate::memory::PHYSICAL_BITS;
use crate::op::{Handler, Op, Step, attr};
use crate::segment::desc;
use crate::state::seg;
use crate::table::Entry;
use iced_x86::Code;

const FAMILY: &str = "control";
const CR0_WRITABLE: u64 = cr::CR0_PE
    | cr::CR0_MP
    | cr::CR0_EM
    | cr::CR0_TS
    | cr::CR0_NE
    | cr::CR0_WP
    | cr::CR0_AM
    | cr::CR0_NW
    | cr::CR0_CD
    | cr::CR0_PG;
const DR6_FIXED: u64 = 0xffff_0ff0;
const DR6_WRITABLE: u64 = 0xe00f;
const DR7_FIXED: u64 = 0x400;
const DR7_WRITABLE: u64 = 0xffff_23ff;
/// General detect: any access to a debug register raises #DB.
const DR7_GD: u64 = 1 << 13;
const DR6_BD: u64 = 1 << 13;

impl Core {
    /// #GP(0) above CPL 0.
    #[inline(always)]
    pub fn check_supervisor(&mut self) -> Step {
        if self.cpl() == 0 { Ok(()) } else { Err(self.gp0()) }
    }

    fn write_cr0(&mut self, value: u64) -> Step {
        let pages_without_protection = value & cr::CR0_PG != 0 && value & cr::CR0_PE == 0;
        let nw_without_cd = value & cr::CR0_NW != 0 && value & cr::CR0_CD == 0;
        let leaves_paging = value & cr::CR0_PG == 0 && self.in_long_code();
        let enters_long = value & !self.cr0 & cr::CR0_PG != 0 && self.msrs.efer & cr::EFER_LME != 0;
        let cannot_enter = self.cr4 & cr::CR4_PAE == 0 || self.segments[seg::CS].attributes & desc::LONG != 0;
        let wrong = pages_without_protection || nw_without_cd || leaves_paging || (enters_long && cannot_enter);
        if value >> 32 != 0 || wrong {
            return Err(self.gp0());
        }
        let changed = self.cr0 ^ value;
        self.cr0 = (value & CR0_WRITABLE) | cr::CR0_ET;
        if changed & cr::CR0_PG != 0 {
            let active = self.cr0 & cr::CR0_PG != 0 && self.msrs.efer & cr::EFER_LME != 0;
            self.msrs.efer = (self.msrs.efer & !cr::EFER_LMA) | if active { cr::EFER_LMA } else { 0 };
            self.attention = true;
        }
        if changed & (cr::CR0_PG | cr::CR0_WP | cr::CR0_PE) != 0 {
            self.flush_translations();
        }
        self.update_privilege();
        Ok(())
    }

    fn write_cr3(&mut self, value: u64) -> Step {
        if value >> PHYSICAL_BITS != 0 {
            return Err(self.gp0());
        }
        if self.cr3 != value {
            self.cr3 = value;
            self.switch_space();
        }
        Ok(())
    }

    fn write_cr4(&mut self, value: u64) -> Step {
        let leaves_pae = value & cr::CR4_PAE == 0 && self.msrs.efer & cr::EFER_LMA != 0;
        if value & !cr::CR4_OFFERED != 0 || leaves_pae {
            return Err(self.gp0());
        }
        let changed = self.cr4 ^ value;
        self.cr4 = value;
        if changed & (cr::CR4_SMEP | cr::CR4_SMAP | cr::CR4_PAE | cr::CR4_PSE) != 0 {
            self.flush_translations();
        }
        Ok(())
    }

    fn write_cr8(&mut self, value: u64) -> Step {
        if value > 15 {
            return Err(self.gp0());
        }
        self.cr8 = value;
        self.boundary_exit = Some(Exit::TprWrite);
        self.attention = true;
        Ok(())
    }

    /// CR4.DE decides what DR4 and DR5 are; DR7.GD traps every access.
    fn debug_register(&mut self, number: u8) -> Result<u8, crate::op::Trap> {
        self.check_supervisor()?;
        let aliased = number == 4 || number == 5;
        if number > 7 || (aliased && self.cr4 & cr::CR4_DE != 0) {
            return Err(self.ud());
        }
        if self.dr7 & DR7_GD != 0 {
            self.dr6 |= DR6_BD;
            return Err(self.fault(vector::DB));
        }
        Ok(if aliased { number + 2 } else { number })
    }
}

fn mov_from_cr(core: &mut Core, op: &Op) -> Step {
    core.check_supervisor()?;
    let value = match op.src {
        0 => core.cr0,
        2 => core.cr2,
        3 => core.cr3,
        4 => core.cr4,
        8 => core.cr8,
        _ => return Err(core.ud()),
    };
    core.gpr[usize::from(op.dst & 15)] = if op.has(attr::LONG) { value } else { value & 0xffff_ffff };
    Ok(())
}

fn mov_to_cr(core: &mut Core, op: &Op) -> Step {
    core.check_supervisor()?;
    let value = core.gpr[usize::from(op.src & 15)];
    let value = if op.has(attr::LONG) { value } else { value & 0xffff_ffff };
    match op.dst {
        0 => core.write_cr0(value),
        2 => {
            core.cr2 = value;
            Ok(())
        }
        3 => core.write_cr3(value),
        4 => core.write_cr4(value),
        8 => core.write_cr8(value),
        _ => Err(core.ud()),
    }
}

fn mov_from_dr(core: &mut Core, op: &Op) -> Step {
    let number = core.debug_register(op.src)?;
    let value = match number {
        0..=3 => core.dr[usize::from(number)],
        6 => (core.dr6 & DR6_WRITABLE) | DR6_FIXED,
        _ => core.dr7 | DR7_FIXED,
    };
    core.gpr[usize::from(op.dst & 15)] = if op.has(attr::LONG) { value } else { value & 0xffff_ffff };
    Ok(())
}

fn mov_to_dr(core: &mut Core, op: &Op) -> Step {
    let number = core.debug_register(op.dst)?;
    let value = core.gpr[usize::from(op.src & 15)];
    let value = if op.has(attr::LONG) { value } else { value & 0xffff_ffff };
    if number >= 6 && value >> 32 != 0 {
        return Err(core.gp0());
    }
    match number {
        0..=3 => core.dr[usize::from(number)] = value,
        6 => core.dr6 = (value & DR6_WRITABLE) | DR6_FIXED,
        _ => core.dr7 = (value & DR7_WRITABLE) | DR7_FIXED,
    }
    core.attention = true;
    core.update_privilege();
    Ok(())
}

fn smsw_reg(core: &mut Core, op: &Op) -> Step {
    // A 16-bit destination keeps its upper part; wider ones get CR0's low bits zero-extended.
    match op.code {
        Code::Smsw_rm16 => core.set_reg(op.dst, core.cr0 as u16),
        _ => core.set_reg(op.dst, core.cr0 & 0xffff_ffff),
    }
    Ok(())
}

fn smsw_mem(core: &mut Core, op: &Op) -> Step {
    core.store(op, core.cr0 as u16)
}

/// LMSW changes PE, MP, EM and TS, and cannot clear PE.
fn load_msw(core: &mut Core, value: u16) -> Step {
    let low = u64::from(value) & 0xf | core.cr0 & cr::CR0_PE;
    core.write_cr0((core.cr0 & !0xf) | low)
}

fn lmsw_reg(core: &mut Core, op: &Op) -> Step {
    core.check_supervisor()?;
    load_msw(core, core.reg::<u16>(op.dst))
}

fn lmsw_mem(core: &mut Core, op: &Op) -> Step {
    core.check_supervisor()?;
    let value = core.load::<u16>(op)?;
    load_msw(core, value)
}

fn clts(core: &mut Core, _op: &Op) -> Step {
    core.check_supervisor()?;
    core.cr0 &= !cr::CR0_TS;
    Ok(())
}

/// Ring 3 above IOPL with CR4.PVI works on the virtual interrupt flag instead.
fn has_virtual_interrupts(core: &Core) -> bool {
    core.cr4 & cr::CR4_PVI != 0 && core.cpl() == 3
}

fn cli(core: &mut Core, _op: &Op) -> Step {
    if u64::from(core.cpl()) <= core.iopl() {
        core.system_flags &= !bit::IF;
        return Ok(());
    }
    if has_virtual_interrupts(core) {
        core.system_flags &= !bit::VIF;
        return Ok(());
    }
    Err(core.gp0())
}

/// Interrupts stay held for one instruction if they were off.
fn sti(core: &mut Core, op: &Op) -> Step {
    if u64::from(core.cpl()) > core.iopl() {
        if has_virtual_interrupts(core) && core.system_flags & bit::VIP == 0 {
            core.system_flags |= bit::VIF;
            return Ok(());
        }
        return Err(core.gp0());
    }
    if core.system_flags & bit::IF == 0 {
        core.system_flags |= bit::IF;
        core.hold_interrupts(op);
        // Nobody else sees that interrupts are on again.
        core.attention |= core.window_wanted;
    }
    Ok(())
}

fn hlt(core: &mut Core, _op: &Op) -> Step {
    core.check_supervisor()?;
    core.halted = true;
    core.attention = true;
    Ok(())
}

fn set_access(core: &mut Core, on: bool) -> Step {
    if core.cpl() != 0 {
        return Err(core.ud());
    }
    core.system_flags = (core.system_flags & !bit::AC) | if on { bit::AC } else { 0 };
    core.update_privilege();
    Ok(())
}

fn stac(core: &mut Core, _op: &Op) -> Step {
    set_access(core, true)
}

fn clac(core: &mut Core, _op: &Op) -> Step {
    set_access(core, false)
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let handler: Handler = match code {
        Code::Mov_r32_cr | Code::Mov_r64_cr => mov_from_cr,
        Code::Mov_cr_r32 | Code::Mov_cr_r64 => mov_to_cr,
        Code::Mov_r32_dr | Code::Mov_r64_dr => mov_from_dr,
        Code::Mov_dr_r32 | Code::Mov_dr_r64 => mov_to_dr,
        Code::Smsw_rm16 | Code::Smsw_r32m16 | Code::Smsw_r64m16 => return Entry::rm(FAMILY, smsw_reg, smsw_mem),
        Code::Lmsw_rm16 | Code::Lmsw_r32m16 | Code::Lmsw_r64m16 => return Entry::rm(FAMILY, lmsw_reg, lmsw_mem),
        Code::Clts => clts,
        Code::Cli => cli,
        Code::Sti => sti,
        Code::Hlt => hlt,
        Code::Stac => stac,
        Code::Clac => clac,
        _ => return None,
    };
    Entry::one(FAMILY, handler)
}
