// SPDX-License-Identifier: AGPL-3.0-or-later
//! Schedules: sorted, bounded lists of faults in time, checked against a cluster's shape; and answers to guests' own choices.

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Fault, Role};

/// Most events of a schedule. Planned schedules have a handful; the bound keeps hostile files small.
pub const MAX_EVENTS: usize = 1024;

/// Most VMs of a cluster: sets of VMs are 32 bits wide.
pub const MAX_VMS: u16 = 32;

/// A fault at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultEvent {
    /// Cluster ns after the start of the branch (the snapshot it forks from).
    pub time_ns: u64,
    /// What goes wrong.
    pub fault: Fault,
}

/// Most choices that a schedule answers.
pub const MAX_CHOICES: usize = 256;

/// From here on, [`Choice::nth`] counts the numbers that `get_random` gives, from 0 again: no VM makes so many choices in a branch.
pub const RANDOMS_FROM: u32 = 1 << 31;

/// The answer to a choice that a guest leaves to the host (`random_choice`, `random_below`), or to a `get_random`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// Which VM.
    pub vm: u16,
    /// Which of its choices: how many it made before since the start of the branch. From [`RANDOMS_FROM`] on, which `get_random`.
    pub nth: u32,
    /// The answer; to a choice, one that is not below the choice's bound is reduced to it.
    #[serde(with = "crate::ledger::decimal")]
    pub value: u64,
}

/// What a schedule is checked against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Number of disks of each VM, in VM order.
    pub disks: Vec<u16>,
    /// CPUs of each VM.
    pub cpus: u8,
    /// Length of a branch in cluster ns; no fault lies at or beyond it.
    pub horizon_ns: u64,
}

impl Shape {
    /// Number of VMs.
    #[must_use]
    pub fn vms(&self) -> u16 {
        u16::try_from(self.disks.len()).unwrap_or(u16::MAX)
    }

    /// The set of all VMs.
    #[must_use]
    pub fn all_vms(&self) -> u32 {
        u32::try_from((1u64 << self.vms().min(MAX_VMS)) - 1).unwrap_or(u32::MAX)
    }
}

/// Why a schedule does not fit. `event` counts from 0 in schedule order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// More events than [`MAX_EVENTS`].
    #[error("schedule has {events} events, at most {MAX_EVENTS} are allowed")]
    TooLong {
        /// Number of events.
        events: usize,
    },
    /// A time at or past the end of the branch.
    #[error("event {event}: time_ns {time_ns} is not before the horizon of {horizon_ns} ns")]
    PastHorizon {
        /// Which event.
        event: usize,
        /// Its time.
        time_ns: u64,
        /// The branch's length.
        horizon_ns: u64,
    },
    /// More choices than [`MAX_CHOICES`].
    #[error("schedule has {choices} choices, at most {MAX_CHOICES} are allowed")]
    TooManyChoices {
        /// Number of choices.
        choices: usize,
    },
    /// Two answers to one choice.
    #[error("schedule answers choice {nth} of vm {vm} twice")]
    ChoiceTwice {
        /// Which VM.
        vm: u16,
        /// Which of its choices.
        nth: u32,
    },
    /// A choice of a VM that the cluster does not have.
    #[error("schedule answers a choice of vm {vm}, the cluster has {vms} VMs")]
    NoSuchChooser {
        /// Which VM.
        vm: u16,
        /// How many there are.
        vms: u16,
    },
    /// A parameter outside its bounds.
    #[error("event {event}: {fault} {parameter} is {value}, it must lie between {min} and {max}")]
    OutOfBounds {
        /// Which event.
        event: usize,
        /// Name of the kind.
        fault: &'static str,
        /// Name of the parameter.
        parameter: &'static str,
        /// Its value.
        value: i128,
        /// Smallest allowed.
        min: i128,
        /// Largest allowed.
        max: i128,
    },
    /// A target that the cluster does not have.
    #[error("event {event}: {fault} {parameter} {value} names a target that this cluster does not have ({have})")]
    NoSuchTarget {
        /// Which event.
        event: usize,
        /// Name of the kind.
        fault: &'static str,
        /// Name of the parameter.
        parameter: &'static str,
        /// Its value.
        value: i128,
        /// What there is.
        have: String,
    },
    /// Sets of VMs between which there is no link.
    #[error("event {event}: {fault} names no link between two different VMs")]
    NoLink {
        /// Which event.
        event: usize,
        /// Name of the kind.
        fault: &'static str,
    },
    /// A skew outside 1/10 to 10.
    #[error("event {event}: clock_skew ratio {numerator}/{denominator} must lie between 1/10 and 10")]
    SkewRatio {
        /// Which event.
        event: usize,
        /// Numerator.
        numerator: u32,
        /// Denominator.
        denominator: u32,
    },
}

