// SPDX-License-Identifier: Apache-2.0
//! Linearizability of one object: Wing and Gong's search, which remembers the configurations it has been in.
//!
//! Calls and returns lie in a list in the order of time. The search takes an operation whose call comes before the first return
//! that is left, if the object can answer it in the present state, takes both of its entries out, and goes on from the beginning; where
//! nothing can be taken it puts the last one back. A configuration is the set of operations taken and the state: one that was seen before
//! leads nowhere new. It is linearizable when every operation that returned is taken.

use crate::history::{Call, Kind, Operation, Outcome};
use crate::model::{Answer, State, Step, translate};
use std::collections::BTreeSet;

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linear {
    /// There is an order.
    Yes,
    /// There is none.
    No,
    /// The budget was used up before.
    Undecided,
}

/// Whether the operations, all on one key, are linearizable. `configurations` bounds the search.
#[must_use]
pub fn linearizable(kind: Kind, operations: &[&Operation], configurations: u64) -> Linear {
    let relevant: Vec<&Operation> = operations.iter().copied().filter(|operation| matters(operation)).collect();
    Search::new(kind, &relevant).run(configurations)
}

/// What failed had no effect, and neither has an open read: both fit anywhere.
fn matters(operation: &Operation) -> bool {
    operation.outcome != Outcome::Failed && !(operation.outcome == Outcome::Unknown && operation.call == Call::Read)
}

/// One end of the list, and the place behind which nothing is.
const HEAD: usize = 0;

#[derive(Clone, Copy)]
struct Entry {
    /// Which operation.
    operation: usize,
    is_call: bool,
    /// Of a call: where its return is, if it has one.
    pair: Option<usize>,
    before: usize,
    behind: usize,
}

struct Search {
    steps: Vec<(Step, Answer)>,
    entries: Vec<Entry>,
    /// Operations that returned and are not taken.
    owed: usize,
    taken: Vec<u64>,
    seen: BTreeSet<(usize, Vec<u64>, State)>,
    /// What was taken, with the state before it.
    path: Vec<(usize, State)>,
    state: State,
}

impl Search {
    fn new(kind: Kind, operations: &[&Operation]) -> Self {
        let mut times = Vec::with_capacity(2 * operations.len());
        for (index, operation) in operations.iter().enumerate() {
            // Of equal times the calls come first: such operations overlap.
            times.push((operation.called, 0, index));
            if let Some(returned) = operation.returned {
                times.push((returned, 1, index));
            }
        }
        times.sort_unstable();
        let head = Entry { operation: 0, is_call: false, pair: None, before: HEAD, behind: HEAD };
        let mut entries = vec![head];
        let mut call_of = vec![0; operations.len()];
        for (_, is_return, operation) in times {
            let place = entries.len();
            let before = place - 1;
            entries[before].behind = place;
            if is_return == 0 {
                call_of[operation] = place;
            } else {
                entries[call_of[operation]].pair = Some(place);
            }
            entries.push(Entry { operation, is_call: is_return == 0, pair: None, before, behind: HEAD });
        }
        entries[HEAD].before = entries.len() - 1;
        Self {
            steps: translate(operations),
            owed: operations.iter().filter(|operation| operation.returned.is_some()).count(),
            taken: vec![0; operations.len().div_ceil(64)],
            entries,
            seen: BTreeSet::new(),
            path: Vec::new(),
            state: State::new(kind),
        }
    }

    fn run(mut self, configurations: u64) -> Linear {
        let mut place = self.entries[HEAD].behind;
        loop {
            if self.owed == 0 {
                return Linear::Yes;
            }
            let entry = self.entries[place];
            if place != HEAD && entry.is_call {
                match self.try_take(place) {
                    true if self.seen.len() as u64 > configurations => return Linear::Undecided,
                    true => place = self.entries[HEAD].behind,
                    false => place = entry.behind,
                }
                continue;
            }
            // A return that must be taken first, or the end of the list: nothing here can be taken.
            let Some((call, state)) = self.path.pop() else { return Linear::No };
            self.put_back(call, state);
            place = self.entries[call].behind;
        }
    }

    /// Takes the operation whose call is at `place`, if the object can answer it and that leads to something new.
    fn try_take(&mut self, place: usize) -> bool {
        let Entry { operation, pair, .. } = self.entries[place];
        let (step, answer) = self.steps[operation];
        let Some(state) = self.state.after(step, answer) else { return false };
        self.taken[operation / 64] |= 1 << (operation % 64);
        if !self.seen.insert(self.configuration(&state)) {
            self.taken[operation / 64] &= !(1 << (operation % 64));
            return false;
        }
        self.path.push((place, std::mem::replace(&mut self.state, state)));
        self.unlink(place);
        if let Some(pair) = pair {
            self.unlink(pair);
            self.owed -= 1;
        }
        true
    }

    /// What was taken, without the full words at the beginning and the empty ones at the end: most of a long history.
    fn configuration(&self, state: &State) -> (usize, Vec<u64>, State) {
        let full = self.taken.iter().take_while(|word| **word == u64::MAX).count();
        let end = self.taken.iter().rposition(|word| *word != 0).map_or(full, |last| full.max(last + 1));
        (full, self.taken[full..end].to_vec(), state.clone())
    }

    fn put_back(&mut self, place: usize, state: State) {
        let Entry { operation, pair, .. } = self.entries[place];
        if let Some(pair) = pair {
            self.link(pair);
            self.owed += 1;
        }
        self.link(place);
        self.taken[operation / 64] &= !(1 << (operation % 64));
        self.state = state;
    }

    fn unlink(&mut self, place: usize) {
        let Entry { before, behind, .. } = self.entries[place];
        self.entries[before].behind = behind;
        self.entries[behind].before = before;
    }

    /// The reverse of [`Search::unlink`], in the reverse order.
    fn link(&mut self, place: usize) {
        let Entry { before, behind, .. } = self.entries[place];
        self.entries[before].behind = place;
        self.entries[behind].before = place;
    }
}
