//! The model beside this machine: spread, queues and workers once more, several times each, so that it is known how
//! far this machine is from itself.

use std::time::{Duration, Instant};

use weir_balance::Kind;
use weir_balance::model::{Client, World};
use weir_bench::{Closing, Outcome, Pace};

use super::{kinds, quantile};
use crate::experiments::{MAIN, POLICIES, spread};
use crate::finding::{Finding, Table};
use crate::lab::{Lab, Load, padded, slashed};
use crate::program::{Setup, Work};
use crate::running::Running;

const MS: Duration = Duration::from_millis(1);
const WORKERS: usize = 12;
const CLIENTS: usize = 200;
/// Requests a second under light load.
const RATE: f64 = 200.0;
/// Times that the distribution of services is told in.
const TIMES: u32 = 500;
/// Measurements of each.
const ROUNDS: u32 = 5;
/// Between two connections: long enough for a loop to sleep again.
const APART: Duration = Duration::from_millis(5);

/// Six connections, one after another, to three idle workers.
pub(super) fn spread(lab: &Lab, finding: &mut Finding) -> Result<(), String> {
    let weir = lab.weir()?;
    let mut table = Table::new(&["6 connections, 3 workers", "measured", "model", ""]);
    for ((label, policy), (_, kind)) in POLICIES.iter().zip(kinds()) {
        lab.step(&format!("six connections, {label}"));
        let measured = spread::of_three(&weir.policy(label, policy))?;
        let mut world = World::new(kind, 3, Instant::now());
        (1..=6).for_each(|i| world.client(MS * 20 * i, Client::once(Duration::ZERO)));
        let model = padded(world.run(MS * 1000).accepted.iter().copied(), 3);
        let same = if model == measured { "the same" } else { "differs" };
        table.row(&[(*label).to_owned(), slashed(&measured), slashed(&model), same.to_owned()]);
    }
    finding.table("spread", &table);
    Ok(())
}

