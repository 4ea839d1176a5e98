// SPDX-License-Identifier: AGPL-3.0-or-later
//! The run loop: timers, interrupts, exits and idle time, at exact boundaries.
//!
//! One round: let devices do what is due, inject what is pending, then run the engine exactly to the next event or the
//! deadline. What happens at a boundary depends only on the boundary: a stop there, for whatever reason, leaves no mark.

use chaoscontrol_cpu::Exit;

use crate::board::Bus;
use crate::device::Request;
use crate::machine::Machine;
use crate::msr;
use crate::smp::journal::JournalError;
use crate::stop::{MachineError, Stop};
use crate::time::GuestNs;

/// Where a run ends at the latest.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    /// Guest time.
    pub deadline: GuestNs,
    /// Progress count.
    pub progress: u64,
}

/// Borrows the machine's memory and time beside its board.
macro_rules! bus {
    ($machine:ident) => {
        Bus { memory: &$machine.memory, now: $machine.now() }
    };
}
pub(crate) use bus;

impl Machine {
    pub(crate) fn run(&mut self, limit: Limit) -> Result<Stop, MachineError> {
        self.check_sound()?;
        let result = self.run_on(limit);
        self.note_high_water();
        if matches!(result, Err(MachineError::Journal(JournalError::Full { .. }))) {
            self.journal_refusals += 1;
        }
        match &result {
            // Nothing has run without room for its record.
            Ok(_) | Err(MachineError::Journal(JournalError::Full { .. }) | MachineError::LogFull { .. }) => {}
            Err(error) => self.poison(error.to_string()),
        }
        result
    }

    fn run_on(&mut self, limit: Limit) -> Result<Stop, MachineError> {
        if let Some(end) = &self.ended {
            return Ok(end.clone());
        }
        // What the host wrote to memory since the last run.
        self.publish_writes();
        loop {
            let now = self.now();
            if now >= limit.deadline || self.progress() >= limit.progress {
                return Ok(Stop::Deadline);
            }
            if self.board.next_event().is_some_and(|event| event <= now) {
                let bus = bus!(self);
                self.board.advance(&bus);
                self.publish_writes();
            }
            self.take_turns()?;
            if self.log.is_some() {
                self.log_boundary()?;
            }
            if self.deliver_interrupts() {
                continue;
            }
            let event = self.board.next_event();
            if self.current().halted {
                match event.filter(|event| *event < limit.deadline) {
                    // At least one step: no device, in whatever state it was restored, may hold time still.
                    Some(event) => self.skip_to(event.max(now.after(u64::from(self.config.ns_per_instruction)))),
                    None => return Ok(Stop::Idle { next_event: event }),
                }
                continue;
            }
            let budget = self.budget(limit, event, now);
            let exit = self.engine_mut().run(budget)?;
            if let Some(stop) = self.handle(exit)? {
                return Ok(stop);
            }
        }
    }

    /// Units of progress to the first boundary at or after the event or the deadline.
    fn budget(&self, limit: Limit, event: Option<GuestNs>, now: GuestNs) -> u64 {
        if self.board.lapic().nmi() {
            // The CPU holds NMIs until its IRET, which is no exit: look again after every instruction.
            return 1;
        }
        let until = event.map_or(limit.deadline, |event| event.min(limit.deadline));
        let to_time = until.since(now).div_ceil(u64::from(self.config.ns_per_instruction));
        let mut to_end = limit.progress - self.progress();
        if self.cpus.len() > 1 {
            to_end = to_end.min(self.scheduler.turn_end().saturating_sub(self.progress()));
        }
        if self.log.is_some() {
            to_end = to_end.min(self.to_next_mark());
        }
        to_time.min(to_end).max(1)
    }

    /// Injects what is pending, or asks for a window. True if something was injected.
    fn deliver_interrupts(&mut self) -> bool {
        if self.board.lapic().nmi() && self.engine_mut().inject_nmi() {
            self.board.lapic_mut().nmi_taken();
            self.current_mut().halted = false;
            self.log_interrupt(None);
            return true;
        }
        let pending = self.board.pending().is_some();
        if pending && self.engine().interrupt_ready() {
            if let Some(vector) = self.board.acknowledge() {
                self.engine_mut().inject_interrupt(vector);
                self.current_mut().halted = false;
                self.log_interrupt(Some(vector));
                return true;
            }
        } else if pending != self.current().window_wanted {
            self.current_mut().window_wanted = pending;
            self.engine_mut().request_interrupt_window(pending);
        }
        false
    }

