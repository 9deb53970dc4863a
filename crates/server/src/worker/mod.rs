//! A worker process: assumes its identity, runs its loops, and ends when it is told to.
//!
//! Loop 0 runs on the main thread and also receives signals and the master's orders. The other
//! loops have threads. Otherwise all loops are alike.

mod change;
mod control;
mod evenness;
pub mod identity;
mod reopen;
pub mod stalls;
mod turns;

use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use weir_acme::Acme;
use weir_balance::AcceptPolicy;
use weir_engine::{FilePool, Handle, Loop, Options, Rank, Remote, StealGroup, file_operation};
use weir_log::{Cause, Level, Log, log};
use weir_metrics::subjects::{self, Cells};
use weir_metrics::{Metric, OldestOperation, Tally};

use self::change::{Asking, Newest};
use self::control::Control;
use self::evenness::Evenness;
use self::stalls::StallWatch;
use self::turns::{Serving, Turns};
use crate::channel::{ChannelEnd, WorkerReport};
use crate::config::{Config, FileThreads};
use crate::cycle::Cycle;
use crate::health::{self, JudgeWaker};
use crate::listen::{Listening, LoopPosition};
use crate::master::{Assignment, FATAL};
use crate::service::{Served, Service, Sites};
use crate::sockets::Sockets;
use crate::status::{self, StatusInputs};
use weir_values::{Command, Identity};

/// The parts from which each loop of this process is made.
struct LoopParts {
    /// Without sites, which must be freed once others have replaced them.
    assignment: Assignment,
    /// The sites that loops start with, until all loops have them.
    served: Mutex<Served>,
    /// The number of running loops other than loop 0.
    others: AtomicUsize,
    /// The default file pool of all loops.
    files: FilePool,
    /// The other file pools, by name.
    pools: Vec<FilePool>,
    /// The steal group of the loops, if they have one.
    steal_group: Option<StealGroup>,
    /// The threads that renew certificates.
    acme: Acme,
    /// Requests for other configurations.
    asking: Asking,
}

/// Serves until the worker is told to end. Returns the exit code.
pub fn run(assignment: Assignment) -> i32 {
    if let Ok(mut shown) = assignment.title.lock() {
        match &mut *shown {
            // The agent never retires like a worker, so its name stays.
            Some(title) if assignment.is_agent => {
                title.set("weir: privileged agent process");
                *shown = None;
            }
            Some(title) => title.set("weir: worker process"),
            None => {}
        }
    }
    // Returns the memory of the master's values, which were dropped, such as a replaced
    // configuration. Each worker would keep a copy of it.
    weir_sys::allocator::give_back();
    let log = Arc::clone(&assignment.cycle.log);
    if identity::take(&assignment.cycle.config, &log).is_err() {
        return FATAL;
    }
    serve(assignment)
}

/// Serves in this process. Shared by workers and a server without a master.
pub fn serve(mut assignment: Assignment) -> i32 {
    let log = Arc::clone(&assignment.cycle.log);
    let threads = assignment.cycle.config.threads;
    let first = assignment.index * threads;
    if assignment.cycle.config.events.balance != AcceptPolicy::ReuseportLoad {
        assignment.cycle.sockets.keep_own(first..first + threads);
    }
    // Only the loops hold the sockets, so that sockets that they leave are closed.
    let cycle = Arc::new(assignment.cycle.clone());
    assignment.cycle.sockets = Sockets::default();
    let code = match LoopParts::new(assignment).run(cycle) {
        Ok(()) => {
            log!(log, Notice, None, "exit");
            0
        }
        Err(Stopped::Unmade(e)) => {
            log!(log, Emerg, None, "worker process cannot serve {}", Cause(&e));
            if is_shortage(&e) { BROKEN } else { FATAL }
        }
        Err(Stopped::Broken(e)) => {
            log!(log, Alert, None, "loop 0 of a worker process ended {}", Cause(&e));
            BROKEN
        }
    };
    weir_log::flush();
    weir_log::never_wait(None);
    code
}

/// How long the end of a process waits for its file operations.
const LAST_FILES: Duration = Duration::from_millis(100);

/// The exit code of a worker that failed at run time, or could not start for now. A successor may
/// work.
const BROKEN: i32 = 1;

/// Whether the system has run out of something that other processes may release: descriptors,
/// memory, threads.
fn is_shortage(e: &io::Error) -> bool {
    let errno = Errno::from_io_error(e);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN))
}

