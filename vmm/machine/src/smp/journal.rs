// SPDX-License-Identifier: AGPL-3.0-or-later
//! The schedule journal: what every turn of a CPU started from and came to.
//!
//! One record a turn, chained by BLAKE3. A journal is bounded: a turn for which there is no room does not start, so that
//! nothing ever runs without evidence. A run can be held to a journal: each turn must then be the recorded one, from the same
//! state to the same state, and the first that is not poisons the machine. Records of a machine that failed stay readable.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::pages::Digest;
use crate::register_hash::canonical_bytes;
use crate::stop::MachineError;

/// Most records that a journal may be configured to hold: some 100 MiB.
pub const RECORDS_MAX: u32 = 1 << 20;

/// Domains of the hashes.
const STATE_CONTEXT: &str = "chaoscontrol 2026 smp slice state v1";
const CHAIN_CONTEXT: &str = "chaoscontrol 2026 smp journal chain v1";

/// One turn of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRecord {
    /// From 0, without gaps.
    pub sequence: u64,
    /// Which CPU ran.
    pub cpu: u8,
    /// Progress of all CPUs at its start.
    pub start: u64,
    /// Progress of all CPUs at its end.
    pub end: u64,
    /// Identity of the state at its start.
    pub before: Digest,
    /// Identity of the state at its end.
    pub after: Digest,
    /// Over this record and the chain of the one before it.
    pub chain: Digest,
}

/// A turn that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenSlice {
    cpu: u8,
    start: u64,
    before: Digest,
}

/// Why a journal is refused, or what it refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// There is no room for the next turn.
    #[error("the schedule journal is full with {limit} records: take them, or raise smp_schedule_journal_limit")]
    Full {
        /// The limit.
        limit: u32,
    },
    /// The machine keeps no journal.
    #[error("this machine keeps no schedule journal: it has one CPU, or smp_schedule_journal_limit is 0")]
    None,
    /// A record is not there.
    #[error("schedule journal: record {sequence} is missing")]
    Missing {
        /// Its number.
        sequence: u64,
    },
    /// A record stands where another belongs.
    #[error("schedule journal: record {found} stands in the place of {sequence}")]
    Reordered {
        /// The place.
        sequence: u64,
        /// The number of what stands there.
        found: u64,
    },
    /// A record was changed.
    #[error("schedule journal: record {sequence} is not what was recorded")]
    Forged {
        /// Its number.
        sequence: u64,
    },
    /// The run did something else.
    #[error("schedule journal: the run left record {sequence} in its {field}")]
    Divergent {
        /// Its number.
        sequence: u64,
        /// What differs first.
        field: &'static str,
    },
}

fn chain(record: &SliceRecord, previous: &Digest) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key(CHAIN_CONTEXT);
    hasher.update(previous);
    hasher.update(&record.sequence.to_le_bytes());
    hasher.update(&[record.cpu]);
    hasher.update(&record.start.to_le_bytes());
    hasher.update(&record.end.to_le_bytes());
    hasher.update(&record.before);
    hasher.update(&record.after);
    hasher.finalize().into()
}

/// Checks that records are whole, in order and unchanged. Whether they are true only a replay can tell.
pub fn check_records(records: &[SliceRecord]) -> Result<(), JournalError> {
    let mut previous = [0; 32];
    let mut progress = None;
    for (sequence, record) in (0..).zip(records) {
        if record.sequence > sequence && !records.iter().any(|other| other.sequence == sequence) {
            return Err(JournalError::Missing { sequence });
        }
        if record.sequence != sequence {
            return Err(JournalError::Reordered { sequence, found: record.sequence });
        }
        let continuous = progress.is_none_or(|progress| progress == record.start) && record.start <= record.end;
        if !continuous || record.chain != chain(record, &previous) {
            return Err(JournalError::Forged { sequence });
        }
        previous = record.chain;
        progress = Some(record.end);
    }
    Ok(())
}

/// The journal of one machine.
#[derive(Debug)]
pub(crate) struct Journal {
    limit: u32,
    records: Vec<SliceRecord>,
    sequence: u64,
    chain: Digest,
    high_water: u32,
    /// What the run is held to, from the next record on.
    expected: Option<VecDeque<SliceRecord>>,
}

impl Journal {
    pub fn new(limit: u32) -> Self {
        Self { limit, records: Vec::new(), sequence: 0, chain: [0; 32], high_water: 0, expected: None }
    }

    fn has_room(&self) -> bool {
        self.records.len() < self.limit as usize
    }

    /// Completes a record, holds it to the expected one and keeps it.
    fn push(&mut self, open: OpenSlice, end: u64, after: Digest) -> Result<(), JournalError> {
        let OpenSlice { cpu, start, before } = open;
        let mut record = SliceRecord { sequence: self.sequence, cpu, start, end, before, after, chain: [0; 32] };
        record.chain = chain(&record, &self.chain);
        self.chain = record.chain;
        self.sequence += 1;
        self.records.push(record);
        self.high_water = self.high_water.max(self.records.len() as u32);
        let Some(expected) = &mut self.expected else { return Ok(()) };
        let sequence = record.sequence;
        let wanted = expected.pop_front().ok_or(JournalError::Missing { sequence })?;
        let checks = [
            ("end", wanted.end == record.end),
            ("state after", wanted.after == record.after),
            ("chain", wanted.chain == record.chain),
        ];
        match checks.into_iter().find(|(_, same)| !same) {
            Some((field, _)) => Err(JournalError::Divergent { sequence, field }),
            None => Ok(()),
        }
    }

