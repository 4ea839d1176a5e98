// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a stage's work leaves, before a tool makes a descriptor of it.

use crate::exit_code::ExitCode;
use crate::schema::{KvmReport, Link, Parameters, Receipt};

/// The work of one stage.
#[derive(Debug)]
pub struct StageResult {
    /// Everything that changed what it did.
    pub parameters: Parameters,
    /// Objects read besides the descriptor.
    pub inputs: Vec<Link>,
    /// Objects written.
    pub outputs: Vec<Link>,
    /// What guest code ran on, for the environment document.
    pub engine: String,
    /// What KVM is like here, for the environment document; none where no guest ran.
    pub kvm: Option<KvmReport>,
    /// Worker threads.
    pub jobs: u32,
    /// The receipt, for `chaos-receipt`.
    pub receipt: Option<Receipt>,
    /// How it ended; the descriptor is written whatever this is.
    pub code: ExitCode,
    /// A line for stderr that explains the code.
    pub note: Option<String>,
}

impl Default for StageResult {
    fn default() -> Self {
        Self {
            parameters: Parameters::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            engine: "none".to_owned(),
            kvm: None,
            jobs: 1,
            receipt: None,
            code: ExitCode::Success,
            note: None,
        }
    }
}
