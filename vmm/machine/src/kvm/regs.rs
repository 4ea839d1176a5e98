// SPDX-License-Identifier: AGPL-3.0-or-later
//! The architectural state in our form and in KVM's.
//!
//! What KVM does not keep (the TSC's offset, MTRRs, TSC_AUX, the halt latch, the count) stays in our form only.

use chaoscontrol_cpu::CpuState;
use chaoscontrol_cpu::state::{DescriptorTable, Segment, X87, seg};
use kvm_bindings::{
    KVM_VCPUEVENT_VALID_NMI_PENDING, KVM_VCPUEVENT_VALID_SHADOW, KVM_X86_SHADOW_INT_MOV_SS, KVM_X86_SHADOW_INT_STI,
    Msrs, kvm_debugregs, kvm_dtable, kvm_msr_entry, kvm_regs, kvm_segment, kvm_sregs, kvm_xsave,
};

use super::error::{KvmError, call};
use super::vcpu::Vcpu;

/// DR6 bits that are always set, and those that can be.
const DR6_FIXED: u64 = 0xffff_0ff0;
const DR6_BITS: u64 = 0xe00f;
/// RFLAGS.IF.
const IF: u64 = 1 << 9;
/// Attributes of a null SS: flat and writable, with the privilege level to come (as the exact engine loads it).
const NULL_SS: u16 = 0xc093;

/// MSRs that KVM keeps beside those in its system registers, in the order of [`msr_values`].
const MSRS: [u32; 9] = [0x174, 0x175, 0x176, 0x277, 0xc000_0081, 0xc000_0082, 0xc000_0083, 0xc000_0084, 0xc000_0102];

fn msr_values(state: &mut CpuState) -> [&mut u64; 9] {
    let msrs = &mut state.msrs;
    [
        &mut msrs.sysenter_cs,
        &mut msrs.sysenter_esp,
        &mut msrs.sysenter_eip,
        &mut msrs.pat,
        &mut msrs.star,
        &mut msrs.lstar,
        &mut msrs.cstar,
        &mut msrs.sfmask,
        &mut msrs.kernel_gs_base,
    ]
}

/// General registers for KVM.
pub(super) fn to_regs(state: &CpuState) -> kvm_regs {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = state.gpr;
    let (rip, rflags) = (state.rip, state.rflags);
    kvm_regs { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags }
}

/// General registers from KVM.
pub(super) fn from_regs(regs: &kvm_regs, state: &mut CpuState) {
    let r = regs;
    state.gpr =
        [r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15];
    (state.rip, state.rflags) = (r.rip, r.rflags);
}

fn to_segment(segment: &Segment) -> kvm_segment {
    let bits = |from: u32, count: u32| (segment.attributes >> from) as u8 & ((1 << count) - 1);
    kvm_segment {
        base: segment.base,
        limit: segment.limit,
        selector: segment.selector,
        type_: bits(0, 4),
        s: bits(4, 1),
        dpl: bits(5, 2),
        present: bits(7, 1),
        avl: bits(12, 1),
        l: bits(13, 1),
        db: bits(14, 1),
        g: bits(15, 1),
        unusable: 1 - bits(7, 1),
        padding: 0,
    }
}

fn from_segment(segment: &kvm_segment) -> Segment {
    let at = |value: u8, from: u32| u16::from(value) << from;
    let attributes = at(segment.type_ & 15, 0)
        | at(segment.s & 1, 4)
        | at(segment.dpl & 3, 5)
        | at(segment.present & 1, 7)
        | at(segment.avl & 1, 12)
        | at(segment.l & 1, 13)
        | at(segment.db & 1, 14)
        | at(segment.g & 1, 15);
    Segment { selector: segment.selector, base: segment.base, limit: segment.limit, attributes }
}

/// A data segment from KVM: null ones in the one form the exact engine gives them.
fn from_data_segment(segment: &kvm_segment, index: usize, cpl: u8) -> Segment {
    let given = from_segment(segment);
    let null = segment.selector & !3 == 0 && (segment.unusable == 1 || segment.present == 0);
    match index {
        _ if !null => given,
        seg::SS => Segment { base: 0, limit: u32::MAX, attributes: NULL_SS | u16::from(cpl) << 5, ..given },
        // Their bases can be written in 64-bit mode, null or not.
        seg::FS | seg::GS => Segment { limit: 0, attributes: 0, ..given },
        _ => Segment { base: 0, limit: 0, attributes: 0, ..given },
    }
}

