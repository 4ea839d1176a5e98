// SPDX-License-Identifier: AGPL-3.0-or-later
//! What `cargo metadata` says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Version;

/// A crate in one version.
#[derive(Debug)]
pub struct Package {
    /// Cargo's name for it.
    pub id: String,
    /// Name.
    pub name: String,
    /// Version.
    pub version: Version,
    /// Licence expression.
    pub licence: Option<String>,
    /// Where it comes from; none is the workspace.
    pub source: Option<String>,
    /// Path of its manifest, below the root for crates of the workspace.
    pub manifest: String,
}

/// All crates that the lock file names, and who depends on whom.
#[derive(Debug)]
pub struct Workspace {
    /// The crates.
    pub packages: Vec<Package>,
    depends_on: BTreeMap<String, Vec<String>>,
}

impl Workspace {
    /// Asks cargo, which fetches the manifests of crates for other platforms where it does not have them.
    ///
    /// # Errors
    /// With what cargo said.
    pub fn read(root: &Path) -> Result<Self, String> {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["metadata", "--format-version", "1", "--locked"]).current_dir(root);
        let output = command.output().map_err(|error| format!("starting cargo: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Self::parse(&serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?)
    }

    fn parse(json: &Value) -> Result<Self, String> {
        let root = json["workspace_root"].as_str().ok_or("cargo metadata names no root")?;
        let mut packages = Vec::new();
        for package in json["packages"].as_array().ok_or("cargo metadata names no packages")? {
            let text = |name: &str| package[name].as_str().map(str::to_owned);
            let need = |name: &str| text(name).ok_or_else(|| format!("a package has no {name}"));
            let (name, version) = (need("name")?, need("version")?);
            let version = Version::parse(&version).ok_or_else(|| format!("{name}: {version:?} is no version"))?;
            let (licence, source) = (text("license"), text("source"));
            let manifest = need("manifest_path")?;
            let below = manifest.strip_prefix(root).map(|path| path.trim_start_matches('/').to_owned());
            let manifest = below.unwrap_or(manifest);
            packages.push(Package { id: need("id")?, name, version, licence, source, manifest });
        }
        // Dependencies of builds only are in no program.
        let mut depends_on = BTreeMap::new();
        for node in json["resolve"]["nodes"].as_array().ok_or("cargo metadata has no graph")? {
            let normal =
                |dep: &&Value| dep["dep_kinds"].as_array().is_some_and(|k| k.iter().any(|k| k["kind"].is_null()));
            let deps = node["deps"].as_array().into_iter().flatten().filter(normal);
            let ids = deps.filter_map(|dep| dep["pkg"].as_str()).map(str::to_owned).collect();
            depends_on.insert(node["id"].as_str().unwrap_or_default().to_owned(), ids);
        }
        Ok(Self { packages, depends_on })
    }

    /// The packages that `from` accepts and all that their programs contain.
    pub fn reached_from(&self, from: impl Fn(&Package) -> bool) -> BTreeSet<String> {
        let mut waiting: Vec<&str> = self.packages.iter().filter(|p| from(p)).map(|p| p.id.as_str()).collect();
        let mut reached = BTreeSet::new();
        while let Some(id) = waiting.pop() {
            if reached.insert(id.to_owned()) {
                waiting.extend(self.depends_on.get(id).into_iter().flatten().map(String::as_str));
            }
        }
        reached
    }
}
