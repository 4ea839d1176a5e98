// SPDX-License-Identifier: AGPL-3.0-or-later
//! Several CPUs: start-up, messages between them, turns, stops and snapshots, the schedule journal.

mod common;

use std::sync::Arc;

use chaoscontrol_machine::smp::journal::{JournalError, SliceRecord};
use chaoscontrol_machine::{
    CpuSchedule, EngineKind, GuestNs, KvmMode, KvmOptions, Machine, MachineError, SmpConfig, Stop, VmConfig,
};
use common::{LAPIC, machine_with};
use iced_x86::code_asm::*;

/// The page at which other CPUs start: vector 0x10.
const START: u64 = 0x1_0000;
/// Offset in the page of what they count.
const COUNT: u64 = 0x800;
const READY: u64 = 0x804;
const NMIS: u64 = 0x808;
/// Guest time that is enough for each guest here.
const ENOUGH: u64 = 20_000_000;

fn smp(cpus: u8) -> SmpConfig {
    SmpConfig { cpus, quantum_instructions: 100, schedule: CpuSchedule::RoundRobin, journal_limit: 0 }
}

fn read32(machine: &Machine, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    machine.memory().read(START + offset, &mut bytes).expect("in memory");
    u32::from_le_bytes(bytes)
}

/// Real mode: DS = CS, then counts for ever.
fn counting() -> Vec<u8> {
    let mut code = vec![0x8c, 0xc8, 0x8e, 0xd8];
    // inc dword [COUNT]; jmp back
    code.extend([0x66, 0xff, 0x06, COUNT as u8, (COUNT >> 8) as u8, 0xeb, 0xf9]);
    code
}

/// Real mode with one flat segment: switches its local APIC on, says so, and counts interrupts 0x40 and NMIs, halted between.
fn listening(machine: &Machine) -> Vec<u8> {
    let put = |at: u64, bytes: &[u8]| machine.memory().write(at, bytes).expect("in memory");
    // The GDT of the boot protocol, whose selector 0x18 is flat data.
    put(START + 0x700, &[0x1f, 0, 0x00, 0x05, 0, 0]);
    let flat_store = |address: u32, value: u32| {
        let mut code = vec![0x67, 0x66, 0x64, 0xc7, 0x05];
        code.extend(address.to_le_bytes());
        code.extend(value.to_le_bytes());
        code
    };
    for (vector, offset) in [(0x40u64, 0x100u32), (2, 0x180)] {
        put(vector * 4, &(((START as u32) << 12) | offset).to_le_bytes());
    }
    let mut handler = vec![0x66, 0xff, 0x06, COUNT as u8, (COUNT >> 8) as u8];
    handler.extend(flat_store(LAPIC as u32 + 0xb0, 0));
    handler.push(0xcf);
    put(START + 0x100, &handler);
    put(START + 0x180, &[0x66, 0xff, 0x06, NMIS as u8, (NMIS >> 8) as u8, 0xcf]);
    // mov ax, cs; mov ds, ax; mov sp, 0x1000; o32 lgdt [0x700]
    let mut code = vec![0x8c, 0xc8, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x10, 0x66, 0x0f, 0x01, 0x16, 0x00, 0x07];
    // PE on; mov ax, 0x18; mov fs, ax; PE off
    code.extend([0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0, 0xb8, 0x18, 0x00, 0x8e, 0xe0]);
    code.extend([0x0f, 0x20, 0xc0, 0x24, 0xfe, 0x0f, 0x22, 0xc0]);
    code.extend(flat_store(LAPIC as u32 + 0xf0, 0x1ff));
    // inc dword [READY]; sti; hlt; jmp to hlt
    code.extend([0x66, 0xff, 0x06, READY as u8, (READY >> 8) as u8, 0xfb, 0xf4, 0xeb, 0xfd]);
    code
}

/// INIT and a start-up message to all others.
fn start_others(a: &mut CodeAssembler) {
    a.mov(rbx, LAPIC).unwrap();
    a.mov(dword_ptr(rbx + 0x300), 0xc_4500).unwrap();
    a.mov(dword_ptr(rbx + 0x300), 0xc_4610).unwrap();
}

