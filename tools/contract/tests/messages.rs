// SPDX-License-Identifier: AGPL-3.0-or-later
//! Good documents pass, and each bad one is refused in exactly the words that stand beside it.
//!
//! `CHAOS_GOLDEN=write cargo test --release -p chaos-contract --test messages` writes the words anew.

mod support;

use std::time::Instant;

use support::{checker, item, samples};

#[test]
fn every_good_document_passes() {
    let samples = samples("good");
    let items: Vec<_> = samples.iter().map(|sample| item(sample.kind, &sample.name, &sample.bytes)).collect();
    let breaches = checker().check(&items).unwrap();
    let texts: Vec<&str> = breaches.iter().map(|breach| breach.text.as_str()).collect();
    assert!(texts.is_empty(), "{}", texts.join("\n"));
    for sample in &samples {
        chaoscontrol_artifact::document::check(sample.kind, &sample.bytes)
            .unwrap_or_else(|error| panic!("{}: {error}", sample.name));
    }
}

#[test]
fn every_bad_document_is_refused_in_the_expected_words() {
    let samples = samples("bad");
    let items: Vec<_> = samples.iter().map(|sample| item(sample.kind, &sample.name, &sample.bytes)).collect();
    let breaches = checker().check(&items).unwrap();
    let mut wrong = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        let Some(breach) = breaches.iter().find(|breach| breach.index == index) else {
            wrong.push(format!("{}: no breach was found", sample.name));
            continue;
        };
        let file = sample.path.to_str().unwrap();
        let stem = file.strip_suffix(".json").or(file.strip_suffix(".cbor.hex")).unwrap();
        let expected = format!("{stem}.expected");
        if std::env::var("CHAOS_GOLDEN").is_ok_and(|value| value == "write") {
            std::fs::write(&expected, format!("{}\n", breach.text)).unwrap();
        }
        let text = std::fs::read_to_string(&expected).unwrap_or_else(|error| panic!("{expected}: {error}"));
        if text != format!("{}\n", breach.text) {
            wrong.push(format!("{expected} says\n{text}found\n{}", breach.text));
        }
        let is_sound = chaoscontrol_artifact::document::check(sample.kind, &sample.bytes).is_ok();
        if is_sound {
            wrong.push(format!("{}: the Rust types accept it", sample.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_call_with_a_small_document_is_quick() {
    let samples = samples("good");
    let sample = samples.iter().find(|sample| sample.name == "good/descriptor/stage.json").unwrap();
    let items = [item(sample.kind, &sample.name, &sample.bytes)];
    let mut fastest = u128::MAX;
    for _ in 0..10 {
        let started = Instant::now();
        assert!(checker().check(&items).unwrap().is_empty());
        fastest = fastest.min(started.elapsed().as_millis());
    }
    // A bound for loaded machines, far above the 30 ms of a quiet one: what it catches is a contract that is slow by nature.
    assert!(fastest < 500, "{fastest} ms");
    println!("a call with one descriptor: {fastest} ms at best");
}
