//! Six connections, one after another, to three idle workers.

use weir_balance::model::{Machine, ModelClient};

use super::verdict::{MeasuredValues, verdict};
use super::{DRAWS, MS, ROUNDS, kind, world};
use crate::experiment::POLICIES;
use crate::experiments::spread;
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, padded, slashed};
use std::collections::BTreeMap;
use std::time::Duration;

const WORKERS: usize = 3;
/// Runs of the model per run of the server. The model is cheap.
const MORE: u64 = 8;

/// The number of connections of each loop, and how often this outcome occurred.
type Outcomes = BTreeMap<Vec<u64>, u32>;

pub(super) fn compare(
    lab: &Lab,
    machine: &Machine,
    finding: &mut LabFinding,
) -> Result<(), String> {
    let weir = lab.weir()?;
    let heads = ["6 connections, 3 workers", "measured", "model", "busiest", "model", ""];
    let mut table = FindingTable::new(&heads);
    for (label, policy) in POLICIES {
        let (mut seen, mut drawn) = (Outcomes::new(), Outcomes::new());
        for round in 1..=lab.size(ROUNDS, 1) {
            lab.step(&format!("six connections, {label}, round {round}"));
            *seen.entry(spread::of_three(&weir.policy(label, policy))?).or_default() += 1;
        }
        for seed in 1..=DRAWS * MORE {
            *drawn.entry(draw(policy, machine, seed)?).or_default() += 1;
        }
        let (real, model) = (busiest(&seen), busiest(&drawn));
        table.row(&[
            (*label).to_owned(),
            most_frequent(&seen),
            most_frequent(&drawn),
            real.text(),
            model.text(),
            verdict(&real, &model),
        ]);
    }
    finding.table("spread", &table);
    finding.remark(
        "What was seen most often, of five runs and of forty draws, and how many connections the busiest worker got. Where one worker \
         is woken, it is the same each time. Under plain and shared epoll all are woken, and which of them has a CPU first is a \
         matter of microseconds; under reuseport it is the hash's.",
    );
    Ok(())
}

fn draw(policy: &str, machine: &Machine, seed: u64) -> Result<Vec<u64>, String> {
    let mut world = world(kind(policy)?, WORKERS, machine, seed);
    for i in 1..=6 {
        let gap = Duration::ZERO;
        world.client(MS * 20 * i, ModelClient { gap, ..ModelClient::once(Duration::ZERO) });
    }
    Ok(padded(world.run(MS * 1000).accepted.iter().copied(), WORKERS))
}

/// The most frequent outcome. Its share is shown if there are others.
fn most_frequent(outcomes: &Outcomes) -> String {
    let all: u32 = outcomes.values().sum();
    let Some((who, times)) = outcomes.iter().max_by_key(|(_, times)| **times) else {
        return String::new();
    };
    let share = 100 * times / all.max(1);
    if *times == all { slashed(who) } else { format!("{} ({share} %)", slashed(who)) }
}

fn busiest(outcomes: &Outcomes) -> MeasuredValues {
    let mut values = MeasuredValues::default();
    for (who, times) in outcomes {
        let most = who.first().copied().unwrap_or(0);
        (0..*times).for_each(|_| values.push(most as f64));
    }
    values
}