    /// Acts on an exit. A stop is returned only at an instruction boundary.
    fn handle(&mut self, exit: Exit) -> Result<Option<Stop>, MachineError> {
        match exit {
            Exit::BudgetUsed | Exit::InterruptWindow => return Ok(None),
            Exit::Halted => {
                self.log_exit(exit, None);
                self.current_mut().halted = true;
                return Ok(None);
            }
            Exit::TprWrite => {
                self.log_exit(exit, None);
                let class = self.engine().tpr();
                self.board.lapic_mut().set_tpr_class(class);
                return Ok(None);
            }
            Exit::Shutdown => {
                self.log_exit(exit, None);
                return Ok(Some(self.end(Stop::TripleFault)));
            }
            Exit::GuestError(error) => {
                self.log_exit(exit, None);
                return Ok(Some(self.end(Stop::GuestError(error))));
            }
            Exit::PortRead { port, size } => self.port_read(port, size),
            Exit::PortWrite { port, size, value } => self.port_write(port, size, value),
            Exit::MmioRead { address, size } => self.mmio_read(address, size),
            Exit::MmioWrite { address, size, value } => self.mmio_write(address, size, value),
            Exit::MsrRead { index } => {
                let value = msr::read(&self.board, index);
                self.log_exit(exit, value);
                match value {
                    Some(value) => self.engine_mut().complete_read(value),
                    None => self.engine_mut().refuse_msr(),
                }
            }
            Exit::MsrWrite { index, value } => self.msr_write(index, value),
        }
        self.publish_writes();
        match self.board.request.take() {
            None if !self.watch_matches() => Ok(None),
            request => self.finish_instruction(request),
        }
    }

    fn bytes_of(size: u8) -> usize {
        usize::from(size).clamp(1, 8)
    }

    fn port_read(&mut self, port: u16, size: u8) {
        let mut data = [0; 8];
        let bus = bus!(self);
        self.board.port_read(port, &mut data[..Self::bytes_of(size)], &bus);
        let value = u64::from_le_bytes(data);
        self.log_exit(Exit::PortRead { port, size }, Some(value));
        self.engine_mut().complete_read(value);
    }

    fn port_write(&mut self, port: u16, size: u8, value: u32) {
        self.log_exit(Exit::PortWrite { port, size, value }, None);
        let data = u64::from(value).to_le_bytes();
        let bus = bus!(self);
        self.board.port_write(port, &data[..Self::bytes_of(size)], &bus);
    }

    fn mmio_read(&mut self, address: u64, size: u8) {
        let mut data = [0; 8];
        let bus = bus!(self);
        self.board.mmio_read(address, &mut data[..Self::bytes_of(size)], &bus);
        let value = u64::from_le_bytes(data);
        self.log_exit(Exit::MmioRead { address, size }, Some(value));
        self.engine_mut().complete_read(value);
    }

    fn mmio_write(&mut self, address: u64, size: u8, value: u64) {
        self.log_exit(Exit::MmioWrite { address, size, value }, None);
        let data = value.to_le_bytes();
        let bus = bus!(self);
        self.board.mmio_write(address, &data[..Self::bytes_of(size)], &bus);
        let class = self.board.lapic().tpr() >> 4;
        if self.engine().tpr() != class {
            self.engine_mut().set_tpr(class);
        }
    }

    fn msr_write(&mut self, index: u32, value: u64) {
        self.log_exit(Exit::MsrWrite { index, value }, None);
        let now = self.now();
        // Only the deadline is in TSC units, and only then is the whole state worth fetching.
        let tsc_offset = if index == msr::TSC_DEADLINE { self.engine().state().msrs.tsc_offset } else { 0 };
        if !msr::write(&mut self.board, index, value, tsc_offset, now) {
            self.engine_mut().refuse_msr();
        }
    }

    /// Completes the instruction whose access made `request` (or matched the watched text), then stops.
    fn finish_instruction(&mut self, request: Option<Request>) -> Result<Option<Stop>, MachineError> {
        // One instruction makes few exits: the longest, FXSAVE to device memory, makes 64.
        for _ in 0..1024 {
            match self.engine_mut().run(1)? {
                Exit::PortRead { port, size } => self.port_read(port, size),
                Exit::PortWrite { port, size, value } => self.port_write(port, size, value),
                Exit::MmioRead { address, size } => self.mmio_read(address, size),
                Exit::MmioWrite { address, size, value } => self.mmio_write(address, size, value),
                Exit::Shutdown => return Ok(Some(self.end(Stop::TripleFault))),
                Exit::GuestError(error) => return Ok(Some(self.end(Stop::GuestError(error)))),
                exit => {
                    self.publish_writes();
                    if exit == Exit::Halted {
                        self.current_mut().halted = true;
                    }
                    break;
                }
            }
        }
        Ok(Some(match request.or(self.board.request.take()) {
            None => Stop::SerialMatch,
            Some(Request::Doorbell { slot }) => Stop::Doorbell { slot },
            Some(Request::RestartPoint) => Stop::RestartPoint,
            Some(Request::PowerOff) => self.end(Stop::PowerOff),
            Some(Request::Reset) => {
                // A panicking kernel resets at once under our command line; its console says why.
                let stop = match self.board.serial.capture().panic_line.clone() {
                    Some(line) => Stop::Panic { hint: Some(line) },
                    None => Stop::Reset,
                };
                self.end(stop)
            }
        }))
    }

    fn end(&mut self, stop: Stop) -> Stop {
        self.ended = Some(stop.clone());
        stop
    }

    /// Tells the engine and the dirty set about pages that devices wrote.
    pub(crate) fn publish_writes(&mut self) {
        let (cpus, dirty) = (&mut self.cpus, &mut self.dirty);
        self.memory.take_written_pages(&mut |page| {
            cpus[0].engine.memory_changed(page << 12, 4096);
            dirty.insert(page);
        });
    }

    /// Whether the serial output just now ends with the watched text.
    fn watch_matches(&self) -> bool {
        !self.watch.is_empty() && self.board.serial.capture().bytes.ends_with(&self.watch)
    }
}
