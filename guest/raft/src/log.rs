// SPDX-License-Identifier: Apache-2.0
//! The log in memory, and what is in it. Indexes count from 1; index 0 stands for "before the first entry", with term 0.

/// Index of a node in its cluster.
pub type NodeId = u32;
/// Place in the log.
pub type Index = u64;
/// Election term.
pub type Term = u64;

/// What an entry tells the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Nothing: how a leader begins its term.
    Nothing,
    /// Adds a value. A client's numbers go up by one; the machine skips those it has seen.
    Add {
        /// Which client.
        client: u32,
        /// The client's number for the command.
        number: u64,
        /// What to add.
        value: u64,
    },
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Term of the leader that made it.
    pub term: Term,
    /// What it says.
    pub command: Command,
}

/// The entries.
#[derive(Clone, Debug, Default)]
pub struct Log {
    entries: Vec<Entry>,
}

impl Log {
    /// Index of the last entry.
    pub fn last_index(&self) -> Index {
        self.entries.len() as Index
    }

    /// Term of the last entry.
    pub fn last_term(&self) -> Term {
        self.entries.last().map_or(0, |entry| entry.term)
    }

    /// Term at an index; none past the end.
    pub fn term_at(&self, index: Index) -> Option<Term> {
        if index == 0 { Some(0) } else { self.get(index).map(|entry| entry.term) }
    }

    /// The entry at an index.
    pub fn get(&self, index: Index) -> Option<&Entry> {
        self.entries.get(usize::try_from(index.checked_sub(1)?).ok()?)
    }

    /// At most `count` entries from an index on.
    pub fn slice(&self, from: Index, count: usize) -> &[Entry] {
        let start = (from.max(1) - 1).min(self.last_index()) as usize;
        &self.entries[start..self.entries.len().min(start + count)]
    }

    /// Adds an entry and gives its index.
    pub fn push(&mut self, entry: Entry) -> Index {
        self.entries.push(entry);
        self.last_index()
    }

    /// Drops the entries from an index on.
    pub fn truncate(&mut self, from: Index) {
        self.entries.truncate((from.max(1) - 1) as usize);
    }

    /// Where the leader should go on after a mismatch at `index`: before the whole term that is there.
    pub fn before_term_of(&self, index: Index) -> Index {
        let Some(term) = self.term_at(index) else { return self.last_index() };
        let mut at = index;
        while at > 0 && self.term_at(at) == Some(term) {
            at -= 1;
        }
        at
    }
}