impl FaultEvent {
    /// The event with the parameter at `index` (in table order) set to `value`; `None` where that does not exist or fit.
    #[must_use]
    pub fn with_value(&self, index: usize, value: i128) -> Option<Self> {
        let mut values = self.fault.values();
        *values.get_mut(index)? = value;
        let domain = self.fault.kind().spec().parameters.get(index)?.domain;
        if value < domain.min || value > domain.max {
            return None;
        }
        Some(Self { time_ns: self.time_ns, fault: Fault::from_values(self.fault.kind(), &values)? })
    }

    /// Checks the event against its bounds and the cluster's shape; `event` is its place for messages.
    pub fn check(&self, event: usize, shape: &Shape) -> Result<(), ScheduleError> {
        if self.time_ns >= shape.horizon_ns {
            let (time_ns, horizon_ns) = (self.time_ns, shape.horizon_ns);
            return Err(ScheduleError::PastHorizon { event, time_ns, horizon_ns });
        }
        let spec = self.fault.kind().spec();
        for (parameter, value) in spec.parameters.iter().zip(self.fault.values()) {
            let domain = parameter.domain;
            if value < domain.min || value > domain.max {
                let (fault, min, max) = (spec.name, domain.min, domain.max);
                return Err(ScheduleError::OutOfBounds { event, fault, parameter: parameter.name, value, min, max });
            }
            let have = match domain.role {
                Role::Vm if value >= i128::from(shape.vms()) => format!("{} VMs", shape.vms()),
                Role::VmSet if value & !i128::from(shape.all_vms()) != 0 => format!("{} VMs", shape.vms()),
                Role::Cpu if value >= i128::from(shape.cpus) || shape.cpus < 2 => {
                    format!("each VM has {} CPUs", shape.cpus)
                }
                Role::Disk => match self.disks_of_target(shape) {
                    disks if value >= i128::from(disks) => format!("the VM has {disks} disks"),
                    _ => continue,
                },
                _ => continue,
            };
            return Err(ScheduleError::NoSuchTarget {
                event,
                fault: spec.name,
                parameter: parameter.name,
                value,
                have,
            });
        }
        self.check_links(event, shape)?;
        if let Fault::ClockSkew { numerator, denominator, .. } = self.fault
            && !is_skew(numerator, denominator)
        {
            return Err(ScheduleError::SkewRatio { event, numerator, denominator });
        }
        Ok(())
    }

    fn disks_of_target(&self, shape: &Shape) -> u16 {
        self.fault.vm().and_then(|vm| shape.disks.get(usize::from(vm)).copied()).unwrap_or(0)
    }

    fn check_links(&self, event: usize, shape: &Shape) -> Result<(), ScheduleError> {
        let Some((from, to)) = self.fault.links() else { return Ok(()) };
        let (from, to) = (from & shape.all_vms(), to & shape.all_vms());
        // One and the same single VM on both sides, or an empty side: no link.
        if from == 0 || to == 0 || (from == to && from.is_power_of_two()) {
            return Err(ScheduleError::NoLink { event, fault: self.fault.kind().name() });
        }
        Ok(())
    }
}

/// Whether a ratio of clocks lies between 1/10 and 10.
pub(crate) fn is_skew(numerator: u32, denominator: u32) -> bool {
    let (high, low) = (u64::from(numerator.max(denominator)), u64::from(numerator.min(denominator)));
    high <= 10 * low
}

/// A sorted, bounded list of faults, and answers to choices.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Schedule {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    choices: Vec<Choice>,
    events: Vec<FaultEvent>,
}

impl Schedule {
    /// A schedule of these events, sorted. Equal times keep the order of kinds and parameters, so that the order in which
    /// events were given never matters.
    pub fn new(mut events: Vec<FaultEvent>) -> Result<Self, ScheduleError> {
        if events.len() > MAX_EVENTS {
            return Err(ScheduleError::TooLong { events: events.len() });
        }
        events.sort_unstable();
        Ok(Self { choices: Vec::new(), events })
    }

