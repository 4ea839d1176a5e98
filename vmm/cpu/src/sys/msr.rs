// SPDX-License-Identifier: AGPL-3.0-or-later
//! RDMSR and WRMSR. Registers of the CPU model are kept here; the local APIC's and the platform's leave as exits.

use crate::core_state::{Core, cr};
use crate::exit::Exit;
use crate::int::branch::is_canonical;
use crate::op::{Handler, Op, Step, Trap};
use crate::state::seg;
use crate::table::Entry;
use iced_x86::Code;

const FAMILY: &str = "msr";

#[allow(missing_docs)]
mod index {
    pub const TSC: u32 = 0x10;
    pub const PATCH_LEVEL: u32 = 0x8b;
    pub const MTRR_CAP: u32 = 0xfe;
    pub const SYSENTER_CS: u32 = 0x174;
    pub const SYSENTER_ESP: u32 = 0x175;
    pub const SYSENTER_EIP: u32 = 0x176;
    pub const MCG_CAP: u32 = 0x179;
    pub const MCG_STATUS: u32 = 0x17a;
    pub const PAT: u32 = 0x277;
    pub const MTRR_DEF_TYPE: u32 = 0x2ff;
    pub const EFER: u32 = 0xc000_0080;
    pub const STAR: u32 = 0xc000_0081;
    pub const LSTAR: u32 = 0xc000_0082;
    pub const CSTAR: u32 = 0xc000_0083;
    pub const SFMASK: u32 = 0xc000_0084;
    pub const FS_BASE: u32 = 0xc000_0100;
    pub const GS_BASE: u32 = 0xc000_0101;
    pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
    pub const TSC_AUX: u32 = 0xc000_0103;
    pub const SYSCFG: u32 = 0xc001_0010;
    pub const HWCR: u32 = 0xc001_0015;
    pub const DE_CFG: u32 = 0xc001_1029;
}

/// Memory types that MTRRs and PAT may name.
const MTRR_TYPES: [u64; 5] = [0, 1, 4, 5, 6];
const PAT_TYPES: [u64; 6] = [0, 1, 4, 5, 6, 7];
/// MTRRs enabled (E), fixed ranges enabled (FE), default type.
const MTRR_DEF_TYPE_BITS: u64 = 0xcff;
/// LFENCE is dispatch serializing: true here by nature, so the bit reads as set.
const DE_CFG_VALUE: u64 = 1 << 1;
/// Highest microcode level, so that no guest asks for a newer one.
const PATCH_LEVEL_VALUE: u64 = 0x0830_107f;

impl Core {
    /// The TSC before the operation that is executing.
    pub fn tsc_at(&self, op: &Op) -> u64 {
        self.tsc_base.tsc_at(self.count_at(op)).wrapping_add(self.msrs.tsc_offset)
    }

    fn read_msr(&mut self, op: &Op, msr: u32) -> Result<u64, Trap> {
        Ok(match msr {
            index::TSC => self.tsc_at(op),
            index::PATCH_LEVEL => PATCH_LEVEL_VALUE,
            // No variable or fixed ranges, no write combining.
            index::MTRR_CAP => 0,
            index::MTRR_DEF_TYPE => self.msrs.mtrr_def_type,
            index::MCG_CAP | index::MCG_STATUS | index::SYSCFG | index::HWCR => 0,
            index::DE_CFG => DE_CFG_VALUE,
            index::SYSENTER_CS => self.msrs.sysenter_cs,
            index::SYSENTER_ESP => self.msrs.sysenter_esp,
            index::SYSENTER_EIP => self.msrs.sysenter_eip,
            index::PAT => self.msrs.pat,
            index::EFER => self.msrs.efer,
            index::STAR => self.msrs.star,
            index::LSTAR => self.msrs.lstar,
            index::CSTAR => self.msrs.cstar,
            index::SFMASK => self.msrs.sfmask,
            index::FS_BASE => self.segments[seg::FS].base,
            index::GS_BASE => self.segments[seg::GS].base,
            index::KERNEL_GS_BASE => self.msrs.kernel_gs_base,
            index::TSC_AUX => self.msrs.tsc_aux,
            _ => return self.outside(Exit::MsrRead { index: msr }),
        })
    }

