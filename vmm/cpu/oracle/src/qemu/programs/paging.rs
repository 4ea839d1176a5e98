// SPDX-License-Identifier: AGPL-3.0-or-later
//! Paging: every kind of access under random permissions at every level, with exact error codes, accessed and dirty bits.

use super::build::{Builder, OK, Program};
use crate::qemu::world::{CR0, CR4, HANDLERS, IDT, KERNEL_CS, PROBE, PROBE_PAGE, TABLES, World};
use crate::ram::{NX, P, U, W, gate};
use crate::random::{Stream, below, one_in, pick, stream};
use iced_x86::code_asm::{byte_ptr, dword_ptr, qword_ptr, r13, rax, rcx};

const LARGE: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const CR0_WP: u64 = 1 << 16;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;
const FLAGS_AC: i32 = 0x4_0000;
/// Configurations in a program.
const ROUNDS: u32 = 24;

pub fn programs(seed: u64) -> Vec<Program> {
    let mut list: Vec<Program> = (0..24).map(|index| random(seed, index)).collect();
    list.push(edges());
    list.push(invalidation());
    list
}

/// Random table entries, then one access of each kind.
fn random(seed: u64, index: u64) -> Program {
    let mut rng = stream(seed, index);
    let mut builder = Builder::new(format!("paging {index}"));
    let slots = World::new(&[], &[]).probe_slots;
    // `ret` at both ends, so that execution comes back.
    builder.memory(PROBE_PAGE, &[0xc3; 0x1000]);
    for _ in 0..ROUNDS {
        control(&mut rng, &mut builder);
        let entries = entries(&mut rng, &slots);
        let large = entries[1].1 & LARGE != 0;
        for (slot, entry) in entries {
            builder.store(slot, entry);
        }
        builder.asm.mov(rax, TABLES).expect(OK);
        builder.asm.mov(iced_x86::code_asm::cr3, rax).expect(OK);
        accesses(&mut rng, &mut builder, large);
        // The entries as they are now, accessed and dirty bits included.
        for slot in slots {
            builder.asm.mov(rcx, qword_ptr(slot)).expect(OK);
        }
    }
    control_off(&mut builder);
    builder.finish()
}

fn control(rng: &mut Stream, builder: &mut Builder) {
    let cr0 = if one_in(rng, 3) { CR0 & !CR0_WP } else { CR0 };
    let mut cr4 = CR4;
    for bit in [CR4_SMEP, CR4_SMAP] {
        cr4 |= if one_in(rng, 2) { bit } else { 0 };
    }
    let asm = &mut builder.asm;
    asm.mov(rax, cr0).expect(OK);
    asm.mov(iced_x86::code_asm::cr0, rax).expect(OK);
    asm.mov(rax, cr4).expect(OK);
    asm.mov(iced_x86::code_asm::cr4, rax).expect(OK);
}

fn control_off(builder: &mut Builder) {
    let asm = &mut builder.asm;
    asm.mov(rax, CR0).expect(OK);
    asm.mov(iced_x86::code_asm::cr0, rax).expect(OK);
    asm.mov(rax, CR4).expect(OK);
    asm.mov(iced_x86::code_asm::cr4, rax).expect(OK);
}

/// A value for each level's entry, from the last level up.
fn entries(rng: &mut Stream, slots: &[u64; 4]) -> Vec<(u64, u64)> {
    let mut list = Vec::new();
    for (level, &slot) in slots.iter().enumerate() {
        // The page that holds the entries of the level below holds the slot of that level.
        let target = if level == 0 { PROBE_PAGE } else { slots[level - 1] & !0xfff };
        let mut entry = target | P;
        for bit in [W, U] {
            entry |= if one_in(rng, if level == 0 { 2 } else { 5 }) { 0 } else { bit };
        }
        entry |= if one_in(rng, if level == 0 { 3 } else { 8 }) { NX } else { 0 };
        if one_in(rng, if level == 0 { 8 } else { 24 }) {
            entry &= !P;
        }
        if one_in(rng, 24) {
            // Beyond the 40 bits of a physical address.
            entry |= 1 << pick(rng, &[40, 45, 51]);
        }
        if one_in(rng, 4) {
            entry |= pick(rng, &[ACCESSED, DIRTY, ACCESSED | DIRTY, 1 << 9, 1 << 52, 1 << 3, 1 << 4]);
        }
        if level == 1 && one_in(rng, 4) {
            entry = entry & !0x001f_ffff | LARGE | entry & 0xfff | pick(rng, &[0, 0, 0, 1 << 13]);
        }
        if level == 3 && one_in(rng, 24) {
            entry |= LARGE;
        }
        list.push((slot, entry));
    }
    list
}

