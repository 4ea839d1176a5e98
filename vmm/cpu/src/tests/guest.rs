// SPDX-License-Identifier: AGPL-3.0-or-later
//! A guest of a few pages: identity-mapped, with descriptor tables and one handler stub a vector.
//!
//! | address | what |
//! |---|---|
//! | 0x1000 to 0x5fff | page tables: one of each level, and the last level for the first 2 MiB |
//! | 0x6000 | GDT: 0x08 kernel code, 0x10 kernel data, 0x1b user code 32, 0x23 user data, 0x2b user code 64, 0x30 TSS |
//! | 0x7000 | TSS with RSP0 and IST1 |
//! | 0x8000 | IDT: vector n enters at `HANDLERS + 16 * n` |
//! | 0xa000 | handlers: HLT each unless a test writes something else |
//! | 0x10000 | code |
//! | 0x20000 | data |
//! | 0x30000 | top of the stack of whoever runs first; 0x34000 and 0x38000 are RSP0 and IST1 |

use crate::state::{CpuState, DescriptorTable, Segment, seg};
use crate::{Config, Cpu, Exit, GuestRam, RamRegion};
use iced_x86::code_asm::CodeAssembler;

pub const TABLES: u64 = 0x1000;
pub const LAST_TABLE: u64 = 0x4000;
pub const TSS: u64 = 0x7000;
pub const IDT: u64 = 0x8000;
pub const HANDLERS: u64 = 0xa000;
pub const CODE: u64 = 0x10000;
pub const DATA: u64 = 0x20000;
pub const STACK: u64 = 0x30000;
pub const RSP0: u64 = 0x34000;
pub const IST1: u64 = 0x38000;
/// Physical and linear address that is mapped but is not RAM.
pub const OUTSIDE: u64 = 0x18_0000;
const RAM_BYTES: usize = 0x10_0000;
const MAPPED_PAGES: u64 = 512;

/// Usual sizes, and the tier of this run of the tests.
pub fn config() -> Config {
    Config { tier: super::TIER, hot_executions: 1, code_bytes: 1 << 20, ..Config::default() }
}

/// RAM that lives as long as its CPU.
pub struct Guest {
    pub cpu: Cpu,
    ram: Box<[u64]>,
}

impl Guest {
    /// A ring-0 guest with usual caches that runs what `program` assembles.
    pub fn new(program: impl FnOnce(&mut CodeAssembler)) -> Self {
        Self::with_config(&config(), program)
    }

    pub fn with_config(config: &Config, program: impl FnOnce(&mut CodeAssembler)) -> Self {
        Self::with_cpus(config, 1, program).0
    }

    /// The guest's CPU, and others that share its RAM and start in the same state.
    pub fn with_cpus(config: &Config, count: usize, program: impl FnOnce(&mut CodeAssembler)) -> (Self, Vec<Cpu>) {
        let mut ram = vec![0u64; RAM_BYTES / 8].into_boxed_slice();
        let pointer = ram.as_mut_ptr().cast::<u8>();
        let region = RamRegion { address: 0, bytes: RAM_BYTES as u64, pointer };
        // SAFETY: `ram` is kept beside the CPUs, and tests touch it only between the CPUs' methods, one CPU at a time.
        let memory = unsafe { GuestRam::new(&[region]) }.expect("one aligned region");
        let mut cpus: Vec<Cpu> = memory.share(count).into_iter().map(|memory| Cpu::new(memory, config)).collect();
        let mut guest = Self { cpu: cpus.remove(0), ram };
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        assert_eq!(guest.cpu.compiles(), config.tier == crate::Tier::Compiled, "a test of a tier runs on that tier");
        guest.build_tables();
        guest.assemble(CODE, program);
        for cpu in std::iter::once(&mut guest.cpu).chain(&mut cpus) {
            cpu.set_state(&initial_state()).expect("a valid state");
        }
        (guest, cpus)
    }

    fn build_tables(&mut self) {
        self.put(TABLES, 0x2007u64);
        self.put(0x2000, 0x3007u64);
        self.put(0x3000, LAST_TABLE | 7);
        for page in 0..MAPPED_PAGES {
            self.put(LAST_TABLE + page * 8, page << 12 | 7);
        }
        let gdt = [0u64, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x00cf_fb00_0000_ffff, 0x00cf_f300_0000_ffff];
        for (index, descriptor) in gdt.into_iter().enumerate() {
            self.put(0x6000 + index as u64 * 8, descriptor);
        }
        self.put(0x6028, 0x00af_fb00_0000_ffffu64);
        self.put(0x6030, 0x0000_8900_0000_0067u64 | TSS << 16);
        self.put(TSS + 4, RSP0);
        self.put(TSS + 36, IST1);
        self.put(TSS + 102, 0x68u16);
        for vector in 0..256 {
            self.set_gate(vector, 0x8e, 0);
            self.put(HANDLERS + vector * 16, 0xf4u8);
        }
    }