/// System registers for KVM. `base` gives what is not part of our state.
pub(super) fn to_sregs(state: &CpuState, base: &kvm_sregs) -> kvm_sregs {
    let segment = |index: usize| to_segment(&state.segments[index]);
    let table = |table: &DescriptorTable| kvm_dtable { base: table.base, limit: table.limit, padding: [0; 3] };
    kvm_sregs {
        cs: segment(seg::CS),
        ds: segment(seg::DS),
        es: segment(seg::ES),
        fs: segment(seg::FS),
        gs: segment(seg::GS),
        ss: segment(seg::SS),
        tr: to_segment(&state.tr),
        ldt: to_segment(&state.ldtr),
        gdt: table(&state.gdtr),
        idt: table(&state.idtr),
        cr0: state.cr0,
        cr2: state.cr2,
        cr3: state.cr3,
        cr4: state.cr4,
        cr8: state.cr8,
        efer: state.msrs.efer,
        apic_base: base.apic_base,
        interrupt_bitmap: [0; 4],
    }
}

/// System registers from KVM.
pub(super) fn from_sregs(sregs: &kvm_sregs, state: &mut CpuState) {
    let cpl = sregs.ss.dpl & 3;
    state.segments[seg::CS] = from_segment(&sregs.cs);
    for (index, segment) in
        [(seg::ES, &sregs.es), (seg::SS, &sregs.ss), (seg::DS, &sregs.ds), (seg::FS, &sregs.fs), (seg::GS, &sregs.gs)]
    {
        state.segments[index] = from_data_segment(segment, index, cpl);
    }
    (state.tr, state.ldtr) = (from_segment(&sregs.tr), from_segment(&sregs.ldt));
    let table = |table: &kvm_dtable| DescriptorTable { base: table.base, limit: table.limit };
    (state.gdtr, state.idtr) = (table(&sregs.gdt), table(&sregs.idt));
    (state.cr0, state.cr2, state.cr3, state.cr4) = (sregs.cr0, sregs.cr2, sregs.cr3, sregs.cr4);
    state.msrs.efer = sregs.efer;
}

/// Where FXSAVE puts things (AMD64 APM vol. 2, 11.4.4), and where XSAVE says which of them are there.
mod area {
    pub const CONTROL: usize = 0;
    pub const STATUS: usize = 2;
    pub const TAGS: usize = 4;
    pub const OPCODE: usize = 6;
    pub const INSTRUCTION: usize = 8;
    pub const DATA: usize = 16;
    pub const MXCSR: usize = 24;
    pub const STACK: usize = 32;
    pub const XMM: usize = 160;
    pub const PRESENT: usize = 512;
    /// x87 and SSE.
    pub const X87_AND_SSE: u64 = 3;
    pub const BYTES: usize = 520;
}

/// The area up to where it says what is present.
fn to_fpu(state: &CpuState) -> [u8; area::BYTES] {
    let x87 = &state.x87;
    let mut bytes = [0; area::BYTES];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(area::CONTROL, &x87.control.to_le_bytes());
    put(area::STATUS, &x87.status.to_le_bytes());
    put(area::OPCODE, &x87.opcode.to_le_bytes());
    put(area::INSTRUCTION, &x87.instruction_pointer.to_le_bytes());
    put(area::DATA, &x87.data_pointer.to_le_bytes());
    put(area::MXCSR, &state.mxcsr.to_le_bytes());
    put(area::PRESENT, &area::X87_AND_SSE.to_le_bytes());
    let mut tags = 0u8;
    for physical in 0..8usize {
        let slot = area::STACK + stack_slot(physical, x87.status) * 16;
        put(slot, &x87.significand[physical].to_le_bytes());
        put(slot + 8, &x87.sign_exponent[physical].to_le_bytes());
        tags |= u8::from(x87.tag >> (physical * 2) & 3 != 3) << physical;
    }
    put(area::TAGS, &[tags]);
    for (index, value) in state.xmm.iter().enumerate() {
        put(area::XMM + index * 16, &value.to_le_bytes());
    }
    bytes
}

