//! Measures a way to accept under the two loads that distinguish ways.

use std::time::Duration;

use weir_bench::Closing;

use crate::lab::{Lab, Traffic};
use crate::program::{HandlerWork, ServerSetup, Subject};
use crate::running::RunningServer;

/// How long a request blocks its loop.
pub(super) const WORK: Duration = Duration::from_millis(2);
/// The time between two kept connections: long enough for a loop to sleep again.
const APART: Duration = Duration::from_millis(10);
/// Clients for each loop under overload, and with kept connections.
pub(super) const CROWD: usize = 16;
pub(super) const KEPT: usize = 3;

/// One way to accept.
pub(super) struct AcceptSetup {
    pub(super) subject: Subject,
    /// Its name in other experiments.
    pub(super) label: String,
    /// The policy of weir that it is, or is equivalent to.
    pub(super) policy: String,
    /// The configuration line for it.
    pub(super) setting: String,
    /// Whether the configuration has it.
    pub(super) now: bool,
}

/// One way to accept, measured.
pub(super) struct MeasuredSetup {
    /// The server that it was measured on.
    pub(super) program: String,
    pub(super) label: String,
    pub(super) policy: String,
    pub(super) setting: String,
    pub(super) now: bool,
    /// p99 under overload, and the deviation.
    pub(super) overload: f64,
    pub(super) deviation: f64,
    /// p99 of kept connections.
    pub(super) kept: f64,
    /// The connections of the loop with the most kept ones.
    pub(super) most: u64,
}

impl MeasuredSetup {
    /// The better value of both in each situation: disturbances by other programs only make values
    /// worse.
    pub(super) fn better(self, other: MeasuredSetup) -> MeasuredSetup {
        MeasuredSetup {
            overload: self.overload.min(other.overload),
            deviation: self.deviation.min(other.deviation),
            kept: self.kept.min(other.kept),
            most: self.most.min(other.most),
            ..self
        }
    }
}

/// Measures a way with so many processes and loops in each.
pub(super) fn measure(
    lab: &Lab,
    (processes, threads): (usize, usize),
    way: &AcceptSetup,
) -> Result<MeasuredSetup, String> {
    let loops = processes * threads;
    let setup = ServerSetup {
        processes,
        threads,
        work: Some(HandlerWork::Sleep(WORK)),
        log: true,
        ..ServerSetup::default()
    };
    let time = lab.size(Duration::from_secs(3), Duration::from_millis(300));
    lab.step(&format!("{}: more clients than it can serve", way.subject.label));
    lab.bar.inc(1);
    let server = RunningServer::start(&way.subject, &setup)?;
    let load = Traffic::closed(loops * CROWD, Closing::Always, time);
    let tally = lab.load(&server, &load, &mut |_| {})?.tally;
    let (overload, deviation) = (tally.percentile(99.0), tally.log2.deviation());
    drop(server);
    lab.step(&format!("{}: connections that stay", way.subject.label));
    lab.bar.inc(1);
    let server = RunningServer::start(&way.subject, &setup)?;
    server.warm_up(loops + 2)?;
    let load = Traffic {
        connect_first: Some(APART),
        ..Traffic::closed(loops * KEPT, Closing::Never, time)
    };
    let kept = lab.load(&server, &load, &mut |_| {})?.tally.percentile(99.0);
    let most = server.served()?.connections.into_values().max().unwrap_or(0);
    let program = way.subject.program.name.clone();
    let AcceptSetup { label, policy, setting, now, .. } = way;
    let (label, policy, setting) = (label.clone(), policy.clone(), setting.clone());
    Ok(MeasuredSetup {
        program,
        label,
        policy,
        setting,
        now: *now,
        overload,
        deviation,
        kept,
        most,
    })
}
