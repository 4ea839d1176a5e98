// SPDX-License-Identifier: AGPL-3.0-or-later
//! Tests over KVM: they run wherever /dev/kvm opens, and say `skipped` where it does not.

use chaoscontrol_machine::kvm::report;
use chaoscontrol_machine::{EngineKind, KvmMode, KvmOptions, VmConfig};

/// Whether KVM can be used. Where it cannot, says why; a /dev/kvm that opens and yet cannot be used fails the test.
pub fn usable(mode: KvmMode) -> bool {
    let report = report();
    if let Err(why) = std::fs::File::options().read(true).write(true).open("/dev/kvm") {
        eprintln!("skipped: /dev/kvm does not open: {why}");
        return false;
    }
    assert!(report.present, "/dev/kvm opens, and yet: {:?}", report.reasons);
    if mode != KvmMode::Pmu {
        report.check(mode).expect("a mode that needs no counter works wherever /dev/kvm opens");
    }
    true
}

/// Runs this machine on KVM, faithful or not.
pub fn on_kvm(mode: KvmMode) -> impl Fn(&mut VmConfig) + Copy {
    move |config| {
        config.engine = EngineKind::Kvm(mode);
        config.kvm = KvmOptions { allow_unfaithful: true, ..KvmOptions::default() };
    }
}
