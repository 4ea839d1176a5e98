// SPDX-License-Identifier: AGPL-3.0-or-later
//! The compiled tier: blocks that are executed often become host code, with the same results to the bit.
//!
//! Invariants, explained in `docs/compiled-tier.md`:
//! - Between two blocks all state is where the reference has it, but for the status flags, which are converted on entry and exit.
//! - Whatever compiled code does not do itself it leaves to the reference handlers, one operation at a time.
//! - Code is written once through one mapping and executed through another. Only data says where jumps lead.
//! - Compiled code reaches guest memory only through hits in the translation cache.
//! - Nothing here is part of a snapshot, and dropping all of it at any boundary changes nothing.

mod asm;
mod branches;
mod emit;
mod frame;
mod integer;
mod integer_more;
mod kinds;
mod memory;
mod operands;
mod status;
mod vector;
mod vector_kinds;
mod window;

pub(crate) use frame::Frame;

use crate::blocks::{Blocks, Run};
use crate::config::Config;
use crate::core_state::Core;
use crate::coverage::Coverage;
use crate::op::{Op, Trap, attr};
use asm::Asm;
use emit::{Edges, Link, Setting};
use frame::{
    JUMPS, Jump, JumpSet, NO_SITE, Routines, SITE_EPOCH, SLACK, constants, exit, flags_of, jump_set, raw_of, routines,
};
use kinds::{Kind, effect, kind};
use memory::CodeMemory;
use std::collections::{BTreeMap, BTreeSet};

/// In `marks`: the block is compiled, and this is its unit's number.
const UNIT: u32 = 1 << 31;
/// In `marks`: the block cannot be compiled.
const NEVER: u32 = UNIT - 1;
/// No block takes more code.
const BLOCK_BYTES_MAX: usize = 64 << 10;
const PAGE: usize = 4096;
/// Where the jump cache is in the data; the constants come before it.
const JUMPS_AT: usize = 64;
const LINKS_AT: usize = JUMPS_AT + JUMPS * size_of::<JumpSet>();
/// Links kept before all code is dropped.
const LINKS_MAX: usize = 1 << 18;
/// Times that the reference may finish a block before it is compiled in another way.
const RESTS_MAX: u32 = 64;
/// Sets of the jump cache that are remembered of a unit. It has one for each code tag under which it is found, and those change often.
const SETS_MAX: usize = 16;
/// No code leads here.
const NO_JUMP: Jump = Jump { ip: 1 << 63, tag: 0, code: 0 };

/// A compiled block.
struct Unit {
    ip: u64,
    /// Address of its code, 0 when it is no longer valid.
    entry: u64,
    /// Compiled for ring 3, which matters to recorded edges.
    user: bool,
    /// What the code refers to.
    _ops: Box<[Op]>,
    /// First operation of the block.
    first: u32,
    /// How often the reference had to finish it.
    rests: u32,
    /// Sets of the jump cache that may lead here, unless there are more than [`SETS_MAX`]: then any may.
    jumps: Vec<u16>,
    /// Links that may lead here.
    incoming: Vec<u32>,
}

/// The addresses a block may go on at, if they are all known.
fn targets(last: &Op, end_ip: u64) -> [Option<u64>; 2] {
    match kind(last) {
        Kind::Jcc { .. } => [Some(last.next_ip), Some(last.imm)],
        Kind::Jmp | Kind::Call => [Some(last.imm), None],
        Kind::Ret | Kind::JmpRm | Kind::CallRm => [None, None],
        _ if last.has(attr::SETS_RIP) => [None, None],
        _ => [Some(end_ip), None],
    }
}

/// The first instructions replace all status flags before anything can look at them.
fn overwrites_flags(ops: &[Op]) -> bool {
    for op in ops.iter().take(SLACK as usize) {
        let effect = effect(kind(op), op);
        if effect.stops || effect.reads != 0 || effect.merges {
            return false;
        }
        if effect.replaces {
            return true;
        }
    }
    false
}