    /// Points a vector at its handler with the given attributes and stack index.
    pub fn set_gate(&mut self, vector: u64, attributes: u64, stack: u64) {
        let target = HANDLERS + vector * 16;
        self.put(
            IDT + vector * 16,
            (target & 0xffff) | 8 << 16 | stack << 32 | attributes << 40 | (target >> 16) << 48,
        );
        self.put(IDT + vector * 16 + 8, target >> 32);
    }

    /// Assembles at an address; the CPU is told.
    pub fn assemble(&mut self, address: u64, program: impl FnOnce(&mut CodeAssembler)) {
        self.assemble_for(64, address, program);
    }

    pub fn assemble_for(&mut self, bits: u32, address: u64, program: impl FnOnce(&mut CodeAssembler)) {
        let mut assembler = CodeAssembler::new(bits).expect("a bitness");
        program(&mut assembler);
        let bytes = assembler.assemble(address).expect("a program");
        for (index, byte) in bytes.into_iter().enumerate() {
            self.put(address + index as u64, byte);
        }
        self.cpu.memory_changed(address, 4096);
    }

    pub fn put<T: Copy>(&mut self, address: u64, value: T) {
        assert!(address as usize + size_of::<T>() <= RAM_BYTES);
        // SAFETY: the range was checked; `T` is a plain integer in every use.
        unsafe { self.ram.as_mut_ptr().cast::<u8>().add(address as usize).cast::<T>().write_unaligned(value) };
    }

    pub fn get<T: Copy>(&self, address: u64) -> T {
        assert!(address as usize + size_of::<T>() <= RAM_BYTES);
        // SAFETY: as in `put`.
        unsafe { self.ram.as_ptr().cast::<u8>().add(address as usize).cast::<T>().read_unaligned() }
    }

    /// All of RAM.
    pub fn memory(&self) -> &[u64] {
        &self.ram
    }

    pub fn change_state(&mut self, change: impl FnOnce(&mut CpuState)) {
        let mut state = self.cpu.state();
        change(&mut state);
        self.cpu.set_state(&state).expect("a valid state");
    }

    /// Starts in ring 3 instead, 64-bit.
    pub fn enter_user(&mut self) {
        self.change_state(|state| {
            state.segments[seg::CS] = Segment { selector: 0x2b, limit: !0, attributes: 0xa0fb, base: 0 };
            for register in [seg::SS, seg::DS, seg::ES] {
                state.segments[register] = Segment { selector: 0x23, limit: !0, attributes: 0xc0f3, base: 0 };
            }
        });
    }

    /// Starts in ring 3, compatibility mode.
    pub fn enter_compatibility(&mut self) {
        self.enter_user();
        self.change_state(|state| {
            state.segments[seg::CS] = Segment { selector: 0x1b, limit: !0, attributes: 0xc0fb, base: 0 };
        });
    }

    /// Runs to HLT.
    pub fn run_to_halt(&mut self) -> CpuState {
        let exit = self.cpu.run(1_000_000);
        assert_eq!(exit, Exit::Halted, "at {:#x}", self.cpu.state().rip);
        self.cpu.state()
    }

    /// The vector whose handler the CPU halted in, and the error code it was given.
    pub fn fault_taken(&mut self) -> (u64, u64) {
        let state = self.run_to_halt();
        ((state.rip - 1 - HANDLERS) / 16, self.get(state.gpr[4]))
    }
}

fn initial_state() -> CpuState {
    let mut state = CpuState {
        rip: CODE,
        rflags: 2,
        gdtr: DescriptorTable { base: 0x6000, limit: 0x3f },
        idtr: DescriptorTable { base: IDT, limit: 0xfff },
        tr: Segment { selector: 0x30, base: TSS, limit: 0x67, attributes: 0x8b },
        cr0: 0x8001_0031,
        cr3: TABLES,
        cr4: 0x620,
        dr6: 0xffff_0ff0,
        dr7: 0x400,
        mxcsr: 0x1f80,
        ..CpuState::default()
    };
    state.gpr[4] = STACK;
    state.msrs.efer = 0xd01;
    state.segments = [Segment { selector: 0x10, limit: !0, attributes: 0xc093, base: 0 }; 6];
    state.segments[seg::CS] = Segment { selector: 8, limit: !0, attributes: 0xa09b, base: 0 };
    state
}
