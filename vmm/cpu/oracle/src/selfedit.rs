// SPDX-License-Identifier: AGPL-3.0-or-later
//! Random ring-0 programs that edit their page tables and their own code and never flush anything, use devices and fault.

use crate::qemu::programs::{Builder, OK, Program};
use crate::qemu::world::{DATA, PROBE, PROBE_PAGE, STACK, World};
use crate::ram::{NX, P, PAGE, U, W};
use crate::random::{Stream, below, one_in, pick, stream};
use crate::stops::OUTSIDE_PAGE;
use iced_x86::code_asm::{
    al, byte_ptr, dword_ptr, dx, eax, ecx, qword_ptr, r8, r8d, r9, r12, r13, rax, rbx, rcx, rdi, rsi,
};
use rand_core::Rng;

/// Pieces of a program.
const PIECES: u32 = 40;
/// Three more physical pages for the probe.
const SPARE: [u64; 3] = [PROBE_PAGE + PAGE, PROBE_PAGE + 2 * PAGE, PROBE_PAGE + 3 * PAGE];

/// Program `index` of `seed`.
pub fn program(seed: u64, index: u64) -> Program {
    let mut rng = stream(seed, index);
    let mut builder = Builder::new(format!("self-editing {index} (seed {seed})"));
    let slots = World::new(&[], &[]).probe_slots;
    for page in [PROBE_PAGE, SPARE[0], SPARE[1], SPARE[2]] {
        // Each page holds the same function with another constant: mov eax, n; ret.
        let number = (page >> 12) as u32;
        let mut code = vec![0xb8];
        code.extend(number.to_le_bytes());
        code.push(0xc3);
        builder.memory(page + 0x100, &code);
    }
    // Beside the probe: a page outside of RAM, and one more that is not there at first.
    builder.word(slots[0] + 8, OUTSIDE_PAGE | P | W);
    for _ in 0..PIECES {
        piece(&mut rng, &mut builder, &slots);
    }
    builder.finish()
}

fn piece(rng: &mut Stream, builder: &mut Builder, slots: &[u64; 4]) {
    match below(rng, 14) {
        0..=2 => edit_table(rng, builder, slots),
        3 => call_probe(builder),
        4 => {
            let offset = u64::from(below(rng, 0xff0));
            builder.attempt(|asm| {
                asm.mov(r13, PROBE + offset).expect(OK);
                asm.add(qword_ptr(r13), 3).expect(OK);
            });
        }
        5 => edit_ahead(rng, builder),
        6 => edit_loop(rng, builder),
        7 => copy_code(rng, builder),
        8 => device(rng, builder),
        9 => ports(rng, builder),
        10 => user(rng, builder),
        11 => builder.attempt(|asm| asm.ud2().expect(OK)),
        12 => through_two_views(rng, builder, slots),
        _ => string(rng, builder),
    }
}

/// Another page, other permissions or none, at the last level or above.
fn edit_table(rng: &mut Stream, builder: &mut Builder, slots: &[u64; 4]) {
    let level = if one_in(rng, 4) { 1 + below(rng, 3) as usize } else { 0 };
    let target =
        if level == 0 { pick(rng, &[PROBE_PAGE, SPARE[0], SPARE[1], SPARE[2]]) } else { slots[level - 1] & !0xfff };
    let mut entry = target | P | W | U;
    if one_in(rng, 3) {
        entry &= !pick(rng, &[P, W, U]);
    }
    if one_in(rng, 6) {
        entry |= NX;
    }
    builder.store(slots[level], entry);
}

fn call_probe(builder: &mut Builder) {
    builder.attempt(|asm| {
        asm.mov(r13, PROBE + 0x100).expect(OK);
        asm.call(r13).expect(OK);
        asm.add(r12, rax).expect(OK);
    });
}

/// Stores into the immediate of an instruction that follows at once, or a few instructions later.
fn edit_ahead(rng: &mut Stream, builder: &mut Builder) {
    let distance = below(rng, 4);
    let value = rng.next_u32();
    let asm = &mut builder.asm;
    let mut target = asm.create_label();
    asm.lea(rbx, qword_ptr(target)).expect(OK);
    asm.mov(dword_ptr(rbx + 1), value as i32).expect(OK);
    for _ in 0..distance {
        asm.inc(r9).expect(OK);
    }
    asm.set_label(&mut target).expect(OK);
    asm.mov(eax, 0x1111_1111u32).expect(OK);
    asm.add(r12, rax).expect(OK);
}

