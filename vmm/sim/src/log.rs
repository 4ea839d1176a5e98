// SPDX-License-Identifier: AGPL-3.0-or-later
//! What became of each copy of a frame, for people who look at a replay. It is kept beside the state: nothing is decided by it,
//! and no snapshot holds it.

use std::collections::{BTreeMap, VecDeque};

/// Copies that are kept; older ones are only counted. Some minutes of a chatty cluster.
pub const COPIES_MAX: usize = 65_536;

/// First bytes of a frame that are kept: Ethernet, IPv6 and TCP headers with their usual options.
pub const HEAD_BYTES: usize = 96;

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFate {
    /// It is on its way.
    InFlight,
    /// It reached its network card.
    Delivered,
    /// A loss fault took it.
    Lost,
    /// A partition dropped it.
    Partitioned,
    /// A queue was full.
    Overflowed,
    /// Its VM was down when it was due.
    ToDown,
}

/// One copy of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameCopy {
    /// Sending VM.
    pub from: u16,
    /// Receiving VM.
    pub to: u16,
    /// Cluster ns at which it was sent.
    pub sent_ns: u64,
    /// Cluster ns at which it was due, or was dropped.
    pub due_ns: u64,
    /// What became of it.
    pub fate: CopyFate,
    /// Whether a fault flipped a bit of it.
    pub corrupted: bool,
    /// Whether it is a second copy, made by a fault.
    pub duplicate: bool,
    /// Length of the frame.
    pub bytes: usize,
    /// Its first [`HEAD_BYTES`].
    pub head: Vec<u8>,
}

/// Sender, sequence, receiver, copy: what tells copies apart.
pub(crate) type CopyKey = (u16, u64, u16, u8);

/// The copies of a branch, in the order in which they were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameLog {
    /// The last [`COPIES_MAX`].
    pub copies: VecDeque<FrameCopy>,
    /// Copies before those.
    pub left_out: u64,
    /// Where those on their way stand, counted from the first copy ever.
    open: BTreeMap<CopyKey, u64>,
}

impl FrameLog {
    /// A copy that is lost at once, or starts on its way.
    pub(crate) fn sent(&mut self, key: CopyKey, copy: FrameCopy) {
        if copy.fate == CopyFate::InFlight {
            self.open.insert(key, self.left_out + self.copies.len() as u64);
        }
        self.copies.push_back(copy);
        if self.copies.len() > COPIES_MAX {
            self.copies.pop_front();
            self.left_out += 1;
        }
    }

    /// What became of a copy that was on its way.
    pub(crate) fn ended(&mut self, key: CopyKey, at_ns: u64, fate: CopyFate) {
        let place = self.open.remove(&key).and_then(|place| place.checked_sub(self.left_out));
        let copy = place.and_then(|place| self.copies.get_mut(usize::try_from(place).ok()?));
        if let Some(copy) = copy {
            (copy.due_ns, copy.fate) = (at_ns, fate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(fate: CopyFate) -> FrameCopy {
        let (from, to, bytes) = (0, 1, 60);
        let flags = (false, false);
        FrameCopy {
            from,
            to,
            sent_ns: 5,
            due_ns: 5,
            fate,
            corrupted: flags.0,
            duplicate: flags.1,
            bytes,
            head: Vec::new(),
        }
    }

    #[test]
    fn the_end_is_kept_and_fates_find_their_copies() {
        let mut log = FrameLog::default();
        for sequence in 0..COPIES_MAX as u64 + 3 {
            log.sent((0, sequence, 1, 0), copy(CopyFate::InFlight));
        }
        assert_eq!((log.copies.len(), log.left_out), (COPIES_MAX, 3));
        log.ended((0, 0, 1, 0), 9, CopyFate::Delivered);
        assert!(log.copies.iter().all(|copy| copy.fate == CopyFate::InFlight), "that one is forgotten");
        log.ended((0, 4, 1, 0), 9, CopyFate::Partitioned);
        assert_eq!((log.copies[1].fate, log.copies[1].due_ns), (CopyFate::Partitioned, 9));
        log.ended((0, 4, 1, 0), 10, CopyFate::Delivered);
        assert_eq!(log.copies[1].fate, CopyFate::Partitioned, "nothing ends twice");
    }
}
