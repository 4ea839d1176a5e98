// SPDX-License-Identifier: AGPL-3.0-or-later
//! Both tiers side by side: they agree on programs, and a difference is seen and shown.

use crate::config::Config;
use crate::lockstep::Lockstep;
use crate::memory::RamRegion;
use crate::state::CpuState;
use crate::tests::on_reference::guest::{CODE, DATA, Guest};
use crate::{Exit, Tier};
use iced_x86::code_asm::*;

/// Sums squares into memory until a counter runs out.
fn program(a: &mut CodeAssembler) {
    let mut again = a.create_label();
    let mut build = |a: &mut CodeAssembler| -> Result<(), IcedError> {
        a.mov(ecx, 20_000)?;
        a.mov(edi, DATA as u32)?;
        a.set_label(&mut again)?;
        a.mov(eax, ecx)?;
        a.imul_2(eax, eax)?;
        a.add(qword_ptr(rdi), rax)?;
        a.push(rax)?;
        a.pop(rdx)?;
        a.adc(rbx, rdx)?;
        a.dec(ecx)?;
        a.jne(again)?;
        a.hlt()
    };
    build(a).expect("the program assembles");
}

/// The guest's memory under both tiers, and its first state.
fn both(guest: &mut Guest) -> (Lockstep, CpuState) {
    let memory = guest.memory();
    let region =
        RamRegion { address: 0, bytes: size_of_val(memory) as u64, pointer: memory.as_ptr().cast_mut().cast() };
    let config = Config { tier: Tier::Compiled, hot_executions: 2, code_bytes: 1 << 20, ..Config::default() };
    // SAFETY: the guest outlives the CPUs made here, and its own CPU does not run meanwhile.
    let mut lockstep = unsafe { Lockstep::new(&[region], &config) }.expect("one region");
    let state = guest.cpu.state();
    lockstep.set_state(&state).expect("a valid state");
    (lockstep, state)
}

#[test]
fn both_tiers_agree_and_leave_what_one_leaves() {
    let mut alone = Guest::new(program);
    let ended = alone.run_to_halt();
    let mut guest = Guest::new(program);
    let (mut lockstep, _) = both(&mut guest);
    assert_eq!(lockstep.run(1_000_000), Ok(Exit::Halted));
    assert_eq!(lockstep.cpu().state(), ended);
    assert_eq!(guest.get::<u64>(DATA), alone.get::<u64>(DATA));
    assert!(lockstep.cpu().compiled_progress() > 100_000, "hardly anything was compiled");
    let mut dirty = Vec::new();
    lockstep.take_dirty_pages(&mut |page| dirty.push(page));
    assert!(dirty.contains(&(DATA >> 12)), "{dirty:x?}");
}

#[test]
fn a_register_that_differs_is_seen_and_the_code_before_it_is_shown() {
    let mut guest = Guest::new(program);
    let (mut lockstep, _) = both(&mut guest);
    assert_eq!(lockstep.run(5_000), Ok(Exit::BudgetUsed));
    lockstep.plant_difference();
    let text = lockstep.run(5_000).expect_err("a difference was planted").to_string();
    assert!(text.contains("register 3"), "{text}");
    assert!(text.contains("imul eax,eax"), "{text}");
}

#[test]
fn memory_that_differs_is_seen() {
    let mut guest = Guest::new(program);
    let (mut lockstep, _) = both(&mut guest);
    assert_eq!(lockstep.run(5_000), Ok(Exit::BudgetUsed));
    // Somebody changes memory and tells nobody.
    guest.put(DATA + 1, 7u8);
    let text = lockstep.run(5_000).expect_err("a difference was planted").to_string();
    assert!(text.contains(&format!("byte {:#x}", DATA + 1)), "{text}");
    assert_eq!(guest.cpu.state().rip, CODE);
}
