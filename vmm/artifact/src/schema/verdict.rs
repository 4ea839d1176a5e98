// SPDX-License-Identifier: AGPL-3.0-or-later
//! The verdict: a class for each bug and for the chain, and the acceptance status that follows.

use serde::{Deserialize, Serialize};

use super::{BugIdentity, ObjectRef, rule};
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
    #[serde(deserialize_with = "rule::present")]
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
    #[serde(deserialize_with = "rule::present")]
    pub corpus: Option<ObjectRef>,
    /// Assertions that should have been reached and never were.
    pub gaps: Vec<String>,
}

impl Document for Verdict {
    const MEDIA: MediaType = MediaType::Verdict;

    fn check(&self) -> Result<(), String> {
        rule::at_most("bugs", self.bugs.len(), BUGS_MAX)?;
        rule::at_most("gaps", self.gaps.len(), GAPS_MAX)?;
        rule::media_of("corpus", self.corpus.as_ref(), MediaType::Corpus)?;
        self.bugs.iter().try_for_each(BugVerdict::check)?;
        let worst = self.bugs.iter().map(|bug| bug.class).max_by_key(|class| class.severity());
        let worst = worst.unwrap_or(Class::NoBugFound);
        if self.class != worst {
            let (class, worst) = (self.class.name(), worst.name());
            return Err(format!("class is {class} with {} bugs, it must be {worst}", self.bugs.len()));
        }
        let allowed = self.statuses();
        if allowed.contains(&self.status) {
            return Ok(());
        }
        let names: Vec<&str> = allowed.iter().map(|status| status.name()).collect();
        Err(format!("status is {}, with these classes it must be {}", self.status.name(), names.join(" or ")))
    }
}

/// Bugs of one verdict.
const BUGS_MAX: usize = 4096;
/// Properties that were never reached.
const GAPS_MAX: usize = 65_536;

/// Classes from best to worst: the class of a chain is that of its worst bug.
const SEVERITY: [Class; 8] = [
    Class::NoBugFound,
    Class::SnapshotBackedReproduced,
    Class::ScheduleOnlyReplayGap,
    Class::MissingSnapshotRef,
    Class::MissingSnapshotArtifact,
    Class::InvalidSnapshotDigest,
    Class::ReplayError,
    Class::SnapshotBackedNotReproduced,
];

impl Class {
    /// How bad it is; the class of a chain is that of its worst bug.
    pub fn severity(self) -> usize {
        SEVERITY.iter().position(|known| *known == self).unwrap_or(SEVERITY.len())
    }

    /// The statuses that a chain of this class can have.
    pub fn statuses(self) -> &'static [Status] {
        match self {
            Self::NoBugFound => &[Status::NoBugCoverageGap, Status::RawLogOnly],
            Self::SnapshotBackedReproduced => &[Status::Accepted, Status::SnapshotBackedProof],
            Self::ScheduleOnlyReplayGap => &[Status::ScheduleOnlyGap, Status::Partial],
            Self::MissingSnapshotRef | Self::MissingSnapshotArtifact | Self::InvalidSnapshotDigest => {
                &[Status::MissingArtifactSkip, Status::Partial]
            }
            Self::ReplayError => &[Status::Partial],
            Self::SnapshotBackedNotReproduced => &[Status::KnownGap, Status::Partial],
        }
    }
}

impl BugVerdict {
    fn check(&self) -> rule::Rule {
        rule::media("bugs.bug", &self.bug, &[MediaType::Bug, MediaType::MinimizedBug])?;
        rule::media_of("bugs.reproduction", self.reproduction.as_ref(), MediaType::Reproduction)?;
        self.identity.check("bugs.identity")?;
        let never_run = matches!(self.class, Class::ScheduleOnlyReplayGap | Class::MissingSnapshotRef);
        if self.class == Class::NoBugFound || (self.reproduction.is_none() && !never_run) {
            let tried = if self.reproduction.is_some() { "a" } else { "no" };
            return Err(format!("bugs.class is {}, which does not fit {tried} reproduction", self.class.name()));
        }
        Ok(())
    }
}

impl Verdict {
    /// The statuses that these bugs can have.
    fn statuses(&self) -> Vec<Status> {
        let all = |classes: &[Class]| self.bugs.iter().all(|bug| classes.contains(&bug.class));
        let minimized = || self.bugs.iter().all(|bug| bug.bug.media_type == MediaType::MinimizedBug);
        let missing = [Class::MissingSnapshotRef, Class::MissingSnapshotArtifact, Class::InvalidSnapshotDigest];
        if self.bugs.is_empty() {
            return vec![if self.corpus.is_some() { Status::NoBugCoverageGap } else { Status::RawLogOnly }];
        }
        if all(&[Class::SnapshotBackedReproduced]) {
            let accepted = (self.corpus.is_some() && minimized()).then_some(Status::Accepted);
            return [Status::SnapshotBackedProof].into_iter().chain(accepted).collect();
        }
        if self.bugs.iter().any(|bug| bug.class == Class::SnapshotBackedReproduced) {
            return vec![Status::Partial];
        }
        vec![match () {
            () if all(&[Class::ScheduleOnlyReplayGap]) => Status::ScheduleOnlyGap,
            () if all(&[Class::SnapshotBackedNotReproduced]) => Status::KnownGap,
            () if all(&missing) => Status::MissingArtifactSkip,
            () => Status::Partial,
        }]
    }
}
