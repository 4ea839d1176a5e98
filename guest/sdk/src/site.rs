// SPDX-License-Identifier: Apache-2.0
//! Assertion sites: one static a place in the source, collected by the linker.

use chaoscontrol_protocol::layout::SITES_MAX;
use chaoscontrol_protocol::{AssertionKind, CatalogEntry};
use core::sync::atomic::{AtomicU32, Ordering};

/// All sites of the program, in link order. The order leaks the build, so [`Catalog`] sorts it.
#[linkme::distributed_slice]
pub static SITES: [&'static Site];

const PASSED: u32 = 1;
const FAILED: u32 = 2;
const REGISTERED: u32 = 4;
const INDEX_SHIFT: u32 = 16;

/// One assertion site.
pub struct Site {
    /// What it claims.
    pub kind: AssertionKind,
    /// Names the property.
    pub message: &'static str,
    /// Package of the site.
    pub package: &'static str,
    /// Version of the package.
    pub version: &'static str,
    /// File, relative to the package.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// Module path.
    pub module: &'static str,
    /// Namespace and key of an explicit identity; both empty where the place is the identity.
    pub stable: (&'static str, &'static str),
    /// Index in the catalog (upper half), whether it is known, and which outcomes were reported.
    state: AtomicU32,
}

impl Site {
    /// A site nothing was reported of.
    pub const fn new(
        kind: AssertionKind,
        message: &'static str,
        (package, version): (&'static str, &'static str),
        file: &'static str,
        (line, column): (u32, u32),
        module: &'static str,
        stable: (&'static str, &'static str),
    ) -> Self {
        Self { kind, message, package, version, file, line, column, module, stable, state: AtomicU32::new(0) }
    }

    /// Index in the catalog if this outcome was already reported, so that only counting is left.
    #[inline]
    pub(crate) fn reported(&self, pass: bool) -> Option<u16> {
        let state = self.state.load(Ordering::Relaxed);
        if state & outcome_bit(pass) != 0 { Some((state >> INDEX_SHIFT) as u16) } else { None }
    }

    /// Index in the catalog, if the catalog is there and has room for it.
    pub(crate) fn index(&self) -> Option<u16> {
        let state = self.state.load(Ordering::Relaxed);
        let index = (state >> INDEX_SHIFT) as u16;
        if state & REGISTERED != 0 && usize::from(index) < SITES_MAX { Some(index) } else { None }
    }

    pub(crate) fn mark_reported(&self, pass: bool) {
        self.state.fetch_or(outcome_bit(pass), Ordering::Relaxed);
    }

    fn register(&self, index: u16) {
        self.state.store((u32::from(index) << INDEX_SHIFT) | REGISTERED, Ordering::Relaxed);
    }

    /// Forgets index and outcomes, so that the next evaluation takes the slow path: for a forked child.
    #[cfg(feature = "std")]
    pub(crate) fn forget(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    /// The catalog's order: it depends on the source alone.
    fn key(&self) -> (&str, &str, u32, u32, &str, AssertionKind) {
        (self.package, self.file, self.line, self.column, self.message, self.kind)
    }

    pub(crate) fn entry(&self, index: u16) -> CatalogEntry<'static> {
        CatalogEntry {
            site: index,
            kind: self.kind,
            must_hit: self.kind.must_hit(),
            line: self.line,
            column: self.column,
            message: self.message,
            package: self.package,
            version: self.version,
            file: self.file,
            module: self.module,
            namespace: self.stable.0,
            key: self.stable.1,
        }
    }
}

const fn outcome_bit(pass: bool) -> u32 {
    if pass { PASSED } else { FAILED }
}

/// What this process saw of one site, for reports outside a VM.
#[cfg(feature = "std")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteReport {
    /// What it claims: `always`, `sometimes`, ...
    pub kind: &'static str,
    /// Names the property.
    pub message: &'static str,
    /// Package of the site.
    pub package: &'static str,
    /// File, relative to the package.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
    /// Whether an evaluation passed.
    pub passed: bool,
    /// Whether an evaluation failed.
    pub failed: bool,
    must_hit: bool,
    failure_is_violation: bool,
}

#[cfg(feature = "std")]
impl SiteReport {
    /// Whether what was seen breaks the property. Agreement between processes only the host can judge.
    #[must_use]
    pub fn violated(&self) -> bool {
        self.failed && self.failure_is_violation
    }

    /// Whether the property asks for something that was not seen.
    #[must_use]
    pub fn missing(&self) -> bool {
        self.must_hit && !self.passed && !self.violated()
    }
}

/// Every site of the program in catalog order, with what this process saw of it.
#[cfg(feature = "std")]
#[must_use]
pub fn sites() -> Vec<SiteReport> {
    let mut all: Vec<&'static Site> = SITES.iter().copied().collect();
    all.sort_unstable_by_key(|site| site.key());
    let report = |site: &'static Site| SiteReport {
        kind: kind_name(site.kind),
        message: site.message,
        package: site.package,
        file: site.file,
        line: site.line,
        passed: site.reported(true).is_some(),
        failed: site.reported(false).is_some(),
        must_hit: site.kind.must_hit(),
        failure_is_violation: site.kind.failure_is_violation(),
    };
    all.into_iter().map(report).collect()
}