/// What running compiled code came to.
pub(crate) enum Left {
    /// A boundary; everything is in its place.
    Boundary,
    /// A boundary after this operation, which retired and ended its block early.
    Retired(Op),
    /// The operation did not retire; its instruction pointer.
    Trapped(Trap, u64),
}

/// All compiled code of one CPU.
pub(crate) struct Compiled {
    memory: CodeMemory,
    routines: Routines,
    /// Bytes of code that the routines take.
    kept: usize,
    asm: Asm,
    /// By first operation of a block: executions so far, or [`UNIT`] and a number, or [`NEVER`].
    marks: Vec<u32>,
    units: Vec<Unit>,
    links: Vec<Link>,
    /// Blocks whose stack often lies on two pages, by first operation.
    without_windows: BTreeSet<u32>,
    /// The link that compiled code was left through last.
    left_through: Option<u32>,
    hot_executions: u32,
    epoch: u64,
    jumps_epoch: u64,
    /// See [`Frame::site_epoch`].
    site_epoch: u64,
    /// Counted events that compiled code has retired.
    pub retired: u64,
}

impl Compiled {
    /// An empty cache, or none where the host does not give the memory for it.
    pub fn new(config: &Config, tlb_bits: u32) -> Option<Box<Self>> {
        let code_bytes = config.code_bytes.clamp(256 << 10, 1 << 30).next_multiple_of(PAGE);
        let data_bytes = (LINKS_AT + LINKS_MAX * 8).next_multiple_of(PAGE);
        let memory = CodeMemory::new(code_bytes, data_bytes).ok()?;
        let mut compiled = Self {
            memory,
            routines: Routines::default(),
            kept: 0,
            asm: Asm::new(),
            marks: Vec::new(),
            units: Vec::new(),
            links: Vec::new(),
            without_windows: BTreeSet::new(),
            left_through: None,
            hot_executions: config.hot_executions.clamp(1, NEVER - 1),
            epoch: 0,
            jumps_epoch: 0,
            site_epoch: 0,
            retired: 0,
        };
        let (data, _) = compiled.memory.data();
        for (index, word) in constants(data as u64 + JUMPS_AT as u64).into_iter().enumerate() {
            // SAFETY: the constants lie at the start of the data area, before the jump cache.
            unsafe { data.cast::<u64>().add(index).write(word) };
        }
        compiled.asm.start(compiled.memory.next());
        compiled.routines = routines(&mut compiled.asm, data as u64, tlb_bits);
        compiled.asm.finish();
        compiled.memory.append(compiled.asm.parts());
        compiled.kept = compiled.memory.used();
        compiled.forget_jumps();
        Some(Box::new(compiled))
    }

    fn jumps(&mut self, set: usize) -> &mut JumpSet {
        let (data, _) = self.memory.data();
        // SAFETY: the jump cache has `JUMPS` aligned sets at this place of the data area, which is ours alone.
        unsafe { &mut *data.add(JUMPS_AT).cast::<JumpSet>().add(set & (JUMPS - 1)) }
    }

    fn forget_jumps(&mut self) {
        (0..JUMPS).for_each(|set| *self.jumps(set) = [NO_JUMP; 2]);
    }

    /// Makes a link lead to an address.
    fn set_link(&mut self, link: u32, code: u64) {
        let (data, _) = self.memory.data();
        assert!((link as usize) < LINKS_MAX);
        // SAFETY: the link's word lies inside the data area.
        unsafe { data.add(LINKS_AT).cast::<u64>().add(link as usize).write(code) };
    }

    /// Drops all code.
    pub fn clear(&mut self) {
        self.memory.truncate(self.kept);
        self.marks.clear();
        self.units.clear();
        self.links.clear();
        self.without_windows.clear();
        self.left_through = None;
        self.forget_jumps();
    }

    /// Catches up with what was forgotten since the last time.
    fn synchronize(&mut self, blocks: &mut Blocks) {
        if self.epoch != blocks.epoch {
            self.epoch = blocks.epoch;
            self.clear();
        }
        if self.jumps_epoch != blocks.jumps_epoch {
            self.jumps_epoch = blocks.jumps_epoch;
            self.site_epoch = self.site_epoch.wrapping_add(SITE_EPOCH);
            self.forget_jumps();
        }
        while let Some(first) = blocks.forgotten.pop() {
            self.forget(first);
        }
    }

