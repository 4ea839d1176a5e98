// SPDX-License-Identifier: AGPL-3.0-or-later
//! What stages hand to each other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ObjectRef, Receipt, rule};
use crate::Digest;
use crate::document::{self, Document, DocumentError, MediaType};
use crate::exit_code::ExitCode;

/// Links of one descriptor.
const LINKS_MAX: usize = 16_384;

/// Who wrote something: never a digest of an executable, which differs between builds of one source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolIdentity {
    /// The binary's name.
    pub name: String,
    /// Its package version.
    pub version: String,
    /// BLAKE3 over source files and Cargo.lock.
    pub source: Digest,
}

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Parameter {
    /// A switch.
    Flag(bool),
    /// A number that JSON holds exactly.
    Number(u32),
    /// Text; 64-bit values are decimal text.
    Text(String),
    /// Several texts.
    List(Vec<String>),
}

impl From<u64> for Parameter {
    fn from(value: u64) -> Self {
        Self::Text(value.to_string())
    }
}

impl From<&str> for Parameter {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

/// Parameters by name.
pub type Parameters = BTreeMap<String, Parameter>;

/// An object and what it is to the stage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// What it is to the stage, for instance `snapshot`; roles may repeat (several bugs).
    pub role: String,
    /// The object.
    pub object: ObjectRef,
}

impl Link {
    /// A link.
    pub fn new(role: &str, object: ObjectRef) -> Self {
        Self { role: role.to_owned(), object }
    }
}

/// What a stage read, with which parameters, and what it wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// The stage's name, for instance `explore-round`.
    pub stage: String,
    /// The tool that ran.
    pub tool: ToolIdentity,
    /// Everything that changed what the stage did. Paths and numbers of threads are not among them.
    pub parameters: Parameters,
    /// Objects read. Role `previous` is the descriptor that the stage was given.
    pub inputs: Vec<Link>,
    /// Objects written.
    pub outputs: Vec<Link>,
    /// Only in what `chaos-receipt` writes.
    #[serde(default, deserialize_with = "rule::not_null", skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
}

impl Descriptor {
    /// The output with this role, if there is exactly one.
    pub fn output(&self, role: &str) -> Option<ObjectRef> {
        let mut found = self.outputs.iter().filter(|link| link.role == role);
        let first = found.next()?;
        if found.next().is_some() { None } else { Some(first.object) }
    }

    /// All outputs with this role, in order.
    pub fn outputs_of<'a>(&'a self, role: &'a str) -> impl Iterator<Item = ObjectRef> + 'a {
        self.outputs.iter().filter(move |link| link.role == role).map(|link| link.object)
    }

    /// The descriptor that the stage was given.
    pub fn previous(&self) -> Option<ObjectRef> {
        self.inputs.iter().find(|link| link.role == "previous").map(|link| link.object)
    }

    /// The descriptors of all stages that this one follows: `previous`, and after a merge the other shards.
    pub fn before(&self) -> impl Iterator<Item = ObjectRef> + '_ {
        self.inputs.iter().filter(|link| link.role == "previous" || link.role == "shard").map(|link| link.object)
    }

    /// A parameter that is 64-bit text.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.parameters.get(name)? {
            Parameter::Number(number) => Some(u64::from(*number)),
            Parameter::Text(text) => crate::number::parse_u64(text),
            Parameter::Flag(_) | Parameter::List(_) => None,
        }
    }
}

impl Document for Descriptor {
    const MEDIA: MediaType = MediaType::Descriptor;

    fn check(&self) -> Result<(), String> {
        rule::name("stage", &self.stage)?;
        rule::tool("tool", &self.tool)?;
        rule::parameters("parameters", &self.parameters)?;
        for (field, links) in [("inputs", &self.inputs), ("outputs", &self.outputs)] {
            rule::at_most(field, links.len(), LINKS_MAX)?;
            links.iter().try_for_each(|link| check_link(field, link))?;
        }
        let previous = self.inputs.iter().filter(|link| link.role == "previous");
        if previous.count() > 1 {
            return Err("inputs names more than one previous stage".to_owned());
        }
        if (self.stage == "receipt") != self.receipt.is_some() {
            return Err("receipt must be there in the descriptor of stage receipt, and only there".to_owned());
        }
        self.receipt.as_ref().map_or(Ok(()), Receipt::check)
    }
}

/// A role that is a kind's name holds objects of that kind; bugs may be minimized ones.
fn check_link(field: &str, link: &Link) -> rule::Rule {
    rule::name(&format!("{field}.role"), &link.role)?;
    let follows = link.role == "previous" || link.role == "shard";
    let kind = if follows { "descriptor" } else { &link.role };
    let Some(kind) = MediaType::ALL.iter().copied().find(|media| media.schema() == kind) else { return Ok(()) };
    let is_bug = kind == MediaType::Bug && link.object.media_type == MediaType::MinimizedBug;
    if is_bug { Ok(()) } else { rule::media(&format!("{field}.{}", link.role), &link.object, &[kind]) }
}

/// That a stage failed. Later stages pass it on as it is and end with its code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorDescriptor {
    /// The stage that failed.
    pub stage: String,
    /// The tool that ran.
    pub tool: ToolIdentity,
    /// The exit code.
    pub exit_code: u8,
    /// What went wrong, for people. May hold paths: no digest covers it.
    pub message: String,
}

impl Document for ErrorDescriptor {
    const MEDIA: MediaType = MediaType::Error;

    fn check(&self) -> Result<(), String> {
        rule::name("stage", &self.stage)?;
        rule::tool("tool", &self.tool)?;
        match ExitCode::from_number(self.exit_code) {
            Some(code) if code != ExitCode::Success => Ok(()),
            _ => Err(format!("exit_code is {}, it must be a documented code other than 0", self.exit_code)),
        }
    }
}

/// What a stage was given.
#[derive(Clone, Debug)]
pub enum Handoff {
    /// The stage before did its work.
    Descriptor(Box<Descriptor>),
    /// A stage before failed.
    Error(ErrorDescriptor),
}

/// Reads a descriptor or an error descriptor. Hand-made white space is accepted; the descriptor's digest is that of its
/// canonical form.
pub fn read_handoff(bytes: &[u8]) -> Result<Handoff, DocumentError> {
    if document::kind_of_json(bytes) == Some(MediaType::Error) {
        return document::decode_loose(bytes).map(Handoff::Error);
    }
    document::decode_loose(bytes).map(|descriptor| Handoff::Descriptor(Box::new(descriptor)))
}
