// SPDX-License-Identifier: AGPL-3.0-or-later
//! Renews `advisories.json` from a checkout of the RustSec advisory database:
//! `cargo run -p chaoscontrol-policy -- PATH-OF-THE-CHECKOUT > checks/policy/advisories.json`

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use chaoscontrol_policy::Workspace;
use serde_json::{Value, json};

fn main() -> ExitCode {
    let Some(database) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("chaoscontrol-policy: name a checkout of the advisory database");
        return ExitCode::from(2);
    };
    match renew(&database) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("chaoscontrol-policy: {why}");
            ExitCode::from(3)
        }
    }
}

fn renew(database: &Path) -> Result<String, String> {
    let workspace = Workspace::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))?;
    let external = workspace.packages.iter().filter(|package| package.source.is_some());
    let names: BTreeSet<&str> = external.map(|package| package.name.as_str()).collect();
    let mut entries = Vec::new();
    for name in names {
        let Ok(files) = std::fs::read_dir(database.join("crates").join(name)) else { continue };
        for file in files.flatten() {
            let text = std::fs::read_to_string(file.path()).map_err(|e| format!("{}: {e}", file.path().display()))?;
            entries.extend(entry(name, &text));
        }
    }
    entries.sort_by_key(|entry| (entry["crate"].to_string(), entry["id"].to_string()));
    let lines: Vec<String> = entries.iter().map(|entry| format!("    {entry}")).collect();
    let database = json!({"commit": git(database, "%H")?, "date": git(database, "%cs")?, "licence": "CC0-1.0"});
    Ok(format!("{{\n  \"database\": {database},\n  \"advisories\": [\n{}\n  ]\n}}\n", lines.join(",\n")))
}

fn git(database: &Path, format: &str) -> Result<String, String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(database).args(["log", "-1", &format!("--format={format}")]);
    let output = command.output().map_err(|error| format!("starting git: {error}"))?;
    if !output.status.success() {
        return Err(format!("{}: {}", database.display(), String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What one advisory says, or nothing where it was withdrawn. Its facts stand in a block of TOML at the beginning of the page.
fn entry(name: &str, page: &str) -> Option<Value> {
    let facts = page.split("```toml").nth(1)?.split("```").next()?;
    let value = |key: &str| {
        let line = facts.lines().find(|line| line.split('=').next().map(str::trim) == Some(key))?;
        Some(line.split_once('=')?.1.trim().trim_matches('"').to_owned())
    };
    let list = |key: &str| -> Vec<String> {
        let begins = |line: &&str| line.split('=').next().map(str::trim) == Some(key);
        let Some(line) = facts.lines().find(begins) else { return Vec::new() };
        let start = facts.find(line).unwrap_or(0) + line.find('[').unwrap_or(0);
        let body = facts[start..].split(']').next().unwrap_or_default();
        body.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    };
    if value("withdrawn").is_some() {
        return None;
    }
    let kind = value("informational").unwrap_or_else(|| "vulnerability".to_owned());
    Some(
        json!({"id": value("id")?, "crate": name, "kind": kind, "patched": list("patched"), "unaffected": list("unaffected")}),
    )
}

#[cfg(test)]
mod tests {
    use super::entry;

    #[test]
    fn the_facts_of_a_page_are_read() {
        let page = "```toml\n[advisory]\nid = \"RUSTSEC-2000-0001\"\ninformational = \"unsound\"\n\n[versions]\npatched = [\n  \">= 1\",\n  \
                    \"^0.3\",\n]\nunaffected = []\n```\n\n# A title\n";
        let read = entry("x", page).unwrap();
        assert_eq!(read["id"], "RUSTSEC-2000-0001");
        assert_eq!(read["kind"], "unsound");
        assert_eq!(read["patched"], serde_json::json!([">= 1", "^0.3"]));
        assert!(entry("x", &page.replace("id =", "withdrawn = \"2001-01-01\"\nid =")).is_none());
    }
}
