// SPDX-License-Identifier: Apache-2.0
//! The records a guest writes into its ring.
//!
//! A record is a header (payload length u16, kind u8, version u8, zero u32), its payload, and zeros up to a multiple of
//! eight. Payload fields stand in the order of the struct's fields below. A text or byte field is a u16 length and its
//! bytes; a bool or enum is one byte.

use crate::VERSION;
use crate::codec::{DecodeError, EncodeError, Reader, Writer};
use crate::digest::{DIGEST_BYTES, Digest};
use crate::layout::*;

/// What an assertion claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum AssertionKind {
    /// Holds at every evaluation, and is evaluated at least once.
    Always = 1,
    /// Holds at every evaluation, of which there may be none.
    AlwaysOrUnreachable = 2,
    /// Holds in at least one evaluation.
    Sometimes = 3,
    /// Is reached at least once.
    Reachable = 4,
    /// Is never reached.
    Unreachable = 5,
    /// The values reported for a key agree: the site of an `assert_agree!`.
    Agree = 6,
}

impl AssertionKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Always, Self::AlwaysOrUnreachable, Self::Sometimes, Self::Reachable, Self::Unreachable, Self::Agree];

    /// Whether one failing evaluation is a violation.
    pub const fn failure_is_violation(self) -> bool {
        matches!(self, Self::Always | Self::AlwaysOrUnreachable | Self::Unreachable)
    }

    /// Whether a report without a single passing evaluation shows a gap.
    pub const fn must_hit(self) -> bool {
        matches!(self, Self::Always | Self::Sometimes | Self::Reachable | Self::Agree)
    }

    fn decode(value: u8) -> Result<Self, DecodeError> {
        let found = Self::ALL.into_iter().find(|kind| *kind as u8 == value);
        found.ok_or(DecodeError::OutOfRange { field: "assertion kind", value: value.into() })
    }
}

/// How an evaluation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Outcome {
    /// The condition was true.
    Pass = 1,
    /// The condition was false, or an unreachable site was reached.
    Fail = 2,
}

/// One assertion site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogEntry<'a> {
    /// Index of the site in its process's catalog; also the index of its counters.
    pub site: u16,
    /// What it claims.
    pub kind: AssertionKind,
    /// Whether never reaching it is a gap.
    pub must_hit: bool,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// The message, which names the property.
    pub message: &'a str,
    /// Package of the site.
    pub package: &'a str,
    /// Version of the package.
    pub version: &'a str,
    /// File, relative to the package.
    pub file: &'a str,
    /// Module path.
    pub module: &'a str,
    /// Namespace of an explicit identity; empty where the site is its identity.
    pub namespace: &'a str,
    /// Key in that namespace; empty exactly where the namespace is.
    pub key: &'a str,
}

/// How urgent a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LogLevel {
    /// The SDK or the workload misbehaved: for instance a bound was exceeded.
    Error = 1,
    /// Anything else.
    Info = 2,
}

/// One side of a numeric assertion. Floats travel as their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// A signed integer.
    Signed(i64),
    /// An unsigned integer.
    Unsigned(u64),
    /// An IEEE 754 binary64, as its bits.
    Float(u64),
}

