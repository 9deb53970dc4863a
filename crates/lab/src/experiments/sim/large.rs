//! The model with 64, 512 and other large numbers of workers.

use std::time::{Duration, Instant};

use weir_balance::AcceptPolicy;
use weir_balance::model::{ModelClient, World};

use super::{policies, quantile};
use crate::chart::{Chart, Scale};
use crate::comparison::{Better, Comparison};
use crate::finding::{FindingTable, LabFinding};
use crate::lab::Lab;

/// How long a request blocks its worker.
const WORK: Duration = Duration::from_millis(2);
/// Clients per worker: under overload, and with kept connections.
const OVERLOAD: usize = 16;
const KEPT: usize = 3;
/// The utilisation of workers under heavy-tailed service times.
const LOAD: f64 = 0.7;
/// The exponent of the Pareto distribution. At 1.5 the variance is infinite, and one request in a
/// thousand takes 33 times the mean.
const TAIL: f64 = 1.5;
/// The bound of service times.
const LONGEST: Duration = Duration::from_millis(500);
/// Requests per worker under the heavy tail.
const REQUESTS: usize = 100;

/// Adds the results of each policy for these numbers of workers.
pub(super) fn tables(lab: &Lab, sizes: &[usize], finding: &mut LabFinding) {
    let mut tails: Vec<(&str, Vec<f64>)> =
        policies().map(|(label, _)| (label, Vec::new())).collect();
    for &workers in sizes {
        let p99 = tables_for(lab, workers, finding);
        tails.iter_mut().zip(p99).for_each(|((_, all), p99)| all.push(p99));
    }
    let heads: Vec<String> = sizes.iter().map(|n| format!("{n} workers")).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let title = "The model: p99 of requests of very different length";
    let mut chart = Chart::new(title, "ms, less is better", Scale::Log, &heads);
    for (label, p99) in &tails {
        chart.row(label, p99.iter().copied());
    }
    finding.chart(chart.caption(
        "Workers are busy for 70 % of their time, and one request in a thousand takes 33 times the mean. With a queue each, \
         other requests wait behind it, whether or not workers are idle.",
    ));
    let of = |label: &str| {
        tails.iter().find(|(row, _)| *row == label).and_then(|(_, p99)| p99.last().copied())
    };
    if let (Some(fair), Some(each), Some(n)) = (of("fair"), of("reuseport"), sizes.last()) {
        let what = format!("p99 of very different requests to {n} workers of the model");
        let answer = Comparison::new(&what, "ms", Better::Less, ("fair", fair));
        finding.verdict(answer.beside(("reuseport", each)), "");
    }
}

/// Adds the table for one number of workers. Returns the p99 of each policy under the heavy tail.
fn tables_for(lab: &Lab, workers: usize, finding: &mut LabFinding) -> Vec<f64> {
    finding.remark(&format!("The model alone, {workers} workers:"));
    let heads = [
        "",
        "overload p50 ms",
        "p99",
        "max",
        "CV",
        "kept p99",
        "most on one",
        "heavy tail p50",
        "p99",
        "p99.9",
    ];
    let (mut table, mut tails) = (FindingTable::new(&heads), Vec::new());
    // With more workers, a shorter virtual time gives as many samples.
    let least = lab.size(120, 40);
    let time = Duration::from_millis((lab.size(24_000, 1200) / workers as u64).max(least));
    for (label, kind) in policies() {
        lab.step(&format!("model, {workers} workers, {label}"));
        let mut full = crowd(kind, workers, workers * OVERLOAD, |_| ModelClient::closing(WORK));
        // The connections are opened before the first requests, as by idle clients.
        let gap = WORK * 2;
        let mut kept = crowd(kind, workers, workers * KEPT, |_| ModelClient {
            gap,
            ..ModelClient::keeping(WORK)
        });
        full.run(time);
        kept.run(time);
        let requests = (workers * lab.size(REQUESTS, REQUESTS / 10)).max(lab.size(20_000, 1000));
        let tail = heavy_tail(kind, workers, requests);
        tails.push(quantile(&tail, 0.99));
        table.row(&[
            label.to_owned(),
            format!("{:.1}", quantile(&full, 0.5)),
            format!("{:.1}", quantile(&full, 0.99)),
            format!("{:.1}", quantile(&full, 1.0)),
            format!("{:.3}", full.witness().variation()),
            format!("{:.1}", quantile(&kept, 0.99)),
            kept.open().into_iter().max().unwrap_or(0).to_string(),
            format!("{:.1}", quantile(&tail, 0.5)),
            format!("{:.1}", quantile(&tail, 0.99)),
            format!("{:.1}", quantile(&tail, 0.999)),
        ]);
    }
    finding.table(&format!("{workers}-workers"), &table);
    tails
}

