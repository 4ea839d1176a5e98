// SPDX-License-Identifier: AGPL-3.0-or-later
//! From bytes to operations.
//!
//! Bytes are decoded once a basic block. Addresses are resolved while decoding: a block belongs to one linear address, so
//! RIP-relative operands and branch targets are absolute.

use crate::core_state::{Core, vector};
use crate::op::{CodeMode, NO_REGISTER, Op, Step, attr};
use crate::table::{self, Entry};
use iced_x86::{Code, CodeSize, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, OpKind, Register};

/// Longest instruction the architecture allows.
pub(crate) const INSTRUCTION_BYTES_MAX: usize = 15;

/// As AMD has it; BMI, LZCNT and WBNOINVD are not offered, so their prefix is ignored.
const OPTIONS: u32 =
    DecoderOptions::AMD | DecoderOptions::NO_MPFX_0FBC | DecoderOptions::NO_MPFX_0FBD | DecoderOptions::NO_WBNOINVD;

/// What decoding one instruction gave.
pub(crate) enum Decoded {
    /// An operation (also for bytes that raise #UD).
    Op(Op),
    /// The bytes end inside the instruction.
    NeedsMore,
}

/// Decodes the instruction at `bytes[0]`, which lies at `ip`.
pub(crate) fn decode(bytes: &[u8], ip: u64, mode: CodeMode, position: u8) -> Decoded {
    let (bits, long) = (mode.bits(), mode.is_long());
    let limited = &bytes[..bytes.len().min(INSTRUCTION_BYTES_MAX)];
    let mut decoder = Decoder::with_ip(bits, limited, ip, OPTIONS);
    let mut instruction = Instruction::default();
    decoder.decode_out(&mut instruction);
    if instruction.code() != Code::INVALID {
        let mut op = build(&instruction, long, position);
        // x87 instructions have no immediate; the unit remembers their opcode.
        if let Some(opcode) = crate::fp::x87_opcode(&limited[..instruction.len()], long) {
            op.imm = u64::from(opcode);
        }
        return Decoded::Op(op);
    }
    match decoder.last_error() {
        DecoderError::NoMoreBytes if limited.len() < INSTRUCTION_BYTES_MAX => Decoded::NeedsMore,
        DecoderError::NoMoreBytes => Decoded::Op(invalid(ip, too_long, long, position)),
        _ if is_too_long(limited, bits) => Decoded::Op(invalid(ip, too_long, long, position)),
        _ => Decoded::Op(invalid(ip, undefined, long, position)),
    }
}

/// What cannot be decoded would be an instruction with fewer prefixes.
fn is_too_long(bytes: &[u8], bits: u32) -> bool {
    let is_prefix = |byte: &&u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    let prefixes = bytes.iter().take_while(is_prefix).count();
    let mut decoder = Decoder::with_ip(bits, &bytes[prefixes..], 0, OPTIONS);
    let instruction = decoder.decode();
    let length = if instruction.is_invalid() { 1 } else { instruction.len() };
    let cut = decoder.last_error() == DecoderError::NoMoreBytes;
    prefixes + length > INSTRUCTION_BYTES_MAX || (cut && bytes.len() == INSTRUCTION_BYTES_MAX)
}

/// Handler of what raises #UD.
fn undefined(core: &mut Core, _op: &Op) -> Step {
    Err(core.ud())
}

/// Handler of instructions longer than the architecture allows.
fn too_long(core: &mut Core, _op: &Op) -> Step {
    Err(core.fault_code(vector::GP, 0))
}

fn invalid(ip: u64, handler: crate::op::Handler, long: bool, position: u8) -> Op {
    Op {
        handler,
        next_ip: ip.wrapping_add(1),
        displacement: 0,
        imm: 0,
        dst: 0,
        src: 0,
        third: 0,
        base: NO_REGISTER,
        index: NO_REGISTER,
        scale: 0,
        segment: 3,
        len: 1,
        attributes: attr::ENDS_BLOCK | if long { attr::LONG } else { 0 },
        position,
        code: Code::INVALID,
    }
}

/// The number of a register in the numbering of [`Op`].
fn number(register: Register) -> u8 {
    match register {
        Register::None => NO_REGISTER,
        Register::AH | Register::CH | Register::DH | Register::BH => 16 + (register as u8 - Register::AH as u8),
        _ if register.is_gpr() => register.full_register().number() as u8,
        _ => register.number() as u8,
    }
}

