//! Measures ways to accept under the two loads that distinguish them.

use std::time::Duration;

use weir_bench::Closing;

use crate::lab::{Lab, Traffic, p99};
use crate::program::{HandlerWork, ServerSetup, Subject};
use crate::running::RunningServer;

/// How long a request blocks its loop.
pub(super) const WORK: Duration = Duration::from_millis(2);
/// The interval between kept connections: long enough for a loop to sleep again.
const CONNECT_INTERVAL: Duration = Duration::from_millis(10);
/// Clients per loop: under overload, and with kept connections.
pub(super) const CLIENTS_PER_LOOP: usize = 16;
pub(super) const KEPT_PER_LOOP: usize = 3;

/// One way to accept.
pub(super) struct AcceptSetup {
    pub(super) subject: Subject,
    /// Its name in the experiments.
    pub(super) label: String,
    /// The policy of weir that it is or corresponds to.
    pub(super) policy: String,
    /// The line of the configuration for it.
    pub(super) setting: String,
    /// Whether the configuration uses this way.
    pub(super) is_configured: bool,
}

/// One way to accept, measured.
pub(super) struct MeasuredSetup {
    /// The server that it was measured on.
    pub(super) program: String,
    pub(super) label: String,
    pub(super) policy: String,
    pub(super) setting: String,
    pub(super) is_configured: bool,
    /// p99 of the latency under overload, and the standard deviation, in ms.
    pub(super) overload: f64,
    pub(super) deviation: f64,
    /// p99 of the latency with kept connections, in ms.
    pub(super) kept: f64,
    /// The number of kept connections of the loop with the most.
    pub(super) most_on_one_worker: u64,
}

impl MeasuredSetup {
    /// Takes the smaller of both values in each situation. Other programs on the machine only make
    /// values larger.
    pub(super) fn better(self, other: MeasuredSetup) -> MeasuredSetup {
        MeasuredSetup {
            overload: self.overload.min(other.overload),
            deviation: self.deviation.min(other.deviation),
            kept: self.kept.min(other.kept),
            most_on_one_worker: self.most_on_one_worker.min(other.most_on_one_worker),
            ..self
        }
    }
}

/// Measures a way with this many processes and loops per process.
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
    let load = Traffic::closed(loops * CLIENTS_PER_LOOP, Closing::Always, time);
    let run = lab.load(&server, &load, &mut |_| {})?;
    let (overload, deviation) = (p99(&run), run.tally.log2.deviation());
    drop(server);
    lab.step(&format!("{}: connections that stay", way.subject.label));
    lab.bar.inc(1);
    let server = RunningServer::start(&way.subject, &setup)?;
    server.warm_up(loops + 2)?;
    let load = Traffic {
        connect_first: Some(CONNECT_INTERVAL),
        ..Traffic::closed(loops * KEPT_PER_LOOP, Closing::Never, time)
    };
    let kept = p99(&lab.load(&server, &load, &mut |_| {})?);
    let most_on_one_worker = server.served()?.connections.into_values().max().unwrap_or(0);
    let program = way.subject.program.name.clone();
    let AcceptSetup { label, policy, setting, is_configured, .. } = way;
    let (label, policy, setting) = (label.clone(), policy.clone(), setting.clone());
    Ok(MeasuredSetup {
        program,
        label,
        policy,
        setting,
        is_configured: *is_configured,
        overload,
        deviation,
        kept,
        most_on_one_worker,
    })
}
