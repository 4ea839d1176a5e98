// SPDX-License-Identifier: AGPL-3.0-or-later
//! Both tiers side by side: they agree on programs, and a difference is seen and shown.

use crate::config::Config;
use crate::lockstep::Lockstep;
use crate::memory::RamRegion;
use crate::state::CpuState;
use crate::tests::on_reference::guest::{CODE, DATA, Guest, HANDLERS};
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

/// Calls and returns that do not pair, deeper than any host stack remembers, to address 0, and across flushes and stores to code.
fn odd_calls(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let (mut again, mut deeper, mut bottom, mut plain) =
        (a.create_label(), a.create_label(), a.create_label(), a.create_label());
    let (mut skips, mut never, mut flushes, mut writes, mut drops) =
        (a.create_label(), a.create_label(), a.create_label(), a.create_label(), a.create_label());
    let (mut dropped, mut landed, mut from_zero) = (a.create_label(), a.create_label(), a.create_label());
    a.mov(r15d, 300)?;
    a.set_label(&mut again)?;
    // Deeper than what is remembered.
    a.mov(ecx, 700)?;
    a.call(deeper)?;
    // Through a register and through memory.
    a.lea(rax, qword_ptr(plain))?;
    a.call(rax)?;
    a.mov(qword_ptr(DATA), rax)?;
    a.call(qword_ptr(DATA))?;
    // The callee returns three bytes behind where it was called from.
    a.call(skips)?;
    a.jmp(never)?;
    a.nop()?;
    // The callee never returns; then a return without a call.
    a.call(drops)?;
    a.set_label(&mut dropped)?;
    a.lea(rax, qword_ptr(landed))?;
    a.push(rax)?;
    a.ret()?;
    a.set_label(&mut landed)?;
    // To address 0, where a jump leads back.
    a.lea(rdx, qword_ptr(from_zero))?;
    a.push(0i32)?;
    a.ret()?;
    a.set_label(&mut from_zero)?;
    a.call(flushes)?;
    a.call(writes)?;
    a.dec(r15d)?;
    a.jne(again)?;
    // Not canonical.
    a.mov(rax, 0x1234_5678_9abc_def0u64)?;
    a.push(rax)?;
    a.ret()?;
    a.set_label(&mut never)?;
    a.ud2()?;

    a.set_label(&mut deeper)?;
    a.dec(ecx)?;
    a.je(bottom)?;
    a.push(rcx)?;
    a.call(deeper)?;
    a.pop(rcx)?;
    a.add(rbx, rcx)?;
    a.set_label(&mut bottom)?;
    a.ret()?;
    a.set_label(&mut plain)?;
    a.inc(rbx)?;
    a.ret()?;
    a.set_label(&mut skips)?;
    // A short jump takes two bytes, a near one five: both with NOP behind them.
    a.mov(rsi, qword_ptr(rsp))?;
    a.movzx(edi, byte_ptr(rsi))?;
    a.cmp(edi, 0xeb)?;
    a.mov(edi, 3)?;
    a.mov(esi, 6)?;
    a.cmovne(edi, esi)?;
    a.add(qword_ptr(rsp), rdi)?;
    a.push(rdi)?;
    a.call(plain)?;
    a.pop(rdi)?;
    a.ret()?;
    a.set_label(&mut drops)?;
    a.add(rsp, 8)?;
    a.jmp(dropped)?;
    a.set_label(&mut flushes)?;
    a.mov(rax, cr3)?;
    a.mov(cr3, rax)?;
    a.ret()?;
    a.set_label(&mut writes)?;
    a.test(r15d, 31)?;
    a.jne(bottom)?;
    a.mov(rsi, qword_ptr(rsp))?;
    a.mov(al, byte_ptr(rsi))?;
    a.mov(byte_ptr(rsi), al)?;
    a.ret()
}

#[test]
fn both_tiers_agree_on_calls_and_returns_that_do_not_pair() {
    let mut guest = Guest::new(|a| odd_calls(a).expect("the program assembles"));
    guest.assemble(0, |a| a.jmp(rdx).expect("assembles"));
    let (mut lockstep, _) = both(&mut guest);
    assert_eq!(lockstep.run(10_000_000), Ok(Exit::Halted));
    let state = lockstep.cpu().state();
    assert_eq!((state.gpr[15], (state.rip - 1 - HANDLERS) / 16), (0, 13));
    assert!(lockstep.cpu().compiled_progress() > 1_000_000, "hardly anything was compiled");
}
