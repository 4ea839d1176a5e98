// SPDX-License-Identifier: AGPL-3.0-or-later
//! Rules that many documents share, in the words that the contracts in `contracts/` state them in. A rule here has its twin
//! there; a test changes every field of good documents and sees that both sides judge alike.

use std::fmt::Display;

use serde::{Deserialize, Deserializer};

use super::{ObjectRef, Parameters, ToolIdentity};
use crate::document::MediaType;

/// Whether a rule holds; if not, the field, the value and the rule.
pub(crate) type Rule = Result<(), String>;

/// Longest name of a stage, a role, a tool or a parameter.
const NAME_MAX: usize = 64;
/// Parameters of one stage: a bound against hostile descriptors.
const PARAMETERS_MAX: usize = 256;
/// Texts in one parameter.
const TEXTS_MAX: usize = 4096;

pub(crate) fn within<T: PartialOrd + Display>(field: &str, value: T, min: T, max: T) -> Rule {
    if value < min || value > max {
        return Err(format!("{field} is {value}, it must lie between {min} and {max}"));
    }
    Ok(())
}

pub(crate) fn at_most(field: &str, entries: usize, max: usize) -> Rule {
    if entries > max { Err(format!("{field} has {entries} entries, at most {max} are allowed")) } else { Ok(()) }
}

pub(crate) fn one_of(field: &str, value: &str, names: &[&str]) -> Rule {
    if names.contains(&value) {
        return Ok(());
    }
    Err(format!("{field} is {value:?}, it must be one of {}", names.join(", ")))
}

pub(crate) fn media(field: &str, reference: &ObjectRef, kinds: &[MediaType]) -> Rule {
    if kinds.contains(&reference.media_type) {
        return Ok(());
    }
    let names: Vec<&str> = kinds.iter().map(|kind| kind.schema()).collect();
    Err(format!("{field} is a {}, it must be a {}", reference.media_type.schema(), names.join(" or a ")))
}

pub(crate) fn media_of(field: &str, reference: Option<&ObjectRef>, kind: MediaType) -> Rule {
    reference.map_or(Ok(()), |reference| media(field, reference, &[kind]))
}

/// A name of stages, roles and tools.
pub(crate) fn name(field: &str, text: &str) -> Rule {
    let is_name = text.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    if is_name && (1..=NAME_MAX).contains(&text.len()) {
        return Ok(());
    }
    Err(format!("{field} is {text:?}, it must be a name of 1 to {NAME_MAX} lower-case letters and dashes"))
}

pub(crate) fn tool(field: &str, tool: &ToolIdentity) -> Rule {
    name(&format!("{field}.name"), &tool.name)?;
    let is_number = |part: &str| (1..=9).contains(&part.len()) && part.bytes().all(|digit| digit.is_ascii_digit());
    let mut parts = tool.version.split('.');
    if tool.version.split('.').count() == 3 && parts.all(is_number) {
        return Ok(());
    }
    Err(format!("{field}.version is {:?}, it must be a version like 0.1.0", tool.version))
}

pub(crate) fn parameters(field: &str, parameters: &Parameters) -> Rule {
    at_most(field, parameters.len(), PARAMETERS_MAX)?;
    for (key, value) in parameters {
        let is_name = key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if !is_name || !(1..=NAME_MAX).contains(&key.len()) {
            let rule = "must be 1 to 64 lower-case letters, digits and underscores";
            return Err(format!("{field} has the name {key:?}, it {rule}"));
        }
        if let super::Parameter::List(texts) = value {
            at_most(&format!("{field}.{key}"), texts.len(), TEXTS_MAX)?;
        }
    }
    Ok(())
}

/// For fields that may be null and may not be absent.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer)
}

/// For fields that may be absent and may not be null.
pub(crate) fn not_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