/// Why a worker ends unasked.
enum Stopped {
    /// Its loops could not be made.
    Unmade(io::Error),
    /// The wait of a loop failed.
    Broken(io::Error),
}

impl LoopParts {
    fn new(mut assignment: Assignment) -> Arc<LoopParts> {
        let served = assignment.cycle.sites.lend();
        let others = AtomicUsize::new(assignment.cycle.config.threads - 1);
        let config = &assignment.cycle.config;
        let files = FilePool::new(config.files.threads, config.files.queue);
        let log = assignment.cycle.log.clone();
        weir_zone::on_stall(move |pid| {
            let text = "holds a shared memory zone for a second, is it stopped?";
            log!(log, Alert, None, "process {pid} {text}");
        });
        let log = assignment.cycle.log.clone();
        weir_zone::on_spoilt(move |zone| {
            let text = "holds what no process writes there, it was emptied";
            log!(log, Alert, None, "shared memory zone \"{zone}\" {text}");
        });
        let named =
            |(name, of): &(String, FileThreads)| FilePool::named(name, of.threads, of.queue);
        let pools: Vec<FilePool> = config.pools.iter().map(named).collect();
        for pool in pools.iter().chain([&files]) {
            let log = assignment.cycle.log.clone();
            pool.on_overflow(move |text| log.write(Level::Error, None, format_args!("{text}")));
        }
        if !assignment.is_agent
            && let Some(tally) = assignment.tallies.first()
            && let Some(own) = assignment.registry.tally(*tally)
            && let Some(shown) = own.oldest_operation()
        {
            let cells = Cells::new(assignment.registry, *tally);
            let oldest = Mutex::new(vec![None; pools.len() + 1]);
            let oldest = Arc::new(OldestOperations { pools: oldest, shown });
            for (i, pool) in pools.iter().chain([&files]).enumerate() {
                let oldest = Arc::clone(&oldest);
                count(pool, assignment.index, &cells, move |since| oldest.note(i, since));
            }
        }
        let steal_group = steal_group(config, &assignment.cycle.log);
        let asking = Asking::default();
        let waker = health::waker(assignment.registry, assignment.channel.clone());
        let issuers = assignment.cycle.sites.issuers();
        let issuers = if assignment.is_agent { &[] } else { issuers };
        let acme = Acme::start(issuers, &assignment.cycle.log, &waker);
        let served = Mutex::new(served);
        assignment.cycle.sites = Sites::default();
        Arc::new(LoopParts { served, others, files, pools, steal_group, acme, asking, assignment })
    }

    fn config(&self) -> &Config {
        &self.assignment.cycle.config
    }

    fn log(&self) -> &Arc<Log> {
        &self.assignment.cycle.log
    }

    /// Runs all loops; this thread becomes loop 0. Their sockets come from `cycle`.
    fn run(self: Arc<Self>, cycle: Arc<Cycle>) -> Result<(), Stopped> {
        let mut first = self.make(0).map_err(Stopped::Unmade)?;
        let newest = Newest::new(&cycle, self.log(), self.acme.clone());
        let (threads, mut turns) =
            self.start_all(&first.handle(), cycle, newest).map_err(Stopped::Unmade)?;
        if let Some(channel) = &self.assignment.channel
            && let Err(e) = channel.report(WorkerReport::Ready)
        {
            log!(self.log(), Alert, None, "sendmsg() to the master failed {}", Cause(&e));
        }
        serve_on(&mut first, &mut turns).map_err(Stopped::Broken)?;
        log!(self.log(), Notice, None, "exiting");
        end(first, turns);
        for thread in threads {
            // A thread that panicked has already ended the process.
            let _ = thread.join();
        }
        self.settle_files();
        Ok(())
    }

    /// Lets file threads finish before the process ends, so that no temporary file of a request
    /// remains. Does not wait for a disk that does not respond.
    fn settle_files(&self) {
        let until = Instant::now() + LAST_FILES;
        self.pools.iter().chain([&self.files]).for_each(|pool| pool.settle(until));
    }

