// SPDX-License-Identifier: AGPL-3.0-or-later
//! A data race and a lost wake-up planted in guests of two CPUs: exploring schedules finds both, by seeds of the random schedule and
//! by cutting turns of the other, and the same guests without a bug stay clean.

mod common;

use chaoscontrol_machine::{CpuSchedule, GuestNs, Machine, SmpConfig};
use common::{IDT_POINTER, LAPIC, machine_with};
use iced_x86::code_asm::*;

/// The page at which the other CPU starts: vector 0x10. What both share lies in it.
const START: u64 = 0x1_0000;
const COUNT: u64 = 0x800;
const READY: u64 = 0x804;
const DONE: u64 = 0x80c;
const FLAG: u64 = 0x810;
const SEEN: u64 = 0x814;
/// Rounds of each guest.
const ROUNDS: u32 = 50;
/// Guest time in which every guest without a bug is done.
const ENOUGH: GuestNs = GuestNs(5_000_000);
/// Schedules that are tried of each kind.
const SCHEDULES: u64 = 48;

fn smp(schedule: CpuSchedule) -> SmpConfig {
    SmpConfig { cpus: 2, quantum_instructions: 500, schedule, journal_limit: 0 }
}

fn shared(machine: &Machine, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    machine.memory().read(START + offset, &mut bytes).expect("in memory");
    u32::from_le_bytes(bytes)
}

/// In real mode: the instruction `code` with the offset of something shared behind it.
fn on(code: &[u8], offset: u64) -> Vec<u8> {
    [code, &(offset as u16).to_le_bytes()].concat()
}

/// In real mode: a jump back to `to` if `condition`, a two-byte opcode.
fn jump_back(code: &mut Vec<u8>, condition: [u8; 2], to: usize) {
    let distance = to as i64 - (code.len() as i64 + 4);
    code.extend(condition);
    code.extend((distance as i16).to_le_bytes());
}

fn start_other(a: &mut CodeAssembler) {
    a.mov(rbx, LAPIC).unwrap();
    a.mov(dword_ptr(rbx + 0x300), 0xc_4500).unwrap();
    a.mov(dword_ptr(rbx + 0x300), 0xc_4610).unwrap();
}

fn wait(a: &mut CodeAssembler, offset: u64, value: u32) {
    let mut again = a.create_label();
    a.set_label(&mut again).unwrap();
    a.cmp(dword_ptr(START + offset), value as i32).unwrap();
    a.jb(again).unwrap();
}

/// Both CPUs work and add one, so many times: under a lock prefix, or by a load and a store.
fn adders(config: SmpConfig, racy: bool) -> Machine {
    let machine = machine_with(
        |a| {
            let (mut round, mut work) = (a.create_label(), a.create_label());
            start_other(a);
            wait(a, READY, 1);
            a.mov(r8d, ROUNDS).unwrap();
            a.set_label(&mut round).unwrap();
            a.mov(edx, 100).unwrap();
            a.set_label(&mut work).unwrap();
            a.dec(edx).unwrap();
            a.jne(work).unwrap();
            if racy {
                a.mov(ecx, dword_ptr(START + COUNT)).unwrap();
                a.inc(ecx).unwrap();
                a.mov(dword_ptr(START + COUNT), ecx).unwrap();
            } else {
                a.lock().inc(dword_ptr(START + COUNT)).unwrap();
            }
            a.dec(r8d).unwrap();
            a.jne(round).unwrap();
            wait(a, DONE, 1);
            a.hlt().unwrap();
            vec![]
        },
        |vm| vm.smp = config,
    );
    // mov ax, cs; mov ds, ax; inc dword [READY]; mov ecx, ROUNDS
    let mut code = [vec![0x8c, 0xc8, 0x8e, 0xd8], on(&[0x66, 0xff, 0x06], READY), vec![0x66, 0xb9]].concat();
    code.extend(ROUNDS.to_le_bytes());
    let round = code.len();
    // mov edx, 100; dec edx; jne
    code.extend([0x66, 0xba, 100, 0, 0, 0, 0x66, 0x4a, 0x75, 0xfc]);
    if racy {
        // mov eax, [COUNT]; inc eax; mov [COUNT], eax
        code.extend([on(&[0x66, 0xa1], COUNT), vec![0x66, 0x40], on(&[0x66, 0xa3], COUNT)].concat());
    } else {
        code.extend(on(&[0xf0, 0x66, 0xff, 0x06], COUNT));
    }
    // dec ecx; jne; inc dword [DONE]; hlt
    code.extend([0x66, 0x49]);
    jump_back(&mut code, [0x0f, 0x85], round);
    code.extend([on(&[0x66, 0xff, 0x06], DONE), vec![0xf4]].concat());
    machine.memory().write(START, &code).expect("in memory");
    machine
}

