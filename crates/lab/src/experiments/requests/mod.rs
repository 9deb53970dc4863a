//! Requests that wait for a stalled loop while other loops are idle.

mod model;

use std::time::Duration;

use weir_bench::{Closing, Pace};

use self::model::RequestRouting;
use crate::chart::Chart;
use crate::comparison::{Better, Comparison};
use crate::experiment::Experiment;
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, Traffic, compared};
use crate::program::{Family, HandlerWork, ServerSetup, Subject};
use crate::running::RunningServer;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "requests",
    title: "Requests, not connections",
    question: "Kept connections are spread evenly, and now and then a handler takes long. How long do the requests wait \
               that come to its loop meanwhile, when other loops have nothing to do?",
    published: "A sketch with twelve loops on the kernel of this design, in ms (p50 / p90 / p99 / p99.9), at 60 %: connections that stay \
                with their loop 7.9 / 68 / 152 / 200; taken over at the request's boundary 2.2 / 7.5 / 50.6 / 60; one \
                queue of all requests, the ideal, 1.8 / 4.4 / 50.4 / 53.",
    run,
};

const LOOPS: usize = 12;
const CONNECTIONS: usize = 200;
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_millis(50);
/// The percentage of long requests.
const LONG_SHARE_PERCENT: f64 = 1.0;
/// The loads, as shares of the loops' capacity.
const LOADS: [f64; 3] = [0.30, 0.60, 0.75];
/// The interval between connections, so that each one wakes a sleeping loop.
const CONNECT_INTERVAL: Duration = Duration::from_millis(2);

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let weir = lab.weir()?;
    let time = lab.size(Duration::from_secs(10), Duration::from_millis(500));
    let mut finding = LabFinding::default();
    let mut table = FindingTable::new(&[
        "",
        "load",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "p99.9 ms",
        "taken over",
        "passed on",
        "in vain",
    ]);
    let (mut at_sixty, mut outcomes) = (Vec::new(), Vec::new());
    let mut subjects: Vec<(Subject, ServerSetup)> = Vec::new();
    for (label, events) in
        [("taken over", "request_balance on;"), ("pinned", "request_balance off;")]
    {
        subjects.push((weir.policy(label, "fair"), setup(events)));
    }
    for program in lab.programs.iter().filter(|program| program.can_sleep()) {
        subjects.extend(program.others().into_iter().map(|subject| (subject, setup_of_others())));
        finding.remark(&format!("{}: {}.", program.name, program.way_of_work()));
    }
    for (subject, setup) in &subjects {
        let label = subject.label.as_str();
        for load in LOADS {
            lab.step(&format!("{label}, {:.0} %", 100.0 * load));
            let server = RunningServer::start(subject, setup)?;
            let outcome = lab.load(&server, &open(load, time), &mut |_| {})?;
            let count = |name: &str| match subject.program.family {
                Family::Weir => server.counter(name).unwrap_or_default().to_string(),
                Family::Nginx | Family::Haproxy => "-".to_owned(),
            };
            let at = |percent| outcome.tally.percentile(percent);
            let times = [50.0, 90.0, 99.0, 99.9].map(at);
            let mut cells = vec![label.to_owned(), format!("{:.0} %", 100.0 * load)];
            cells.extend(times.map(|time| format!("{time:.1}")));
            cells.push(count("weir_taken_over_connections_total"));
            cells.push(count("weir_passed_on_events_total"));
            cells.push(count("weir_looks_in_vain_total"));
            table.row(&cells);
            if load == LOADS[1] {
                at_sixty.push(times);
                outcomes.push((label, outcome));
            }
        }
    }
    compare(&mut finding, &at_sixty);
    let modelled = beside_the_model(lab, &mut finding, &mut table);
    finding.table("latency", &table);
    let runs = outcomes.iter().map(|(label, run)| (*label, run));
    let mut chart = Chart::percentiles("Twelve loops at 60 % of what they can do", runs);
    modelled.into_iter().for_each(|(label, at)| chart.row(label, at));
    finding.chart(chart.caption(
        "A connection that is taken over does not wait for the requests of others. The model has a processor for each loop, and nothing costs anything in it but \
         the handlers: what the rules come to by themselves.",
    ));
    let rows: Vec<(String, f64)> = (outcomes.iter())
        .map(|(label, run)| ((*label).to_owned(), run.tally.percentile(90.0)))
        .collect();
    let p90 = ("p90 at 60 %", "ms", Better::Less);
    let others: &[&[&str]] = &[&["pinned"], &[", one queue"], &[", reuseport"]];
    if let Some(answer) = compared(p90, &rows, "taken over", others, |p90| *p90) {
        finding.verdict(answer, "The long handlers themselves take 50 ms: they are the p99.");
    }
    finding.remark(
        "Twelve loops in one process, of others twelve workers or threads, 200 connections that stay, requests at fixed times whatever the answers do. Of a hundred \
         handlers one blocks its loop for 50 ms and the others for 1 ms, so that no answer to the long ones can be earlier than that: the p99 is \
         theirs.",
    );
    Ok(finding)
}

