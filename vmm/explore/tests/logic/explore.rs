// SPDX-License-Identifier: AGPL-3.0-or-later
//! What exploration promises, with a subject that needs no machines.

use std::collections::{BTreeMap, BTreeSet};

use crate::fake::{Fake, HORIZON_NS, partition_then_kill};
use chaoscontrol_artifact::document::{decode, encode};
use chaoscontrol_artifact::schema::{BugIdentity, Corpus, Mode, Origin};
use chaoscontrol_artifact::{Digest, MediaType, ObjectRef, U64};
use chaoscontrol_explore::campaign::{Campaign, Settings};
use chaoscontrol_explore::minimize::minimize;
use chaoscontrol_explore::pool::Pool;
use chaoscontrol_explore::round::{self, Ended, Limits};
use chaoscontrol_explore::{Coverage, Factory, Plan, Ran};
use chaoscontrol_fault::{Choice, FaultKind, Mark, RANDOMS_FROM, Rejection, Schedule};

pub fn settings(fake: &Fake, seed: u64) -> Settings {
    Settings {
        seed,
        window: 8,
        shape: fake.shape(HORIZON_NS),
        mode: Mode::Faults,
        labels: vec![("agree: a leader".into(), 1), ("send".into(), 100)],
        without: Vec::new(),
    }
}

fn references() -> [ObjectRef; 4] {
    let types = [MediaType::Run, MediaType::Snapshot, MediaType::Coverage, MediaType::Assertions];
    types.map(|media_type| ObjectRef { digest: Digest::default(), size_bytes: U64(1), media_type })
}

pub fn branches(branches: u64) -> Limits {
    Limits { branches, instructions: None, bugs: None, plateau: None, rejection_is_fatal: false }
}

/// A reference for each bug that a campaign counts.
fn bug_references(campaign: &Campaign) -> Vec<ObjectRef> {
    let reference =
        |bug: u32| ObjectRef { digest: Digest::of(&bug.to_le_bytes()), size_bytes: U64(1), media_type: MediaType::Bug };
    (0..campaign.total().bugs).map(reference).collect()
}

/// Stores a campaign and reads it back.
pub fn stored(campaign: &mut Campaign, known: &BTreeSet<BugIdentity>, settings: Settings) -> Campaign {
    let corpus = campaign.to_corpus(references(), bug_references(campaign));
    let bytes = encode(&corpus).unwrap();
    let coverage = decode(&encode(&campaign.coverage().to_document()).unwrap()).unwrap();
    let assertions = decode(&encode(&campaign.assertions()).unwrap()).unwrap();
    let corpus: Corpus = decode(&bytes).unwrap();
    Campaign::resume(
        corpus,
        Coverage::from_document(coverage),
        assertions,
        known.clone(),
        settings,
        (Schedule::default(), false),
    )
}

pub fn corpus_of(campaign: &mut Campaign) -> Corpus {
    let mut corpus = campaign.to_corpus(references(), bug_references(campaign));
    corpus.rounds.clear();
    corpus
}

#[test]
fn results_do_not_depend_on_the_number_of_threads_or_their_speed() {
    let mut corpora = Vec::new();
    for jobs in [1, 2, 5] {
        let fake = Fake { jitter: jobs > 1, ..Fake::new(partition_then_kill) };
        let mut campaign = Campaign::new(settings(&fake, 3), None);
        let pool = Pool::new(&fake, jobs);
        let (ended, bugs) = round::run(&mut campaign, &pool, branches(150), &mut |_| true).unwrap();
        assert_eq!(ended, Ended::Branches);
        corpora.push((corpus_of(&mut campaign), bugs.iter().map(|bug| bug.found.branch.branch.0).collect::<Vec<_>>()));
    }
    assert!(corpora[0].0.entries.len() > 10);
    assert_eq!(corpora[0], corpora[1]);
    assert_eq!(corpora[0], corpora[2]);
}

