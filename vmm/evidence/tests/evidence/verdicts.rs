// SPDX-License-Identifier: AGPL-3.0-or-later
//! One row a class and a status.

use chaoscontrol_artifact::schema::{Class, Divergence, Outcome, Start, Status, Verdict};
use chaoscontrol_artifact::{ExitCode, StageResult, Store, U64};
use chaoscontrol_evidence::{judge, status_of};

use crate::chain::{Shape, publish, up_to_verdict, verdict};

fn diverged() -> Outcome {
    let (expected, found) = (String::new(), String::new());
    let what = "registers".to_owned();
    Outcome::Diverged(Divergence { round: U64(1), cluster_ns: U64(1), vm: Some(0), what, expected, found })
}

#[test]
fn every_outcome_has_its_class_and_status() {
    let one = |outcome, start| Shape { bugs: vec![(outcome, start)], ..Shape::default() };
    let none = || Shape { bugs: Vec::new(), ..Shape::default() };
    let rows = [
        (one(Outcome::Reproduced, Start::Snapshot), Class::SnapshotBackedReproduced, Status::Accepted),
        (one(Outcome::Reproduced, Start::Boot), Class::ScheduleOnlyReplayGap, Status::ScheduleOnlyGap),
        (one(diverged(), Start::Snapshot), Class::SnapshotBackedNotReproduced, Status::KnownGap),
        (one(diverged(), Start::Boot), Class::ReplayError, Status::Partial),
        (one(Outcome::MissingSnapshotRef, Start::Snapshot), Class::MissingSnapshotRef, Status::MissingArtifactSkip),
        (
            one(Outcome::MissingSnapshotArtifact, Start::Snapshot),
            Class::MissingSnapshotArtifact,
            Status::MissingArtifactSkip,
        ),
        (
            one(Outcome::InvalidSnapshotDigest("x".into()), Start::Snapshot),
            Class::InvalidSnapshotDigest,
            Status::MissingArtifactSkip,
        ),
        (one(Outcome::Error("x".into()), Start::Snapshot), Class::ReplayError, Status::Partial),
        (none(), Class::NoBugFound, Status::NoBugCoverageGap),
        (Shape { explored: false, ..none() }, Class::NoBugFound, Status::RawLogOnly),
        (Shape { minimal: false, ..Shape::default() }, Class::SnapshotBackedReproduced, Status::SnapshotBackedProof),
        (Shape { explored: false, ..Shape::default() }, Class::SnapshotBackedReproduced, Status::SnapshotBackedProof),
        (Shape { reproduced: false, ..Shape::default() }, Class::ScheduleOnlyReplayGap, Status::ScheduleOnlyGap),
        (
            Shape { reproduced: false, snapshot: false, ..Shape::default() },
            Class::MissingSnapshotRef,
            Status::MissingArtifactSkip,
        ),
    ];
    for (index, (shape, class, status)) in rows.into_iter().enumerate() {
        let verdict = verdict(&shape);
        assert_eq!((verdict.class, verdict.status), (class, status), "row {index}");
    }
    assert_eq!(status_of(&[(Class::NoBugFound, true)], true), Status::Invalid);
}

#[test]
fn a_bug_that_a_later_stage_left_out_is_still_a_bug() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), &[]).unwrap();
    let (_, reference) = up_to_verdict(&store, &Shape { reproduced: false, minimal: false, ..Shape::default() });
    let left_out = publish(&store, "export-bugs", Some(reference), StageResult::default());
    let result = judge(&store, left_out, Some(Class::NoBugFound)).unwrap();
    assert_eq!(result.code, ExitCode::RequirementFailed);
    let verdict: Verdict = store.load(&result.outputs[0].object).unwrap();
    assert_eq!((verdict.class, verdict.bugs.len()), (Class::ScheduleOnlyReplayGap, 1));
}

#[test]
fn the_worst_bug_gives_the_class() {
    let shape =
        Shape { bugs: vec![(Outcome::Reproduced, Start::Snapshot), (diverged(), Start::Snapshot)], ..Shape::default() };
    let verdict = verdict(&shape);
    assert_eq!((verdict.class, verdict.status), (Class::SnapshotBackedNotReproduced, Status::Partial));
    assert_eq!(verdict.bugs.len(), 2);
    assert_eq!(verdict.bugs[0].class, Class::SnapshotBackedReproduced);
    assert_eq!(verdict.gaps, ["a leader was replaced"]);
}

#[test]
fn a_required_class_that_does_not_hold_ends_with_its_code_and_still_leaves_a_verdict() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), &[]).unwrap();
    let last = up_to_verdict(&store, &Shape::default());
    let result = judge(&store, last.clone(), Some(Class::NoBugFound)).unwrap();
    assert_eq!(result.code, ExitCode::RequirementFailed);
    assert_eq!(result.outputs.len(), 1);
    let result = judge(&store, last, Some(Class::SnapshotBackedReproduced)).unwrap();
    assert_eq!(result.code, ExitCode::Success);
}

#[test]
fn names_are_stable() {
    let classes = [
        "snapshot_backed_reproduced",
        "snapshot_backed_not_reproduced",
        "schedule_only_replay_gap",
        "missing_snapshot_ref",
        "missing_snapshot_artifact",
        "invalid_snapshot_digest",
        "no_bug_found",
        "replay_error",
    ];
    assert_eq!(Class::ALL.iter().map(|class| class.name()).collect::<Vec<_>>(), classes);
    let statuses = [
        "accepted",
        "snapshot-backed-proof",
        "schedule-only-gap",
        "no-bug-coverage-gap",
        "missing-artifact-skip",
        "partial",
        "known-gap",
        "invalid",
        "raw-log-only",
    ];
    assert_eq!(Status::ALL.iter().map(|status| status.name()).collect::<Vec<_>>(), statuses);
}
