// SPDX-License-Identifier: AGPL-3.0-or-later
//! Entering handlers outside long mode: through the interrupt vector table of real mode, and through 16- and 32-bit gates of
//! protected mode, with the stacks of a 16- or 32-bit TSS (AMD64 APM vol. 2, 8.6 and 8.7; Intel SDM vol. 3A, 6.12).
//!
//! Hardware task switches and virtual-8086 mode are not offered: what needs one ends the run with an error of the guest.

use super::events::{Event, IN_IDT};
use crate::core_state::{Core, vector};
use crate::flags::bit;
use crate::op::{Op, Step, Trap};
use crate::segment::{Descriptor, desc, error_of, is_null};
use crate::state::{Segment, seg};
use crate::tlb::Privilege;
use crate::width::Width;

const TASK_GATE: u16 = 5;
/// Bit of a gate's or TSS's type that makes it a 32-bit one.
const WIDE: u16 = 8;
const CALL_GATE_16: u16 = 4;
const CALL_GATE_32: u16 = 12;
/// Interrupt gates have this bit of their type clear.
const TRAP: u16 = 1;

/// A stack that a gate switches to.
#[derive(Clone, Copy)]
struct InnerStack {
    ss: Segment,
    pointer: u64,
}

/// A call gate of protected mode.
struct CallGate {
    code: Descriptor,
    selector: u16,
    target: u64,
    wide: bool,
    parameters: u64,
}

impl Core {
    /// Goes through the table that the mode has. On `Err` nothing has changed but memory on the new stack.
    #[cold]
    pub fn enter_legacy_handler(&mut self, event: &Event) -> Step {
        if self.in_real_mode() { self.enter_real_handler(event) } else { self.enter_gate(event) }
    }

    fn enter_real_handler(&mut self, event: &Event) -> Step {
        let offset = u64::from(event.vector) * 4;
        if offset + 3 > u64::from(self.idtr.limit) {
            return Err(self.fault_code(vector::GP, 0));
        }
        let entry = self.read_system::<u32>(self.idtr.base.wrapping_add(offset))?;
        let mut stack = self.stack(false);
        self.push_on(&mut stack, self.rflags() as u16)?;
        self.push_on(&mut stack, self.segments[seg::CS].selector)?;
        self.push_on(&mut stack, event.return_rip as u16)?;
        self.set_stack(stack);
        self.system_flags &= !(bit::IF | bit::TF | bit::AC | bit::RF);
        self.rip = u64::from(entry & 0xffff);
        let cs = self.real_segment(seg::CS, (entry >> 16) as u16);
        self.set_code_and_stack(cs, None);
        Ok(())
    }

    fn enter_gate(&mut self, event: &Event) -> Step {
        let in_idt = u32::from(event.vector) * 8 + IN_IDT;
        let offset = u64::from(event.vector) * 8;
        if offset + 7 > u64::from(self.idtr.limit) {
            return Err(self.fault_code(vector::GP, in_idt));
        }
        let gate = self.read_system::<u64>(self.idtr.base.wrapping_add(offset))?;
        let attributes = (gate >> 40) as u16 & 0xff;
        let kind = attributes & 0x1f;
        if !matches!(kind, TASK_GATE | 6 | 7 | 14 | 15) {
            return Err(self.fault_code(vector::GP, in_idt));
        }
        if event.software && (attributes >> desc::DPL_SHIFT & 3) < u16::from(self.cpl()) {
            return Err(self.fault_code(vector::GP, in_idt));
        }
        if attributes & desc::PRESENT == 0 {
            return Err(self.fault_code(vector::NP, in_idt));
        }
        if kind == TASK_GATE {
            return Err(self.unsupported_mode());
        }
        let wide = kind & WIDE != 0;
        let target = (gate & 0xffff) | if wide { (gate >> 48) << 16 } else { 0 };
        let selector = (gate >> 16) as u16;
        let code = self.gate_code(selector)?;
        let cpl = self.cpl();
        let new_cpl = if code.is_conforming_code() { cpl } else { code.dpl() };
        let inner = if new_cpl < cpl { Some(self.inner_stack(new_cpl)?) } else { None };
        if target > u64::from(code.segment(0).limit) {
            return Err(self.fault_code(vector::GP, 0));
        }
        let resume = if event.resume_flag { bit::RF } else { 0 };
        let mut frame = Vec::with_capacity(6);
        if inner.is_some() {
            frame.extend([u64::from(self.segments[seg::SS].selector), self.gpr[4]]);
        }
        frame.extend([self.rflags() | resume, u64::from(self.segments[seg::CS].selector), event.return_rip]);
        frame.extend(event.error.map(u64::from));
        self.push_gate_frame(inner, &frame, wide, new_cpl)?;
        self.mark_accessed(&code)?;
        self.system_flags &= !(bit::TF | bit::NT | bit::RF | bit::VM);
        if kind & TRAP == 0 {
            self.system_flags &= !bit::IF;
        }
        self.rip = target;
        let mut cs = code.segment(selector);
        cs.selector = (selector & !3) | u16::from(new_cpl);
        self.set_code_and_stack(cs, None);
        Ok(())
    }

    /// The code segment that a gate leads to.
    fn gate_code(&mut self, selector: u16) -> Result<Descriptor, Trap> {
        if is_null(selector) {
            return Err(self.fault_code(vector::GP, 0));
        }
        let code = self.descriptor(selector, vector::GP)?;
        if !code.is_code() || code.dpl() > self.cpl() {
            return Err(self.fault_code(vector::GP, error_of(selector)));
        }
        if !code.has(desc::PRESENT) {
            return Err(self.fault_code(vector::NP, error_of(selector)));
        }
        Ok(code)
    }

