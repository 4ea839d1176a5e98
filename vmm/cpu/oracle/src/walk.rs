// SPDX-License-Identifier: AGPL-3.0-or-later
//! Which oracle judges each iced `Code`.

use crate::{differential, host};
use chaoscontrol_cpu::table::{Status, status};
use iced_x86::{Code, Mnemonic};
use std::collections::BTreeSet;

/// How a code is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// The host's CPU, by generated cases.
    Host,
    /// QEMU in lockstep, in the named program.
    Lockstep(&'static str),
    /// A test with values from the manuals.
    Table(&'static str),
    /// Not implemented: #UD, because.
    Undefined(&'static str),
    /// The decoder never produces it.
    NeverDecoded(&'static str),
}

/// Codes that the host must not or cannot run, and where they are judged instead.
const ELSEWHERE: &[(&[Mnemonic], Judge)] = &[
    (&[Mnemonic::Syscall, Mnemonic::Sysret, Mnemonic::Sysretq], Judge::Lockstep("syscall")),
    (&[Mnemonic::Sysenter], Judge::Lockstep("compatibility mode")),
    (&[Mnemonic::Int], Judge::Lockstep("gates")),
    (
        &[Mnemonic::Sgdt, Mnemonic::Sidt, Mnemonic::Sldt, Mnemonic::Str, Mnemonic::Smsw],
        Judge::Lockstep("descriptor tables"),
    ),
    (&[Mnemonic::Lar, Mnemonic::Lsl, Mnemonic::Verr, Mnemonic::Verw], Judge::Lockstep("segment queries")),
    (&[Mnemonic::Rdtsc, Mnemonic::Rdtscp, Mnemonic::Rdpmc], Judge::Table("time_comes_from_the_count")),
    (&[Mnemonic::Cpuid, Mnemonic::Xgetbv], Judge::Table("the_model_is_fixed")),
];

/// Codes of 64-bit mode with an operand-size prefix that Intel's CPUs decode differently; an Intel host judges the same
/// operation in 32-bit code.
const OPERAND_SIZE_64: &str = "the same operation is judged in 32-bit code or with another operand size";

/// The judge of every code, or `None` where there is none: a hole that the walk test reports.
pub fn judges() -> Vec<(Code, Option<Judge>)> {
    let judged: BTreeSet<Code> = differential::targets(None).into_iter().map(|(code, _)| code).collect();
    Code::values().map(|code| (code, judge(code, &judged))).collect()
}

fn judge(code: Code, judged: &BTreeSet<Code>) -> Option<Judge> {
    let info = code.op_code();
    let reason = match status(code) {
        Status::Undefined(reason) => return Some(Judge::Undefined(reason)),
        Status::Implemented(_) => host::exclusion(code),
    };
    if judged.contains(&code) {
        return Some(Judge::Host);
    }
    if info.fwait() || !info.is_instruction() {
        return reason.map(Judge::NeverDecoded);
    }
    let elsewhere = ELSEWHERE.iter().find(|(mnemonics, _)| mnemonics.contains(&code.mnemonic()));
    if let Some((_, judge)) = elsewhere {
        return Some(*judge);
    }
    let only_64 = info.mode64() && !host::agrees_on_encoding(code, 64);
    only_64.then_some(Judge::Table(OPERAND_SIZE_64))
}
