// SPDX-License-Identifier: AGPL-3.0-or-later
//! The contracts and the Rust types judge alike: every field of every good document is removed, given other types, and put
//! out of range, and both sides must give the same answer.

mod support;

use std::collections::BTreeMap;

use chaoscontrol_artifact::contract::wire::Item;
use chaoscontrol_artifact::document::{self, Encoding};
use chaoscontrol_artifact::schema::ScheduleDocument;
use chaoscontrol_artifact::{MediaType, cbor, json};
use ciborium::Value as Cbor;
use serde_json::{Value as Json, json as value};
use support::{checker, item, samples};

/// Maps whose entries may come and go: their names are data.
const OPEN_MAPS: &[&str] = &["parameters", "facts", "faults", "labels"];

/// Fields that may be absent.
const OPTIONAL: &[&str] =
    &[".choices", ".claims", ".closest", ".coverage", ".kvm", ".record.turns", ".settle_ns", ".smp"];

/// How a document was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Removed,
    Retyped,
    Ranged,
}

/// A changed document.
struct Mutant {
    kind: MediaType,
    /// Which field of which document, and what it became.
    what: String,
    field: String,
    change: Change,
    bytes: Vec<u8>,
}

/// A place in a document.
type Place = Vec<Step>;

#[derive(Clone, Debug)]
enum Step {
    Field(String),
    Item(usize),
}

fn shown(place: &[Step]) -> String {
    let step = |step: &Step| match step {
        Step::Field(name) => format!(".{name}"),
        Step::Item(index) => format!("[{index}]"),
    };
    place.iter().map(step).collect()
}

/// Every place in a JSON value, the whole left out.
fn places(json: &Json, at: &Place, found: &mut Vec<Place>) {
    let mut go = |step: Step, item: &Json| {
        let place: Place = at.iter().cloned().chain([step]).collect();
        found.push(place.clone());
        places(item, &place, found);
    };
    match json {
        Json::Object(fields) => fields.iter().for_each(|(name, item)| go(Step::Field(name.clone()), item)),
        // Of many alike the first will do; events of a schedule are of different kinds.
        Json::Array(items) => {
            let alike = |item: &Json| item.get("fault").is_none() && item.get("event").is_none();
            let tried = items.iter().enumerate().filter(|(index, item)| *index == 0 || !alike(item));
            tried.for_each(|(index, item)| go(Step::Item(index), item));
        }
        _ => {}
    }
}

fn at<'a>(json: &'a mut Json, place: &[Step]) -> &'a mut Json {
    place.iter().fold(json, |json, step| match step {
        Step::Field(name) => json.get_mut(name).unwrap(),
        Step::Item(index) => json.get_mut(index).unwrap(),
    })
}

fn removed(json: &Json, place: &[Step]) -> Json {
    let mut json = json.clone();
    let (last, parent) = place.split_last().unwrap();
    match (at(&mut json, parent), last) {
        (Json::Object(fields), Step::Field(name)) => drop(fields.remove(name)),
        (Json::Array(items), Step::Item(index)) => drop(items.remove(*index)),
        _ => unreachable!("a place leads into its document"),
    }
    json
}

/// Values of other types than this one.
fn retyped(now: &Json) -> Vec<Json> {
    let all =
        [value!(null), value!(true), value!(7), value!("x"), value!([]), value!({}), value!([[1]]), value!({"a": 1})];
    all.into_iter().filter(|other| std::mem::discriminant(other) != std::mem::discriminant(now)).collect()
}

/// Values of the same type, most of them out of range.
fn ranged(now: &Json) -> Vec<Json> {
    match now {
        Json::Number(number) => {
            let near = number.as_i64().unwrap_or(0);
            [-1, 0, near + 1, 33, 65_537, 1 << 32, json::INTEGER_MAX as i64].map(Json::from).to_vec()
        }
        Json::String(text) => {
            let fixed = ["", "0", "01", "-1", "1.5", "18446744073709551616"];
            let mut texts: Vec<String> = fixed.map(str::to_owned).to_vec();
            texts.extend([
                format!("{text}x"),
                text.to_uppercase(),
                text.chars().skip(1).collect(),
                format!("{text}\n"),
            ]);
            texts.into_iter().map(Json::from).collect()
        }
        Json::Array(items) => {
            let doubled: Vec<Json> = items.iter().chain(items).cloned().collect();
            let many: Vec<Json> = items.iter().cycle().take(if items.is_empty() { 0 } else { 1100 }).cloned().collect();
            vec![
                Json::Array(Vec::new()),
                Json::Array(doubled),
                items.iter().rev().cloned().collect(),
                Json::Array(many),
            ]
        }
        Json::Object(fields) => {
            let mut more = fields.clone();
            more.insert("extra".to_owned(), value!(1));
            vec![Json::Object(more)]
        }
        Json::Bool(switch) => vec![value!(!switch)],
        Json::Null => Vec::new(),
    }
}

