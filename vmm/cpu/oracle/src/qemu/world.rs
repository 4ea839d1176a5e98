// SPDX-License-Identifier: AGPL-3.0-or-later
//! The world in which lockstep programs run, on both CPUs: memory map, descriptor tables, handlers and the first state.
//!
//! All of it lies at 1 MiB and above and is mapped one to one, except for the probe page, whose table entries programs edit.

use crate::ram::{P, PAGE, PageTables, Ram, U, W, gate, segment_descriptor, system_descriptor};
use chaoscontrol_cpu::CpuState;
use chaoscontrol_cpu::state::{DescriptorTable, Segment, seg};

/// First physical byte of the world.
pub const BASE: u64 = 0x10_0000;
/// One past its last byte.
pub const END: u64 = 0x18_0000;
/// Root of the page tables.
pub const TABLES: u64 = 0x10_0000;
/// GDT, with room for what programs add.
pub const GDT: u64 = 0x11_0000;
/// Bytes of the GDT.
pub const GDT_BYTES: u64 = 0x200;
/// IDT.
pub const IDT: u64 = 0x11_1000;
/// TSS.
pub const TSS: u64 = 0x11_2000;
/// LDT, for programs that want one.
pub const LDT: u64 = 0x11_3000;
/// Exception handlers: 16 bytes a vector.
pub const HANDLERS: u64 = 0x11_4000;
/// 64-bit entry from the firmware; QEMU only.
pub const ENTRY: u64 = 0x11_6000;
/// First instruction of the program.
pub const START: u64 = 0x11_8000;
/// Where a program jumps when it is done.
pub const DONE: u64 = 0x11_7ff0;
/// Top of the stack of ring 0.
pub const STACK: u64 = 0x14_1000;
/// Top of the stack that TSS.RSP0 names.
pub const RSP0: u64 = 0x14_3000;
/// Tops of the stacks that IST1 and IST2 name.
pub const IST: [u64; 2] = [0x14_5000, 0x14_7000];
/// Ring-3 code.
pub const USER_CODE: u64 = 0x14_8000;
/// Top of the stack of ring 3.
pub const USER_STACK: u64 = 0x16_0000;
/// Data that both rings may write.
pub const DATA: u64 = 0x16_1000;
/// Physical page behind the probe.
pub const PROBE_PAGE: u64 = 0x17_0000;
/// A virtual page whose entries programs edit; nothing else shares its tables.
pub const PROBE: u64 = 0x80_0000_0000;
/// The page in which the firmware of QEMU starts.
pub const FIRMWARE: u64 = 0xffff_0000;
/// CR0 at the start: PE, MP, ET, NE, WP, AM, PG.
pub const CR0: u64 = 0x8005_0033;
/// CR4 at the start: PAE, PGE, OSFXSR, OSXMMEXCPT.
pub const CR4: u64 = 0x6a0;
/// EFER at the start: SCE, LME, LMA, NXE.
pub const EFER: u64 = 0xd01;
/// Ring-0 code.
pub const KERNEL_CS: u16 = 0x10;
/// Ring-0 data.
pub const KERNEL_DS: u16 = 0x18;
/// Ring-3 32-bit code, at STAR's base for SYSRET.
pub const USER_CS32: u16 = 0x23;
/// Ring-3 data.
pub const USER_DS: u16 = 0x2b;
/// Ring-3 64-bit code.
pub const USER_CS64: u16 = 0x33;
/// The TSS.
pub const TSS_SELECTOR: u16 = 0x40;
/// Where handlers find the address at which to go on; a supervisor page, so that SMAP does not matter.
pub const RESUME: u64 = TSS + 0x800;
/// Where the handler of [`TO_KERNEL`] finds the address at which ring 0 goes on.
pub const KERNEL_RESUME: u64 = TSS + 0x808;
/// The vector with which ring 3 ends.
pub const TO_KERNEL: u64 = 40;
const RESUME_HANDLER: u64 = HANDLERS + 0x1000;
const LEAVE_USER: u64 = HANDLERS + 0x1040;

/// Memory and first state of one program.
pub struct World {
    /// RAM, from physical address 0.
    pub ram: Ram,
    /// State at the first instruction.
    pub state: CpuState,
    /// Physical addresses of the probe's entries, from the last level up.
    pub probe_slots: [u64; 4],
    /// Which of the two it is.
    pub shape: Shape,
}

/// The kinds of worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Long mode at 1 MiB: this file.
    Long,
    /// Real mode in low memory: `start_up.rs`.
    StartUp,
}