    /// Starts the other loops, and prepares loop 0.
    fn start_all(
        self: &Arc<Self>,
        first: &Handle,
        cycle: Arc<Cycle>,
        newest: Arc<Mutex<Newest>>,
    ) -> io::Result<(Vec<thread::JoinHandle<()>>, Turns)> {
        let (send, made) = mpsc::channel();
        let threads = (1..self.config().threads)
            .map(|index| self.start(index, Arc::clone(&cycle), send.clone(), first.remote()))
            .collect::<io::Result<Vec<_>>>()?;
        drop(send);
        let mut all = vec![first.remote()];
        for _ in &threads {
            let remote = made.recv().map_err(|_| io::Error::other("a loop's thread ended"))?;
            all.push(remote?);
        }
        let (acme, asking) = (self.acme.clone(), self.asking.clone());
        Control::new(&self.assignment, newest, all, first.clone(), acme, asking).listen()?;
        StallWatch {
            registry: self.assignment.registry,
            log: Arc::clone(self.log()),
            title: Arc::clone(&self.assignment.title),
            bell: self.assignment.bell.clone(),
            pools: self.pools.iter().chain([&self.files]).map(FilePool::downgrade).collect(),
            timeout: self.config().shutdown_timeout,
        }
        .start()?;
        let turns = self.turns(first, 0, &cycle)?;
        // All loops have their sites.
        *self.served() = Served::default();
        Ok((threads, turns))
    }

    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread of another loop. It sends its remote once the loop is made.
    fn start(
        self: &Arc<Self>,
        index: usize,
        cycle: Arc<Cycle>,
        made: mpsc::Sender<io::Result<Remote>>,
        home: Remote,
    ) -> io::Result<thread::JoinHandle<()>> {
        let shared = Arc::clone(self);
        thread::Builder::new().name(format!("weir: loop {index}")).spawn(move || {
            let whole = Whole;
            match shared.further(index, cycle) {
                Ok((mut own, mut turns)) => {
                    // Without a receiver, another loop has failed to start.
                    let _ = made.send(Ok(own.handle().remote()));
                    if let Err(e) = serve_on(&mut own, &mut turns) {
                        log!(shared.log(), Alert, None, "loop {index} ended {}", Cause(&e));
                        return;
                    }
                    end(own, turns);
                }
                Err(e) => drop(made.send(Err(e))),
            }
            shared.others.fetch_sub(1, Ordering::SeqCst);
            // Makes loop 0 check whether it is the last one.
            home.post(Box::new(|_| {}));
            std::mem::forget(whole);
        })
    }

    fn further(self: &Arc<Self>, index: usize, cycle: Arc<Cycle>) -> io::Result<(Loop, Turns)> {
        let own = self.make(index)?;
        let turns = self.turns(&own.handle(), index, &cycle)?;
        Ok((own, turns))
    }

    /// Makes the loop of this thread.
    fn make(&self, index: usize) -> io::Result<Loop> {
        let config = self.config();
        let place = self.place(index);
        if let Some(tally) = self.assignment.tallies.get(index) {
            weir_engine::born(*tally);
        }
        #[cfg(feature = "sim")]
        if let Some(first) = self.assignment.tallies.first() {
            weir_zone::live_as(*first);
        }
        if let Some(cpus) = config.affinity.as_ref().and_then(|affinity| affinity.of(place.row))
            && let Err(e) = rustix::thread::sched_setaffinity(None, &cpus)
        {
            log!(self.log(), Alert, None, "sched_setaffinity() failed {}", Cause(&e.into()));
        }
        weir_ssl::seed_random();
        Loop::new(&Options {
            backend: config.events.backend.kind(),
            timer_resolution: config.timer_resolution,
            events: config.events.at_once,
            files: self.files.clone(),
            pools: self.pools.clone(),
            steal_group: self.steal_group.as_ref().map(|group| group.of(index)),
            notifier: self.assignment.cycle.load.notifier(place.row).cloned(),
        })
    }

    /// The position of a loop among all loops of the server.
    fn place(&self, index: usize) -> LoopPosition {
        let threads = self.config().threads;
        LoopPosition {
            worker: self.assignment.index,
            index,
            row: self.assignment.index * threads + index,
        }
    }

