// SPDX-License-Identifier: AGPL-3.0-or-later
//! From the operations of one block to host code: the frame around them, status flags, and memory operands.
//!
//! Code for an operation begins with the guest registers in their places and, if the operation can stop, with the status
//! flags in `Frame::raw`. Whatever the straight code cannot do (a translation that is not cached, an odd case) is left to
//! a stub behind the block, which calls the reference handler for the whole operation and comes back after it.

use super::asm::*;
use super::frame::{
    NO_SITE, PINNED, RAW, ROOM, Routines, SITE_TAG, STACK_ADDEND, STACK_PAGE, STACK_READ, STACK_WRITE, at, dispatch,
    field, probe, slot,
};
use super::kinds::{Kind, effect, flag, kind};
use crate::core_state::Core;
use crate::coverage::FACTORS;
use crate::memory::PAGE_MASK;
use crate::op::{NO_REGISTER, Op, attr};
use crate::state::seg;
use std::mem::offset_of;

const GUEST_RSP: u8 = 4;

/// What compiling needs to know beside the operations.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    pub routines: Routines,
    /// Logarithm of the number of entries of the translation cache.
    pub tlb_bits: u32,
    /// Instruction pointer of the first operation.
    pub ip: u64,
    /// Where the block goes on if its last operation does not say.
    pub end_ip: u64,
    /// Address and number of the first free link.
    pub links: (u64, u64),
    pub edges: Edges,
    /// Targets at which no status flag is needed, and whether there are no others.
    pub dead: [Option<u64>; 2],
    pub all_dead: bool,
}

/// How edges are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edges {
    Off,
    /// Into the map at this host address, for branches in this half-open range.
    On {
        map: u64,
        range: (u64, u64),
    },
}

/// How the flags that the host holds become `Frame::raw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Save {
    /// All are right.
    Plain,
    /// A logical operation: CF, OF and AF are clear.
    Logic,
    /// SHL by more than one: OF is SF xor CF.
    ShiftLeft,
    /// SHR by more than one, and SAR: OF is clear.
    ShiftRight,
    /// A shift by one: all but AF, which is clear.
    ShiftOne,
    /// INC or DEC: CF is that of `Frame::raw`.
    KeepCarry,
    /// BT and its kind: all but CF are those of `Frame::raw`.
    CarryOnly,
}

/// How a stub goes on after the reference handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// With nothing but registers and memory.
    Plain,
    /// The host's flags are those of the guest.
    Flags,
    /// RAX holds the new instruction pointer.
    Target,
    /// The flags are in their place, the host's mean nothing.
    Saved,
}

struct Cold {
    from: Label,
    back: Label,
    index: usize,
    after: After,
}

/// A stack access outside the page of the last one.
struct Elsewhere {
    from: Label,
    back: Label,
    cold: Label,
    write: bool,
}

/// A word of data that a jump looks at: where it leads to in the same page, which is filled in when that block is compiled, or
/// one of the two words of a site, which compiled code fills in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Instruction pointer of the target, or no instruction pointer for a word of a site.
    pub target: u64,
    /// What the word holds at first: for a jump, where it leads out.
    pub stub: u64,
}

/// The way out of a jump to another block.
struct Exit {
    stub: Label,
    ip: u64,
    /// Its (first) word among this block's.
    word: u64,
    site: bool,
}

pub(super) struct Emitter<'a> {
    pub asm: &'a mut Asm,
    pub setting: Setting,
    pub ops: &'a [Op],
    /// For each operation that writes status flags: they are needed in `Frame::raw`.
    save: Vec<bool>,
    pub host_valid: u8,
    pending: Option<Save>,
    colds: Vec<Cold>,
    pub head: Label,
    exits: Vec<Exit>,
    elsewhere: Vec<Elsewhere>,
    pub links: Vec<Link>,
    /// A reference handler is called on the straight way, so the boundary after the block may need attention.
    pub calls: bool,
    pub sse_checked: bool,
}

/// Compiles a block; the code is in the assembler afterwards.
pub(super) fn compile(asm: &mut Asm, setting: Setting, ops: &[Op]) -> Vec<Link> {
    let head = asm.label();
    let mut emitter = Emitter {
        asm,
        setting,
        ops,
        save: plan(ops, !setting.all_dead),
        host_valid: 0,
        pending: None,
        colds: Vec::new(),
        head,
        exits: Vec::new(),
        elsewhere: Vec::new(),
        links: Vec::new(),
        calls: false,
        sse_checked: false,
    };
    emitter.block();
    emitter.links
}

