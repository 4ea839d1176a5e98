// SPDX-License-Identifier: AGPL-3.0-or-later
//! Why a stage's work cannot be done.

use chaoscontrol_artifact::{CodedError, ExitCode, StoreError};

/// A failed stage.
#[derive(Debug, thiserror::Error)]
pub enum ExploreError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An input that cannot be used.
    #[error("{0}")]
    Input(String),
    /// A run left the turns that it was held to, or they are no recording.
    #[error("{0}")]
    Turns(String),
    /// The guests did not get as far as the stage needs.
    #[error("{0}")]
    Guest(String),
    /// The host lacks what was asked for.
    #[error("{0}")]
    HostLacks(String),
    /// Someone waited long enough; what was waited for may be fine.
    #[error("{0}")]
    Watchdog(String),
    /// A mistake of ours.
    #[error("internal error: {0}")]
    Internal(String),
}

impl CodedError for ExploreError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Store(error) => error.exit_code(),
            Self::Input(_) | Self::Turns(_) => ExitCode::BadInput,
            Self::Guest(_) => ExitCode::GuestFailed,
            Self::HostLacks(_) => ExitCode::HostLacks,
            Self::Watchdog(_) => ExitCode::BudgetExhausted,
            Self::Internal(_) => ExitCode::Internal,
        }
    }
}