#[test]
fn a_campaign_stopped_anywhere_goes_on_as_if_it_had_not_been() {
    let fake = Fake::new(partition_then_kill);
    let pool = Pool::new(&fake, 2);
    let mut straight = Campaign::new(settings(&fake, 11), None);
    round::run(&mut straight, &pool, branches(60), &mut |_| true).unwrap();
    for stop in [1, 7, 8, 33, 59] {
        let mut campaign = Campaign::new(settings(&fake, 11), None);
        let mut known = BTreeSet::new();
        let (ended, bugs) = round::run(&mut campaign, &pool, branches(60), &mut |c| c.next() < stop).unwrap();
        assert_eq!(ended, Ended::Asked);
        known.extend(bugs.into_iter().map(|bug| bug.found.violation.identity));
        let mut campaign = stored(&mut campaign, &known, settings(&fake, 11));
        assert_eq!(campaign.next(), stop);
        round::run(&mut campaign, &pool, branches(60 - stop), &mut |_| true).unwrap();
        assert_eq!(corpus_of(&mut campaign), corpus_of(&mut straight), "stopped after {stop}");
    }
}

#[test]
fn a_planted_bug_is_found_and_reported_once() {
    let fake = Fake::new(partition_then_kill);
    let pool = Pool::new(&fake, 2);
    let mut found = 0;
    for seed in 0..10 {
        let mut campaign = Campaign::new(settings(&fake, seed), None);
        let (_, bugs) = round::run(&mut campaign, &pool, branches(200), &mut |_| true).unwrap();
        assert!(bugs.len() <= 1);
        found += bugs.len();
        if let Some(bug) = bugs.first() {
            assert!(partition_then_kill(&bug.ran.schedule));
        }
    }
    assert!(found >= 7, "{found} of 10 seeds");
}

#[test]
fn branch_zero_has_no_fault_and_a_given_schedule_takes_its_place() {
    let fake = Fake::new(partition_then_kill);
    let campaign = Campaign::new(settings(&fake, 0), None);
    let first = campaign.planned().next().unwrap();
    assert!(first.schedule.is_empty() && first.origin == Origin::Empty);
    let given = campaign.planned().nth(1).unwrap().schedule.clone();
    assert!(!given.is_empty());
    let campaign = Campaign::new(settings(&fake, 0), Some(given.clone()));
    let first = campaign.planned().next().unwrap();
    assert!(first.schedule == given && first.origin == Origin::Given);
}

#[test]
fn every_branch_has_the_given_faults_and_most_have_others_too() {
    let fake = Fake::new(|_| false);
    let given = Campaign::new(settings(&fake, 0), None).planned().nth(1).unwrap().schedule.clone();
    assert!(!given.is_empty());
    let mut campaign = Campaign::new(settings(&fake, 4), Some(given.clone()));
    let pool = Pool::new(&fake, 1);
    let has_given = |schedule: &Schedule| given.events().iter().all(|event| schedule.events().contains(event));
    let mut origins = BTreeSet::new();
    for round in 0..10 {
        let branches_planned: Vec<_> = campaign.planned().cloned().collect();
        for branch in &branches_planned {
            assert!(has_given(&branch.schedule), "branch {}", branch.branch.0);
            origins.insert(format!("{:?}", branch.origin));
            if branch.origin == Origin::Given || branch.origin == Origin::Random {
                let alone = branch.origin == Origin::Given;
                assert_eq!(branch.schedule == given, alone, "branch {}", branch.branch.0);
            }
        }
        round::run(&mut campaign, &pool, branches(8), &mut |_| true).unwrap();
        assert!(corpus_of(&mut campaign).entries.iter().all(|entry| has_given(&entry.schedule)), "round {round}");
    }
    assert!(
        ["Given", "Random", "Mutation", "Splice", "Shape", "Tactic"].iter().all(|origin| origins.contains(*origin)),
        "{origins:?}"
    );
}

