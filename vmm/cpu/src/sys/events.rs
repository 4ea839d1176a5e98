// SPDX-License-Identifier: AGPL-3.0-or-later
//! Delivery of exceptions and interrupts (AMD64 APM vol. 2, 8.9; Intel SDM vol. 3A, 6.14); entering handlers in long mode.
//! Other modes enter theirs in `legacy.rs`.

use crate::core_state::{Core, Fault, vector};
use crate::exit::{Exit, GuestError};
use crate::flags::bit;
use crate::int::branch::is_canonical;
use crate::op::{Step, Trap};
use crate::segment::{desc, error_of, is_null, null_stack};
use crate::state::seg;
use crate::tlb::Privilege;

/// The error code bit that says the selector is an IDT index.
pub(crate) const IN_IDT: u32 = 2;
/// The error code bit that says the fault came from delivering another event.
const EXTERNAL: u32 = 1;
const INTERRUPT_GATE: u16 = 14;
const TRAP_GATE: u16 = 15;
/// Offset of RSP0 and of IST1 in a 64-bit TSS.
const TSS_RSP0: u64 = 4;
const TSS_IST1: u64 = 36;

/// What is being delivered, and where the handler returns to.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub vector: u8,
    pub error: Option<u32>,
    /// INT n, INT3, INTO: the gate's DPL counts.
    pub software: bool,
    pub return_rip: u64,
    pub resume_flag: bool,
}

/// The classes of the double-fault rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Benign,
    Contributory,
    PageFault,
}

fn class(fault: u8) -> Class {
    match fault {
        vector::DE | vector::TS | vector::NP | vector::SS | vector::GP => Class::Contributory,
        vector::PF => Class::PageFault,
        _ => Class::Benign,
    }
}

fn pushes_error(fault: u8) -> bool {
    matches!(fault, vector::DF | vector::TS | vector::NP | vector::SS | vector::GP | vector::PF | vector::AC)
}

/// Exceptions whose saved flags have RF set: faults, but not #DB.
fn is_fault(fault: u8) -> bool {
    !matches!(fault, vector::DB | vector::NMI | vector::BP | vector::OF | vector::DF) && fault < 32
}

impl Core {
    /// Delivers an exception at `rip`; a fault on the way becomes a double fault, then shutdown.
    pub fn deliver(&mut self, fault: Fault) {
        self.faults += 1;
        let event = Event {
            vector: fault.vector,
            error: fault.error.filter(|_| pushes_error(fault.vector)),
            software: false,
            return_rip: self.rip,
            resume_flag: is_fault(fault.vector),
        };
        if fault.vector == vector::PF {
            self.cr2 = fault.address;
        }
        if fault.vector == vector::DB {
            // General detection ends where the handler begins.
            self.dr7 &= !(1 << 13);
        }
        self.deliver_event(event);
    }

    /// Delivers an external interrupt or NMI.
    pub fn deliver_external(&mut self, vector: u8) {
        self.faults += 1;
        let event = Event { vector, error: None, software: false, return_rip: self.rip, resume_flag: false };
        self.deliver_event(event);
    }

    /// INT n, INT3, INTO, INT1: a fault on the way is a fault of the instruction.
    pub fn software_interrupt(&mut self, vector: u8, checks_dpl: bool, next_ip: u64) -> Step {
        let event = Event { vector, error: None, software: checks_dpl, return_rip: next_ip, resume_flag: false };
        self.enter_handler(&event)
    }

    fn deliver_event(&mut self, first: Event) {
        let mut event = first;
        self.attention = true;
        loop {
            match self.enter_handler(&event) {
                Ok(()) => return,
                Err(Trap::Exit) => {
                    let error = match self.pending_exit {
                        Exit::GuestError(error) => error,
                        _ => GuestError::DeliveryOutsideRam { vector: event.vector, rip: self.rip },
                    };
                    self.boundary_exit = Some(Exit::GuestError(error));
                    self.log.clear();
                    return;
                }
                Err(Trap::Fault) if event.vector == vector::DF => {
                    self.shutdown = true;
                    return;
                }
                Err(Trap::Fault) => event = self.second_fault(&event),
            }
        }
    }

    /// What to deliver when delivering `first` faulted.
    fn second_fault(&mut self, first: &Event) -> Event {
        let second = self.pending_fault;
        if second.vector == vector::PF {
            self.cr2 = second.address;
        }
        let double = matches!(
            (class(first.vector), class(second.vector)),
            (Class::Contributory, Class::Contributory) | (Class::PageFault, Class::Contributory | Class::PageFault)
        );
        let (vector, error) = if double {
            (vector::DF, Some(0))
        } else {
            let external = if second.vector == vector::PF { 0 } else { EXTERNAL };
            (second.vector, second.error.map(|error| error | external))
        };
        Event { vector, error, software: false, return_rip: first.return_rip, resume_flag: is_fault(vector) }
    }

