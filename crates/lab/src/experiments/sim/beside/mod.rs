//! Compares the model with this machine in the experiments spread, queues and workers. Each is
//! measured several times, so that the variation of the measurement is known.

mod machine;
mod others;
mod queues;
mod spread;
mod verdict;
mod workers;

use std::time::{Duration, Instant};

use weir_balance::AcceptPolicy;
use weir_balance::model::{Machine, World};

use crate::finding::LabFinding;
use crate::lab::Lab;

const MS: Duration = Duration::from_millis(1);
const WORKERS: usize = 12;
/// Measurements of each experiment.
const ROUNDS: u32 = 5;
/// Runs of the model per measurement.
const DRAWS: u64 = 5;

/// Adds the three comparisons.
pub(super) fn tables(lab: &Lab, finding: &mut LabFinding) -> Result<(), String> {
    let others = others::Others::watch();
    let machine = machine::measure(lab)?;
    finding.remark(&machine::describe(&machine));
    spread::compare(lab, &machine, finding)?;
    queues::compare(lab, &machine, finding)?;
    workers::compare(lab, &machine, finding)?;
    finding.remark(&format!(
        "Other programs used {:.0} % of this machine's CPUs meanwhile. The model knows nothing of them: what they hold up shows in \
         the measured p99 and deviation alone, so that on a busy machine the model is below there.",
        others.share() * 100.0
    ));
    Ok(())
}

/// A world with this machine's costs, from a seed.
fn world(kind: AcceptPolicy, loops: usize, machine: &Machine, seed: u64) -> World {
    let mut world = World::new(kind, loops, Instant::now());
    world.seed(seed);
    world.share(machine.clone());
    world
}

fn kind(policy: &str) -> Result<AcceptPolicy, String> {
    AcceptPolicy::parse(policy).map_err(|_| format!("{policy} is no policy of the model"))
}
