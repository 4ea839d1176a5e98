// SPDX-License-Identifier: AGPL-3.0-or-later
//! Two machines that come apart at one instruction: the log has the difference, survives its file, and narrowing names the instruction.

use std::sync::Arc;

use chaoscontrol_machine::event_log::LogConfig;
use chaoscontrol_machine::{Machine, VmConfig};
use chaoscontrol_trace::{Entry, Log, Narrowing, first_difference, narrow};

const CODE: u64 = 0x10_0000;
/// The guest adds what is here.
const ADDEND: u64 = 0x21_0008;
const COUNT: u64 = 300_000;

/// mov ebx, 0x210000; then for ever: inc rax; mov [rbx], rax; add rdx, [rbx + 8]; jmp back.
const GUEST: [u8; 17] = [0xbb, 0, 0, 0x21, 0, 0x48, 0xff, 0xc0, 0x48, 0x89, 0x03, 0x48, 0x03, 0x53, 0x08, 0xeb, 0xf4];

/// An ELF file of one segment that is loaded whole, headers and all.
fn elf() -> Vec<u8> {
    let bytes = 120 + GUEST.len() as u64;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 62, 0, 1, 0, 0, 0];
    [CODE + 120, 64, 0].iter().for_each(|word: &u64| file.extend(word.to_le_bytes()));
    file.extend([0; 4]);
    [64u16, 56, 1, 0, 0, 0].iter().for_each(|half| file.extend(half.to_le_bytes()));
    file.extend([1, 0, 0, 0, 7, 0, 0, 0]);
    [0, CODE, CODE, bytes, bytes, 4096].iter().for_each(|word: &u64| file.extend(word.to_le_bytes()));
    file.extend(GUEST);
    file
}

/// Runs the guest; before the instruction of this count somebody else changes a byte of its memory.
fn run(config: LogConfig, changed_at: Option<u64>) -> Vec<Entry> {
    let mut machine = Machine::new(Arc::new(VmConfig::new(8 << 20, elf().into()))).unwrap();
    machine.load().unwrap();
    machine.start_log(config);
    if let Some(count) = changed_at {
        machine.run_instructions(count).unwrap();
        machine.memory().write(ADDEND, &[5]).unwrap();
    }
    machine.run_instructions(COUNT - machine.instructions()).unwrap();
    machine.take_log().into_iter().filter_map(Entry::of).collect()
}

#[test]
fn a_difference_is_narrowed_down_to_its_instruction() {
    for changed_at in [1, 2_000, 123_456, 299_990] {
        let found = narrow(0, 0, COUNT, |which, config| Ok::<_, ()>(run(config, (which == 1).then_some(changed_at))));
        let Ok(Narrowing::Instruction(found)) = found else { panic!("{changed_at}: {found:?}") };
        assert_eq!(found.progress, changed_at - 1, "memory is another from the boundary at {changed_at} on");
        let state = |entry: &Option<Entry>| entry.as_ref().unwrap().mark.as_ref().unwrap().state.clone().unwrap();
        let (before, after) = (state(&found.difference.before), state(&found.difference.first));
        assert_eq!((before.instructions, after.instructions), (changed_at - 1, changed_at));
    }
    let same = narrow(0, 0, COUNT, |_, config| Ok::<_, ()>(run(config, Some(7))));
    assert_eq!(same, Ok(Narrowing::Same));
}

#[test]
fn a_log_survives_its_file_and_two_logs_name_where_they_come_apart() {
    let config = LogConfig { interval: 1_000, registers: true, ..LogConfig::default() };
    let log = |changed_at| {
        let log = Log { subject: [1; 32], vms: vec![run(config, changed_at)] };
        Log::decode(&log.encode().unwrap()).unwrap()
    };
    let (plain, again, changed) = (log(None), log(None), log(Some(123_456)));
    assert_eq!(first_difference(&plain.vms, &again.vms), None);
    let difference = first_difference(&plain.vms, &changed.vms).expect("they differ");
    assert_eq!(difference.bracket(), (123_000, Some(124_000)));
}