fn build(instruction: &Instruction, long: bool, position: u8) -> Op {
    let mut op = invalid(instruction.ip(), undefined, long, position);
    op.code = instruction.code();
    op.len = instruction.len() as u8;
    op.next_ip = instruction.next_ip();
    op.attributes = attributes(instruction, long);
    let mut immediates = 0;
    for index in 0..instruction.op_count() {
        let kind = instruction.op_kind(index);
        match kind {
            OpKind::Register => {
                let number = number(instruction.op_register(index));
                match index {
                    0 => op.dst = number,
                    1 => op.src = number,
                    _ => op.third = number,
                }
            }
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                op.imm = instruction.near_branch_target()
            }
            OpKind::FarBranch16 | OpKind::FarBranch32 => {
                let offset = if kind == OpKind::FarBranch16 {
                    instruction.far_branch16().into()
                } else {
                    instruction.far_branch32()
                };
                op.imm = u64::from(offset) | u64::from(instruction.far_branch_selector()) << 32;
            }
            OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => {
                op.imm |= instruction.immediate(index) << (32 * immediates);
                immediates += 1;
            }
            _ => memory(&mut op, instruction, kind),
        }
    }
    if let Entry::Handlers { register, memory, .. } = table::entry(op.code) {
        op.handler = if op.has(attr::MEMORY) { *memory } else { *register };
    } else {
        op.attributes |= attr::ENDS_BLOCK;
    }
    op
}

/// The segment that is added and, for a fault, tells #SS from #GP. In 64-bit code only FS and GS override (AMD64 APM vol. 3,
/// 1.2.4).
fn segment(instruction: &Instruction, kind: OpKind) -> Register {
    let named = instruction.memory_segment();
    if instruction.code_size() != CodeSize::Code64 || matches!(named, Register::FS | Register::GS) {
        return named;
    }
    let stack = matches!(instruction.memory_base(), Register::RSP | Register::RBP | Register::ESP | Register::EBP);
    if kind == OpKind::Memory && stack { Register::SS } else { Register::DS }
}

/// Fills in the memory operand. Of two (string instructions), the source's segment counts: the destination's is always ES.
fn memory(op: &mut Op, instruction: &Instruction, kind: OpKind) {
    op.attributes |= attr::MEMORY;
    if op.has(attr::SEGMENTED_CODE) {
        op.attributes |= attr::SEGMENTED;
    }
    op.segment = segment(instruction, kind).number() as u8;
    match kind {
        OpKind::Memory => {
            let (base, index) = (instruction.memory_base(), instruction.memory_index());
            op.displacement = instruction.memory_displacement64();
            op.scale = instruction.memory_index_scale().trailing_zeros() as u8;
            // A RIP-relative displacement is already the absolute address, and XLAT adds AL itself.
            op.base = if base == Register::RIP || base == Register::EIP { NO_REGISTER } else { number(base) };
            op.index = if index == Register::AL { NO_REGISTER } else { number(index) };
            let size = match (base, index) {
                (Register::None, Register::None | Register::AL) => instruction.memory_displ_size() as usize,
                (Register::None, index) => index.size(),
                (base, _) => base.size(),
            };
            op.attributes |= match size {
                2 => attr::ADDRESS_16,
                4 => attr::ADDRESS_32,
                _ => 0,
            };
        }
        OpKind::MemorySegSI | OpKind::MemorySegDI | OpKind::MemoryESDI => op.attributes |= attr::ADDRESS_16,
        OpKind::MemorySegESI | OpKind::MemorySegEDI | OpKind::MemoryESEDI => op.attributes |= attr::ADDRESS_32,
        _ => {}
    }
}

fn attributes(instruction: &Instruction, long: bool) -> u16 {
    let mut attributes = if long { attr::LONG } else { attr::SEGMENTED_CODE };
    if instruction.has_rep_prefix() {
        attributes |= attr::REP;
    }
    if instruction.has_repne_prefix() {
        attributes |= attr::REPNE;
    }
    if instruction.is_string_instruction() && attributes & (attr::REP | attr::REPNE) != 0 {
        attributes |= attr::SETS_RIP;
    }
    attributes |= match instruction.flow_control() {
        FlowControl::Next => 0,
        FlowControl::Interrupt | FlowControl::Exception => attr::SETS_RIP,
        _ if is_interrupt_return(instruction.code()) => attr::SETS_RIP,
        _ => attr::SETS_RIP | attr::EDGE,
    };
    attributes | block_attributes(instruction)
}

fn is_interrupt_return(code: Code) -> bool {
    matches!(code, Code::Iretw | Code::Iretd | Code::Iretq)
}

/// Instructions after which the block cannot go on: they change what the following boundary must look at.
fn block_attributes(instruction: &Instruction) -> u16 {
    let loads_ss = instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::SS;
    match instruction.code() {
        Code::Mov_Sreg_rm16 | Code::Mov_Sreg_r32m16 | Code::Mov_Sreg_r64m16 | Code::Popw_SS | Code::Popd_SS
            if loads_ss =>
        {
            attr::ENDS_BLOCK | attr::HOLDS_TRAPS
        }
        Code::Syscall | Code::Int_imm8 | Code::Int3 | Code::Into | Code::Int1 => attr::HOLDS_TRAPS,
        Code::Sti
        | Code::Hlt
        | Code::Wrmsr
        | Code::Popfw
        | Code::Popfd
        | Code::Popfq
        | Code::Lmsw_rm16
        | Code::Lmsw_r32m16
        | Code::Lmsw_r64m16
        | Code::Mov_cr_r32
        | Code::Mov_cr_r64
        | Code::Mov_dr_r32
        | Code::Mov_dr_r64 => attr::ENDS_BLOCK,
        _ => 0,
    }
}
