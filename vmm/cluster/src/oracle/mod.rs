// SPDX-License-Identifier: AGPL-3.0-or-later
//! The oracle: what the guests' assertions add up to, and when one is violated (semantics, point 6).
//!
//! Its state is plain data and part of the cluster snapshot, so that a branch judges on from where its snapshot stood. It
//! never trusts a guest: every table has a bound, and a record that makes no sense is reported, not believed.

mod agreements;
mod properties;

use std::collections::BTreeMap;

use chaoscontrol_protocol::host::Counts;
use chaoscontrol_protocol::layout::SLOTS;
use chaoscontrol_protocol::{AssertionKind, LogLevel, Outcome, Record};
use serde::{Deserialize, Serialize};

use crate::violation::{Violation, ViolationKind};
use agreements::Agreements;
use properties::Properties;
pub use properties::{AssertionRow, FirstTime};

/// Different event names that are counted; more are not told apart.
const EVENT_NAMES_MAX: usize = 1_024;

/// Reports about guests' mistakes that are kept.
const REPORTS_MAX: usize = 256;

/// A bound of the oracle that the guests exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum OracleLimit {
    /// Keys of `assert_agree!`.
    #[error("assert_agree! holds {0} keys, the most that one timeline may bind")]
    AgreeKeys(u64),
    /// Bytes of `assert_agree!`.
    #[error("assert_agree! holds {0} bytes, the most that one timeline may hold")]
    AgreeBytes(u64),
    /// Assertions of all catalogs together.
    #[error("the guests' catalogs hold {0} assertions, the most that are judged")]
    Properties(u64),
    /// Two different assertions claim one identity.
    #[error("two different assertions of the guests claim one identity; give one of them another with a _stable macro")]
    CatalogConflict,
}

/// What a guest did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mistake {
    /// A record that breaks the protocol.
    Malformed,
    /// An event of an assertion that no complete catalog of its process holds.
    Unbound,
    /// A catalog that is not what its digest and count say, or that contradicts another.
    Catalog,
    /// What the guest itself reported as an error.
    Reported,
}

/// When something was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub vm: u16,
    pub guest_ns: u64,
    pub cluster_ns: u64,
    pub instructions: u64,
}

/// One SDK slot as the oracle follows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Slot {
    pid: u32,
    generation: u32,
    /// Whether the catalog is complete and is what its process says: only then its assertions are heard.
    bound: bool,
    /// Property of each site; none for sites that were not announced.
    sites: Vec<Option<u32>>,
    /// Counts seen last, by site: (passes, failures).
    counted: Vec<(u64, u64)>,
}

/// One VM's slots, which a restart sets back with the VM's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
}

impl Default for Slots {
    fn default() -> Self {
        Self { slots: vec![Slot::default(); SLOTS as usize] }
    }
}

/// A guest's mistake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Which VM.
    pub vm: u16,
    /// What kind of mistake.
    pub mistake: Mistake,
    /// What; may hold text from the guest.
    pub text: String,
}

/// The oracle's whole state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oracle {
    properties: Properties,
    agreements: Agreements,
    vms: Vec<Slots>,
    setup: Vec<bool>,
    /// Sorted by name.
    events: Vec<(String, u64)>,
    refused: u64,
    reports: Vec<Report>,
    limit: Option<OracleLimit>,
    violations: Vec<Violation>,
}

impl Oracle {
    /// The oracle of a cluster that was just switched on.
    #[must_use]
    pub fn new(vms: u16) -> Self {
        Self {
            properties: Properties::default(),
            agreements: Agreements::default(),
            vms: vec![Slots::default(); usize::from(vms)],
            setup: vec![false; usize::from(vms)],
            events: Vec::new(),
            refused: 0,
            reports: Vec::new(),
            limit: None,
            violations: Vec::new(),
        }
    }

    /// Whether a stored oracle is one of `vms` VMs and keeps its own bounds.
    pub(crate) fn fits(&self, vms: u16) -> bool {
        let vms = usize::from(vms);
        self.vms.len() == vms
            && self.setup.len() == vms
            && self.vms.iter().all(|slots| slots.slots.len() == SLOTS as usize)
            && self.events.is_sorted_by(|a, b| a.0 < b.0)
    }

    /// VMs that did not report `setup_complete` yet.
    #[must_use]
    pub fn without_setup(&self) -> Vec<u16> {
        (0..).zip(&self.setup).filter(|(_, done)| !**done).map(|(vm, _)| vm).collect()
    }