/// Overload: percentiles and deviation of the latency.
pub(super) fn queues(lab: &Lab, finding: &mut Finding) -> Result<(), String> {
    let weir = lab.weir()?;
    let setup = Setup { processes: WORKERS, work: Some(Work::Sleep(MS * 2)), ..Setup::default() };
    let time = lab.size(MS * 1200, MS * 300);
    let load = Load::closed(CLIENTS, Closing::Always, time);
    let mut rounds = Vec::new();
    for round in 1..=lab.size(ROUNDS, 1) {
        // What else the machine does changes; what a request costs is asked again each time.
        let services = services(lab, &setup)?;
        for (label, policy) in MAIN {
            lab.step(&format!("overload, {label}, round {round}"));
            let server = Running::start(&weir.policy(label, policy), &setup)?;
            let tally = lab.load(&server, &load, &mut |_| {})?.tally;
            let seen = [tally.percentile(50.0), tally.percentile(99.0), tally.log2.deviation()];
            rounds.push((*policy, seen, overloaded(kind(policy)?, &services, time)));
        }
    }
    let mut table = Table::new(&["overload", "", "measured", "model", ""]);
    for (label, policy) in MAIN {
        for (n, name) in ["p50 ms", "p99", "deviation"].into_iter().enumerate() {
            let of = || rounds.iter().filter(|(of, ..)| of == policy);
            let seen = of().filter_map(|(_, seen, _)| seen.get(n).copied());
            let model = of().filter_map(|(_, _, model)| model.get(n).copied());
            let label = if n == 0 { label } else { "" };
            table.row(&row(label, name, seen, median(model)));
        }
    }
    finding.table("queues", &table);
    finding.remark(
        "Measured: the least and the most of five runs. What a request costs a worker was measured before each of them, with two kept connections on each of twelve workers; the model draws from those times, and its middle figure of five stands here. What it does not \
         know is the rest of the machine: that workers and client share the CPUs.",
    );
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

/// How long a request holds a worker while the next one waits already. The mean is what so many workers
/// that are never idle need for each request, the spread around it that of what clients see.
fn services(lab: &Lab, setup: &Setup) -> Result<Vec<Duration>, String> {
    lab.step("what a request costs");
    let server = Running::start(&lab.weir()?.policy("fair", "fair"), setup)?;
    let time = lab.size(MS * 700, MS * 300);
    let load =
        Load { connect_first: Some(APART), ..Load::closed(WORKERS * 2, Closing::Never, time) };
    let seen: Outcome = lab.load(&server, &load, &mut |_| {})?;
    let mean = WORKERS as f64 / seen.requests_per_second().max(1.0);
    let scale = mean * 1e3 / seen.tally.log2.mean().max(1e-3);
    let at = |n: u32| (f64::from(n) + 0.5) / f64::from(TIMES);
    let time = |n| Duration::from_nanos(seen.tally.latency.value_at_quantile(at(n)));
    Ok((0..TIMES).map(|n| time(n).mul_f64(scale)).collect())
}

fn overloaded(kind: Kind, services: &[Duration], time: Duration) -> [f64; 3] {
    let mut world = World::new(kind, WORKERS, Instant::now());
    world.draw_services(services.to_vec());
    let at = |i: usize| MS + Duration::from_micros(10) * u32::try_from(i).unwrap_or(0);
    (0..CLIENTS).for_each(|i| world.client(at(i), Client::closing(MS * 2)));
    world.run(time);
    let times = &world.witness().latencies;
    let ms: Vec<f64> = times.iter().map(|t| t.as_secs_f64() * 1e3).collect();
    let mean = ms.iter().sum::<f64>() / ms.len().max(1) as f64;
    let squares = ms.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / ms.len().max(1) as f64;
    [quantile(&world, 0.5), quantile(&world, 0.99), squares.sqrt()]
}

/// Light load: the shares of the busiest and of the least busy worker.
pub(super) fn workers(lab: &Lab, finding: &mut Finding) -> Result<(), String> {
    let weir = lab.weir()?;
    let setup =
        Setup { processes: WORKERS, work: Some(Work::Spin(MS)), log: true, ..Setup::default() };
    let time = lab.size(MS * 1500, MS * 300);
    let load = Load { pace: Pace::Open { rate: RATE }, ..Load::closed(50, Closing::Always, time) };
    let mut table = Table::new(&["light load", "share of requests", "measured", "model", ""]);
    for (label, policy) in MAIN {
        let mut seen = Vec::new();
        for round in 1..=lab.size(ROUNDS, 1) {
            lab.step(&format!("light load, {label}, round {round}"));
            let server = Running::start(&weir.policy(label, policy), &setup)?;
            lab.load(&server, &load, &mut |_| {})?;
            seen.push(ends(server.served()?.requests.into_values()));
        }
        let model = lightly(kind(policy)?, time);
        for (n, name) in ["busiest, %", "least busy, %"].into_iter().enumerate() {
            let seen = seen.iter().filter_map(|all| all.get(n).copied());
            let Some(model) = model.get(n) else { continue };
            let label = if n == 0 { label } else { "" };
            table.row(&row(label, name, seen, *model));
        }
    }
    finding.table("workers", &table);
    finding.remark(
        "Twelve workers, 200 requests a second that compute for 1 ms each, a connection for each. Evenly spread, each serves 8.3 %.",
    );
    Ok(())
}

fn lightly(kind: Kind, time: Duration) -> [f64; 2] {
    let mut world = World::new(kind, WORKERS, Instant::now());
    let apart = Duration::from_secs_f64(1.0 / RATE);
    let count = (time.as_secs_f64() * RATE) as u32;
    (1..=count).for_each(|i| world.client(apart * i, Client::once(MS)));
    ends(world.run(time * 2).answered.iter().copied())
}

/// The greatest and the least share, in percent.
fn ends(counts: impl IntoIterator<Item = u64>) -> [f64; 2] {
    let all = padded(counts, WORKERS);
    let sum = all.iter().sum::<u64>().max(1) as f64;
    let share = |n: Option<&u64>| 100.0 * *n.unwrap_or(&0) as f64 / sum;
    [share(all.first()), share(all.last())]
}

fn kind(policy: &str) -> Result<Kind, String> {
    Kind::parse(policy).map_err(|_| format!("{policy} is no policy of the model"))
}

/// Whether the model is within what was measured, and if not, how far away.
fn row(label: &str, name: &str, seen: impl Iterator<Item = f64>, model: f64) -> [String; 5] {
    let (least, most) =
        seen.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
    let verdict = match model {
        m if m < least => format!("{:.0} % below", 100.0 * (1.0 - m / least)),
        m if m > most && most > 0.0 => format!("{:.0} % above", 100.0 * (m / most - 1.0)),
        m if m > most => format!("{m:.1} above"),
        _ => "within".to_owned(),
    };
    let measured = format!("{least:.1} to {most:.1}");
    [label.to_owned(), name.to_owned(), measured, format!("{model:.1}"), verdict]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_say_how_far() {
        let of = |model| row("", "", [2.0, 4.0].into_iter(), model)[4].clone();
        assert_eq!([of(3.0), of(1.0), of(5.0)], ["within", "50 % below", "25 % above"]);
    }

    #[test]
    fn the_model_knows_the_articles() {
        let one = overloaded(Kind::parse("rotate").unwrap(), &[], MS * 3000);
        let many = overloaded(Kind::parse("reuseport").unwrap(), &[], MS * 3000);
        assert!(many[2] > 5.0 * one[2] && many[1] > 2.0 * one[1], "{many:?} {one:?}");
        assert_eq!(lightly(Kind::parse("exclusive").unwrap(), MS * 300)[0], 100.0);
        assert!(lightly(Kind::parse("fair").unwrap(), MS * 300)[0] < 10.0);
    }
}
