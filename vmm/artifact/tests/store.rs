// SPDX-License-Identifier: AGPL-3.0-or-later
//! What a store promises about its objects.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use chaoscontrol_artifact::pack::PAGE_BYTES;
use chaoscontrol_artifact::schema::{Descriptor, Link, Parameters, SnapshotManifest, ToolIdentity};
use chaoscontrol_artifact::store::{Roots, StoreError};
use chaoscontrol_artifact::{Bytes, CodedError, Digest, ExitCode, MediaType, ObjectRef, Store, U64};

fn page(seed: u32) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    for (index, word) in page.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&(seed.wrapping_mul(0x9e37_79b9) ^ index as u32).to_le_bytes());
    }
    page
}

fn put_pages(store: &Store, seeds: std::ops::Range<u32>) -> (Vec<Digest>, u64) {
    let pages: Vec<_> = seeds.map(page).collect();
    let by_digest: BTreeMap<Digest, &[u8; PAGE_BYTES]> = pages.iter().map(|page| (Digest::of(page), page)).collect();
    let counts = store.put_pages(&by_digest).unwrap();
    (pages.iter().map(|page| Digest::of(page)).collect(), counts.written)
}

fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            if entry.path().is_dir() { waiting.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}

fn tool() -> ToolIdentity {
    ToolIdentity { name: "test".into(), version: "1.0.0".into(), source: Digest::of(b"source") }
}

fn descriptor(outputs: Vec<Link>) -> Descriptor {
    let (stage, parameters) = ("test".to_owned(), Parameters::new());
    Descriptor { stage, tool: tool(), parameters, inputs: Vec::new(), outputs, receipt: None }
}

fn manifest(store: &Store, digests: &[Digest]) -> ObjectRef {
    let run = ObjectRef { digest: Digest::of(b"run"), size_bytes: U64(3), media_type: MediaType::Run };
    let pages = SnapshotManifest::pages_of(&digests.iter().copied().collect());
    let manifest = SnapshotManifest { run, cluster_ns: U64(5), vms: 1, state: Bytes(vec![1, 2]), pages };
    store.publish(&manifest).unwrap()
}

#[test]
fn what_is_put_is_read_back_and_written_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), &[]).unwrap();
    let bytes = vec![7; 100_000];
    let reference = store.put(MediaType::Kernel, &bytes).unwrap();
    let before = files(directory.path());
    assert_eq!(store.put(MediaType::Kernel, &bytes).unwrap(), reference);
    assert_eq!(files(directory.path()), before);
    assert_eq!(store.read(&reference).unwrap(), bytes);
    assert!(fs::read_dir(directory.path().join("tmp")).unwrap().next().is_none());
}

#[test]
fn a_page_is_kept_once_however_many_snapshots_hold_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), &[]).unwrap();
    let (first, written) = put_pages(&store, 0..200);
    assert_eq!(written, 200);
    let (second, written) = put_pages(&store, 100..230);
    assert_eq!(written, 30);
    assert_eq!(put_pages(&store, 0..230).1, 0);
    drop(store);
    let store = Store::open(directory.path(), &[]).unwrap();
    assert_eq!(put_pages(&store, 0..230).1, 0, "known after opening again");
    let mut seen = BTreeMap::new();
    store
        .read_pages(first.into_iter().chain(second), |digest, page| {
            seen.insert(digest, *page);
        })
        .unwrap();
    assert_eq!(seen.len(), 230);
    assert!(seen.iter().all(|(digest, page)| Digest::of(page) == *digest));
}

#[test]
fn stores_linked_by_from_are_read_and_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new, last) = (directory.path().join("old"), directory.path().join("new"), directory.path().join("last"));
    let store = Store::open(&old, &[]).unwrap();
    let kernel = store.put(MediaType::Kernel, b"kernel").unwrap();
    let (pages, _) = put_pages(&store, 0..10);
    fs::create_dir_all(new.join("from")).unwrap();
    std::os::unix::fs::symlink(&old, new.join("from/boot")).unwrap();
    Store::open(&new, &[]).unwrap();
    let before = files(&old);
    let store = Store::open(&last, &[new]).unwrap();
    assert_eq!(store.read(&kernel).unwrap(), b"kernel");
    assert_eq!(store.put(MediaType::Kernel, b"kernel").unwrap(), kernel);
    assert_eq!(put_pages(&store, 0..10).1, 0);
    store.read_pages(pages, |_, _| ()).unwrap();
    assert_eq!(files(&old), before);
    assert_eq!(store.list().unwrap().len(), 0);
}

