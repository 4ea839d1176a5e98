// SPDX-License-Identifier: AGPL-3.0-or-later
//! Rules that no other CPU can judge: counting, edges, time, the CPU model.

use chaoscontrol_cpu::{Config, Cpu, CpuState, Exit};
use chaoscontrol_cpu_oracle::qemu::programs::{Builder, OK};
use chaoscontrol_cpu_oracle::qemu::world::{DATA, HANDLERS, START, World};
use chaoscontrol_cpu_oracle::stops::{Policy, run};
use iced_x86::code_asm;

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;

/// Runs `code` at [`START`] for each budget in turn and returns the states at the stops.
fn states(code: &[u8], registers: &[(usize, u64)], budgets: &[u64]) -> Vec<CpuState> {
    let mut world = World::new(code, &[]);
    registers.iter().for_each(|&(register, value)| world.state.gpr[register] = value);
    // SAFETY: the world lives to the end of this function, and its RAM is not used meanwhile.
    let mut cpu = Cpu::new(unsafe { world.ram.view() }, &Config::default());
    cpu.set_state(&world.state).expect("the first state is valid");
    let mut stops = Vec::new();
    for &budget in budgets {
        assert_eq!(cpu.run(budget), Exit::BudgetUsed);
        stops.push(cpu.state());
    }
    stops
}

#[test]
fn iterations_and_exceptions_count_one_each() {
    // mov ecx, 5; mov edi, DATA; rep stosb; rep stosb (count 0); ud2
    let mut code = vec![0xb9, 5, 0, 0, 0, 0xbf];
    code.extend((DATA as u32).to_le_bytes());
    code.extend([0xf3, 0xaa, 0xf3, 0xaa, 0x0f, 0x0b]);
    let stops = states(&code, &[], &[4, 3, 1, 1]);
    assert_eq!((stops[0].rip, stops[0].gpr[RCX], stops[0].instructions), (START + 10, 3, 4));
    assert_eq!((stops[1].rip, stops[1].gpr[RCX], stops[1].instructions), (START + 12, 0, 7));
    assert_eq!((stops[2].rip, stops[2].instructions), (START + 14, 8));
    assert_eq!((stops[3].rip, stops[3].instructions), (HANDLERS + 6 * 16, 9));
}

#[test]
fn a_budget_of_nothing_does_nothing() {
    let stops = states(&[0x90], &[], &[0, 1]);
    assert_eq!((stops[0].rip, stops[1].rip), (START, START + 1));
}

#[test]
fn edges_are_those_of_retired_transfers_alone() {
    let mut builder = Builder::new("edges");
    let asm = &mut builder.asm;
    let (mut top, mut function, mut over) = (asm.create_label(), asm.create_label(), asm.create_label());
    asm.mov(code_asm::ecx, 3u32).expect(OK);
    asm.set_label(&mut top).expect(OK);
    asm.dec(code_asm::ecx).expect(OK);
    asm.jnz(top).expect(OK);
    asm.call(function).expect(OK);
    asm.jmp(over).expect(OK);
    asm.set_label(&mut function).expect(OK);
    asm.ret().expect(OK);
    asm.set_label(&mut over).expect(OK);
    asm.nop().expect(OK);
    builder.attempt(|asm| asm.ud2().expect(OK));
    let program = builder.finish();
    let ending = run(program.world(), Policy::Straight).expect("it ends");
    let counts: Vec<u8> = ending.coverage.iter().copied().filter(|&count| count > 0).collect();
    // JNZ taken twice and not taken once, CALL, RET, JMP, the handler's JMP, and the JMP at the end; no edge for the
    // exception or its IRET.
    assert_eq!(counts.len(), 7, "{counts:?}");
    assert_eq!(counts.iter().map(|&count| u32::from(count)).sum::<u32>(), 8);
}

#[test]
fn time_comes_from_the_count() {
    // rdtsc; mov ebx, eax; nop; nop; rdtsc
    let stops = states(&[0x0f, 0x31, 0x89, 0xc3, 0x90, 0x90, 0x0f, 0x31], &[(RAX, u64::MAX), (RDX, u64::MAX)], &[5]);
    assert_eq!(stops[0].gpr[RAX] - stops[0].gpr[RBX], 4 * 10, "ten ticks an instruction by default");
    assert_eq!(stops[0].gpr[RDX], 0);
    let single = states(&[0x0f, 0x31, 0x89, 0xc3, 0x90, 0x90, 0x0f, 0x31], &[], &[1, 1, 1, 1, 1]);
    assert_eq!(single[4].gpr[RAX], stops[0].gpr[RAX]);
}

/// EAX, EBX, ECX, EDX of a leaf.
fn cpuid(leaf: u32, subleaf: u32) -> [u64; 4] {
    let stops = states(&[0x0f, 0xa2], &[(RAX, leaf.into()), (RCX, subleaf.into())], &[1]);
    [RAX, RBX, RCX, RDX].map(|register| stops[0].gpr[register])
}

#[test]
fn the_model_is_fixed() {
    let [_, ebx, ecx, edx] = cpuid(0, 0);
    assert_eq!((ebx, edx, ecx), (0x6874_7541, 0x6974_6e65, 0x444d_4163), "AuthenticAMD");
    let [_, _, ecx, edx] = cpuid(1, 0);
    let bits = |value: u64, list: &[u32]| list.iter().all(|bit| value >> bit & 1 == 1);
    let none = |value: u64, list: &[u32]| list.iter().all(|bit| value >> bit & 1 == 0);
    // FPU, TSC, MSR, PAE, CX8, APIC, PGE, CMOV, CLFSH, MMX, FXSR, SSE, SSE2 (APM 3, E.3.2).
    assert!(bits(edx, &[0, 4, 5, 6, 8, 9, 13, 15, 19, 23, 24, 25, 26]), "{edx:#x}");
    // SSE3, SSSE3, CX16, SSE4.1, SSE4.2, POPCNT.
    assert!(bits(ecx, &[0, 9, 13, 19, 20, 23]), "{ecx:#x}");
    // No XSAVE, OSXSAVE, AVX, F16C, RDRAND, hypervisor.
    assert!(none(ecx, &[26, 27, 28, 29, 30, 31]), "{ecx:#x}");
    let [_, _, _, edx] = cpuid(0x8000_0001, 0);
    // SYSCALL, NX, long mode; no RDTSCP.
    assert!(bits(edx, &[11, 20, 29]) && none(edx, &[27]), "{edx:#x}");
    // RDRAND and RDSEED are undefined, not only hidden.
    let stops = states(&[0x0f, 0xc7, 0xf0], &[], &[1]);
    assert_eq!(stops[0].rip, HANDLERS + 6 * 16);
    assert_eq!(cpuid(7, 0)[1] >> 18 & 1, 0);
    assert_eq!(cpuid(0x4000_0000, 0), cpuid(0x4000_0001, 0), "no hypervisor leaves");
}
