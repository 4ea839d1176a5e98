// SPDX-License-Identifier: AGPL-3.0-or-later
//! How a tool fails: a code and one line that says what, where and what to do.

use std::error::Error;
use std::fmt;

use chaoscontrol_artifact::{CodedError, ExitCode};

/// A failed tool.
#[derive(Debug)]
pub struct Failure {
    /// The process's exit code.
    pub code: ExitCode,
    /// `what: why`, one line, without the tool's name.
    pub message: String,
}

/// Results of tools.
pub type Failures<T> = Result<T, Failure>;

impl Failure {
    /// A failure with this code.
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Wrong usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, message)
    }

    /// A bad input.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(ExitCode::BadInput, message)
    }

    /// An error with its chain of sources, each printed once.
    pub fn from_error(code: ExitCode, error: &dyn Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            let text = inner.to_string();
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = inner.source();
        }
        Self { code, message }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: CodedError> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::from_error(error.exit_code(), &error)
    }
}

/// Says what was being done when something failed.
pub trait FailureExt<T> {
    /// Puts `what` before the message.
    fn context(self, what: &str) -> Failures<T>;
}

impl<T, E: Into<Failure>> FailureExt<T> for Result<T, E> {
    fn context(self, what: &str) -> Failures<T> {
        self.map_err(|error| {
            let Failure { code, message } = error.into();
            Failure { code, message: format!("{what}: {message}") }
        })
    }
}
