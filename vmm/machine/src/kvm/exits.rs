// SPDX-License-Identifier: AGPL-3.0-or-later
//! Progress by exits: the guest runs freely until it needs the machine.
//!
//! A unit is an exit that was answered (each value of a string of port accesses on its own), a HLT, or an event that was
//! delivered. Between two of them guest time stands still. A stop is possible wherever no exit is half answered.

use chaoscontrol_cpu::Exit;

use super::engine::Kvm;
use super::error::KvmError;
use super::regs;
use super::vcpu::Event;

/// Instructions in a row that KVM's emulator does not know before someone is told: a second or so of the host's time.
const ASSISTS_MAX: u32 = 1 << 20;

/// Where a run ends at the latest.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Progress count.
    pub progress: u64,
}

impl Limits {
    pub fn after(progress: u64, budget: u64) -> Self {
        Self { progress: progress.saturating_add(budget) }
    }
}

/// An exit of KVM, given to the machine in the pieces that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Values so far.
    PortRead { port: u16, size: u8, count: u32, data: Vec<u8> },
    /// Bytes handed on so far.
    PortWrite { port: u16, size: u8, data: Vec<u8>, at: usize },
    /// Bytes answered so far.
    MmioRead { address: u64, size: u8, at: u8, value: u64 },
    /// Bytes handed on so far.
    MmioWrite { address: u64, size: u8, at: u8, value: u64 },
    /// The software CPU executes the instruction, and waits.
    Soft,
}

/// Bytes of the piece at `address`: none crosses a multiple of eight.
fn piece(address: u64, left: u8) -> u8 {
    left.min(8 - (address & 7) as u8)
}

impl Half {
    /// The next piece for the machine, if there is one.
    fn next(&mut self) -> Option<Exit> {
        match self {
            Self::PortRead { port, size, count, data } => {
                let wanted = usize::from(*size) * *count as usize;
                (data.len() < wanted).then_some(Exit::PortRead { port: *port, size: *size })
            }
            Self::PortWrite { port, size, data, at } => {
                let bytes = data.get(*at..*at + usize::from(*size))?;
                let mut value = [0; 4];
                value[..bytes.len()].copy_from_slice(bytes);
                *at += bytes.len();
                Some(Exit::PortWrite { port: *port, size: *size, value: u32::from_le_bytes(value) })
            }
            Self::MmioRead { address, size, at, .. } => {
                let start = *address + u64::from(*at);
                (at < size).then(|| Exit::MmioRead { address: start, size: piece(start, *size - *at) })
            }
            Self::MmioWrite { address, size, at, value } => {
                let start = *address + u64::from(*at);
                let bytes = (*at < *size).then(|| piece(start, *size - *at))?;
                let shifted = *value >> (u32::from(*at) * 8);
                let kept = if bytes == 8 { shifted } else { shifted & ((1 << (u32::from(bytes) * 8)) - 1) };
                *at += bytes;
                Some(Exit::MmioWrite { address: start, size: bytes, value: kept })
            }
            Self::Soft => None,
        }
    }

    /// The machine's answer to the piece that it was given last.
    pub fn answer(&mut self, answer: u64) {
        match self {
            Self::PortRead { size, data, .. } => data.extend(&answer.to_le_bytes()[..usize::from(*size)]),
            Self::MmioRead { address, size, at, value } => {
                let bytes = piece(*address + u64::from(*at), *size - *at);
                let kept = if bytes == 8 { answer } else { answer & ((1 << (u32::from(bytes) * 8)) - 1) };
                *value |= kept << (u32::from(*at) * 8);
                *at += bytes;
            }
            Self::PortWrite { .. } | Self::MmioWrite { .. } | Self::Soft => {}
        }
    }

    /// What it counts once it is done.
    fn units(&self) -> u64 {
        match self {
            Self::PortRead { count, .. } => u64::from(*count),
            Self::PortWrite { size, data, .. } => (data.len() / usize::from(*size).max(1)) as u64,
            Self::MmioRead { .. } | Self::MmioWrite { .. } | Self::Soft => 1,
        }
    }
}

/// What to do next.
pub(super) enum Next {
    /// Look at what is due at this boundary; the software CPU holds the state.
    Boundary,
    /// Go on in KVM, which holds the state.
    Enter,
    /// Act on this.
    Event(Event),
    /// Tell the machine.
    Exit(Exit),
}

