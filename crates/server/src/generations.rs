//! Generations of workers as threads of one process, for the simulated world. They correspond to
//! processes that a master forks.
//!
//! They share what processes share: sockets, zones, counters, the load table, directories of
//! caches. All else is separate: each worker reads the configuration itself, where a fork would
//! have a copy. But they are one process as owners of zones, and share one table of descriptors.

use std::ffi::OsString;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use weir_conf::FileTexts;
use weir_log::{Level, Log, OpenLogs};
use weir_metrics::{Metric, Registry};
use weir_zone::Zones;

use crate::change::{self, Parcel};
use crate::channel::{self, ChannelEnd, Order};
use crate::config::Machine;
use crate::cycle::{Cycle, Origin};
use crate::embedded::InMemory;
use crate::listen::{CycleShared, Post};
use crate::master::{Assignment, registry};
use crate::paths::Paths;
use crate::sockets::{Purpose, Sockets};
use crate::{cli, signals, worker};

/// A server with its workers, including those of older configurations.
pub struct Generations {
    origin: Arc<Origin>,
    first: Log,
    cycle: Cycle,
    registry: Registry,
    /// The number of tallies that were assigned.
    tallies: usize,
    /// How often the configuration was replaced.
    generation: u64,
    workers: Vec<Worker>,
    /// All workers were told to finish.
    ends: bool,
}

struct Worker {
    generation: u64,
    index: usize,
    /// The load table of its cycle.
    load: Arc<CycleShared>,
    tallies: Range<usize>,
    channel: ChannelEnd,
    thread: JoinHandle<i32>,
}

impl Generations {
    /// Reads the configuration that the command line names, and starts its workers. None if the
    /// configuration is invalid, which its log explains.
    pub fn start(args: &[OsString]) -> Option<Generations> {
        let options = cli::parse(args).ok()?;
        let paths = Paths::new(&options, std::path::Path::exists);
        let logs = Arc::new(OpenLogs::new());
        let (in_memory, machine) = (InMemory::built_in(), Machine::here());
        let origin = Arc::new(Origin { paths, in_memory, globals: None, logs, machine });
        let first = origin.first_log(Level::Notice);
        let (sockets, zones) = (Sockets::default(), Zones::default());
        let cycle = origin.read(&first).ok()?;
        let cycle = cycle.open(&sockets, &zones, &Post::default(), Purpose::Serve, &first).ok()?;
        signals::prepare().ok()?;
        let (registry, workers) = (registry().ok()?, Vec::new());
        let (tallies, generation) = (0, 0);
        let mut generations = Generations {
            origin,
            first,
            cycle,
            registry,
            tallies,
            generation,
            workers,
            ends: false,
        };
        generations.start_workers()?;
        Some(generations)
    }

    /// Reads the configuration again and starts new workers. False if that fails.
    pub fn reload(&mut self) -> bool {
        self.next().is_some()
    }

    /// Makes the running workers of the newest configuration take another one. False if they
    /// cannot.
    pub fn change(&mut self, text: &[u8]) -> bool {
        self.beside(text).is_some()
    }

    fn beside(&mut self, text: &[u8]) -> Option<()> {
        let log = &self.first;
        let name = self.origin.paths.conf_prefix.join("change");
        let tree = weir_conf::read_text_with(&name, text, None);
        let compile = || self.origin.compile(tree.clone(), None, None, log);
        let (plan, files) = weir_conf::with_files(FileTexts::default(), compile);
        let plan = self.origin.open_logs(plan.ok()?, log).ok()?;
        let old = &self.cycle;
        if change::needs_new_workers(&old.sites, &old.text.main, &plan.sites, &plan.text.main)
            .is_some()
        {
            return None;
        }
        let parcel =
            Parcel::new(&old.text, &plan.text, &tree.sources, &files, Vec::new()).ok()??;
        self.cycle = plan.beside(old, log).ok()?.ok()?;
        for worker in self.workers.iter().filter(|worker| worker.generation == self.generation) {
            // A worker that has ended cannot receive it.
            let _ = worker.channel.order_with(Order::Change, &parcel.fds());
        }
        Some(())
    }

    /// The number of sites that all workers hold.
    pub fn sites(&self) -> u64 {
        self.registry.sum(Metric::Sites).cast_signed().max(0).cast_unsigned()
    }

    /// The number of QUIC connections of all workers.
    pub fn open_quic(&self) -> u64 {
        self.registry.sum(Metric::QuicOpen).cast_signed().max(0).cast_unsigned()
    }

