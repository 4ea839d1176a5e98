// SPDX-License-Identifier: AGPL-3.0-or-later
//! The bytes of a log.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `CHAOSDLG` |
//! | 4 | version, little-endian, as all numbers of fixed size |
//! | 32 | what was run: two logs of another subject are not compared |
//! | 2 | VMs |
//! | for each VM: 8 | its entries |
//! | for each entry | kind and CPU, a byte each; progress and guest ns less those of the entry before (LEB128, zigzag); the kind's fields (LEB128) |
//! | for each mark on top | 32 bytes of register hash; a byte: 1 if a memory hash, 2 if registers follow; 32 bytes; length (LEB128) and CBOR |
//! | 32 | BLAKE3 of everything before |

use chaoscontrol_cpu::CpuState;
use chaoscontrol_machine::pages::Digest;

use crate::entry::{Entry, KINDS, MARK, Mark};

const MAGIC: &[u8; 8] = b"CHAOSDLG";
/// Any change of layout or meaning bumps it.
pub const VERSION: u32 = 1;
/// No log is longer: some hundred million entries.
pub const BYTES_MAX: u64 = 4 << 30;
/// As many VMs as a cluster can have.
const VMS_MAX: u16 = 32;
/// Registers in CBOR take some 5 KiB.
const STATE_BYTES_MAX: u64 = 64 << 10;
/// Kind, CPU, two numbers.
const ENTRY_BYTES_MIN: usize = 4;

/// Why bytes are no log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Something else, or another version.
    #[error("no determinism log of version {VERSION}: {0}")]
    Foreign(&'static str),
    /// The hash at the end is not that of the rest.
    #[error("determinism log: damaged or cut off (its hash does not fit)")]
    Damaged,
    /// The hash fits, the contents do not: no writer of ours made it.
    #[error("determinism log: {0}")]
    Invalid(&'static str),
    /// Registers could not be coded.
    #[error("determinism log: registers: {0}")]
    Registers(String),
}

/// A whole log.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// Digest over everything that decides what a run does and what a log of it keeps.
    pub subject: Digest,
    /// By VM, in order.
    pub vms: Vec<Vec<Entry>>,
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn zigzag(value: u64, before: u64) -> u64 {
    let change = value.wrapping_sub(before).cast_signed();
    ((change << 1) ^ (change >> 63)).cast_unsigned()
}

fn unzigzag(value: u64, before: u64) -> u64 {
    before.wrapping_add((value >> 1) ^ (value & 1).wrapping_neg())
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry, before: (u64, u64)) -> Result<(), FormatError> {
    out.extend([entry.kind, entry.cpu]);
    put(out, zigzag(entry.progress, before.0));
    put(out, zigzag(entry.guest_ns, before.1));
    entry.fields.iter().for_each(|value| put(out, *value));
    let Some(mark) = &entry.mark else { return Ok(()) };
    out.extend(mark.registers);
    out.push(u8::from(mark.memory.is_some()) | u8::from(mark.state.is_some()) << 1);
    out.extend(mark.memory.iter().flatten());
    if let Some(state) = &mark.state {
        let mut bytes = Vec::new();
        ciborium::into_writer(state, &mut bytes).map_err(|error| FormatError::Registers(error.to_string()))?;
        put(out, bytes.len() as u64);
        out.extend(bytes);
    }
    Ok(())
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(FormatError::Invalid("it ends within an entry"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        self.bytes(N).map(|bytes| bytes.try_into().expect("as many as asked for"))
    }

    fn number(&mut self) -> Result<u64, FormatError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.fixed()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                break;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(FormatError::Invalid("a number does not fit 64 bits"))
    }

    fn entry(&mut self, before: (u64, u64)) -> Result<Entry, FormatError> {
        let [kind, cpu] = self.fixed()?;
        let (_, names) = KINDS.get(usize::from(kind)).ok_or(FormatError::Invalid("there is no such kind of entry"))?;
        let progress = unzigzag(self.number()?, before.0);
        let guest_ns = unzigzag(self.number()?, before.1);
        let fields = names.iter().map(|_| self.number()).collect::<Result<_, _>>()?;
        let mark = if kind == MARK { Some(self.mark()?) } else { None };
        Ok(Entry { progress, guest_ns, cpu, kind, fields, mark })
    }

    fn mark(&mut self) -> Result<Mark, FormatError> {
        let registers = self.fixed()?;
        let [has] = self.fixed()?;
        if has & !3 != 0 {
            return Err(FormatError::Invalid("a mark has what no mark has"));
        }
        let memory = if has & 1 != 0 { Some(self.fixed()?) } else { None };
        let state = if has & 2 != 0 {
            let length = self.number()?;
            if length > STATE_BYTES_MAX {
                return Err(FormatError::Invalid("registers are too long"));
            }
            let state: CpuState = ciborium::from_reader(self.bytes(length as usize)?)
                .map_err(|error| FormatError::Registers(error.to_string()))?;
            Some(Box::new(state))
        } else {
            None
        };
        Ok(Mark { registers, memory, state })
    }
}

impl Log {
    /// The bytes of the log.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend(self.subject);
        out.extend((self.vms.len() as u16).to_le_bytes());
        for entries in &self.vms {
            out.extend((entries.len() as u64).to_le_bytes());
            let mut before = (0, 0);
            for entry in entries {
                put_entry(&mut out, entry, before)?;
                before = (entry.progress, entry.guest_ns);
            }
        }
        let hash = blake3::hash(&out);
        out.extend(hash.as_bytes());
        Ok(out)
    }

    /// The log of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (rest, hash) = bytes.split_last_chunk::<32>().ok_or(FormatError::Foreign("it is too short"))?;
        let mut reader = Reader(rest);
        if reader.fixed::<8>() != Ok(*MAGIC) {
            return Err(FormatError::Foreign("it begins with something else"));
        }
        if reader.fixed().map(u32::from_le_bytes) != Ok(VERSION) {
            return Err(FormatError::Foreign("it has another version"));
        }
        if blake3::hash(rest).as_bytes() != hash {
            return Err(FormatError::Damaged);
        }
        let subject = reader.fixed()?;
        let count = u16::from_le_bytes(reader.fixed()?);
        if count > VMS_MAX {
            return Err(FormatError::Invalid("it has too many VMs"));
        }
        let vms = (0..count).map(|_| entries(&mut reader)).collect::<Result<_, _>>()?;
        if !reader.0.is_empty() {
            return Err(FormatError::Invalid("something follows the last entry"));
        }
        Ok(Self { subject, vms })
    }
}

