// SPDX-License-Identifier: AGPL-3.0-or-later
//! How an event is written: one flat map of `time_ns`, `fault` (the kind's name) and the kind's parameters.
//!
//! Numbers are integers. 64-bit ones (and `time_ns`) are strings of decimal digits, so that no JSON reader rounds them.
//! Reading is strict: an unknown, missing, repeated or wrongly typed field is an error that names it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::schedule::is_skew;
use crate::{Fault, FaultEvent, FaultKind, SPECS, Width};

impl Serialize for FaultEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let spec = self.fault.kind().spec();
        let mut map = serializer.serialize_map(Some(spec.parameters.len() + 2))?;
        map.serialize_entry("fault", spec.name)?;
        for (parameter, value) in spec.parameters.iter().zip(self.fault.values()) {
            match parameter.width {
                Width::Small => {
                    let small = u32::try_from(value).map_err(serde::ser::Error::custom)?;
                    map.serialize_entry(parameter.name, &small)?;
                }
                Width::Wide => map.serialize_entry(parameter.name, &value.to_string())?,
            }
        }
        map.serialize_entry("time_ns", &self.time_ns.to_string())?;
        map.end()
    }
}

/// A field's value before the kind is known.
enum Scalar {
    Text(String),
    Number(i128),
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarVisitor;
        impl Visitor<'_> for ScalarVisitor {
            type Value = Scalar;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an integer or a string")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(text.to_owned()))
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar::Number(i128::from(number)))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar::Number(i128::from(number)))
            }
        }
        deserializer.deserialize_any(ScalarVisitor)
    }
}

/// Decimal digits without leading zeros or a plus sign, so that a value has one spelling.
fn wide<E: Error>(field: &str, value: Option<&Scalar>) -> Result<i128, E> {
    let text = match value {
        Some(Scalar::Text(text)) => text,
        Some(Scalar::Number(number)) => {
            return Err(E::custom(format!("{field} must be a string of digits: write \"{number}\", not {number}")));
        }
        None => return Err(E::custom(format!("{field} is missing"))),
    };
    match text.parse::<i128>() {
        Ok(number) if number.to_string() == *text => Ok(number),
        _ => Err(E::custom(format!("{field} is {text:?}, it must be a decimal integer"))),
    }
}

fn small<E: Error>(field: &str, value: Option<&Scalar>) -> Result<i128, E> {
    match value {
        Some(Scalar::Number(number)) => Ok(*number),
        Some(Scalar::Text(text)) => Err(E::custom(format!("{field} must be a number, not the string {text:?}"))),
        None => Err(E::custom(format!("{field} is missing"))),
    }
}

fn event_from_fields<E: Error>(fields: &BTreeMap<String, Scalar>) -> Result<FaultEvent, E> {
    let kind = match fields.get("fault") {
        Some(Scalar::Text(name)) => FaultKind::from_name(name).ok_or_else(|| {
            let names: Vec<&str> = SPECS.iter().map(|spec| spec.name).collect();
            E::custom(format!("fault {name:?} is unknown; there are {}", names.join(", ")))
        })?,
        Some(Scalar::Number(number)) => return Err(E::custom(format!("fault is {number}, it must be a kind's name"))),
        None => return Err(E::custom("fault is missing: it names the kind")),
    };
    let spec = kind.spec();
    let known = |name: &str| {
        name == "fault" || name == "time_ns" || spec.parameters.iter().any(|parameter| parameter.name == name)
    };
    if let Some(name) = fields.keys().find(|name| !known(name)) {
        return Err(E::custom(format!("{} has no parameter {name:?}", spec.name)));
    }
    let time = wide::<E>("time_ns", fields.get("time_ns"))?;
    let time_ns = u64::try_from(time).map_err(|_| E::custom(format!("time_ns {time} does not fit 64 bits")))?;
    let mut values = Vec::with_capacity(spec.parameters.len());
    for parameter in spec.parameters {
        let read = if parameter.width == Width::Wide { wide::<E> } else { small::<E> };
        let value = read(parameter.name, fields.get(parameter.name))?;
        let (min, max) = (parameter.domain.min, parameter.domain.max);
        if value < min || value > max {
            let (fault, name) = (spec.name, parameter.name);
            return Err(E::custom(format!("{fault} {name} is {value}, it must lie between {min} and {max}")));
        }
        values.push(value);
    }
    let fault = Fault::from_values(kind, &values).ok_or_else(|| E::custom("a value does not fit its type"))?;
    if let Fault::ClockSkew { numerator, denominator, .. } = fault
        && !is_skew(numerator, denominator)
    {
        return Err(E::custom(format!("clock_skew ratio {numerator}/{denominator} must lie between 1/10 and 10")));
    }
    Ok(FaultEvent { time_ns, fault })
}

