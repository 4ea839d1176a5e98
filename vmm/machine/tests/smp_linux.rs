// SPDX-License-Identifier: AGPL-3.0-or-later
//! Linux on several CPUs: it brings them up, runs a thread on each, and neither stops nor restores can be seen.

mod common;

use std::sync::Arc;

use chaoscontrol_machine::{CpuSchedule, GuestNs, Machine, SmpConfig, Stop, VmConfig};
use common::linux::{initrd, kernel, smp_kernel, threaded_init};

const MEMORY_BYTES: u64 = 64 << 20;
const LIMIT: GuestNs = GuestNs(60_000_000_000);

fn machine(smp: SmpConfig) -> Option<Machine> {
    Some(machine_of(smp_kernel("vmlinux")?, u32::from(smp.cpus), smp))
}

fn machine_of(kernel: Vec<u8>, threads: u32, smp: SmpConfig) -> Machine {
    let mut config = VmConfig::new(MEMORY_BYTES, kernel.into());
    config.initrd = Some(initrd("init", &threaded_init(threads)).into());
    config.smp = smp;
    let mut machine = Machine::new(Arc::new(config)).expect("a machine");
    machine.load().expect("loads");
    machine
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

#[test]
fn a_kernel_for_one_cpu_runs_on_the_first_and_leaves_the_others_waiting() {
    let Some(kernel) = kernel("vmlinux") else { return };
    let mut alone = machine_of(kernel.clone(), 1, SmpConfig::default());
    let expected = finish(&mut alone);
    for schedule in [CpuSchedule::RoundRobin, CpuSchedule::Random] {
        let mut machine = machine_of(kernel.clone(), 1, smp(3, schedule));
        let console = finish(&mut machine);
        assert!(console.contains("threads-done"), "{schedule:?}: {console}");
        assert_eq!(machine.running_cpu(), 0);
        let lines =
            |text: &str| text.lines().filter(|line| !line.starts_with('[')).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(&console), lines(&expected));
    }
}