impl Shape {
    /// First and one past the last byte of what a program may change.
    pub fn memory(self) -> (u64, u64) {
        match self {
            Self::Long => (BASE, END),
            Self::StartUp => (0, super::start_up::END),
        }
    }

    /// Linear address of the first instruction.
    pub fn start(self) -> u64 {
        match self {
            Self::Long => START,
            Self::StartUp => super::start_up::CODE16.into(),
        }
    }
}

impl World {
    /// A world with `program` at [`START`] and `user` at [`USER_CODE`].
    pub fn new(program: &[u8], user: &[u8]) -> Self {
        let mut ram = Ram::new(END as usize / PAGE as usize);
        let probe_slots = page_tables(&mut ram);
        descriptor_tables(&mut ram);
        handlers(&mut ram);
        entry(&mut ram);
        assert!(program.len() as u64 <= STACK - PAGE - START && user.len() as u64 <= USER_STACK - PAGE - USER_CODE);
        ram.write_bytes(START, program);
        // HLT, for runs without QEMU.
        ram.write_bytes(DONE, &[0xf4]);
        ram.write_bytes(USER_CODE, user);
        Self { ram, state: first_state(), probe_slots, shape: Shape::Long }
    }
}

fn page_tables(ram: &mut Ram) -> [u64; 4] {
    let mut tables = PageTables::new(TABLES);
    tables.map_range(ram, BASE, BASE, (USER_CODE - BASE) / PAGE, P | W);
    tables.map_range(ram, USER_CODE, USER_CODE, (PROBE_PAGE - USER_CODE) / PAGE, P | W | U);
    tables.map_range(ram, PROBE_PAGE, PROBE_PAGE, (END - PROBE_PAGE) / PAGE, P | W);
    // The firmware's page, which is there while paging is switched on.
    tables.map(ram, FIRMWARE, FIRMWARE, P);
    tables.map(ram, PROBE, PROBE_PAGE, P | W);
    let slot = tables.slot(ram, PROBE);
    let mut slots = [slot; 4];
    let mut table = tables.root();
    for level in (1..4).rev() {
        slots[level] = table + (PROBE >> (12 + 9 * level) & 511) * 8;
        table = ram.read(slots[level]) & 0x000f_ffff_ffff_f000;
    }
    slots
}

fn descriptor_tables(ram: &mut Ram) {
    let code = |dpl: u8, flags: u8| segment_descriptor(0x9b | dpl << 5, flags);
    let data = |dpl: u8| segment_descriptor(0x93 | dpl << 5, 0xc);
    let entries =
        [(1, code(0, 0xc)), (2, code(0, 0xa)), (3, data(0)), (4, code(3, 0xc)), (5, data(3)), (6, code(3, 0xa))];
    for (index, descriptor) in entries {
        ram.write(GDT + index * 8, descriptor);
    }
    let tss = system_descriptor(TSS, 0x67, 0x89);
    ram.write(GDT + u64::from(TSS_SELECTOR), tss[0]);
    ram.write(GDT + u64::from(TSS_SELECTOR) + 8, tss[1]);
    ram.write(TSS + 4, RSP0);
    ram.write(TSS + 36, IST[0]);
    ram.write(TSS + 44, IST[1]);
    ram.write_bytes(TSS + 102, &0x68u16.to_le_bytes());
    for vector in 0..64 {
        set_gate(ram, vector, 0, if matches!(vector, 3 | 4 | 32..=40) { 0xee } else { 0x8e });
    }
}

/// Writes the gate of a vector to its handler.
pub fn set_gate(ram: &mut Ram, vector: u64, ist: u8, kind: u8) {
    let words = gate(KERNEL_CS, HANDLERS + vector * 16, ist, kind);
    ram.write(IDT + vector * 16, words[0]);
    ram.write(IDT + vector * 16 + 8, words[1]);
}

