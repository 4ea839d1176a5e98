// SPDX-License-Identifier: AGPL-3.0-or-later
//! The chain of stages behind a descriptor.

use chaoscontrol_artifact::schema::Descriptor;
use chaoscontrol_artifact::{ObjectRef, Store};

use crate::error::EvidenceError;

/// Stages in a chain: a bound against chains that someone forged.
const STEPS_MAX: usize = 4096;

/// One stage of a chain.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it read and wrote.
    pub descriptor: Descriptor,
    /// Its descriptor's object.
    pub reference: ObjectRef,
}

/// The chain that ends with this stage, first stage first.
pub fn walk(store: &Store, last: Step) -> Result<Vec<Step>, EvidenceError> {
    let mut steps = vec![last];
    while let Some(reference) = steps.last().and_then(|step| step.descriptor.previous()) {
        if steps.len() == STEPS_MAX {
            return Err(EvidenceError::Input(format!("the chain has more than {STEPS_MAX} stages")));
        }
        steps.push(Step { descriptor: store.load(&reference)?, reference });
    }
    steps.reverse();
    Ok(steps)
}