    fn forget(&mut self, first: u32) {
        let Some(mark) = self.marks.get_mut(first as usize) else { return };
        let mark = std::mem::replace(mark, 0);
        if mark & UNIT == 0 {
            return;
        }
        self.site_epoch = self.site_epoch.wrapping_add(SITE_EPOCH);
        let unit = &mut self.units[(mark & !UNIT) as usize];
        let entry = std::mem::replace(&mut unit.entry, 0);
        let (jumps, incoming) = (std::mem::take(&mut unit.jumps), std::mem::take(&mut unit.incoming));
        let mut drop_from = |set| {
            self.jumps(set).iter_mut().filter(|jump| jump.code == entry).for_each(|jump| *jump = NO_JUMP);
        };
        if jumps.len() > SETS_MAX {
            (0..JUMPS).for_each(&mut drop_from);
        } else {
            jumps.into_iter().map(usize::from).for_each(&mut drop_from);
        }
        for link in incoming {
            self.set_link(link, self.links[link as usize].stub);
        }
    }

    /// Whether the remaining room lets compiled code run a block of so many instructions.
    pub fn fits(room: u64, count: u16) -> bool {
        room >= u64::from(count) + SLACK as u64
    }

    /// The code of the next boundary's block, if the jump cache has it. Not where a link was taken that leads nowhere yet: [`Compiled::find`]
    /// is to connect it.
    #[inline]
    pub fn known(&mut self, core: &Core, blocks: &mut Blocks) -> Option<u64> {
        if self.left_through.is_some() {
            return None;
        }
        self.synchronize(blocks);
        let (ip, tag) = (core.rip, core.tlb.code_tag());
        let set = self.jumps(jump_set(ip, tag));
        set.iter().find(|jump| (jump.ip, jump.tag) == (ip, tag)).map(|jump| jump.code)
    }

    /// The code of a block, compiled if it is due. The next boundary's block is `run`, at `core.rip`.
    #[inline]
    pub fn find(
        &mut self,
        core: &Core,
        blocks: &mut Blocks,
        run: &Run,
        coverage: Option<&mut Coverage>,
    ) -> Option<u64> {
        self.synchronize(blocks);
        let first = run.first as usize;
        if first >= self.marks.len() {
            self.marks.resize((first + 1).next_power_of_two(), 0);
        }
        let mark = self.marks[first];
        let user = core.cpl() == 3;
        let unit = if mark & UNIT != 0 {
            let unit = mark & !UNIT;
            if coverage.is_some() && self.units[unit as usize].user != user {
                self.forget(run.first);
                return None;
            }
            unit
        } else {
            if mark == NEVER {
                self.left_through = None;
                return None;
            }
            self.marks[first] = mark + 1;
            if mark + 1 < self.hot_executions {
                self.left_through = None;
                return None;
            }
            self.compile(core, blocks, run, coverage, user)?
        };
        self.connect(core, unit);
        Some(self.units[unit as usize].entry)
    }