    /// Every property with its counts, ordered by message and kind.
    #[must_use]
    pub fn assertions(&self) -> Vec<AssertionRow> {
        self.properties.rows()
    }

    /// Events by name.
    #[must_use]
    pub fn events(&self) -> BTreeMap<String, u64> {
        self.events.iter().cloned().collect()
    }

    /// Records that were refused: malformed, unbound, or a catalog that is not what it says.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The first mistakes of the guests.
    #[must_use]
    pub fn reports(&self) -> &[Report] {
        &self.reports
    }

    /// The bound that was exceeded, if one was.
    #[must_use]
    pub fn limit(&self) -> Option<OracleLimit> {
        self.limit
    }

    /// Violations so far.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    pub(crate) fn violate(&mut self, moment: Moment, kind: ViolationKind) {
        let Moment { vm, guest_ns, cluster_ns, instructions } = moment;
        // One violation ends the branch at the end of its round; what a guest can report until then is bounded here.
        if self.violations.len() < REPORTS_MAX {
            self.violations.push(Violation { kind, vm, guest_ns, cluster_ns, instructions });
        }
    }

    /// The VM's slots, to be set back with its memory.
    pub(crate) fn slots(&self, vm: u16) -> Slots {
        self.vms[usize::from(vm)].clone()
    }

    /// The VM's memory was set back: its slots are those of then.
    pub(crate) fn set_slots(&mut self, vm: u16, slots: Slots) {
        self.vms[usize::from(vm)] = slots;
    }

    /// Takes the counts of one site. Counts only grow while a process lives.
    pub(crate) fn count(&mut self, vm: u16, slot: u32, site: u16, counts: Counts) {
        let slots = &mut self.vms[usize::from(vm)].slots;
        let Some(slot) = slots.get_mut(slot as usize).filter(|slot| slot.bound) else { return };
        let Some(Some(property)) = slot.sites.get(usize::from(site)) else { return };
        let Some(seen) = slot.counted.get_mut(usize::from(site)) else { return };
        let passes = counts.passes.saturating_sub(seen.0);
        let failures = counts.failures.saturating_sub(seen.1);
        *seen = (counts.passes, counts.failures);
        self.properties.add(*property, passes, failures);
    }

    /// Whether the process in the slot has a catalog, so that counting is worth while.
    pub(crate) fn has_sites(&self, vm: u16, slot: u32) -> bool {
        self.vms[usize::from(vm)].slots.get(slot as usize).is_some_and(|slot| slot.bound && !slot.sites.is_empty())
    }

    /// The property of a site that a catalog announced, and whether a failure violates it.
    pub(crate) fn property_at(&self, vm: u16, slot: u32, site: u16) -> Option<(&str, bool)> {
        let slot = self.vms.get(usize::from(vm))?.slots.get(slot as usize).filter(|slot| slot.bound)?;
        let property = slot.sites.get(usize::from(site)).copied().flatten()?;
        Some((self.properties.message(property)?, self.properties.violated_by_failure(property).is_some()))
    }

    /// Notes a record that broke the protocol.
    pub(crate) fn refuse(&mut self, vm: u16, slot: u32, reason: &str) {
        self.refuse_as(vm, Mistake::Malformed, format!("slot {slot}: a record was refused: {reason}"));
    }

    /// Judges one record.
    pub(crate) fn take(&mut self, moment: Moment, slot: u32, record: &Record<'_>) {
        let vm = moment.vm;
        match *record {
            Record::ProcessStart { pid, generation, .. } => {
                self.with_slot(vm, slot, |slot| *slot = Slot { pid, generation, ..Slot::default() });
            }
            Record::Catalog(ref entry) => self.announce(vm, slot, entry),
            Record::CatalogEnd { sites, ref digest } => self.bind(vm, slot, sites, digest),
            Record::Assertion { site, outcome, details } => self.evaluate(moment, slot, site, outcome, details),
            Record::Event { name, .. } => self.event(name),
            Record::SetupComplete { .. } => self.setup[usize::from(vm)] = true,
            Record::Agree { site, namespace, key, digest, value } => {
                let Some(property) = self.bound_site(vm, slot, site) else { return };
                if !self.properties.is_of(property, AssertionKind::Agree) {
                    let text = format!("slot {slot}: an agreement at site {site}, which is no assert_agree!");
                    return self.refuse_as(vm, Mistake::Unbound, text);
                }
                self.properties.mark(property, true, &moment);
                match self.agreements.agree(vm, namespace, key, digest, value) {
                    Ok(None) => {}
                    Ok(Some(disagreement)) => self.violate(moment, disagreement),
                    Err(limit) => self.limit = self.limit.or(Some(limit)),
                }
            }
            Record::Log { level: LogLevel::Error, text } => self.report(vm, Mistake::Reported, text.to_owned()),
            // The machine answers random requests. How a process ended matters where it is the workload; that comes through
            // the doorbell.
            // Quiet periods are the core's.
            Record::Guidance { site, .. } => drop(self.bound_site(vm, slot, site)),
            Record::Log { .. } | Record::ProcessExit { .. } | Record::Random { .. } | Record::Quiet { .. } => {}
        }
    }

    fn with_slot<R>(&mut self, vm: u16, slot: u32, act: impl FnOnce(&mut Slot) -> R) -> Option<R> {
        self.vms[usize::from(vm)].slots.get_mut(slot as usize).map(act)
    }

    fn announce(&mut self, vm: u16, slot: u32, entry: &chaoscontrol_protocol::CatalogEntry<'_>) {
        let property = match self.properties.find_or_add(entry) {
            Ok(property) => property,
            Err(refused) => {
                self.limit = self.limit.or(Some(refused.limit));
                return self.refuse_as(vm, Mistake::Catalog, refused.text);
            }
        };
        let site = usize::from(entry.site);
        self.with_slot(vm, slot, |slot| {
            if slot.sites.len() <= site {
                slot.sites.resize(site + 1, None);
                slot.counted.resize(site + 1, (0, 0));
            }
            slot.sites[site] = Some(property);
            slot.bound = false;
        });
    }

    /// The property of the site that a record is about.
    pub(crate) fn property(&self, vm: u16, slot: u32, record: &Record<'_>) -> Option<&str> {
        let (Record::Assertion { site, .. } | Record::Guidance { site, .. }) = *record else { return None };
        let slot = self.vms[usize::from(vm)].slots.get(slot as usize).filter(|slot| slot.bound)?;
        self.properties.message((*slot.sites.get(usize::from(site))?)?)
    }

    /// The catalog of a process is complete: from here on its assertions are heard, if it is what the process says.
    fn bind(&mut self, vm: u16, slot: u32, sites: u16, digest: &[u8; 32]) {
        let Some(announced) = self.vms[usize::from(vm)].slots.get(slot as usize).map(|slot| &slot.sites) else {
            return;
        };
        let count = announced.iter().flatten().count();
        let is_whole = count == usize::from(sites) && self.properties.catalog_digest(announced) == Some(*digest);
        if is_whole {
            self.with_slot(vm, slot, |slot| slot.bound = true);
        } else {
            let text = format!("slot {slot}: a catalog of {sites} sites is not what its digest says; {count} came");
            self.refuse_as(vm, Mistake::Catalog, text);
        }
    }

    /// The assertion behind a site of a complete catalog; anything else is refused.
    fn bound_site(&mut self, vm: u16, slot: u32, site: u16) -> Option<u32> {
        let known = self.vms[usize::from(vm)].slots.get(slot as usize).filter(|slot| slot.bound);
        let property = known.and_then(|slot| slot.sites.get(usize::from(site)).copied().flatten());
        if property.is_none() {
            let text = format!("slot {slot}: an assertion at site {site}, which no complete catalog holds");
            self.refuse_as(vm, Mistake::Unbound, text);
        }
        property
    }

    fn refuse_as(&mut self, vm: u16, mistake: Mistake, text: String) {
        self.refused = self.refused.saturating_add(1);
        self.report(vm, mistake, text);
    }

    fn evaluate(&mut self, moment: Moment, slot: u32, site: u16, outcome: Outcome, details: &str) {
        let Some(property) = self.bound_site(moment.vm, slot, site) else { return };
        self.properties.mark(property, outcome == Outcome::Pass, &moment);
        if outcome == Outcome::Fail
            && let Some((message, site)) = self.properties.violated_by_failure(property)
        {
            self.violate(moment, ViolationKind::Assertion { message, site, details: details.to_owned() });
        }
    }

    fn event(&mut self, name: &str) {
        match self.events.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
            Ok(index) => self.events[index].1 = self.events[index].1.saturating_add(1),
            Err(index) if self.events.len() < EVENT_NAMES_MAX => self.events.insert(index, (name.to_owned(), 1)),
            Err(_) => {}
        }
    }

    fn report(&mut self, vm: u16, mistake: Mistake, text: String) {
        if self.reports.len() < REPORTS_MAX {
            self.reports.push(Report { vm, mistake, text });
        }
    }
}

#[cfg(test)]
mod tests;