/// Waits until the double word at an offset of the page has reached `value`.
fn wait(a: &mut CodeAssembler, offset: u64, value: u32) {
    let mut again = a.create_label();
    a.set_label(&mut again).unwrap();
    a.pause().unwrap();
    a.cmp(dword_ptr(START + offset), value as i32).unwrap();
    a.jb(again).unwrap();
}

/// The first CPU starts others, waits for a count, patches their loop to a halt, and halts.
fn patched(config: SmpConfig) -> Machine {
    patched_on(EngineKind::Exact, config)
}

fn patched_on(engine: EngineKind, config: SmpConfig) -> Machine {
    let machine = machine_with(
        |a| {
            start_others(a);
            wait(a, COUNT, 5_000);
            a.mov(byte_ptr(START + 4), 0xf4u32 as i32).unwrap();
            a.hlt().unwrap();
            vec![]
        },
        |vm| on(vm, engine, config),
    );
    machine.memory().write(START, &counting()).expect("in memory");
    machine
}

/// The first CPU sends messages of several kinds to one that listens.
fn messages(config: SmpConfig) -> Machine {
    messages_on(EngineKind::Exact, config)
}

fn messages_on(engine: EngineKind, config: SmpConfig) -> Machine {
    let others = u32::from(config.cpus) - 1;
    let machine = machine_with(
        |a| {
            start_others(a);
            wait(a, READY, others);
            // Fixed, to APIC 1, five times.
            for sent in 1..=5 {
                a.mov(dword_ptr(rbx + 0x310), 0x0100_0000).unwrap();
                a.mov(dword_ptr(rbx + 0x300), 0x4040).unwrap();
                wait(a, COUNT, sent);
            }
            // To all others by shorthand, fixed and NMI.
            a.mov(dword_ptr(rbx + 0x300), 0xc_4040).unwrap();
            wait(a, COUNT, 5 + others);
            a.mov(dword_ptr(rbx + 0x300), 0xc_4400).unwrap();
            wait(a, NMIS, others);
            a.hlt().unwrap();
            vec![]
        },
        |vm| on(vm, engine, config),
    );
    let code = listening(&machine);
    machine.memory().write(START, &code).expect("in memory");
    machine
}

fn on(vm: &mut VmConfig, engine: EngineKind, config: SmpConfig) {
    (vm.smp, vm.engine) = (config, engine);
    vm.kvm = KvmOptions { allow_unfaithful: true, ..KvmOptions::default() };
}

/// Runs until nothing moves any more.
fn finish(machine: &mut Machine) {
    assert_eq!(machine.run_until(GuestNs(ENOUGH)).expect("runs"), Stop::Idle { next_event: None });
}

fn same(a: &mut Machine, b: &mut Machine) {
    let (a, b) = (a.snapshot(), b.snapshot());
    assert_eq!(a.state, b.state);
    assert_eq!(a.pages.hash(), b.pages.hash());
}

#[test]
fn a_start_up_message_starts_every_other_cpu_and_a_store_into_their_code_holds_at_once() {
    for cpus in [2, 4, 8] {
        let mut machine = patched(smp(cpus));
        finish(&mut machine);
        let count = read32(&machine, COUNT);
        // Whoever waits looks once a turn at least.
        assert!((5_000..5_000 + 200 * u32::from(cpus)).contains(&count), "{count}");
        assert!(machine.is_halted());
    }
}

#[test]
fn fixed_messages_and_nmis_reach_their_destinations() {
    for cpus in [2, 5] {
        let mut machine = messages(smp(cpus));
        finish(&mut machine);
        let others = u32::from(cpus) - 1;
        assert_eq!((read32(&machine, COUNT), read32(&machine, NMIS)), (5 + others, others));
    }
}

#[test]
fn time_advances_by_whoever_runs_and_skips_only_when_all_halt() {
    let mut machine = patched(smp(3));
    machine.run_instructions(3_000).expect("runs");
    assert_eq!(machine.now(), GuestNs(30_000), "nobody is idle");
    finish(&mut machine);
    assert_eq!(machine.now().0, machine.instructions() * 10, "all halted at the end of their work");
}