/// A loop that changes its own body each time around.
fn edit_loop(rng: &mut Stream, builder: &mut Builder) {
    let times = 2 + below(rng, 60);
    let asm = &mut builder.asm;
    let mut top = asm.create_label();
    let mut body = asm.create_label();
    asm.mov(ecx, times).expect(OK);
    asm.lea(rbx, qword_ptr(body)).expect(OK);
    asm.set_label(&mut top).expect(OK);
    asm.inc(r9).expect(OK);
    asm.set_label(&mut body).expect(OK);
    asm.mov(r8d, 5u32).expect(OK);
    asm.add(r12, r8).expect(OK);
    asm.inc(byte_ptr(rbx + 2)).expect(OK);
    asm.dec(ecx).expect(OK);
    asm.jnz(top).expect(OK);
}

/// Copies a function over another with REP MOVSB, then calls it through the probe.
fn copy_code(rng: &mut Stream, builder: &mut Builder) {
    let (from, to) = (pick(rng, &SPARE), pick(rng, &[PROBE_PAGE, SPARE[0], SPARE[2]]));
    let asm = &mut builder.asm;
    asm.mov(rsi, from + 0x100).expect(OK);
    asm.mov(rdi, to + 0x100).expect(OK);
    asm.mov(ecx, 6u32).expect(OK);
    asm.rep().movsb().expect(OK);
    call_probe(builder);
}

/// Loads, stores and read-modify-write outside of RAM, also across the end of the page.
fn device(rng: &mut Stream, builder: &mut Builder) {
    let offset = if one_in(rng, 4) { 0xffc } else { u64::from(below(rng, 0xff0)) };
    let kind = below(rng, 5);
    builder.attempt(|asm| {
        asm.mov(r13, PROBE + PAGE + offset).expect(OK);
        match kind {
            0 => asm.mov(rax, qword_ptr(r13)).expect(OK),
            1 => asm.mov(dword_ptr(r13), eax).expect(OK),
            2 => asm.add(qword_ptr(r13), rcx).expect(OK),
            3 => asm.push(qword_ptr(r13)).expect(OK),
            _ => asm.cmpxchg(dword_ptr(r13), ecx).expect(OK),
        }
        asm.add(r12, rax).expect(OK);
    });
}

fn ports(rng: &mut Stream, builder: &mut Builder) {
    let kind = below(rng, 4);
    builder.attempt(|asm| {
        asm.mov(eax, 0x3f8u32).expect(OK);
        asm.mov(iced_x86::code_asm::edx, eax).expect(OK);
        asm.mov(rsi, DATA).expect(OK);
        asm.mov(rdi, DATA + 0x100).expect(OK);
        asm.mov(ecx, 5u32).expect(OK);
        match kind {
            0 => asm.in_(al, dx).expect(OK),
            1 => asm.out(dx, eax).expect(OK),
            2 => asm.rep().outsb().expect(OK),
            _ => asm.rep().insd().expect(OK),
        }
        asm.add(r12, rax).expect(OK);
    });
}

fn user(rng: &mut Stream, builder: &mut Builder) {
    let offset = u64::from(below(rng, 0xff0));
    let kind = below(rng, 3);
    builder.user(|asm| {
        asm.mov(r13, PROBE + offset).expect(OK);
        match kind {
            0 => asm.mov(rax, qword_ptr(r13)).expect(OK),
            1 => asm.mov(qword_ptr(r13), rax).expect(OK),
            _ => asm.call(r13).expect(OK),
        }
    });
}

/// Writes the probe's function by the page's own address while the probe shows it, too.
fn through_two_views(rng: &mut Stream, builder: &mut Builder, slots: &[u64; 4]) {
    let page = pick(rng, &SPARE);
    builder.store(slots[0], page | P | W);
    call_probe(builder);
    let value = rng.next_u32();
    builder.asm.mov(r13, page + 0x101).expect(OK);
    builder.asm.mov(dword_ptr(r13), value as i32).expect(OK);
    call_probe(builder);
}

/// A string instruction that runs into a page that may not be there, with the stack far away.
fn string(rng: &mut Stream, builder: &mut Builder) {
    let count = below(rng, 600);
    let start = PROBE + PAGE - u64::from(below(rng, 500));
    let kind = below(rng, 3);
    builder.attempt(|asm| {
        asm.mov(rdi, start).expect(OK);
        asm.mov(rsi, STACK - PAGE).expect(OK);
        asm.mov(ecx, count).expect(OK);
        match kind {
            0 => asm.rep().stosb().expect(OK),
            1 => asm.rep().movsd().expect(OK),
            _ => asm.repe().scasb().expect(OK),
        }
        asm.add(r12, rcx).expect(OK);
    });
}
