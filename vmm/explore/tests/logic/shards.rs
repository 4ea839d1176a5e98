// SPDX-License-Identifier: AGPL-3.0-or-later
//! Shards of a round: each branch runs once, and merging does not depend on any order.

use std::collections::BTreeSet;

use crate::explore::{branches, corpus_of, settings, stored};
use crate::fake::{Fake, partition_then_kill};
use chaoscontrol_artifact::document::encode;
use chaoscontrol_explore::campaign::{Campaign, MergeError};
use chaoscontrol_explore::pool::Pool;
use chaoscontrol_explore::{Coverage, Shard, round};
use chaoscontrol_fault::Stream;

const BRANCHES: u64 = 47;

/// The shards of one round on top of `base`, each stored and read back as another machine would have it.
fn explored(fake: &Fake, seed: u64, base: &Campaign, count: u32) -> Vec<(Shard, Campaign)> {
    let pool = Pool::new(fake, 1);
    let run = |index| {
        let shard = Shard::new(index, count).unwrap();
        let mut campaign = base.clone();
        let range = shard.range(campaign.next(), BRANCHES);
        if shard != Shard::WHOLE {
            campaign.skip_to(range.start);
        }
        let mut known: BTreeSet<_> = campaign.known().clone();
        let (_, bugs) = round::run(&mut campaign, &pool, branches(range.end - range.start), &mut |_| true).unwrap();
        known.extend(bugs.into_iter().map(|bug| bug.found.violation.identity));
        (shard, stored(&mut campaign, &known, settings(fake, seed)))
    };
    (1..=count).map(run).collect()
}

/// A permutation of the shards by a seed.
fn shuffled(mut shards: Vec<(Shard, Campaign)>, seed: u64) -> Vec<(Shard, Campaign)> {
    let mut stream = Stream::named(seed, "shuffle", 0);
    for last in (1..shards.len()).rev() {
        let other = stream.below(last as u64 + 1) as usize;
        shards.swap(last, other);
    }
    shards
}

#[test]
fn merging_does_not_depend_on_the_order_of_the_shards() {
    for seed in 0..12 {
        let fake = Fake::new(partition_then_kill);
        let count = 2 + (seed % 5) as u32;
        let base = Campaign::new(settings(&fake, seed), None);
        let shards = explored(&fake, seed, &base, count);
        let mut straight = Campaign::merge_shards(&base, BRANCHES, shards.clone()).unwrap();
        let expected = encode(&corpus_of(&mut straight)).unwrap();
        for order in 0..4 {
            let shards = shuffled(shards.clone(), seed * 10 + order);
            let mut merged = Campaign::merge_shards(&base, BRANCHES, shards).unwrap();
            assert_eq!(encode(&corpus_of(&mut merged)).unwrap(), expected, "seed {seed}, order {order}");
            assert_eq!(merged.coverage(), straight.coverage());
            assert_eq!(merged.assertions(), straight.assertions());
        }
    }
}

#[test]
fn a_merged_round_has_what_its_shards_have_and_counts_each_branch_once() {
    let fake = Fake::new(partition_then_kill);
    let mut base = Campaign::new(settings(&fake, 5), None);
    for round in 0..3 {
        let shards = explored(&fake, 5, &base, 4);
        let merged = Campaign::merge_shards(&base, BRANCHES, shards.clone()).unwrap();
        let total = merged.total();
        assert_eq!(total.branches.0, (round + 1) * BRANCHES);
        // The fake passes its assertion three times a branch, in every branch.
        let assertion = &merged.assertions().assertions[0];
        assert_eq!((assertion.passes.0, assertion.branches.0), (3 * total.branches.0, total.branches.0));
        let mut coverage = Coverage::default();
        shards.iter().for_each(|(_, shard)| coverage.unite(shard.coverage()));
        assert_eq!(&coverage, merged.coverage());
        let sum = |of: fn(&Campaign) -> u64| shards.iter().map(|(_, shard)| of(shard) - of(&base)).sum::<u64>();
        assert_eq!(total.instructions.0 - base.total().instructions.0, sum(|c| c.total().instructions.0));
        assert_eq!(total.cluster_ns.0 - base.total().cluster_ns.0, sum(|c| c.total().cluster_ns.0));
        let next: Vec<u64> = merged.planned().map(|branch| branch.branch.0).collect();
        assert_eq!(next, (total.branches.0..total.branches.0 + 8).collect::<Vec<_>>());
        base = merged;
    }
    assert!(base.total().entries > 10);
    assert!(!base.known().is_empty(), "the planted bug is found in {} branches", 3 * BRANCHES);
}

#[test]
fn a_round_of_one_shard_is_the_round() {
    let fake = Fake::new(partition_then_kill);
    let base = Campaign::new(settings(&fake, 9), None);
    let shards = explored(&fake, 9, &base, 1);
    let mut whole = base.clone();
    round::run(&mut whole, &Pool::new(&fake, 2), branches(BRANCHES), &mut |_| true).unwrap();
    let mut merged = Campaign::merge_shards(&base, BRANCHES, shards).unwrap();
    assert_eq!(corpus_of(&mut merged), corpus_of(&mut whole));
}

#[test]
fn a_branch_that_is_planned_runs_as_planned_in_whichever_shard() {
    let fake = Fake::new(partition_then_kill);
    let base = Campaign::new(settings(&fake, 4), None);
    let planned: Vec<_> = base.planned().cloned().collect();
    let mut shard = base.clone();
    shard.skip_to(5);
    assert!(shard.planned().take(3).eq(&planned[5..]));
    assert_eq!(shard.planned().count(), planned.len());
    let mut far = base.clone();
    far.skip_to(100);
    assert_eq!(far.planned().next().unwrap().branch.0, 100);
}

#[test]
fn shards_that_are_not_one_round_are_refused_by_name() {
    let fake = Fake::new(partition_then_kill);
    let base = Campaign::new(settings(&fake, 1), None);
    let shards = explored(&fake, 1, &base, 3);
    let shard = |index| Shard::new(index, 3).unwrap();
    let refused = |shards: Vec<(Shard, Campaign)>| Campaign::merge_shards(&base, BRANCHES, shards).unwrap_err();
    assert_eq!(refused(Vec::new()), MergeError::Nothing);
    assert_eq!(refused(shards[..2].to_vec()), MergeError::Missing(shard(3)));
    let twice = [&shards[..], &shards[1..2]].concat();
    assert_eq!(refused(twice), MergeError::Twice(shard(2)));
    let mut mixed = shards.clone();
    mixed[1] = explored(&fake, 1, &base, 2).remove(1);
    assert!(matches!(refused(mixed), MergeError::Count { .. }));
    let mut other = shards.clone();
    other[2] = (shard(3), explored(&fake, 2, &Campaign::new(settings(&fake, 2), None), 3).remove(2).1);
    assert_eq!(refused(other), MergeError::Settings(shard(3)));
    let mut stopped = shards;
    stopped[1].1 = base.clone();
    stopped[1].1.skip_to(20);
    assert_eq!(refused(stopped), MergeError::Stopped { shard: shard(2), at: 20, end: 31 });
}
