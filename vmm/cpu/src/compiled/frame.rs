// SPDX-License-Identifier: AGPL-3.0-or-later
//! Where compiled code keeps things, and the few routines all of it shares: entry, exits, calls of reference handlers, and the
//! look-up of jump targets.
//!
//! | host register | holds |
//! |---|---|
//! | RBP | the `Core`, plus [`BIAS`] |
//! | R15 | counted events that remain before the limit |
//! | RAX, RCX, RDX | nothing from one instruction to the next |
//! | the other ten | guest registers, see [`PINNED`] |
//!
//! MXCSR is the guest's while compiled code runs. Guest registers without a host register, and everything else, live in the
//! `Core`. The status flags live in [`Frame::raw`] or, for a while, in the host's flags.

use super::asm::*;
use crate::core_state::Core;
use crate::coverage::FACTORS;
use crate::flags::{LazyFlags, bit};
use crate::memory::PAGE_MASK;
use crate::op::{Op, Trap};
use crate::tlb::{Tlb, TlbEntry};
use std::mem::offset_of;

/// Why compiled code returned.
#[allow(missing_docs)]
pub(super) mod exit {
    /// The operation in `Frame::op` did not retire: `Trap::Fault`.
    pub const FAULT: u32 = 1;
    /// The operation in `Frame::op` did not retire: `Trap::Exit`.
    pub const EXIT: u32 = 2;
    /// The operation in `Frame::op` retired and the block must be left.
    pub const LEFT: u32 = 3;
    /// At a boundary; `Core::rip` and `Core::instructions` are right.
    pub const BOUNDARY: u32 = 4;
    /// As `BOUNDARY`, through the link numbered in `Frame::link`.
    pub const LINK: u32 = 5;
    /// The reference is to execute the block from the operation in `Frame::op` on.
    pub const REST: u32 = 6;
}

/// The part of the `Core` that only compiled code uses.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Frame {
    /// Status flags as LAHF and SETO leave them: AH is SF ZF 0 AF 0 PF 1 CF, AL is OF.
    pub raw: u32,
    /// MXCSR of everything but compiled code.
    pub host_mxcsr: u32,
    /// Exceptions that the guest's MXCSR does not mask.
    pub unmasked: u32,
    /// The operation that a shared routine was called for.
    pub op: *const Op,
    /// Instructions of the block that holds it.
    pub count: u64,
    pub link: u64,
    /// The translation cache's entries.
    pub entries: *const TlbEntry,
    /// The map of edges, while they are recorded.
    pub edges: *mut u8,
    /// The code tag, with [`Frame::site_epoch`] above it: what sites compare.
    pub site_tag: u64,
    /// Changes whenever compiled code that a site may lead to was dropped; multiples of [`SITE_EPOCH`].
    pub site_epoch: u64,
    /// The site that is being resolved.
    pub site: u64,
    /// The page that the stack was last found in: linear address, and what is added for the host address.
    pub stack_page: u64,
    pub stack_addend: u64,
    /// Offsets below this may be read or written as eight bytes through it; zero when nothing is known.
    pub stack_read: u64,
    pub stack_write: u64,
    /// For values that must survive an access to memory inside one instruction.
    pub spill: u64,
    /// The host's stack pointer while no call is remembered there, and below which no more are (see [`CALLS_MAX`]).
    pub no_calls: u64,
    pub calls_end: u64,
}

// SAFETY: the pointers lead to what the CPU owns and moves with it; they are set anew before each use.
unsafe impl Send for Frame {}

impl Default for Frame {
    fn default() -> Self {
        Self {
            raw: 0,
            host_mxcsr: 0x1f80,
            unmasked: 0,
            op: std::ptr::null(),
            count: 0,
            link: 0,
            entries: std::ptr::null(),
            edges: std::ptr::null_mut(),
            site_tag: NO_SITE,
            site_epoch: 0,
            site: 0,
            stack_page: 0,
            stack_addend: 0,
            stack_read: 0,
            stack_write: 0,
            spill: 0,
            no_calls: 0,
            calls_end: 0,
        }
    }
}

/// Calls that are remembered on the host's stack, sixteen bytes each: the host address behind the CALL, and above it the guest's.
const CALLS_MAX: i32 = 512;

