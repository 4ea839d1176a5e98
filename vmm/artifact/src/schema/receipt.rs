// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a receipt adds to a descriptor.

use serde::{Deserialize, Serialize};

use super::{Class, ObjectRef, Parameters, Status, ToolIdentity, rule};
use crate::document::MediaType;

/// Stages of one receipt.
const STAGES_MAX: usize = 4096;
/// Claims of one receipt.
const CLAIMS_MAX: usize = 256;
/// Artifacts of one receipt.
const ARTIFACTS_MAX: usize = 1 << 20;

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
    #[serde(deserialize_with = "rule::present")]
    pub kernel: Option<ObjectRef>,
    /// The guest's initrd.
    #[serde(deserialize_with = "rule::present")]
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

impl Receipt {
    /// Rules that the types alone do not state.
    pub(crate) fn check(&self) -> rule::Rule {
        rule::media_of("receipt.kernel", self.kernel.as_ref(), MediaType::Kernel)?;
        rule::media_of("receipt.initrd", self.initrd.as_ref(), MediaType::Initrd)?;
        rule::within("the number of receipt.stages", self.stages.len(), 1, STAGES_MAX)?;
        rule::within("the number of receipt.artifacts", self.artifacts.len(), 1, ARTIFACTS_MAX)?;
        rule::at_most("receipt.claims", self.claims.len(), CLAIMS_MAX)?;
        for stage in &self.stages {
            rule::name("receipt.stages.stage", &stage.stage)?;
            rule::tool("receipt.stages.tool", &stage.tool)?;
            rule::parameters("receipt.stages.parameters", &stage.parameters)?;
            rule::media("receipt.stages.descriptor", &stage.descriptor, &[MediaType::Descriptor])?;
        }
        if !self.class.statuses().contains(&self.status) {
            let (class, status) = (self.class.name(), self.status.name());
            return Err(format!("receipt.status is {status}, which does not fit the class {class}"));
        }
        if !self.artifacts.is_sorted_by(|a, b| a.digest < b.digest) {
            return Err("receipt.artifacts must be in order of digests, each once".to_owned());
        }
        let bound = |object: &ObjectRef| self.artifacts.binary_search_by_key(&object.digest, |a| a.digest).is_ok();
        let named = self.kernel.iter().chain(&self.initrd).chain(self.stages.iter().map(|stage| &stage.descriptor));
        match named.into_iter().find(|object| !bound(object)) {
            Some(object) => Err(format!("receipt.artifacts lacks {}, which the receipt names", object.digest)),
            None => Ok(()),
        }
    }
}
