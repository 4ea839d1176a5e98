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
    /// The guests did not get as far as the stage needs.
    #[error("{0}")]
    Guest(String),
    /// A mistake of ours.
    #[error("internal error: {0}")]
    Internal(String),
}

impl CodedError for ExploreError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Store(error) => error.exit_code(),
            Self::Input(_) => ExitCode::BadInput,
            Self::Guest(_) => ExitCode::GuestFailed,
            Self::Internal(_) => ExitCode::Internal,
        }
    }
}