    /// The stack that the TSS names for a privilege level.
    fn inner_stack(&mut self, cpl: u8) -> Result<InnerStack, Trap> {
        let wide = self.tr.attributes & WIDE != 0;
        let (offset, bytes) = if wide { (4 + 8 * u64::from(cpl), 6) } else { (2 + 4 * u64::from(cpl), 4) };
        if offset + bytes - 1 > u64::from(self.tr.limit) {
            return Err(self.fault_code(vector::TS, error_of(self.tr.selector)));
        }
        let at = self.tr.base.wrapping_add(offset);
        let (pointer, selector) = if wide {
            (u64::from(self.read_system::<u32>(at)?), self.read_system::<u16>(at.wrapping_add(4))?)
        } else {
            (u64::from(self.read_system::<u16>(at)?), self.read_system::<u16>(at.wrapping_add(2))?)
        };
        if is_null(selector) {
            return Err(self.fault_code(vector::TS, 0));
        }
        let ss = self.present_stack_segment(selector, cpl, vector::TS)?;
        Ok(InnerStack { ss, pointer })
    }

    /// Pushes a gate's frame on the inner stack, or on the current one, and makes the stack real.
    fn push_gate_frame(&mut self, inner: Option<InnerStack>, frame: &[u64], wide: bool, new_cpl: u8) -> Step {
        let old = (self.segments[seg::SS], self.gpr[4]);
        if let Some(InnerStack { ss, pointer }) = inner {
            self.segments[seg::SS] = ss;
            self.gpr[4] = pointer;
            self.update_segment_bases();
        }
        let privilege = if new_cpl == 3 { Privilege::User } else { Privilege::Supervisor };
        let pushed = self.as_privilege(privilege, |core| {
            let mut stack = core.stack(false);
            for value in frame {
                if wide {
                    core.push_on(&mut stack, *value as u32)?;
                } else {
                    core.push_on(&mut stack, *value as u16)?;
                }
            }
            Ok(stack)
        });
        match pushed {
            Ok(stack) => self.set_stack(stack),
            Err(_) => (self.segments[seg::SS], self.gpr[4]) = old,
        }
        self.update_segment_bases();
        self.update_privilege();
        pushed.map(|_| ())
    }

    /// Far JMP through a gate of protected mode, which keeps the CPL.
    pub fn legacy_gate_jump(&mut self, selector: u16) -> Step {
        let gate = self.legacy_gate(selector)?;
        if !gate.code.is_conforming_code() && gate.code.dpl() != self.cpl() {
            return Err(self.fault_code(vector::GP, error_of(gate.selector)));
        }
        if gate.target > u64::from(gate.code.segment(0).limit) {
            return Err(self.fault_code(vector::GP, 0));
        }
        self.mark_accessed(&gate.code)?;
        self.enter_gate_code(&gate, self.cpl());
        Ok(())
    }

    /// Far CALL through a gate of protected mode: to an inner level with the parameters that the gate counts.
    pub fn legacy_gate_call(&mut self, op: &Op, selector: u16) -> Step {
        let gate = self.legacy_gate(selector)?;
        let cpl = self.cpl();
        let new_cpl = if gate.code.is_conforming_code() { cpl } else { gate.code.dpl() };
        let inner = if new_cpl < cpl { Some(self.inner_stack(new_cpl)?) } else { None };
        if gate.target > u64::from(gate.code.segment(0).limit) {
            return Err(self.fault_code(vector::GP, 0));
        }
        let mut frame = Vec::new();
        if inner.is_some() {
            frame.extend([u64::from(self.segments[seg::SS].selector), self.gpr[4]]);
            let mut parameters = Vec::new();
            let mut stack = self.stack(false);
            for _ in 0..gate.parameters {
                parameters.push(if gate.wide {
                    self.pop_from::<u32>(&mut stack)?.zx()
                } else {
                    self.pop_from::<u16>(&mut stack)?.zx()
                });
            }
            frame.extend(parameters.into_iter().rev());
        }
        frame.extend([u64::from(self.segments[seg::CS].selector), op.next_ip]);
        self.push_gate_frame(inner, &frame, gate.wide, new_cpl)?;
        self.mark_accessed(&gate.code)?;
        self.enter_gate_code(&gate, new_cpl);
        Ok(())
    }

    fn enter_gate_code(&mut self, gate: &CallGate, cpl: u8) {
        self.rip = gate.target;
        let mut cs = gate.code.segment(gate.selector);
        cs.selector = (gate.selector & !3) | u16::from(cpl);
        self.set_code_and_stack(cs, None);
    }

    fn legacy_gate(&mut self, selector: u16) -> Result<CallGate, Trap> {
        let gate = self.descriptor(selector, vector::GP)?;
        let kind = gate.system_type();
        let lowest = self.cpl().max((selector & 3) as u8);
        // Types 1, 3, 9 and 11 are task state segments.
        let switches_task = matches!(kind, 1 | 3 | TASK_GATE | 9 | 11);
        if !(switches_task || matches!(kind, CALL_GATE_16 | CALL_GATE_32)) || lowest > gate.dpl() {
            return Err(self.fault_code(vector::GP, error_of(selector)));
        }
        if !gate.has(desc::PRESENT) {
            return Err(self.fault_code(vector::NP, error_of(selector)));
        }
        if switches_task {
            return Err(self.unsupported_mode());
        }
        let wide = kind & WIDE != 0;
        let target = (gate.low & 0xffff) | if wide { (gate.low >> 48) << 16 } else { 0 };
        let selector = (gate.low >> 16) as u16;
        let code = self.gate_code(selector)?;
        Ok(CallGate { code, selector, target, wide, parameters: gate.low >> 32 & 31 })
    }
}