#[test]
fn stops_and_restores_are_invisible_under_both_schedules() {
    for schedule in [CpuSchedule::RoundRobin, CpuSchedule::Random] {
        let config = SmpConfig { schedule, ..smp(4) };
        for guest in [patched, messages] {
            let mut straight = guest(config);
            finish(&mut straight);
            let mut stopped = guest(config);
            let mut other = guest(config);
            let mut step = 1u64;
            while stopped.run_instructions(step).expect("runs") == Stop::Deadline {
                let snapshot = stopped.snapshot();
                // The other machine goes on from here; this one is the next to be restored, from wherever it is.
                other.restore(&snapshot).expect("fits");
                stopped.run_instructions(77).expect("runs");
                std::mem::swap(&mut stopped, &mut other);
                step = step * 7 % 5_003 + 1;
            }
            same(&mut straight, &mut stopped);
        }
    }
}

#[test]
fn the_random_schedule_follows_its_seed() {
    let end = |seed: u8| {
        let mut machine = patched(SmpConfig { schedule: CpuSchedule::Random, ..smp(4) });
        machine.reseed_entropy([seed; 32]);
        finish(&mut machine);
        machine.register_hash()
    };
    assert_eq!(end(1), end(1));
    assert_ne!(end(1), end(2));
}

#[test]
fn an_explicit_switch_runs_one_cpu_and_no_other() {
    let mut machine = patched(SmpConfig { quantum_instructions: 1_000, ..smp(3) });
    machine.run_instructions(5_000).expect("runs");
    let before = read32(&machine, COUNT);
    machine.switch_cpu(0, 2_000);
    machine.run_instructions(2_000).expect("runs");
    assert_eq!((read32(&machine, COUNT), machine.running_cpu()), (before, 0), "the first CPU only waits");
    machine.switch_cpu(2, 600);
    machine.run_instructions(600).expect("runs");
    assert_eq!((read32(&machine, COUNT), machine.running_cpu()), (before + 300, 2), "two instructions a count");
}

#[test]
fn snapshots_of_another_number_of_cpus_or_another_schedule_are_refused() {
    let snapshot = patched(smp(2)).snapshot();
    for config in [smp(1), smp(3), SmpConfig { quantum_instructions: 7, ..smp(2) }] {
        let mut machine = patched(config);
        assert!(matches!(machine.restore(&snapshot), Err(MachineError::Snapshot(_))), "{config:?}");
    }
    let wrong = SmpConfig { cpus: 9, ..smp(2) };
    let vm = VmConfig { smp: wrong, ..VmConfig::new(8 << 20, Arc::from(&b""[..])) };
    assert!(matches!(Machine::new(Arc::new(vm)), Err(MachineError::Config { field: "cpus", .. })));
}

#[test]
fn a_snapshot_of_one_cpu_has_nothing_of_several() {
    let state = patched(smp(1)).snapshot().state;
    assert_eq!((state.version, state.smp), (1, None));
    assert_eq!(patched(smp(2)).snapshot().state.version, 2);
}

// The schedule journal.

fn journaled() -> SmpConfig {
    SmpConfig { journal_limit: 100_000, ..smp(3) }
}

fn recorded() -> Vec<SliceRecord> {
    let mut machine = patched(journaled());
    finish(&mut machine);
    machine.close_schedule_journal().expect("sound")
}

#[test]
fn a_run_that_is_held_to_its_own_journal_goes_through_also_with_stops() {
    let records = recorded();
    assert!(records.len() > 50, "{}", records.len());
    let mut machine = patched(journaled());
    machine.replay_schedule(records).expect("a whole journal");
    while machine.run_instructions(313).expect("runs") == Stop::Deadline {}
    machine.close_schedule_journal().expect("the last record, too");
    assert!(machine.replay_is_complete());
}

