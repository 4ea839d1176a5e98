// SPDX-License-Identifier: AGPL-3.0-or-later
//! Why nothing can be concluded.

use chaoscontrol_artifact::document::DocumentError;
use chaoscontrol_artifact::{CodedError, ExitCode, StoreError};

/// A failed conclusion.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A document.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// An input that cannot be used.
    #[error("{0}")]
    Input(String),
    /// Sound objects that say something else than the receipt.
    #[error("the receipt does not hold: {0}")]
    Refuted(String),
}

impl CodedError for EvidenceError {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Store(error) => error.exit_code(),
            Self::Document(_) | Self::Input(_) => ExitCode::BadInput,
            Self::Refuted(_) => ExitCode::RequirementFailed,
        }
    }
}