impl<'de> Deserialize<'de> for FaultEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EventVisitor;
        impl<'de> Visitor<'de> for EventVisitor {
            type Value = FaultEvent;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map with time_ns, fault and the fault's parameters")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FaultEvent, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Scalar>()? {
                    if fields.len() > 16 {
                        return Err(A::Error::custom("no fault has so many parameters"));
                    }
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format!("{name} is given twice")));
                    }
                    fields.insert(name, value);
                }
                event_from_fields(&fields)
            }
        }
        deserializer.deserialize_map(EventVisitor)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Fault, FaultEvent, SPECS, Schedule};

    fn refused(json: &str) -> String {
        serde_json::from_str::<Schedule>(&format!("{{\"events\":[{json}]}}")).unwrap_err().to_string()
    }

    #[test]
    fn a_schedule_is_written_with_integers_and_strings_only() {
        let event = FaultEvent { time_ns: 1 << 60, fault: Fault::ClockJump { vm: 2, jump_ns: -5 } };
        let schedule = Schedule::new(vec![event]).unwrap();
        let json = serde_json::to_string(&schedule).unwrap();
        assert_eq!(
            json,
            r#"{"events":[{"fault":"clock_jump","vm":2,"jump_ns":"-5","time_ns":"1152921504606846976"}]}"#
        );
        assert_eq!(serde_json::from_str::<Schedule>(&json).unwrap(), schedule);
    }

    #[test]
    fn every_kind_survives_writing_and_reading_at_both_ends_of_its_bounds() {
        for spec in SPECS {
            for high in [false, true] {
                let value = |domain: crate::Domain| if high { domain.max } else { domain.min };
                let values: Vec<i128> = spec.parameters.iter().map(|parameter| value(parameter.domain)).collect();
                let event = FaultEvent { time_ns: u64::MAX, fault: Fault::from_values(spec.kind, &values).unwrap() };
                let json = serde_json::to_string(&event).unwrap();
                assert_eq!(serde_json::from_str::<FaultEvent>(&json).unwrap(), event, "{json}");
            }
        }
    }

    #[test]
    fn bad_documents_are_refused_by_the_name_of_the_field() {
        let cases = [
            (r#"{"fault":"vm_reboot","vm":0,"time_ns":"1"}"#, "\"vm_reboot\" is unknown"),
            (r#"{"fault":"vm_restart","time_ns":"1"}"#, "vm is missing"),
            (r#"{"fault":"vm_restart","vm":0}"#, "time_ns is missing"),
            (r#"{"fault":"vm_restart","vm":0,"time_ns":1}"#, "time_ns must be a string of digits"),
            (r#"{"fault":"vm_restart","vm":"0","time_ns":"1"}"#, "vm must be a number"),
            (r#"{"fault":"vm_restart","vm":0,"vm":0,"time_ns":"1"}"#, "vm is given twice"),
            (r#"{"fault":"vm_restart","vm":0,"time_ns":"01"}"#, "time_ns is \"01\""),
            (r#"{"fault":"vm_restart","vm":0,"time_ns":"-1"}"#, "time_ns -1 does not fit"),
            (r#"{"fault":"vm_restart","vm":0,"disk":0,"time_ns":"1"}"#, "no parameter \"disk\""),
            (r#"{"fault":"vm_restart","vm":70000,"time_ns":"1"}"#, "vm is 70000"),
            (r#"{"vm":0,"time_ns":"1"}"#, "fault is missing"),
            (r#"{"fault":"vm_restart","vm":1.5,"time_ns":"1"}"#, "an integer or a string"),
        ];
        for (json, message) in cases {
            assert!(refused(json).contains(message), "{json}: {}", refused(json));
        }
    }
}