impl Kvm {
    pub(super) fn run_exits(&mut self, limits: Limits) -> Result<Exit, KvmError> {
        let mut next = self.begin(limits)?;
        let mut assists = 0;
        loop {
            let event = match next {
                Next::Exit(exit) => return Ok(exit),
                Next::Event(event) => event,
                Next::Enter => self.enter_counting(limits)?,
                Next::Boundary => match self.at_boundary(limits) {
                    Some(exit) => return Ok(exit),
                    None if self.nearly_there(limits) => {
                        next = self.small_step()?;
                        continue;
                    }
                    None => {
                        self.hand_over()?;
                        self.enter_counting(limits)?
                    }
                },
            };
            let class = self.vcpu.cr8();
            if class != self.tpr {
                self.tpr = class;
                // What lowered it says so itself.
                if event != Event::TprLowered {
                    self.deferred = Some(event);
                    return Ok(Exit::TprWrite);
                }
            }
            if event == Event::NotEmulated {
                assists += 1;
                if assists > ASSISTS_MAX {
                    return Err(KvmError::NotEmulated { rip: self.soft.state().rip, instructions: ASSISTS_MAX });
                }
            } else {
                assists = 0;
            }
            next = self.act(event)?;
        }
    }

    /// What the last run left.
    fn begin(&mut self, limits: Limits) -> Result<Next, KvmError> {
        if let Some(event) = self.deferred.take() {
            return Ok(Next::Event(event));
        }
        let Some(mut half) = self.half.take() else { return Ok(Next::Boundary) };
        if half == Half::Soft {
            return self.run_soft(1);
        }
        if let Some(exit) = half.next() {
            self.half = Some(half);
            return Ok(Next::Exit(exit));
        }
        match &half {
            Half::PortRead { data, .. } => self.vcpu.answer_port(data),
            Half::MmioRead { value, .. } => self.vcpu.answer_mmio(*value),
            Half::PortWrite { .. } | Half::MmioWrite { .. } | Half::Soft => {}
        }
        self.progress += half.units();
        if self.progress < limits.progress && !self.window_wanted {
            return Ok(Next::Enter);
        }
        self.vcpu.set_cr8(self.tpr);
        match self.vcpu.complete()? {
            Some(event) => Ok(Next::Event(event)),
            None => self.take_over(),
        }
    }

    /// Acts on what the guest was left for.
    fn act(&mut self, event: Event) -> Result<Next, KvmError> {
        let half = match event {
            Event::PortRead { port, size, count } => Half::PortRead { port, size, count, data: Vec::new() },
            Event::PortWrite { port, size, data } => Half::PortWrite { port, size, data, at: 0 },
            Event::MmioRead { address, size } => Half::MmioRead { address, size, at: 0, value: 0 },
            Event::MmioWrite { address, size, value } => Half::MmioWrite { address, size, at: 0, value },
            Event::Msr => {
                self.vcpu.withdraw_msr()?;
                self.settle()?;
                return self.run_soft(1);
            }
            Event::NotEmulated => {
                self.settle()?;
                return self.run_soft(0);
            }
            Event::Halted => {
                self.progress += 1;
                self.settle()?;
                self.halted = true;
                return Ok(Next::Boundary);
            }
            Event::TprLowered => {
                self.progress += 1;
                self.settle()?;
                return Ok(Next::Exit(Exit::TprWrite));
            }
            // Interrupted: by the counter, or by someone who has no say.
            Event::WindowOpen | Event::Interrupted => return self.take_over(),
            Event::Shutdown => {
                self.settle()?;
                self.shutdown = true;
                return Ok(Next::Exit(Exit::Shutdown));
            }
            Event::Stepped => return Err(self.unexpected("a single step")),
            Event::Other(what) => return Err(self.unexpected(&what)),
        };
        let mut half = half;
        let Some(exit) = half.next() else { return Err(self.unexpected("an access of no bytes")) };
        self.half = Some(half);
        Ok(Next::Exit(exit))
    }

    fn unexpected(&self, what: &str) -> KvmError {
        KvmError::UnexpectedExit { what: what.to_owned(), rip: self.vcpu.regs().rip }
    }

    /// The state moves from KVM to the software CPU. Where an exception is on its way in, KVM delivers it first.
    fn take_over(&mut self) -> Result<Next, KvmError> {
        if self.vcpu.delivering() {
            return Ok(Next::Enter);
        }
        self.settle()?;
        Ok(Next::Boundary)
    }

    /// The same where nothing can be on its way.
    fn settle(&mut self) -> Result<(), KvmError> {
        let mut state = self.soft.state();
        regs::pull(&mut self.vcpu, &mut state)?;
        (state.halted, state.pending_debug, state.instructions) = (false, 0, self.progress);
        self.load_soft(&state)?;
        self.known = Some(state);
        self.soft_stale = true;
        self.halted = false;
        Ok(())
    }

    /// The state moves from the software CPU to KVM, as far as it changed.
    fn hand_over(&mut self) -> Result<(), KvmError> {
        // KVM has no place for a debug trap that is due; the software CPU delivers it.
        while self.soft.state().pending_debug != 0 {
            self.refresh_soft();
            self.soft.run(1);
        }
        let state = self.soft.state();
        regs::push(&mut self.vcpu, &state, self.known.as_ref())?;
        self.known = Some(state);
        Ok(())
    }

