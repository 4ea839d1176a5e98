// SPDX-License-Identifier: AGPL-3.0-or-later
//! The world of start-up programs: real mode as a start-up message leaves a CPU, in the first 512 KiB.
//!
//! | address | what |
//! |---|---|
//! | 0 | interrupt vector table |
//! | 0x600, 0x604 | where handlers go on: a word for 16-bit code, a double word for 32-bit code |
//! | 0x800, 0xc00 | GDT, IDT of protected mode |
//! | 0x1000 | TSS |
//! | 0x2000 to 0x3fff | data |
//! | 0x6000, 0x6800, 0x6c00 | tops of stacks: first, ring 0 from ring 3, ring 3 |
//! | 0x7000 | what the firmware of QEMU looks at |
//! | 0x8000 | 16-bit code, CS = 0x800 |
//! | 0xf000 | 16-bit handlers, 8 bytes a vector |
//! | 0x10000 | 32-bit code |
//! | 0x1c000 | 32-bit handlers, 16 bytes a vector |
//! | 0x20000 | page tables |

use super::world::{Shape, World};
use crate::ram::Ram;
use chaoscontrol_cpu::CpuState;
use chaoscontrol_cpu::state::{DescriptorTable, Segment, seg};

/// Where 16-bit handlers find the offset at which to go on.
pub const RESUME16: u16 = 0x600;
/// Where 32-bit handlers find the address at which to go on.
pub const RESUME32: u32 = 0x604;
/// GDT of protected and long mode.
pub const GDT: u32 = 0x800;
/// Bytes of the GDT.
pub const GDT_BYTES: u16 = 0x80;
/// IDT of protected mode.
pub const IDT: u32 = 0xc00;
/// TSS of protected mode.
pub const TSS: u32 = 0x1000;
/// Data.
pub const DATA: u32 = 0x2000;
/// Top of the first stack.
pub const STACK: u32 = 0x6000;
/// Top of the stack that the TSS names.
pub const INNER_STACK: u32 = 0x6800;
/// Top of the stack of ring 3.
pub const USER_STACK: u32 = 0x6c00;
/// The firmware starts at the far pointer behind this word if the word is not zero.
pub const MARK: u64 = 0x7000;
/// 16-bit code.
pub const CODE16: u32 = 0x8000;
/// 32-bit code.
pub const CODE32: u32 = 0x1_0000;
/// Handlers of 32-bit code.
pub const HANDLERS32: u32 = 0x1_c000;
/// Page tables.
pub const TABLES: u32 = 0x2_0000;
/// What is compared at the end.
pub const END: u64 = 0x8_0000;
const HANDLERS16: u64 = 0xf000;
const RESUME_HANDLER16: u64 = 0xfe00;
const RESUME_HANDLER32: u64 = 0x1_cf00;
/// The vector whose handlers count calls instead of going elsewhere.
pub const COUNTING: u8 = 0x40;
/// Where they count.
pub const COUNT: u32 = 0x60c;

/// Selectors of the GDT.
#[allow(missing_docs)]
pub mod selector {
    pub const CODE32: u16 = 0x08;
    pub const DATA: u16 = 0x10;
    pub const CODE16: u16 = 0x18;
    /// 64 KiB, as real mode wants them.
    pub const DATA16: u16 = 0x20;
    pub const CODE64: u16 = 0x28;
    pub const USER_CODE: u16 = 0x33;
    pub const USER_DATA: u16 = 0x3b;
    pub const TSS: u16 = 0x40;
    /// A 32-bit call gate to ring 0 that ring 3 may use.
    pub const GATE: u16 = 0x50;
    /// 16-bit code of ring 0, based at [`super::CODE16`].
    pub const CODE16_BASED: u16 = 0x58;
}

/// Where the call gate leads.
pub const GATE_TARGET: u32 = 0x1_b000;

/// A world with the given memory.
pub fn world(setup: &[(u64, Vec<u8>)]) -> World {
    let mut ram = Ram::new((super::world::END / crate::ram::PAGE) as usize);
    real_tables(&mut ram);
    protected_tables(&mut ram);
    ram.write_bytes(super::world::DONE, &[0xf4]);
    ram.write_bytes(MARK, &[1, 0, 0, 0, (CODE16 >> 4) as u8, (CODE16 >> 12) as u8]);
    for (at, bytes) in setup {
        ram.write_bytes(*at, bytes);
    }
    World { ram, state: first_state(), probe_slots: [0; 4], shape: Shape::StartUp }
}