fn from_fpu(bytes: &[u8; area::BYTES], state: &mut CpuState) {
    let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let quad = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
    let status = word(area::STATUS);
    let mut x87 = X87 {
        control: word(area::CONTROL),
        status,
        tag: 0,
        opcode: word(area::OPCODE) & 0x7ff,
        instruction_pointer: quad(area::INSTRUCTION),
        data_pointer: quad(area::DATA),
        ..X87::default()
    };
    for physical in 0..8usize {
        let slot = area::STACK + stack_slot(physical, status) * 16;
        let (significand, sign_exponent) = (quad(slot), word(slot + 8));
        (x87.significand[physical], x87.sign_exponent[physical]) = (significand, sign_exponent);
        let full = bytes[area::TAGS] >> physical & 1 == 1;
        x87.tag |= tag(full, significand, sign_exponent) << (physical * 2);
    }
    state.x87 = x87;
    for (index, value) in state.xmm.iter_mut().enumerate() {
        let at = area::XMM + index * 16;
        *value = u128::from(quad(at)) | u128::from(quad(at + 8)) << 64;
    }
    state.mxcsr = quad(area::MXCSR) as u32;
}

fn set_fpu(vcpu: &Vcpu, state: &CpuState) -> Result<(), KvmError> {
    let mut xsave = kvm_xsave::default();
    for (word, bytes) in xsave.region.iter_mut().zip(to_fpu(state).as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    // SAFETY: no state beyond these 4 KiB was ever enabled for this process's guests.
    call("KVM_SET_XSAVE", unsafe { vcpu.fd().set_xsave(&xsave) })
}

fn get_fpu(vcpu: &Vcpu, state: &mut CpuState) -> Result<(), KvmError> {
    let xsave = call("KVM_GET_XSAVE", vcpu.fd().get_xsave())?;
    let mut bytes = [0; area::BYTES];
    for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(xsave.region) {
        *bytes = u32::to_le_bytes(word);
    }
    from_fpu(&bytes, state);
    Ok(())
}

/// Which stack position a physical register has.
fn stack_slot(physical: usize, status: u16) -> usize {
    physical.wrapping_sub(usize::from(status >> 11 & 7)) & 7
}

/// The two tag bits that FNSTENV would store: valid, zero, special, empty.
fn tag(full: bool, significand: u64, sign_exponent: u16) -> u16 {
    match (full, sign_exponent & 0x7fff) {
        (false, _) => 3,
        (true, 0) if significand == 0 => 1,
        (true, 1..=0x7ffe) if significand >> 63 == 1 => 0,
        (true, _) => 2,
    }
}

/// Hands the whole state to KVM; what equals `known`, which KVM has already, is left out.
pub(super) fn push(vcpu: &mut Vcpu, state: &CpuState, known: Option<&CpuState>) -> Result<(), KvmError> {
    let mut wanted = *state;
    let differs = |changed: &dyn Fn(&CpuState) -> bool| known.is_none_or(changed);
    let sregs = to_sregs(state, &vcpu.sregs());
    if differs(&|known| to_sregs(known, &sregs) != sregs) {
        vcpu.set_sregs(&sregs)?;
    }
    vcpu.set_regs(&to_regs(state));
    vcpu.set_cr8(state.cr8 as u8);
    if differs(&|known| (known.x87, known.xmm, known.mxcsr) != (state.x87, state.xmm, state.mxcsr)) {
        set_fpu(vcpu, state)?;
    }
    if differs(&|known| (known.dr, known.dr6, known.dr7) != (state.dr, state.dr6, state.dr7)) {
        let debug = kvm_debugregs { db: state.dr, dr6: state.dr6, dr7: state.dr7, ..Default::default() };
        call("KVM_SET_DEBUGREGS", vcpu.fd().set_debug_regs(&debug))?;
    }
    if differs(&|known| msr_values(&mut { *known }) != msr_values(&mut { *state })) {
        let values = msr_values(&mut wanted);
        let entries: Vec<kvm_msr_entry> = MSRS
            .into_iter()
            .zip(values)
            .map(|(index, data)| kvm_msr_entry { index, data: *data, ..Default::default() })
            .collect();
        let msrs = Msrs::from_entries(&entries).map_err(list_error)?;
        let set = call("KVM_SET_MSRS", vcpu.fd().set_msrs(&msrs))?;
        if set != MSRS.len() {
            let why = format!("register {:#x} was refused", MSRS[set]);
            return Err(KvmError::Call { call: "KVM_SET_MSRS", why });
        }
    }
    if differs(&|known| (known.interrupt_shadow, known.nmi_blocked) != (state.interrupt_shadow, state.nmi_blocked)) {
        let mut events = vcpu.events();
        events.flags = KVM_VCPUEVENT_VALID_SHADOW;
        if known.is_none() {
            // What the CPU did before is over: an exception or interrupt that was still on its way is not the new state's.
            events.flags |= KVM_VCPUEVENT_VALID_NMI_PENDING;
            (events.exception.pending, events.exception.injected) = (0, 0);
            (events.nmi.pending, events.nmi.injected, events.interrupt.injected) = (0, 0, 0);
        }
        events.interrupt.shadow = match (state.interrupt_shadow, state.rflags & IF != 0) {
            (false, _) => 0,
            // STI leaves none while interrupts are off.
            (true, false) => KVM_X86_SHADOW_INT_MOV_SS as u8,
            (true, true) => KVM_X86_SHADOW_INT_STI as u8,
        };
        events.nmi.masked = u8::from(state.nmi_blocked);
        vcpu.set_events(&events)?;
    }
    Ok(())
}

/// Takes the whole state from KVM; what KVM does not keep stays as it is in `state`.
pub(super) fn pull(vcpu: &mut Vcpu, state: &mut CpuState) -> Result<(), KvmError> {
    from_regs(&vcpu.regs(), state);
    from_sregs(&vcpu.sregs(), state);
    state.cr8 = u64::from(vcpu.cr8());
    get_fpu(vcpu, state)?;
    let debug = call("KVM_GET_DEBUGREGS", vcpu.fd().get_debug_regs())?;
    (state.dr, state.dr7) = (debug.db, debug.dr7);
    state.dr6 = debug.dr6 & DR6_BITS | DR6_FIXED;
    let entries = MSRS.map(|index| kvm_msr_entry { index, ..Default::default() });
    let mut msrs = Msrs::from_entries(&entries).map_err(list_error)?;
    let got = call("KVM_GET_MSRS", vcpu.fd().get_msrs(&mut msrs))?;
    if got != MSRS.len() {
        let why = format!("register {:#x} cannot be read", MSRS[got]);
        return Err(KvmError::Call { call: "KVM_GET_MSRS", why });
    }
    for (value, entry) in msr_values(state).into_iter().zip(msrs.as_slice()) {
        *value = entry.data;
    }
    let events = vcpu.events();
    state.interrupt_shadow = events.interrupt.shadow != 0;
    state.nmi_blocked = events.nmi.masked != 0;
    Ok(())
}

fn list_error(error: impl std::fmt::Debug) -> KvmError {
    KvmError::Call { call: "an MSR list", why: format!("{error:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_come_back_as_they_went() {
        for attributes in [0x9b, 0xa09b, 0xc093, 0xa0fb, 0xc0f3, 0x8b, 0x82] {
            let segment = Segment { selector: 0x28, base: 0x1234_5678_9abc, limit: 0xfffff, attributes };
            assert_eq!(from_segment(&to_segment(&segment)), segment);
        }
    }

    #[test]
    fn floating_point_state_comes_back_as_it_went() {
        let mut state = CpuState { mxcsr: 0x1fa0, ..CpuState::default() };
        state.x87.status = 5 << 11;
        // Valid, zero, special and empty registers, wherever the top is.
        for (physical, (significand, sign_exponent, tag)) in
            [(1 << 63, 0x3fff, 0), (0, 0x8000, 1), (3 << 62, 0x7fff, 2), (77, 0, 2), (9, 9, 3)].into_iter().enumerate()
        {
            state.x87.significand[physical] = significand;
            state.x87.sign_exponent[physical] = sign_exponent;
            state.x87.tag = state.x87.tag & !(3 << (physical * 2)) | tag << (physical * 2);
        }
        state.xmm[15] = u128::MAX / 3;
        let mut back = CpuState::default();
        from_fpu(&to_fpu(&state), &mut back);
        assert_eq!((back.x87, back.xmm, back.mxcsr), (state.x87, state.xmm, state.mxcsr));
    }

    #[test]
    fn general_registers_come_back_as_they_went() {
        let state =
            CpuState { gpr: std::array::from_fn(|index| index as u64), rip: 99, rflags: 0x202, ..CpuState::default() };
        let mut back = CpuState::default();
        from_regs(&to_regs(&state), &mut back);
        assert_eq!(back, state);
    }
}