    /// The same faults with these answers to choices, whatever was answered before.
    pub fn with_choices(mut self, mut choices: Vec<Choice>) -> Result<Self, ScheduleError> {
        if choices.len() > MAX_CHOICES {
            return Err(ScheduleError::TooManyChoices { choices: choices.len() });
        }
        choices.sort_unstable();
        if let Some(pair) = choices.windows(2).find(|pair| (pair[0].vm, pair[0].nth) == (pair[1].vm, pair[1].nth)) {
            return Err(ScheduleError::ChoiceTwice { vm: pair[0].vm, nth: pair[0].nth });
        }
        self.choices = choices;
        Ok(self)
    }

    /// The answers to choices, by VM and in order.
    #[must_use]
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Puts one more event behind the first `from` events, which stay where they are, and gives its place. None when the schedule
    /// is full, or when the event would stand before `from`.
    pub fn insert(&mut self, event: FaultEvent, from: usize) -> Option<usize> {
        let place = self.events.partition_point(|other| *other <= event);
        if self.events.len() >= MAX_EVENTS || place < from {
            return None;
        }
        self.events.insert(place, event);
        Some(place)
    }

    /// The events in order.
    #[must_use]
    pub fn events(&self) -> &[FaultEvent] {
        &self.events
    }

    /// Time of the first event that only one of them has; none where both have the same.
    #[must_use]
    pub fn differs_at_ns(&self, other: &Self) -> Option<u64> {
        let same = self.events.iter().zip(&other.events).take_while(|(own, other)| own == other).count();
        [self, other].iter().filter_map(|schedule| schedule.events.get(same)).map(|event| event.time_ns).min()
    }

