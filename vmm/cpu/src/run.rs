// SPDX-License-Identifier: AGPL-3.0-or-later
//! The run loop: boundaries between blocks, and what happens at them.

use crate::blocks::Run;
use crate::core_state::{Core, DR7_ENABLES, Fault, vector};
use crate::cpu::Cpu;
use crate::exit::{Exit, GuestError};
use crate::flags::bit;
use crate::op::{Trap, attr};

/// DR6.BS: single step.
pub(crate) const SINGLE_STEP: u16 = 1 << 14;
/// In `pending_debug`: held for one more instruction (MOV SS, POP SS).
const HELD: u16 = 1 << 15;

/// What executing (part of) a block came to.
enum Outcome {
    /// Every operation that ran has retired.
    Retired,
    /// Leave `run`.
    Exit(Exit),
}

impl Cpu {
    /// Runs until exactly `budget` counted events have happened, or until something needs the caller.
    pub fn run(&mut self, budget: u64) -> Exit {
        self.catch_up();
        self.core.limit = self.core.instructions.saturating_add(budget);
        self.core.log.settle();
        self.core.attention = true;
        if self.coverage.is_some() { self.run_to_limit::<true>() } else { self.run_to_limit::<false>() }
    }

    /// The loop over blocks; `OBSERVED` says that edges are recorded.
    fn run_to_limit<const OBSERVED: bool>(&mut self) -> Exit {
        loop {
            if self.core.attention {
                #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
                if let Some(compiled) = &mut self.compiled {
                    compiled.attended();
                }
                if let Some(exit) = self.at_boundary() {
                    return exit;
                }
            }
            let room = self.core.limit - self.core.instructions;
            if room == 0 {
                return Exit::BudgetUsed;
            }
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            match self.execute_known() {
                Some(Outcome::Exit(exit)) => return exit,
                Some(Outcome::Retired) => continue,
                None => {}
            }
            let run = match self.blocks.cached(&self.core) {
                Some(run) => run,
                None => match self.blocks.find_slow(&mut self.core) {
                    Ok(run) => run,
                    Err(trap) => {
                        if let Outcome::Exit(exit) = self.trapped(trap, self.core.rip) {
                            return exit;
                        }
                        continue;
                    }
                },
            };
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            if crate::compiled::Compiled::fits(room, run.count)
                && let Some(outcome) = self.execute_compiled(&run)
            {
                match outcome {
                    Outcome::Exit(exit) => return exit,
                    Outcome::Retired => continue,
                }
            }
            let outcome = if u64::from(run.count) > room {
                self.execute_part(&run, room as usize)
            } else {
                self.execute::<OBSERVED>(&run)
            };
            if let Outcome::Exit(exit) = outcome {
                return exit;
            }
        }
    }

    /// Executes compiled code from the next boundary on, if the jump cache has it: without a look at the block. None if that came to
    /// nothing, as where the block does not fit what remains of the budget.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[inline]
    fn execute_known(&mut self) -> Option<Outcome> {
        let entry = self.compiled.as_mut()?.known(&self.core, &mut self.blocks)?;
        let (before, ip) = (self.core.instructions, self.core.rip);
        let outcome = self.enter_compiled(entry)?;
        let stood_still = (self.core.instructions, self.core.rip) == (before, ip) && !self.core.attention;
        if stood_still && matches!(outcome, Outcome::Retired) { None } else { Some(outcome) }
    }

