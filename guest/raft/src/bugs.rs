// SPDX-License-Identifier: Apache-2.0
//! The planted bugs. Each changes one rule of the protocol and nothing else.

/// Which rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// None: the protocol is correct.
    None,
    /// A new leader commits entries of earlier terms by counting their copies (Raft paper, 5.4.2 and figure 8), and does
    /// not begin its term with an entry of its own.
    Fig8Commit,
    /// A follower whose entries conflict with the leader's keeps them instead of truncating its log (5.3).
    SkipTruncate,
    /// A follower takes entries from a leader of an earlier term (5.1).
    AcceptStaleTerm,
    /// A leader that learns of a later term goes on leading in that term (5.1).
    LeaderNoStepdown,
    /// A node does not look at the vote it gave before it votes (5.2).
    DoubleVote,
    /// A leader commits an entry once it is in its own log, before a majority has it (5.3).
    PrematureCommit,
}

impl Bug {
    /// All with their names in `raft_bug=`.
    pub const ALL: [(&'static str, Self); 7] = [
        ("none", Self::None),
        ("fig8_commit", Self::Fig8Commit),
        ("skip_truncate", Self::SkipTruncate),
        ("accept_stale_term", Self::AcceptStaleTerm),
        ("leader_no_stepdown", Self::LeaderNoStepdown),
        ("double_vote", Self::DoubleVote),
        ("premature_commit", Self::PrematureCommit),
    ];

    /// The bug of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, bug)| bug)
    }
}
