// SPDX-License-Identifier: AGPL-3.0-or-later
//! Receipts: everything that a verdict rests on, by digest, and the check that it is so.

use std::collections::BTreeMap;

use chaoscontrol_artifact::schema::{
    Class, Descriptor, Link, Parameter, Parameters, Receipt, ReceiptStage, RunConfiguration, SnapshotManifest, Verdict,
};
use chaoscontrol_artifact::{Digest, MediaType, ObjectRef, StageResult, Store, document};

use crate::chain::{Step, walk};
use crate::error::EvidenceError;

/// Artifacts of one receipt: a bound against forged chains.
const ARTIFACTS_MAX: usize = 1 << 20;

/// What a successful check looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Stages.
    pub stages: usize,
    /// Objects read and hashed.
    pub objects: usize,
    /// Pages read and hashed.
    pub pages: u64,
}

/// The receipt of the chain that ends with the verdict stage `previous`.
pub fn derive(store: &Store, previous: (Descriptor, ObjectRef)) -> Result<StageResult, EvidenceError> {
    let (descriptor, reference) = previous;
    let verdict_ref = descriptor.output("verdict").ok_or_else(|| {
        EvidenceError::Input(format!("stage {} wrote no verdict: a receipt needs one", descriptor.stage))
    })?;
    let verdict: Verdict = store.load(&verdict_ref)?;
    let steps = walk(store, Step { descriptor, reference })?;
    let artifacts = closure(store, &steps)?;
    let run = artifacts.values().find(|artifact| artifact.media_type == MediaType::Run);
    let run: Option<RunConfiguration> = match run {
        Some(run) => Some(store.load(run)?),
        None => None,
    };
    let mut parameters = Parameters::new();
    if let Some(seed) = steps.last().and_then(|step| step.descriptor.number("seed")) {
        parameters.insert("seed".to_owned(), seed.into());
    }
    let claims = claims(&steps);
    let stage = |step: Step| ReceiptStage {
        stage: step.descriptor.stage,
        descriptor: step.reference,
        tool: step.descriptor.tool,
        parameters: step.descriptor.parameters,
    };
    let receipt = Receipt {
        status: verdict.status,
        class: verdict.class,
        kernel: run.as_ref().map(|run| run.kernel),
        initrd: run.as_ref().and_then(|run| run.initrd),
        claims,
        stages: steps.into_iter().map(stage).collect(),
        artifacts: artifacts.into_values().collect(),
    };
    let inputs = vec![Link::new("verdict", verdict_ref)];
    Ok(StageResult { parameters, inputs, receipt: Some(receipt), ..StageResult::default() })
}

/// What the stages say about the engine that ran their guests: each thing once, in the order of stages.
fn claims(steps: &[Step]) -> Vec<String> {
    let mut claims: Vec<String> = Vec::new();
    let mut say = |claim: String| {
        if !claims.contains(&claim) {
            claims.push(claim);
        }
    };
    let list = |step: &Step, name: &str| match step.descriptor.parameters.get(name) {
        Some(Parameter::List(list)) => list.clone(),
        _ => Vec::new(),
    };
    for step in steps {
        let engine = match step.descriptor.parameters.get("engine") {
            Some(Parameter::Text(engine)) => engine.as_str(),
            _ => continue,
        };
        say(format!("engine {engine}: guest code ran on the host's cpu"));
        for leak in list(step, "engine_leaks") {
            say(format!("engine {engine}: the guest can see the host by {leak}"));
        }
        for reason in list(step, "unfaithful_kvm") {
            say(format!("kvm was not faithful, and allowed: {reason}"));
        }
    }
    claims
}

/// Everything that the stages read and wrote, and all that those objects refer to. What is missing or damaged refers to
/// nothing here: that it is so is for `check` to say.
fn closure(store: &Store, steps: &[Step]) -> Result<BTreeMap<Digest, ObjectRef>, EvidenceError> {
    let mut artifacts = BTreeMap::new();
    let mut waiting: Vec<ObjectRef> = steps.iter().map(|step| step.reference).collect();
    while let Some(reference) = waiting.pop() {
        if artifacts.insert(reference.digest, reference).is_some() {
            continue;
        }
        if artifacts.len() > ARTIFACTS_MAX {
            return Err(EvidenceError::Input(format!("the chain has more than {ARTIFACTS_MAX} artifacts")));
        }
        // Bytes of someone else's format refer to nothing, and may be large.
        if reference.media_type.encoding() != document::Encoding::Raw
            && let Ok(bytes) = store.read(&reference)
        {
            waiting.extend(document::references(reference.media_type, &bytes));
        }
    }
    Ok(artifacts)
}

/// Checks a receipt against the stores: every artifact is there and sound, every document keeps its rules, every page of every
/// snapshot is there and sound, and the chain gives this very receipt.
pub fn check(store: &Store, descriptor: &Descriptor) -> Result<Checked, EvidenceError> {
    let not = |what: &str| EvidenceError::Input(format!("not a receipt: {what}"));
    let receipt = descriptor.receipt.as_ref().ok_or_else(|| not("it has no receipt field"))?;
    let previous = descriptor.previous().ok_or_else(|| not("it names no previous stage"))?;
    // A snapshot that was missing or damaged when the verdict was made may be so still: that is what the verdict says.
    let excused = matches!(receipt.class, Class::MissingSnapshotArtifact | Class::InvalidSnapshotDigest);
    let mut checked = Checked { stages: receipt.stages.len(), objects: 0, pages: 0 };
    for artifact in &receipt.artifacts {
        match check_artifact(store, artifact) {
            Ok(pages) => {
                checked.objects += 1;
                checked.pages += pages;
            }
            Err(_) if excused && artifact.media_type == MediaType::Snapshot => {}
            Err(error) => return Err(error),
        }
    }
    let last: Descriptor = store.load(&previous)?;
    let derived = derive(store, (last, previous))?;
    let again = derived.receipt.as_ref();
    if again != Some(receipt) {
        let differs = again.map_or("the chain gives none", |again| first_difference(receipt, again));
        return Err(EvidenceError::Refuted(format!("its {differs} is not what the chain gives")));
    }
    if derived.parameters != descriptor.parameters || !descriptor.inputs.ends_with(&derived.inputs) {
        return Err(EvidenceError::Refuted("its parameters or inputs are not what the chain gives".to_owned()));
    }
    Ok(checked)
}

fn first_difference(receipt: &Receipt, again: &Receipt) -> &'static str {
    match () {
        () if receipt.class != again.class => "class",
        () if receipt.status != again.status => "status",
        () if receipt.stages != again.stages => "list of stages",
        () if receipt.artifacts != again.artifacts => "list of artifacts",
        () if receipt.claims != again.claims => "claims",
        () if receipt.kernel != again.kernel => "kernel",
        () => "initrd",
    }
}

/// Reads one artifact to its last page. Gives the number of pages.
fn check_artifact(store: &Store, artifact: &ObjectRef) -> Result<u64, EvidenceError> {
    let bytes = store.audit(artifact)?;
    if artifact.media_type != MediaType::Snapshot {
        return Ok(0);
    }
    let digest = artifact.digest;
    let wrong = |source| EvidenceError::Store(chaoscontrol_artifact::StoreError::Document { digest, source });
    let manifest: SnapshotManifest = document::decode(&bytes).map_err(wrong)?;
    let mut pages = 0;
    store.read_pages(manifest.page_digests(), |_, _| pages += 1)?;
    Ok(pages)
}