fn real_tables(ram: &mut Ram) {
    for vector in 0..0x80u64 {
        let at = HANDLERS16 + vector * 8;
        ram.write_bytes(vector * 4, &(at as u32).to_le_bytes());
        // jmp RESUME_HANDLER16
        let mut code = vec![0xe9];
        code.extend(((RESUME_HANDLER16 - (at + 3)) as u16).to_le_bytes());
        if vector == u64::from(COUNTING) {
            // inc word cs:[COUNT]; iret
            code = vec![0x2e, 0xff, 0x06, COUNT as u8, (COUNT >> 8) as u8, 0xcf];
        }
        ram.write_bytes(at, &code);
    }
    // push bp; mov bp, sp; push ax; mov ax, cs:[RESUME16]; mov [bp + 2], ax; pop ax; pop bp; iret
    let mut code = vec![0x55, 0x89, 0xe5, 0x50, 0x2e, 0xa1];
    code.extend(RESUME16.to_le_bytes());
    code.extend([0x89, 0x46, 0x02, 0x58, 0x5d, 0xcf]);
    ram.write_bytes(RESUME_HANDLER16, &code);
}

fn protected_tables(ram: &mut Ram) {
    let gdt: [u64; 12] = [
        0,
        0x00cf_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x0000_9b00_0000_ffff,
        0x0000_9300_0000_ffff,
        0x00af_9b00_0000_ffff,
        0x00cf_fb00_0000_ffff,
        0x00cf_f300_0000_ffff,
        0x0000_8900_0000_0067 | (TSS as u64) << 16,
        0,
        (GATE_TARGET as u64 & 0xffff) | 8 << 16 | 0xec02 << 32 | (GATE_TARGET as u64 >> 16) << 48,
        0x0000_9b00_0000_ffff | (CODE16 as u64) << 16,
    ];
    for (index, descriptor) in gdt.into_iter().enumerate() {
        ram.write(u64::from(GDT) + 8 * index as u64, descriptor);
    }
    ram.write_bytes(u64::from(TSS) + 4, &INNER_STACK.to_le_bytes());
    ram.write_bytes(u64::from(TSS) + 8, &u32::from(selector::DATA).to_le_bytes());
    ram.write_bytes(u64::from(TSS) + 102, &[0x68, 0]);
    for vector in 0..0x80u64 {
        let at = u64::from(HANDLERS32) + vector * 16;
        let kind = if vector >= 0x20 { 0xee00 } else { 0x8e00 };
        ram.write(u64::from(IDT) + vector * 8, (at & 0xffff) | 8 << 16 | kind << 32 | (at >> 16) << 48);
        let mut code = Vec::new();
        if matches!(vector, 8 | 10..=14 | 17) {
            // add esp, 4
            code.extend([0x83, 0xc4, 0x04]);
        }
        let next = at + code.len() as u64 + 5;
        code.push(0xe9);
        code.extend(((RESUME_HANDLER32 - next) as u32).to_le_bytes());
        if vector == u64::from(COUNTING) {
            // inc dword ss:[COUNT]; iret
            code = vec![0x36, 0xff, 0x05];
            code.extend(COUNT.to_le_bytes());
            code.push(0xcf);
        }
        ram.write_bytes(at, &code);
    }
    // push eax; mov eax, cs:[RESUME32]; mov [esp + 4], eax; pop eax; iret
    let mut code = vec![0x50, 0x2e, 0xa1];
    code.extend(RESUME32.to_le_bytes());
    code.extend([0x89, 0x44, 0x24, 0x04, 0x58, 0xcf]);
    ram.write_bytes(RESUME_HANDLER32, &code);
}

/// What the firmware leaves: a CPU after reset, at the program.
fn first_state() -> CpuState {
    let data = Segment { selector: 0, base: 0, limit: 0xffff, attributes: 0x93 };
    let mut state = CpuState { rip: 0, rflags: 0x46, mxcsr: 0x1f80, ..CpuState::default() };
    state.gpr[1] = 1;
    state.segments = [data; 6];
    state.segments[seg::CS] =
        Segment { selector: (CODE16 >> 4) as u16, base: u64::from(CODE16), limit: 0xffff, attributes: 0x9b };
    state.tr = Segment { selector: 0, base: 0, limit: 0xffff, attributes: 0x8b };
    state.ldtr = Segment { selector: 0, base: 0, limit: 0xffff, attributes: 0x82 };
    state.gdtr = DescriptorTable { base: 0, limit: 0xffff };
    state.idtr = DescriptorTable { base: 0, limit: 0xffff };
    state.cr0 = 0x6000_0010;
    state.dr6 = 0xffff_0ff0;
    state.dr7 = 0x400;
    state.msrs.pat = 0x0007_0406_0007_0406;
    state
}
