// SPDX-License-Identifier: AGPL-3.0-or-later
//! Putting the shards of a round together.

use std::collections::{BTreeMap, BTreeSet};

use chaoscontrol_artifact::U64;
use chaoscontrol_artifact::schema::{
    AssertionKey, AssertionMoment, AssertionSummary, CorpusEntry, LABELS_MAX, LabelCounts,
};
use chaoscontrol_fault::StageCounts;

use super::{Campaign, ENTRIES_KEPT};
use crate::shard::Shard;

/// Why shards are not those of one round.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// There is nothing to merge.
    #[error("there is no shard to merge")]
    Nothing,
    /// The shards disagree on how many they are.
    #[error("shard {one} and shard {other} are not of one round")]
    Count {
        /// One of them.
        one: Shard,
        /// One that differs.
        other: Shard,
    },
    /// One was given twice.
    #[error("shard {0} was given twice")]
    Twice(Shard),
    /// One was not given.
    #[error("shard {0} is missing: all shards of a round merge at once")]
    Missing(Shard),
    /// A shard explored with another seed, window or horizon.
    #[error("shard {0} explored with another seed, window, horizon or cluster than shard 1")]
    Settings(Shard),
    /// A shard did not run all of its branches.
    #[error(
        "shard {shard} stopped before branch {at}, its part of the round ends before {end}: run it again without a budget"
    )]
    Stopped {
        /// Which.
        shard: Shard,
        /// Its next branch.
        at: u64,
        /// Where it should have got to.
        end: u64,
    },
}

impl Campaign {
    /// Leaves the branches before `first` to other shards. A branch that is planned already runs as planned.
    pub fn skip_to(&mut self, first: u64) {
        while self.planned.front().is_some_and(|branch| branch.branch.0 < first) {
            self.planned.pop_front();
        }
        self.total.branches.0 = first;
        self.fill();
    }

    /// The campaign that has all that the shards of one round of `branches` branches have, on top of `base`, which each of them
    /// began with. The order in which they are given does not matter. One shard that is the whole round is given back as it is.
    ///
    /// Counts are those of the base and what each shard added. Entries keep the novelty that they had in their shard. The next
    /// branches are planned from all that is merged.
    pub fn merge_shards(base: &Self, branches: u64, shards: Vec<(Shard, Self)>) -> Result<Self, MergeError> {
        let shards = in_order(base, branches, shards)?;
        if let [only] = &shards[..] {
            return Ok(only.clone());
        }
        let mut merged = base.clone();
        merged.settings = shards[0].settings.clone();
        merged.planned.clear();
        for shard in &shards {
            merged.coverage.unite(&shard.coverage);
            add_assertions(&mut merged.assertions, &base.assertions, &shard.assertions);
            for (kind, counts) in &shard.faults {
                let before = base.faults.get(kind).copied().unwrap_or_default();
                add_counts(merged.faults.entry(*kind).or_default(), &before, counts);
            }
            merge_labels(&mut merged.labels, &base.labels, &shard.labels);
            merged.total.novel = merged.total.novel.max(shard.total.novel);
            merged.known.extend(shard.known.iter().cloned());
            add(&mut merged.total.instructions.0, base.total.instructions.0, shard.total.instructions.0);
            add(&mut merged.total.cluster_ns.0, base.total.cluster_ns.0, shard.total.cluster_ns.0);
        }
        merged.entries = entries(base, &shards);
        merged.total.branches.0 = base.next().saturating_add(branches);
        merged.total.edges = merged.coverage.edges();
        merged.total.entries = merged.entries.len() as u32;
        merged.total.bugs = merged.known.len() as u32;
        merged.fill();
        Ok(merged)
    }
}

/// The shards from the first to the last, if they are all of one round that followed `base`.
fn in_order(base: &Campaign, branches: u64, mut shards: Vec<(Shard, Campaign)>) -> Result<Vec<Campaign>, MergeError> {
    shards.sort_by_key(|(shard, _)| *shard);
    let (first, settings) = match shards.first() {
        Some((shard, campaign)) => (*shard, campaign.settings.clone()),
        None => return Err(MergeError::Nothing),
    };
    if let Some((other, _)) = shards.iter().find(|(shard, _)| shard.count() != first.count()) {
        return Err(MergeError::Count { one: first, other: *other });
    }
    let given: BTreeSet<Shard> = shards.iter().map(|(shard, _)| *shard).collect();
    if let Some(pair) = shards.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(MergeError::Twice(pair[0].0));
    }
    let all = (1..=first.count()).filter_map(|index| Shard::new(index, first.count()));
    if let Some(missing) = all.clone().find(|shard| !given.contains(shard)) {
        return Err(MergeError::Missing(missing));
    }
    for (shard, campaign) in &shards {
        if campaign.settings != settings {
            return Err(MergeError::Settings(*shard));
        }
        let (at, end) = (campaign.next(), shard.range(base.next(), branches).end);
        // A whole round may have stopped anywhere: nobody else's branches follow it.
        if at != end && shard.count() > 1 {
            return Err(MergeError::Stopped { shard: *shard, at, end });
        }
    }
    Ok(shards.into_iter().map(|(_, campaign)| campaign).collect())
}