pub(super) fn explain(finding: &mut LabFinding) {
    finding.remark(
        "Overload: 16 clients for each worker in a closed loop, a connection for each request, 2 ms of work. Kept: three connections \
         per worker that stay. Heavy tail: requests come at random and keep 70 % of the workers busy, a \
         connection each; their work is Pareto's with the exponent 1.5 and a mean of 2 ms, so that \
         half take less than 1.1 ms and one in a thousand 67 ms. The model has a CPU for each worker and no network, so its \
         figures are the least that the policy allows. Under shared epoll and plain epoll it lets \
         the first waiter win, where real ones race.",
    );
}

/// A world with these clients, which all connect within 2 ms.
fn crowd(
    kind: AcceptPolicy,
    workers: usize,
    n: usize,
    client: impl Fn(usize) -> ModelClient,
) -> World {
    let mut world = World::new(kind, workers, Instant::now());
    let apart = WORK / u32::try_from(n.max(1)).unwrap_or(u32::MAX);
    let at = |i: usize| Duration::from_millis(1) + apart * u32::try_from(i).unwrap_or(u32::MAX);
    (0..n).for_each(|i| world.client(at(i), client(i)));
    world
}

/// Runs requests at random times with heavy-tailed service times, until all are answered.
fn heavy_tail(kind: AcceptPolicy, workers: usize, requests: usize) -> World {
    let mut world = World::new(kind, workers, Instant::now());
    world.draw_services(pareto(WORK));
    let apart = WORK.as_secs_f64() / (LOAD * workers as f64);
    let (mut at, mut random) = (0.0, 0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..requests {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let share = (random >> 11) as f64 / (1u64 << 53) as f64;
        at -= apart * (1.0 - share).ln();
        world.client(Duration::from_secs_f64(at), ModelClient::once(WORK));
    }
    world.run(Duration::from_secs_f64(at) + LONGEST * 20);
    world
}

/// Samples of the Pareto distribution with this mean, all equally likely.
fn pareto(mean: Duration) -> Vec<Duration> {
    const TIMES: u32 = 8192;
    let least = mean.as_secs_f64() * (TAIL - 1.0) / TAIL;
    let time = |n: u32| {
        let share = (f64::from(n) + 0.5) / f64::from(TIMES);
        Duration::from_secs_f64(least / (1.0 - share).powf(1.0 / TAIL)).min(LONGEST)
    };
    (0..TIMES).map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_heavy() {
        let times = pareto(WORK);
        let mean = times.iter().sum::<Duration>() / times.len() as u32;
        assert!((Duration::from_micros(1900)..=WORK).contains(&mean), "{mean:?}");
        assert!(times[times.len() / 2] < WORK * 6 / 10);
        assert!(times[times.len() - 9] > WORK * 30);
    }

    #[test]
    fn one_queue_shields_from_the_tail() {
        let p99 = |kind| quantile(&heavy_tail(kind, 64, 3000), 0.99);
        assert!(
            p99(AcceptPolicy::parse("fair").unwrap()) * 2.0
                < p99(AcceptPolicy::parse("reuseport").unwrap())
        );
    }
}