impl Number {
    /// `self - other`, saturated, as a number that orders all differences of one type; none of numbers of different types, or
    /// where the difference is no number.
    #[must_use]
    pub fn distance(self, other: Self) -> Option<i64> {
        match (self, other) {
            (Self::Signed(left), Self::Signed(right)) => Some(left.saturating_sub(right)),
            (Self::Unsigned(left), Self::Unsigned(right)) => {
                let wide = i128::from(left) - i128::from(right);
                Some(wide.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
            }
            (Self::Float(left), Self::Float(right)) => {
                let difference = f64::from_bits(left) - f64::from_bits(right);
                // IEEE 754 orders like sign and magnitude; flipping the magnitude of negatives makes it two's complement.
                let bits = difference.to_bits() as i64;
                (!difference.is_nan()).then_some(bits ^ (((bits >> 63) as u64) >> 1) as i64)
            }
            _ => None,
        }
    }
}

/// A message from a guest process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A process claimed the slot. Counters start at zero, site numbers mean this process's catalog from here on.
    ProcessStart {
        /// Its pid in the guest.
        pid: u32,
        /// Claims of the slot so far.
        generation: u32,
        /// Its name.
        name: &'a str,
    },
    /// One site of the catalog. Sent once each, in ascending order of site, right after `ProcessStart`.
    Catalog(CatalogEntry<'a>),
    /// The catalog is complete.
    CatalogEnd {
        /// Its sites.
        sites: u16,
        /// SHA-256 over the payloads of its entries in order. Two checkouts of one source have one digest.
        digest: Digest,
    },
    /// The first pass or the first failure of a site in this process. Later ones only count.
    Assertion {
        /// Which site.
        site: u16,
        /// How it ended.
        outcome: Outcome,
        /// A JSON text, or empty.
        details: &'a str,
    },
    /// A numeric assertion came closer to its limit than ever before in this process.
    Guidance {
        /// Which site.
        site: u16,
        /// Whether a larger `left - right` is to be looked for (else a smaller one).
        maximize: bool,
        /// Left side.
        left: Number,
        /// Right side.
        right: Number,
    },
    /// Something happened.
    Event {
        /// Its name.
        name: &'a str,
        /// A JSON text, or empty.
        details: &'a str,
    },
    /// The workload is ready: faults may begin.
    SetupComplete {
        /// A JSON text, or empty.
        details: &'a str,
    },
    /// The first value that any node reports for a key binds all nodes of the timeline.
    Agree {
        /// The site.
        site: u16,
        /// Which set of keys.
        namespace: &'a str,
        /// The key.
        key: &'a [u8],
        /// SHA-256 of the whole value.
        digest: Digest,
        /// The value's beginning, for reports.
        value: &'a [u8],
    },
    /// Asks for a random number; the answer stands in the slot before the guest goes on.
    Random {
        /// Id of the request, echoed with the answer; never zero.
        id: u32,
        /// The answer lies below this; 0 asks for all 64 bits.
        below: u64,
    },
    /// A line for the report.
    Log {
        /// How urgent.
        level: LogLevel,
        /// The line.
        text: &'a str,
    },
    /// Asks for a time without faults.
    Quiet {
        /// How long in ns of cluster time, at most [`QUIET_NS_MAX`]; 0 ends a quiet period.
        lasts_ns: u64,
    },
    /// A process ended, as its parent saw it.
    ProcessExit {
        /// Its pid.
        pid: u32,
        /// Whether a signal ended it.
        signalled: bool,
        /// Exit code or signal number.
        code: u8,
    },
}

impl<'a> Record<'a> {
    const fn kind(&self) -> u8 {
        match self {
            Self::ProcessStart { .. } => 1,
            Self::Catalog(_) => 2,
            Self::CatalogEnd { .. } => 3,
            Self::Assertion { .. } => 4,
            Self::Guidance { .. } => 5,
            Self::Event { .. } => 6,
            Self::SetupComplete { .. } => 7,
            Self::Agree { .. } => 8,
            Self::Random { .. } => 9,
            Self::Log { .. } => 10,
            Self::ProcessExit { .. } => 11,
            Self::Quiet { .. } => 12,
        }
    }

    /// Encodes the whole record, padding included, and returns its bytes. [`RECORD_BYTES_MAX`] is always enough room.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let (header, body) = out.split_at_mut_checked(RECORD_HEADER_BYTES).ok_or(EncodeError::NoRoom)?;
        let room = body.len().min(PAYLOAD_BYTES_MAX);
        let mut writer = Writer::new(&mut body[..room]);
        self.encode_payload(&mut writer)?;
        let payload_bytes = writer.written();
        let bytes = record_bytes(payload_bytes);
        let padding = bytes - RECORD_HEADER_BYTES - payload_bytes;
        body.get_mut(payload_bytes..payload_bytes + padding).ok_or(EncodeError::NoRoom)?.fill(0);
        let mut writer = Writer::new(header);
        writer.u16(payload_bytes as u16)?;
        writer.u8(self.kind())?;
        writer.u8(VERSION as u8)?;
        writer.u32(0)?;
        Ok(bytes)
    }

