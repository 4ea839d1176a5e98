// SPDX-License-Identifier: AGPL-3.0-or-later
//! Holds the dependencies of the workspace against the rules beside this crate, without a network: `rules.json` is what we allow,
//! `advisories.json` what the RustSec database says about the crates that we use (`cargo run -p chaoscontrol-policy` renews it).

mod licence;
mod metadata;
mod version;

pub use licence::satisfied;
pub use metadata::{Package, Workspace};
pub use version::Version;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What is allowed.
#[derive(Debug)]
pub struct Rules {
    /// Licences of crates that host tools may contain.
    host_licences: BTreeSet<String>,
    /// Licences of crates that guest programs may contain: they are linked into users' programs.
    guest_licences: BTreeSet<String>,
    /// Crates that may not be used, with the reason.
    banned: BTreeMap<String, String>,
    /// Crates that may be there in several versions, with the reason.
    several_versions: BTreeMap<String, String>,
    /// Advisories that are known and do not matter, with the reason.
    accepted_advisories: BTreeMap<String, String>,
}

impl Rules {
    /// Reads `rules.json`.
    ///
    /// # Errors
    /// When it is not of the expected shape.
    pub fn parse(text: &str) -> Result<Self, String> {
        let json: Value = serde_json::from_str(text).map_err(|error| format!("rules.json: {error}"))?;
        let list = |name: &str| -> Result<BTreeSet<String>, String> {
            let items = json[name].as_array().ok_or_else(|| format!("rules.json: {name} must be a list"))?;
            Ok(items.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        };
        let reasons = |name: &str| -> Result<BTreeMap<String, String>, String> {
            let items = json[name].as_object().ok_or_else(|| format!("rules.json: {name} must be an object"))?;
            let reason = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            Ok(items.iter().map(|(name, value)| (name.clone(), reason(value))).collect())
        };
        Ok(Self {
            host_licences: list("host_licences")?,
            guest_licences: list("guest_licences")?,
            banned: reasons("banned")?,
            several_versions: reasons("several_versions")?,
            accepted_advisories: reasons("accepted_advisories")?,
        })
    }
}

/// One entry of the advisory data.
#[derive(Debug)]
pub struct Advisory {
    id: String,
    package: String,
    kind: String,
    /// Version requirements that are not affected.
    safe: Vec<String>,
}

/// Reads `advisories.json`.
///
/// # Errors
/// When it is not of the expected shape.
pub fn advisories(text: &str) -> Result<Vec<Advisory>, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| format!("advisories.json: {error}"))?;
    let list = json["advisories"].as_array().ok_or("advisories.json: advisories must be a list")?;
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let one = |entry: &Value| {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let safe = [texts(&entry["patched"]), texts(&entry["unaffected"])].concat();
        Advisory { id: text("id"), package: text("crate"), kind: text("kind"), safe }
    };
    Ok(list.iter().map(one).collect())
}

/// Every rule that the workspace breaks, one line each.
#[must_use]
pub fn problems(workspace: &Workspace, rules: &Rules, advisories: &[Advisory]) -> Vec<String> {
    let mut problems = licences(workspace, rules);
    problems.extend(sources(workspace, rules));
    problems.extend(versions(workspace, rules));
    problems.extend(advised(workspace, rules, advisories));
    problems
}

fn licences(workspace: &Workspace, rules: &Rules) -> Vec<String> {
    let guest = workspace.reached_from(|package| package.source.is_none() && package.manifest.starts_with("guest/"));
    let mut problems = Vec::new();
    for package in &workspace.packages {
        let name = &package.name;
        if package.source.is_none() {
            let expected = if package.manifest.starts_with("guest/") { "Apache-2.0" } else { "AGPL-3.0-or-later" };
            if package.licence.as_deref() != Some(expected) {
                problems.push(format!("{name}: its manifest must say license = \"{expected}\""));
            }
            continue;
        }
        let (allowed, whose) = match guest.contains(&package.id) {
            true => (&rules.guest_licences, "guest programs"),
            false => (&rules.host_licences, "host tools"),
        };
        match &package.licence {
            None => problems.push(format!("{name} {}: it names no licence", package.version)),
            Some(licence) => match satisfied(licence, &|one| allowed.contains(one)) {
                Ok(true) => {}
                Ok(false) => {
                    problems.push(format!("{name} {}: licence {licence} is not allowed in {whose}", package.version));
                }
                Err(why) => problems.push(format!("{name} {}: licence {licence:?}: {why}", package.version)),
            },
        }
    }
    problems
}

fn sources(workspace: &Workspace, rules: &Rules) -> Vec<String> {
    let programs = workspace.reached_from(|package| package.source.is_none());
    let external = workspace.packages.iter().filter_map(|package| Some((package, package.source.as_deref()?)));
    let registries: BTreeSet<&str> = external.clone().map(|(_, source)| source).collect();
    let mut problems = Vec::new();
    if registries.len() > 1 {
        problems.push(format!("crates come from several places: {}", Vec::from_iter(registries).join(", ")));
    }
    for (package, source) in external {
        if !source.starts_with("registry+") {
            problems.push(format!("{}: it comes from {source}, not from a registry", package.name));
        }
        // What only tests use is in no program.
        if let Some(reason) = rules.banned.get(&package.name).filter(|_| programs.contains(&package.id)) {
            problems.push(format!("{} {}: banned: {reason}", package.name, package.version));
        }
    }
    problems
}

fn versions(workspace: &Workspace, rules: &Rules) -> Vec<String> {
    let mut by_name: BTreeMap<&str, Vec<&Version>> = BTreeMap::new();
    for package in workspace.packages.iter().filter(|package| package.source.is_some()) {
        by_name.entry(&package.name).or_default().push(&package.version);
    }
    let several: BTreeSet<&str> = by_name.iter().filter(|(_, v)| v.len() > 1).map(|(name, _)| *name).collect();
    let listed: BTreeSet<&str> = rules.several_versions.keys().map(String::as_str).collect();
    let unlisted = several.difference(&listed).map(|name| {
        let versions: Vec<String> = by_name[name].iter().map(ToString::to_string).collect();
        format!("{name}: versions {} at once: unify them, or say why in several_versions", versions.join(" and "))
    });
    let stale = listed.difference(&several).map(|name| format!("several_versions names {name}, which has one version"));
    unlisted.chain(stale).collect()
}

fn advised(workspace: &Workspace, rules: &Rules, advisories: &[Advisory]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut met = BTreeSet::new();
    for advisory in advisories {
        for package in workspace.packages.iter().filter(|p| p.name == advisory.package && p.source.is_some()) {
            match package.version.is_one_of(&advisory.safe) {
                Err(why) => problems.push(format!("{}: {why}", advisory.id)),
                Ok(true) => {}
                Ok(false) if rules.accepted_advisories.contains_key(&advisory.id) => {
                    met.insert(advisory.id.as_str());
                }
                Ok(false) => {
                    let (name, version) = (&package.name, &package.version);
                    problems.push(format!("{name} {version}: {} ({})", advisory.id, advisory.kind));
                }
            }
        }
    }
    let stale = rules.accepted_advisories.keys().filter(|id| !met.contains(id.as_str()));
    problems.extend(stale.map(|id| format!("accepted_advisories names {id}, which no crate here is affected by")));
    problems
}
