//! epoll, poll, select and io_uring among many idle connections.

use std::net::TcpStream;
use std::time::Duration;

use weir_bench::Closing;

use crate::chart::{Chart, Scale};
use crate::comparison::{Better, Comparison};
use crate::experiment::Experiment;
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, Traffic};
use crate::program::{Family, ServerSetup};
use crate::running::RunningServer;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "backends",
    title: "epoll, poll, select, io_uring",
    question: "Ten busy connections among 10 to 10,000 idle ones: what does each way of waiting cost?",
    published: "select and poll look at every connection at each wait, epoll only at those with news: \
                its cost does not grow with the idle ones.",
    run,
};

/// The backends. Only weir has the last one.
const WAYS: [(&str, &str); 4] = [
    ("epoll", "use epoll;"),
    ("poll", "use poll;"),
    ("select", "use select;"),
    ("io_uring", "use io_uring;"),
];
/// select(2) takes only descriptors below 1024.
const SELECT_MAX: usize = 900;
/// How long accepting ten thousand connections may take. A server that scans all connections for
/// each accept needs long.
const ACCEPT_DEADLINE: Duration = Duration::from_secs(60);
/// Descriptors of this process for other things than idle connections.
const RESERVED_DESCRIPTORS: u64 = 200;

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let room = limit.map_or(usize::MAX, |n| n.saturating_sub(RESERVED_DESCRIPTORS) as usize);
    let all = lab.size(vec![10, 100, 1000, 10_000], vec![10, 100]);
    let sizes: Vec<usize> = all.into_iter().filter(|&n| n <= room).collect();
    let time = lab.size(Duration::from_millis(1200), Duration::from_millis(300));
    let load = Traffic::closed(10, Closing::Never, time);
    let mut finding = LabFinding::default();
    let heads: Vec<String> = sizes.iter().map(|n| format!("{n} idle")).collect();
    let heads: Vec<&str> = std::iter::once("").chain(heads.iter().map(String::as_str)).collect();
    let mut table = FindingTable::new(&heads);
    let mut picture = Vec::new();
    for program in &lab.programs {
        let ways = if program.family == Family::Weir { &WAYS[..] } else { &WAYS[..3] };
        for &(name, line) in ways {
            let subject = match program.family {
                Family::Weir => program.policy(name, "fair"),
                Family::Nginx => program.one_queue(),
                Family::Haproxy => program.haproxy()[0].clone(),
            };
            let label = format!("{}, {name}", program.name);
            let setup = ServerSetup { processes: 1, events: line, ..ServerSetup::default() };
            let (mut cells, mut values) = (vec![label.clone()], Vec::new());
            for &idle in &sizes {
                lab.step(&format!("{label}, {idle} idle connections"));
                if name == "select" && idle > SELECT_MAX {
                    cells.push("-".to_owned());
                    values.push(0.0);
                    continue;
                }
                let Ok(server) = RunningServer::start(&subject, &setup) else {
                    // The server or the kernel lacks this backend.
                    cells.push("-".to_owned());
                    values.push(0.0);
                    continue;
                };
                let kept: Result<Vec<_>, _> =
                    (0..idle).map(|_| TcpStream::connect(server.address())).collect();
                let kept = kept.map_err(|e| format!("idle connections: {e}"))?;
                server.settle_within(ACCEPT_DEADLINE)?;
                let before: Duration = server.cpu().into_iter().sum();
                let outcome = lab.load(&server, &load, &mut |_| {})?;
                drop(kept);
                let cpu = server.cpu().into_iter().sum::<Duration>().saturating_sub(before);
                let rate = outcome.tally.requests() as f64 / cpu.as_secs_f64().max(1e-9);
                // A server at its limit of connections answers no request.
                cells.push(if rate > 0.0 { format!("{rate:.0}") } else { "-".to_owned() });
                values.push(rate);
            }
            table.row(&cells);
            picture.push((label, values));
        }
    }
    compare(&mut finding, &picture);
    finding.table("rates", &table);
    let title = "Requests per second of server CPU";
    let mut chart = Chart::new(title, "1/s, more is better", Scale::Log, &heads[1..]);
    for (label, rates) in &picture {
        chart.row(label, rates.iter().map(|&rate| if rate > 0.0 { rate } else { f64::NAN }));
    }
    finding.chart(chart.caption(
        "Dots in one place mean that idle connections cost nothing; a missing one is a backend that \
         the server does not have, or that cannot watch so many.",
    ));
    let cost = |way: &str| {
        let row = picture.iter().find(|(label, _)| label.ends_with(&format!(", {way}")));
        let measured = row.map(|(_, all)| all.iter().copied().filter(|&rate| rate > 0.0));
        measured.and_then(|mut all| all.next().zip(all.next_back())).map(|(few, many)| few / many)
    };
    if let (Some(epoll), Some(poll)) = (cost("epoll"), cost("poll")) {
        let what = "A request's cost with the most idle connections, of that with the fewest,";
        let answer = Comparison::new(what, "times", Better::Less, ("epoll", epoll));
        finding.verdict(answer.beside(("poll", poll)), "poll looks at every connection each time.");
    }
    finding.remark(
        "Requests per second of the server's CPU time, one worker, answers from memory. A dash: the server \
         is built without it, the kernel has none, or it cannot have so many connections.",
    );
    Ok(finding)
}

/// `rates` has a row per backend, from few idle connections to many. 0 is not measured.
fn compare(finding: &mut LabFinding, rates: &[(String, Vec<f64>)]) {
    for (way, published) in [
        ("epoll", "does not grow with the idle connections"),
        ("poll", "grows with every connection"),
        ("select", "grows with every connection, and ends at 1024"),
        ("io_uring", "not in the articles"),
    ] {
        let row = rates.iter().find(|(label, _)| label.ends_with(&format!(", {way}")));
        let Some((label, all)) = row else { continue };
        let measured: Vec<f64> = all.iter().copied().filter(|&rate| rate > 0.0).collect();
        let (Some(few), Some(many)) = (measured.first(), measured.last()) else { continue };
        let times = few / many.max(1e-9);
        let here = format!(
            "a request costs {times:.1} times as much at the most as at the least ({label})"
        );
        finding.beside(&format!("{way}: cost of a request"), published, here);
    }
    finding.because(
        "The articles explain why and give no figures; the ratios here are of CPU per request with the most idle \
         connections against the fewest. select() stops below 1024 descriptors, so that its ratio is over fewer of them.",
    );
}
