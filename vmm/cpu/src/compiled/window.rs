// SPDX-License-Identifier: AGPL-3.0-or-later
//! Stretches of a block whose stack accesses are checked together.
//!
//! Pushes, pops, calls, returns and operands relative to RSP reach addresses at known distances from each other. If all of them
//! lie in the page that the stack was last found in, one look before the first suffices. If not, the rest of the block
//! is executed by the reference, so that every access happens in its turn.

use super::asm::alu;
use super::kinds::{Form, Kind, kind};
use crate::op::{NO_REGISTER, Op, attr};
use crate::state::seg;

const RSP: u8 = 4;
/// Farther apart they rarely share a page.
const SPAN_MAX: i64 = 1024;

/// Accesses that are checked together, before operation `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub first: usize,
    /// One past the last operation with an access.
    pub end: usize,
    /// Distance of the highest access from RSP before `first`, and of the lowest from it.
    pub highest: i32,
    pub span: i32,
    pub writes: bool,
}

/// What an operation does to the stack.
struct Use {
    /// Distances from RSP of accesses of at most eight bytes, and whether they write.
    accesses: [Option<(i64, bool)>; 2],
    /// Change of RSP, if it is known.
    moves: Option<i64>,
    /// Nothing is known of the stack's page after it.
    ends: bool,
}

/// Whether windows take the memory operand of an operation into account.
pub(super) fn covers(op: &Op) -> bool {
    is_stack_operand(op) && operand(kind(op), op).is_some_and(|(bytes, _)| bytes <= 8)
}

/// Whether an operand lies at a known distance from RSP.
fn is_stack_operand(op: &Op) -> bool {
    op.has(attr::MEMORY)
        && op.base == RSP
        && op.index == NO_REGISTER
        && !op.has(attr::ADDRESS_32)
        && usize::from(op.segment) == seg::SS
        && (op.displacement as i64).abs() <= SPAN_MAX
}

/// Bytes of a memory operand, and whether it is written; nothing for kinds that are not looked at.
fn operand(kind: Kind, op: &Op) -> Option<(u8, bool)> {
    Some(match kind {
        Kind::Alu { op, size, form } => (size, form != Form::RegRm && op != alu::CMP),
        Kind::Test { size, .. } | Kind::Imul2 { size } | Kind::Imul3 { size } | Kind::Cmov { size, .. } => {
            (size, false)
        }
        Kind::Not { size } | Kind::Neg { size } | Kind::Step { size, .. } | Kind::ShiftImm { size, .. } => (size, true),
        Kind::Mov { size, form } => (size, form != Form::RegRm),
        Kind::Extend { from, .. } => (from, false),
        Kind::Vector { bytes, .. } => (bytes, false),
        Kind::VectorStore { bytes, .. } => (bytes, true),
        Kind::JmpRm | Kind::CallRm => (8, false),
        Kind::PushReg if op.has(attr::MEMORY) => (8, false),
        _ => return None,
    })
}

fn use_of(op: &Op) -> Use {
    let kind = kind(op);
    let mut accesses = [None; 2];
    if covers(op)
        && let Some((_, writes)) = operand(kind, op)
    {
        accesses[0] = Some((op.displacement as i64, writes));
    }
    let known = |moves: i64| Some(moves);
    let (moves, ends) = match kind {
        Kind::PushReg | Kind::PushImm | Kind::Call | Kind::CallRm => {
            accesses[1] = Some((-8, true));
            (known(-8), false)
        }
        Kind::PopReg => {
            accesses[1] = Some((0, false));
            (if op.dst == RSP { None } else { known(8) }, false)
        }
        Kind::Ret => {
            accesses[1] = Some((0, false));
            (None, false)
        }
        Kind::Alu { op: alu::ADD, size: 8, form: Form::RmImm } if is_rsp(op) => (known(op.imm as i64), false),
        Kind::Alu { op: alu::SUB, size: 8, form: Form::RmImm } if is_rsp(op) => {
            (known((op.imm as i64).wrapping_neg()), false)
        }
        Kind::Lea { size: 8 } if op.dst == RSP && op.base == RSP && op.index == NO_REGISTER => {
            (known(op.displacement as i64), false)
        }
        Kind::Handler { .. } | Kind::Leave => (None, true),
        Kind::Alu { op: alu::CMP, .. } | Kind::Test { .. } => (known(0), false),
        // Whatever else names RSP as a register may change it.
        _ if op.dst == RSP || op.src == RSP => {
            let stores = matches!(kind, Kind::Mov { form: Form::RmReg, .. }) && op.dst != RSP;
            (if stores { known(0) } else { None }, false)
        }
        _ => (known(0), false),
    };
    Use { accesses, moves: moves.filter(|moves| moves.abs() <= SPAN_MAX), ends }
}

fn is_rsp(op: &Op) -> bool {
    op.dst == RSP && !op.has(attr::MEMORY)
}

/// The windows of a block, in order.
pub(super) fn windows(ops: &[Op]) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut open: Option<Open> = None;
    for (index, op) in ops.iter().enumerate() {
        let Use { accesses, moves, ends } = use_of(op);
        if ends {
            close(&mut open, &mut windows);
            continue;
        }
        let accesses = accesses.into_iter().flatten();
        if open.as_ref().is_some_and(|open| accesses.clone().any(|(distance, _)| !open.takes(distance))) {
            close(&mut open, &mut windows);
        }
        for (distance, writes) in accesses {
            open.get_or_insert_with(|| Open::new(index)).add(index, distance, writes);
        }
        match (&mut open, moves) {
            (Some(open), Some(moves)) => open.moved += moves,
            (_, None) => close(&mut open, &mut windows),
            _ => {}
        }
    }
    close(&mut open, &mut windows);
    windows
}

/// A window that is being made.
struct Open {
    first: usize,
    last: usize,
    accesses: usize,
    lowest: i64,
    highest: i64,
    writes: bool,
    /// How far RSP has moved since `first`.
    moved: i64,
}

impl Open {
    fn new(first: usize) -> Self {
        Self { first, last: first, accesses: 0, lowest: i64::MAX, highest: i64::MIN, writes: false, moved: 0 }
    }

    fn takes(&self, distance: i64) -> bool {
        let at = self.moved + distance;
        self.highest.max(at) - self.lowest.min(at) <= SPAN_MAX
    }

    fn add(&mut self, index: usize, distance: i64, writes: bool) {
        let at = self.moved + distance;
        (self.lowest, self.highest) = (self.lowest.min(at), self.highest.max(at));
        self.last = index;
        self.accesses += 1;
        self.writes |= writes;
    }
}

fn close(open: &mut Option<Open>, windows: &mut Vec<Window>) {
    let Some(Open { first, last, accesses, lowest, highest, writes, .. }) = open.take() else { return };
    // Two accesses cost as much each on their own.
    if accesses > 2 {
        let span = (highest - lowest) as i32;
        windows.push(Window { first, end: last + 1, highest: highest as i32, span, writes });
    }
}
