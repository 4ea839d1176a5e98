// SPDX-License-Identifier: AGPL-3.0-or-later
//! IN and OUT, and the I/O permission bitmap (Intel SDM vol. 1, 19.5.2).

use crate::core_state::Core;
use crate::exit::Exit;
use crate::forms::handler_by_width;
use crate::op::{Op, Step};
use crate::table::Entry;
use crate::width::Width;
use iced_x86::Code;

const FAMILY: &str = "io";
const RDX: u8 = 2;
/// Offset of the bitmap's own offset in a 64-bit TSS.
const TSS_IO_MAP_BASE: u64 = 102;

impl Core {
    /// Raises #GP(0) where the current privilege may not use a port.
    pub fn check_port(&mut self, port: u16, bytes: u64) -> Step {
        if u64::from(self.cpl()) <= self.iopl() {
            return Ok(());
        }
        let limit = u64::from(self.tr.limit);
        if TSS_IO_MAP_BASE + 1 > limit {
            return Err(self.gp0());
        }
        let map = u64::from(self.read_system::<u16>(self.tr.base.wrapping_add(TSS_IO_MAP_BASE))?);
        let offset = map + u64::from(port >> 3);
        if offset + 1 > limit {
            return Err(self.gp0());
        }
        let bits = u64::from(self.read_system::<u16>(self.tr.base.wrapping_add(offset))?) >> (port & 7);
        if bits & ((1 << bytes) - 1) != 0 { Err(self.gp0()) } else { Ok(()) }
    }
}

fn input<T: Width>(core: &mut Core, port: u16) -> Step {
    core.check_port(port, T::BYTES)?;
    let value = core.outside(Exit::PortRead { port, size: T::BYTES as u8 })?;
    core.set_reg(0, T::cut(value));
    Ok(())
}

fn output<T: Width>(core: &mut Core, port: u16) -> Step {
    core.check_port(port, T::BYTES)?;
    let value = core.reg::<T>(0).zx() as u32;
    core.outside(Exit::PortWrite { port, size: T::BYTES as u8, value })?;
    Ok(())
}

fn in_imm<T: Width>(core: &mut Core, op: &Op) -> Step {
    input::<T>(core, op.imm as u8 as u16)
}

fn in_dx<T: Width>(core: &mut Core, _op: &Op) -> Step {
    input::<T>(core, core.reg(RDX))
}

fn out_imm<T: Width>(core: &mut Core, op: &Op) -> Step {
    output::<T>(core, op.imm as u8 as u16)
}

fn out_dx<T: Width>(core: &mut Core, _op: &Op) -> Step {
    output::<T>(core, core.reg(RDX))
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let width = match code {
        Code::In_AL_imm8 | Code::In_AL_DX | Code::Out_imm8_AL | Code::Out_DX_AL => 8,
        Code::In_AX_imm8 | Code::In_AX_DX | Code::Out_imm8_AX | Code::Out_DX_AX => 16,
        _ => 32,
    };
    match code {
        Code::In_AL_imm8 | Code::In_AX_imm8 | Code::In_EAX_imm8 => Entry::one(FAMILY, handler_by_width!(width, in_imm)),
        Code::In_AL_DX | Code::In_AX_DX | Code::In_EAX_DX => Entry::one(FAMILY, handler_by_width!(width, in_dx)),
        Code::Out_imm8_AL | Code::Out_imm8_AX | Code::Out_imm8_EAX => {
            Entry::one(FAMILY, handler_by_width!(width, out_imm))
        }
        Code::Out_DX_AL | Code::Out_DX_AX | Code::Out_DX_EAX => Entry::one(FAMILY, handler_by_width!(width, out_dx)),
        _ => None,
    }
}