    fn write_msr(&mut self, op: &Op, msr: u32, value: u64) -> Step {
        let valid = match msr {
            index::LSTAR | index::CSTAR | index::FS_BASE | index::GS_BASE | index::KERNEL_GS_BASE => {
                is_canonical(value)
            }
            index::SYSENTER_ESP | index::SYSENTER_EIP => is_canonical(value),
            index::SFMASK | index::TSC_AUX => value >> 32 == 0,
            index::PAT => value.to_le_bytes().iter().all(|kind| PAT_TYPES.contains(&u64::from(*kind))),
            index::MTRR_DEF_TYPE => value & !MTRR_DEF_TYPE_BITS == 0 && MTRR_TYPES.contains(&(value & 0xff)),
            index::MTRR_CAP | index::MCG_CAP => false,
            index::EFER => return self.write_efer(value),
            _ => true,
        };
        if !valid {
            return Err(self.gp0());
        }
        match msr {
            index::TSC => self.msrs.tsc_offset = value.wrapping_sub(self.tsc_base.tsc_at(self.count_at(op))),
            index::SYSENTER_CS => self.msrs.sysenter_cs = value & 0xffff_ffff,
            index::SYSENTER_ESP => self.msrs.sysenter_esp = value,
            index::SYSENTER_EIP => self.msrs.sysenter_eip = value,
            index::PAT => self.msrs.pat = value,
            index::MTRR_DEF_TYPE => self.msrs.mtrr_def_type = value,
            index::STAR => self.msrs.star = value,
            index::LSTAR => self.msrs.lstar = value,
            index::CSTAR => self.msrs.cstar = value,
            index::SFMASK => self.msrs.sfmask = value,
            index::FS_BASE => self.segments[seg::FS].base = value,
            index::GS_BASE => self.segments[seg::GS].base = value,
            index::KERNEL_GS_BASE => self.msrs.kernel_gs_base = value,
            index::TSC_AUX => self.msrs.tsc_aux = value,
            // Accepted without effect.
            index::PATCH_LEVEL | index::MCG_STATUS | index::SYSCFG | index::HWCR | index::DE_CFG => {}
            _ => {
                self.outside(Exit::MsrWrite { index: msr, value })?;
            }
        }
        self.update_segment_bases();
        Ok(())
    }

    /// LMA cannot be written, and LME not while paging is on.
    fn write_efer(&mut self, value: u64) -> Step {
        let old = self.msrs.efer;
        let changes_mode = (value ^ old) & cr::EFER_LME != 0 && self.cr0 & cr::CR0_PG != 0;
        if value & !cr::EFER_OFFERED != 0 || changes_mode {
            return Err(self.gp0());
        }
        self.msrs.efer = (value & !cr::EFER_LMA) | (old & cr::EFER_LMA);
        self.flush_translations();
        Ok(())
    }
}

fn rdmsr(core: &mut Core, op: &Op) -> Step {
    if core.cpl() != 0 {
        return Err(core.gp0());
    }
    let value = core.read_msr(op, core.gpr[1] as u32)?;
    core.set_reg(0, value as u32);
    core.set_reg(2, (value >> 32) as u32);
    Ok(())
}

fn wrmsr(core: &mut Core, op: &Op) -> Step {
    if core.cpl() != 0 {
        return Err(core.gp0());
    }
    let value = u64::from(core.reg::<u32>(0)) | u64::from(core.reg::<u32>(2)) << 32;
    core.write_msr(op, core.gpr[1] as u32, value)
}

fn rdtsc(core: &mut Core, op: &Op) -> Step {
    if core.cr4 & cr::CR4_TSD != 0 && core.cpl() != 0 {
        return Err(core.gp0());
    }
    let value = core.tsc_at(op);
    core.set_reg(0, value as u32);
    core.set_reg(2, (value >> 32) as u32);
    Ok(())
}

/// There are no performance counters.
fn rdpmc(core: &mut Core, _op: &Op) -> Step {
    Err(core.gp0())
}

fn cpuid(core: &mut Core, _op: &Op) -> Step {
    let leaf = crate::model::cpuid(core.gpr[0] as u32, core.gpr[1] as u32, core.topology);
    for (register, value) in [0u8, 3, 1, 2].into_iter().zip(leaf) {
        core.set_reg(register, value);
    }
    Ok(())
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let handler: Handler = match code {
        Code::Rdmsr => rdmsr,
        Code::Wrmsr => wrmsr,
        Code::Rdtsc => rdtsc,
        Code::Rdpmc => rdpmc,
        Code::Cpuid => cpuid,
        _ => return None,
    };
    Entry::one(FAMILY, handler)
}