    pub(super) fn enter_freely(&mut self) -> Result<Event, KvmError> {
        self.vcpu.set_window(self.window_wanted);
        self.vcpu.set_cr8(self.tpr);
        if self.host_wrote && !self.sees_host_writes {
            self.vcpu.forget_derived(&mut self.dirty)?;
        }
        self.host_wrote = false;
        if self.model.is_full() {
            let tsc = self.tsc_base.tsc_at(self.progress).wrapping_add(self.soft.state().msrs.tsc_offset);
            self.vcpu.set_tsc(tsc)?;
        }
        self.enter()
    }

    /// What is due where the guest stands between two instructions.
    fn at_boundary(&self, limits: Limits) -> Option<Exit> {
        if self.shutdown {
            return Some(Exit::Shutdown);
        }
        if self.progress >= limits.progress {
            return Some(Exit::BudgetUsed);
        }
        if self.window_wanted && self.soft.interrupt_ready() {
            return Some(Exit::InterruptWindow);
        }
        self.halted.then_some(Exit::Halted)
    }

    /// KVM may have written anywhere.
    pub(super) fn refresh_soft(&mut self) {
        if self.soft_stale {
            self.soft.forget_memory();
            self.soft_stale = false;
        }
    }

    /// The software CPU executes one instruction, which counts `units`.
    pub(super) fn run_soft(&mut self, units: u64) -> Result<Next, KvmError> {
        self.refresh_soft();
        self.host_wrote = true;
        let exit = self.soft.run(1);
        self.tpr = self.soft.tpr();
        Ok(match exit {
            Exit::BudgetUsed => {
                self.progress += units;
                Next::Boundary
            }
            Exit::TprWrite => {
                self.progress += 1;
                Next::Exit(exit)
            }
            Exit::Halted => {
                self.progress += 1;
                self.halted = true;
                Next::Boundary
            }
            Exit::Shutdown => {
                self.shutdown = true;
                Next::Exit(exit)
            }
            Exit::GuestError(_) | Exit::InterruptWindow => Next::Exit(exit),
            Exit::PortRead { .. }
            | Exit::PortWrite { .. }
            | Exit::MmioRead { .. }
            | Exit::MmioWrite { .. }
            | Exit::MsrRead { .. }
            | Exit::MsrWrite { .. } => {
                self.half = Some(Half::Soft);
                Next::Exit(exit)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_answered_in_pieces_that_cross_no_eight_bytes() {
        let mut half = Half::MmioRead { address: 0x1005, size: 8, at: 0, value: 0 };
        assert_eq!(half.next(), Some(Exit::MmioRead { address: 0x1005, size: 3 }));
        half.answer(0xff33_2211);
        assert_eq!(half.next(), Some(Exit::MmioRead { address: 0x1008, size: 5 }));
        half.answer(0x88_7766_5544);
        assert_eq!(half.next(), None);
        assert_eq!(half, Half::MmioRead { address: 0x1005, size: 8, at: 8, value: 0x8877_6655_4433_2211 });
    }

    #[test]
    fn a_store_is_handed_on_in_pieces() {
        let mut half = Half::MmioWrite { address: 6, size: 4, at: 0, value: 0x4433_2211 };
        assert_eq!(half.next(), Some(Exit::MmioWrite { address: 6, size: 2, value: 0x2211 }));
        assert_eq!(half.next(), Some(Exit::MmioWrite { address: 8, size: 2, value: 0x4433 }));
        assert_eq!(half.next(), None);
        let mut half = Half::MmioWrite { address: 8, size: 8, at: 0, value: u64::MAX };
        assert_eq!(half.next(), Some(Exit::MmioWrite { address: 8, size: 8, value: u64::MAX }));
        assert_eq!((half.next(), half.units()), (None, 1));
    }

    #[test]
    fn each_value_of_a_string_access_counts() {
        let mut half = Half::PortWrite { port: 5, size: 2, data: vec![1, 2, 3, 4], at: 0 };
        assert_eq!(half.next(), Some(Exit::PortWrite { port: 5, size: 2, value: 0x201 }));
        assert_eq!(half.next(), Some(Exit::PortWrite { port: 5, size: 2, value: 0x403 }));
        assert_eq!((half.next(), half.units()), (None, 2));
        let mut half = Half::PortRead { port: 5, size: 1, count: 2, data: Vec::new() };
        for value in [7, 8] {
            assert_eq!(half.next(), Some(Exit::PortRead { port: 5, size: 1 }));
            half.answer(value);
        }
        assert_eq!((half.next(), half.units()), (None, 2));
        assert_eq!(half, Half::PortRead { port: 5, size: 1, count: 2, data: vec![7, 8] });
    }
}