/// Above the bits of a code tag.
pub(super) const SITE_EPOCH: u64 = 1 << 12;
/// No tag: the mode bits of a code tag are never all set.
pub(super) const NO_SITE: u64 = u64::MAX;

/// RBP points this far into the `Core`, so that the sixteen guest registers are reached with short displacements.
const BIAS: usize = offset_of!(Core, gpr) + 128;

/// The `Core`'s byte at an offset.
pub(super) const fn at(offset: usize) -> Rm {
    Rm::Base(RBP, offset as i32 - BIAS as i32)
}

macro_rules! field {
    ($($path:tt)+) => {
        $crate::compiled::frame::at(std::mem::offset_of!($crate::core_state::Core, $($path)+))
    };
}
pub(super) use field;

pub(super) const RAW: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, raw));
pub(super) const UNMASKED: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, unmasked));
pub(super) const STACK_PAGE: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, stack_page));
pub(super) const STACK_ADDEND: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, stack_addend));
pub(super) const STACK_READ: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, stack_read));
pub(super) const STACK_WRITE: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, stack_write));
pub(super) const SPILL: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, spill));
/// The guest's return address of the last call that is remembered.
pub(super) const LAST_CALL: Rm = Rm::Base(RSP, 8);
pub(super) const NO_CALLS: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, no_calls));
pub(super) const CALLS_END: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, calls_end));
const HOST_MXCSR: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, host_mxcsr));
const FRAME_OP: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, op));
const FRAME_COUNT: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, count));
pub(super) const FRAME_LINK: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, link));
pub(super) const TLB_TAG: Rm = at(offset_of!(Core, tlb) + Tlb::TAG_OFFSET);
pub(super) const TLB_ENTRIES: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, entries));
const FRAME_EDGES: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, edges));
pub(super) const SITE_TAG: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, site_tag));
const SITE_EPOCHS: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, site_epoch));
const SITE: Rm = at(offset_of!(Core, frame) + offset_of!(Frame, site));
const CODE_TAG: Rm = at(offset_of!(Core, tlb) + Tlb::CODE_TAG_OFFSET);

/// Host registers of guest registers; the others stay in memory. RBX, R12 and R14 survive calls.
pub(super) const PINNED: [Option<Reg>; 16] = [
    Some(R8),
    Some(R9),
    Some(R10),
    Some(RBX),
    Some(R12),
    Some(R13),
    Some(RSI),
    Some(RDI),
    Some(R11),
    None,
    None,
    None,
    Some(R14),
    None,
    None,
    None,
];

/// Counted events that remain, less [`SLACK`].
pub(super) const ROOM: Reg = R15;

/// Compiled code is left with at least this many counted events to go, or without having gone through another block. So
/// flags that the first instructions of a block overwrite need not be right when it is entered.
pub(crate) const SLACK: i32 = 16;

/// A guest register's place in memory.
pub(super) fn slot(guest: u8) -> Rm {
    at(offset_of!(Core, gpr) + usize::from(guest & 31) * 8)
}

/// `Frame::raw` of status flags.
pub(super) fn raw_of(flags: &LazyFlags) -> u32 {
    let bits = flags.bits();
    ((bits & !bit::OF) as u32) << 8 | u32::from(bits & bit::OF != 0)
}

/// Status flags of `Frame::raw`.
pub(super) fn flags_of(raw: u32) -> LazyFlags {
    let low = u64::from(raw >> 8) & (bit::SF | bit::ZF | bit::AF | bit::PF | bit::CF);
    LazyFlags::from_bits(low | if raw & 1 != 0 { bit::OF } else { 0 })
}

/// A jump of the cache that compiled code looks targets up in.
#[repr(C, align(32))]
#[derive(Clone, Copy)]
pub(super) struct Jump {
    pub ip: u64,
    pub tag: u64,
    pub code: u64,
}

/// Two jumps that fall together, the later one first: a cache line.
pub(super) type JumpSet = [Jump; 2];
/// Sets of the jump cache.
pub(super) const JUMPS: usize = 1 << 13;
const JUMP_SHIFT: u8 = 6;
const SECOND: i32 = size_of::<Jump>() as i32;
const _: () = assert!(size_of::<JumpSet>() == 1 << JUMP_SHIFT);

