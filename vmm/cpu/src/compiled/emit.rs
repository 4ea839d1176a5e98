// SPDX-License-Identifier: AGPL-3.0-or-later
//! From the operations of one block to host code: the frame around them, the ways out, and edges.
//!
//! Code for an operation begins with the guest registers in their places and, if the operation can stop, with the status
//! flags in `Frame::raw`. Whatever the straight code cannot do (a translation that is not cached, an odd case) is left to
//! a stub behind the block, which calls the reference handler for the whole operation and comes back after it.

use super::asm::*;
use super::frame::{NO_SITE, ROOM, Routines, SITE_TAG, dispatch, field};
use super::kinds::{Kind, effect, kind};
use super::status::{Save, plan};
use super::window::{Window, windows};
use crate::coverage::FACTORS;
use crate::decode::INSTRUCTION_BYTES_MAX;
use crate::memory::{OFFSET_MASK, PAGE_BYTES, PAGE_MASK};
use crate::op::{Op, attr};

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
    /// Where stubs will execute.
    pub stubs: u64,
    /// Number of the unit, and whether it may check stack accesses together.
    pub unit: u32,
    pub windows: bool,
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
    /// The block goes on in the reference.
    rest: bool,
    /// Guest XMM registers that the straight code has in the host's where the stub comes back.
    reload: u16,
}

/// A window whose accesses do not all lie in the page of the last one.
pub(super) struct Miss {
    pub from: Label,
    pub back: Label,
    pub window: Window,
}

