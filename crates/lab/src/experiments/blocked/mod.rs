//! Which requests wait when one disk operation in some hundred is slow?

mod origin;
mod site;
mod streams;
mod waits;

#[cfg(test)]
mod tests;

use crate::chart::{Chart, Scale};
use crate::comparison::{Better, Comparison};
use crate::experiment::Experiment;
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, compared};
use crate::program::{Family, Subject};

use site::SharedServers;
use streams::{DiskRequest, Streams};
use waits::FirstByteWaits;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "blocked",
    title: "The slow disk",
    question: "One disk operation in five hundred takes 100 ms. Half of the requests need the disk, half do \
               not. How long do they wait for the first byte, when reading, opening, or nothing at all \
               may hold up the loop?",
    published: "With all file operations on the loop, waiting for it was more than half of the time to first \
                byte at p99. Threads for read() and write() gained nothing; threads for open() too gained \
                a factor of 6 at p99. What was left on the loop were open(O_CREAT), rename() and \
                revalidation.",
    run,
};

/// Requests a second of each stream.
const RATE: f64 = 500.0;
/// The reciprocal of the share of slow operations.
const ONE_IN: u32 = 500;

/// The file operations that each variant of weir gives to threads.
const WEIR: &[(&str, &str)] =
    &[(NOTHING, "aio off;"), (READS, "aio reads;"), (OPENS, "aio opens;"), (ALL, "")];
const NOTHING: &str = "weir, blocking I/O";
const READS: &str = "weir, threads for read";
const OPENS: &str = "weir, threads for open too";
/// weir's default.
const ALL: &str = "weir, all in threads";
const NGINX: &[(&str, &str)] =
    &[("aio off", "aio off;"), ("aio threads", "aio threads; aio_write on;")];

/// The results of a server under one load.
struct LoadResult {
    subject: String,
    load: DiskRequest,
    /// The figures without slow operations.
    fast: Streams,
    /// The figures with slow operations.
    slow: Streams,
}

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let mut finding = LabFinding::default();
    let site = match SharedServers::new(lab) {
        Ok(site) => site,
        Err(why) => {
            finding.remark(&format!("Skipped, since FUSE cannot be mounted here: {why}"));
            return Ok(finding);
        }
    };
    let mut results = Vec::new();
    for subject in subjects(lab) {
        results.extend(site.measure(lab, &subject)?);
    }
    compare(&mut finding, &results);
    finding.table("ttfb", &times(&results));
    finding.table("loops", &loops(&results));
    charts(&mut finding, &results);
    finding.table("times", &ratios(&results));
    finding.remark(
        "Two loops. Each stream sends 500 requests a second, whatever the answers do. One stream needs no \
         disk; the other asks for stored answers of 4 to 60 KiB: each of many in turn (cold), a few \
         again and again (hot), new ones (fills), or ones that must be checked with their origin \
         each second (checks). 1 in 500 of the operations open, create, read, write, rename and unlink takes \
         100 ms: a few requests of a thousand must wait for one. The p99 without these leaves out as \
         many of the slowest as operations were slow. The first two columns are of the same server \
         while no operation was slow.",
    );
    Ok(finding)
}

fn subjects(lab: &Lab) -> Vec<Subject> {
    let mut all = Vec::new();
    for program in &lab.programs {
        let variants = match program.family {
            Family::Weir => WEIR,
            Family::Nginx => NGINX,
            // HAProxy has no cache on disk.
            Family::Haproxy => &[],
        };
        all.extend(variants.iter().map(|(label, http)| program.with(label, http)));
    }
    all
}

/// Compares the published steps with the same steps here.
fn compare(finding: &mut LabFinding, results: &[LoadResult]) {
    let find = |subject: &str, load: DiskRequest| {
        let found = results.iter().find(|result| result.subject == subject && result.load == load);
        found.map(|result| result.slow.all().quantile(0.99))
    };
    let mut step = |what: &str, published: &str, load: DiskRequest, from: &str, to: &str| {
        let Some((before, after)) = find(from, load).zip(find(to, load)) else { return };
        let here = Comparison::new("p99", "ms", Better::Less, (to, after)).beside((from, before));
        finding.beside_compared(what, published, here);
    };
    step("p99 with threads for reading", "no gain", DiskRequest::Cold, NOTHING, READS);
    step("p99 with threads for open() too", "a factor of 6", DiskRequest::Cold, READS, OPENS);
    step("p99 of fills: create and rename too", "not tried", DiskRequest::Fills, OPENS, ALL);
    let blocking =
        results.iter().find(|result| result.subject == NOTHING && result.load == DiskRequest::Cold);
    if let Some((result, blocked)) =
        blocking.and_then(|result| result.slow.blocked.as_ref().map(|b| (result, b)))
    {
        let share = 100.0 * blocked.quantile(0.99) / result.slow.all().quantile(0.99).max(1e-6);
        let what = "event_loop_blocked of the time to first byte, at p99";
        finding.beside(what, "more than 50 %", format!("{share:.0} %"));
    }
    finding.because(
        "Here every slow operation takes 100 ms and all others well under one, where the published disks had \
         all kinds of times, so that the figures cannot be compared directly. An event counts once for event_loop_blocked however many requests wait behind it, so that few \
         but long stops move its p99 less than that of the requests.",
    );
}