const WORK: Option<HandlerWork> =
    Some(HandlerWork::Either(SHORT, LONG, LONG_SHARE_PERCENT / 100.0));

fn setup(events: &'static str) -> ServerSetup {
    let server = "location = /status { weir_status; }".to_owned();
    ServerSetup {
        processes: 1,
        threads: LOOPS,
        work: WORK,
        events,
        server,
        ..ServerSetup::default()
    }
}

/// The setup of other servers: as many workers as weir has loops.
fn setup_of_others() -> ServerSetup {
    ServerSetup { processes: LOOPS, work: WORK, ..ServerSetup::default() }
}

/// The rate in requests per second that makes this load.
fn rate(load: f64) -> f64 {
    let part = LONG_SHARE_PERCENT / 100.0;
    let mean = part * LONG.as_secs_f64() + (1.0 - part) * SHORT.as_secs_f64();
    load * LOOPS as f64 / mean
}

fn open(load: f64, time: Duration) -> Traffic {
    Traffic {
        pace: Pace::Open { rate: rate(load) },
        connect_first: Some(CONNECT_INTERVAL),
        ..Traffic::closed(CONNECTIONS, Closing::Never, time)
    }
}

/// Adds the rows of the model. Returns their percentiles at 60 % load for the chart.
fn beside_the_model(
    lab: &Lab,
    finding: &mut LabFinding,
    table: &mut FindingTable,
) -> Vec<(&'static str, [f64; 5])> {
    let mut at_sixty = Vec::new();
    for (way, label) in RequestRouting::ALL {
        for load in LOADS {
            lab.step(&format!("{label}, {:.0} %", 100.0 * load));
            let seen = model::run(way, rate(load), lab.size(300_000, 20_000));
            let at = [50.0, 90.0, 99.0, 99.9, 100.0].map(|percent| seen.percentile(percent));
            let mut cells = vec![label.to_owned(), format!("{:.0} %", 100.0 * load)];
            cells.extend(at[..4].iter().map(|time| format!("{time:.1}")));
            cells.extend([seen.taken.to_string(), "-".to_owned(), "-".to_owned()]);
            table.row(&cells);
            if load == LOADS[1] {
                at_sixty.push((label, at));
            }
        }
    }
    let line = |at: &[f64; 5]| format!("{:.1} / {:.1} / {:.1} / {:.1}", at[0], at[1], at[2], at[3]);
    let sketch = ["2.2 / 7.5 / 50.6 / 60", "7.9 / 68 / 152 / 200", "1.8 / 4.4 / 50.4 / 53"];
    for ((label, at), sketch) in at_sixty.iter().zip(sketch) {
        finding.beside(&format!("{label}, at 60 %"), sketch, line(at));
    }
    at_sixty
}

/// Compares the latency at 60 % load with and without stealing.
fn compare(finding: &mut LabFinding, at_sixty: &[[f64; 4]]) {
    let [[_, on90, on99, _], [_, off90, off99, _], ..] = at_sixty else { return };
    let compared = |what, on: &f64, off: &f64| {
        Comparison::new(what, "ms", Better::Less, ("taken over", *on)).beside(("pinned", *off))
    };
    for (what, published, here) in [
        ("p90 at 60 %", "68 -> 7.5: 9.1 times less", compared("p90", on90, off90)),
        ("p99 at 60 %", "152 -> 50.6: 3 times less", compared("p99", on99, off99)),
    ] {
        finding.beside_compared(what, published, here);
    }
    finding.because(
        "A loop that has nothing to do looks into the kernel's list of what is ready for a loop that has been at work for long, and takes \
         the connections that wait there between two requests.",
    );
}
