// SPDX-License-Identifier: AGPL-3.0-or-later
//! A receipt holds for the bytes it binds and for nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use chaoscontrol_artifact::schema::{Class, Descriptor, Parameter, Status};
use chaoscontrol_artifact::{CodedError, ExitCode, Store};
use chaoscontrol_evidence::check;

use crate::chain::{Shape, receipt, receipt_of};

fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![root.join("objects"), root.join("packs")];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            if entry.path().is_dir() { waiting.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}

fn checked(root: &Path, receipt: &Descriptor) -> Result<chaoscontrol_evidence::Checked, ExitCode> {
    let store = Store::open_read_only(&[root.to_owned()]).unwrap();
    check(&store, receipt).map_err(|error| error.exit_code())
}

#[test]
fn the_same_chain_gives_the_same_receipt_and_it_holds() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = receipt(one.path());
    assert_eq!(first, receipt(two.path()));
    let body = first.receipt.as_ref().unwrap();
    assert_eq!((body.class, body.status), (Class::SnapshotBackedReproduced, Status::Accepted));
    let stages: Vec<&str> = body.stages.iter().map(|stage| stage.stage.as_str()).collect();
    assert_eq!(stages, ["boot", "explore-round", "minimize", "reproduce", "verdict"]);
    assert!(body.kernel.is_some() && body.initrd.is_some());
    let checked = checked(one.path(), &first).unwrap();
    assert_eq!((checked.stages, checked.pages), (5, 5));
    assert_eq!(checked.objects, body.artifacts.len());
    // Everything but the receipt's own descriptor is bound.
    assert_eq!(Store::open_read_only(&[one.path().to_owned()]).unwrap().list().unwrap().len(), checked.objects + 1);
}

#[test]
fn a_receipt_names_an_engine_that_shows_the_host_and_says_nothing_of_the_exact_one() {
    let exact = tempfile::tempdir().unwrap();
    assert_eq!(receipt(exact.path()).receipt.unwrap().claims, [""; 0]);
    let list = |texts: &[&str]| Parameter::List(texts.iter().map(|text| (*text).to_owned()).collect());
    let engine = [
        ("engine".to_owned(), Parameter::Text("kvm".into())),
        ("engine_leaks".to_owned(), list(&["rdtsc", "rdrand"])),
        ("unfaithful_kvm".to_owned(), list(&["kernel code is emulated"])),
    ];
    let kvm = tempfile::tempdir().unwrap();
    let receipt = receipt_of(kvm.path(), &Shape { engine: engine.into(), ..Shape::default() });
    let wanted = [
        "engine kvm: guest code ran on the host's cpu",
        "engine kvm: the guest can see the host by rdtsc",
        "engine kvm: the guest can see the host by rdrand",
        "kvm was not faithful, and allowed: kernel code is emulated",
    ];
    assert_eq!(receipt.receipt.as_ref().unwrap().claims, wanted, "each once, though two stages say it");
    assert!(checked(kvm.path(), &receipt).is_ok());
    let mut silent = receipt.clone();
    silent.receipt.as_mut().unwrap().claims.clear();
    assert_eq!(checked(kvm.path(), &silent).unwrap_err(), ExitCode::RequirementFailed);
}

#[test]
fn one_flipped_byte_in_any_object_or_page_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let receipt = receipt(root);
    let own =
        chaoscontrol_artifact::Digest::of(&chaoscontrol_artifact::document::encode(&receipt).unwrap()).to_string();
    let mut flipped = 0;
    for path in files(root).into_iter().filter(|path| !path.ends_with(&own)) {
        let sound = fs::read(&path).unwrap();
        for at in (0..sound.len()).step_by(sound.len().div_ceil(25)) {
            let mut broken = sound.clone();
            broken[at] ^= 1;
            fs::write(&path, &broken).unwrap();
            assert_eq!(checked(root, &receipt).unwrap_err(), ExitCode::BadInput, "{}: byte {at}", path.display());
            flipped += 1;
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(checked(root, &receipt).unwrap_err(), ExitCode::BadInput, "{} removed", path.display());
        fs::write(&path, &sound).unwrap();
    }
    assert!(flipped > 200, "{flipped}");
    assert!(checked(root, &receipt).is_ok());
}

#[test]
fn a_receipt_that_says_more_than_its_chain_is_refuted() {
    let directory = tempfile::tempdir().unwrap();
    let sound = receipt(directory.path());
    let forge = |change: &dyn Fn(&mut Descriptor)| {
        let mut forged = sound.clone();
        change(&mut forged);
        checked(directory.path(), &forged).unwrap_err()
    };
    let body = |forged: &mut Descriptor, change: &dyn Fn(&mut chaoscontrol_artifact::schema::Receipt)| {
        change(forged.receipt.as_mut().unwrap());
    };
    let forgeries: [&dyn Fn(&mut Descriptor); 6] = [
        &|forged| body(forged, &|receipt| receipt.status = Status::Partial),
        &|forged| body(forged, &|receipt| receipt.class = Class::NoBugFound),
        &|forged| body(forged, &|receipt| receipt.artifacts.truncate(3)),
        &|forged| body(forged, &|receipt| receipt.stages[0].tool.version = "9".into()),
        &|forged| body(forged, &|receipt| receipt.kernel = receipt.initrd),
        &|forged| forged.parameters = [("seed".into(), Parameter::Text("43".into()))].into(),
    ];
    for (index, forgery) in forgeries.into_iter().enumerate() {
        assert_eq!(forge(forgery), ExitCode::RequirementFailed, "forgery {index}");
    }
    assert_eq!(forge(&|forged| forged.receipt = None), ExitCode::BadInput);
}
