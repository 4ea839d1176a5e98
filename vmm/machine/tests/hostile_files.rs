// SPDX-License-Identifier: AGPL-3.0-or-later
//! Kernels and snapshots that were damaged: an answer, never a panic, and no way out of guest memory.

mod common;

use std::sync::Arc;

use chaoscontrol_machine::{GuestNs, Machine, VmConfig};
use common::{CODE, MEMORY_BYTES, elf, machine};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

const SEED: u64 = 20_250_101;

/// A bzImage header over zeros.
fn bzimage() -> Vec<u8> {
    let mut data = vec![0; 1024 + 4096];
    data[0x1f1] = 1;
    data[0x1f4..0x1f8].copy_from_slice(&256u32.to_le_bytes());
    data[0x1fe..0x200].copy_from_slice(&0xaa55u16.to_le_bytes());
    data[0x202..0x206].copy_from_slice(b"HdrS");
    data[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
    data[0x211] = 1;
    data[0x214..0x218].copy_from_slice(&0x10_0000u32.to_le_bytes());
    data[0x22c..0x230].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    data[0x236..0x238].copy_from_slice(&1u16.to_le_bytes());
    data[0x258..0x260].copy_from_slice(&0x10_0000u64.to_le_bytes());
    data[0x260..0x264].copy_from_slice(&0x10_0000u32.to_le_bytes());
    data
}

#[test]
fn damaged_kernels_load_or_are_refused() {
    eprintln!("seed {SEED}");
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let mut loaded = 0;
    for kernel in [elf(&[0xf4; 64], CODE), bzimage()] {
        let header = kernel.len().min(0x270);
        for round in 0..300 {
            let mut damaged = kernel.clone();
            for _ in 0..round % 5 {
                let at = random.next_u32() as usize % header;
                damaged[at] = random.next_u32() as u8;
            }
            if round % 7 == 6 {
                damaged.truncate(random.next_u32() as usize % kernel.len());
            }
            let config = VmConfig::new(MEMORY_BYTES, damaged.into());
            let mut machine = Machine::new(Arc::new(config)).expect("a machine");
            if machine.load().is_ok() {
                loaded += 1;
                machine.run_until(GuestNs(1_000)).expect("a guest's fault is a stop");
            }
        }
    }
    assert!(loaded >= 120, "the undamaged ones at least: {loaded}");
}

#[test]
fn damaged_snapshots_are_refused_or_run() {
    eprintln!("seed {SEED}");
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let mut machine = machine(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.hlt().unwrap();
        a.jmp(again).unwrap();
        Vec::new()
    });
    machine.run_until(GuestNs(1_000)).expect("runs");
    let good = machine.snapshot();
    for _ in 0..400 {
        let mut bad = good.clone();
        let value = random.next_u64() >> (random.next_u32() % 64);
        let board = &mut bad.state.board;
        match random.next_u32() % 14 {
            0 => board.pit.counters[0].started = Some(value),
            1 => board.pit.counters[0].reload = value as u32,
            2 => board.pit.counters[0].mode = value as u8,
            3 => board.lapic.deadline = Some(GuestNs(value)),
            4 => board.lapic.lvt[0] = value as u32,
            5 => board.lapic.irr[value as usize % 8] = value as u32,
            6 => board.rtc.wall_at_zero_ns = i128::from(value) - i128::from(random.next_u64()),
            7 => board.rtc.b = value as u8,
            8 => board.power.timer_half = value,
            9 => board.ioapic.entries[value as usize % 24] = value,
            10 => board.lines.truncate(value as usize % 16),
            11 => bad.state.now = GuestNs(value),
            12 => bad.state.cpu.gpr[4] = value,
            _ => bad.state.cpu.rflags = value,
        }
        if machine.restore(&bad).is_ok() {
            let until = machine.now().after(100_000);
            machine.run_until(until).expect("a guest's fault is a stop");
        }
    }
    machine.restore(&good).expect("the good one still fits");
    assert!(machine.snapshot() == good);
}