#[cfg(feature = "std")]
fn kind_name(kind: AssertionKind) -> &'static str {
    match kind {
        AssertionKind::Always => "always",
        AssertionKind::AlwaysOrUnreachable => "always_or_unreachable",
        AssertionKind::Sometimes => "sometimes",
        AssertionKind::Reachable => "reachable",
        AssertionKind::Unreachable => "unreachable",
        AssertionKind::Agree => "agree",
    }
}

/// The sites in catalog order.
pub(crate) struct Catalog {
    order: [u16; SITES_MAX],
    sites: usize,
}

impl Catalog {
    pub(crate) const fn new() -> Self {
        Self { order: [0; SITES_MAX], sites: 0 }
    }

    /// Sorts the program's sites and gives each its index. Of a program with too many, the first in link order are kept.
    pub(crate) fn register(&mut self) {
        self.sites = SITES.len().min(SITES_MAX);
        let order = &mut self.order[..self.sites];
        for (i, slot) in order.iter_mut().enumerate() {
            *slot = i as u16;
        }
        order.sort_unstable_by(|a, b| SITES[usize::from(*a)].key().cmp(&SITES[usize::from(*b)].key()));
        for (index, link) in order.iter().enumerate() {
            SITES[usize::from(*link)].register(index as u16);
        }
        for site in SITES.iter().skip(SITES_MAX) {
            site.register(u16::MAX);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.sites
    }

    #[cfg(feature = "std")]
    pub(crate) fn get(&self, index: u16) -> Option<&'static Site> {
        self.order[..self.sites].get(usize::from(index)).map(|link| SITES[usize::from(*link)])
    }

    pub(crate) fn sites(&self) -> impl Iterator<Item = (u16, &'static Site)> {
        self.order[..self.sites].iter().enumerate().map(|(index, link)| (index as u16, SITES[usize::from(*link)]))
    }
}

/// An explicit identity: both parts are there, or none is. Evaluated when the program is compiled.
pub const fn stable(namespace: &'static str, key: &'static str) -> (&'static str, &'static str) {
    assert!(namespace.is_empty() == key.is_empty(), "a stable assertion has a namespace and a key");
    (namespace, key)
}

/// `file!()` relative to the directory of its package, so that neither the checkout nor the workspace shows.
///
/// The compiler gives an absolute path, or one relative to the workspace: then the longest beginning that is also the end
/// of the package's directory is cut off. A cut that leaves a cargo source directory in front is preferred, because a
/// package in a directory called `src` would otherwise lose its own.
pub const fn package_relative(file: &'static str, package_directory: &str) -> &'static str {
    let (name, directory) = (file.as_bytes(), package_directory.as_bytes());
    if starts_with(name, directory) && name.len() > directory.len() && name[directory.len()] == b'/' {
        return file.split_at(directory.len() + 1).1;
    }
    let (mut longest, mut preferred, mut has_preferred) = (0, 0, is_source_directory(name, 0));
    let mut at = 0;
    while at < name.len() {
        if name[at] == b'/' && ends_with_component(directory, name, at) {
            longest = at + 1;
            if is_source_directory(name, at + 1) {
                preferred = at + 1;
                has_preferred = true;
            }
        }
        at += 1;
    }
    file.split_at(if has_preferred { preferred } else { longest }).1
}

const fn is_source_directory(name: &[u8], from: usize) -> bool {
    starts_with_at(name, from, b"src/")
        || starts_with_at(name, from, b"tests/")
        || starts_with_at(name, from, b"examples/")
        || starts_with_at(name, from, b"benches/")
        || starts_with_at(name, from, b"build.rs")
}

const fn starts_with(name: &[u8], prefix: &[u8]) -> bool {
    starts_with_at(name, 0, prefix)
}

const fn starts_with_at(name: &[u8], from: usize, prefix: &[u8]) -> bool {
    if name.len() < from + prefix.len() {
        return false;
    }
    let mut i = 0;
    while i < prefix.len() {
        if name[from + i] != prefix[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Whether `directory` ends with a slash and the first `bytes` bytes of `name`.
const fn ends_with_component(directory: &[u8], name: &[u8], bytes: usize) -> bool {
    if directory.len() < bytes + 1 || directory[directory.len() - bytes - 1] != b'/' {
        return false;
    }
    let mut i = 0;
    while i < bytes {
        if directory[directory.len() - bytes + i] != name[i] {
            return false;
        }
        i += 1;
    }
    true
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::package_relative;

    #[test]
    fn paths_do_not_show_the_checkout() {
        for (file, directory, expected) in [
            ("guest/raft/src/main.rs", "/home/a/ws/guest/raft", "src/main.rs"),
            ("guest/raft/src/main.rs", "/b/guest/raft", "src/main.rs"),
            ("src/main.rs", "/home/a/ws", "src/main.rs"),
            ("src/main.rs", "/home/a/src", "src/main.rs"),
            ("src/foo/src/x.rs", "/ws/src/foo", "src/x.rs"),
            ("/r/registry/src/index/demo-1.0/src/lib.rs", "/r/registry/src/index/demo-1.0", "src/lib.rs"),
            ("a/b/c/tests/t.rs", "/x/a/b/c", "tests/t.rs"),
            ("raft/odd/main.rs", "/ws/raft", "odd/main.rs"),
            ("build.rs", "/ws", "build.rs"),
        ] {
            assert_eq!(package_relative(file, directory), expected, "{file} in {directory}");
        }
    }
}