    /// Goes through the IDT. On `Err` nothing has changed but memory on the new stack.
    fn enter_handler(&mut self, event: &Event) -> Step {
        if !self.in_long_mode() {
            return self.enter_legacy_handler(event);
        }
        let in_idt = u32::from(event.vector) * 8 + IN_IDT;
        let offset = u64::from(event.vector) * 16;
        if offset + 15 > u64::from(self.idtr.limit) {
            return Err(self.fault_code(vector::GP, in_idt));
        }
        let low = self.read_system::<u64>(self.idtr.base.wrapping_add(offset))?;
        let high = self.read_system::<u64>(self.idtr.base.wrapping_add(offset + 8))?;
        let attributes = (low >> 40) as u16 & 0xff;
        let kind = attributes & 0x1f;
        if kind != INTERRUPT_GATE && kind != TRAP_GATE {
            return Err(self.fault_code(vector::GP, in_idt));
        }
        if event.software && (attributes >> desc::DPL_SHIFT & 3) < u16::from(self.cpl()) {
            return Err(self.fault_code(vector::GP, in_idt));
        }
        if attributes & desc::PRESENT == 0 {
            return Err(self.fault_code(vector::NP, in_idt));
        }
        let target = (low & 0xffff) | (low >> 48) << 16 | high << 32;
        let selector = (low >> 16) as u16;
        let stack_index = (low >> 32 & 7) as u8;
        self.enter_code(event, target, selector, stack_index, kind == INTERRUPT_GATE)
    }

    fn enter_code(&mut self, event: &Event, target: u64, selector: u16, stack_index: u8, masks: bool) -> Step {
        if is_null(selector) {
            return Err(self.fault_code(vector::GP, 0));
        }
        let descriptor = self.descriptor(selector, vector::GP)?;
        let cpl = self.cpl();
        let long = descriptor.has(desc::LONG) && !descriptor.has(desc::BIG);
        if !descriptor.is_code() || descriptor.dpl() > cpl || !long {
            return Err(self.fault_code(vector::GP, error_of(selector)));
        }
        if !descriptor.has(desc::PRESENT) {
            return Err(self.fault_code(vector::NP, error_of(selector)));
        }
        let new_cpl = if descriptor.is_conforming_code() { cpl } else { descriptor.dpl() };
        let mut rsp = self.gpr[4];
        if stack_index != 0 {
            rsp = self.tss_stack(TSS_IST1 + u64::from(stack_index - 1) * 8)?;
        } else if new_cpl < cpl {
            rsp = self.tss_stack(TSS_RSP0 + u64::from(new_cpl) * 8)?;
        }
        rsp &= !15;
        if !is_canonical(target) {
            return Err(self.fault_code(vector::GP, 0));
        }
        let rsp = self.push_frame(event, rsp, new_cpl)?;
        self.mark_accessed(&descriptor)?;

        self.gpr[4] = rsp;
        self.rip = target;
        let mut cs = descriptor.segment(selector);
        cs.selector = (selector & !3) | u16::from(new_cpl);
        let ss = (new_cpl < cpl).then(|| null_stack(u16::from(new_cpl)));
        self.system_flags &= !(bit::TF | bit::NT | bit::RF | bit::VM);
        if masks {
            self.system_flags &= !bit::IF;
        }
        self.set_code_and_stack(cs, ss);
        Ok(())
    }

    /// A stack pointer from the TSS.
    pub fn tss_stack(&mut self, offset: u64) -> Result<u64, Trap> {
        if offset + 7 > u64::from(self.tr.limit) {
            return Err(self.fault_code(vector::TS, error_of(self.tr.selector)));
        }
        let rsp = self.read_system::<u64>(self.tr.base.wrapping_add(offset))?;
        if is_canonical(rsp) { Ok(rsp) } else { Err(self.fault_code(vector::SS, 0)) }
    }

    fn push_frame(&mut self, event: &Event, rsp: u64, new_cpl: u8) -> Result<u64, Trap> {
        let resume = if event.resume_flag { bit::RF } else { 0 };
        let frame = [
            u64::from(self.segments[seg::SS].selector),
            self.gpr[4],
            self.rflags() | resume,
            u64::from(self.segments[seg::CS].selector),
            event.return_rip,
        ];
        let privilege = if new_cpl == 3 { Privilege::User } else { Privilege::Supervisor };
        let values = frame.into_iter().chain(event.error.map(u64::from));
        self.as_privilege(privilege, |core| {
            let mut rsp = rsp;
            for value in values {
                rsp = rsp.wrapping_sub(8);
                core.write(rsp, seg::SS as u8, value)?;
            }
            Ok(rsp)
        })
    }
}