/// Says of each operation that writes status flags whether they are needed in their place.
fn plan(ops: &[Op], needed_after: bool) -> Vec<bool> {
    let mut save = vec![false; ops.len()];
    let mut needed = needed_after;
    let mut wanted = 0;
    for (index, op) in ops.iter().enumerate().rev() {
        let effect = effect(kind(op), op);
        if effect.replaces || effect.merges {
            save[index] = needed || wanted & !effect.provides != 0;
            needed = effect.merges && save[index];
            wanted = 0;
        }
        if effect.stops {
            needed = true;
            wanted = 0;
        } else {
            wanted |= effect.reads;
        }
    }
    save
}

impl Emitter<'_> {
    fn block(&mut self) {
        let count = self.ops.len() as i32;
        let no_room = self.asm.label();
        self.asm.bind(self.head);
        self.asm.alu_imm(alu::SUB, 8, Rm::Reg(ROOM), count);
        self.asm.jcc(cc::S, no_room);
        let mut ended = false;
        for index in 0..self.ops.len() {
            ended = self.operation(index);
        }
        if !ended {
            self.go_to(self.setting.end_ip);
        }
        self.elsewhere_stubs();
        self.cold_stubs();
        self.exit_stubs();
        self.asm.bind(no_room);
        self.asm.alu_imm(alu::ADD, 8, Rm::Reg(ROOM), count);
        self.leave_at(self.setting.ip);
        self.asm.finish();
    }

    /// Emits one operation; true if it has also gone to where the block goes.
    fn operation(&mut self, index: usize) -> bool {
        let op = &self.ops[index];
        let kind = kind(op);
        if effect(kind, op).stops {
            self.clobber();
        }
        match kind {
            Kind::Handler { flags } => return self.by_handler(index, flags),
            Kind::Jcc { .. } | Kind::Jmp | Kind::Call | Kind::Ret | Kind::JmpRm | Kind::CallRm => {
                self.branch(index, kind);
                return true;
            }
            Kind::Vector { .. }
            | Kind::VectorStore { .. }
            | Kind::VectorShift { .. }
            | Kind::VectorFromGeneral { .. }
            | Kind::VectorToGeneral { .. }
            | Kind::VectorMask { .. }
            | Kind::VectorCompare { .. }
            | Kind::IntegerToFloat { .. }
            | Kind::FloatToInteger { .. } => self.vector(index, kind),
            _ => self.integer(index, kind),
        }
        false
    }

    /// Calls the reference handler of an operation that has no compiled form.
    fn by_handler(&mut self, index: usize, flags: bool) -> bool {
        let op = &self.ops[index];
        let last = index + 1 == self.ops.len();
        self.calls = true;
        self.sse_checked = false;
        let jumps = op.has(attr::SETS_RIP);
        if jumps {
            self.asm.constant(RAX, self.setting.end_ip);
            self.asm.store(8, field!(rip), RAX);
        }
        self.call_handler(index, flags);
        if !(last && jumps) {
            return false;
        }
        if op.has(attr::EDGE) {
            self.asm.load(8, RAX, field!(rip));
            self.edge_to_rax(op);
        }
        self.attend(None);
        self.asm.load(8, RAX, field!(rip));
        dispatch(self.asm, &self.setting.routines);
        true
    }

    fn call_handler(&mut self, index: usize, flags: bool) {
        let op: *const Op = &self.ops[index];
        self.asm.constant(RAX, op as u64);
        self.asm.constant(RDX, self.ops.len() as u64);
        let routines = self.setting.routines;
        self.asm.call_to(if flags { routines.handler_flags } else { routines.handler });
    }

    /// Makes a stub for the operation; the straight code jumps to the first label and goes on at the second.
    pub fn cold(&mut self, index: usize, after: After) -> (Label, Label) {
        let (from, back) = (self.asm.label(), self.asm.label());
        self.colds.push(Cold { from, back, index, after });
        (from, back)
    }

    fn cold_stubs(&mut self) {
        for Cold { from, back, index, after } in std::mem::take(&mut self.colds) {
            self.asm.bind(from);
            self.call_handler(index, matches!(after, After::Flags | After::Saved));
            match after {
                After::Plain | After::Saved => {}
                After::Flags => self.load_flags(),
                After::Target => self.asm.load(8, RAX, field!(rip)),
            }
            self.asm.jmp(back);
        }
    }

    /// At a boundary, leaves if a handler of this block may have asked for attention. `Core::rip` must be set to `ip`, or is.
    fn attend(&mut self, ip: Option<u64>) {
        if !self.calls {
            return;
        }
        self.asm.alu_imm(alu::CMP, 1, field!(attention), 0);
        let Some(ip) = ip else { return self.asm.jcc_to(cc::NZ, self.setting.routines.boundary) };
        let quiet = self.asm.label();
        self.asm.jcc(cc::Z, quiet);
        self.leave_at(ip);
        self.asm.bind(quiet);
    }

    fn leave_at(&mut self, ip: u64) {
        self.asm.constant(RAX, ip);
        self.asm.store(8, field!(rip), RAX);
        self.asm.jmp_to(self.setting.routines.boundary);
    }

    /// Ends the block by going to a known address.
    pub fn go_to(&mut self, ip: u64) {
        if !self.calls && self.setting.dead.contains(&Some(ip)) {
            self.pending = None;
        }
        self.clobber();
        self.attend(Some(ip));
        if ip == self.setting.ip {
            return self.asm.jmp(self.head);
        }
        let word = self.setting.links.0 + self.links.len() as u64 * 8;
        let stub = self.asm.label();
        if (ip ^ self.setting.ip) & PAGE_MASK == 0 {
            self.asm.jmp_rm(Rm::Near(word));
            self.exits.push(Exit { stub, ip, word: self.links.len() as u64, site: false });
            self.links.push(Link { target: ip, stub: 0 });
            return;
        }
        self.asm.load(8, RDX, SITE_TAG);
        self.asm.alu_load(alu::CMP, 8, RDX, Rm::Near(word));
        self.asm.jcc(cc::NZ, stub);
        self.asm.jmp_rm(Rm::Near(word + 8));
        self.exits.push(Exit { stub, ip, word: self.links.len() as u64, site: true });
        // The tag, then the code.
        self.links.push(Link { target: NO_SITE, stub: NO_SITE });
        self.links.push(Link { target: NO_SITE, stub: 0 });
    }

    /// The ways out of links that lead nowhere yet and of sites whose tag is another.
    fn exit_stubs(&mut self) {
        let (address, first) = self.setting.links;
        for Exit { stub, ip, word, site } in std::mem::take(&mut self.exits) {
            self.asm.bind(stub);
            self.asm.constant(RAX, ip);
            if site {
                self.asm.lea(8, RCX, Rm::Near(address + word * 8));
                self.asm.jmp_to(self.setting.routines.resolve);
            } else {
                self.links[word as usize].stub = self.asm.address(stub);
                self.asm.store(8, field!(rip), RAX);
                self.asm.constant(RDX, first + word);
                self.asm.jmp_to(self.setting.routines.link);
            }
        }
    }

    /// Ends the block by going to the address in RAX.
    pub fn dispatch(&mut self) {
        if self.calls {
            self.asm.store(8, field!(rip), RAX);
            self.attend(None);
        }
        dispatch(self.asm, &self.setting.routines);
    }

    // Status flags.

    /// What is known of the flags, for the other side of a branch.
    pub fn flag_state(&self) -> (u8, Option<Save>) {
        (self.host_valid, self.pending)
    }

    pub fn set_flag_state(&mut self, state: (u8, Option<Save>)) {
        (self.host_valid, self.pending) = state;
    }

    /// Says that an operation has just left flags in the host, and how to save them.
    pub fn flags_written(&mut self, index: usize, save: Save) {
        let op = &self.ops[index];
        self.host_valid = effect(kind(op), op).provides;
        self.pending = self.save[index].then_some(save);
    }

    /// INC and DEC leave the host's CF alone: if it was the guest's, all flags are right.
    pub fn flags_stepped(&mut self, index: usize, had_carry: bool) {
        self.host_valid = flag::ALL & !flag::C;
        if had_carry {
            self.host_valid = flag::ALL;
        }
        self.pending = self.save[index].then_some(if had_carry { Save::Plain } else { Save::KeepCarry });
    }

    /// Whether the flags this operation writes are needed in `Frame::raw`.
    pub fn must_save(&self, index: usize) -> bool {
        self.save[index]
    }

    /// The flags were put into `Frame::raw`, and the host's are lost.
    pub fn flags_saved(&mut self) {
        self.pending = None;
        self.host_valid = 0;
    }

    /// Before host code that changes the host's flags.
    pub fn clobber(&mut self) {
        self.save_pending();
        self.host_valid = 0;
    }

    fn save_pending(&mut self) {
        let Some(save) = self.pending.take() else { return };
        if save == Save::CarryOnly {
            self.asm.set(cc::C, Rm::Reg(RAX));
            self.asm.load_zero(4, 1, RCX, Rm::Reg(RAX));
            return self.merge_flags(0xfe01, RCX, None);
        }
        self.asm.lahf();
        let keep = |emitter: &mut Self, mask: i32| {
            emitter.asm.alu_imm(alu::AND, 4, Rm::Reg(RAX), mask);
            emitter.host_valid = 0;
        };
        match save {
            Save::CarryOnly => {}
            Save::Plain => self.asm.set(0, Rm::Reg(RAX)),
            Save::Logic => keep(self, 0xc400),
            Save::ShiftRight => keep(self, 0xc500),
            Save::ShiftOne => {
                self.asm.set(0, Rm::Reg(RAX));
                keep(self, 0xc501);
            }
            Save::ShiftLeft => {
                self.asm.lea(4, RCX, Rm::Base(RAX, 0));
                self.asm.shift_imm(shift::SHR, 4, Rm::Reg(RCX), 7);
                self.asm.alu_load(alu::XOR, 4, RCX, Rm::Reg(RAX));
                self.asm.shift_imm(shift::SHR, 4, Rm::Reg(RCX), 8);
                self.asm.alu_imm(alu::AND, 4, Rm::Reg(RCX), 1);
                keep(self, 0xc500);
                self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(RCX));
            }
            Save::KeepCarry => {
                self.asm.set(0, Rm::Reg(RAX));
                keep(self, 0xfe01);
                self.asm.load(4, RCX, RAW);
                self.asm.alu_imm(alu::AND, 4, Rm::Reg(RCX), 0x100);
                self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(RCX));
            }
        }
        self.asm.store(4, RAW, RAX);
    }

    /// Puts CF (0 or 1 in a register) and, if given, OF into `Frame::raw`, keeping what `mask` says. Changes RAX.
    pub fn merge_flags(&mut self, mask: i32, carry: Reg, overflow: Option<Reg>) {
        self.asm.load(4, RAX, RAW);
        self.asm.alu_imm(alu::AND, 4, Rm::Reg(RAX), mask);
        self.asm.shift_imm(shift::SHL, 4, Rm::Reg(carry), 8);
        self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(carry));
        if let Some(overflow) = overflow {
            self.asm.alu_load(alu::OR, 4, RAX, Rm::Reg(overflow));
        }
        self.asm.store(4, RAW, RAX);
        self.host_valid = 0;
    }

    /// Makes the host's flags those of the guest, as far as `mask` says.
    pub fn want_flags(&mut self, mask: u8) {
        if self.host_valid & mask != mask {
            self.save_pending();
            self.load_flags();
            self.host_valid = flag::ALL;
        }
    }

    /// The host's flags from `Frame::raw`; changes RAX.
    pub fn load_flags(&mut self) {
        self.asm.load(4, RAX, RAW);
        self.asm.alu_imm(alu::ADD, 1, Rm::Reg(RAX), 0x7f);
        self.asm.sahf();
    }

    // Registers and memory.

    /// Where a general register is.
    pub fn rm(guest: u8) -> Rm {
        match PINNED[usize::from(guest & 15)] {
            Some(host) => Rm::Reg(host),
            None => slot(guest & 15),
        }
    }

    /// The host register of a general register, or `scratch` with its value.
    pub fn value(&mut self, guest: u8, scratch: Reg) -> Reg {
        match PINNED[usize::from(guest & 15)] {
            Some(host) => host,
            None => {
                self.asm.load(8, scratch, slot(guest & 15));
                scratch
            }
        }
    }

    /// Writes a general register from a host register whose upper part is as an operation of this size leaves it.
    pub fn set(&mut self, guest: u8, size: u8, from: Reg) {
        match (PINNED[usize::from(guest & 15)], size) {
            (Some(host), 8) => self.asm.mov(host, from),
            (Some(host), 4) if host == from => {}
            (Some(host), _) => self.asm.load(size, host, Rm::Reg(from)),
            (None, 4 | 8) => self.asm.store(8, slot(guest & 15), from),
            (None, _) => self.asm.store(size, slot(guest & 15), from),
        }
    }

    /// The effective address of the memory operand into RAX; no flag changes. Changes RCX and RDX.
    pub fn effective(&mut self, op: &Op) {
        self.effective_into(op, RAX);
    }

    /// The same into any register that may be written at once.
    pub fn effective_into(&mut self, op: &Op, into: Reg) {
        let size = if op.has(attr::ADDRESS_32) { 4 } else { 8 };
        let short = i32::try_from(op.displacement as i64);
        let disp = short.unwrap_or(0);
        let base = (op.base != NO_REGISTER).then(|| self.value(op.base, RAX));
        let index = (op.index != NO_REGISTER).then(|| self.value(op.index, RCX));
        match (base, index) {
            (Some(base), Some(index)) => self.asm.lea(size, into, Rm::Index(base, index, op.scale & 3, disp)),
            (Some(base), None) => self.asm.lea(size, into, Rm::Base(base, disp)),
            (None, Some(index)) => self.asm.lea(size, into, Rm::Scaled(index, op.scale & 3, disp)),
            (None, None) => {
                let cut = if size == 4 { 0xffff_ffff } else { u64::MAX };
                return self.asm.constant(into, op.displacement & cut);
            }
        }
        if short.is_err() {
            self.asm.constant(RDX, op.displacement);
            self.asm.lea(size, into, Rm::Index(into, RDX, 0, 0));
        }
    }

    /// The host address of the memory operand into RAX, or off to the stub. Changes RCX, RDX and flags.
    pub fn probe(&mut self, op: &Op, bytes: u8, write: bool, cold: Label) {
        self.effective(op);
        if op.base == GUEST_RSP && bytes <= 8 && !op.has(attr::ADDRESS_32) && usize::from(op.segment) == seg::SS {
            return self.probe_stack(write, cold);
        }
        let segment = usize::from(op.segment & 7);
        if segment == seg::FS || segment == seg::GS {
            self.asm.alu_load(alu::ADD, 8, RAX, at(offset_of!(Core, segment_base) + segment * 8));
        }
        self.probe_rax(bytes, write, cold);
    }

    /// The same for the linear address in RAX.
    pub fn probe_rax(&mut self, bytes: u8, write: bool, cold: Label) {
        probe(self.asm, self.setting.tlb_bits, bytes, write, cold);
    }

    /// The same for eight bytes (or fewer) of stack, which mostly lie in the page where the last ones lay.
    pub fn probe_stack(&mut self, write: bool, cold: Label) {
        let (from, back) = (self.asm.label(), self.asm.label());
        self.asm.mov(RCX, RAX);
        self.asm.alu_load(alu::SUB, 8, RCX, STACK_PAGE);
        self.asm.alu_load(alu::CMP, 8, RCX, if write { STACK_WRITE } else { STACK_READ });
        self.asm.jcc(cc::AE, from);
        self.asm.alu_load(alu::ADD, 8, RAX, STACK_ADDEND);
        self.asm.bind(back);
        self.elsewhere.push(Elsewhere { from, back, cold, write });
    }

    fn elsewhere_stubs(&mut self) {
        let routines = self.setting.routines;
        for Elsewhere { from, back, cold, write } in std::mem::take(&mut self.elsewhere) {
            self.asm.bind(from);
            self.asm.call_to(if write { routines.stack_write } else { routines.stack_read });
            self.asm.jcc(cc::Z, back);
            self.asm.jmp(cold);
        }
    }

    // Edges.

    /// Records the edge to a known target.
    pub fn edge_to(&mut self, op: &Op, target: u64) {
        let Some(map) = self.recorded(op) else { return };
        if !self.calls && self.setting.dead.contains(&Some(target)) {
            self.pending = None;
        }
        self.clobber();
        let index = crate::coverage::index(op.ip(), target);
        self.asm.constant(RCX, map + index as u64);
        self.asm.load_zero(4, 1, RDX, Rm::Base(RCX, 0));
        self.asm.alu_imm(alu::ADD, 1, Rm::Reg(RDX), 1);
        self.asm.alu_imm(alu::SBB, 1, Rm::Reg(RDX), 0);
        self.asm.store(1, Rm::Base(RCX, 0), RDX);
    }

    /// Records the edge to the target in RAX, which stays.
    pub fn edge_to_rax(&mut self, op: &Op) {
        if self.recorded(op).is_some() {
            self.asm.constant(RDX, op.ip().wrapping_mul(FACTORS[0]));
            self.asm.call_to(self.setting.routines.edge);
        }
    }

    fn recorded(&self, op: &Op) -> Option<u64> {
        match self.setting.edges {
            Edges::On { map, range: (start, end) } if (start..end).contains(&op.ip()) => Some(map),
            _ => None,
        }
    }
}
