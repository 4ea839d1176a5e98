// SPDX-License-Identifier: AGPL-3.0-or-later
//! Steps both CPUs through a program and compares after each step.

use super::machine::Qemu;
use super::start_up;
use super::world::{self, World};
use crate::compare::Difference;
use crate::generate::encode::decode;
use crate::guest::store_fx;
use crate::masks;
use crate::ram::Ram;
use crate::report::GPR;
use chaoscontrol_cpu::state::seg;
use chaoscontrol_cpu::{Config, Cpu, CpuState, Exit};
use iced_x86::{Formatter, Instruction, IntelFormatter, Mnemonic};
use std::io;

/// Most steps of a program.
const STEPS_MAX: u64 = 40_000;
/// Bytes of the stack that are compared when a handler starts.
const FRAME_BYTES: usize = 64;

/// Why a run stopped.
#[derive(Debug, thiserror::Error)]
pub enum LockstepError {
    /// The connection broke.
    #[error("qemu: {0}")]
    Io(#[from] io::Error),
    /// The CPUs went apart.
    #[error("step {step} at {rip:#x}, {instruction}: {difference}")]
    Apart {
        /// Steps before.
        step: u64,
        /// Address of the instruction.
        rip: u64,
        /// Its text.
        instruction: String,
        /// What differs; "expected" is QEMU.
        difference: Difference,
    },
    /// The program did not end.
    #[error("no end after {0} steps")]
    Endless(u64),
}

/// Runs `world` on both; returns the number of steps.
pub fn run(qemu: &mut Qemu, mut world: World) -> Result<u64, LockstepError> {
    qemu.load(&world)?;
    // QEMU's way to the first instruction has set accessed bits and a busy bit and used the stack.
    qemu.gdb.physical(true)?;
    let (from, to) = world.shape.memory();
    let memory = qemu.gdb.read(from, (to - from) as usize)?;
    qemu.gdb.physical(false)?;
    world.ram.write_bytes(from, &memory);
    // SAFETY: `world.ram` outlives the CPU and is only used between its runs.
    let mut cpu = Cpu::new(unsafe { world.ram.view() }, &Config::default());
    cpu.set_state(&world.state).expect("the first state is valid");
    let first = world.state;
    let mut lockstep = Lockstep { qemu, cpu, ram: &mut world.ram, range: (from, to) };
    lockstep.compare(0, None).map_err(|error| located(error, 0, &first, None))?;
    for step in 0..STEPS_MAX {
        let before = lockstep.cpu.state();
        if before.rip == world::DONE {
            lockstep.compare_memory(step)?;
            return Ok(step);
        }
        let instruction = lockstep.instruction(&before);
        lockstep.step(&before, instruction.as_ref())?;
        lockstep
            .compare(step, instruction.as_ref().map(|instruction| (&before, instruction)))
            .map_err(|error| located(error, step, &before, instruction.as_ref()))?;
    }
    Err(LockstepError::Endless(STEPS_MAX))
}

/// The L bit of a segment's attributes.
const LONG: u16 = 1 << 13;
/// The D bit.
const BIG: u16 = 1 << 14;
/// EFER.LMA.
const LONG_MODE_ACTIVE: u64 = 1 << 10;
const RESUME_FLAG: u64 = 1 << 16;
const PAGE_FAULT: u64 = 14;
/// Bits of a page fault's error code.
const PRESENT: u64 = 1;
const RESERVED_BIT: u64 = 8;

/// Our state with QEMU's values where the architecture leaves a result open.
fn adopt_open(before: &CpuState, instruction: &Instruction, theirs: &Registers, ours: CpuState) -> CpuState {
    let mut state = ours;
    let open = masks::open_flags(before.gpr[1], instruction);
    state.rflags = ours.rflags & !open | u64::from(theirs.u32(FLAGS)) & open;
    if instruction.mnemonic() == Mnemonic::Syscall {
        // QEMU 7.2 loses the status flags that it has not computed yet.
        state.rflags = ours.rflags & !masks::STATUS_FLAGS | u64::from(theirs.u32(FLAGS)) & masks::STATUS_FLAGS;
    }
    if instruction.mnemonic() == Mnemonic::Lar
        && let Some(register) = crate::generate::place::general(instruction.op0_register())
    {
        // APM 3 masks the descriptor with 00FFFF00, SDM 2 with 00FxFF00, x undefined.
        let slot = PACKET_GPR.iter().position(|&entry| entry == register).unwrap_or_default();
        let undefined = 0xf_0000;
        state.gpr[register] = ours.gpr[register] & !undefined | theirs.u64(8 * slot) & undefined;
    }
    state
}

/// Either kind of failure of one comparison.
enum Failed {
    Io(io::Error),
    Apart(Difference),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn located(failed: Failed, step: u64, before: &CpuState, instruction: Option<&Instruction>) -> LockstepError {
    match failed {
        Failed::Io(error) => LockstepError::Io(error),
        Failed::Apart(difference) => {
            let mut text = String::from("before the first instruction");
            if let Some(instruction) = instruction {
                text.clear();
                IntelFormatter::new().format(instruction, &mut text);
                let stack = before.gpr[4];
                text.push_str(&format!(" ({} bytes, rsp {stack:#x})", instruction.len()));
            }
            LockstepError::Apart { step, rip: before.rip, instruction: text, difference }
        }
    }
}

struct Lockstep<'a> {
    qemu: &'a mut Qemu,
    cpu: Cpu,
    ram: &'a mut Ram,
    /// What a program may change.
    range: (u64, u64),
}

impl Lockstep<'_> {
    /// The instruction that comes next, where it can be read.
    fn instruction(&mut self, state: &CpuState) -> Option<Instruction> {
        let bytes = self.qemu.gdb.read(linear(state, seg::CS, state.rip), 15).ok()?;
        let bits = match state.segments[seg::CS].attributes {
            _ if is_long(state) => 64,
            attributes if attributes & BIG != 0 => 32,
            _ => 16,
        };
        Some(decode(bits, &bytes, state.rip))
    }

