// SPDX-License-Identifier: Apache-2.0
//! What must hold, as SDK assertions. They look at what the protocol did, never at which bug is planted, so that every variant
//! has one catalog.

use crate::core::{Core, Notice, Role};
use crate::log::{Index, NodeId, Term};
use crate::machine::Machine;
use chaoscontrol_sdk::{
    SdkError, assert_agree, assert_always, assert_always_less_than_or_equal_to, assert_reachable, assert_sometimes,
    details,
};

/// Histories are compared at every so-manieth index.
const HISTORY_EVERY: Index = 8;

/// What one node's checks remember.
pub struct Checks {
    id: NodeId,
    led_term: Term,
    term: Term,
    commit: Index,
    campaigns: u32,
}

impl Checks {
    /// For a node that starts with this term.
    pub fn new(id: NodeId, term: Term) -> Self {
        Self { id, led_term: 0, term, commit: 0, campaigns: 0 }
    }

    /// A node read its disk.
    pub fn recovered(entries: Index, torn: bool) {
        assert_sometimes!(entries > 0, "a node starts again with its log", details! { entries: entries, torn: torn });
    }

    /// The disk lost flushed data.
    pub fn disk_is_whole(whole: bool) {
        assert_always!(whole, "what was flushed survives");
    }

    /// What the protocol did since the last call.
    pub fn observe(&mut self, core: &Core, notices: &[Notice]) {
        for notice in notices {
            self.observe_notice(core, *notice);
        }
        if core.role() == Role::Leader && core.term() != self.led_term {
            self.led_term = core.term();
            self.campaigns = 0;
            // Election safety (5.2).
            report(assert_agree!("one leader per term", core.term(), self.id));
            assert_reachable!("a leader is elected", details! { node: self.id, term: core.term() });
            assert_sometimes!(core.term() > 1, "leadership changes", details! { node: self.id, term: core.term() });
        }
        assert_always!(
            core.term() >= self.term,
            "a term never goes back",
            details! { from: self.term, to: core.term() }
        );
        assert_always!(
            core.commit() >= self.commit,
            "the commit index never goes back",
            details! { from: self.commit, to: core.commit() }
        );
        assert_always_less_than_or_equal_to!(core.commit(), core.log().last_index(), "what is committed is in the log");
        (self.term, self.commit) = (core.term(), core.commit());
    }

    fn observe_notice(&mut self, core: &Core, notice: Notice) {
        match notice {
            Notice::Campaigned => {
                self.campaigns += 1;
                assert_sometimes!(self.campaigns > 1, "an election ends without a leader");
            }
            Notice::SteppedDown { was_leader } => {
                self.campaigns = 0;
                assert_sometimes!(was_leader, "a leader steps down for a later term");
            }
            Notice::RefusedVote => assert_reachable!("a vote is refused"),
            Notice::Truncated { from, commit } => {
                assert_reachable!("a follower drops entries that conflict with the leader's");
                // Leader completeness (5.4.3): a leader has every committed entry, so it never overwrites one.
                assert_always!(
                    from > commit,
                    "a leader has every committed entry",
                    details! { node: self.id, dropped_from: from, committed: commit }
                );
            }
            Notice::Appended { index, term } => {
                // Log matching (5.3): an index and a term name one entry.
                if let Some(entry) = core.log().get(index) {
                    let key = format!("{index} of term {term}");
                    report(assert_agree!("one entry per index and term", key, format_args!("{:?}", entry.command)));
                }
            }
        }
    }

    /// An entry was applied.
    pub fn applied(&self, core: &Core, machine: &Machine) {
        let index = machine.applied;
        if let Some(entry) = core.log().get(index) {
            // State-machine safety (5.4.3).
            report(assert_agree!("one entry per committed index", index, format_args!("{entry:?}")));
        }
        if index.is_multiple_of(HISTORY_EVERY) {
            report(assert_agree!("one history per committed index", index, machine.history));
        }
        assert_reachable!("an entry is committed");
        assert_sometimes!(core.term() > 1, "entries are committed after a change of leaders");
    }

    /// The client's command was applied.
    pub fn client_served(repeats: u64) {
        assert_reachable!("a client is served");
        assert_sometimes!(repeats > 0, "a client is served after it had to repeat a command");
    }
}

/// Keys and values here are short; only the host's own bounds could refuse them, and it says so itself.
fn report(result: Result<(), SdkError>) {
    if let Err(error) = result {
        println!("chaos-raft: an agreement was not reported: {error}");
    }
}
