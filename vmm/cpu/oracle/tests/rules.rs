// SPDX-License-Identifier: AGPL-3.0-or-later
//! Rules that no other CPU can judge: counting, edges, time, the CPU model.

use chaoscontrol_cpu::state::{Segment, seg};
use chaoscontrol_cpu::{Config, Cpu, CpuState, Exit};
use chaoscontrol_cpu_oracle::qemu::programs::{Builder, OK};
use chaoscontrol_cpu_oracle::qemu::world::{CR0, CR4, DATA, HANDLERS, START, USER_CODE, World};
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
    let ending = run(program.world(), Policy::Straight).expect("a valid state");
    assert_eq!(ending.end, Exit::Halted);
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

/// Runs `code` in ring 3 of a 32-bit segment; FS is `segment`. Returns the vector of the exception that ends it, if one does.
fn in_segment(code: &[u8], segment: Segment) -> Option<u64> {
    let mut world = World::new(&[], code);
    let user = Segment { selector: 0x2b, base: 0, limit: u32::MAX, attributes: 0xc0f3 };
    world.state.segments = [user; 6];
    world.state.segments[seg::CS] = Segment { selector: 0x23, base: 0, limit: u32::MAX, attributes: 0xc0fb };
    world.state.segments[seg::FS] = segment;
    world.state.rip = USER_CODE;
    // SAFETY: the world lives to the end of this function, and its RAM is not used meanwhile.
    let mut cpu = Cpu::new(unsafe { world.ram.view() }, &Config::default());
    cpu.set_state(&world.state).expect("the state is valid");
    assert_eq!(cpu.run(1), Exit::BudgetUsed);
    let rip = cpu.state().rip;
    (HANDLERS..HANDLERS + 0x1000).contains(&rip).then(|| (rip - HANDLERS) / 16)
}

/// APM 2, 4.5.3, 4.7.2 and 4.12: limits, expand-down, types and presence of data segments in compatibility mode.
#[test]
fn segments_are_checked_in_compatibility_mode() {
    const GP: Option<u64> = Some(13);
    let load = |offset: u32| [&[0x64, 0xa1][..], &offset.to_le_bytes()].concat();
    let store = |offset: u32| [&[0x64, 0xa3][..], &offset.to_le_bytes()].concat();
    let segment = |limit: u32, attributes: u16| Segment { selector: 0x103, base: DATA, limit, attributes };
    let writable = segment(0xfff, 0x40f3);
    for (offset, expected) in [(0, None), (0xffc, None), (0xffd, GP), (0x1000, GP), (0xffff_fffe, GP)] {
        assert_eq!(in_segment(&load(offset), writable), expected, "load at {offset:#x}");
        assert_eq!(in_segment(&store(offset), writable), expected, "store at {offset:#x}");
    }
    let read_only = segment(0xfff, 0x40f1);
    assert_eq!((in_segment(&load(0), read_only), in_segment(&store(0), read_only)), (None, GP));
    let expand_down = segment(0xff, 0x40f7);
    for (offset, expected) in [(0, GP), (0xff, GP), (0x100, None), (0x2000_0000, Some(14))] {
        assert_eq!(in_segment(&load(offset), expand_down), expected, "expand-down load at {offset:#x}");
    }
    let code = segment(0xfff, 0x40fb);
    assert_eq!((in_segment(&load(0), code), in_segment(&store(0), code)), (None, GP), "readable code");
    let execute_only = segment(0xfff, 0x40f9);
    assert_eq!(in_segment(&load(0), execute_only), GP);
    assert_eq!(in_segment(&load(0), segment(0xfff, 0x4073)), GP, "not present");
    assert_eq!(in_segment(&load(0), Segment::default()), GP, "null");
}

/// APM 2, 3.1.1 and 3.1.3: values of control registers that raise #GP.
#[test]
fn impossible_control_registers_are_refused() {
    let refused = |opcode: &[u8], value: u64| states(opcode, &[(RAX, value)], &[1])[0].rip == HANDLERS + 13 * 16;
    let (cr0, cr4, cr8) = ([0x0f, 0x22, 0xc0], [0x0f, 0x22, 0xe0], [0x44, 0x0f, 0x22, 0xc0]);
    for value in [CR0 & !1, CR0 & !(1 << 31), CR0 | 1 << 29, CR0 | 1 << 32] {
        assert!(refused(&cr0, value), "cr0 {value:#x}");
    }
    for value in [CR4 & !(1 << 5), CR4 | 1 << 63, CR4 | 1 << 31] {
        assert!(refused(&cr4, value), "cr4 {value:#x}");
    }
    assert!(!refused(&cr0, CR0) && !refused(&cr4, CR4));
    assert!(refused(&cr8, 16) && refused(&cr8, 1 << 32));
}