#[test]
fn budgets_end_a_round_after_the_same_branch_every_time() {
    for jobs in [1, 4] {
        let fake = Fake { jitter: true, ..Fake::new(partition_then_kill) };
        let pool = Pool::new(&fake, jobs);
        let mut campaign = Campaign::new(settings(&fake, 2), None);
        let limits =
            Limits { branches: 500, instructions: Some(20_000), bugs: None, plateau: None, rejection_is_fatal: false };
        let (ended, _) = round::run(&mut campaign, &pool, limits, &mut |_| true).unwrap();
        assert_eq!(ended, Ended::Instructions);
        let total = *campaign.total();
        assert!((20_000..21_100).contains(&total.instructions.0));
        assert!((19..=20).contains(&total.branches.0));
        let mut campaign = Campaign::new(settings(&fake, 2), None);
        let limits =
            Limits { branches: 500, instructions: None, bugs: Some(1), plateau: None, rejection_is_fatal: false };
        let (ended, bugs) = round::run(&mut campaign, &pool, limits, &mut |_| true).unwrap();
        assert_eq!(ended, Ended::Bugs);
        assert_eq!(campaign.next(), bugs[0].found.branch.branch.0 + 1);
    }
}

#[test]
fn a_rejection_that_is_fatal_ends_the_round_at_the_same_branch_every_time_and_names_the_fault() {
    let mut ends = Vec::new();
    for jobs in [1, 4] {
        let fake = Fake { jitter: true, ..Fake::new(|_| false) };
        let mut campaign = Campaign::new(settings(&fake, 2), None);
        let limits = Limits { rejection_is_fatal: true, ..branches(500) };
        let (ended, _) = round::run(&mut campaign, &Pool::new(&fake, jobs), limits, &mut |_| true).unwrap();
        assert!(matches!(ended, Ended::Rejected(FaultKind::NetworkHeal, _, Rejection::NothingToHeal)), "{ended:?}");
        ends.push(campaign.next());
    }
    assert!(ends[0] < 500 && ends[0] == ends[1], "{ends:?}");
}

#[test]
fn another_seed_begins_a_new_campaign_on_the_same_corpus() {
    let fake = Fake::new(partition_then_kill);
    let pool = Pool::new(&fake, 1);
    let mut campaign = Campaign::new(settings(&fake, 1), None);
    round::run(&mut campaign, &pool, branches(20), &mut |_| true).unwrap();
    let planned: Vec<_> = campaign.planned().cloned().collect();
    let same = stored(&mut campaign, &BTreeSet::new(), settings(&fake, 1));
    assert!(same.planned().eq(&planned));
    let other = stored(&mut campaign, &BTreeSet::new(), settings(&fake, 2));
    assert!(other.planned().all(|branch| !planned.contains(branch)));
    assert_eq!(other.coverage(), campaign.coverage());
    assert_eq!(other.next(), campaign.next());
}

#[test]
fn a_subject_that_panics_is_an_internal_error_and_not_a_hang() {
    let fake = Fake::new(|schedule| !schedule.is_empty() && panic!("planted"));
    let pool = Pool::new(&fake, 2);
    let mut campaign = Campaign::new(settings(&fake, 1), None);
    let error = round::run(&mut campaign, &pool, branches(20), &mut |_| true).unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
}

#[test]
fn a_caller_that_panics_is_heard_and_nothing_hangs() {
    let fake = Fake::new(|_| false);
    let pool = Pool::new(&fake, 2);
    let mut campaign = Campaign::new(settings(&fake, 1), None);
    let run =
        std::panic::AssertUnwindSafe(|| round::run(&mut campaign, &pool, branches(20), &mut |_| panic!("planted")));
    assert!(std::panic::catch_unwind(run).is_err());
}

#[test]
fn kinds_that_are_left_out_are_planned_nowhere() {
    let fake = Fake::new(|_| false);
    let without = [FaultKind::matching("disk_*"), FaultKind::matching("vm_pause")].concat();
    assert!(without.len() > 3);
    let mut campaign = Campaign::new(Settings { without: without.clone(), ..settings(&fake, 5) }, None);
    let pool = Pool::new(&fake, 1);
    round::run(&mut campaign, &pool, branches(200), &mut |_| true).unwrap();
    let corpus = corpus_of(&mut campaign);
    let faults = corpus.faults.keys().map(String::as_str).collect::<Vec<_>>();
    assert!(faults.contains(&"vm_kill"), "{faults:?}");
    for kind in without {
        assert!(corpus.faults.get(kind.name()).is_none_or(|counts| counts.selected.0 == 0), "{}", kind.name());
    }
}

