// SPDX-License-Identifier: AGPL-3.0-or-later
//! Linux on several CPUs: it brings them up, runs a thread on each, and neither stops nor restores can be seen.

mod common;

use std::sync::Arc;

use chaoscontrol_machine::{CpuSchedule, GuestNs, Machine, SmpConfig, Stop, VmConfig};
use common::linux::{initrd, smp_kernel, threaded_init};

const MEMORY_BYTES: u64 = 64 << 20;
const LIMIT: GuestNs = GuestNs(60_000_000_000);

fn machine(smp: SmpConfig) -> Option<Machine> {
    let mut config = VmConfig::new(MEMORY_BYTES, smp_kernel("vmlinux")?.into());
    config.initrd = Some(initrd("init", &threaded_init(u32::from(smp.cpus))).into());
    config.smp = smp;
    let mut machine = Machine::new(Arc::new(config)).expect("a machine");
    machine.load().expect("loads");
    Some(machine)
}

fn smp(cpus: u8, schedule: CpuSchedule) -> SmpConfig {
    SmpConfig { cpus, schedule, ..SmpConfig::default() }
}

/// Runs to the guest's end and returns its console.
fn finish(machine: &mut Machine) -> String {
    let end = loop {
        match machine.run_until(LIMIT).expect("runs") {
            Stop::Idle { .. } => machine.skip_to(LIMIT),
            Stop::Doorbell { .. } | Stop::RestartPoint => {}
            stop => break stop,
        }
    };
    let console = String::from_utf8_lossy(&machine.take_serial()).into_owned();
    assert_eq!(end, Stop::PowerOff, "{console}");
    console
}

#[test]
fn linux_brings_up_its_cpus_and_runs_a_thread_on_each() {
    for (cpus, schedule) in [(2, CpuSchedule::RoundRobin), (4, CpuSchedule::RoundRobin), (4, CpuSchedule::Random)] {
        let Some(mut machine) = machine(smp(cpus, schedule)) else { return };
        let console = finish(&mut machine);
        assert!(console.contains("threads-done"), "{cpus} CPUs, {schedule:?}: {console}");
        eprintln!("{cpus} CPUs, {schedule:?}: done after {} instructions", machine.instructions());
    }
}

#[test]
fn stops_and_restores_are_invisible_to_linux_on_several_cpus() {
    let Some(mut straight) = machine(smp(2, CpuSchedule::Random)) else { return };
    finish(&mut straight);
    let Some(mut stopped) = machine(smp(2, CpuSchedule::Random)) else { return };
    for step in [7_777_777, 20_000_003, 11, 9_999_999] {
        stopped.run_instructions(step).expect("runs");
        let snapshot = stopped.snapshot();
        stopped.run_instructions(100_003).expect("runs");
        stopped.restore(&snapshot).expect("its own snapshot");
    }
    finish(&mut stopped);
    assert_eq!(straight.register_hash(), stopped.register_hash());
    assert_eq!(straight.memory_hash(), stopped.memory_hash());
}