    fn step(&mut self, before: &CpuState, instruction: Option<&Instruction>) -> Result<(), LockstepError> {
        self.qemu.gdb.step()?;
        loop {
            let left = 1u64.saturating_sub(self.cpu.progress() - before.instructions);
            match self.cpu.run(left) {
                Exit::BudgetUsed => break,
                Exit::TprWrite | Exit::MmioWrite { .. } | Exit::PortWrite { .. } => {}
                Exit::MsrRead { .. } | Exit::MsrWrite { .. } => self.cpu.refuse_msr(),
                Exit::PortRead { .. } | Exit::MmioRead { .. } => self.cpu.complete_read(u64::MAX),
                other => {
                    let difference = Difference {
                        what: "how the step ended".into(),
                        expected: "a retired instruction or a delivered exception".into(),
                        got: format!("{other:x?}"),
                    };
                    return Err(located(Failed::Apart(difference), before.instructions, before, instruction));
                }
            }
        }
        self.finish_repeat(before, instruction)
    }

    /// QEMU makes one step more of a repeated string instruction, in which it finds the count used up.
    fn finish_repeat(&mut self, before: &CpuState, instruction: Option<&Instruction>) -> Result<(), LockstepError> {
        let repeated = instruction
            .is_some_and(|one| one.is_string_instruction() && (one.has_rep_prefix() || one.has_repne_prefix()));
        let rip = self.cpu.state().rip;
        if repeated && rip != before.rip && Registers(self.qemu.gdb.registers()?).u64(RIP) == before.rip {
            self.qemu.gdb.step()?;
        }
        Ok(())
    }

    fn compare(&mut self, step: u64, ran: Option<(&CpuState, &Instruction)>) -> Result<(), Failed> {
        let theirs = Registers(self.qemu.gdb.registers()?);
        let mut ours = self.cpu.state();
        if let Some((before, instruction)) = ran
            .filter(|(_, instruction)| ours.rip == instruction.next_ip() || instruction.mnemonic() == Mnemonic::Syscall)
        {
            let synced = adopt_open(before, instruction, &theirs, ours);
            if synced != ours {
                ours = synced;
                self.cpu.set_state(&ours).expect("only open results changed");
            }
        }
        let handler = (world::HANDLERS..world::HANDLERS + 0x1000).contains(&ours.rip) && ours.rip & 15 == 0;
        if handler && theirs.u32(SELECTORS + 4) == 0 && ours.segments[seg::SS].selector == world::KERNEL_DS {
            // With an IST stack QEMU loads a null SS also where the privilege stays; SDM 3A, 6.14.4, only where it changes.
            ours.segments[seg::SS].selector = 0;
            self.cpu.set_state(&ours).expect("only a selector changed");
        }
        if let Some(difference) = theirs.difference(&ours) {
            return Err(Failed::Apart(difference));
        }
        self.adopt_short_frame(&ours)?;
        if handler && step > 0 {
            let vector = (ours.rip - world::HANDLERS) / 16;
            self.adopt_frame(vector, ours.gpr[4])?;
            self.compare_bytes(ours.gpr[4], FRAME_BYTES, false)?;
        }
        Ok(())
    }

