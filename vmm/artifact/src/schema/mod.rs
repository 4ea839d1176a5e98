// SPDX-License-Identifier: AGPL-3.0-or-later
//! Every document, as Rust types.

mod bug;
mod descriptor;
mod environment;
mod explore;
mod profile;
mod receipt;
mod rule;
mod run;
mod snapshot;
mod trace;
mod verdict;

pub use bug::{
    BranchRecord, Bug, BugIdentity, Divergence, HORIZON_NS_MAX, MinimizedBug, Outcome, Reproduction, Start, Violation,
};
pub use descriptor::{Descriptor, ErrorDescriptor, Handoff, Link, Parameter, Parameters, ToolIdentity, read_handoff};
pub use environment::{Environment, KvmModeReport, KvmReport};
pub use explore::{
    AssertionKey, AssertionMoment, AssertionSummary, Assertions, Corpus, CorpusEntry, CoverageMap, ENTRIES_MAX,
    FaultCounts, LABELS_MAX, LabelCounts, MOMENTS_MAX, Mode, Moment, Origin, PlannedBranch, RoundSummary, WINDOW_MAX,
};
pub use profile::{
    CampaignProfile, FaultScheduleProfile, ProfileDocument, ProfileSource, ProfileValues, VmProfile, WorkloadProfile,
};
pub use receipt::{Receipt, ReceiptStage};
pub use run::{
    CoverageConfiguration, DiskConfiguration, EDGES, ENGINES, NetworkConfiguration, RunConfiguration, ScheduleDocument,
    SmpConfiguration,
};
pub use snapshot::SnapshotManifest;
pub use trace::{TraceDocument, TraceRound, TraceVm};
pub use verdict::{BugVerdict, Class, Status, Verdict};

use serde::{Deserialize, Serialize};

use crate::document::MediaType;
use crate::{Digest, U64};

/// How one document names another object: enough to read it safely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectRef {
    /// BLAKE3 of the canonical uncompressed bytes.
    pub digest: Digest,
    /// Number of those bytes.
    pub size_bytes: U64,
    /// What they are.
    pub media_type: MediaType,
}
