// SPDX-License-Identifier: AGPL-3.0-or-later
//! From a stretch in which two runs come apart to the instruction.
//!
//! Both are run again with marks at ever smaller distances, each time within the stretch between the last mark that they share
//! and the first that they do not, until a mark stands at every instruction.

use chaoscontrol_machine::event_log::LogConfig;

use crate::diff::{Difference, in_vm};
use crate::entry::Entry;

/// Marks of one pass. Each pass runs both again from their start, so few passes with many marks are cheap.
const MARKS: u64 = 1024;
/// Room for exits beside the marks of the last pass.
const LIMIT: usize = 1 << 16;

/// The instruction after which two runs are not the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Units of progress before the instruction.
    pub progress: u64,
    /// The difference that follows it. The mark before it has the registers that the instruction starts from.
    pub difference: Difference,
}

/// What narrowing came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Narrowing {
    /// One instruction.
    Instruction(Box<Found>),
    /// They were the same this time.
    Same,
    /// They come apart somewhere else each time they run, so no stretch gets shorter.
    Unsteady,
}

/// Narrows down where run 0 and run 1 of a VM come apart within a stretch of progress. `run` runs one of them with a log.
pub fn narrow<E>(
    vm: u16,
    mut from: u64,
    mut to: u64,
    mut run: impl FnMut(usize, LogConfig) -> Result<Vec<Entry>, E>,
) -> Result<Narrowing, E> {
    loop {
        let interval = to.saturating_sub(from).div_ceil(MARKS).max(1);
        let last = interval == 1;
        // The last mark lies at the end of the stretch or behind it, so that nothing is past it.
        let end = from.saturating_add(to.saturating_sub(from).div_ceil(interval).saturating_mul(interval));
        let config = LogConfig { interval, from, to: end, exits: last, registers: last, memory: true, limit: LIMIT };
        let (first, second) = (run(0, config)?, run(1, config)?);
        let Some(difference) = in_vm(vm, &first, &second) else { return Ok(Narrowing::Same) };
        let (before, after) = difference.bracket();
        if last {
            return Ok(Narrowing::Instruction(Box::new(Found { progress: before.max(from), difference })));
        }
        let length = to.saturating_sub(from);
        // Runs that are apart already where the stretch begins are apart at its first mark. A run that ends before its next mark
        // comes apart before that.
        from = from.max(before);
        to = after.unwrap_or(from.saturating_add(interval)).min(end).max(from + 1);
        if to - from >= length {
            return Ok(Narrowing::Unsteady);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{MARK, Mark};

    /// Marks of a run that is no longer the other one from `apart` on.
    fn marks(config: LogConfig, which: usize, apart: u64) -> Vec<Entry> {
        let mark = |progress: u64| Entry {
            progress,
            guest_ns: progress,
            cpu: 0,
            kind: MARK,
            fields: Vec::new(),
            mark: Some(Mark {
                registers: [if progress > apart { which as u8 } else { 9 }; 32],
                memory: None,
                state: None,
            }),
        };
        (config.from..=config.to).step_by(config.interval as usize).map(mark).collect()
    }

    #[test]
    fn the_instruction_is_found_wherever_it_is() {
        for apart in [1_000_000, 1_000_001, 1_234_567, 50_000_000, 99_999_998] {
            let mut passes = 0;
            let result = narrow(0, 1_000_000, 100_000_000, |which, config| {
                passes += 1;
                Ok::<_, ()>(marks(config, which, apart))
            });
            let Ok(Narrowing::Instruction(found)) = result else { panic!("{apart}: {result:?}") };
            assert_eq!(found.progress, apart);
            assert!(passes <= 8, "{passes}");
        }
    }

    #[test]
    fn runs_that_agree_this_time_are_said_to() {
        let result = narrow(0, 0, 1_000_000, |_, config| Ok::<_, ()>(marks(config, 0, u64::MAX)));
        assert_eq!(result, Ok(Narrowing::Same));
    }

    #[test]
    fn where_no_pass_makes_the_stretch_shorter_there_is_an_end() {
        // Only the last mark of each pass is there, and it is never the same.
        let last = |config, which| vec![marks(config, which, 0).pop().expect("there is a mark")];
        let result = narrow(0, 0, 1_000_000, |which, config| Ok::<_, ()>(last(config, which)));
        assert_eq!(result, Ok(Narrowing::Unsteady));
    }
}