    fn encode_payload(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        match *self {
            Self::ProcessStart { pid, generation, name } => {
                w.u32(pid)?;
                w.u32(generation)?;
                w.bytes("process name", name.as_bytes(), PROCESS_NAME_BYTES_MAX)
            }
            Self::Catalog(ref entry) => encode_entry(w, entry),
            Self::CatalogEnd { sites, digest } => {
                if usize::from(sites) > SITES_MAX {
                    return Err(EncodeError::OutOfRange { field: "sites" });
                }
                w.u16(sites)?;
                w.raw(&digest)
            }
            Self::Assertion { site, outcome, details } => {
                encode_site(w, site)?;
                w.u8(outcome as u8)?;
                w.bytes("details", details.as_bytes(), DETAILS_BYTES_MAX)
            }
            Self::Guidance { site, maximize, left, right } => {
                encode_site(w, site)?;
                w.u8(maximize.into())?;
                encode_number(w, left)?;
                encode_number(w, right)
            }
            Self::Event { name, details } => {
                if name.is_empty() {
                    return Err(EncodeError::OutOfRange { field: "event name" });
                }
                w.bytes("event name", name.as_bytes(), EVENT_NAME_BYTES_MAX)?;
                w.bytes("details", details.as_bytes(), DETAILS_BYTES_MAX)
            }
            Self::SetupComplete { details } => w.bytes("details", details.as_bytes(), DETAILS_BYTES_MAX),
            Self::Agree { site, namespace, key, ref digest, value } => {
                encode_site(w, site)?;
                w.bytes("namespace", namespace.as_bytes(), NAMESPACE_BYTES_MAX)?;
                w.bytes("key", key, KEY_BYTES_MAX)?;
                w.raw(digest)?;
                w.bytes("shown value", value, VALUE_SHOWN_BYTES_MAX)
            }
            Self::Random { id, below } => {
                if id == 0 {
                    return Err(EncodeError::OutOfRange { field: "request id" });
                }
                w.u32(id)?;
                w.u64(below)
            }
            Self::Log { level, text } => {
                w.u8(level as u8)?;
                w.bytes("log text", text.as_bytes(), LOG_BYTES_MAX)
            }
            Self::Quiet { lasts_ns } => {
                if lasts_ns > QUIET_NS_MAX {
                    return Err(EncodeError::OutOfRange { field: "quiet period" });
                }
                w.u64(lasts_ns)
            }
            Self::ProcessExit { pid, signalled, code } => {
                w.u32(pid)?;
                w.u8(signalled.into())?;
                w.u8(code)
            }
        }
    }