    #[cold]
    #[inline(never)]
    fn compile(
        &mut self,
        core: &Core,
        blocks: &Blocks,
        run: &Run,
        coverage: Option<&mut Coverage>,
        user: bool,
    ) -> Option<u32> {
        let mut ops: Box<[Op]> = (0..usize::from(run.count)).map(|position| *blocks.op(run, position)).collect();
        ops.iter_mut().for_each(|op| op.attributes |= if user { attr::USER } else { 0 });
        if !ops[0].has(attr::LONG) {
            self.marks[run.first as usize] = NEVER;
            self.left_through = None;
            return None;
        }
        if self.memory.room() < BLOCK_BYTES_MAX || self.links.len() + 4 > LINKS_MAX {
            self.clear();
            return None;
        }
        let edges = match coverage {
            Some(coverage) if user || !coverage.filter().user_only => {
                Edges::On { map: coverage.map_mut().as_mut_ptr() as u64, range: coverage.filter().range }
            }
            _ => Edges::Off,
        };
        let (data, _) = self.memory.data();
        let first_link = self.links.len() as u64;
        let targets = targets(&ops[ops.len() - 1], run.end_ip);
        let is_dead = |ip: &u64| blocks.neighbour(core, *ip).is_some_and(|ops| overwrites_flags(&ops));
        let dead = targets.map(|target| target.filter(is_dead));
        let setting = Setting {
            routines: self.routines,
            tlb_bits: core.tlb.table().1,
            ip: core.rip,
            end_ip: run.end_ip,
            links: (data as u64 + LINKS_AT as u64 + first_link * 8, first_link),
            edges,
            dead,
            all_dead: targets[0].is_some() && targets == dead,
            unit: self.units.len() as u32,
            stubs: self.memory.next_stubs(),
            windows: !self.without_windows.contains(&run.first),
        };
        let entry = self.memory.next();
        self.asm.start(entry);
        let links = emit::compile(&mut self.asm, setting, &ops);
        let parts = self.asm.parts();
        assert!(parts.0.len().max(parts.1.len()) <= BLOCK_BYTES_MAX, "a block became longer than any can be");
        self.memory.append(parts);
        for link in links {
            self.links.push(link);
            self.set_link(self.links.len() as u32 - 1, link.stub);
        }
        let unit = Unit {
            ip: core.rip,
            entry,
            user,
            _ops: ops,
            first: run.first,
            rests: 0,
            jumps: Vec::new(),
            incoming: Vec::new(),
        };
        let number = self.units.len() as u32;
        self.units.push(unit);
        self.marks[run.first as usize] = UNIT | number;
        Some(number)
    }

    /// Makes the link that compiled code was left through, or the jump cache, lead to a unit.
    fn connect(&mut self, core: &Core, unit: u32) {
        let Unit { ip, entry, .. } = self.units[unit as usize];
        if let Some(link) = self.left_through.take() {
            if self.links[link as usize].target == ip {
                self.set_link(link, entry);
                self.units[unit as usize].incoming.push(link);
            }
            return;
        }
        let tag = core.tlb.code_tag();
        let number = jump_set(ip, tag);
        let set = self.jumps(number);
        let is = |jump: &Jump| (jump.ip, jump.tag) == (ip, tag);
        match set.iter_mut().find(|jump| is(jump)) {
            Some(jump) if jump.code == entry => return,
            Some(jump) => jump.code = entry,
            None => *set = [Jump { ip, tag, code: entry }, set[0]],
        }
        let jumps = &mut self.units[unit as usize].jumps;
        if jumps.len() <= SETS_MAX && !jumps.contains(&(number as u16)) {
            jumps.push(number as u16);
        }
    }

    /// Panics unless every jump leads out, or to valid code of the block it is for.
    pub fn check(&mut self, blocks: &mut Blocks) {
        self.synchronize(blocks);
        let code = self.memory.code();
        let mut valid = BTreeMap::new();
        for unit in self.units.iter().filter(|unit| unit.entry != 0) {
            assert!(code.contains(&unit.entry), "a block lies outside the code");
            valid.insert(unit.entry, unit.ip);
        }
        let (data, _) = self.memory.data();
        // SAFETY: as in `set_link`: there are at most `LINKS_MAX` links.
        let words = unsafe { std::slice::from_raw_parts(data.add(LINKS_AT).cast::<u64>(), self.links.len()) };
        let links = self.links.iter().zip(words).filter(|(link, _)| link.target != NO_SITE);
        for (link, word) in links.filter(|(link, word)| link.stub != **word) {
            assert_eq!(valid.get(word), Some(&link.target), "a link leads astray");
        }
        // The tag of a site, then its code.
        let sites = self.links.iter().zip(words.windows(2)).filter(|(link, _)| link.stub == NO_SITE);
        for (_, site) in sites.filter(|(_, site)| site[0] & !(SITE_EPOCH - 1) == self.site_epoch) {
            assert!(valid.contains_key(&site[1]), "a site leads astray");
        }
        for set in 0..JUMPS {
            for Jump { ip, code, .. } in *self.jumps(set) {
                assert!(code == 0 || valid.get(&code) == Some(&ip), "the jump cache leads astray");
            }
        }
    }

