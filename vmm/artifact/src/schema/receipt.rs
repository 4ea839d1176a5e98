// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a receipt adds to a descriptor.

use serde::{Deserialize, Serialize};

use super::{Class, ObjectRef, Parameters, Status, ToolIdentity};

/// One stage of the chain that a receipt binds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiptStage {
    /// The stage's name.
    pub stage: String,
    /// Its descriptor.
    pub descriptor: ObjectRef,
    /// The tool that ran.
    pub tool: ToolIdentity,
    /// Its parameters.
    pub parameters: Parameters,
}

/// Everything that a verdict rests on, by digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// Acceptance status.
    pub status: Status,
    /// The verdict's class.
    pub class: Class,
    /// The guest's kernel.
    pub kernel: Option<ObjectRef>,
    /// The guest's initrd.
    pub initrd: Option<ObjectRef>,
    /// What must be known about the engine to judge what the receipt proves: none where every instruction was counted and
    /// nothing of the host could be seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
    /// The stages, first to last.
    pub stages: Vec<ReceiptStage>,
    /// Every object that the stages read or wrote, and all that those refer to, in order of digests.
    pub artifacts: Vec<ObjectRef>,
}
