//! Two open-loop streams of requests: one needs the disk, the other does not.

use std::net::SocketAddr;
use std::time::Duration;

use weir_bench::{Closing, LoadPlan, Pace, Tally, Url};

use super::RATE;
use super::waits::{Buckets, FirstByteWaits};
use crate::lab::Lab;

/// Connections per stream: enough for all requests that are due while a loop is blocked.
const CONNECTIONS: usize = 128;

/// The objects that the disk stream requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskRequest {
    /// Each of all objects in turn.
    Cold,
    /// A few objects repeatedly.
    Hot,
    /// Objects that are not stored yet.
    Fills,
    /// Objects that must be revalidated with their origin.
    Checks,
}

impl DiskRequest {
    pub(crate) const ALL: [DiskRequest; 4] =
        [DiskRequest::Cold, DiskRequest::Hot, DiskRequest::Fills, DiskRequest::Checks];

    pub(crate) fn name(self) -> &'static str {
        match self {
            DiskRequest::Cold => "cold",
            DiskRequest::Hot => "hot",
            DiskRequest::Fills => "fills",
            DiskRequest::Checks => "checks",
        }
    }

    /// The duration of a measurement. It is shorter for loads with few delays.
    pub(crate) fn time(self, lab: &Lab, is_slow: bool) -> Duration {
        let millis = match (self, is_slow) {
            (DiskRequest::Cold, true) => lab.size(7000, 400),
            (DiskRequest::Cold, false) => lab.size(3000, 400),
            (_, true) => lab.size(2500, 200),
            (_, false) => lab.size(1200, 200),
        };
        Duration::from_millis(millis)
    }
}

/// The results of both streams.
pub(crate) struct Streams {
    pub(crate) memory: FirstByteWaits,
    pub(crate) disk: FirstByteWaits,
    /// The number of delayed operations during the measurement.
    pub(crate) delayed: u64,
    /// How long events waited, as weir's loops report it.
    pub(crate) blocked: Option<Buckets>,
}

impl Streams {
    /// The requests of both streams.
    pub(crate) fn all(&self) -> FirstByteWaits {
        self.memory.with(&self.disk)
    }
}

/// Runs both streams at once. Returns the results of the memory stream and of the disk stream.
pub(crate) fn run(
    lab: &Lab,
    server: SocketAddr,
    paths: &[String],
    time: Duration,
) -> Result<(FirstByteWaits, FirstByteWaits), String> {
    let plan = |paths: &[String]| {
        let mut plan = plan(server, paths)?;
        (plan.pace, plan.duration) = (Pace::Open { rate: RATE }, Some(time));
        Ok::<_, String>(plan)
    };
    let (memory, disk) = (plan(&["/memory".to_owned()])?, plan(paths)?);
    std::thread::scope(|scope| {
        let memory = scope.spawn(|| weir_bench::run(&memory, &mut ()).map(|run| run.tally));
        let disk = lab.run(&disk, &mut |_| {})?.tally;
        let memory = memory.join().map_err(|_| "the memory stream broke off".to_owned())?;
        Ok((FirstByteWaits::new(memory.map_err(|e| e.to_string())?), FirstByteWaits::new(disk)))
    })
}

/// Requests each of these paths once, in a closed loop.
pub(crate) fn fetch(lab: &Lab, server: SocketAddr, paths: &[String]) -> Result<Tally, String> {
    let mut plan = plan(server, paths)?;
    (plan.connections, plan.requests) = (16, Some(paths.len() as u64));
    Ok(lab.run(&plan, &mut |_| {})?.tally)
}

fn plan(server: SocketAddr, paths: &[String]) -> Result<LoadPlan, String> {
    let url = |path: &String| Url::parse(&format!("http://a.a{path}")).map_err(|e| e.to_string());
    let urls: Vec<Url> = paths.iter().map(url).collect::<Result<_, _>>()?;
    let mut plan = LoadPlan::get(&urls, Some(&server.into())).map_err(|e| e.to_string())?;
    (plan.connections, plan.closing) = (CONNECTIONS, Closing::Never);
    plan.timeout = Duration::from_secs(10);
    Ok(plan)
}