    /// Executes compiled code from this block on, if it is compiled.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn execute_compiled(&mut self, run: &Run) -> Option<Outcome> {
        let compiled = self.compiled.as_mut()?;
        let entry = compiled.find(&self.core, &mut self.blocks, run, self.coverage.as_deref_mut())?;
        self.enter_compiled(entry)
    }

    /// Runs compiled code until it leaves.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn enter_compiled(&mut self, entry: u64) -> Option<Outcome> {
        use crate::compiled::Left;
        let compiled = self.compiled.as_mut()?;
        Some(match compiled.run(&mut self.core, entry, self.coverage.as_deref_mut()) {
            Left::Boundary => Outcome::Retired,
            Left::Retired(op) => {
                if let Some(coverage) = self.coverage.as_mut().filter(|_| op.has(attr::EDGE)) {
                    coverage.record(op.has(attr::USER), op.ip(), self.core.rip);
                }
                Outcome::Retired
            }
            Left::Trapped(trap, ip) => self.trapped(trap, ip),
        })
    }

    /// Executes a block, all of it if nothing stops it.
    #[inline(always)]
    fn execute<const OBSERVED: bool>(&mut self, run: &Run) -> Outcome {
        let core = &mut self.core;
        let ops = self.blocks.dispatched(run);
        let user = OBSERVED && core.cpl() == 3;
        core.rip = run.end_ip;
        core.block_end = ops.len();
        let mut position = 0;
        while position < core.block_end {
            // SAFETY: `block_end` starts as the length of `ops` and is only ever set to zero afterwards.
            let op = unsafe { ops.get_unchecked(position) };
            if let Err(trap) = (op.handler)(core, op) {
                core.instructions += position as u64;
                let ip = op.ip();
                return self.trapped(trap, ip);
            }
            position += 1;
        }
        if position == ops.len() {
            core.instructions += u64::from(run.count);
            if OBSERVED {
                self.record_edge(run, user);
            }
        } else {
            core.instructions += position as u64;
            core.rip = self.blocks.op(run, position - 1).next_ip;
        }
        Outcome::Retired
    }

    /// Counts the edge that a block which has retired ends with, if it ends with one. `user` tells where it ran.
    #[inline(always)]
    fn record_edge(&mut self, run: &Run, user: bool) {
        let last = self.blocks.op(run, usize::from(run.count) - 1);
        if last.has(attr::EDGE)
            && let Some(coverage) = &mut self.coverage
        {
            coverage.record(user, last.ip(), self.core.rip);
        }
    }

    /// Executes the first `room` instructions of a longer block, each on its own. None of them ends with an edge.
    #[inline(never)]
    fn execute_part(&mut self, run: &Run, room: usize) -> Outcome {
        let core = &mut self.core;
        core.block_end = room;
        let mut position = 0;
        while position < core.block_end {
            let op = self.blocks.op(run, position);
            core.rip = op.next_ip;
            if let Err(trap) = (op.handler)(core, op) {
                core.instructions += position as u64;
                let ip = op.ip();
                return self.trapped(trap, ip);
            }
            position += 1;
        }
        core.instructions += position as u64;
        Outcome::Retired
    }

    /// An operation at `ip` did not retire.
    #[cold]
    fn trapped(&mut self, trap: Trap, ip: u64) -> Outcome {
        self.core.rip = ip;
        self.forget_written_code();
        match trap {
            Trap::Fault => {
                self.core.log.clear();
                self.core.noted_breakpoints = 0;
                let fault = self.core.pending_fault;
                self.deliver(fault);
                Outcome::Retired
            }
            Trap::Exit => Outcome::Exit(self.core.pending_exit),
        }
    }

    /// Delivers an exception: counts 1.
    fn deliver(&mut self, fault: Fault) {
        self.core.deliver(fault);
        self.core.instructions += 1;
        self.forget_written_code();
    }

    fn forget_written_code(&mut self) {
        while let Some(physical) = self.core.code_writes.pop() {
            self.blocks.forget_page(&mut self.core, physical);
        }
    }

    /// The rare things a boundary must look at. Returns an exit, or None to go on with the next block.
    #[cold]
    #[inline(never)]
    fn at_boundary(&mut self) -> Option<Exit> {
        loop {
            self.forget_written_code();
            if self.core.forget_code {
                self.core.forget_code = false;
                self.blocks.forget_jumps();
            }
            if let Some(exit) = self.core.boundary_exit.take() {
                return Some(exit);
            }
            if self.core.shutdown {
                return Some(Exit::Shutdown);
            }
            if self.core.instructions >= self.core.limit {
                return Some(Exit::BudgetUsed);
            }
            if !self.core.log.is_empty() {
                if let Some(exit) = self.careful_step() {
                    return Some(exit);
                }
                continue;
            }
            let pending = self.core.pending_debug;
            if pending != 0 && pending & HELD == 0 {
                self.core.pending_debug = 0;
                self.core.dr6 |= u64::from(pending);
                self.core.halted = false;
                self.deliver(Fault { vector: vector::DB, ..Fault::default() });
                continue;
            }
            if self.core.window_wanted && self.interrupt_ready() {
                return Some(Exit::InterruptWindow);
            }
            if self.core.halted {
                return Some(Exit::Halted);
            }
            if !self.needs_care() {
                self.core.attention = false;
                return None;
            }
            if let Some(exit) = self.careful_step() {
                return Some(exit);
            }
        }
    }

    /// The next instruction has to be executed alone.
    fn needs_care(&self) -> bool {
        let core = &self.core;
        core.window_wanted && core.interrupt_shadow()
            || core.pending_debug != 0
            || core.system_flags & (bit::TF | bit::RF) != 0
            || core.dr7 & DR7_ENABLES != 0
    }

    /// Executes one instruction (or one iteration) and looks after everything that ends with it.
    fn careful_step(&mut self) -> Option<Exit> {
        let core = &mut self.core;
        let before = core.system_flags & (bit::TF | bit::RF);
        let resumed = !core.log.is_empty();
        if before & bit::RF == 0 && !resumed {
            let hits = core.execution_breakpoints(core.rip.wrapping_add(core.segment_base[crate::state::seg::CS]));
            if hits != 0 {
                core.dr6 |= u64::from(hits);
                self.deliver(Fault { vector: vector::DB, ..Fault::default() });
                return None;
            }
        }
        let (pending, limit) = (core.pending_debug, core.limit);
        core.pending_debug &= !HELD;
        core.system_flags &= !bit::RF;
        core.noted_breakpoints = 0;
        core.limit = core.instructions + 1;
        core.log.rewind();
        let block = match self.blocks.find(core) {
            Ok(block) => block,
            Err(trap) => {
                self.core.limit = limit;
                self.core.system_flags |= before & bit::RF;
                return self.careful_exit(trap, pending);
            }
        };
        let op = *self.blocks.op(&block, 0);
        let retired_before = self.core.faults;
        let outcome = if block.count > 1 { self.execute_part(&block, 1) } else { self.execute::<true>(&block) };
        self.core.limit = limit;
        match outcome {
            Outcome::Exit(exit) => {
                self.core.pending_debug = pending;
                self.core.system_flags |= before & bit::RF;
                return Some(exit);
            }
            Outcome::Retired if self.core.faults == retired_before => {}
            Outcome::Retired => return None,
        }
        self.core.log.clear();
        let core = &mut self.core;
        core.pending_debug |= core.noted_breakpoints;
        if op.has(attr::HOLDS_TRAPS) {
            core.pending_debug |= if core.noted_breakpoints != 0 { HELD } else { 0 };
        } else if before & bit::TF != 0 {
            core.pending_debug |= SINGLE_STEP;
        }
        None
    }

    fn careful_exit(&mut self, trap: Trap, pending: u16) -> Option<Exit> {
        match self.trapped(trap, self.core.rip) {
            Outcome::Retired => None,
            Outcome::Exit(exit) => {
                self.core.pending_debug = pending;
                Some(exit)
            }
        }
    }
}

impl Core {
    /// What needs a hardware task switch or virtual-8086 mode ends the run.
    #[cold]
    pub fn unsupported_mode(&mut self) -> Trap {
        self.pending_exit = Exit::GuestError(GuestError::UnsupportedMode { rip: self.rip });
        Trap::Exit
    }

    /// Code outside RAM cannot be decoded.
    #[cold]
    pub fn fetch_outside_ram(&mut self) -> Trap {
        self.pending_exit = Exit::GuestError(GuestError::FetchOutsideRam { rip: self.rip });
        Trap::Exit
    }
}