    /// Decodes one whole record: header, payload and padding, nothing else.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, body) =
            bytes.split_at_checked(RECORD_HEADER_BYTES).ok_or(DecodeError::Truncated { field: "header" })?;
        let payload_bytes = Header::parse(header)?.payload_bytes;
        let (payload, padding) =
            body.split_at_checked(payload_bytes).ok_or(DecodeError::Truncated { field: "payload" })?;
        let expected = record_bytes(payload_bytes);
        if bytes.len() < expected {
            return Err(DecodeError::Truncated { field: "padding" });
        }
        if bytes.len() > expected {
            return Err(DecodeError::Trailing { bytes: bytes.len() - expected });
        }
        if padding.iter().any(|b| *b != 0) {
            return Err(DecodeError::Reserved);
        }
        let mut reader = Reader::new(payload);
        let record = Self::decode_payload(header[2], &mut reader)?;
        reader.finish()?;
        Ok(record)
    }

    fn decode_payload(kind: u8, r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match kind {
            1 => Self::ProcessStart {
                pid: r.u32("pid")?,
                generation: r.u32("generation")?,
                name: r.text("process name", PROCESS_NAME_BYTES_MAX)?,
            },
            2 => Self::Catalog(decode_entry(r)?),
            3 => Self::CatalogEnd { sites: decode_sites(r)?, digest: r.array::<DIGEST_BYTES>("digest")? },
            4 => Self::Assertion {
                site: decode_site(r)?,
                outcome: decode_outcome(r)?,
                details: r.text("details", DETAILS_BYTES_MAX)?,
            },
            5 => Self::Guidance {
                site: decode_site(r)?,
                maximize: r.bool("maximize")?,
                left: decode_number(r)?,
                right: decode_number(r)?,
            },
            6 => Self::Event { name: decode_event_name(r)?, details: r.text("details", DETAILS_BYTES_MAX)? },
            7 => Self::SetupComplete { details: r.text("details", DETAILS_BYTES_MAX)? },
            8 => Self::Agree {
                site: decode_site(r)?,
                namespace: r.text("namespace", NAMESPACE_BYTES_MAX)?,
                key: r.bytes("key", KEY_BYTES_MAX)?,
                digest: r.array::<DIGEST_BYTES>("digest")?,
                value: r.bytes("shown value", VALUE_SHOWN_BYTES_MAX)?,
            },
            9 => Self::Random { id: decode_request_id(r)?, below: r.u64("below")? },
            10 => Self::Log { level: decode_level(r)?, text: r.text("log text", LOG_BYTES_MAX)? },
            11 => Self::ProcessExit { pid: r.u32("pid")?, signalled: r.bool("signalled")?, code: r.u8("code")? },
            12 => Self::Quiet { lasts_ns: decode_quiet(r)? },
            other => return Err(DecodeError::UnknownKind(other)),
        })
    }
}

/// A record's header, checked.
pub(crate) struct Header {
    pub(crate) payload_bytes: usize,
}

impl Header {
    /// Checks what framing depends on. `bytes` are [`RECORD_HEADER_BYTES`] long.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let payload_bytes = usize::from(reader.u16("payload length")?);
        let _kind = reader.u8("kind")?;
        let version = reader.u8("version")?;
        let reserved = reader.u32("reserved")?;
        if u16::from(version) != VERSION {
            return Err(DecodeError::Version(version));
        }
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(DecodeError::TooLong { field: "payload", bytes: payload_bytes, bytes_max: PAYLOAD_BYTES_MAX });
        }
        if reserved != 0 {
            return Err(DecodeError::Reserved);
        }
        Ok(Self { payload_bytes })
    }
}

impl CatalogEntry<'_> {
    /// Encodes the entry as the catalog digest covers it and returns its bytes.
    pub fn encode_payload(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(out);
        encode_entry(&mut writer, self)?;
        Ok(writer.written())
    }
}

fn encode_entry(w: &mut Writer<'_>, entry: &CatalogEntry<'_>) -> Result<(), EncodeError> {
    encode_site(w, entry.site)?;
    w.u8(entry.kind as u8)?;
    w.u8(entry.must_hit.into())?;
    w.u32(entry.line)?;
    w.u32(entry.column)?;
    w.bytes("message", entry.message.as_bytes(), MESSAGE_BYTES_MAX)?;
    w.bytes("package", entry.package.as_bytes(), PACKAGE_BYTES_MAX)?;
    w.bytes("version", entry.version.as_bytes(), VERSION_BYTES_MAX)?;
    w.bytes("file", entry.file.as_bytes(), FILE_BYTES_MAX)?;
    w.bytes("module", entry.module.as_bytes(), MODULE_BYTES_MAX)?;
    if entry.namespace.is_empty() != entry.key.is_empty() {
        return Err(EncodeError::OutOfRange { field: "key" });
    }
    w.bytes("namespace", entry.namespace.as_bytes(), STABLE_BYTES_MAX)?;
    w.bytes("key", entry.key.as_bytes(), STABLE_BYTES_MAX)
}