fn entries(reader: &mut Reader) -> Result<Vec<Entry>, FormatError> {
    let count = u64::from_le_bytes(reader.fixed()?);
    if count > (reader.0.len() / ENTRY_BYTES_MIN) as u64 {
        return Err(FormatError::Invalid("it has fewer entries than it says"));
    }
    let mut found = Vec::with_capacity(count as usize);
    let mut before = (0, 0);
    for _ in 0..count {
        let entry = reader.entry(before)?;
        before = (entry.progress, entry.guest_ns);
        found.push(entry);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Log {
        let plain = |kind: u8, progress: u64, fields: &[u64]| Entry {
            progress,
            guest_ns: progress * 10,
            cpu: 1,
            kind,
            fields: fields.to_vec(),
            mark: None,
        };
        let state = Some(Box::new(CpuState { rip: u64::MAX, xmm: [u128::MAX; 16], ..CpuState::default() }));
        let mark = Mark { registers: [7; 32], memory: Some([8; 32]), state };
        let first = vec![
            plain(0, 5, &[0x3f8, 1, 0x20]),
            plain(3, 900, &[u64::MAX, 8, 1 << 63]),
            Entry { mark: Some(mark), ..plain(MARK, 1000, &[]) },
            // A VM that was started again counts from less.
            plain(7, 12, &[]),
        ];
        Log { subject: [3; 32], vms: vec![first, Vec::new()] }
    }

    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.truncate(bytes.len() - 32);
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = log().encode().unwrap();
        assert_eq!(Log::decode(&bytes).unwrap(), log());
    }

    #[test]
    fn cut_off_changed_and_foreign_bytes_are_refused() {
        let bytes = log().encode().unwrap();
        for length in 0..bytes.len() {
            assert!(Log::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            assert!(Log::decode(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn bytes_with_a_fitting_hash_never_panic_and_never_allocate_what_is_not_there() {
        let bytes = log().encode().unwrap();
        for at in 12..bytes.len() - 32 {
            for change in [0x01, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                let _ = Log::decode(&sealed(changed));
            }
        }
        let mut many = bytes.clone();
        many[46..54].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(Log::decode(&sealed(many)), Err(FormatError::Invalid("it has fewer entries than it says")));
    }
}
