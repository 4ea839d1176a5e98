// SPDX-License-Identifier: AGPL-3.0-or-later
//! A chain whose round was spread over shards: evidence covers all of them.

use chaoscontrol_artifact::schema::{Descriptor, Link};
use chaoscontrol_artifact::{ExitCode, ObjectRef, StageResult, Store};
use chaoscontrol_evidence::{Step, check, derive, judge, walk};

use crate::chain::publish;

fn explored(store: &Store, boot: ObjectRef, console: &[u8]) -> ObjectRef {
    let console = store.put(chaoscontrol_artifact::MediaType::Console, console).unwrap();
    let outputs = vec![Link::new("console", console)];
    publish(store, "explore-round", Some(boot), StageResult { outputs, ..StageResult::default() }).1
}

fn merged(store: &Store) -> (Descriptor, ObjectRef) {
    let boot = publish(store, "boot", None, StageResult::default()).1;
    let one = explored(store, boot, b"one");
    let two = explored(store, boot, b"two");
    let inputs = vec![Link::new("shard", two)];
    publish(store, "merge", Some(one), StageResult { inputs, ..StageResult::default() })
}

#[test]
fn a_chain_holds_every_shard_behind_a_merge_once_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    let (descriptor, reference) = merged(&store);
    let expected: Vec<ObjectRef> = descriptor.before().chain([reference]).collect();
    let steps = walk(&store, Step { descriptor, reference }).unwrap();
    let stages: Vec<&str> = steps.iter().map(|step| step.descriptor.stage.as_str()).collect();
    assert_eq!(stages, ["boot", "explore-round", "explore-round", "merge"]);
    assert_eq!(steps[1..].iter().map(|step| step.reference).collect::<Vec<_>>(), expected);
}

#[test]
fn a_receipt_binds_what_every_shard_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), &[]).unwrap();
    let judged = judge(&store, merged(&store), None).unwrap();
    let (merge, reference) = merged(&store);
    let verdict = publish(&store, "verdict", Some(reference), judged);
    let result = derive(&store, verdict.clone()).unwrap();
    let receipt = publish(&store, "receipt", Some(verdict.1), result).0;
    assert!(check(&store, &receipt).is_ok());
    let bound = receipt.receipt.as_ref().unwrap();
    assert_eq!(bound.stages.len(), 5);
    let second: Descriptor = store.load(&merge.before().nth(1).unwrap()).unwrap();
    let console = second.outputs[0].object;
    assert!(bound.artifacts.contains(&console));
    let name = console.digest.to_string();
    std::fs::remove_file(folder.path().join(format!("objects/{}/{name}.zst", &name[..2]))).unwrap();
    let error = check(&store, &receipt).unwrap_err();
    assert_eq!(chaoscontrol_artifact::CodedError::exit_code(&error), ExitCode::BadInput);
}
