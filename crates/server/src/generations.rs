//! Generations of workers as threads of one process: what the master does where it forks, for the simulated world.
//!
//! They share what processes share: sockets, zones, counters, the load table, the folders of caches. All else each has for
//! itself, as processes have it: each reads the configuration for itself, where a fork would have got a copy. But for the
//! owner of a zone they are one, and they have one table of descriptors.

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

/// A server with its workers, and with those of older configurations that finish.
pub struct Generations {
    origin: Origin,
    first: Log,
    cycle: Cycle,
    registry: Registry,
    /// Tallies that were given away.
    tallies: usize,
    /// How often the configuration has been replaced.
    generation: u64,
    workers: Vec<Worker>,
}

struct Worker {
    generation: u64,
    channel: End,
    thread: JoinHandle<i32>,
}

impl Generations {
    /// Reads the configuration that the command line names, and starts its workers. None if it is wrong; its log says why.
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
        let (tallies, generation) = (0, 0);
        let mut generations =
            Generations { origin, first, cycle, registry, tallies, generation, workers };
        generations.start_workers()?;
        Some(generations)
    }

    /// Reads the configuration anew and starts its workers beside the others; false if that cannot be.
    pub fn reload(&mut self) -> bool {
        self.next().is_some()
    }

    fn next(&mut self) -> Option<()> {
        let next = self.read()?;
        let old = std::mem::replace(&mut self.cycle, next);
        old.sockets.leave_to(&self.cycle.sockets, &old.load, &self.cycle.log);
        self.generation += 1;
        self.start_workers()
    }

    /// The configuration as it stands there, over what is open.
    fn read(&self) -> Option<Cycle> {
        let plan = self.origin.read(&self.first).ok()?;
        let (sockets, zones) = (&self.cycle.sockets, &self.cycle.zones);
        plan.open(sockets, zones, Purpose::Serve, &self.first).ok()
    }

    /// Tells the workers of older configurations that another one took over.
    pub fn retire(&mut self) {
        self.tell(self.generation, Order::Retire);
    }

    /// Tells all to finish.
    pub fn quit(&mut self) {
        self.tell(self.generation + 1, Order::Quit);
    }

    /// Those of the generations before that one.
    fn tell(&mut self, before: u64, order: Order) {
        let told = self.workers.iter().filter(|worker| worker.generation < before);
        // One that has ended hears nothing.
        told.for_each(|worker| drop(worker.channel.order(order)));
    }

    /// Waits for the ends of all: their exit codes.
    pub fn end(self) -> Vec<i32> {
        let threads = self.workers.into_iter().map(|worker| worker.thread);
        threads.map(|thread| thread.join().unwrap_or(1)).collect()
    }

    fn start_workers(&mut self) -> Option<()> {
        let first = self.cycle.clone();
        self.start_worker(0, first)?;
        (1..self.cycle.config.processes).try_for_each(|index| {
            let own = Cycle { load: Arc::clone(&self.cycle.load), ..self.read()? };
            self.start_worker(index, own)
        })
    }

    fn start_worker(&mut self, index: usize, cycle: Cycle) -> Option<()> {
        let (channel, own) = channel::pair().ok()?;
        let tallies = self.tallies..self.tallies + cycle.config.threads;
        self.tallies = tallies.end;
        let generation = self.generation;
        let assignment = Assignment {
            cycle,
            logs: Arc::clone(&self.origin.logs),
            index,
            generation,
            tallies: tallies.collect(),
            registry: self.registry,
            channel: Some(own),
            title: Mutex::default(),
        };
        let thread = Builder::new().name("weir: loop 0".to_owned());
        let thread = thread.spawn(move || worker::serve(assignment)).ok()?;
        self.workers.push(Worker { generation, channel, thread });
        Some(())
    }
}