fn times(results: &[LoadResult]) -> FindingTable {
    let mut table = FindingTable::new(&[
        "time to first byte, ms",
        "load",
        "stream",
        "p50 fast",
        "p99 fast",
        "p50",
        "p99",
        "p99.9",
        "max",
        "p99 without",
        "slow",
        "bad",
    ]);
    for result in results {
        for (name, fast, slow) in [
            ("memory", &result.fast.memory, &result.slow.memory),
            ("disk", &result.fast.disk, &result.slow.disk),
        ] {
            let delayed = if name == "disk" { result.slow.delayed } else { 0 };
            let figures = [
                fast.quantile(0.5),
                fast.quantile(0.99),
                slow.quantile(0.5),
                slow.quantile(0.99),
                slow.quantile(0.999),
                slow.quantile(1.0),
                slow.quantile_without(delayed, 0.99),
            ];
            let mut cells =
                vec![result.subject.clone(), result.load.name().to_owned(), name.to_owned()];
            cells.extend(figures.map(|ms| format!("{ms:.2}")));
            cells.extend([delayed, fast.bad + slow.bad].map(|n| n.to_string()));
            table.row(&cells);
        }
    }
    table
}

/// How long events waited, as the loops report it.
fn loops(results: &[LoadResult]) -> FindingTable {
    let heads =
        ["event loop blocked, ms", "load", "p50", "p99", "p99.9", "ttfb p99", "share of it %"];
    let mut table = FindingTable::new(&heads);
    for result in results {
        let Some(blocked) = &result.slow.blocked else { continue };
        let [half, most, nearly_all] = [0.5, 0.99, 0.999].map(|q| blocked.quantile(q));
        let ttfb = result.slow.all().quantile(0.99);
        let share = 100.0 * most / ttfb.max(1e-6);
        let figures = [half, most, nearly_all, ttfb].map(|ms| format!("{ms:.2}"));
        let mut cells = vec![result.subject.clone(), result.load.name().to_owned()];
        cells.extend(figures);
        cells.push(format!("{share:.0}"));
        table.row(&cells);
    }
    table
}

fn charts(finding: &mut LabFinding, results: &[LoadResult]) {
    let cold = || results.iter().filter(|result| result.load == DiskRequest::Cold);
    let memory: fn(&LoadResult) -> &FirstByteWaits = |result| &result.slow.memory;
    for (title, stream) in [
        ("Time to first byte of requests that need no disk", memory),
        ("Time to first byte of requests that need the disk", |result| &result.slow.disk),
    ] {
        let columns = ["p50", "p99", "p99.9", "max"];
        let mut chart = Chart::new(title, "ms, less is better", Scale::Log, &columns);
        for result in cold() {
            let waits = stream(result);
            chart.row(&result.subject, [0.5, 0.99, 0.999, 1.0].map(|share| waits.quantile(share)));
        }
        finding.chart(chart.caption(
            "One operation of the disk in 500 takes 100 ms. The fewer dots of a row stand there, the fewer requests wait for a \
             slow operation that is not their own.",
        ));
    }
    let rows: Vec<(String, f64)> =
        cold().map(|result| (result.subject.clone(), memory(result).quantile(0.99))).collect();
    let p99 = ("p99 of requests that need no disk, beside a slow disk,", "ms", Better::Less);
    let others: &[&[&str]] = &[&["aio threads"], &["aio off"], &[NOTHING], &[OPENS]];
    if let Some(answer) = compared(p99, &rows, ALL, others, |p99| *p99) {
        finding.verdict(answer, "");
    }
}

/// The p99 of each server as a multiple of weir's. For weir itself: as a multiple of its p99
/// without slow operations.
fn ratios(results: &[LoadResult]) -> FindingTable {
    let ratio = |a: f64, b: f64| a / b.max(1e-3);
    let heads = DiskRequest::ALL
        .map(|load| ["memory", "disk"].map(|name| format!("{} {name}", load.name())));
    let heads = heads.as_flattened().iter().map(String::as_str);
    let mut table =
        FindingTable::new(&std::iter::once("p99, times").chain(heads).collect::<Vec<_>>());
    let weir: Vec<&LoadResult> = results.iter().filter(|result| result.subject == ALL).collect();
    let mut own = vec![format!("{ALL}: of its p99 without slow operations")];
    for result in &weir {
        let without = result.slow.disk.quantile_without(result.slow.delayed, 0.99);
        let memory = ratio(result.slow.memory.quantile(0.99), result.fast.memory.quantile(0.99));
        let disk = ratio(without, result.fast.disk.quantile(0.99));
        own.extend([memory, disk].map(|times| format!("{times:.2}")));
    }
    table.row(&own);
    for others in
        results.chunks(DiskRequest::ALL.len()).filter(|of| of.iter().all(|r| r.subject != ALL))
    {
        let Some(first) = others.first() else { continue };
        let mut cells = vec![format!("{}: of that of {ALL}", first.subject)];
        for (other, weir) in others.iter().zip(&weir) {
            let (other, weir) = (&other.slow, &weir.slow);
            let memory = ratio(other.memory.quantile(0.99), weir.memory.quantile(0.99));
            let disk = ratio(other.disk.quantile(0.99), weir.disk.quantile(0.99));
            cells.extend([memory, disk].map(|times| format!("{times:.0}")));
        }
        table.row(&cells);
    }
    table
}
