// SPDX-License-Identifier: AGPL-3.0-or-later
//! Branches a second, with one job and with two.

use std::time::Instant;

use chaoscontrol_artifact::schema::Mode;
use chaoscontrol_cli::{Context, Failures, descriptor_before, stores_read};
use chaoscontrol_explore::campaign::{Campaign, Settings, WINDOW};
use chaoscontrol_explore::machines::{Host, Machines};
use chaoscontrol_explore::pool::Pool;
use chaoscontrol_explore::round::{self, Limits};
use chaoscontrol_explore::{ExploreError, Factory};

use crate::table::Table;

/// Runs the same round with one job and with two; each makes its machines anew.
pub fn measure(context: &Context) -> Failures<Table> {
    let arguments = &context.arguments;
    let branches = arguments.number_within("branches", 1, 1 << 30, 16)?;
    let horizon_ns = arguments.number_within("horizon-ns", 1_000_000, 1 << 50, 2_000_000_000)?;
    let store = stores_read(context)?;
    let snapshot = descriptor_before(context, &store)?.output("snapshot");
    let snapshot = snapshot.ok_or_else(|| ExploreError::Input("the descriptor names no snapshot".to_owned()))?;
    let host = Host { prefix_cache_bytes: arguments.prefix_cache_bytes()?, ..Host::default() };
    let mut table = Table::default();
    let mut rates = Vec::new();
    for jobs in [1, 2] {
        let (machines, _) = Machines::load(&store, &snapshot, &host)?;
        let shape = machines.shape(horizon_ns);
        let settings = Settings {
            seed: 1,
            window: WINDOW,
            shape,
            mode: Mode::Faults,
            labels: machines.labels(),
            without: Vec::new(),
        };
        let mut campaign = Campaign::new(settings, None);
        let pool = Pool::new(&machines, jobs);
        let limits = Limits { branches, instructions: None, bugs: None, plateau: None, rejection_is_fatal: false };
        let started = Instant::now();
        round::run(&mut campaign, &pool, limits, &mut |campaign| {
            context.progress.at(campaign.next(), branches, "branches");
            true
        })?;
        let wall_s = started.elapsed().as_secs_f64();
        let total = *campaign.total();
        let rate = branches as f64 / wall_s;
        rates.push(rate);
        table.push(
            &format!("jobs_{jobs}"),
            vec![
                ("branches_per_s", rate),
                ("mips", total.instructions.0 as f64 / wall_s / 1e6),
                ("instructions_m_per_branch", total.instructions.0 as f64 / branches as f64 / 1e6),
                ("edges", f64::from(total.edges)),
                ("wall_s", wall_s),
            ],
        );
    }
    table.push("scaling", vec![("two_jobs_over_one", rates[1] / rates[0])]);
    Ok(table)
}
