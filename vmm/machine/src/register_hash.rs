// SPDX-License-Identifier: AGPL-3.0-or-later
//! The canonical bytes of a CPU state, and their BLAKE3.
//!
//! Every field in the order of declaration, little-endian, booleans as one byte, no padding. A round's trace holds this
//! hash; a change here is a change of the trace format.

use chaoscontrol_cpu::CpuState;
use chaoscontrol_cpu::state::{DescriptorTable, Segment};

use crate::pages::Digest;

/// Version of the encoding, its first four bytes.
const ENCODING_VERSION: u32 = 1;

struct Writer(Vec<u8>);

impl Writer {
    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn segment(&mut self, segment: &Segment) {
        let Segment { selector, base, limit, attributes } = *segment;
        self.u16(selector);
        self.u64(base);
        self.u32(limit);
        self.u16(attributes);
    }

    fn table(&mut self, table: &DescriptorTable) {
        self.u64(table.base);
        self.u16(table.limit);
    }
}

/// The canonical bytes.
pub fn canonical_bytes(state: &CpuState) -> Vec<u8> {
    // Taken apart so that a new field does not compile until it has its place here.
    let CpuState {
        gpr,
        rip,
        rflags,
        segments,
        tr,
        ldtr,
        gdtr,
        idtr,
        cr0,
        cr2,
        cr3,
        cr4,
        cr8,
        dr,
        dr6,
        dr7,
        msrs,
        x87,
        xmm,
        mxcsr,
        interrupt_shadow,
        nmi_blocked,
        halted,
        pending_debug,
        instructions,
    } = state;
    let mut out = Writer(Vec::with_capacity(1024));
    out.u32(ENCODING_VERSION);
    gpr.iter().for_each(|value| out.u64(*value));
    out.u64(*rip);
    out.u64(*rflags);
    segments.iter().chain([tr, ldtr]).for_each(|segment| out.segment(segment));
    out.table(gdtr);
    out.table(idtr);
    [cr0, cr2, cr3, cr4, cr8].into_iter().chain(dr).chain([dr6, dr7]).for_each(|value| out.u64(*value));
    msr_bytes(msrs, &mut out);
    x87_bytes(x87, &mut out);
    xmm.iter().for_each(|value| out.0.extend(value.to_le_bytes()));
    out.u32(*mxcsr);
    out.0.extend([*interrupt_shadow, *nmi_blocked, *halted].map(u8::from));
    out.u16(*pending_debug);
    out.u64(*instructions);
    out.0
}

fn msr_bytes(msrs: &chaoscontrol_cpu::state::Msrs, out: &mut Writer) {
    let chaoscontrol_cpu::state::Msrs {
        efer,
        star,
        lstar,
        cstar,
        sfmask,
        kernel_gs_base,
        sysenter_cs,
        sysenter_esp,
        sysenter_eip,
        pat,
        tsc_aux,
        tsc_offset,
        mtrr_def_type,
    } = *msrs;
    let values = [
        efer,
        star,
        lstar,
        cstar,
        sfmask,
        kernel_gs_base,
        sysenter_cs,
        sysenter_esp,
        sysenter_eip,
        pat,
        tsc_aux,
        tsc_offset,
        mtrr_def_type,
    ];
    values.into_iter().for_each(|value| out.u64(value));
}

fn x87_bytes(x87: &chaoscontrol_cpu::state::X87, out: &mut Writer) {
    let chaoscontrol_cpu::state::X87 {
        significand,
        sign_exponent,
        control,
        status,
        tag,
        opcode,
        instruction_pointer,
        data_pointer,
    } = *x87;
    significand.into_iter().for_each(|value| out.u64(value));
    sign_exponent.into_iter().for_each(|value| out.u16(value));
    [control, status, tag, opcode].into_iter().for_each(|value| out.u16(value));
    out.u64(instruction_pointer);
    out.u64(data_pointer);
}

/// BLAKE3 of the canonical bytes.
pub fn register_hash(state: &CpuState) -> Digest {
    blake3::hash(&canonical_bytes(state)).into()
}

/// BLAKE3 of the canonical bytes of several CPUs, in order.
pub fn register_hash_of_all(states: impl Iterator<Item = CpuState>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for state in states {
        hasher.update(&canonical_bytes(&state));
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_has_a_fixed_size_and_a_fixed_hash() {
        assert_eq!(
            canonical_bytes(&CpuState::default()).len(),
            4 + 18 * 8 + 8 * 16 + 2 * 10 + 11 * 8 + 13 * 8 + 104 + 256 + 4 + 3 + 2 + 8
        );
    }

    #[test]
    fn every_kind_of_register_reaches_the_hash() {
        let base = register_hash(&CpuState::default());
        let changed: [fn(&mut CpuState); 8] = [
            |state| state.gpr[15] = 1,
            |state| state.segments[5].base = 1,
            |state| state.ldtr.limit = 1,
            |state| state.msrs.mtrr_def_type = 1,
            |state| state.x87.sign_exponent[7] = 1,
            |state| state.xmm[15] = 1 << 127,
            |state| state.nmi_blocked = true,
            |state| state.instructions = 1,
        ];
        for change in changed {
            let mut state = CpuState::default();
            change(&mut state);
            assert_ne!(register_hash(&state), base);
        }
    }
}