    fn next(&mut self) -> Option<()> {
        let next = self.read()?;
        let old = std::mem::replace(&mut self.cycle, next);
        old.sockets.leave_to(&[&self.cycle.sockets], &old.load, &self.cycle.log);
        self.generation += 1;
        self.start_workers()
    }

    /// Reads the configuration and opens what is not open yet.
    fn read(&self) -> Option<Cycle> {
        let plan = self.origin.read(&self.first).ok()?;
        let Cycle { sockets, zones, post, .. } = &self.cycle;
        plan.open(sockets, zones, post, Purpose::Serve, &self.first).ok()
    }

    /// Tells the workers of older configurations to retire.
    pub fn retire(&mut self) {
        self.order(self.generation, Order::Retire);
    }

    /// Tells all workers to finish.
    pub fn quit(&mut self) {
        self.ends = true;
        self.order(self.generation + 1, Order::Quit);
    }

    /// Sends an order to the workers of generations before `before`.
    fn order(&mut self, before: u64, order: Order) {
        let told = self.workers.iter().filter(|worker| worker.generation < before);
        // A worker that has ended cannot receive it.
        told.for_each(|worker| drop(worker.channel.order(order)));
    }

    /// Waits until all workers have ended. Returns their exit codes.
    pub fn end(self) -> Vec<i32> {
        let threads = self.workers.into_iter().map(|worker| worker.thread);
        threads.map(|thread| thread.join().unwrap_or(1)).collect()
    }

    /// The worker with this first tally was killed. Releases what it held, as the master does, and
    /// starts a successor if its configuration is still in use. False if none could be started.
    pub fn bury(&mut self, first: usize) -> bool {
        let Some(at) = self.workers.iter().position(|worker| worker.tallies.start == first) else {
            return true;
        };
        let worker = self.workers.swap_remove(at);
        // The thread of a killed worker never ends.
        drop(worker.thread);
        let Some(counters) = self.registry.tally(0) else { return false };
        worker.tallies.clone().for_each(|own| self.registry.bury(own, &counters));
        let loops = worker.tallies.len();
        let of_table = worker.index * loops..(worker.index + 1) * loops;
        of_table.clone().for_each(|i| worker.load.table().clear(i));
        worker.load.pass_recheck(of_table);
        if worker.generation < self.generation || self.ends {
            return true;
        }
        let Some(own) = self.read() else { return false };
        let own = Cycle { load: worker.load, post: Arc::clone(&self.cycle.post), ..own };
        self.start_worker(worker.index, own).is_some()
    }

    /// The number of loops of the worker's successor, if it would have one.
    pub fn successor(&self, first: usize) -> Option<usize> {
        let worker = self.workers.iter().find(|worker| worker.tallies.start == first)?;
        let lives_on = worker.generation == self.generation && !self.ends;
        lives_on.then(|| worker.tallies.len())
    }

    /// The tallies of the worker that has tally `one`.
    pub fn tallies_with(&self, one: usize) -> Option<Range<usize>> {
        let worker = self.workers.iter().find(|worker| worker.tallies.contains(&one))?;
        Some(worker.tallies.clone())
    }

    /// The first tally of each living worker.
    pub fn firsts(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| worker.tallies.start).collect()
    }

    fn start_workers(&mut self) -> Option<()> {
        let first = self.cycle.clone();
        self.start_worker(0, first)?;
        (1..self.cycle.config.processes).try_for_each(|index| {
            let Cycle { load, post, .. } = &self.cycle;
            let (load, post) = (Arc::clone(load), Arc::clone(post));
            let own = Cycle { load, post, ..self.read()? };
            self.start_worker(index, own)
        })
    }

    fn start_worker(&mut self, index: usize, cycle: Cycle) -> Option<()> {
        let (channel, own) = channel::pair().ok()?;
        let load = Arc::clone(&cycle.load);
        let tallies = self.tallies..self.tallies + cycle.config.threads;
        self.tallies = tallies.end;
        let generation = self.generation;
        let assignment = Assignment {
            cycle,
            origin: Arc::clone(&self.origin),
            index,
            generation,
            tallies: tallies.clone().collect(),
            registry: self.registry,
            channel: Some(own),
            bell: None,
            title: Arc::default(),
            is_agent: false,
        };
        let thread = Builder::new().name("weir: loop 0".to_owned());
        let thread = thread.spawn(move || worker::serve(assignment)).ok()?;
        self.workers.push(Worker { generation, index, load, tallies, channel, thread });
        Some(())
    }
}
