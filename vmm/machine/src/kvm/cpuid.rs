// SPDX-License-Identifier: AGPL-3.0-or-later
//! CPUID under KVM: the one CPU model of the exact engine, never a mask over the host's.
//!
//! Where RDTSC would read the host's time, the model hides the TSC, and what counts on it, from the guest.

use chaoscontrol_cpu::model::{LEAVES, Leaf, Topology, cpuid};
use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

use super::error::KvmError;
use crate::engine::CpuModel;

/// Leaf 1 EDX and leaf 8000_0001h EDX: TSC.
const TSC: u32 = 1 << 4;
/// Leaf 1 ECX: the local APIC timer's TSC-deadline mode.
const TSC_DEADLINE: u32 = 1 << 24;

/// One leaf as `model` shows it.
pub(super) fn leaf(model: CpuModel, function: u32) -> Leaf {
    let [eax, ebx, ecx, edx] = cpuid(function, 0, Topology::default());
    match (model, function) {
        (CpuModel::WithoutTsc, 1) => [eax, ebx, ecx & !TSC_DEADLINE, edx & !TSC],
        (CpuModel::WithoutTsc, 0x8000_0001) => [eax, ebx, ecx, edx & !TSC],
        // Frequency of the TSC; invariant TSC.
        (CpuModel::WithoutTsc, 0x15 | 0x8000_0007) => [0; 4],
        _ => [eax, ebx, ecx, edx],
    }
}

/// Everything that KVM is told. What is not listed reads as zero: the vendor is AMD.
pub(super) fn entries(model: CpuModel) -> Result<CpuId, KvmError> {
    let entry = |function: &u32| {
        let [eax, ebx, ecx, edx] = leaf(model, *function);
        let flags = if *function == 7 { KVM_CPUID_FLAG_SIGNIFCANT_INDEX } else { 0 };
        kvm_cpuid_entry2 { function: *function, index: 0, flags, eax, ebx, ecx, edx, ..Default::default() }
    };
    let list: Vec<kvm_cpuid_entry2> = LEAVES.iter().map(entry).collect();
    CpuId::from_entries(&list).map_err(|error| KvmError::Call { call: "a CPUID list", why: format!("{error:?}") })
}

/// Feature bits of the model: leaf, register (EAX first), bit, name.
const FEATURES: [(u32, usize, u32, &str); 16] = [
    (1, 2, 0, "SSE3"),
    (1, 2, 9, "SSSE3"),
    (1, 2, 13, "CMPXCHG16B"),
    (1, 2, 19, "SSE4.1"),
    (1, 2, 20, "SSE4.2"),
    (1, 2, 23, "POPCNT"),
    (1, 3, 8, "CMPXCHG8B"),
    (1, 3, 15, "CMOV"),
    (1, 3, 24, "FXSAVE"),
    (1, 3, 25, "SSE"),
    (1, 3, 26, "SSE2"),
    (7, 1, 7, "SMEP"),
    (7, 1, 20, "SMAP"),
    (0x8000_0001, 3, 11, "SYSCALL"),
    (0x8000_0001, 3, 20, "NX"),
    (0x8000_0001, 3, 26, "1 GiB pages"),
];

/// Features that the model shows and this KVM does not offer.
pub(super) fn missing(offered: &CpuId) -> Vec<&'static str> {
    let has = |(function, register, bit, _): &(u32, usize, u32, &str)| {
        let entry = offered.as_slice().iter().find(|entry| entry.function == *function && entry.index == 0);
        entry.is_some_and(|entry| [entry.eax, entry.ebx, entry.ecx, entry.edx][*register] >> bit & 1 == 1)
    };
    FEATURES.iter().filter(|feature| !has(feature)).map(|feature| feature.3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_that_is_checked_is_in_the_model() {
        for (function, register, bit, name) in FEATURES {
            assert_eq!(leaf(CpuModel::Full, function)[register] >> bit & 1, 1, "{name}");
        }
    }

    #[test]
    fn the_model_without_tsc_differs_in_the_tsc_alone() {
        let differing: Vec<u32> =
            LEAVES.into_iter().filter(|f| leaf(CpuModel::Full, *f) != leaf(CpuModel::WithoutTsc, *f)).collect();
        assert_eq!(differing, [1, 0x15, 0x8000_0001, 0x8000_0007]);
        assert_eq!(leaf(CpuModel::WithoutTsc, 1)[3] >> 4 & 1, 0);
    }

    #[test]
    fn a_host_that_offers_nothing_lacks_everything() {
        let none = CpuId::from_entries(&[]).unwrap();
        assert_eq!(missing(&none).len(), FEATURES.len());
        assert_eq!(missing(&entries(CpuModel::Full).unwrap()), [""; 0]);
    }
}