#[test]
fn what_a_tactic_did_is_kept_as_a_schedule_that_runs_the_same_without_it() {
    let fake = Fake::new(|_| false);
    let mut campaign = Campaign::new(settings(&fake, 6), None);
    let mut tactics = BTreeMap::new();
    let pool = Pool::new(&fake, 2);
    for _ in 0..20 {
        tactics.extend(campaign.planned().filter_map(|b| Some((b.branch, (b.tactic.clone()?, b.schedule.clone())))));
        round::run(&mut campaign, &pool, branches(8), &mut |_| true).unwrap();
    }
    let corpus = corpus_of(&mut campaign);
    let leaders = corpus.labels["agree: a leader"];
    assert!(leaders.marks.0 > leaders.most.0 && leaders.branches.0 <= 160, "{leaders:?}");
    let mut longer = 0;
    for entry in &corpus.entries {
        assert!(!entry.moments.is_empty() && entry.moments.is_sorted());
        let Some((_, planned)) = tactics.get(&entry.branch) else { continue };
        longer += u32::from(entry.schedule.len() > planned.len());
        let plan = Plan {
            schedule: entry.schedule.clone(),
            seed: entry.seed.0,
            horizon_ns: HORIZON_NS,
            coverage: true,
            ..Plan::default()
        };
        assert_eq!(pool.run(&plan).unwrap().trace.digest, entry.trace, "branch {}", entry.branch.0);
    }
    assert!(longer > 5, "{longer}");
}

#[test]
fn uniform_planning_looks_at_no_result() {
    let planned = |shows| {
        let fake = Fake::new(shows);
        let mut campaign = Campaign::new(Settings { mode: Mode::Uniform, ..settings(&fake, 8) }, None);
        let first: Vec<_> = campaign.planned().cloned().collect();
        round::run(&mut campaign, &Pool::new(&fake, 1), branches(40), &mut |_| true).unwrap();
        assert!(corpus_of(&mut campaign).entries.iter().skip(1).all(|entry| entry.origin == Origin::Uniform));
        (first, campaign.planned().cloned().collect::<Vec<_>>())
    };
    assert_eq!(planned(|_| false), planned(partition_then_kill));
}

#[test]
fn a_round_ends_when_coverage_stands_still() {
    let fake = Fake::new(|_| false);
    let mut campaign = Campaign::new(Settings { mode: Mode::Uniform, ..settings(&fake, 1) }, None);
    let limits =
        Limits { branches: 5_000, instructions: None, bugs: None, plateau: Some(25), rejection_is_fatal: false };
    let (ended, _) = round::run(&mut campaign, &Pool::new(&fake, 2), limits, &mut |_| true).unwrap();
    let total = campaign.total();
    assert_eq!(ended, Ended::Plateau);
    assert_eq!(total.branches.0 - total.novel.0, 25);
    assert_eq!(limits.reached(&campaign), Some(Ended::Plateau));
}

/// VM 1 is answered a 5 and VM 2 anything.
fn answered(schedule: &Schedule) -> bool {
    let has = |vm: u16, wanted: fn(u64) -> bool| schedule.choices().iter().any(|c| c.vm == vm && wanted(c.value));
    has(1, |value| value % 8 == 5) && has(2, |_| true)
}