#[test]
fn every_flipped_byte_and_every_truncation_of_every_file_is_refused_and_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let store = Store::open(root, &[]).unwrap();
    let (digests, _) = put_pages(&store, 0..70);
    let manifest = manifest(&store, &digests);
    let descriptor = store.publish(&descriptor(vec![Link::new("snapshot", manifest)])).unwrap();
    assert!(store.verify().unwrap().damaged.is_empty());
    drop(store);
    let mut checked = 0;
    for path in files(root)
        .into_iter()
        .filter(|path| path.starts_with(root.join("objects")) || path.starts_with(root.join("packs")))
    {
        let sound = fs::read(&path).unwrap();
        let step = (sound.len() / 40).max(1);
        for at in (0..sound.len()).step_by(step) {
            for broken in [
                {
                    let mut flipped = sound.clone();
                    flipped[at] ^= 0x10;
                    flipped
                },
                sound[..at].to_vec(),
            ] {
                fs::write(&path, &broken).unwrap();
                let store = Store::open(root, &[]).unwrap();
                let damaged = store.verify().unwrap().damaged;
                assert_eq!(damaged.len(), 1, "{}: byte {at} of {}", path.display(), sound.len());
                assert_eq!(damaged[0].0, path);
                let read = store.read(&manifest).and_then(|_| store.read(&descriptor));
                let read = read.and_then(|_| store.read_pages(digests.iter().copied(), |_, _| ()));
                let error = read.unwrap_err();
                assert_eq!(error.exit_code(), ExitCode::BadInput);
                assert!(error.to_string().contains(path.file_name().unwrap().to_str().unwrap()), "{error}");
                checked += 1;
            }
        }
        fs::write(&path, &sound[..sound.len() / 2]).unwrap();
        let store = Store::open(root, &[]).unwrap();
        put_pages(&store, 0..70);
        self::manifest(&store, &digests);
        store.publish(&self::descriptor(vec![Link::new("snapshot", manifest)])).unwrap();
        drop(store);
        assert!(Store::open(root, &[]).unwrap().verify().unwrap().damaged.is_empty(), "{}", path.display());
    }
    assert!(checked > 150, "{checked}");
}

#[test]
fn a_swapped_object_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), &[]).unwrap();
    let one = store.publish(&descriptor(Vec::new())).unwrap();
    let link = Link::new("other", one);
    let two = store.publish(&descriptor(vec![link])).unwrap();
    let path = |reference: &ObjectRef| {
        let name = reference.digest.to_string();
        directory.path().join("objects").join(&name[..2]).join(name)
    };
    fs::copy(path(&two), path(&one)).unwrap();
    assert!(matches!(store.read(&one), Err(StoreError::Damaged { .. } | StoreError::Wrong { .. })));
    // The right bytes under the wrong kind.
    let wrong = ObjectRef { media_type: MediaType::Bug, ..two };
    assert!(matches!(store.load::<Descriptor>(&wrong), Err(StoreError::Mismatch { .. })));
    let wrong = ObjectRef { size_bytes: U64(two.size_bytes.0 + 1), ..two };
    assert!(matches!(store.load::<Descriptor>(&wrong), Err(StoreError::Mismatch { .. })));
}

#[test]
fn a_decompression_bomb_stops_at_the_stated_size() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), &[]).unwrap();
    let zeros = vec![0; 1 << 26];
    let reference = store.put(MediaType::Kernel, &zeros).unwrap();
    let stated = ObjectRef { size_bytes: U64(100), ..reference };
    let error = store.read(&stated).unwrap_err();
    assert!(error.to_string().contains("more than the 100 bytes"), "{error}");
    let stated = ObjectRef { size_bytes: U64(u64::MAX), ..reference };
    assert!(matches!(store.read(&stated), Err(StoreError::Mismatch { .. })));
}