fn mutants_of(kind: MediaType, name: &str, whole: &Json, bytes: impl Fn(&Json) -> Option<Vec<u8>>) -> Vec<Mutant> {
    let mut found = vec![Vec::new()];
    places(whole, &Vec::new(), &mut found);
    let mut mutants = Vec::new();
    for place in found {
        let mut add = |change: Change, to: &str, json: &Json| {
            let Some(bytes) = bytes(json) else { return };
            let field = format!("{name}{}", shown(&place));
            mutants.push(Mutant { kind, what: format!("{field} {to}"), field, change, bytes });
        };
        if !place.is_empty() {
            add(Change::Removed, "removed", &removed(whole, &place));
        }
        let now = at(&mut whole.clone(), &place).clone();
        let others = retyped(&now).into_iter().map(|other| (Change::Retyped, other));
        for (change, other) in others.chain(ranged(&now).into_iter().map(|other| (Change::Ranged, other))) {
            let mut json = whole.clone();
            *at(&mut json, &place) = other.clone();
            let to: String = other.to_string().chars().take(60).collect();
            add(change, &format!("to {to}"), &json);
        }
    }
    mutants
}

/// JSON mutants keep the digest that covers a part of them: what is tried is the part.
fn refreshed(kind: MediaType, json: &Json) -> Json {
    let mut json = json.clone();
    if kind == MediaType::Profile
        && let Some(Ok(values)) = json.get("values").map(json::to_canonical)
        && json.get("projection").is_some_and(|projection| projection.as_str().is_some_and(|text| text.len() == 64))
    {
        json["projection"] = chaoscontrol_artifact::Digest::of(&values).to_string().into();
    }
    json
}

