// SPDX-License-Identifier: AGPL-3.0-or-later
//! The one place where documents are written and read.
//!
//! A document is a Rust value with a [`Kind`]. Its bytes are canonical JSON or canonical CBOR of a map that holds the value's
//! fields and two more: `schema`, the kind's name, and `version`. Both directions go through [`encode`] and [`decode`], which
//! is where every rule that holds for all documents stands.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::cbor::{self, CborError};
use crate::exit_code::{CodedError, ExitCode};
use crate::json::{self, JsonError};
use crate::schema::ObjectRef;

/// How the bytes of an object are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Canonical JSON, stored as it is so that people can read it.
    Json,
    /// Canonical CBOR, stored compressed.
    Cbor,
    /// Bytes of someone else's format (a kernel, a disk image), stored compressed.
    Raw,
}

macro_rules! media_types {
    ($($(#[$doc:meta])* $name:ident, $text:literal, $encoding:ident, $max_bytes:expr;)+) => {
        /// What an object is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum MediaType { $($(#[$doc])* $name,)+ }

        impl MediaType {
            /// Every media type.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The schema's name: the last part of the media type.
            pub fn schema(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// How its bytes are made.
            pub fn encoding(self) -> Encoding {
                match self { $(Self::$name => Encoding::$encoding,)+ }
            }

            /// The largest object of this type that is read; a bound against hostile sizes, far above real ones.
            pub fn max_bytes(self) -> u64 {
                match self { $(Self::$name => $max_bytes,)+ }
            }
        }
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

media_types! {
    /// What a stage read and wrote.
    Descriptor, "descriptor", Json, 4 * MIB;
    /// That a stage failed.
    Error, "error", Json, 64 * KIB;
    /// What a cluster consists of.
    Run, "run", Json, 4 * MIB;
    /// Faults with their times.
    Schedule, "schedule", Json, 4 * MIB;
    /// A whole cluster at one barrier.
    Snapshot, "snapshot", Cbor, 256 * MIB;
    /// The branches worth building on.
    Corpus, "corpus", Json, 64 * MIB;
    /// The merged coverage map.
    Coverage, "coverage", Cbor, 64 * MIB;
    /// What happened in each round of a branch.
    Trace, "trace", Cbor, 256 * MIB;
    /// A violation and how it was found.
    Bug, "bug", Json, 16 * MIB;
    /// A bug with a minimal schedule.
    MinimizedBug, "minimized-bug", Json, 16 * MIB;
    /// The result of running a bug again.
    Reproduction, "reproduction", Json, 16 * MIB;
    /// A class for every bug and for the whole chain.
    Verdict, "verdict", Json, 16 * MIB;
    /// Every assertion site with its hits.
    Assertions, "assertions", Json, 64 * MIB;
    /// What the host was; never covered by another digest.
    Environment, "environment", Json, 64 * KIB;
    /// A profile's projection.
    Profile, "profile", Json, 4 * MIB;
    /// A kernel image.
    Kernel, "kernel", Raw, GIB;
    /// An initrd.
    Initrd, "initrd", Raw, GIB;
    /// A disk image.
    Disk, "disk", Raw, 64 * GIB;
    /// Console output of one VM.
    Console, "console", Raw, GIB;
    /// The turns that the CPUs of each VM took in a branch.
    Turns, "turns", Raw, GIB;
}

impl MediaType {
    /// The name in documents.
    pub fn name(self) -> String {
        let suffix = match self.encoding() {
            Encoding::Json => "+json",
            Encoding::Cbor => "+cbor",
            Encoding::Raw => "",
        };
        format!("application/vnd.chaoscontrol.{}{suffix}", self.schema())
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|media| media.name() == name)
    }
}

impl Serialize for MediaType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

impl<'de> serde::Deserialize<'de> for MediaType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let bad = || serde::de::Error::custom(format_args!("{name:?} is no media type of an artifact"));
        Self::from_name(&name).ok_or_else(bad)
    }
}

/// A value that is stored as a document.
pub trait Document: Serialize + DeserializeOwned {
    /// What it is.
    const MEDIA: MediaType;
    /// The version of its shape and of the semantics behind it. A reader refuses every other one.
    const VERSION: u32 = 1;

    /// Rules that the types alone do not state. The text names the field, the value and the rule.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Why a document cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// Bad JSON.
    #[error("{schema} document: {source}")]
    Json {
        /// Which kind was expected.
        schema: &'static str,
        /// What is wrong.
        source: JsonError,
    },
    /// Bad CBOR.
    #[error("{schema} document: {source}")]
    Cbor {
        /// Which kind was expected.
        schema: &'static str,
        /// What is wrong.
        source: CborError,
    },
    /// Another kind of document.
    #[error("expected a {expected} document, found {found}")]
    Kind {
        /// Which kind was expected.
        expected: &'static str,
        /// What it says it is, or that it says nothing.
        found: String,
    },
    /// A version this build does not read.
    #[error("{schema} document: version {found} is not supported, this build reads version {expected}")]
    Version {
        /// Which kind.
        schema: &'static str,
        /// The version this build reads.
        expected: u32,
        /// The version it has.
        found: String,
    },
    /// A rule of the document's own does not hold.
    #[error("{schema} document: {rule}")]
    Rule {
        /// Which kind.
        schema: &'static str,
        /// The field, the value and the rule.
        rule: String,
    },
    /// Larger than its kind may be.
    #[error("{schema} document: {bytes} bytes, more than the {max} allowed")]
    Size {
        /// Which kind.
        schema: &'static str,
        /// Its size.
        bytes: u64,
        /// The bound.
        max: u64,
    },
}

impl CodedError for DocumentError {
    fn exit_code(&self) -> ExitCode {
        ExitCode::BadInput
    }
}

/// The canonical bytes of a document, checked.
pub fn encode<D: Document>(document: &D) -> Result<Vec<u8>, DocumentError> {
    let schema = D::MEDIA.schema();
    document.check().map_err(|rule| DocumentError::Rule { schema, rule })?;
    let bytes = match D::MEDIA.encoding() {
        Encoding::Json => encode_json(document).map_err(|source| DocumentError::Json { schema, source })?,
        Encoding::Cbor | Encoding::Raw => {
            encode_cbor(document).map_err(|source| DocumentError::Cbor { schema, source })?
        }
    };
    check_size(D::MEDIA, bytes.len() as u64)?;
    Ok(bytes)
}

/// The document in canonical bytes, checked. Writing it again gives the same bytes: a document has one spelling.
pub fn decode<D: Document>(bytes: &[u8]) -> Result<D, DocumentError> {
    let schema = D::MEDIA.schema();
    check_size(D::MEDIA, bytes.len() as u64)?;
    let document: D = match D::MEDIA.encoding() {
        Encoding::Json => {
            let wrong = |source| DocumentError::Json { schema, source };
            let document = decode_json::<D>(json::from_canonical(bytes).map_err(wrong)?)?;
            let again = encode_json(&document).map_err(wrong)?;
            match json::first_difference(bytes, &again) {
                Some(offset) => return Err(wrong(JsonError::NotCanonical { offset })),
                None => document,
            }
        }
        Encoding::Cbor | Encoding::Raw => decode_cbor::<D>(bytes)?,
    };
    document.check().map_err(|rule| DocumentError::Rule { schema, rule })?;
    Ok(document)
}

/// A JSON document written by hand: any white space, key order and order of faults, everything else as [`decode`].
pub fn decode_loose<D: Document>(bytes: &[u8]) -> Result<D, DocumentError> {
    let schema = D::MEDIA.schema();
    check_size(D::MEDIA, bytes.len() as u64)?;
    let value = json::from_canonical(&canonical(schema, bytes)?);
    let document = decode_json::<D>(value.map_err(|source| DocumentError::Json { schema, source })?)?;
    document.check().map_err(|rule| DocumentError::Rule { schema, rule })?;
    Ok(document)
}

/// The canonical bytes of a JSON document written by hand, of which nothing else is checked.
pub fn canonical(schema: &'static str, bytes: &[u8]) -> Result<Vec<u8>, DocumentError> {
    let wrong = |source| DocumentError::Json { schema, source };
    let value: Json = serde_json::from_slice(bytes).map_err(|error| wrong(error.into()))?;
    json::to_canonical(&value).map_err(wrong)
}

/// The kind that a JSON document says it is, if it says one.
pub fn kind_of_json(bytes: &[u8]) -> Option<MediaType> {
    let value: Json = serde_json::from_slice(bytes).ok()?;
    let schema = value.get("schema")?.as_str()?;
    MediaType::ALL.iter().copied().find(|media| schema_name(media.schema()) == schema)
}

fn schema_name(schema: &str) -> String {
    format!("chaoscontrol.{schema}")
}

fn check_size(media: MediaType, bytes: u64) -> Result<(), DocumentError> {
    let max = media.max_bytes();
    if bytes > max { Err(DocumentError::Size { schema: media.schema(), bytes, max }) } else { Ok(()) }
}

fn encode_json<D: Document>(document: &D) -> Result<Vec<u8>, JsonError> {
    let mut value = serde_json::to_value(document)?;
    let fields = value.as_object_mut().expect("documents are structs");
    fields.insert("schema".to_owned(), schema_name(D::MEDIA.schema()).into());
    fields.insert("version".to_owned(), D::VERSION.into());
    json::to_canonical(&value)
}

fn decode_json<D: Document>(mut value: Json) -> Result<D, DocumentError> {
    let expected = D::MEDIA.schema();
    let not = |found: String| DocumentError::Kind { expected, found };
    let fields = value.as_object_mut().ok_or_else(|| not("a value that is no object".to_owned()))?;
    match fields.remove("schema") {
        Some(Json::String(name)) if name == schema_name(expected) => {}
        Some(other) => return Err(not(other.to_string())),
        None => return Err(not("an object without `schema`".to_owned())),
    }
    let version = fields.remove("version").unwrap_or(Json::Null);
    if version != D::VERSION {
        let found = version.to_string();
        return Err(DocumentError::Version { schema: expected, expected: D::VERSION, found });
    }
    serde_json::from_value(value).map_err(|error| DocumentError::Json { schema: expected, source: error.into() })
}

fn encode_cbor<D: Document>(document: &D) -> Result<Vec<u8>, CborError> {
    let shape = |error: ciborium::value::Error| CborError::Shape(error.to_string());
    let mut value = ciborium::Value::serialized(document).map_err(shape)?;
    let fields = value.as_map_mut().expect("documents are structs");
    fields.push(("schema".into(), schema_name(D::MEDIA.schema()).into()));
    fields.push(("version".into(), D::VERSION.into()));
    cbor::to_canonical(&value)
}

fn decode_cbor<D: Document>(bytes: &[u8]) -> Result<D, DocumentError> {
    let expected = D::MEDIA.schema();
    let wrong = |source| DocumentError::Cbor { schema: expected, source };
    let not = |found: String| DocumentError::Kind { expected, found };
    let mut value = cbor::value_from_canonical(bytes).map_err(wrong)?;
    let fields = value.as_map_mut().ok_or_else(|| not("a value that is no map".to_owned()))?;
    let mut take = |name: &str| {
        let at = fields.iter().position(|(key, _)| key.as_text() == Some(name))?;
        Some(fields.remove(at).1)
    };
    match take("schema") {
        Some(ciborium::Value::Text(name)) if name == schema_name(expected) => {}
        Some(ciborium::Value::Text(name)) => return Err(not(format!("{name:?}"))),
        _ => return Err(not("a map without `schema`".to_owned())),
    }
    let version = take("version").and_then(|version| version.as_integer()).map(i128::from);
    if version != Some(i128::from(D::VERSION)) {
        let found = version.map_or_else(|| "missing".to_owned(), |version| version.to_string());
        return Err(DocumentError::Version { schema: expected, expected: D::VERSION, found });
    }
    value.deserialized().map_err(|error| wrong(CborError::Shape(error.to_string())))
}

/// The kind that a CBOR document says it is, if it says one.
pub fn kind_of_cbor(bytes: &[u8]) -> Option<MediaType> {
    let value = cbor::value_from_canonical(bytes).ok()?;
    let schema = value.as_map()?.iter().find(|(key, _)| key.as_text() == Some("schema"))?.1.as_text()?;
    MediaType::ALL.iter().copied().find(|media| schema_name(media.schema()) == schema)
}

/// Every object that a document refers to: each value with exactly the fields of an [`ObjectRef`], wherever it stands.
pub fn references(media: MediaType, bytes: &[u8]) -> Vec<ObjectRef> {
    let mut found = Vec::new();
    match media.encoding() {
        Encoding::Json => {
            if let Ok(value) = serde_json::from_slice::<Json>(bytes) {
                references_in_json(&value, &mut found);
            }
        }
        Encoding::Cbor => {
            if let Ok(value) = cbor::value_from_canonical(bytes) {
                references_in_cbor(&value, &mut found);
            }
        }
        Encoding::Raw => {}
    }
    found
}

fn references_in_json(value: &Json, found: &mut Vec<ObjectRef>) {
    match value {
        Json::Array(items) => items.iter().for_each(|item| references_in_json(item, found)),
        Json::Object(fields) if fields.len() == 3 && fields.contains_key("digest") => {
            found.extend(serde_json::from_value::<ObjectRef>(value.clone()));
        }
        Json::Object(fields) => {
            fields.values().for_each(|item| references_in_json(item, found));
        }
        _ => {}
    }
}

fn references_in_cbor(value: &ciborium::Value, found: &mut Vec<ObjectRef>) {
    match value {
        ciborium::Value::Array(items) => items.iter().for_each(|item| references_in_cbor(item, found)),
        ciborium::Value::Map(fields)
            if fields.len() == 3 && fields.iter().any(|(key, _)| key.as_text() == Some("digest")) =>
        {
            if let Ok(reference) = value.deserialized() {
                found.push(reference);
            }
        }
        ciborium::Value::Map(fields) => fields.iter().for_each(|(_, item)| references_in_cbor(item, found)),
        _ => {}
    }
}

/// Checks bytes that are to be a document of this type; bytes of someone else's format always pass.
pub fn check(media: MediaType, bytes: &[u8]) -> Result<(), DocumentError> {
    use crate::schema::*;
    match media {
        MediaType::Descriptor => decode::<Descriptor>(bytes).map(drop),
        MediaType::Error => decode::<ErrorDescriptor>(bytes).map(drop),
        MediaType::Run => decode::<RunConfiguration>(bytes).map(drop),
        MediaType::Schedule => decode::<ScheduleDocument>(bytes).map(drop),
        MediaType::Snapshot => decode::<SnapshotManifest>(bytes).map(drop),
        MediaType::Corpus => decode::<Corpus>(bytes).map(drop),
        MediaType::Coverage => decode::<CoverageMap>(bytes).map(drop),
        MediaType::Trace => decode::<TraceDocument>(bytes).map(drop),
        MediaType::Bug => decode::<Bug>(bytes).map(drop),
        MediaType::MinimizedBug => decode::<MinimizedBug>(bytes).map(drop),
        MediaType::Reproduction => decode::<Reproduction>(bytes).map(drop),
        MediaType::Verdict => decode::<Verdict>(bytes).map(drop),
        MediaType::Assertions => decode::<Assertions>(bytes).map(drop),
        MediaType::Environment => decode::<Environment>(bytes).map(drop),
        MediaType::Profile => decode::<ProfileDocument>(bytes).map(drop),
        MediaType::Kernel | MediaType::Initrd | MediaType::Disk | MediaType::Console | MediaType::Turns => Ok(()),
    }
}
