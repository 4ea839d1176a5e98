// SPDX-License-Identifier: AGPL-3.0-or-later
//! Runs a program to its end with stops at chosen boundaries, with restores and with other cache sizes. None of that may
//! change what the program does.

use crate::qemu::world::{self, World};
use crate::random::{Stream, below, one_in, pick, stream};
use chaoscontrol_cpu::{Config, CoverageFilter, Cpu, CpuState, Exit, StateError, Tier};

/// Counted events after which a program is cut off: programs that edit themselves may never end.
const EVENTS_MAX: u64 = 60_000;

/// How to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// As far as the CPU goes by itself.
    Straight,
    /// The same in compiled code.
    Compiled,
    /// One counted event at a time.
    Single,
    /// Random budgets from this seed, in compiled code.
    Random(u64),
    /// Random budgets, and at some stops the state moves into a new CPU with other cache sizes.
    Restores(u64),
}

/// Everything a program did.
#[derive(Clone, PartialEq, Eq)]
pub struct Ending {
    /// The last exit: `BudgetUsed` where the program was cut off.
    pub end: Exit,
    /// The last state.
    pub state: CpuState,
    /// RAM.
    pub memory: Vec<u8>,
    /// Every exit but `BudgetUsed`, in order, with the count at which it came.
    pub exits: Vec<(u64, Exit)>,
    /// Edge counts; empty after [`Policy::Restores`], whose CPUs have one map each.
    pub coverage: Vec<u8>,
}

impl Ending {
    /// What differs first, or `None`.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let (a, b) = (format!("{:x?}", self.state), format!("{:x?}", other.state));
        if self.exits != other.exits {
            let at = self.exits.iter().zip(&other.exits).position(|(x, y)| x != y);
            let at = at.unwrap_or(self.exits.len().min(other.exits.len()));
            return Some(format!("exit {at}: {:x?} or {:x?}", self.exits.get(at), other.exits.get(at)));
        }
        if self.end != other.end {
            return Some(format!("the end: {:x?} or {:x?}", self.end, other.end));
        }
        if self.state != other.state {
            return Some(format!("state:\n{a}\nor\n{b}"));
        }
        if let Some(at) = self.memory.iter().zip(&other.memory).position(|(x, y)| x != y) {
            return Some(format!("memory at {at:#x}: {:#x} or {:#x}", self.memory[at], other.memory[at]));
        }
        let both = !self.coverage.is_empty() && !other.coverage.is_empty();
        (both && self.coverage != other.coverage).then(|| "edge counts".into())
    }
}

/// Runs `world` under `policy` until it halts, gives up or is cut off.
pub fn run(world: World, policy: Policy) -> Result<Ending, StateError> {
    let seed = match policy {
        Policy::Random(seed) | Policy::Restores(seed) => seed,
        Policy::Straight | Policy::Compiled | Policy::Single => 0,
    };
    let mut rng = stream(seed, 0);
    let tier = if matches!(policy, Policy::Random(_) | Policy::Compiled) { Tier::Compiled } else { Tier::Reference };
    let first = Config { tier, hot_executions: 1, code_bytes: 1 << 20, ..Config::default() };
    let mut runner = Runner { cpu: new_cpu(&world, &first), exits: Vec::new(), reads: 0 };
    runner.cpu.set_state(&world.state)?;
    let end = loop {
        let left = EVENTS_MAX - runner.cpu.progress();
        let budget = match policy {
            Policy::Straight | Policy::Compiled => EVENTS_MAX,
            Policy::Single => 1,
            Policy::Random(_) | Policy::Restores(_) => budget(&mut rng),
        };
        match runner.go(budget.min(left)) {
            Exit::BudgetUsed if runner.cpu.progress() < EVENTS_MAX => {}
            end => break end,
        }
        if matches!(policy, Policy::Restores(_)) && one_in(&mut rng, 3) {
            let state = runner.cpu.state();
            runner.cpu = new_cpu(&world, &config(&mut rng));
            runner.cpu.set_state(&state)?;
        }
    };
    let restores = matches!(policy, Policy::Restores(_));
    let coverage = if restores { Vec::new() } else { runner.cpu.coverage().unwrap_or_default().to_vec() };
    let state = runner.cpu.state();
    let exits = runner.exits;
    Ok(Ending { end, state, memory: world.ram.bytes().to_vec(), exits, coverage })
}

fn new_cpu(world: &World, config: &Config) -> Cpu {
    // SAFETY: `run` owns the world and uses its RAM only between runs, and the CPU does not leave `run`.
    let mut cpu = Cpu::new(unsafe { world.ram.view() }, config);
    cpu.set_coverage(Some(CoverageFilter { user_only: false, range: (0, u64::MAX) }));
    cpu
}

/// The smallest caches that are allowed, and odd ones.
fn config(rng: &mut Stream) -> Config {
    Config {
        tlb_entries: pick(rng, &[16, 32, 256, 2048]),
        cached_operations: pick(rng, &[64, 100, 1000, 1 << 16]),
        block_instructions: pick(rng, &[1, 2, 5, 32, 64]),
        tier: pick(rng, &[Tier::Reference, Tier::Compiled, Tier::Compiled]),
        hot_executions: pick(rng, &[1, 2, 24]),
        code_bytes: 0,
        ..Config::default()
    }
}

fn budget(rng: &mut Stream) -> u64 {
    u64::from(match below(rng, 4) {
        0 => 1,
        1 => below(rng, 8),
        2 => below(rng, 64),
        _ => below(rng, 1000),
    })
}

struct Runner {
    cpu: Cpu,
    exits: Vec<(u64, Exit)>,
    reads: u64,
}

impl Runner {
    /// Runs `budget` counted events, answering whatever the program asks; reads get numbers that depend on their order alone.
    fn go(&mut self, budget: u64) -> Exit {
        let end = self.cpu.progress() + budget;
        loop {
            let exit = self.cpu.run(end - self.cpu.progress());
            match exit {
                Exit::BudgetUsed | Exit::Halted | Exit::Shutdown | Exit::GuestError(_) | Exit::InterruptWindow => {
                    return exit;
                }
                Exit::PortRead { .. } | Exit::MmioRead { .. } | Exit::MsrRead { .. } => {
                    self.reads += 1;
                    self.cpu.complete_read(self.reads.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                }
                Exit::PortWrite { .. } | Exit::MmioWrite { .. } | Exit::MsrWrite { .. } | Exit::TprWrite => {}
            }
            self.exits.push((self.cpu.progress(), exit));
        }
    }
}

/// Physical page that no test's RAM covers: an access to it leaves the CPU.
pub const OUTSIDE_PAGE: u64 = 0xd000_0000;
const _: () = assert!(OUTSIDE_PAGE > world::END);