/// CBOR as JSON that says which strings are bytes, and back.
fn to_json(value: &Cbor) -> Json {
    match value {
        Cbor::Bytes(bytes) => value!({"bytes": bytes}),
        Cbor::Array(items) => items.iter().map(to_json).collect(),
        Cbor::Map(fields) => fields
            .iter()
            .map(|(key, item)| (key.as_text().unwrap().to_owned(), to_json(item)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Cbor::Integer(integer) => value!(u64::try_from(*integer).unwrap()),
        Cbor::Text(text) => value!(text),
        other => panic!("{other:?} stands in no document"),
    }
}

fn to_cbor(json: &Json) -> Option<Cbor> {
    Some(match json {
        Json::Null => Cbor::Null,
        Json::Bool(switch) => Cbor::Bool(*switch),
        Json::Number(number) => number.as_u64().map(Cbor::from).or(number.as_i64().map(Cbor::from))?,
        Json::String(text) => Cbor::Text(text.clone()),
        Json::Array(items) => Cbor::Array(items.iter().map(to_cbor).collect::<Option<_>>()?),
        Json::Object(fields) => match fields.get("bytes") {
            Some(Json::Array(bytes)) if fields.len() == 1 => {
                let byte = |byte: &Json| byte.as_u64().and_then(|byte| u8::try_from(byte).ok());
                Cbor::Bytes(bytes.iter().map(byte).collect::<Option<_>>()?)
            }
            _ => Cbor::Map(
                fields.iter().map(|(key, item)| Some((key.as_str().into(), to_cbor(item)?))).collect::<Option<_>>()?,
            ),
        },
    })
}

fn all_mutants() -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for sample in samples("good") {
        let kind = sample.kind;
        if kind.encoding() == Encoding::Json {
            let whole: Json = serde_json::from_slice(&sample.bytes).unwrap();
            let bytes = |json: &Json| json::to_canonical(&refreshed(kind, json)).ok();
            mutants.extend(mutants_of(kind, &sample.name, &whole, bytes));
        } else {
            let whole = to_json(&cbor::value_from_canonical(&sample.bytes).unwrap());
            let bytes = |json: &Json| cbor::to_canonical(&to_cbor(json)?).ok();
            mutants.extend(mutants_of(kind, &sample.name, &whole, bytes));
        }
    }
    mutants
}

/// What the Rust types say. Schedules on their own are written by people, in any order.
fn judged_by_types(mutant: &Mutant) -> Result<(), document::DocumentError> {
    match mutant.kind {
        MediaType::Schedule => document::decode_loose::<ScheduleDocument>(&mutant.bytes).map(drop),
        kind => document::check(kind, &mutant.bytes),
    }
}

/// Which mutants the contracts refuse.
fn refused_by_contract(mutants: &[Mutant]) -> Vec<bool> {
    let items: Vec<Item> = mutants.iter().map(|mutant| item(mutant.kind, &mutant.what, &mutant.bytes)).collect();
    let mut refused = vec![false; mutants.len()];
    // Several calls, two at a time: a call's memory and time are bounded.
    let chunks: Vec<(usize, &[Item])> = items.chunks(1000).enumerate().collect();
    for pair in chunks.chunks(2) {
        let call = |(number, chunk): &(usize, &[Item])| (number * 1000, checker().check(chunk).unwrap());
        let answers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = pair.iter().map(|chunk| scope.spawn(move || call(chunk))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (first, breaches) in answers {
            breaches.iter().for_each(|breach| refused[first + breach.index] = true);
        }
    }
    refused
}

/// What only one side can see, each with the reason.
fn one_side_only(mutant: &Mutant) -> bool {
    match mutant.kind {
        // The bytes themselves are not in the view: order and contents of pages and slots are the Rust types' to check.
        MediaType::Snapshot => mutant.field.contains(".pages"),
        MediaType::Coverage => mutant.field.contains(".slots") || mutant.field.contains(".edges"),
        _ => false,
    }
}

#[test]
fn contracts_and_types_judge_every_changed_field_alike() {
    let mutants = all_mutants();
    let by_contract = refused_by_contract(&mutants);
    let mut wrong = Vec::new();
    let mut refusals: BTreeMap<(&str, Change), (usize, usize)> = BTreeMap::new();
    for (mutant, by_contract) in mutants.iter().zip(by_contract) {
        let by_types = judged_by_types(mutant);
        if by_contract != by_types.is_err() && !(by_types.is_err() && one_side_only(mutant)) {
            let error = by_types.err().map_or("accepted".to_owned(), |error| format!("refused: {error}"));
            let contract = if by_contract { "refused" } else { "accepted" };
            wrong.push(format!("{}: contract {contract}, types {error}", mutant.what));
        }
        let counts = refusals.entry((&mutant.field, mutant.change)).or_default();
        counts.0 += usize::from(by_contract);
        counts.1 += 1;
    }
    println!("{} changed documents", mutants.len());
    assert!(wrong.is_empty(), "{} of {} judged differently:\n{}", wrong.len(), mutants.len(), wrong.join("\n"));
    every_field_is_guarded(&refusals);
}

/// Removing a field and giving it another type is refused everywhere but where data may vary.
fn every_field_is_guarded(refusals: &BTreeMap<(&str, Change), (usize, usize)>) {
    let mut open = Vec::new();
    for ((field, change), (refused, tried)) in refusals {
        let is_entry = OPEN_MAPS
            .iter()
            .any(|map| field.rsplit_once('.').is_some_and(|(parent, _)| parent.ends_with(&format!(".{map}"))));
        let is_item = field.ends_with(']') || OPTIONAL.iter().any(|name| field.ends_with(name));
        let guarded = match change {
            Change::Removed => is_entry || is_item || refused == tried,
            Change::Retyped => *refused > 0,
            Change::Ranged => true,
        };
        if !guarded {
            open.push(format!("{field} {change:?}: {refused} of {tried} refused"));
        }
    }
    assert!(open.is_empty(), "{}", open.join("\n"));
}