/// The base's entries and each shard's own, in order of branches; past the bound the least novel ones go.
fn entries(base: &Campaign, shards: &[Campaign]) -> Vec<CorpusEntry> {
    let mut entries = base.entries.clone();
    for (entry, before) in entries.iter_mut().zip(&base.entries) {
        let of_shard = |shard: &Campaign| {
            let same = shard.entries.binary_search_by_key(&before.branch, |entry| entry.branch);
            same.map_or(0, |index| shard.entries[index].grown.saturating_sub(before.grown))
        };
        entry.grown = shards.iter().map(of_shard).fold(before.grown, u32::saturating_add);
    }
    for shard in shards {
        entries.extend(shard.entries.iter().filter(|entry| entry.branch >= base.total.branches).cloned());
    }
    let surplus = entries.len().saturating_sub(ENTRIES_KEPT);
    let mut by_novelty: Vec<_> = entries.iter().map(|e| (e.new_edges, e.new_counts, e.branch)).collect();
    by_novelty.sort_unstable();
    let least: BTreeSet<U64> = by_novelty.into_iter().take(surplus).map(|(_, _, branch)| branch).collect();
    entries.retain(|entry| !least.contains(&entry.branch));
    entries
}

type Assertions = BTreeMap<AssertionKey, AssertionSummary>;

fn add_assertions(merged: &mut Assertions, base: &Assertions, shard: &Assertions) {
    for (key, assertion) in shard {
        let nothing = || AssertionSummary { passes: U64(0), failures: U64(0), branches: U64(0), ..assertion.clone() };
        let before = base.get(key).cloned().unwrap_or_else(nothing);
        let sum = merged.entry(key.clone()).or_insert_with(nothing);
        sum.first_pass = earlier(sum.first_pass, assertion.first_pass);
        sum.first_failure = earlier(sum.first_failure, assertion.first_failure);
        sum.must_hit |= assertion.must_hit;
        add(&mut sum.passes.0, before.passes.0, assertion.passes.0);
        add(&mut sum.failures.0, before.failures.0, assertion.failures.0);
        add(&mut sum.branches.0, before.branches.0, assertion.branches.0);
    }
}

/// The one of the earlier branch; what was before any branch comes first.
fn earlier(one: Option<AssertionMoment>, other: Option<AssertionMoment>) -> Option<AssertionMoment> {
    one.into_iter().chain(other).min()
}

fn merge_labels(
    merged: &mut BTreeMap<String, LabelCounts>,
    base: &BTreeMap<String, LabelCounts>,
    shard: &BTreeMap<String, LabelCounts>,
) {
    for (label, counts) in shard {
        if merged.len() >= LABELS_MAX && !merged.contains_key(label) {
            continue;
        }
        let before = base.get(label).copied().unwrap_or_default();
        let sum = merged.entry(label.clone()).or_default();
        add(&mut sum.branches.0, before.branches.0, counts.branches.0);
        add(&mut sum.marks.0, before.marks.0, counts.marks.0);
        sum.most = sum.most.max(counts.most);
        sum.closest = sum.closest.into_iter().chain(counts.closest).min();
    }
}

fn add_counts(merged: &mut StageCounts, base: &StageCounts, shard: &StageCounts) {
    add(&mut merged.selected, base.selected, shard.selected);
    add(&mut merged.applicable, base.applicable, shard.applicable);
    add(&mut merged.rejected, base.rejected, shard.rejected);
    add(&mut merged.applied, base.applied, shard.applied);
    add(&mut merged.failed, base.failed, shard.failed);
    add(&mut merged.observed, base.observed, shard.observed);
}

/// Adds what a shard added to a count.
fn add(merged: &mut u64, before: u64, after: u64) {
    *merged = merged.saturating_add(after.saturating_sub(before));
}