/// QEMU reports the read of a read-modify-write access where the architecture reports a write, so there are none here; the
/// host judges them.
fn accesses(rng: &mut Stream, builder: &mut Builder, large: bool) {
    // With a large page the probe's page is at its offset in the first 2 MiB.
    let page = PROBE + if large { PROBE_PAGE } else { 0 };
    let address = page + u64::from(below(rng, 0xff0));
    let kinds = 1 + below(rng, 3);
    for _ in 0..kinds {
        match below(rng, 10) {
            0 | 1 => builder.attempt(|asm| {
                asm.mov(r13, address).expect(OK);
                asm.mov(rcx, qword_ptr(r13)).expect(OK);
            }),
            2 | 3 => builder.attempt(|asm| {
                asm.mov(r13, address).expect(OK);
                asm.mov(byte_ptr(r13), 0xc3).expect(OK);
            }),
            4 => builder.attempt(|asm| {
                asm.mov(r13, address).expect(OK);
                asm.call(r13).expect(OK);
            }),
            5 => with_ac(builder, address),
            6 => builder.user(|asm| {
                asm.mov(r13, address).expect(OK);
                asm.mov(rcx, qword_ptr(r13)).expect(OK);
            }),
            7 => builder.user(|asm| {
                asm.mov(r13, address).expect(OK);
                asm.mov(dword_ptr(r13), 0xc3c3_c3c3u32 as i32).expect(OK);
            }),
            8 => builder.user(|asm| {
                asm.mov(r13, address).expect(OK);
                asm.call(r13).expect(OK);
            }),
            // Across the end of the page: the next one is not mapped, or part of the large page.
            _ => builder.attempt(|asm| {
                asm.mov(r13, page + 0xffd).expect(OK);
                asm.mov(rcx, qword_ptr(r13)).expect(OK);
            }),
        }
    }
}

/// A supervisor's access with EFLAGS.AC set, which SMAP lets through; then without again.
fn with_ac(builder: &mut Builder, address: u64) {
    builder.attempt(|asm| {
        asm.pushfq().expect(OK);
        asm.or(dword_ptr(iced_x86::code_asm::rsp), FLAGS_AC).expect(OK);
        asm.popfq().expect(OK);
        asm.mov(r13, address & !7).expect(OK);
        asm.mov(rcx, qword_ptr(r13)).expect(OK);
        asm.mov(qword_ptr(r13), rcx).expect(OK);
    });
    let asm = &mut builder.asm;
    asm.pushfq().expect(OK);
    asm.and(dword_ptr(iced_x86::code_asm::rsp), !FLAGS_AC).expect(OK);
    asm.popfq().expect(OK);
}

/// Canonical bounds and the end of the address space. Accesses across them are the host's: QEMU looks at pages one by one.
fn edges() -> Program {
    let mut builder = Builder::new("paging edges");
    // Stacks of their own for what a bad stack pointer raises.
    for (vector, ist) in [(8u64, 2), (12, 1), (14, 1)] {
        builder.word(IDT + vector * 16, gate(KERNEL_CS, HANDLERS + vector * 16, ist, 0x8e)[0]);
    }
    let addresses =
        [0x7fff_ffff_fff8u64, 0x8000_0000_0000, 0xffff_7fff_ffff_ffff, 0xffff_8000_0000_0000, 0xffff_ffff_ffff_fff8, 0];
    for address in addresses {
        builder.attempt(|asm| {
            asm.mov(r13, address).expect(OK);
            asm.mov(rcx, qword_ptr(r13)).expect(OK);
        });
        // QEMU checks the target of a jump only when it fetches there.
        let canonical = (address << 16) as i64 >> 16 == address as i64;
        if canonical {
            builder.attempt(|asm| {
                asm.mov(r13, address).expect(OK);
                asm.jmp(r13).expect(OK);
            });
            builder.user(|asm| {
                asm.mov(r13, address).expect(OK);
                asm.jmp(r13).expect(OK);
            });
        }
        builder.user(|asm| {
            asm.mov(r13, address).expect(OK);
            asm.mov(qword_ptr(r13), r13).expect(OK);
        });
    }
    builder.finish()
}

/// Entries change between accesses, each change made known with INVLPG.
fn invalidation() -> Program {
    let mut builder = Builder::new("paging invalidation");
    let slot = World::new(&[], &[]).probe_slots[0];
    for flags in [P | W, P, 0, P | W | U, P | U, P | W | NX, P | W] {
        builder.store(slot, PROBE_PAGE | flags);
        builder.asm.mov(r13, PROBE + 8).expect(OK);
        builder.asm.invlpg(byte_ptr(r13)).expect(OK);
        builder.attempt(|asm| asm.mov(qword_ptr(r13), r13).expect(OK));
        builder.attempt(|asm| asm.mov(rcx, qword_ptr(r13)).expect(OK));
        builder.asm.mov(rcx, qword_ptr(slot)).expect(OK);
    }
    builder.finish()
}
