// SPDX-License-Identifier: AGPL-3.0-or-later
//! Entries of a log, and the table of their kinds.

use std::fmt::Write;

use chaoscontrol_cpu::{CpuState, Exit};
use chaoscontrol_machine::event_log::{Event, What};
use chaoscontrol_machine::pages::Digest;

/// Kinds by number, with the names of their fields. Numbers never change; a new kind goes to the end.
pub const KINDS: &[(&str, &[&str])] = &[
    ("port-read", &["port", "size", "value"]),
    ("port-write", &["port", "size", "value"]),
    ("mmio-read", &["address", "size", "value"]),
    ("mmio-write", &["address", "size", "value"]),
    ("msr-read", &["index", "value"]),
    ("msr-read-refused", &["index"]),
    ("msr-write", &["index", "value"]),
    ("halted", &[]),
    ("tpr-write", &[]),
    ("shutdown", &[]),
    ("guest-error", &[]),
    ("interrupt", &["vector"]),
    ("nmi", &[]),
    ("mark", &[]),
];

/// Number of the kind that has a [`Mark`].
pub const MARK: u8 = KINDS.len() as u8 - 1;

/// What stands at a mark.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Hash over the registers of all CPUs.
    pub registers: Digest,
    /// Hash over memory.
    pub memory: Option<Digest>,
    /// Registers of the CPU that ran.
    pub state: Option<Box<CpuState>>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Units of progress before it.
    pub progress: u64,
    /// Guest time.
    pub guest_ns: u64,
    /// The CPU that ran.
    pub cpu: u8,
    /// Index in [`KINDS`].
    pub kind: u8,
    /// As many as the kind has names for.
    pub fields: Vec<u64>,
    /// Only at marks.
    pub mark: Option<Mark>,
}

fn exit(exit: Exit, answer: Option<u64>) -> Option<(&'static str, Vec<u64>)> {
    let value = answer.unwrap_or(0);
    Some(match exit {
        Exit::BudgetUsed | Exit::InterruptWindow => return None,
        Exit::PortRead { port, size } => ("port-read", vec![port.into(), size.into(), value]),
        Exit::PortWrite { port, size, value } => ("port-write", vec![port.into(), size.into(), value.into()]),
        Exit::MmioRead { address, size } => ("mmio-read", vec![address, size.into(), value]),
        Exit::MmioWrite { address, size, value } => ("mmio-write", vec![address, size.into(), value]),
        Exit::MsrRead { index } if answer.is_none() => ("msr-read-refused", vec![index.into()]),
        Exit::MsrRead { index } => ("msr-read", vec![index.into(), value]),
        Exit::MsrWrite { index, value } => ("msr-write", vec![index.into(), value]),
        Exit::Halted => ("halted", Vec::new()),
        Exit::TprWrite => ("tpr-write", Vec::new()),
        Exit::Shutdown => ("shutdown", Vec::new()),
        Exit::GuestError(_) => ("guest-error", Vec::new()),
    })
}

impl Entry {
    /// The entry of a machine's event; none for what says nothing about the guest.
    pub fn of(event: Event) -> Option<Self> {
        let Event { progress, guest_ns, cpu, what } = event;
        let (name, fields, mark) = match what {
            What::Exit(what, answer) => {
                let (name, fields) = exit(what, answer)?;
                (name, fields, None)
            }
            What::Interrupt(vector) => ("interrupt", vec![vector.into()], None),
            What::Nmi => ("nmi", Vec::new(), None),
            What::Mark { registers, memory, state } => ("mark", Vec::new(), Some(Mark { registers, memory, state })),
        };
        let kind = KINDS.iter().position(|(known, _)| *known == name)? as u8;
        Some(Self { progress, guest_ns, cpu, kind, fields, mark })
    }

    /// The kind's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        KINDS.get(usize::from(self.kind)).map_or("?", |(name, _)| name)
    }

    /// One line: where, what, and with which values.
    #[must_use]
    pub fn line(&self) -> String {
        let mut text = format!("{:>12} {:>14} ns cpu {} {}", self.progress, self.guest_ns, self.cpu, self.name());
        let names = KINDS.get(usize::from(self.kind)).map_or(&[][..], |(_, names)| names);
        for (name, value) in names.iter().zip(&self.fields) {
            let _ = write!(text, " {name} {value:#x}");
        }
        if let Some(mark) = &self.mark {
            let _ = write!(text, " registers {}", hex(&mark.registers));
            if let Some(memory) = &mark.memory {
                let _ = write!(text, " memory {}", hex(memory));
            }
            if let Some(state) = &mark.state {
                let _ = write!(text, " rip {:#x}", state.rip);
            }
        }
        text
    }
}

/// The first eight bytes, which tell any two apart that anybody meets.
fn hex(digest: &Digest) -> String {
    digest.iter().take(8).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