/// The set of an address under a code tag: different tags spread, so that address spaces do not displace each other.
pub(super) fn jump_set(ip: u64, tag: u64) -> usize {
    ((ip >> 13) ^ ip ^ tag) as usize & (JUMPS - 1)
}

/// Addresses of the shared routines.
#[derive(Clone, Copy, Default)]
pub(super) struct Routines {
    /// `extern "sysv64" fn(core, code) -> exit`.
    pub enter: u64,
    /// Calls the handler of the operation in RAX, which belongs to a block of EDX instructions. Returns if it retired and the block
    /// may go on.
    pub handler: u64,
    /// The same for handlers that read or write the status flags.
    pub handler_flags: u64,
    /// Finds the host address of eight bytes of stack at RAX, to be read or written, and remembers the page. ZF is clear
    /// if it is not in the translation cache.
    pub stack_read: u64,
    pub stack_write: u64,
    /// Goes to the guest address in RAX, which is not the first of the set at RCX; RDX is the code tag.
    pub second: u64,
    /// Goes to the guest address in RAX and makes the site at RCX remember.
    pub resolve: u64,
    /// Address of the constants.
    pub words: u64,
    /// Counts the edge from RDX, already multiplied, to RAX, which stays.
    pub edge: u64,
    /// Leaves in the middle of a block of EDX instructions, before the operation in RAX.
    pub rest: u64,
    /// Leaves at a boundary; `Core::rip` is set.
    pub boundary: u64,
    /// Leaves through the link in EDX; `Core::rip` is set.
    pub link: u64,
}

/// What runs a reference handler for compiled code.
extern "sysv64" fn call_handler(core: &mut Core, op: &Op) -> u32 {
    match (op.handler)(core, op) {
        Ok(()) => 0,
        Err(Trap::Fault) => exit::FAULT,
        Err(Trap::Exit) => exit::EXIT,
    }
}

extern "sysv64" fn call_handler_flags(core: &mut Core, op: &Op) -> u32 {
    core.flags = flags_of(core.frame.raw);
    let result = call_handler(core, op);
    core.frame.raw = raw_of(&core.flags);
    result
}

fn each_pinned() -> impl Iterator<Item = (u8, Reg)> {
    (0..16u8).filter_map(|guest| Some((guest, PINNED[usize::from(guest)]?)))
}

fn store_registers(asm: &mut Asm) {
    for (guest, host) in each_pinned() {
        asm.store(8, slot(guest), host);
    }
}

fn load_registers(asm: &mut Asm) {
    for (guest, host) in each_pinned() {
        asm.load(8, host, slot(guest));
    }
}

/// Exception masks of MXCSR.
const MXCSR_MASKS: i32 = 0x1f80;

const SAVED: [Reg; 6] = [RBX, RBP, R12, R13, R14, R15];

/// The constants that routines find in data, as words.
pub(super) fn constants(jumps: u64) -> [u64; 4] {
    [jumps, FACTORS[1], FACTORS[2], FACTORS[3]]
}

