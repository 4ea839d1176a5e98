// SPDX-License-Identifier: AGPL-3.0-or-later
//! The exit codes of every tool, in one place.

/// An error that knows how a tool ends because of it.
pub trait CodedError: std::error::Error {
    /// The code with which a tool ends.
    fn exit_code(&self) -> ExitCode;
}

/// How a tool ended. The numbers are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ExitCode {
    /// The stage did its work, or the property holds.
    Success = 0,
    /// An internal error, panics included.
    Internal = 1,
    /// Wrong usage.
    Usage = 2,
    /// An input is unreadable, damaged or breaks its contract.
    BadInput = 3,
    /// The host lacks something that was asked for.
    HostLacks = 4,
    /// The guest did not get as far as the stage needs.
    GuestFailed = 5,
    /// A required outcome does not hold.
    RequirementFailed = 10,
    /// A budget ran out first.
    BudgetExhausted = 11,
    /// Two runs that must be identical diverged.
    Diverged = 12,
}

impl ExitCode {
    /// Every code, in numeric order.
    pub const ALL: [Self; 9] = [
        Self::Success,
        Self::Internal,
        Self::Usage,
        Self::BadInput,
        Self::HostLacks,
        Self::GuestFailed,
        Self::RequirementFailed,
        Self::BudgetExhausted,
        Self::Diverged,
    ];

    /// The number that the process exits with.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The code with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.number() == number)
    }

    /// What it means, for `--help` and the manual.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Success => "the stage did its work, or the property holds",
            Self::Internal => "an internal error",
            Self::Usage => "wrong usage",
            Self::BadInput => "an input is unreadable, damaged or breaks its contract",
            Self::HostLacks => "the host lacks something that was asked for (space, /dev/kvm, a helper)",
            Self::GuestFailed => "the guest did not get as far as the stage needs (panic, no setup, no init)",
            Self::RequirementFailed => "a required outcome does not hold",
            Self::BudgetExhausted => "a budget ran out first",
            Self::Diverged => "two runs that must be identical diverged",
        }
    }
}
