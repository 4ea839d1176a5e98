// SPDX-License-Identifier: AGPL-3.0-or-later
//! A store survives its writers: killed at any moment, or out of space.
//!
//! This program starts itself as the writer, `kill writer DIR FROM` or `kill limited DIR BYTES`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use chaoscontrol_artifact::pack::PAGE_BYTES;
use chaoscontrol_artifact::schema::{Descriptor, Link, Parameters, SnapshotManifest, ToolIdentity};
use chaoscontrol_artifact::store::Roots;
use chaoscontrol_artifact::{Bytes, CodedError, Digest, ExitCode, MediaType, ObjectRef, Store, StoreError, U64};

/// Moments at which a writer is killed.
const KILLS: u64 = 60;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("writer") => write_forever(Path::new(&arguments[2]), arguments[3].parse().unwrap()),
        Some("limited") => write_limited(Path::new(&arguments[2]), arguments[3].parse().unwrap()),
        _ => {
            // Stands in for libtest, whose flags (a filter, --list) mean nothing here.
            if arguments.iter().any(|argument| argument == "--list") {
                return println!("kill: test");
            }
            kills_leave_a_valid_store();
            two_writers_of_the_same_objects_do_no_harm();
            a_full_disk_is_said_and_loses_nothing();
            println!("test result: ok. 3 passed");
        }
    }
}

fn page(seed: u64) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    for (index, word) in page.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64).to_le_bytes());
    }
    page
}

/// A snapshot with its descriptor, as a stage writes them. Neighbouring numbers share pages.
fn write_one(store: &Store, number: u64) -> Result<ObjectRef, StoreError> {
    let pages: Vec<[u8; PAGE_BYTES]> = (number..number + 200).map(page).collect();
    let by_digest: BTreeMap<Digest, &[u8; PAGE_BYTES]> = pages.iter().map(|page| (Digest::of(page), page)).collect();
    store.put_pages(&by_digest)?;
    let manifest = SnapshotManifest {
        run: ObjectRef { digest: Digest::of(b"run"), size_bytes: U64(3), media_type: MediaType::Run },
        cluster_ns: U64(number),
        vms: 1,
        state: Bytes(vec![number as u8; 50_000]),
        pages: SnapshotManifest::pages_of(&by_digest.into_keys().collect()),
    };
    let snapshot = store.publish(&manifest)?;
    store.publish(&Descriptor {
        stage: "test".into(),
        tool: ToolIdentity { name: "kill".into(), version: "1.0.0".into(), source: Digest::of(b"") },
        parameters: Parameters::from([("seed".to_owned(), number.into())]),
        inputs: Vec::new(),
        outputs: vec![Link::new("snapshot", snapshot)],
        receipt: None,
    })
}

fn write_forever(root: &Path, from: u64) -> ! {
    let store = Store::open(root, &[]).unwrap();
    let mut number = from;
    loop {
        write_one(&store, number).unwrap();
        number += 100;
    }
}

fn start(arguments: &[&str]) -> Child {
    let this = std::env::current_exe().unwrap();
    Command::new(this).args(arguments).stdout(Stdio::piped()).spawn().unwrap()
}

/// Every object is sound, and whatever a descriptor reaches is there.
fn check(root: &Path) -> usize {
    let store = Store::open(root, &[]).unwrap();
    let verified = store.verify().unwrap();
    assert!(verified.damaged.is_empty(), "{:?}", verified.damaged);
    let mut descriptors = 0;
    for listed in store.list().unwrap() {
        if listed.media_type != Some(MediaType::Descriptor) {
            continue;
        }
        descriptors += 1;
        let media_type = MediaType::Descriptor;
        let reference = ObjectRef { digest: listed.digest, size_bytes: U64(listed.size_bytes), media_type };
        let descriptor: Descriptor = store.load(&reference).unwrap();
        let manifest: SnapshotManifest = store.load(&descriptor.output("snapshot").unwrap()).unwrap();
        let mut pages = 0;
        store.read_pages(manifest.page_digests(), |_, _| pages += 1).unwrap();
        assert_eq!(pages, 200);
    }
    descriptors
}

fn kills_leave_a_valid_store() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("store");
    let path = root.to_str().unwrap();
    let mut descriptors = 0;
    for kill in 0..KILLS {
        // One writer in four begins where the last one was cut off, the others somewhere new.
        let mut child = start(&["writer", path, &(kill / 4 * 1000).to_string()]);
        // The seed of the moments is the number of the kill: 0 to 250 ms, in steps of 37 modulo 251.
        std::thread::sleep(Duration::from_millis(kill * 37 % 251));
        child.kill().unwrap();
        child.wait().unwrap();
        if root.join("format").exists() {
            let now = check(&root);
            assert!(now >= descriptors, "kill {kill}: {descriptors} descriptors became {now}");
            descriptors = now;
        }
    }
    assert!(descriptors > 5, "{descriptors} descriptors: the writers were killed before they wrote anything");
    let collected = Store::gc(&root, &[], &Roots::AllDescriptors, false).unwrap();
    assert_eq!(check(&root), descriptors);
    assert!(std::fs::read_dir(root.join("tmp")).unwrap().next().is_none());
    println!("test kills_leave_a_valid_store ... ok ({KILLS} kills, {descriptors} descriptors, {collected:?})");
}

fn two_writers_of_the_same_objects_do_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let mut children: Vec<Child> = (0..3).map(|_| start(&["writer", path, "0"])).collect();
    std::thread::sleep(Duration::from_millis(700));
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let descriptors = check(directory.path());
    assert!(descriptors > 3, "{descriptors}");
    println!("test two_writers_of_the_same_objects_do_no_harm ... ok ({descriptors} descriptors)");
}

/// Writes until no file may grow past `bytes`, and says on stdout how that ended.
fn write_limited(root: &Path, bytes: u64) {
    let store = Store::open(root, &[]).unwrap();
    write_one(&store, 0).unwrap();
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: both calls change only this process's own limits and signal dispositions.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    let error = write_one(&store, 5000).unwrap_err();
    println!("{} {error}", error.exit_code().number());
}

fn a_full_disk_is_said_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for (index, bytes) in ["0", "100", "20000"].into_iter().enumerate() {
        let root: PathBuf = directory.path().join(index.to_string());
        let output = start(&["limited", root.to_str().unwrap(), bytes]).wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        assert!(text.starts_with(&format!("{} writing ", ExitCode::HostLacks.number())), "{text}");
        assert!(text.contains("free some space"), "{text}");
        assert_eq!(check(&root), 1, "what was stored before is whole");
        // With space again, the stage runs.
        let store = Store::open(&root, &[]).unwrap();
        write_one(&store, 5000).unwrap();
        drop(store);
        assert_eq!(check(&root), 2);
        assert!(std::fs::read_dir(root.join("tmp")).unwrap().next().is_none());
    }
    println!("test a_full_disk_is_said_and_loses_nothing ... ok");
}