/// Emits the shared routines. `words` is the address of the [`constants`].
pub(super) fn routines(asm: &mut Asm, words: u64, tlb_bits: u32) -> Routines {
    let mut routines = Routines { enter: asm.here(), ..Routines::default() };
    SAVED.iter().for_each(|reg| asm.push(*reg));
    asm.alu_imm(alu::SUB, 8, Rm::Reg(RSP), 8);
    asm.lea(8, RBP, Rm::Base(RDI, BIAS as i32));
    asm.ldmxcsr(field!(mxcsr));
    note_masks(asm);
    asm.load(8, ROOM, field!(limit));
    asm.alu_load(alu::SUB, 8, ROOM, field!(instructions));
    asm.alu_imm(alu::SUB, 8, Rm::Reg(ROOM), SLACK);
    // A call that was remembered and returns to address 0 comes to `root`.
    let root = asm.label();
    asm.push_imm(0);
    asm.lea(8, RAX, Rm::Base(RSP, -8 - CALLS_MAX * 16));
    asm.store(8, CALLS_END, RAX);
    asm.mov(RAX, RSI);
    load_registers(asm);
    asm.call(root);
    // Reached only by a RET to address 0.
    asm.load(8, RSP, NO_CALLS);
    asm.store(8, field!(rip), RAX);
    let boundary = asm.label();
    asm.jmp(boundary);
    asm.bind(root);
    asm.store(8, NO_CALLS, RSP);
    asm.jmp_rm(Rm::Reg(RAX));

    routines.boundary = asm.here();
    asm.bind(boundary);
    asm.constant(RAX, exit::BOUNDARY.into());
    let counted = asm.label();
    asm.jmp(counted);
    routines.link = asm.here();
    asm.store(8, FRAME_LINK, RDX);
    asm.constant(RAX, exit::LINK.into());
    asm.bind(counted);
    asm.load(8, RCX, field!(limit));
    asm.alu_load(alu::SUB, 8, RCX, Rm::Reg(ROOM));
    asm.alu_imm(alu::SUB, 8, Rm::Reg(RCX), SLACK);
    asm.store(8, field!(instructions), RCX);
    store_registers(asm);
    asm.stmxcsr(field!(mxcsr));
    asm.ldmxcsr(HOST_MXCSR);
    let leave = asm.label();
    asm.bind(leave);
    asm.load(8, RSP, NO_CALLS);
    asm.alu_imm(alu::ADD, 8, Rm::Reg(RSP), 24);
    SAVED.iter().rev().for_each(|reg| asm.pop(*reg));
    asm.ret();

    routines.rest = asm.here();
    asm.store(8, FRAME_OP, RAX);
    asm.store(8, FRAME_COUNT, RDX);
    // The count is that before the block.
    asm.alu_load(alu::ADD, 8, ROOM, Rm::Reg(RDX));
    asm.constant(RAX, exit::REST.into());
    asm.jmp(counted);

    routines.handler = handler(asm, call_handler as *const () as u64, leave);
    routines.handler_flags = handler(asm, call_handler_flags as *const () as u64, leave);

    routines.words = words;
    routines.second = asm.here();
    let miss = asm.label();
    compare(asm, SECOND, |asm| asm.jcc(cc::NZ, miss));
    asm.jmp_rm(Rm::Base(RCX, SECOND + offset_of!(Jump, code) as i32));
    asm.bind(miss);
    asm.store(8, field!(rip), RAX);
    asm.jmp_to(routines.boundary);

    routines.resolve = asm.here();
    let (found, not_first, miss) = (asm.label(), asm.label(), asm.label());
    asm.store(8, SITE, RCX);
    find_set(asm, words);
    compare(asm, 0, |asm| asm.jcc(cc::NZ, not_first));
    asm.jmp(found);
    asm.bind(not_first);
    asm.alu_imm(alu::ADD, 8, Rm::Reg(RCX), SECOND);
    compare(asm, 0, |asm| asm.jcc(cc::NZ, miss));
    asm.bind(found);
    asm.load(8, RCX, Rm::Base(RCX, offset_of!(Jump, code) as i32));
    asm.load(8, RDX, SITE);
    asm.store(8, Rm::Base(RDX, 8), RCX);
    asm.load(8, RAX, SITE_TAG);
    asm.store(8, Rm::Base(RDX, 0), RAX);
    asm.jmp_rm(Rm::Reg(RCX));
    asm.bind(miss);
    asm.store(8, field!(rip), RAX);
    asm.jmp_to(routines.boundary);

    routines.edge = asm.here();
    edge(asm, words);
    routines.stack_read = stack(asm, tlb_bits, false);
    routines.stack_write = stack(asm, tlb_bits, true);
    routines
}