    /// Takes over what QEMU pushes otherwise than the architecture says: it never sets RF in the saved flags (APM 2, 13.1.4:
    /// faults set it), and it leaves P clear in the error code of a reserved-bit fault (APM 2, 8.4.2: RSV only with P set).
    fn adopt_frame(&mut self, vector: u64, frame: u64) -> Result<(), Failed> {
        if frame < world::BASE || frame + FRAME_BYTES as u64 > world::END {
            return Ok(());
        }
        let theirs = self.qemu.gdb.read(frame, FRAME_BYTES)?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| theirs[at + index]));
        let pushed = usize::from(matches!(vector, 8 | 10..=14 | 17 | 21));
        let flags_at = 8 * (pushed + 2);
        let mut changes = vec![(flags_at, word(flags_at), RESUME_FLAG)];
        let error = self.ram.read(frame);
        // QEMU 7.2 counts the index of a gate in bytes of half a gate; APM 2, 8.4.1, has vector, IDT bit, EXT bit.
        if pushed == 1 && vector != PAGE_FAULT && error & 6 == 2 && word(0) & !1 == ((error & !7) * 2) | 2 {
            changes.push((0, word(0), error ^ word(0)));
        }
        if vector == PAGE_FAULT && word(0) & RESERVED_BIT != 0 {
            changes.push((0, word(0), PRESENT));
        }
        for (offset, theirs, bit) in changes {
            let at = frame + offset as u64;
            let ours = self.ram.read(at);
            if ours ^ theirs == bit {
                self.ram.write(at, theirs);
                self.cpu.memory_changed(at, 8);
            }
        }
        Ok(())
    }

    /// [`Lockstep::adopt_frame`] at the start of a handler of protected mode: RF alone.
    fn adopt_short_frame(&mut self, ours: &CpuState) -> Result<(), Failed> {
        let handlers = u64::from(start_up::HANDLERS32)..u64::from(start_up::HANDLERS32) + 0x800;
        if !handlers.contains(&ours.rip) || ours.rip & 15 != 0 || self.range.0 != 0 {
            return Ok(());
        }
        let vector = (ours.rip - handlers.start) / 16;
        let pushed = u64::from(matches!(vector, 8 | 10..=14 | 17));
        let at = ours.segments[seg::SS].base + ours.gpr[4] + 4 * (pushed + 2);
        let theirs = self.qemu.gdb.read(at, 4)?;
        let theirs = u64::from(u32::from_le_bytes(std::array::from_fn(|index| theirs[index])));
        let word = self.ram.read(at);
        if (word & 0xffff_ffff) ^ theirs == RESUME_FLAG {
            self.ram.write(at, word ^ RESUME_FLAG);
            self.cpu.memory_changed(at, 8);
        }
        Ok(())
    }

    /// Compares RAM: identity-mapped addresses, so the virtual ones serve.
    fn compare_bytes(&mut self, at: u64, bytes: usize, physical: bool) -> Result<(), Failed> {
        if at < self.range.0 || at + bytes as u64 > self.range.1 {
            return Ok(());
        }
        self.qemu.gdb.physical(physical)?;
        let theirs = self.qemu.gdb.read(at, bytes);
        self.qemu.gdb.physical(false)?;
        let ours = &self.ram.bytes()[at as usize..at as usize + bytes];
        let theirs = theirs?;
        let Some(first) = theirs.iter().zip(ours).position(|(a, b)| a != b) else { return Ok(()) };
        let word = first & !7;
        let show = |bytes: &[u8]| crate::report::hex(&bytes[word..(word + 8).min(bytes.len())]);
        Err(Failed::Apart(Difference {
            what: format!("memory at {:#x} (bytes)", at as usize + word),
            expected: show(&theirs),
            got: show(ours),
        }))
    }

    fn compare_memory(&mut self, step: u64) -> Result<(), LockstepError> {
        let state = self.cpu.state();
        self.compare_bytes(self.range.0, (self.range.1 - self.range.0) as usize, true)
            .map_err(|failed| located(failed, step, &state, None))
    }
}