    /// Whether both have the same events up to `time_ns`, those at that time too.
    #[must_use]
    pub fn agrees_until(&self, other: &Self, time_ns: u64) -> bool {
        self.differs_at_ns(other).is_none_or(|first_ns| first_ns > time_ns)
    }

    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there is neither an event nor an answer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.choices.is_empty()
    }

    /// Checks every event against its bounds and the cluster's shape.
    pub fn check(&self, shape: &Shape) -> Result<(), ScheduleError> {
        let vms = shape.vms();
        if let Some(choice) = self.choices.iter().find(|choice| choice.vm >= vms) {
            return Err(ScheduleError::NoSuchChooser { vm: choice.vm, vms });
        }
        self.events.iter().enumerate().try_for_each(|(index, event)| event.check(index, shape))
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Document {
            #[serde(default)]
            choices: Vec<Choice>,
            events: Vec<FaultEvent>,
        }
        let Document { choices, events } = Document::deserialize(deserializer)?;
        let schedule = Self::new(events).and_then(|schedule| schedule.with_choices(choices));
        schedule.map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape { disks: vec![1, 1, 0], cpus: 2, horizon_ns: 1_000 }
    }

    fn error(fault: Fault) -> ScheduleError {
        FaultEvent { time_ns: 1, fault }.check(3, &shape()).unwrap_err()
    }

    #[test]
    fn a_fault_at_the_horizon_is_refused() {
        let event = |time_ns| FaultEvent { time_ns, fault: Fault::NetworkHeal {} };
        assert_eq!(event(999).check(0, &shape()), Ok(()));
        assert!(matches!(event(1_000).check(0, &shape()), Err(ScheduleError::PastHorizon { .. })));
    }

    #[test]
    fn targets_that_do_not_exist_are_refused() {
        assert!(matches!(error(Fault::VmRestart { vm: 3 }), ScheduleError::NoSuchTarget { event: 3, .. }));
        let full = Fault::DiskFull { vm: 2, disk: 0, duration_ns: 0 };
        assert!(matches!(error(full), ScheduleError::NoSuchTarget { parameter: "disk", .. }));
        let set = Fault::NetworkPartition { vms: 0b1000, duration_ns: 0 };
        assert!(matches!(error(set), ScheduleError::NoSuchTarget { parameter: "vms", .. }));
    }

    #[test]
    fn sets_without_a_link_are_refused() {
        let all = Fault::NetworkPartition { vms: 0b111, duration_ns: 0 };
        assert!(matches!(error(all), ScheduleError::NoLink { .. }));
        let own = Fault::NetworkLoss { from_vms: 2, to_vms: 2, loss_ppm: 1, duration_ns: 0 };
        assert!(matches!(error(own), ScheduleError::NoLink { .. }));
        let empty = Fault::NetworkLoss { from_vms: 0, to_vms: 2, loss_ppm: 1, duration_ns: 0 };
        assert!(matches!(error(empty), ScheduleError::OutOfBounds { value: 0, .. }));
    }

    #[test]
    fn skews_past_ten_are_refused() {
        let skew = |numerator, denominator| Fault::ClockSkew { vm: 0, numerator, denominator, duration_ns: 0 };
        assert!(matches!(error(skew(11, 1)), ScheduleError::SkewRatio { .. }));
        assert!(matches!(error(skew(1, 11)), ScheduleError::SkewRatio { .. }));
        assert!(FaultEvent { time_ns: 0, fault: skew(10, 1) }.check(0, &shape()).is_ok());
    }

    #[test]
    fn the_order_in_which_events_are_given_does_not_matter() {
        let mut events: Vec<FaultEvent> = (0..6)
            .map(|index| FaultEvent { time_ns: index % 3, fault: Fault::VmRestart { vm: index as u16 } })
            .collect();
        let forward = Schedule::new(events.clone()).unwrap();
        events.reverse();
        assert_eq!(Schedule::new(events).unwrap(), forward);
        assert!(forward.events().is_sorted());
    }

    #[test]
    fn schedules_agree_until_the_first_event_that_one_of_them_has_alone() {
        let schedule = |times: &[u64]| {
            let event = |time_ns: &u64| FaultEvent { time_ns: *time_ns, fault: Fault::NetworkHeal {} };
            Schedule::new(times.iter().map(event).collect()).unwrap()
        };
        let differ = |one: &[u64], other: &[u64]| {
            let (one, other) = (schedule(one), schedule(other));
            assert_eq!(one.differs_at_ns(&other), other.differs_at_ns(&one));
            one.differs_at_ns(&other)
        };
        assert_eq!([differ(&[], &[]), differ(&[1, 5], &[1, 5]), differ(&[1, 5], &[1])], [None, None, Some(5)]);
        assert_eq!(
            [differ(&[1, 5], &[1, 3, 5]), differ(&[2], &[1]), differ(&[1, 1], &[1])],
            [Some(3), Some(1), Some(1)]
        );
        let agree = |time_ns| schedule(&[1, 5]).agrees_until(&schedule(&[1, 7]), time_ns);
        assert_eq!([0, 1, 4, 5, 9].map(agree), [true, true, true, false, false]);
    }

    #[test]
    fn answers_to_choices_are_sorted_bounded_and_one_each() {
        let choice = |vm, nth| Choice { vm, nth, value: 7 };
        let with = |choices| Schedule::default().with_choices(choices);
        let schedule = with(vec![choice(1, 0), choice(0, 9), choice(0, 2)]).unwrap();
        assert_eq!(schedule.choices(), [choice(0, 2), choice(0, 9), choice(1, 0)]);
        assert!(!schedule.is_empty() && schedule.check(&shape()).is_ok());
        let json = serde_json::to_string(&schedule).unwrap();
        assert!(json.contains(r#""choices":[{"vm":0,"nth":2,"value":"7"},"#), "{json}");
        assert_eq!(serde_json::from_str::<Schedule>(&json).unwrap(), schedule);
        assert_eq!(serde_json::to_string(&Schedule::default()).unwrap(), r#"{"events":[]}"#);
        assert!(matches!(
            with(vec![choice(0, 2), Choice { value: 8, ..choice(0, 2) }]),
            Err(ScheduleError::ChoiceTwice { .. })
        ));
        assert!(matches!(with(vec![choice(0, 0); MAX_CHOICES + 1]), Err(ScheduleError::TooManyChoices { .. })));
        assert!(matches!(
            with(vec![choice(3, 0)]).unwrap().check(&shape()),
            Err(ScheduleError::NoSuchChooser { vm: 3, .. })
        ));
    }

    #[test]
    fn too_many_events_are_refused() {
        let event = FaultEvent { time_ns: 0, fault: Fault::NetworkHeal {} };
        assert!(Schedule::new(vec![event; MAX_EVENTS]).is_ok());
        assert!(matches!(Schedule::new(vec![event; MAX_EVENTS + 1]), Err(ScheduleError::TooLong { .. })));
    }
}
