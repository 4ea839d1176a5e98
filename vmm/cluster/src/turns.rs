// SPDX-License-Identifier: AGPL-3.0-or-later
//! Recordings of what the CPUs of each VM took turns at, by VM and round, and runs that are held to them.
//!
//! As bytes, integers little-endian:
//!
//! ```text
//! 8                  "CHAOTRN1"
//! 4                  number of VMs; for each
//!   4                number of segments; for each
//!     4              number of rounds in which turns ended; for each
//!       8, 4         the round, the number of its turns; for each
//!         8, 1, 8, 8    sequence, CPU, progress at its start and end
//!         32, 32, 32    identity of the state before and after, chain
//! ```

use chaoscontrol_fault::MAX_VMS;
use chaoscontrol_machine::smp::journal::SliceRecord;

const MAGIC: &[u8; 8] = b"CHAOTRN1";
/// Starts of one VM in a branch: more than a schedule has faults for, and guests reset themselves.
const SEGMENTS_MAX: u32 = 1 << 16;

/// The turns of one VM that ended in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    /// The round.
    pub round: u64,
    /// Its turns in order.
    pub turns: Vec<SliceRecord>,
}

/// What one VM did from one start to the next power cut, reset or end of the branch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Rounds in which turns ended.
    pub ticks: Vec<Tick>,
}

impl Segment {
    /// All turns in order.
    #[must_use]
    pub fn turns(&self) -> Vec<SliceRecord> {
        self.ticks.iter().flat_map(|tick| tick.turns.iter().copied()).collect()
    }

    pub(crate) fn push(&mut self, round: u64, turns: Vec<SliceRecord>) {
        match self.ticks.last_mut() {
            _ if turns.is_empty() => {}
            Some(last) if last.round == round => last.turns.extend(turns),
            _ => self.ticks.push(Tick { round, turns }),
        }
    }
}

/// The turns of a branch: for each VM a segment a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnRecording {
    /// By VM.
    pub vms: Vec<Vec<Segment>>,
}

impl TurnRecording {
    /// A recording of VMs that have not run.
    pub(crate) fn new(vms: usize) -> Self {
        Self { vms: vec![vec![Segment::default()]; vms] }
    }

    /// The segment that a VM is in.
    pub(crate) fn current(&mut self, vm: u16) -> Option<&mut Segment> {
        self.vms.get_mut(usize::from(vm)).and_then(|segments| segments.last_mut())
    }

    /// Number of turns.
    #[must_use]
    pub fn len(&self) -> usize {
        self.vms.iter().flatten().flat_map(|segment| &segment.ticks).map(|tick| tick.turns.len()).sum()
    }

    /// Whether no VM took a turn: VMs have one CPU, or no journal is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let count = |out: &mut Vec<u8>, number: usize| out.extend((number as u32).to_le_bytes());
        count(&mut out, self.vms.len());
        for segments in &self.vms {
            count(&mut out, segments.len());
            for segment in segments {
                count(&mut out, segment.ticks.len());
                for tick in &segment.ticks {
                    out.extend(tick.round.to_le_bytes());
                    count(&mut out, tick.turns.len());
                    for turn in &tick.turns {
                        out.extend(turn.sequence.to_le_bytes());
                        out.push(turn.cpu);
                        out.extend(turn.start.to_le_bytes());
                        out.extend(turn.end.to_le_bytes());
                        for digest in [&turn.before, &turn.after, &turn.chain] {
                            out.extend(digest);
                        }
                    }
                }
            }
        }
        out
    }

    /// From bytes. What is not as [`Self::encode`] writes it is an error that says what; whether records are true only a replay can tell.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut rest = bytes.strip_prefix(MAGIC).ok_or("they do not begin as turns do")?;
        let rest = &mut rest;
        // No count makes room for what is not there: what may be empty is bounded, and every turn takes its bytes.
        let mut vms = Vec::new();
        for _ in 0..bounded(rest, MAX_VMS.into(), "VMs")? {
            let mut segments = Vec::new();
            for _ in 0..bounded(rest, SEGMENTS_MAX, "segments of a VM")? {
                let mut ticks = Vec::new();
                for _ in 0..number(rest)? {
                    let round = u64::from_le_bytes(take(rest)?);
                    let turns: Vec<SliceRecord> = (0..number(rest)?).map(|_| turn(rest)).collect::<Result<_, _>>()?;
                    if turns.is_empty() {
                        return Err(format!("round {round} has no turn"));
                    }
                    ticks.push(Tick { round, turns });
                }
                segments.push(Segment { ticks });
            }
            vms.push(segments);
        }
        if rest.is_empty() { Ok(Self { vms }) } else { Err(format!("{} bytes follow their end", rest.len())) }
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (bytes, after) = rest.split_first_chunk().ok_or("they are cut short")?;
    *rest = after;
    Ok(*bytes)
}

fn number(rest: &mut &[u8]) -> Result<u32, String> {
    take(rest).map(u32::from_le_bytes)
}

fn bounded(rest: &mut &[u8], max: u32, what: &str) -> Result<u32, String> {
    let found = number(rest)?;
    if found <= max { Ok(found) } else { Err(format!("{found} {what}, at most {max} are possible")) }
}

fn turn(rest: &mut &[u8]) -> Result<SliceRecord, String> {
    Ok(SliceRecord {
        sequence: u64::from_le_bytes(take(rest)?),
        cpu: u8::from_le_bytes(take(rest)?),
        start: u64::from_le_bytes(take(rest)?),
        end: u64::from_le_bytes(take(rest)?),
        before: take(rest)?,
        after: take(rest)?,
        chain: take(rest)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_as_they_were_and_every_prefix_of_them_is_refused() {
        let turn = |sequence| SliceRecord {
            sequence,
            cpu: 1,
            start: 5,
            end: 9,
            before: [1; 32],
            after: [2; 32],
            chain: [sequence as u8; 32],
        };
        let tick = |round| Tick { round, turns: vec![turn(0), turn(round)] };
        let segments = vec![Segment { ticks: vec![tick(3), tick(4)] }, Segment::default()];
        let recording = TurnRecording { vms: vec![Vec::new(), segments] };
        let bytes = recording.encode();
        assert_eq!(TurnRecording::decode(&bytes), Ok(recording));
        for length in 0..bytes.len() {
            assert!(TurnRecording::decode(&bytes[..length]).is_err(), "{length}");
        }
        assert!(TurnRecording::decode(&[&bytes[..], &[0]].concat()).unwrap_err().contains("1 bytes follow"));
        let many = [&MAGIC[..], &[0xff; 4]].concat();
        assert!(TurnRecording::decode(&many).is_err());
    }
}