/// Each handler drops its error code and returns to the address at [`RESUME`], in the mode that was interrupted. The one of
/// [`TO_KERNEL`] goes to the address at [`KERNEL_RESUME`] in ring 0 instead.
fn handlers(ram: &mut Ram) {
    for vector in 0..64u64 {
        let at = HANDLERS + vector * 16;
        let mut code = Vec::new();
        if matches!(vector, 8 | 10..=14 | 17 | 21) {
            // add rsp, 8
            code.extend([0x48, 0x83, 0xc4, 0x08]);
        }
        let target = if vector == TO_KERNEL { LEAVE_USER } else { RESUME_HANDLER };
        // jmp target
        let next = at + code.len() as u64 + 5;
        code.push(0xe9);
        code.extend((target.wrapping_sub(next) as u32).to_le_bytes());
        ram.write_bytes(at, &code);
    }
    // push rax; mov rax, [RESUME]; mov [rsp + 8], rax; pop rax; iretq
    let mut code = vec![0x50, 0x48, 0xa1];
    code.extend(RESUME.to_le_bytes());
    code.extend([0x48, 0x89, 0x44, 0x24, 0x08, 0x58, 0x48, 0xcf]);
    ram.write_bytes(RESUME_HANDLER, &code);
    // mov rsp, STACK; mov r15d, KERNEL_DS; mov ss, r15d; jmp [KERNEL_RESUME]. With the null SS that the interrupt has left,
    // QEMU cuts the stack pointer of transfers with 32-bit operands.
    let mut code = vec![0x48, 0xc7, 0xc4];
    code.extend((STACK as u32).to_le_bytes());
    code.extend([0x41, 0xbf, KERNEL_DS as u8, 0, 0, 0, 0x41, 0x8e, 0xd7]);
    code.extend([0xff, 0x24, 0x25]);
    code.extend((KERNEL_RESUME as u32).to_le_bytes());
    ram.write_bytes(LEAVE_USER, &code);
}

/// What QEMU still has to do in 64-bit mode to reach [`first_state`].
fn entry(ram: &mut Ram) {
    let pointers = ENTRY + 0x200;
    ram.write_bytes(pointers, &(GDT_BYTES as u16 - 1).to_le_bytes());
    ram.write(pointers + 2, GDT);
    ram.write_bytes(pointers + 16, &0x3ffu16.to_le_bytes());
    ram.write(pointers + 18, IDT);
    let mut code: Vec<u8> = Vec::new();
    let absolute = |address: u64| (address as u32).to_le_bytes();
    // lgdt, lidt
    code.extend([0x0f, 0x01, 0x14, 0x25]);
    code.extend(absolute(pointers));
    code.extend([0x0f, 0x01, 0x1c, 0x25]);
    code.extend(absolute(pointers + 16));
    // mov eax, data; mov ds, es, ss
    code.extend([0xb8, KERNEL_DS as u8, 0, 0, 0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0]);
    // xor eax, eax; mov fs, gs; lldt ax
    code.extend([0x31, 0xc0, 0x8e, 0xe0, 0x8e, 0xe8, 0x0f, 0x00, 0xd0]);
    // mov eax, tss; ltr ax
    code.extend([0xb8, TSS_SELECTOR as u8, 0, 0, 0, 0x0f, 0x00, 0xd8]);
    // fninit
    code.extend([0xdb, 0xe3]);
    // mov rsp, STACK
    code.extend([0x48, 0xc7, 0xc4]);
    code.extend(absolute(STACK));
    // push cs; push START; lretq, so that CS is loaded from the world's table
    code.extend([0x6a, KERNEL_CS as u8, 0x68]);
    code.extend(absolute(START));
    // xor of all general registers but RSP, before the far return
    let mut clear = Vec::new();
    for register in (0..16u8).filter(|&register| register != 4) {
        let rex = if register >= 8 { 0x45 } else { 0x40 };
        clear.extend([rex, 0x31, 0xc0 | (register & 7) << 3 | register & 7]);
    }
    code.extend(clear);
    // push 2; popfq
    code.extend([0x6a, 0x02, 0x9d, 0x48, 0xcb]);
    ram.write_bytes(ENTRY, &code);
}

fn first_state() -> CpuState {
    let data = Segment { selector: KERNEL_DS, base: 0, limit: u32::MAX, attributes: 0xc093 };
    let mut state = CpuState { rip: START, rflags: 2, mxcsr: 0x1f80, ..CpuState::default() };
    state.gpr[4] = STACK;
    // A TSS that was loaded is busy, in the table as well.
    state.segments = [data; 6];
    state.segments[seg::CS] = Segment { selector: KERNEL_CS, base: 0, limit: u32::MAX, attributes: 0xa09b };
    state.segments[seg::FS] = Segment::default();
    state.segments[seg::GS] = Segment::default();
    state.tr = Segment { selector: TSS_SELECTOR, base: TSS, limit: 0x67, attributes: 0x8b };
    state.gdtr = DescriptorTable { base: GDT, limit: GDT_BYTES as u16 - 1 };
    state.idtr = DescriptorTable { base: IDT, limit: 0x3ff };
    state.cr0 = CR0;
    state.cr3 = TABLES;
    state.cr4 = CR4;
    state.msrs.efer = EFER;
    state.msrs.pat = 0x0007_0406_0007_0406;
    state.dr6 = 0xffff_0ff0;
    state.dr7 = 0x400;
    state
}
