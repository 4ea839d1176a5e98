// SPDX-License-Identifier: AGPL-3.0-or-later
//! Which instruction KVM may execute as one exact step, decided before it runs.
//!
//! A host's single step is not exact for everything: exits swallow it, handlers of faults run unstepped, the trap flag shows in
//! what PUSHF stores, and undefined flags, RDTSC, CPUID or extensions show the host. So the instruction at RIP is decoded
//! first. KVM gets it only if all it can do is defined by the architecture and cannot fault: integer moves, arithmetic, stack and
//! branches in 64-bit code on plain memory. Everything else is executed by the software CPU, which counts the same way.

use chaoscontrol_cpu::CpuState;
use chaoscontrol_cpu::state::seg;
use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, EncodingKind, FlowControl, Instruction, InstructionInfoFactory,
    InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register, RflagsBits,
};

use super::walk::{Access, Walk};
use crate::memory::GuestMemory;

/// Longest instruction.
const INSTRUCTION_BYTES: u64 = 15;
/// RFLAGS that make a boundary look at more than the next instruction: TF, RF, AC.
const SPECIAL_FLAGS: u64 = 1 << 8 | 1 << 16 | 1 << 18;
/// The enables of DR7.
const BREAKPOINTS: u64 = 0xff;
/// CS attributes: 64-bit code.
const LONG: u16 = 1 << 13;
const EFER_LMA: u64 = 1 << 10;
/// RFLAGS.AF.
pub(super) const AF: u64 = 1 << 4;

/// An instruction that KVM may execute, and what must be true afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Where RIP may be; empty where only memory knows (RET, indirect branches).
    pub ends: Vec<u64>,
    /// RAM that it writes: address and bytes.
    pub writes: Vec<(u64, u64)>,
    /// Flags that it leaves undefined, which read as zero in our CPU model.
    pub clear: u64,
}

/// Decides what executes the instruction at RIP: KVM if there is a step, else the software CPU.
pub(super) struct Stepper {
    info: InstructionInfoFactory,
    /// Whether instructions in user code may be steps.
    user: bool,
}

impl Stepper {
    /// A stepper, for user code too or for kernel code only.
    pub fn new(user: bool) -> Self {
        Self { info: InstructionInfoFactory::new(), user }
    }

    /// The step from `state`, which is at a boundary where nothing else is due.
    pub fn plan(&mut self, state: &CpuState, memory: &GuestMemory) -> Option<Step> {
        let long = state.msrs.efer & EFER_LMA != 0 && state.segments[seg::CS].attributes & LONG != 0;
        let quiet = !state.halted && !state.interrupt_shadow && state.pending_debug == 0;
        if !long || !quiet || state.rflags & SPECIAL_FLAGS != 0 || state.dr7 & BREAKPOINTS != 0 {
            return None;
        }
        // SS.DPL is the privilege level.
        let user = state.segments[seg::SS].attributes >> 5 & 3 == 3;
        if user && !self.user {
            return None;
        }
        let walk = Walk::new(memory, state, user);
        let instruction = fetch(state, memory, &walk)?;
        let clear = plain(&instruction)?;
        let writes = self.writes(&instruction, state, &walk)?;
        let next = instruction.next_ip();
        let ends = match instruction.flow_control() {
            FlowControl::Next => vec![next],
            FlowControl::UnconditionalBranch => vec![instruction.near_branch_target()],
            FlowControl::ConditionalBranch => vec![next, instruction.near_branch_target()],
            FlowControl::Call if instruction.is_call_near() => vec![instruction.near_branch_target()],
            FlowControl::IndirectBranch | FlowControl::IndirectCall | FlowControl::Return => Vec::new(),
            _ => return None,
        };
        Some(Step { ends, writes, clear })
    }

    /// What it writes, if all its accesses to memory are plain.
    fn writes(&mut self, instruction: &Instruction, state: &CpuState, walk: &Walk) -> Option<Vec<(u64, u64)>> {
        let mut writes = Vec::new();
        let info = self.info.info_options(instruction, InstructionInfoOptions::NO_REGISTER_USAGE);
        for used in info.used_memory() {
            let bytes = used.memory_size().size() as u64;
            let linear = used.virtual_address(0, |register, _, _| value(register, state))?;
            let (reads, stores) = match used.access() {
                OpAccess::NoMemAccess => continue,
                OpAccess::Read => (true, false),
                OpAccess::Write => (false, true),
                OpAccess::ReadWrite => (true, true),
                _ => return None,
            };
            if bytes == 0 || bytes > 8 {
                return None;
            }
            if reads {
                walk.plain(linear, bytes, Access::Read)?;
            }
            if stores {
                writes.push((walk.plain(linear, bytes, Access::Write)?, bytes));
            }
        }
        Some(writes)
    }
}