#[test]
fn answers_to_choices_find_a_bug_without_faults_and_are_minimized() {
    let mut found = 0;
    for seed in 0..6 {
        let fake = Fake::new(answered);
        let mut campaign = Campaign::new(Settings { mode: Mode::Inputs, ..settings(&fake, seed) }, None);
        let pool = Pool::new(&fake, 2);
        let (_, bugs) = round::run(&mut campaign, &pool, branches(250), &mut |_| true).unwrap();
        let corpus = corpus_of(&mut campaign);
        assert!(corpus.planned.iter().all(|planned| planned.schedule.events().is_empty() && planned.tactic.is_none()));
        let Some(bug) = bugs.first() else { continue };
        found += 1;
        let plan = Plan {
            schedule: bug.ran.schedule.clone(),
            seed: bug.found.branch.seed.0,
            horizon_ns: HORIZON_NS,
            ..Plan::default()
        };
        let identity = &bug.found.violation.identity;
        let minimal = minimize(&pool, &plan, identity, 400, &mut |_, _| ()).unwrap().unwrap();
        let values: Vec<_> = minimal.schedule.choices().iter().map(|choice| (choice.vm, choice.value)).collect();
        assert_eq!(values, [(1, 5), (2, 0)], "seed {seed}");
    }
    assert!(found >= 3, "{found} of 6 seeds");
}

#[test]
fn random_numbers_are_answered_too_once_a_guest_was_seen_to_get_some() {
    let randoms = |mode| {
        let fake = Fake::new(|_| false);
        let mut campaign = Campaign::new(Settings { mode, ..settings(&fake, 4) }, None);
        let planned = |campaign: &Campaign| -> Vec<Choice> {
            campaign.planned().flat_map(|planned| planned.schedule.choices().to_vec()).collect()
        };
        assert!(planned(&campaign).iter().all(|choice| choice.nth < RANDOMS_FROM), "none has been seen yet");
        round::run(&mut campaign, &Pool::new(&fake, 2), branches(40), &mut |_| true).unwrap();
        let planned = planned(&campaign);
        assert!(planned.iter().all(|choice| choice.nth < RANDOMS_FROM + 30), "a VM gets 30 in a branch");
        let of_randoms = planned.iter().filter(|choice| choice.nth >= RANDOMS_FROM).count();
        (of_randoms, planned.len() - of_randoms, corpus_of(&mut campaign).labels.contains_key("get_random"))
    };
    let (of_randoms, of_choices, counted) = randoms(Mode::Inputs);
    assert!(of_randoms > 3 && of_choices > 3 && counted, "{of_randoms} {of_choices}");
    assert_eq!(randoms(Mode::Faults), (0, 0, false));
}

#[test]
fn hybrid_planning_has_faults_and_answers() {
    let fake = Fake::new(|_| false);
    let mut campaign = Campaign::new(Settings { mode: Mode::Hybrid, ..settings(&fake, 3) }, None);
    round::run(&mut campaign, &Pool::new(&fake, 2), branches(60), &mut |_| true).unwrap();
    let both = |planned: &&chaoscontrol_artifact::schema::PlannedBranch| {
        !planned.schedule.choices().is_empty() && (planned.tactic.is_some() || !planned.schedule.events().is_empty())
    };
    assert!(campaign.planned().any(|planned| both(&planned)));
    assert!(campaign.planned().any(|planned| planned.schedule.choices().is_empty()));
}

/// Merges branches that come `closest` to the limit of one numeric assertion and are all alike otherwise; gives what is kept.
fn kept_of(closest: &[u64]) -> Vec<(u64, u32)> {
    let fake = Fake::new(|_| false);
    let mut campaign = Campaign::new(settings(&fake, 3), None);
    let mut subject = fake.subject().unwrap();
    let ran = subject.run(&campaign.plan(campaign.planned().next().unwrap())).unwrap();
    for closest in closest {
        let label = "closer: the queue is bounded";
        let marks = vec![Mark::new(5, 0, label.into())];
        campaign.merge(&Ran { marks, closest: BTreeMap::from([(label.to_owned(), *closest)]), ..ran.clone() });
    }
    let corpus = corpus_of(&mut campaign);
    assert_eq!(
        corpus.labels["closer: the queue is bounded"].closest.map(|closest| closest.0),
        closest.iter().min().copied()
    );
    corpus.entries.iter().map(|entry| (entry.branch.0, entry.new_labels)).collect()
}

#[test]
fn a_branch_that_comes_closer_to_a_limit_than_ever_is_kept() {
    // The first one is the first to do so at all, too.
    assert_eq!(kept_of(&[900, 900, 950, 400, 401, 399]), [(0, 2), (3, 1), (5, 1)]);
}
