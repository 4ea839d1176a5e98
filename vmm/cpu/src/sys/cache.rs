// SPDX-License-Identifier: AGPL-3.0-or-later
//! Instructions that only matter to caches, hints. Memory is always in order here and no cache can be seen, so
//! what is left are their permission checks.

use crate::core_state::Core;
use crate::mmu::Kind;
use crate::op::{Handler, Op, Step};
use crate::table::Entry;
use iced_x86::{Code, Mnemonic};

const FAMILY: &str = "cache";

fn nop(_core: &mut Core, _op: &Op) -> Step {
    Ok(())
}

fn supervisor_nop(core: &mut Core, _op: &Op) -> Step {
    core.check_supervisor()
}

/// CLFLUSH has the checks of a one-byte load.
fn clflush(core: &mut Core, op: &Op) -> Step {
    let address = core.linear(op, 1, false)?;
    core.probe(address, 1, Kind::Read, op.segment)
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let handler: Handler = match code {
        Code::Invd | Code::Wbinvd | Code::Invlpg_m => supervisor_nop,
        Code::Clflush_m8 => clflush,
        // Hints of extensions that are not offered lie in the space that older CPUs execute as NOP.
        Code::Cldemote_m8 | Code::Prefetchit0_m8 | Code::Prefetchit1_m8 | Code::Rdsspd_r32 | Code::Rdsspq_r64 => nop,
        // APM 3, PREFETCH and PREFETCHW: the operand is memory. Intel's processors execute the register forms as NOP.
        Code::Reservednop_rm16_r16_0F0D | Code::Reservednop_rm32_r32_0F0D | Code::Reservednop_rm64_r64_0F0D => {
            return Some(Entry::Ud("a prefetch of a register"));
        }
        Code::Pause | Code::Mfence | Code::Lfence | Code::Sfence => nop,
        _ => match code.mnemonic() {
            Mnemonic::Nop | Mnemonic::Reservednop | Mnemonic::Endbr32 | Mnemonic::Endbr64 => nop,
            Mnemonic::Prefetch
            | Mnemonic::Prefetchw
            | Mnemonic::Prefetchwt1
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2 => nop,
            _ => return None,
        },
    };
    Entry::one(FAMILY, handler)
}
