// SPDX-License-Identifier: AGPL-3.0-or-later
//! What `chaos-diverge` and `chaos-dlog` share: which branch their flags name.

use chaoscontrol_artifact::Store;
use chaoscontrol_artifact::schema::{Descriptor, ScheduleDocument};
use chaoscontrol_cli::{Context, Failure, Failures, read_document};
use chaoscontrol_explore::machines::{Host, choose_tier};
use chaoscontrol_explore::stages::diverge::DivergeOptions;
use chaoscontrol_explore::stages::explore::{HORIZON_NS, HORIZON_NS_MAX};

/// This file: part of the identity of both tools.
pub const SOURCE: &str = include_str!("lib.rs");

/// Flags of a branch of one's own; a bug's branch has its own.
const OWN: [&str; 3] = ["schedule", "seed", "horizon-ns"];

/// A bug's branch, or one of the caller's own.
///
/// # Errors
/// Wrong usage, and a schedule that cannot be read.
pub fn branch(context: &Context, store: &Store, descriptor: &Descriptor) -> Failures<DivergeOptions> {
    let arguments = &context.arguments;
    choose_tier(arguments.text("tier")?.as_deref());
    if let Some(flag) = OWN.into_iter().find(|flag| arguments.is_set("bug") && arguments.is_set(flag)) {
        return Err(Failure::usage(format!("--bug runs that bug's branch, --{flag} is for one of your own")));
    }
    let schedule = match arguments.path("schedule") {
        Some(path) => Some(read_document::<ScheduleDocument>(store, &path)?.schedule),
        None => None,
    };
    let (allow_unfaithful, pin_core, watchdog_s) = arguments.kvm()?;
    let host = Host::from_flags(None, allow_unfaithful, pin_core, watchdog_s).map_err(Failure::usage)?;
    Ok(DivergeOptions {
        kvm: host.kvm,
        from_boot: arguments.is_set("from-boot"),
        bug: arguments.number("bug")?,
        horizon_ns: arguments.number_within("horizon-ns", 1, HORIZON_NS_MAX, HORIZON_NS)?,
        seed: arguments.number("seed")?.or(descriptor.number("seed")).unwrap_or(0),
        schedule,
    })
}
