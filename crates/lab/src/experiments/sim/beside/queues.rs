//! Overload: percentiles and standard deviation of the latency.

use std::time::Duration;

use weir_balance::AcceptPolicy;
use weir_balance::model::{Machine, ModelClient};
use weir_bench::{Closing, RunOutcome};

use super::verdict::{MeasuredValues, verdict};
use super::{DRAWS, MS, ROUNDS, WORKERS, kind, world};
use crate::experiment::MAIN;
use crate::experiments::sim::quantile;
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, Traffic};
use crate::program::{HandlerWork, ServerSetup};
use crate::running::RunningServer;

const CLIENTS: usize = 200;
/// The number of samples that represent the distribution of service times.
const TIMES: u32 = 500;
/// The interval between connections: long enough for a loop to sleep again.
const CONNECT_INTERVAL: Duration = Duration::from_millis(5);
const NAMES: [&str; 3] = ["p50 ms", "p99", "deviation"];

pub(super) fn compare(
    lab: &Lab,
    machine: &Machine,
    finding: &mut LabFinding,
) -> Result<(), String> {
    let weir = lab.weir()?;
    let setup = ServerSetup {
        processes: WORKERS,
        work: Some(HandlerWork::Sleep(MS * 2)),
        ..ServerSetup::default()
    };
    let time = lab.size(MS * 1200, MS * 300);
    let load = Traffic::closed(CLIENTS, Closing::Always, time);
    let mut all = vec![<[(MeasuredValues, MeasuredValues); NAMES.len()]>::default(); MAIN.len()];
    for round in 1..=lab.size(ROUNDS, 1) {
        // The load of other programs varies, so the cost of a request is measured each time.
        let services = services(lab, &setup)?;
        for ((label, policy), values) in MAIN.iter().zip(&mut all) {
            lab.step(&format!("overload, {label}, round {round}"));
            let server = RunningServer::start(&weir.policy(label, policy), &setup)?;
            let tally = lab.load(&server, &load, &mut |_| {})?.tally;
            let seen = [tally.percentile(50.0), tally.percentile(99.0), tally.log2.deviation()];
            let kind = kind(policy)?;
            let seeds = (u64::from(round) - 1) * DRAWS..u64::from(round) * DRAWS;
            let drawn: Vec<_> =
                seeds.map(|seed| overloaded(kind, machine, &services, time, seed)).collect();
            for (n, (real, model)) in values.iter_mut().enumerate() {
                seen.get(n).into_iter().for_each(|value| real.push(*value));
                drawn.iter().filter_map(|d| d.get(n)).for_each(|value| model.push(*value));
            }
        }
    }
    let mut table = FindingTable::new(&["overload", "", "measured", "model", ""]);
    for ((label, _), values) in MAIN.iter().zip(&all) {
        for (n, (name, (seen, model))) in NAMES.iter().zip(values).enumerate() {
            let label = if n == 0 { label } else { "" };
            let cells = [label, name, &seen.text(), &model.text(), &verdict(seen, model)];
            table.row(&cells.map(str::to_owned));
        }
    }
    finding.table("queues", &table);
    finding.remark(
        "Twelve workers, 200 clients without pause, each request holds its worker for 2 ms; from the least to the most of five runs, and of \
         five draws of the model for each. How long a request holds a worker was measured before each run, with two kept connections on each of twelve \
         workers; the model draws from those times. The p99 of EPOLLEXCLUSIVE is made in the first milliseconds: all clients connect before the first of them sends, and \
         the first worker in the list takes one empty connection after another, the requests of which it then has to serve alone.",
    );
    Ok(())
}

/// The service times of requests under overload. Their mean follows from the throughput of workers
/// that are never idle, their distribution from the latency of clients.
fn services(lab: &Lab, setup: &ServerSetup) -> Result<Vec<Duration>, String> {
    lab.step("what a request costs");
    let server = RunningServer::start(&lab.weir()?.policy("fair", "fair"), setup)?;
    let time = lab.size(MS * 700, MS * 300);
    let load = Traffic {
        connect_first: Some(CONNECT_INTERVAL),
        ..Traffic::closed(WORKERS * 2, Closing::Never, time)
    };
    let seen: RunOutcome = lab.load(&server, &load, &mut |_| {})?;
    let mean = WORKERS as f64 / seen.requests_per_second().max(1.0);
    let scale = mean * 1e3 / seen.tally.log2.mean().max(1e-3);
    let at = |n: u32| (f64::from(n) + 0.5) / f64::from(TIMES);
    let time = |n| Duration::from_nanos(seen.tally.latency.value_at_quantile(at(n)));
    Ok((0..TIMES).map(|n| time(n).mul_f64(scale)).collect())
}

fn overloaded(
    kind: AcceptPolicy,
    machine: &Machine,
    services: &[Duration],
    time: Duration,
    seed: u64,
) -> [f64; 3] {
    let mut world = world(kind, WORKERS, machine, seed);
    world.draw_services(services.to_vec());
    let (think, gap) = (Duration::ZERO, Duration::ZERO);
    let client = ModelClient { think, gap, ..ModelClient::closing(MS * 2) };
    (0..CLIENTS).for_each(|_| world.client(MS, client));
    world.run(time);
    let times = &world.witness().latencies;
    let ms: Vec<f64> = times.iter().map(|t| t.as_secs_f64() * 1e3).collect();
    let mean = ms.iter().sum::<f64>() / ms.len().max(1) as f64;
    let squares = ms.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / ms.len().max(1) as f64;
    [quantile(&world, 0.5), quantile(&world, 0.99), squares.sqrt()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_knows_the_articles() {
        let micros = Duration::from_micros;
        let (accept, connect, request) = (micros(15), micros(30), micros(10));
        let machine = Machine { cpus: 2, wakes: vec![micros(20)], accept, connect, request };
        let of =
            |policy| overloaded(AcceptPolicy::parse(policy).unwrap(), &machine, &[], MS * 3000, 1);
        let (one, many, first) = (of("rotate"), of("reuseport"), of("exclusive"));
        assert!(many[2] > 5.0 * one[2] && many[1] > 2.0 * one[1], "{many:?} {one:?}");
        assert!(first[2] > 3.0 * one[2], "{first:?} {one:?}");
    }
}