/// The host address of `bytes` at the linear address in RAX, or off to `miss`. Changes RCX, RDX and flags. This is `Core::read` and
/// `Core::write`, which see. Afterwards RCX leads to the entry.
pub(super) fn probe(asm: &mut Asm, tlb_bits: u32, bytes: u8, write: bool, miss: Label) {
    asm.mov(RCX, RAX);
    asm.shift_imm(shift::SHR, 8, Rm::Reg(RCX), 12);
    asm.alu_load(alu::ADD, 4, RCX, TLB_TAG);
    asm.imul_imm(4, RCX, Rm::Reg(RCX), Tlb::HASH as i32);
    asm.lea(8, RDX, Rm::Base(RAX, i32::from(bytes) - 1));
    asm.shift_imm(shift::SHR, 4, Rm::Reg(RCX), (32 - 5 - tlb_bits) as u8);
    asm.alu_imm(alu::AND, 8, Rm::Reg(RDX), PAGE_MASK as i32);
    asm.alu_imm(alu::AND, 4, Rm::Reg(RCX), ((1 << tlb_bits) - 1) << 5);
    asm.alu_load(alu::OR, 8, RDX, TLB_TAG);
    asm.alu_load(alu::ADD, 8, RCX, TLB_ENTRIES);
    let tag = if write { offset_of!(TlbEntry, write) } else { offset_of!(TlbEntry, read) };
    asm.alu_load(alu::CMP, 8, RDX, Rm::Base(RCX, tag as i32));
    asm.jcc(cc::NZ, miss);
    asm.alu_load(alu::ADD, 8, RAX, Rm::Base(RCX, offset_of!(TlbEntry, addend) as i32));
}

const _: () = assert!(size_of::<TlbEntry>() == 32);

/// Offsets in a page at which eight bytes begin that end in it.
const STACK_OFFSETS: i32 = 4096 - 7;

fn stack(asm: &mut Asm, tlb_bits: u32, write: bool) -> u64 {
    let address = asm.here();
    let miss = asm.label();
    probe(asm, tlb_bits, 8, write, miss);
    // RDX is still the tag that matched.
    asm.alu_imm(alu::AND, 8, Rm::Reg(RDX), PAGE_MASK as i32);
    asm.store(8, STACK_PAGE, RDX);
    asm.load(8, RDX, Rm::Base(RCX, offset_of!(TlbEntry, addend) as i32));
    asm.store(8, STACK_ADDEND, RDX);
    asm.store_imm(8, STACK_READ, STACK_OFFSETS);
    asm.store_imm(8, STACK_WRITE, if write { STACK_OFFSETS } else { 0 });
    asm.alu_load(alu::CMP, 4, RAX, Rm::Reg(RAX));
    asm.bind(miss);
    asm.ret();
    address
}

/// Goes to the guest address in RAX through the jump cache.
pub(super) fn dispatch(asm: &mut Asm, routines: &Routines) {
    find_set(asm, routines.words);
    compare(asm, 0, |asm| asm.jcc_to(cc::NZ, routines.second));
    asm.jmp_rm(Rm::Base(RCX, offset_of!(Jump, code) as i32));
}

/// The same as a call. At `other`, [`Routines::second`] is to be called.
pub(super) fn dispatch_call(asm: &mut Asm, routines: &Routines, other: Label) {
    find_set(asm, routines.words);
    compare(asm, 0, |asm| asm.jcc(cc::NZ, other));
    asm.call_rm(Rm::Base(RCX, offset_of!(Jump, code) as i32));
}

/// The set of the address in RAX into RCX and the code tag into RDX; RAX stays.
fn find_set(asm: &mut Asm, words: u64) {
    asm.mov(RCX, RAX);
    asm.load(8, RDX, CODE_TAG);
    asm.shift_imm(shift::SHR, 8, Rm::Reg(RCX), 13);
    asm.alu_load(alu::XOR, 4, RCX, Rm::Reg(RAX));
    asm.alu_load(alu::XOR, 4, RCX, Rm::Reg(RDX));
    asm.alu_imm(alu::AND, 4, Rm::Reg(RCX), JUMPS as i32 - 1);
    asm.shift_imm(shift::SHL, 4, Rm::Reg(RCX), JUMP_SHIFT);
    asm.alu_load(alu::ADD, 8, RCX, Rm::Near(words));
}

/// Compares RAX and RDX with the jump that far behind RCX; `away` emits the jump that is taken if it is another.
fn compare(asm: &mut Asm, behind: i32, away: impl Fn(&mut Asm)) {
    asm.alu_load(alu::CMP, 8, RAX, Rm::Base(RCX, behind + offset_of!(Jump, ip) as i32));
    away(asm);
    asm.alu_load(alu::CMP, 8, RDX, Rm::Base(RCX, behind + offset_of!(Jump, tag) as i32));
    away(asm);
}