/// A stack access outside the page of the last one.
pub(super) struct Elsewhere {
    pub from: Label,
    pub back: Label,
    pub cold: Label,
    pub write: bool,
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

/// What a call or return does that is rare.
pub(super) enum Rare {
    /// No more calls fit on the host's stack: all are forgotten.
    Full { from: Label, back: Label },
    /// A call goes through the jump cache's second entry.
    Second { from: Label, back: Label },
    /// A RET does not return from the last call that is remembered. RAX holds the target, which has to be looked at (`moves` is then
    /// what the stack pointer is to move by) unless the reference did it, which comes `back`.
    Return { from: Label, back: Label, cold: Label, moves: Option<i32> },
}

/// The way out of a jump to another block.
struct Exit {
    stub: Label,
    ip: u64,
    /// Its (first) word among this block's.
    word: u64,
    site: bool,
    /// For a site that is called: behind the call.
    after: Option<Label>,
}

pub(super) struct Emitter<'a> {
    pub asm: &'a mut Asm,
    pub setting: Setting,
    pub ops: &'a [Op],
    /// For each operation that writes status flags: they are needed in `Frame::raw`.
    pub save: Vec<bool>,
    pub host_valid: u8,
    pub pending: Option<Save>,
    colds: Vec<Cold>,
    pub head: Label,
    exits: Vec<Exit>,
    pub rare: Vec<Rare>,
    pub elsewhere: Vec<Elsewhere>,
    pub misses: Vec<Miss>,
    pub links: Vec<Link>,
    /// A reference handler is called on the straight way, so the boundary after the block may need attention.
    pub calls: bool,
    pub sse_checked: bool,
    /// Guest XMM registers that the host's hold, too: a bit each.
    pub xmm_held: u16,
    windows: Vec<Window>,
    /// Stack accesses need no check before this operation.
    pub window_end: usize,
    /// Of the operation that is being emitted.
    pub index: usize,
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
        rare: Vec::new(),
        elsewhere: Vec::new(),
        misses: Vec::new(),
        links: Vec::new(),
        calls: false,
        sse_checked: false,
        xmm_held: 0,
        windows: if setting.windows { windows(ops) } else { Vec::new() },
        window_end: 0,
        index: 0,
    };
    emitter.block();
    emitter.links
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
            let stubs = self.colds.len();
            ended = self.operation(index);
            let reload = if ended { 0 } else { self.xmm_held };
            self.colds[stubs..].iter_mut().for_each(|cold| cold.reload = reload);
        }
        if !ended {
            self.go_to(self.setting.end_ip);
        }
        self.asm.begin_stubs(self.setting.stubs);
        self.window_stubs();
        self.elsewhere_stubs();
        self.rare_stubs();
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
        self.index = index;
        if let Some(window) = self.windows.iter().find(|window| window.first == index).copied() {
            self.open_window(window);
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
        self.xmm_held = 0;
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

    pub fn call_handler(&mut self, index: usize, flags: bool) {
        let op: *const Op = &self.ops[index];
        self.asm.constant(RAX, op as u64);
        self.asm.constant(RDX, self.ops.len() as u64);
        let routines = self.setting.routines;
        self.asm.call_to(if flags { routines.handler_flags } else { routines.handler });
    }

    /// Makes a stub for the operation; the straight code jumps to the first label and goes on at the second.
    pub fn cold(&mut self, index: usize, after: After) -> (Label, Label) {
        let (from, back) = (self.asm.label(), self.asm.label());
        // The reference handler may have changed what is known of the stack's page.
        let rest = index + 1 < self.window_end;
        self.colds.push(Cold { from, back, index, after, rest, reload: 0 });
        (from, back)
    }

    fn cold_stubs(&mut self) {
        for Cold { from, back, index, after, rest, reload } in std::mem::take(&mut self.colds) {
            self.asm.bind(from);
            if rest {
                self.call_handler(index, matches!(after, After::Flags | After::Saved));
                self.leave_rest(index + 1);
                continue;
            }
            self.call_handler(index, matches!(after, After::Flags | After::Saved));
            (0..16).filter(|guest| reload >> guest & 1 == 1).for_each(|guest| self.reload_xmm(guest));
            match after {
                After::Plain | After::Saved => {}
                After::Flags => self.load_flags(),
                After::Target => self.asm.load(8, RAX, field!(rip)),
            }
            self.asm.jmp(back);
        }
    }

    /// At a boundary, leaves if a handler of this block may have asked for attention. `Core::rip` must be set to `ip`, or is.
    pub fn attend(&mut self, ip: Option<u64>) {
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
        self.go_through(ip, None);
    }

    /// Goes to a known address through a link or a site, or calls it and comes back at `after`.
    pub fn go_through(&mut self, ip: u64, after: Option<Label>) {
        let go = if after.is_some() { Asm::call_rm } else { Asm::jmp_rm };
        let word = self.setting.links.0 + self.links.len() as u64 * 8;
        let stub = self.asm.label();
        // What begins this close to the end of a page may go on in another one, which is to be checked.
        let may_cross = ip & OFFSET_MASK > PAGE_BYTES - INSTRUCTION_BYTES_MAX as u64;
        if (ip ^ self.setting.ip) & PAGE_MASK == 0 && !may_cross {
            go(self.asm, Rm::Near(word));
            self.exits.push(Exit { stub, ip, word: self.links.len() as u64, site: false, after });
            self.links.push(Link { target: ip, stub: 0 });
            return;
        }
        self.asm.load(8, RDX, SITE_TAG);
        self.asm.alu_load(alu::CMP, 8, RDX, Rm::Near(word));
        self.asm.jcc(cc::NZ, stub);
        go(self.asm, Rm::Near(word + 8));
        self.exits.push(Exit { stub, ip, word: self.links.len() as u64, site: true, after });
        // The tag, then the code.
        self.links.push(Link { target: NO_SITE, stub: NO_SITE });
        self.links.push(Link { target: NO_SITE, stub: 0 });
    }

    /// The ways out of links that lead nowhere yet and of sites whose tag is another.
    fn exit_stubs(&mut self) {
        let (address, first) = self.setting.links;
        for Exit { stub, ip, word, site, after } in std::mem::take(&mut self.exits) {
            self.asm.bind(stub);
            self.asm.constant(RAX, ip);
            if site {
                self.asm.lea(8, RCX, Rm::Near(address + word * 8));
                match after {
                    Some(after) => {
                        self.asm.call_to(self.setting.routines.resolve);
                        self.asm.jmp(after);
                    }
                    None => self.asm.jmp_to(self.setting.routines.resolve),
                }
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
        self.attend_at_rax();
        dispatch(self.asm, &self.setting.routines);
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

    pub fn recorded(&self, op: &Op) -> Option<u64> {
        match self.setting.edges {
            Edges::On { map, range: (start, end) } if (start..end).contains(&op.ip()) => Some(map),
            _ => None,
        }
    }
}
