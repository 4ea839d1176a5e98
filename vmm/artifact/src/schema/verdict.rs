// SPDX-License-Identifier: AGPL-3.0-or-later
//! The verdict: a class for each bug and for the chain, and the acceptance status that follows.

use serde::{Deserialize, Serialize};

use super::{BugIdentity, ObjectRef};
use crate::document::{Document, MediaType};

macro_rules! names {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $type { $($(#[$variant_doc])* #[serde(rename = $name)] $variant,)+ }

        impl $type {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Every name, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($name,)+];

            /// Its stable name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The value of this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }
        }
    };
}

names! {
    /// What replaying showed. The names are stable.
    Class {
        /// The bug happened again from its snapshot, with the same trace to the last bit.
        SnapshotBackedReproduced = "snapshot_backed_reproduced",
        /// The run from the snapshot was not the recorded one.
        SnapshotBackedNotReproduced = "snapshot_backed_not_reproduced",
        /// The schedule was replayed, but not from the bug's snapshot.
        ScheduleOnlyReplayGap = "schedule_only_replay_gap",
        /// The bug names no snapshot.
        MissingSnapshotRef = "missing_snapshot_ref",
        /// The bug's snapshot is in no store.
        MissingSnapshotArtifact = "missing_snapshot_artifact",
        /// The snapshot's bytes are not those of its name.
        InvalidSnapshotDigest = "invalid_snapshot_digest",
        /// No branch violated anything.
        NoBugFound = "no_bug_found",
        /// The replay could not be made.
        ReplayError = "replay_error",
    }
}

names! {
    /// What the evidence is worth. The names are stable.
    Status {
        /// Complete evidence, and every bug reproduces under a minimal schedule.
        Accepted = "accepted",
        /// The bug reproduces from its snapshot.
        SnapshotBackedProof = "snapshot-backed-proof",
        /// The bug has only its schedule.
        ScheduleOnlyGap = "schedule-only-gap",
        /// No bug was found; worth what its coverage is worth.
        NoBugCoverageGap = "no-bug-coverage-gap",
        /// Replay was not possible for want of a sound snapshot.
        MissingArtifactSkip = "missing-artifact-skip",
        /// Some of the evidence is there.
        Partial = "partial",
        /// The run shows a gap of the product that is documented.
        KnownGap = "known-gap",
        /// The artifacts contradict themselves.
        Invalid = "invalid",
        /// There is nothing but logs.
        RawLogOnly = "raw-log-only",
    }
}

/// The class of one bug.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BugVerdict {
    /// The bug, or the minimized bug.
    pub bug: ObjectRef,
    /// Which bug it is.
    pub identity: BugIdentity,
    /// Its reproduction, if one was tried.
    pub reproduction: Option<ObjectRef>,
    /// Its class.
    pub class: Class,
}

/// The verdict on a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The class of the whole: that of its worst bug.
    pub class: Class,
    /// The acceptance status.
    pub status: Status,
    /// Every bug, in order of discovery.
    pub bugs: Vec<BugVerdict>,
    /// Branches explored, where a round is part of the chain.
    pub corpus: Option<ObjectRef>,
    /// Assertions that should have been reached and never were.
    pub gaps: Vec<String>,
}

impl Document for Verdict {
    const MEDIA: MediaType = MediaType::Verdict;

    fn check(&self) -> Result<(), String> {
        if (self.class == Class::NoBugFound) != self.bugs.is_empty() {
            return Err(format!("class is {} with {} bugs", self.class.name(), self.bugs.len()));
        }
        Ok(())
    }
}