#[test]
fn a_journal_of_which_something_is_missing_changed_or_moved_is_refused() {
    let records = recorded();
    let refused = |change: fn(&mut Vec<SliceRecord>)| {
        let mut records = records.clone();
        change(&mut records);
        match patched(journaled()).replay_schedule(records) {
            Err(MachineError::Journal(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        refused(|records| {
            records.remove(3);
        }),
        JournalError::Missing { sequence: 3 }
    );
    assert_eq!(refused(|records| records[4].end += 1), JournalError::Forged { sequence: 4 });
    assert_eq!(refused(|records| records.swap(5, 6)), JournalError::Reordered { sequence: 5, found: 6 });
}

#[test]
fn a_run_that_leaves_its_journal_is_poisoned_for_good_and_what_it_recorded_stays_readable() {
    let mut machine = patched(journaled());
    // Of another guest: the counting loop starts one byte later.
    let mut code = vec![0x90];
    code.extend(counting());
    let snapshot = machine.snapshot();
    machine.memory().write(START, &code).expect("in memory");
    machine.replay_schedule(recorded()).expect("a whole journal");
    let error = machine.run_until(GuestNs(ENOUGH)).expect_err("it diverges");
    assert!(matches!(error, MachineError::Journal(JournalError::Divergent { .. })), "{error}");
    assert!(!machine.schedule_journal().is_empty());
    for result in [machine.run_until(GuestNs(ENOUGH)).map(drop), machine.restore(&snapshot), machine.fork().map(drop)] {
        assert!(matches!(result, Err(MachineError::Poisoned(_))), "{result:?}");
    }
    assert!(machine.poisoned().is_some());
}

#[test]
fn a_replay_that_goes_past_its_journal_is_refused() {
    let mut records = recorded();
    records.truncate(10);
    let mut machine = patched(journaled());
    machine.replay_schedule(records).expect("the beginning of a journal");
    let error = machine.run_until(GuestNs(ENOUGH)).expect_err("more turns than records");
    assert!(matches!(error, MachineError::Journal(JournalError::Missing { sequence: 10 })), "{error}");
}

#[test]
fn a_full_journal_stops_the_machine_before_the_next_turn_and_taking_it_lets_it_go_on() {
    let mut machine = patched(SmpConfig { journal_limit: 7, ..smp(3) });
    let mut taken = Vec::new();
    let end = loop {
        match machine.run_until(GuestNs(ENOUGH)) {
            Err(MachineError::Journal(JournalError::Full { limit: 7 })) => {
                assert_eq!(machine.journal_use().map(|used| (used.records, used.high_water)), Some((7, 7)));
                assert_eq!(machine.poisoned(), None);
                taken.extend(machine.take_schedule_journal());
            }
            end => break end,
        }
    };
    assert_eq!(end.expect("runs"), Stop::Idle { next_event: None });
    taken.extend(machine.close_schedule_journal().expect("sound"));
    assert_eq!(taken, recorded());
    let row = machine.capacity_use()[0];
    assert_eq!((row.resource, row.limit, row.used, row.high_water), ("schedule journal records", 7, 0, 7));
    assert!(row.exhausted > 0, "{row:?}");
}

#[test]
fn several_cpus_are_refused_on_engines_that_do_not_see_every_store_before_anything_is_opened() {
    for mode in [KvmMode::Exits, KvmMode::Pmu] {
        let engine = EngineKind::Kvm(mode);
        let mut config = VmConfig::new(64 << 20, Vec::new().into());
        (config.engine, config.smp) = (engine, smp(2));
        let error = Machine::new(Arc::new(config)).err().expect("refused").to_string();
        assert!(error.starts_with("cpus: ") && error.contains(engine.name()), "{error}");
    }
}

#[test]
fn single_steps_of_kvm_give_the_turns_and_bytes_of_the_software_cpu() {
    if !common::kvm::usable(KvmMode::SingleStep) {
        return;
    }
    let kvm = EngineKind::Kvm(KvmMode::SingleStep);
    for schedule in [CpuSchedule::RoundRobin, CpuSchedule::Random] {
        let config = SmpConfig { schedule, ..journaled() };
        for guest in [patched_on, messages_on] {
            let (mut exact, mut stepped) = (guest(EngineKind::Exact, config), guest(kvm, config));
            finish(&mut exact);
            while stepped.run_instructions(1_777).expect("runs") == Stop::Deadline {}
            let journals = [&mut exact, &mut stepped].map(|machine| machine.close_schedule_journal().expect("sound"));
            assert!(journals[0].len() > 10, "{}", journals[0].len());
            assert_eq!(journals[0], journals[1]);
            same(&mut exact, &mut stepped);
        }
    }
}