fn decode_entry<'a>(r: &mut Reader<'a>) -> Result<CatalogEntry<'a>, DecodeError> {
    let entry = CatalogEntry {
        site: decode_site(r)?,
        kind: AssertionKind::decode(r.u8("assertion kind")?)?,
        must_hit: r.bool("must hit")?,
        line: r.u32("line")?,
        column: r.u32("column")?,
        message: r.text("message", MESSAGE_BYTES_MAX)?,
        package: r.text("package", PACKAGE_BYTES_MAX)?,
        version: r.text("version", VERSION_BYTES_MAX)?,
        file: r.text("file", FILE_BYTES_MAX)?,
        module: r.text("module", MODULE_BYTES_MAX)?,
        namespace: r.text("namespace", STABLE_BYTES_MAX)?,
        key: r.text("key", STABLE_BYTES_MAX)?,
    };
    if entry.namespace.is_empty() == entry.key.is_empty() {
        Ok(entry)
    } else {
        Err(DecodeError::OutOfRange { field: "key", value: 0 })
    }
}

fn decode_quiet(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    match r.u64("quiet period")? {
        lasts_ns if lasts_ns <= QUIET_NS_MAX => Ok(lasts_ns),
        value => Err(DecodeError::OutOfRange { field: "quiet period", value }),
    }
}

fn encode_site(w: &mut Writer<'_>, site: u16) -> Result<(), EncodeError> {
    if usize::from(site) >= SITES_MAX {
        return Err(EncodeError::OutOfRange { field: "site" });
    }
    w.u16(site)
}

fn decode_site(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    match r.u16("site")? {
        site if usize::from(site) < SITES_MAX => Ok(site),
        site => Err(DecodeError::OutOfRange { field: "site", value: site.into() }),
    }
}

fn decode_sites(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    match r.u16("sites")? {
        sites if usize::from(sites) <= SITES_MAX => Ok(sites),
        sites => Err(DecodeError::OutOfRange { field: "sites", value: sites.into() }),
    }
}

fn decode_outcome(r: &mut Reader<'_>) -> Result<Outcome, DecodeError> {
    match r.u8("outcome")? {
        1 => Ok(Outcome::Pass),
        2 => Ok(Outcome::Fail),
        value => Err(DecodeError::OutOfRange { field: "outcome", value: value.into() }),
    }
}

fn decode_level(r: &mut Reader<'_>) -> Result<LogLevel, DecodeError> {
    match r.u8("log level")? {
        1 => Ok(LogLevel::Error),
        2 => Ok(LogLevel::Info),
        value => Err(DecodeError::OutOfRange { field: "log level", value: value.into() }),
    }
}

fn decode_event_name<'a>(r: &mut Reader<'a>) -> Result<&'a str, DecodeError> {
    match r.text("event name", EVENT_NAME_BYTES_MAX)? {
        "" => Err(DecodeError::OutOfRange { field: "event name", value: 0 }),
        name => Ok(name),
    }
}

fn decode_request_id(r: &mut Reader<'_>) -> Result<u32, DecodeError> {
    match r.u32("request id")? {
        0 => Err(DecodeError::OutOfRange { field: "request id", value: 0 }),
        id => Ok(id),
    }
}

fn encode_number(w: &mut Writer<'_>, number: Number) -> Result<(), EncodeError> {
    let (tag, bits) = match number {
        Number::Signed(value) => (1, value as u64),
        Number::Unsigned(value) => (2, value),
        Number::Float(bits) => (3, bits),
    };
    w.u8(tag)?;
    w.u64(bits)
}

fn decode_number(r: &mut Reader<'_>) -> Result<Number, DecodeError> {
    let tag = r.u8("number kind")?;
    let bits = r.u64("number")?;
    match tag {
        1 => Ok(Number::Signed(bits as i64)),
        2 => Ok(Number::Unsigned(bits)),
        3 => Ok(Number::Float(bits)),
        value => Err(DecodeError::OutOfRange { field: "number kind", value: value.into() }),
    }
}
