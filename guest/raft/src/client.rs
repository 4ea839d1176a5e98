// SPDX-License-Identifier: Apache-2.0
//! The load: a client on each node that has one command on its way at a time, repeats it until it is applied, and thinks between
//! commands.

use crate::log::Command;

const REPEAT_NS: u64 = 250_000_000;
const THINK_NS_MIN: u64 = 50_000_000;
const THINK_NS_SPREAD: u64 = 100_000_000;

/// One client.
pub struct Client {
    id: u32,
    number: u64,
    /// When the command was last submitted; none while thinking.
    submitted_ns: Option<u64>,
    wake_ns: u64,
    random: u64,
    thinks: bool,
    /// Commands that had to be submitted more than once.
    pub repeats: u64,
}

impl Client {
    /// A client with an id that no other has; `seed` decides its think times. One that does not think submits at once.
    pub fn new(id: u32, seed: u64, thinks: bool, now_ns: u64) -> Self {
        Self { id, number: 0, submitted_ns: None, wake_ns: now_ns, random: seed, thinks, repeats: 0 }
    }

    /// The id in its commands.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// When there is something to do.
    pub fn deadline_ns(&self) -> u64 {
        self.wake_ns
    }

    /// A command that should be submitted now, given the client's last number that was applied.
    pub fn due(&mut self, now_ns: u64, applied: u64) -> Option<Command> {
        if self.submitted_ns.is_some() && applied >= self.number {
            self.submitted_ns = None;
            self.wake_ns = now_ns + self.think_ns();
        }
        if now_ns < self.wake_ns {
            return None;
        }
        match self.submitted_ns {
            Some(_) => self.repeats += 1,
            None => self.number += 1,
        }
        self.submitted_ns = Some(now_ns);
        self.wake_ns = now_ns + REPEAT_NS;
        Some(Command::Add { client: self.id, number: self.number, value: self.number ^ u64::from(self.id) })
    }

    fn think_ns(&mut self) -> u64 {
        if !self.thinks {
            return 0;
        }
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        THINK_NS_MIN + (self.random >> 33) % THINK_NS_SPREAD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(command: Option<Command>) -> Option<u64> {
        match command? {
            Command::Add { number, .. } => Some(number),
            Command::Nothing => None,
        }
    }

    #[test]
    fn a_command_is_repeated_until_it_is_applied() {
        let mut client = Client::new(7, 1, true, 0);
        assert_eq!(number(client.due(0, 0)), Some(1));
        assert_eq!(number(client.due(REPEAT_NS - 1, 0)), None);
        assert_eq!(number(client.due(REPEAT_NS, 0)), Some(1));
        assert_eq!(client.repeats, 1);
        assert_eq!(number(client.due(REPEAT_NS + 1, 1)), None, "it thinks");
        let wake = client.deadline_ns();
        assert!((THINK_NS_MIN..THINK_NS_MIN + THINK_NS_SPREAD).contains(&(wake - REPEAT_NS - 1)));
        assert_eq!(number(client.due(wake, 1)), Some(2));
    }
}