/// One CPU halts until the other has raised a flag and sent a message. It looks with interrupts off, or, with the bug, with
/// interrupts on: then a message may come between the look and the halt, and nobody wakes it any more.
fn sleepers(config: SmpConfig, bug: bool) -> Machine {
    let machine = machine_with(
        |a| {
            let (mut look, mut ready, mut handler) = (a.create_label(), a.create_label(), a.create_label());
            a.mov(rax, IDT_POINTER).unwrap();
            a.lidt(qword_ptr(rax)).unwrap();
            a.mov(rbx, LAPIC).unwrap();
            a.mov(dword_ptr(rbx + 0xf0), 0x1ff).unwrap();
            start_other(a);
            a.mov(r8d, 1).unwrap();
            a.sti().unwrap();
            a.set_label(&mut look).unwrap();
            if !bug {
                a.cli().unwrap();
            }
            a.cmp(dword_ptr(START + FLAG), r8d).unwrap();
            a.jae(ready).unwrap();
            if !bug {
                a.sti().unwrap();
            }
            a.hlt().unwrap();
            a.jmp(look).unwrap();
            a.set_label(&mut ready).unwrap();
            a.sti().unwrap();
            a.mov(dword_ptr(START + SEEN), r8d).unwrap();
            a.inc(r8d).unwrap();
            a.cmp(r8d, ROUNDS as i32).unwrap();
            a.jbe(look).unwrap();
            a.mov(dword_ptr(START + DONE), 1).unwrap();
            a.cli().unwrap();
            a.hlt().unwrap();
            a.set_label(&mut handler).unwrap();
            a.mov(dword_ptr(rbx + 0xb0), 0).unwrap();
            a.iretq().unwrap();
            vec![(0x40, handler)]
        },
        |vm| vm.smp = config,
    );
    let put = |at: u64, bytes: &[u8]| machine.memory().write(at, bytes).expect("in memory");
    // The GDT of the boot protocol, whose selector 0x18 is flat data, for FS.
    put(START + 0x700, &[0x1f, 0, 0x00, 0x05, 0, 0]);
    let flat_store = |address: u64, value: u32| {
        let address = (address as u32).to_le_bytes();
        [&[0x67, 0x66, 0x64, 0xc7, 0x05][..], &address, &value.to_le_bytes()].concat()
    };
    // mov ax, cs; mov ds, ax; o32 lgdt [0x700]; PE on; mov ax, 0x18; mov fs, ax; PE off
    let mut code = vec![0x8c, 0xc8, 0x8e, 0xd8, 0x66, 0x0f, 0x01, 0x16, 0x00, 0x07];
    code.extend([0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0, 0xb8, 0x18, 0x00, 0x8e, 0xe0]);
    code.extend([0x0f, 0x20, 0xc0, 0x24, 0xfe, 0x0f, 0x22, 0xc0]);
    code.extend(flat_store(LAPIC + 0xf0, 0x1ff));
    // mov ecx, 1
    code.extend([0x66, 0xb9, 1, 0, 0, 0]);
    let round = code.len();
    // mov edx, ecx; and edx, 63; inc edx; dec edx; jne
    code.extend([0x66, 0x89, 0xca, 0x66, 0x83, 0xe2, 63, 0x66, 0x42, 0x66, 0x4a, 0x75, 0xfc]);
    // mov [FLAG], ecx; vector 0x40 to APIC 0
    code.extend(on(&[0x66, 0x89, 0x0e], FLAG));
    code.extend([flat_store(LAPIC + 0x310, 0), flat_store(LAPIC + 0x300, 0x4040)].concat());
    let seen = code.len();
    // cmp [SEEN], ecx; jb; inc ecx; cmp ecx, ROUNDS; jbe; hlt
    code.extend(on(&[0x66, 0x39, 0x0e], SEEN));
    jump_back(&mut code, [0x0f, 0x82], seen);
    code.extend([0x66, 0x41, 0x66, 0x83, 0xf9, ROUNDS as u8]);
    jump_back(&mut code, [0x0f, 0x86], round);
    code.push(0xf4);
    put(START, &code);
    machine
}

type Guest = fn(SmpConfig, bool) -> Machine;

/// In how many schedules a guest goes wrong: seeds of the random one, and one cut of a turn each of the other, so many instructions
/// `apart`.
fn wrong(guest: Guest, bug: bool, is_right: fn(&Machine) -> bool, apart: u64) -> [u64; 2] {
    let seeds = (0..SCHEDULES).filter(|seed| {
        let mut machine = guest(smp(CpuSchedule::Random), bug);
        machine.reseed_entropy([*seed as u8; 32].map(|byte| byte ^ (*seed >> 8) as u8));
        machine.run_until(ENOUGH).expect("runs");
        !is_right(&machine)
    });
    let cuts = (0..SCHEDULES).filter(|step| {
        let mut machine = guest(smp(CpuSchedule::RoundRobin), bug);
        machine.run_instructions(1_000 + step * apart).expect("runs");
        machine.switch_cpu(1 - u16::from(machine.running_cpu()), 450);
        machine.run_until(ENOUGH).expect("runs");
        !is_right(&machine)
    });
    [seeds.count() as u64, cuts.count() as u64]
}

fn nothing_is_lost(machine: &Machine) -> bool {
    shared(machine, COUNT) == 2 * ROUNDS
}

fn everybody_woke_up(machine: &Machine) -> bool {
    shared(machine, DONE) == 1
}

#[test]
fn a_data_race_is_found_by_seeds_and_by_cuts_and_the_correct_guest_stays_clean() {
    let found = wrong(adders, true, nothing_is_lost, 61);
    eprintln!("of {SCHEDULES} schedules of each kind lost an addition: {found:?}");
    assert!(found[0] > 0 && found[1] > 0, "{found:?}");
    assert_eq!(wrong(adders, false, nothing_is_lost, 61), [0, 0]);
}

#[test]
fn a_lost_wake_up_is_found_by_seeds_and_by_cuts_and_the_correct_guest_stays_clean() {
    let found = wrong(sleepers, true, everybody_woke_up, 3);
    eprintln!("of {SCHEDULES} schedules of each kind lost a wake-up: {found:?}");
    assert!(found[0] > 0 && found[1] > 0, "{found:?}");
    assert_eq!(wrong(sleepers, false, everybody_woke_up, 3), [0, 0]);
}