fn is_long(state: &CpuState) -> bool {
    state.msrs.efer & LONG_MODE_ACTIVE != 0 && state.segments[seg::CS].attributes & LONG != 0
}

fn linear(state: &CpuState, segment: usize, offset: u64) -> u64 {
    if is_long(state) { offset } else { state.segments[segment].base.wrapping_add(offset) & 0xffff_ffff }
}

/// QEMU's register packet (i386-64bit.xml): sixteen general registers, RIP, flags, segments, bases, control registers, EFER,
/// x87, SSE.
struct Registers(Vec<u8>);

/// Order of the general registers in the packet, as encoding numbers.
const PACKET_GPR: [usize; 16] = [0, 3, 1, 2, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];
const RIP: usize = 128;
const FLAGS: usize = 136;
const SELECTORS: usize = 140;
const BASES: usize = 164;
const CONTROL: usize = 188;
const ST: usize = 236;
const FPU: usize = 316;
const XMM: usize = 348;
const MXCSR: usize = 604;

impl Registers {
    fn u32(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }

    fn difference(&self, ours: &CpuState) -> Option<Difference> {
        let mut pairs: Vec<(String, u128, u128)> = Vec::new();
        let mut pair = |name: &str, theirs: u64, ours: u64| pairs.push((name.into(), theirs.into(), ours.into()));
        let long = is_long(ours);
        pair("rip", self.u64(RIP), ours.rip);
        pair("rflags", self.u32(FLAGS).into(), ours.rflags);
        for (slot, &register) in PACKET_GPR.iter().enumerate() {
            // In 32-bit code the stub shows the lower halves of eight registers.
            let (shown, mask) = if long { (true, u64::MAX) } else { (register < 8, 0xffff_ffff) };
            if shown {
                pair(GPR[register], self.u64(8 * slot) & mask, ours.gpr[register] & mask);
            }
        }
        // QEMU leaves the RPL of a null FS or GS at a return to ring 3.
        let shown = |name: &str, selector: u64| if matches!(name, "fs" | "gs") && selector < 4 { 0 } else { selector };
        for (slot, (name, index)) in
            [("cs", seg::CS), ("ss", seg::SS), ("ds", seg::DS), ("es", seg::ES), ("fs", seg::FS), ("gs", seg::GS)]
                .iter()
                .enumerate()
        {
            let (theirs, ours) = (self.u32(SELECTORS + 4 * slot), ours.segments[*index].selector);
            pair(name, shown(name, theirs.into()), shown(name, ours.into()));
        }
        pair("fs base", self.u64(BASES), ours.segments[seg::FS].base);
        pair("gs base", self.u64(BASES + 8), ours.segments[seg::GS].base);
        pair("kernel gs base", self.u64(BASES + 16), ours.msrs.kernel_gs_base);
        let control = [
            ("cr0", ours.cr0),
            ("cr2", ours.cr2),
            ("cr3", ours.cr3),
            ("cr4", ours.cr4),
            ("cr8", ours.cr8),
            ("efer", ours.msrs.efer),
        ];
        for (slot, (name, value)) in control.iter().enumerate() {
            pair(name, self.u64(CONTROL + 8 * slot), *value);
        }
        let fx = store_fx(ours);
        pair("fcw", self.u32(FPU).into(), fx.u16(0).into());
        pair("fsw", self.u32(FPU + 4).into(), fx.u16(2).into());
        for index in 0..8 {
            // The stub counts physical registers, not from the top of the stack.
            let (significand, exponent) = (ours.x87.significand[index], ours.x87.sign_exponent[index]);
            pair(&format!("x87 register {index} significand"), self.u64(ST + 10 * index), significand);
            let theirs = u64::from(self.u32(ST + 10 * index + 6) >> 16);
            pair(&format!("x87 register {index} exponent"), theirs, exponent.into());
        }
        pair("mxcsr", self.u32(MXCSR).into(), ours.mxcsr.into());
        for index in 0..16 {
            pair(&format!("xmm{index} low"), self.u64(XMM + 16 * index), fx.xmm(index) as u64);
            pair(&format!("xmm{index} high"), self.u64(XMM + 16 * index + 8), (fx.xmm(index) >> 64) as u64);
        }
        let (what, theirs, ours) = pairs.into_iter().find(|(_, theirs, ours)| theirs != ours)?;
        Some(Difference { what, expected: format!("{theirs:#x}"), got: format!("{ours:#x}") })
    }
}