#[test]
fn gc_keeps_what_descriptors_reach_and_deletes_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let store = Store::open(root, &[]).unwrap();
    let (kept_pages, _) = put_pages(&store, 0..10);
    let kept = manifest(&store, &kept_pages);
    store.publish(&descriptor(vec![Link::new("snapshot", kept)])).unwrap();
    let (lost_pages, _) = put_pages(&store, 50..60);
    let lost = manifest(&store, &lost_pages);
    fs::write(root.join("tmp/1-1"), b"left behind").unwrap();
    fs::create_dir(root.join("tmp/somebody's")).unwrap();
    assert!(matches!(Store::gc(root, &[], &Roots::AllDescriptors, false), Err(StoreError::Busy { .. })));
    drop(store);
    let counted = Store::gc(root, &[], &Roots::AllDescriptors, true).unwrap();
    let collected = Store::gc(root, &[], &Roots::AllDescriptors, false).unwrap();
    assert_eq!(counted, collected);
    assert_eq!((collected.kept_objects, collected.objects, collected.packs, collected.temporary), (2, 1, 1, 1));
    let store = Store::open(root, &[]).unwrap();
    store.load::<SnapshotManifest>(&kept).unwrap();
    store.read_pages(kept_pages, |_, _| ()).unwrap();
    assert!(store.read(&lost).is_err() && store.read_pages(lost_pages, |_, _| ()).is_err());
    assert!(store.verify().unwrap().damaged.is_empty());
}

#[test]
fn gc_deletes_nothing_where_it_cannot_know_what_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let store = Store::open(root, &[]).unwrap();
    let (pages, _) = put_pages(&store, 0..10);
    let snapshot = manifest(&store, &pages);
    let kept = store.publish(&descriptor(vec![Link::new("snapshot", snapshot)])).unwrap();
    drop(store);
    let before = files(root);
    let absent = Roots::Digests(vec![kept.digest, Digest::of(b"mistyped")]);
    assert!(matches!(Store::gc(root, &[], &absent, false), Err(StoreError::Missing { .. })));
    let name = kept.digest.to_string();
    let path = root.join("objects").join(&name[..2]).join(name);
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    fs::write(&path, bytes).unwrap();
    for roots in [Roots::AllDescriptors, Roots::Digests(vec![kept.digest])] {
        assert!(Store::gc(root, &[], &roots, false).is_err());
    }
    assert_eq!(files(root).len(), before.len());
}

#[test]
fn reading_where_there_is_no_store_says_what_makes_one() {
    let directory = tempfile::tempdir().unwrap();
    let absent = directory.path().join("absent");
    for place in [directory.path(), &absent] {
        let error = Store::open_read_only(&[place.to_owned()]).unwrap_err().to_string();
        assert!(error.contains("chaos-boot makes one"), "{error}");
    }
    assert!(!absent.exists());
}

#[test]
fn a_directory_that_is_no_store_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("thesis.txt"), b"years of work").unwrap();
    assert!(matches!(Store::open(directory.path(), &[]), Err(StoreError::Format { .. })));
    assert_eq!(files(directory.path()).len(), 1);
    let other = tempfile::tempdir().unwrap();
    Store::open(other.path(), &[]).unwrap();
    fs::write(other.path().join("format"), b"chaoscontrol store 2\n").unwrap();
    assert!(matches!(Store::open(other.path(), &[]), Err(StoreError::Format { .. })));
}

#[test]
fn links_in_a_circle_are_followed_once() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    for (store, other) in [(&one, &two), (&two, &one)] {
        Store::open(store, &[]).unwrap();
        fs::create_dir(store.join("from")).unwrap();
        std::os::unix::fs::symlink(other, store.join("from/other")).unwrap();
    }
    assert_eq!(Store::open(&one, &[]).unwrap().readable().len(), 2);
}
