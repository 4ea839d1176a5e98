// SPDX-License-Identifier: AGPL-3.0-or-later
//! Seeded planning: random schedules and mutations of schedules.
//!
//! A plan is a function of the shape, the parents and the stream alone, and every schedule it returns passes
//! [`Schedule::check`] for its shape.

use crate::schedule::{FaultEvent, Schedule, Shape};
use crate::{Companion, Domain, Draw, Fault, FaultKind, Role, SPECS, Spec, Stream};

/// Most events that mutation lets a schedule grow to; longer parents are cut.
const MAX_PLANNED_EVENTS: usize = 48;

/// Kinds in a new schedule, at most.
const RANDOM_KINDS_MAX: u64 = 4;

/// How far before a fault its companion lies, at most.
const COMPANION_NS_MAX: u64 = 2_000_000_000;

/// How often a draw that breaks a rule between parameters is drawn again before the event is left out.
const MAX_REDRAWS: u32 = 16;

/// Plans schedules for one cluster shape.
#[derive(Clone, Debug)]
pub struct Planner {
    shape: Shape,
    kinds: Vec<&'static Spec>,
    max_events: u64,
}

impl Planner {
    /// A planner of all kinds that the shape has targets for.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self::with_kinds(shape, |_| true)
    }

    /// A planner of the kinds that `wanted` accepts and that the shape has targets for.
    #[must_use]
    pub fn with_kinds(shape: Shape, wanted: impl Fn(FaultKind) -> bool) -> Self {
        let disks = shape.disks.iter().any(|disks| *disks > 0);
        let possible = |spec: &&Spec| {
            let has = |role| spec.parameters.iter().any(|parameter| parameter.domain.role == role);
            shape.vms() > 0
                && (disks || !has(Role::Disk))
                && (shape.vms() > 1 || !has(Role::VmSet))
                && (shape.cpus > 1 || !has(Role::Cpu))
        };
        let kinds = SPECS.iter().filter(possible).filter(|spec| wanted(spec.kind)).collect();
        Self { shape, kinds, max_events: 12 }
    }

    /// Changes how many events a new random schedule has at most (default 12).
    #[must_use]
    pub fn max_events(mut self, events: u64) -> Self {
        self.max_events = events.clamp(1, MAX_PLANNED_EVENTS as u64);
        self
    }

    /// Whether there is no kind to plan.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The shape planned for.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Most events of a new random schedule.
    pub(crate) fn most_events(&self) -> u64 {
        self.max_events
    }

    /// Whether faults of the kind are planned.
    pub(crate) fn plans(&self, kind: FaultKind) -> bool {
        self.kinds.iter().any(|spec| spec.kind == kind)
    }

    /// One of the kinds, each as likely as the next.
    pub(crate) fn any_kind(&self, stream: &mut Stream) -> Option<&'static Spec> {
        self.kinds.get(usize::try_from(stream.below(self.kinds.len() as u64)).ok()?).copied()
    }

    /// A new schedule of one to the set number of events, of few kinds. A schedule of a little of everything is much like the
    /// next one; many of one kind, or of two that meet, reach states that no mixture does (Groce et al., "Swarm Testing",
    /// ISSTA 2012).
    pub fn random(&self, stream: &mut Stream) -> Schedule {
        let kinds: Vec<&'static Spec> =
            (0..stream.between(1, RANDOM_KINDS_MAX)).filter_map(|_| Self::kind(&self.kinds, stream)).collect();
        let wanted = stream.between(1, self.max_events);
        let events = (0..wanted).flat_map(|_| self.events(&kinds, stream)).collect();
        self.finish(events)
    }

    /// A changed copy of `parent`: one to three of add, remove, shift a time, change a parameter.
    pub fn mutate(&self, parent: &Schedule, stream: &mut Stream) -> Schedule {
        let mut events = parent.events().to_vec();
        for _ in 0..stream.between(1, 3) {
            self.mutate_once(&mut events, stream);
        }
        self.finish(events)
    }

    /// The events of `first` up to a random time and those of `second` from there on.
    pub fn splice(&self, first: &Schedule, second: &Schedule, stream: &mut Stream) -> Schedule {
        let cut = stream.below(self.shape.horizon_ns);
        let early = first.events().iter().filter(|event| event.time_ns < cut);
        let late = second.events().iter().filter(|event| event.time_ns >= cut);
        self.finish(early.chain(late).copied().collect())
    }

    fn mutate_once(&self, events: &mut Vec<FaultEvent>, stream: &mut Stream) {
        let choice = if events.is_empty() { 0 } else { stream.below(8) };
        match choice {
            0..=2 => events.extend(self.events(&self.kinds, stream)),
            3 => drop(events.swap_remove(Self::pick(events, stream))),
            4 | 5 => {
                let index = Self::pick(events, stream);
                events[index].time_ns = self.shifted(events[index].time_ns, stream);
            }
            _ => {
                let index = Self::pick(events, stream);
                if let Some(changed) = self.changed(&events[index], stream) {
                    events[index] = changed;
                }
            }
        }
    }

    fn pick(events: &[FaultEvent], stream: &mut Stream) -> usize {
        usize::try_from(stream.below(events.len() as u64)).unwrap_or(0)
    }

    /// A time near the old one (both directions, uniform in magnitude), or now and then anywhere.
    fn shifted(&self, time_ns: u64, stream: &mut Stream) -> u64 {
        let last = self.shape.horizon_ns.saturating_sub(1);
        if stream.below(4) == 0 {
            return stream.between(0, last);
        }
        let distance = stream.between_log(1_000, (self.shape.horizon_ns / 4).max(1_000));
        if stream.below(2) == 0 { time_ns.saturating_sub(distance) } else { time_ns.saturating_add(distance).min(last) }
    }

    /// The event with one parameter drawn again; `None` when it has none or no draw fits.
    fn changed(&self, event: &FaultEvent, stream: &mut Stream) -> Option<FaultEvent> {
        let parameters = event.fault.kind().spec().parameters;
        for _ in 0..MAX_REDRAWS {
            let index = usize::try_from(stream.below(parameters.len() as u64)).unwrap_or(0);
            let value = self.value(&parameters.get(index)?.domain, event.fault.vm(), stream);
            if let Some(changed) = event.with_value(index, value)
                && changed.check(0, &self.shape).is_ok()
            {
                return Some(changed);
            }
        }
        None
    }

    /// One of the kinds by weight.
    fn kind(kinds: &[&'static Spec], stream: &mut Stream) -> Option<&'static Spec> {
        let total: u64 = kinds.iter().map(|spec| u64::from(spec.weight)).sum();
        let mut draw = stream.below(total);
        kinds.iter().copied().find(|spec| {
            let weight = u64::from(spec.weight);
            let found = draw < weight;
            draw = draw.saturating_sub(weight);
            found
        })
    }

    /// A new event, and what belongs beside it.
    fn events(&self, kinds: &[&'static Spec], stream: &mut Stream) -> Vec<FaultEvent> {
        let event = self.event(kinds, stream);
        event.into_iter().flat_map(|event| [Some(event), self.companion(&event, stream)]).flatten().collect()
    }

    pub(crate) fn companion(&self, event: &FaultEvent, stream: &mut Stream) -> Option<FaultEvent> {
        let (fault, time_ns) = match event.fault.kind().spec().companion {
            Companion::None => return None,
            Companion::RestartDuring => {
                let rest_ns = self.shape.horizon_ns - event.time_ns - 1;
                let lasts_ns = event.fault.duration_ns().filter(|lasts| *lasts > 0).unwrap_or(rest_ns);
                let after_ns = stream.between(0, lasts_ns.min(rest_ns) / 2);
                (Fault::VmRestart { vm: event.fault.vm()? }, event.time_ns + after_ns)
            }
            Companion::PartitionBefore => {
                let before_ns = stream.between(0, event.time_ns.min(COMPANION_NS_MAX));
                let partition = Fault::NetworkPartition { vms: self.vm_set(stream), duration_ns: 0 };
                (partition, event.time_ns - before_ns)
            }
        };
        let companion = FaultEvent { time_ns, fault };
        let planned = self.kinds.iter().any(|spec| spec.kind == fault.kind());
        (planned && companion.check(0, &self.shape).is_ok()).then_some(companion)
    }

    /// One new event of one of the kinds.
    pub(crate) fn event(&self, kinds: &[&'static Spec], stream: &mut Stream) -> Option<FaultEvent> {
        let spec = Self::kind(kinds, stream)?;
        for _ in 0..MAX_REDRAWS {
            let time_ns = stream.below(self.shape.horizon_ns);
            let mut vm = None;
            let mut values = Vec::with_capacity(spec.parameters.len());
            for parameter in spec.parameters {
                let value = self.value(&parameter.domain, vm, stream);
                if parameter.domain.role == Role::Vm {
                    vm = u16::try_from(value).ok();
                }
                values.push(value);
            }
            let fault = Fault::from_values(spec.kind, &values)?;
            let event = FaultEvent { time_ns, fault };
            if event.check(0, &self.shape).is_ok() {
                return Some(event);
            }
        }
        None
    }

    /// A value of the domain; `vm` is the target drawn before it.
    fn value(&self, domain: &Domain, vm: Option<u16>, stream: &mut Stream) -> i128 {
        let clamp = |value: i128| u64::try_from(value.max(0)).unwrap_or(u64::MAX);
        match (domain.role, domain.draw) {
            (Role::Vm, _) => i128::from(stream.below(u64::from(self.shape.vms()))),
            (Role::VmSet, _) => i128::from(self.vm_set(stream)),
            (Role::Cpu, _) => i128::from(stream.below(u64::from(self.shape.cpus))),
            (Role::Disk, _) => {
                let disks = vm.and_then(|vm| self.shape.disks.get(usize::from(vm))).copied().unwrap_or(0);
                i128::from(stream.below(u64::from(disks)))
            }
            (_, Draw::Uniform(low, high)) => i128::from(stream.between(clamp(low), clamp(high))),
            (_, Draw::Log(low, high)) => i128::from(stream.between_log(clamp(low), clamp(high))),
            (_, Draw::LogOrZero(low, high)) => {
                let zero = stream.below(8) == 0;
                let value = stream.between_log(clamp(low), clamp(high));
                if zero { 0 } else { i128::from(value) }
            }
            (_, Draw::SignedLog(low, high)) => {
                let magnitude = i128::from(stream.between_log(clamp(low), clamp(high)));
                if stream.below(2) == 0 { magnitude } else { -magnitude }
            }
            (_, Draw::Bits) => i128::from(stream.next_u64()),
            (_, Draw::Target) => domain.min,
        }
    }

    /// One VM half the time (to isolate or burden it), else any non-empty set.
    fn vm_set(&self, stream: &mut Stream) -> u32 {
        let all = self.shape.all_vms();
        if stream.below(2) == 0 {
            1 << stream.below(u64::from(self.shape.vms().max(1)))
        } else {
            u32::try_from(stream.between(1, u64::from(all))).unwrap_or(all)
        }
    }

    /// Cuts, checks and sorts. Events of a parent that do not fit this shape are left out.
    pub(crate) fn finish(&self, mut events: Vec<FaultEvent>) -> Schedule {
        events.retain(|event| event.check(0, &self.shape).is_ok());
        events.truncate(MAX_PLANNED_EVENTS);
        Schedule::new(events).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn planner() -> Planner {
        Planner::new(Shape { disks: vec![1, 1, 1], cpus: 2, horizon_ns: 5_000_000_000 })
    }

    #[test]
    fn every_planned_schedule_fits_its_shape_and_every_kind_is_planned() {
        let planner = planner();
        let mut kinds = BTreeSet::new();
        let mut stream = Stream::named(1, "plan", 0);
        let mut parent = planner.random(&mut stream);
        for step in 0..2_000 {
            let other = planner.random(&mut stream);
            let next = match step % 3 {
                0 => planner.mutate(&parent, &mut stream),
                1 => planner.splice(&parent, &other, &mut stream),
                _ => other,
            };
            assert_eq!(next.check(planner.shape()), Ok(()), "seed 1 step {step}");
            kinds.extend(next.events().iter().map(|event| event.fault.kind()));
            parent = next;
        }
        assert_eq!(kinds.len(), SPECS.len(), "{kinds:?}");
    }

    #[test]
    fn the_same_stream_gives_the_same_plans() {
        let plans = |seed| {
            let mut stream = Stream::named(seed, "plan", 0);
            let mut plans = vec![planner().random(&mut stream)];
            for _ in 0..50 {
                let next = planner().mutate(plans.last().unwrap(), &mut stream);
                plans.push(next);
            }
            plans
        };
        assert_eq!(plans(5), plans(5));
        assert_ne!(plans(5), plans(6));
    }

    #[test]
    fn a_cluster_without_disks_or_links_gets_no_disk_or_network_faults() {
        let planner = Planner::new(Shape { disks: vec![0], cpus: 1, horizon_ns: 1_000 });
        let mut stream = Stream::named(2, "plan", 0);
        for _ in 0..200 {
            for event in planner.random(&mut stream).events() {
                let name = event.fault.kind().name();
                assert!(
                    !name.starts_with("disk") && (!name.starts_with("network") || name == "network_heal"),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn switches_of_cpus_are_planned_only_where_there_are_several() {
        let plans = |cpus| {
            let planner = Planner::new(Shape { disks: vec![1, 1], cpus, horizon_ns: 1_000_000_000 });
            let mut stream = Stream::named(3, "plan", 0);
            (0..200).map(|_| planner.random(&mut stream)).collect::<Vec<_>>()
        };
        let switches = |plans: &[Schedule]| {
            let events = plans.iter().flat_map(Schedule::events);
            events.filter(|event| event.fault.kind() == FaultKind::CpuSwitch).count()
        };
        assert_eq!(switches(&plans(1)), 0);
        assert!(switches(&plans(4)) > 50);
    }

    #[test]
    fn faults_that_alone_would_meet_nothing_get_a_companion() {
        let mut stream = Stream::named(4, "plan", 0);
        for (name, companion) in [("disk_corruption", "vm_restart"), ("network_heal", "network_partition")] {
            let shape = planner().shape().clone();
            let both = Planner::with_kinds(shape.clone(), |kind| kind.name() == name || kind.name() == companion);
            let alone = Planner::with_kinds(shape, |kind| kind.name() == name);
            for _ in 0..50 {
                let has = |schedule: &Schedule, wanted: &str| {
                    schedule.events().iter().any(|event| event.fault.kind().name() == wanted)
                };
                let schedule = both.random(&mut stream);
                assert!(!has(&schedule, name) || has(&schedule, companion), "{name}: {schedule:?}");
                assert!(!has(&alone.random(&mut stream), companion), "{companion} was not to be planned");
            }
        }
    }

    #[test]
    fn an_empty_horizon_gives_empty_schedules() {
        let planner = Planner::new(Shape { disks: vec![1, 1], cpus: 1, horizon_ns: 0 });
        assert!(planner.random(&mut Stream::named(2, "plan", 0)).is_empty());
    }
}
