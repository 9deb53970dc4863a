//! Light load: the shares of the busiest and of the least busy worker.

use std::time::Duration;

use weir_balance::AcceptPolicy;
use weir_balance::model::{Machine, ModelClient};
use weir_bench::{Closing, Pace};

use super::verdict::{MeasuredValues, verdict};
use super::{DRAWS, MS, ROUNDS, WORKERS, kind, world};
use crate::experiment::MAIN;
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, Traffic, padded};
use crate::program::{HandlerWork, ServerSetup};
use crate::running::RunningServer;

/// Requests a second.
const RATE: f64 = 200.0;
const NAMES: [&str; 2] = ["busiest, %", "least busy, %"];

pub(super) fn compare(
    lab: &Lab,
    machine: &Machine,
    finding: &mut LabFinding,
) -> Result<(), String> {
    let weir = lab.weir()?;
    let setup = ServerSetup {
        processes: WORKERS,
        work: Some(HandlerWork::Spin(MS)),
        log: true,
        ..ServerSetup::default()
    };
    let time = lab.size(MS * 1500, MS * 300);
    let load =
        Traffic { pace: Pace::Open { rate: RATE }, ..Traffic::closed(50, Closing::Always, time) };
    let mut table =
        FindingTable::new(&["light load", "share of requests", "measured", "model", ""]);
    for (label, policy) in MAIN {
        let mut values = <[(MeasuredValues, MeasuredValues); NAMES.len()]>::default();
        for round in 1..=lab.size(ROUNDS, 1) {
            lab.step(&format!("light load, {label}, round {round}"));
            let server = RunningServer::start(&weir.policy(label, policy), &setup)?;
            lab.load(&server, &load, &mut |_| {})?;
            let seen = ends(server.served()?.requests.into_values());
            values.iter_mut().zip(seen).for_each(|((real, _), value)| real.push(value));
        }
        for seed in 0..u64::from(ROUNDS) * DRAWS {
            let drawn = lightly(kind(policy)?, machine, time, seed);
            values.iter_mut().zip(drawn).for_each(|((_, model), value)| model.push(value));
        }
        for (n, (name, (seen, model))) in NAMES.iter().zip(&values).enumerate() {
            let label = if n == 0 { label } else { "" };
            let cells = [label, name, &seen.text(), &model.text(), &verdict(seen, model)];
            table.row(&cells.map(str::to_owned));
        }
    }
    finding.table("workers", &table);
    finding.remark(
        "Twelve workers, 200 requests a second that compute for 1 ms each, a connection for each. Evenly spread, each serves 8.3 %.",
    );
    Ok(())
}

fn lightly(kind: AcceptPolicy, machine: &Machine, time: Duration, seed: u64) -> [f64; 2] {
    let mut world = world(kind, WORKERS, machine, seed);
    let apart = Duration::from_secs_f64(1.0 / RATE);
    let count = (time.as_secs_f64() * RATE) as u32;
    let client = ModelClient { computes: true, gap: Duration::ZERO, ..ModelClient::once(MS) };
    (1..=count).for_each(|i| world.client(apart * i, client));
    ends(world.run(time * 2).answered.iter().copied())
}

/// The greatest and the least share, in percent.
fn ends(counts: impl IntoIterator<Item = u64>) -> [f64; 2] {
    let all = padded(counts, WORKERS);
    let sum = all.iter().sum::<u64>().max(1) as f64;
    let share = |n: Option<&u64>| 100.0 * *n.unwrap_or(&0) as f64 / sum;
    [share(all.first()), share(all.last())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_takes_all_or_all_take_the_same() {
        let micros = Duration::from_micros;
        let (accept, connect, request) = (micros(15), micros(30), micros(10));
        let machine = Machine { cpus: 2, wakes: vec![micros(20)], accept, connect, request };
        let of = |policy| lightly(AcceptPolicy::parse(policy).unwrap(), &machine, MS * 300, 1)[0];
        assert!((99.9..=100.0).contains(&of("exclusive")), "{}", of("exclusive"));
        assert!(of("fair") < 10.0, "{}", of("fair"));
    }
}