/// `coverage::index`, and a saturating count.
fn edge(asm: &mut Asm, words: u64) {
    asm.mov(RCX, RAX);
    asm.imul(8, RCX, Rm::Near(words + 8));
    asm.alu_load(alu::ADD, 8, RDX, Rm::Reg(RCX));
    for (shift, factor) in [(30, 16), (27, 24)] {
        asm.mov(RCX, RDX);
        asm.shift_imm(shift::SHR, 8, Rm::Reg(RCX), shift);
        asm.alu_load(alu::XOR, 8, RDX, Rm::Reg(RCX));
        asm.imul(8, RDX, Rm::Near(words + factor));
    }
    asm.shift_imm(shift::SHR, 8, Rm::Reg(RDX), 48);
    asm.alu_load(alu::ADD, 8, RDX, FRAME_EDGES);
    asm.load_zero(4, 1, RCX, Rm::Base(RDX, 0));
    asm.alu_imm(alu::ADD, 1, Rm::Reg(RCX), 1);
    asm.alu_imm(alu::SBB, 1, Rm::Reg(RCX), 0);
    asm.store(1, Rm::Base(RDX, 0), RCX);
    asm.ret();
}

fn note_masks(asm: &mut Asm) {
    asm.load(4, RAX, field!(mxcsr));
    asm.unary(2, 4, Rm::Reg(RAX));
    asm.alu_imm(alu::AND, 4, Rm::Reg(RAX), MXCSR_MASKS);
    asm.store(4, UNMASKED, RAX);
}

/// The routine that calls `shim` for an operation.
fn handler(asm: &mut Asm, shim: u64, leave: Label) -> u64 {
    let address = asm.here();
    let left = asm.label();
    store_registers(asm);
    asm.load(8, RCX, field!(limit));
    asm.alu_load(alu::SUB, 8, RCX, Rm::Reg(ROOM));
    asm.alu_load(alu::SUB, 8, RCX, Rm::Reg(RDX));
    asm.alu_imm(alu::SUB, 8, Rm::Reg(RCX), SLACK);
    asm.store(8, field!(instructions), RCX);
    asm.stmxcsr(field!(mxcsr));
    asm.ldmxcsr(HOST_MXCSR);
    asm.store(8, FRAME_OP, RAX);
    asm.store(8, FRAME_COUNT, RDX);
    asm.lea(8, RDI, Rm::Base(RBP, -(BIAS as i32)));
    asm.mov(RSI, RAX);
    asm.alu_imm(alu::SUB, 8, Rm::Reg(RSP), 8);
    asm.constant(RAX, shim);
    asm.call_rm(Rm::Reg(RAX));
    asm.alu_imm(alu::ADD, 8, Rm::Reg(RSP), 8);
    asm.test(4, Rm::Reg(RAX), RAX);
    asm.jcc(cc::NZ, leave);
    asm.alu_imm(alu::CMP, 8, field!(block_end), 0);
    asm.jcc(cc::Z, left);
    asm.load(8, ROOM, field!(limit));
    asm.alu_load(alu::SUB, 8, ROOM, field!(instructions));
    asm.alu_load(alu::SUB, 8, ROOM, FRAME_COUNT);
    asm.alu_imm(alu::SUB, 8, Rm::Reg(ROOM), SLACK);
    asm.store_imm(8, STACK_READ, 0);
    asm.store_imm(8, STACK_WRITE, 0);
    asm.load(8, RAX, CODE_TAG);
    asm.alu_load(alu::ADD, 8, RAX, SITE_EPOCHS);
    // Calls are remembered under one tag only.
    let same = asm.label();
    asm.alu_load(alu::CMP, 8, RAX, SITE_TAG);
    asm.jcc(cc::Z, same);
    asm.store(8, SITE_TAG, RAX);
    asm.pop(RCX);
    asm.load(8, RSP, NO_CALLS);
    asm.push(RCX);
    asm.bind(same);
    note_masks(asm);
    asm.ldmxcsr(field!(mxcsr));
    load_registers(asm);
    asm.ret();
    asm.bind(left);
    asm.constant(RAX, exit::LEFT.into());
    asm.jmp(leave);
    address
}
