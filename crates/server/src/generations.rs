//! Generations of workers as threads of one process: what the master does where it forks, for the simulated world.
//!
//! They share what processes share: sockets, zones, counters, the load table, the folders of caches. All else each has for
//! itself, as processes have it; but for the owner of a zone they are one.

use std::ffi::OsString;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use weir_log::{Level, Log, OpenLogs};
use weir_metrics::Registry;
use weir_zone::Zones;

use crate::channel::{self, End, Order};
use crate::config::Machine;
use crate::cycle::{Cycle, Origin};
use crate::master::{Assignment, registry};
use crate::paths::Paths;
use crate::sockets::{Purpose, Sockets};
use crate::{cli, signals, worker};

/// A server with a worker, and with those of older configurations that finish.
pub struct Generations {
    origin: Origin,
    first: Log,
    cycle: Cycle,
    registry: Registry,
    /// Rows of the counters that were given away.
    rows: usize,
    workers: Vec<Worker>,
}

struct Worker {
    channel: End,
    thread: JoinHandle<i32>,
}

impl Generations {
    /// Reads the configuration that the command line names, and starts its worker. None if it is wrong; its log says why.
    pub fn start(args: &[OsString]) -> Option<Generations> {
        let options = cli::parse(args).ok()?;
        let paths = Paths::new(&options, std::path::Path::exists);
        let logs = Arc::new(OpenLogs::new());
        let origin = Origin { paths, globals: None, logs, machine: Machine::here() };
        let first = origin.first_log(Level::Notice);
        let (sockets, zones) = (Sockets::default(), Zones::default());
        let cycle =
            origin.read(&first).ok()?.open(&sockets, &zones, Purpose::Serve, &first).ok()?;
        signals::prepare().ok()?;
        let (registry, workers) = (registry().ok()?, Vec::new());
        let mut generations = Generations { origin, first, cycle, registry, rows: 0, workers };
        generations.start_worker()?;
        Some(generations)
    }

    /// Reads the configuration anew and starts its worker beside the others; false if that cannot be.
    pub fn reload(&mut self) -> bool {
        self.next().is_some()
    }

    fn next(&mut self) -> Option<()> {
        let plan = self.origin.read(&self.first).ok()?;
        let (sockets, zones) = (&self.cycle.sockets, &self.cycle.zones);
        let next = plan.open(sockets, zones, Purpose::Serve, &self.first).ok()?;
        let old = std::mem::replace(&mut self.cycle, next);
        old.sockets.leave_to(&self.cycle.sockets, &old.load, &self.cycle.log);
        self.start_worker()
    }

    /// Tells the workers of older configurations that another one took over.
    pub fn retire(&mut self) {
        let older = self.workers.len().saturating_sub(1);
        self.tell(older, Order::Retire);
    }

    /// Tells all to finish.
    pub fn quit(&mut self) {
        self.tell(self.workers.len(), Order::Quit);
    }

    fn tell(&mut self, first: usize, order: Order) {
        // One that has ended hears nothing.
        self.workers.iter().take(first).for_each(|worker| drop(worker.channel.order(order)));
    }

    /// Waits for the ends of all: their exit codes.
    pub fn end(self) -> Vec<i32> {
        let threads = self.workers.into_iter().map(|worker| worker.thread);
        threads.map(|thread| thread.join().unwrap_or(1)).collect()
    }

    fn start_worker(&mut self) -> Option<()> {
        let (channel, own) = channel::pair().ok()?;
        let rows = self.rows..self.rows + self.cycle.config.threads;
        self.rows = rows.end;
        let assignment = Assignment {
            cycle: self.cycle.clone(),
            logs: Arc::clone(&self.origin.logs),
            index: 0,
            generation: self.workers.len() as u64,
            rows: rows.collect(),
            registry: self.registry,
            channel: Some(own),
            title: Mutex::default(),
        };
        let thread = Builder::new().name("weir: loop 0".to_owned());
        let thread = thread.spawn(move || worker::serve(assignment)).ok()?;
        self.workers.push(Worker { channel, thread });
        Some(())
    }
}