    /// Holds the start of a turn to the expected record.
    fn check_open(&self, open: &OpenSlice) -> Result<(), JournalError> {
        let Some(expected) = &self.expected else { return Ok(()) };
        let sequence = self.sequence;
        let Some(wanted) = expected.front() else { return Err(JournalError::Missing { sequence }) };
        let checks = [
            ("cpu", wanted.cpu == open.cpu),
            ("start", wanted.start == open.start),
            ("state before", wanted.before == open.before),
        ];
        match checks.into_iter().find(|(_, same)| !same) {
            Some((field, _)) => Err(JournalError::Divergent { sequence, field }),
            None => Ok(()),
        }
    }
}

/// How much of a journal's room was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalUse {
    /// Records held now.
    pub records: u32,
    /// Most records held at once.
    pub high_water: u32,
    /// The limit.
    pub limit: u32,
}

impl Machine {
    /// Identity of what the turn of a CPU depends on and changes: its registers, progress and guest time.
    fn slice_state(&self) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key(STATE_CONTEXT);
        hasher.update(&[self.cpu as u8]);
        hasher.update(&self.progress().to_le_bytes());
        hasher.update(&self.now().0.to_le_bytes());
        hasher.update(&canonical_bytes(&self.engine().state()));
        hasher.finalize().into()
    }

    /// Begins the record of the turn that starts here, if there is room for it.
    pub(crate) fn open_slice(&mut self) -> Result<(), MachineError> {
        if self.open_slice.is_some() {
            return Ok(());
        }
        let Some(journal) = &self.journal else { return Ok(()) };
        if !journal.has_room() {
            return Err(JournalError::Full { limit: journal.limit }.into());
        }
        let open = OpenSlice { cpu: self.cpu as u8, start: self.progress(), before: self.slice_state() };
        journal.check_open(&open)?;
        self.open_slice = Some(open);
        Ok(())
    }

    /// Completes the record of the turn that ends here.
    pub(crate) fn close_slice(&mut self) -> Result<(), MachineError> {
        let Some(open) = self.open_slice.take() else { return Ok(()) };
        let (end, after) = (self.progress(), self.slice_state());
        let Some(journal) = &mut self.journal else { return Ok(()) };
        Ok(journal.push(open, end, after)?)
    }

    /// Starts the journal anew; a run that it was held to is over.
    pub fn restart_journal(&mut self) {
        self.open_slice = None;
        self.journal = Self::new_journal(&self.config.smp);
    }

    /// The records since they were last taken. Readable whatever happened to the machine.
    pub fn schedule_journal(&self) -> &[SliceRecord] {
        self.journal.as_ref().map_or(&[], |journal| &journal.records)
    }

    /// Takes the records, which makes room for more.
    pub fn take_schedule_journal(&mut self) -> Vec<SliceRecord> {
        self.journal.as_mut().map(|journal| std::mem::take(&mut journal.records)).unwrap_or_default()
    }

    /// Ends the record of the turn that is not over, as at the end of a recording, and takes all records.
    pub fn close_schedule_journal(&mut self) -> Result<Vec<SliceRecord>, MachineError> {
        self.check_sound()?;
        if let Err(error) = self.close_slice() {
            self.poison(error.to_string());
            return Err(error);
        }
        Ok(self.take_schedule_journal())
    }

    /// How much room the journal has used, if there is one.
    pub fn journal_use(&self) -> Option<JournalUse> {
        let used = |journal: &Journal| JournalUse {
            records: journal.records.len() as u32,
            high_water: journal.high_water,
            limit: journal.limit,
        };
        self.journal.as_ref().map(used)
    }

    /// Holds the machine to a journal from here on, which must be where its recording started (a restore, or power-on).
    pub fn replay_schedule(&mut self, records: Vec<SliceRecord>) -> Result<(), MachineError> {
        self.check_sound()?;
        check_records(&records)?;
        self.restart_journal();
        let Some(journal) = &mut self.journal else { return Err(JournalError::None.into()) };
        journal.expected = Some(records.into());
        Ok(())
    }

    /// Whether every record that the machine was held to has come about.
    pub fn replay_is_complete(&self) -> bool {
        let expected = self.journal.as_ref().and_then(|journal| journal.expected.as_ref());
        expected.is_none_or(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<SliceRecord> {
        let mut journal = Journal::new(8);
        for step in 0..4u64 {
            let open = OpenSlice { cpu: (step % 2) as u8, start: step * 10, before: [step as u8; 32] };
            journal.push(open, step * 10 + 10, [step as u8 + 1; 32]).expect("nothing is expected");
        }
        journal.records
    }

    #[test]
    fn whole_journals_are_accepted_also_in_part() {
        let records = records();
        for length in 0..=records.len() {
            assert_eq!(check_records(&records[..length]), Ok(()));
        }
    }

    #[test]
    fn a_record_that_is_missing_is_named() {
        let mut records = records();
        records.remove(1);
        assert_eq!(check_records(&records), Err(JournalError::Missing { sequence: 1 }));
    }

    #[test]
    fn records_in_another_order_are_refused() {
        let mut records = records();
        records.swap(1, 2);
        assert_eq!(check_records(&records), Err(JournalError::Reordered { sequence: 1, found: 2 }));
    }

    #[test]
    fn a_changed_record_is_refused_whatever_changed() {
        let changes: [fn(&mut SliceRecord); 6] = [
            |record| record.cpu ^= 1,
            |record| record.start += 1,
            |record| record.end += 1,
            |record| record.before[3] ^= 1,
            |record| record.after[31] ^= 1,
            |record| record.chain[0] ^= 1,
        ];
        for change in changes {
            let mut records = records();
            change(&mut records[2]);
            assert_eq!(check_records(&records), Err(JournalError::Forged { sequence: 2 }));
        }
    }
}