    /// The boundary was looked at: what compiled code was left through means nothing any more.
    pub fn attended(&mut self) {
        self.left_through = None;
    }

    /// Runs compiled code until it leaves.
    pub fn run(&mut self, core: &mut Core, entry: u64, coverage: Option<&mut Coverage>) -> Left {
        let (before, limit) = (core.instructions, core.limit);
        // What remains is counted down as a signed number.
        core.limit = limit.min(before.saturating_add(1 << 62));
        core.frame.raw = raw_of(&core.flags);
        core.frame.entries = core.tlb.table().0;
        core.frame.edges = match coverage {
            Some(coverage) => coverage.map_mut().as_mut_ptr(),
            None => std::ptr::null_mut(),
        };
        core.block_end = usize::MAX;
        (core.frame.stack_read, core.frame.stack_write) = (0, 0);
        core.frame.site_epoch = self.site_epoch;
        core.frame.site_tag = core.tlb.code_tag().wrapping_add(self.site_epoch);
        // SAFETY: `enter` is code emitted for this signature; `entry` is the code of a block that is valid now, compiled for
        // this core's layout and translation cache. It reads and writes the core and, through the translation cache, guest memory.
        let why = unsafe {
            let enter: extern "sysv64" fn(*mut Core, u64) -> u32 =
                std::mem::transmute(self.routines.enter as *const ());
            enter(core, entry)
        };
        core.limit = limit;
        core.flags = flags_of(core.frame.raw);
        self.left_through = None;
        let left = match why {
            exit::BOUNDARY => Left::Boundary,
            exit::LINK => {
                self.left_through = Some(core.frame.link as u32);
                Left::Boundary
            }
            exit::REST => {
                // SAFETY: compiled code put the address of one of its unit's operations there, and how many the unit has.
                let rest = unsafe {
                    let position = usize::from((*core.frame.op).position);
                    std::slice::from_raw_parts(core.frame.op, core.frame.count as usize - position)
                };
                let left = Self::execute_rest(core, rest);
                self.count_rest(core.frame.link as usize);
                left
            }
            _ => {
                // SAFETY: compiled code put the address of one of its unit's operations there.
                let op = unsafe { *core.frame.op };
                Self::stopped(core, &op, why)
            }
        };
        self.retired += core.instructions.wrapping_sub(before);
        left
    }

    /// Blocks that the reference must finish too often are compiled again without windows.
    fn count_rest(&mut self, unit: usize) {
        let Unit { first, rests, .. } = &mut self.units[unit];
        *rests += 1;
        if *rests == RESTS_MAX {
            let first = *first;
            self.without_windows.insert(first);
            self.forget(first);
        }
    }

    /// Executes the end of a block by the reference handlers, as `Cpu::execute` does. `Core::instructions` is that before the block.
    fn execute_rest(core: &mut Core, rest: &[Op]) -> Left {
        core.rip = rest[rest.len() - 1].next_ip;
        for op in rest {
            match (op.handler)(core, op) {
                Err(Trap::Fault) => return Self::stopped(core, op, exit::FAULT),
                Err(Trap::Exit) => return Self::stopped(core, op, exit::EXIT),
                Ok(()) if core.block_end == 0 => return Self::stopped(core, op, exit::LEFT),
                Ok(()) => {}
            }
        }
        Self::stopped(core, &rest[rest.len() - 1], exit::LEFT)
    }

    /// Compiled code was left at an operation that retired or not.
    fn stopped(core: &mut Core, op: &Op, why: u32) -> Left {
        core.instructions += u64::from(op.position);
        match why {
            exit::FAULT => Left::Trapped(Trap::Fault, op.ip()),
            exit::EXIT => Left::Trapped(Trap::Exit, op.ip()),
            _ => {
                core.instructions += 1;
                if !op.has(attr::SETS_RIP) {
                    core.rip = op.next_ip;
                }
                Left::Retired(*op)
            }
        }
    }
}