    /// Makes the driver of this thread's loop.
    fn turns(self: &Arc<Self>, h: &Handle, index: usize, cycle: &Cycle) -> io::Result<Turns> {
        let others = (index == 0).then(|| Arc::clone(self));
        let place = self.place(index);
        let identity = Identity {
            pid: std::process::id(),
            worker: place.worker as u32,
            workers: self.config().processes as u32,
            index: place.index as u32,
            has_master: self.config().master,
            agent: self.assignment.is_agent,
        };
        let (tally, registry) = (self.tally(index)?, self.assignment.registry);
        let served = self.served().clone();
        let Some(service) = Service::new(h, served, identity, tally, registry) else {
            return Ok(Turns::idle(others));
        };
        let (log, told) = (Arc::clone(self.log()), Rc::downgrade(&service));
        h.on_panic(move |text| {
            log!(log, Alert, None, "a task panicked: {text}");
            if let Some(service) = told.upgrade() {
                service.metrics.add(Metric::Panicked, 1);
            }
        });
        let generation = self.assignment.generation;
        let status = StatusInputs::new(cycle, registry, identity, generation);
        // Pages do not count the agent among the loops.
        if !identity.agent {
            service.shows(status);
        }
        let channel = self.assignment.channel.clone();
        let (told, asking, handle) = (channel.clone(), self.asking.clone(), h.clone());
        service.passes_on(
            move |command| pass_on(channel.as_ref(), command),
            move |request| asking.ask(&handle, told.as_ref(), request),
        );
        let listening = Listening::new(h, cycle, place, Rc::clone(&service))?;
        turns::serves(&service);
        // A single loop cannot be uneven.
        let config = self.config();
        let evenness = (config.processes * config.threads > 1 && !identity.agent)
            .then(|| Evenness::new(registry, Arc::clone(self.log()), h.now()));
        let judge = JudgeWaker::new(registry, self.assignment.channel.clone(), h.now());
        Ok(Turns::new(Serving::new(listening, service, evenness, judge), others))
    }

    fn tally(&self, index: usize) -> io::Result<Tally> {
        let tally = self.assignment.tallies.get(index);
        let tally = tally.and_then(|tally| self.assignment.registry.tally(*tally));
        tally.ok_or_else(|| io::Error::other("a loop without a tally"))
    }
}

/// Sends an operator's command to the master. A process without a master executes it itself.
fn pass_on(channel: Option<&ChannelEnd>, command: Command) -> io::Result<()> {
    match (channel, command) {
        (Some(channel), command) => channel.report(WorkerReport::Asked(command)),
        (None, Command::Reopen) => Ok(kill_process(getpid(), Signal::USR1)?),
        (None, Command::Level(level)) => {
            weir_log::set_level(level);
            Ok(())
        }
        // The loops of this process were already notified.
        (None, Command::Look) => Ok(()),
    }
}

/// Makes status pages count how many operations wait for a file pool, and how long.
fn count(
    pool: &FilePool,
    worker: usize,
    cells: &Cells,
    oldest: impl Fn(Option<u64>) + Send + Sync + 'static,
) {
    let name = status::pool_name(pool.name(), worker);
    let cell = cells.of(subjects::SubjectKind::Pool, &name);
    pool.watch(move |state| {
        oldest(state.oldest);
        if let Some(cell) = cell {
            cell.set(state.waiting as u64);
            state.waited.iter().for_each(|time| cell.record(*time));
        }
    });
}

/// When the oldest running operation of each pool of a process began.
struct OldestOperations {
    pools: Mutex<Vec<Option<u64>>>,
    shown: OldestOperation,
}

impl OldestOperations {
    fn note(&self, pool: usize, since: Option<u64>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = pools.get_mut(pool) {
            *own = since;
        }
        self.shown.set(pools.iter().flatten().min().copied());
    }
}

/// The steal group of the loops. None for a single loop.
fn steal_group(config: &Config, log: &Log) -> Option<StealGroup> {
    if config.threads < 2 || !config.events.request_balance {
        return None;
    }
    let failed = |e: &io::Error| log!(log, Warn, None, "request_balance is off {}", Cause(e));
    StealGroup::new(config.threads).inspect_err(failed).ok()
}

/// Runs a loop. Log writes of its thread go to the file pool from now on. So the loop does not
/// wait for files, nor does its end.
fn serve_on(own: &mut Loop, turns: &mut Turns) -> io::Result<()> {
    let pool = own.handle().files().default_pool().clone();
    weir_log::never_wait(Some(Box::new(move |path, job| {
        let path = path.to_owned();
        pool.hand_over(Rank::Write, move || file_operation("write", &*path, job))
    })));
    own.run(turns)
}

/// Ends a loop. Its requests end first and write their log lines.
fn end(own: Loop, turns: Turns) {
    drop(own);
    drop(turns);
    weir_http::LoopState::leave();
}

/// Ends the process if a loop's thread ends unexpectedly, by a panic outside of a task or because
/// its wait failed. Otherwise connections would belong to a loop that no longer runs. The master
/// starts another worker.
struct Whole;

impl Drop for Whole {
    fn drop(&mut self) {
        weir_log::flush();
        std::process::exit(BROKEN);
    }
}