/// The instruction at RIP, if its bytes are plain memory in one page, or in two plain ones.
fn fetch(state: &CpuState, memory: &GuestMemory, walk: &Walk) -> Option<Instruction> {
    let room = (4096 - (state.rip & 0xfff)).min(INSTRUCTION_BYTES);
    let mut bytes = [0; INSTRUCTION_BYTES as usize];
    let first = walk.plain(state.rip, room, Access::Execute)?;
    memory.read(first, &mut bytes[..room as usize]).ok()?;
    // An instruction that needs its second page is rare enough for the software CPU.
    let mut decoder = Decoder::with_ip(64, &bytes[..room as usize], state.rip, DecoderOptions::NONE);
    let instruction = decoder.decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// The flags to clear afterwards, if KVM may execute it; none if not.
fn plain(instruction: &Instruction) -> Option<u64> {
    use Mnemonic as M;
    let i = instruction;
    if i.has_lock_prefix() || i.has_rep_prefix() || i.has_repne_prefix() {
        return None;
    }
    let known = match i.mnemonic() {
        M::Mov | M::Movzx | M::Movsx | M::Movsxd | M::Lea | M::Nop => true,
        M::Add | M::Sub | M::Adc | M::Sbb | M::Cmp | M::Inc | M::Dec | M::Neg | M::Not => true,
        M::And | M::Or | M::Xor | M::Test => true,
        M::Cbw | M::Cwde | M::Cdqe | M::Cwd | M::Cdq | M::Cqo | M::Bswap => true,
        M::Clc | M::Stc | M::Cmc | M::Lahf | M::Sahf => true,
        M::Push | M::Pop => true,
        M::Jmp | M::Call | M::Ret => !operand_16(i),
        // Jcc, CMOVcc, SETcc.
        _ if i.condition_code() != ConditionCode::None => {
            !i.is_loopcc() && (!i.is_jcc_short_or_near() || !operand_16(i))
        }
        _ => false,
    };
    if !known
        || i.op_code().encoding() != EncodingKind::Legacy
        || !operands_are_general(i)
        || i.code() == Code::Bswap_r16
    {
        return None;
    }
    let undefined = i.rflags_undefined();
    match undefined {
        0 => Some(0),
        RflagsBits::AF => Some(AF),
        _ => None,
    }
}

/// Branches whose operand size differs between vendors.
fn operand_16(i: &Instruction) -> bool {
    i.op_code().operand_size() == 16
}

/// No segment, control, debug or vector register, and no far operand.
fn operands_are_general(i: &Instruction) -> bool {
    (0..i.op_count()).all(|operand| match i.op_kind(operand) {
        OpKind::Register => i.op_register(operand).is_gpr(),
        OpKind::Memory => i.memory_base() != Register::EIP && !i.is_vsib(),
        OpKind::FarBranch16 | OpKind::FarBranch32 => false,
        _ => true,
    })
}

/// A register as address arithmetic sees it.
fn value(register: Register, state: &CpuState) -> Option<u64> {
    let base = |index: usize| Some(state.segments[index].base);
    match register {
        Register::None | Register::ES | Register::CS | Register::SS | Register::DS => Some(0),
        Register::FS => base(seg::FS),
        Register::GS => base(seg::GS),
        register if register.is_gpr64() => Some(state.gpr[register.number()]),
        register if register.is_gpr32() => Some(state.gpr[register.number()] & 0xffff_ffff),
        register if register.is_gpr16() => Some(state.gpr[register.number()] & 0xffff),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MEMORY_BYTES_MIN;
    use iced_x86::code_asm::*;

    const CODE: u64 = 0x10_0000;

    /// What becomes of one instruction with everything mapped, accessed and dirty.
    fn planned(assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> Option<Step> {
        planned_in(assemble, |_| {})
    }

    fn planned_in(
        assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>,
        change: impl FnOnce(&mut CpuState),
    ) -> Option<Step> {
        let mut assembler = CodeAssembler::new(64).unwrap();
        assemble(&mut assembler).unwrap();
        let code = assembler.assemble(CODE).unwrap();
        let memory = GuestMemory::new(MEMORY_BYTES_MIN).unwrap();
        crate::boot::entry::write_tables(&memory).unwrap();
        mark_used(&memory);
        memory.write(CODE, &code).unwrap();
        let mut state = crate::boot::entry::state(CODE);
        state.gpr[4] = 0x20_0000;
        change(&mut state);
        Stepper::new(true).plan(&state, &memory)
    }

    /// Sets the accessed and dirty bits of the boot tables.
    fn mark_used(memory: &GuestMemory) {
        for address in (0x9000..0xf000).step_by(8) {
            let mut entry = [0; 8];
            memory.read(address, &mut entry).unwrap();
            if entry[0] & 1 == 1 {
                entry[0] |= 0x60;
                memory.write(address, &entry).unwrap();
            }
        }
    }

    #[test]
    fn plain_instructions_are_steps_and_say_what_they_write() {
        let step = |ends: &[u64], writes: &[(u64, u64)], clear| {
            Some(Step { ends: ends.to_vec(), writes: writes.to_vec(), clear })
        };
        assert_eq!(planned(|a| a.mov(eax, 5)), step(&[CODE + 5], &[], 0));
        assert_eq!(planned(|a| a.push(rax)), step(&[CODE + 1], &[(0x1f_fff8, 8)], 0));
        assert_eq!(planned(|a| a.xor(eax, eax)), step(&[CODE + 2], &[], AF));
        assert_eq!(planned(|a| a.add(dword_ptr(0x30_0000), 1)), step(&[CODE + 8], &[(0x30_0000, 4)], 0));
        assert_eq!(planned(|a| a.jne(CODE + 0x40)), step(&[CODE + 2, CODE + 0x40], &[], 0));
        assert_eq!(planned(|a| a.call(CODE + 0x40)), step(&[CODE + 0x40], &[(0x1f_fff8, 8)], 0));
        assert_eq!(planned(|a| a.ret()), step(&[], &[], 0));
        assert_eq!(planned(|a| a.cmovg(eax, ebx)), step(&[CODE + 3], &[], 0));
    }

    #[test]
    fn what_shows_the_host_or_may_fault_is_none() {
        type Build = fn(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>;
        let others: [(&str, Build); 24] = [
            ("rdtsc", |a| a.rdtsc()),
            ("rdrand", |a| a.rdrand(rax)),
            ("cpuid", |a| a.cpuid()),
            ("hlt", |a| a.hlt()),
            ("out", |a| a.out(0x80, al)),
            ("in", |a| a.in_(al, dx)),
            ("pushfq", |a| a.pushfq()),
            ("popfq", |a| a.popfq()),
            ("iretq", |a| a.iretq()),
            ("sti", |a| a.sti()),
            ("int3", |a| a.int3()),
            ("syscall", |a| a.syscall()),
            ("div", |a| a.div(rbx)),
            ("mul: undefined flags", |a| a.mul(rbx)),
            ("shl: undefined flags", |a| a.shl(eax, 5)),
            ("lock", |a| a.lock().inc(dword_ptr(0x30_0000))),
            ("rep movsb", |a| a.rep().movsb()),
            ("mov to ss", |a| a.mov(ss, eax)),
            ("mov from cr0", |a| a.mov(rax, cr0)),
            ("a vector", |a| a.pxor(xmm0, xmm0)),
            ("x87", |a| a.fld1()),
            ("outside of RAM", |a| a.mov(eax, dword_ptr(0xd000_0000u64))),
            ("ud2", |a| a.ud2()),
            ("across two pages", |a| a.mov(rax, qword_ptr(0x30_0ffcu64))),
        ];
        for (name, build) in others {
            assert_eq!(planned(build), None, "{name}");
        }
    }

    #[test]
    fn a_state_in_which_more_is_due_has_no_step() {
        let changes: [fn(&mut CpuState); 7] = [
            |state| state.halted = true,
            |state| state.interrupt_shadow = true,
            |state| state.pending_debug = 1,
            |state| state.rflags |= 1 << 8,
            |state| state.dr7 |= 1,
            |state| state.segments[seg::CS].attributes &= !LONG,
            |state| state.rip = 1 << 63,
        ];
        assert!(planned_in(|a| a.nop(), |_| {}).is_some());
        for (index, change) in changes.into_iter().enumerate() {
            assert_eq!(planned_in(|a| a.nop(), change), None, "change {index}");
        }
    }
}
