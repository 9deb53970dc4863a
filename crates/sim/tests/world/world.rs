//! The world as the engine sees it: whose turn it is, the time, and the faults.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use weir_engine::sim::Job;
use weir_testkit::Dice;
use weir_zone::Holding;

use crate::accept_queue::{AcceptQueues, Seen};
use crate::faults::Faults;
use crate::plan::CoursePlan;
use crate::threads::{AfterTurn, Loops};

/// The world's time at its start, in nanoseconds.
pub const START_TIME: u64 = 1_000_000_000;
thread_local! {
    /// Index of this thread. A loop has an even one, and the helper thread of the loop the next odd
    /// one.
    pub static THREAD_INDEX: Cell<usize> = const { Cell::new(0) };
}

/// The state that all threads share.
pub struct World {
    pub core: Mutex<Core>,
    /// Signals the end of a loop's turn, and the start of each loop's turn.
    pub turn: Condvar,
    pub turns: Vec<Condvar>,
    pub nanos: AtomicU64,
    pub secs: i64,
    pub seed: u64,
}

pub struct Core {
    pub dice: Dice,
    pub faults: Faults,
    pub loops: Loops,
    pub accept_queues: AcceptQueues,
    pub running: Option<usize>,
    /// What the loop that had the turn does next.
    pub then: AfterTurn,
    /// Whether the world acts, and no loop has the turn.
    pub acting: bool,
    /// Jobs by due time and number, each with its loop.
    pub jobs: BTreeMap<(u64, u64), (usize, Job)>,
    pub numbers: u64,
    pub most_calls: u64,
    /// The number of connected peers. Each may cost a task's budget of system calls.
    pub peers: u64,
    pub trace: Trace,
    /// Connections with an endless stream. More bytes arrive whenever the server reads.
    pub floods: Vec<OwnedFd>,
    pub over: bool,
    /// The loops to kill, and the number of their steps until then.
    pub kill_after: Option<(Range<usize>, u64)>,
    /// Whether kills have ended.
    pub calm: bool,
    /// The loops that were killed.
    pub dead: Option<Range<usize>>,
}

impl Core {
    /// Drops the pending work of a killed process.
    fn drop_killed(&mut self, now: u64) {
        let Some(rows) = self.dead.clone() else { return };
        self.trace.add(now, "killed", rows.start as u64, rows.end as u64);
        for i in 2 * rows.start..2 * rows.end {
            let l = &mut self.loops.list[i];
            (l.gone, l.wakeup_fd) = (true, None);
            self.accept_queues.forget(i);
        }
        // The jobs of a killed process do not even run their destructors.
        let jobs = std::mem::take(&mut self.jobs);
        let (dead, living): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|(_, (whose, _))| rows.contains(whose));
        self.jobs.extend(living);
        dead.into_iter().for_each(|(_, job)| std::mem::forget(job));
        self.loops.may_have_events = true;
    }
}

/// A hash of all events. Two runs of a seed must have the same one.
#[derive(Clone, Default)]
pub struct Trace {
    hash: u64,
    shown: bool,
}

impl Trace {
    pub fn add(&mut self, now: u64, what: &str, a: u64, b: u64) {
        if self.shown {
            println!("{:>12.6} {what} {a} {b}", now as f64 / 1e9);
        }
        let words = [now, a, b];
        let bytes = words.iter().flat_map(|w| w.to_le_bytes()).chain(what.bytes());
        self.hash = bytes.fold(self.hash ^ 0xcbf2_9ce4_8422_2325, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
    }
}

impl World {
    pub fn new(plan: &CoursePlan, secs: i64, shown: bool) -> Arc<World> {
        let CoursePlan { loops, cpus, faults, .. } = *plan;
        let part = if plan.again { "world again" } else { "world" };
        let core = Core {
            dice: Dice::salted(plan.seed, part),
            faults,
            loops: Loops::new(loops, cpus),
            accept_queues: AcceptQueues::new(loops, plan.config.accept_queues > 1),
            running: None,
            then: AfterTurn::Run,
            acting: false,
            jobs: BTreeMap::new(),
            numbers: 0,
            most_calls: 0,
            peers: 0,
            trace: Trace { hash: 0, shown },
            floods: Vec::new(),
            over: false,
            kill_after: None,
            calm: false,
            dead: None,
        };
        Arc::new(World {
            core: Mutex::new(core),
            turn: Condvar::new(),
            turns: (0..2 * loops * (1 + plan.reloads.len() + plan.kills.len()))
                .map(|_| Condvar::new())
                .collect(),
            nanos: AtomicU64::new(START_TIME),
            secs,
            seed: plan.seed,
        })
    }

    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, mut is: impl FnMut(&Core) -> bool) -> MutexGuard<'_, Core> {
        let mut core = self.core();
        while !is(&core) {
            core = self.turn.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
        core
    }

    /// Called before a word of shared memory is read or changed. If no lock is held, other loops
    /// may run first.
    fn at_word(&self, me: usize, holding: Holding) {
        self.step(self.core(), me);
        let mut core = self.core();
        let often = core.faults.words;
        let may = core.running == Some(me) && holding == Holding::Nothing && often > 0;
        if may && core.dice.one_in(often) {
            self.give_back(core, me, AfterTurn::Run);
        }
    }

    /// Counts a step of a loop. A loop to be killed is killed at its last step.
    pub fn step(&self, mut core: MutexGuard<'_, Core>, me: usize) {
        let runs = core.running == Some(me);
        let Some((rows, left)) =
            core.kill_after.as_mut().filter(|(rows, _)| runs && rows.contains(&(me / 2)))
        else {
            return;
        };
        if *left > 0 {
            *left -= 1;
            return;
        }
        core.dead = Some(rows.clone());
        core.kill_after = None;
        // The loop never has a turn again.
        self.give_back(core, me, AfterTurn::Die);
    }

    /// Kills these loops after a number of their steps.
    pub fn kill_after(&self, rows: Range<usize>, steps: u64) {
        let mut core = self.core();
        core.kill_after = (!core.calm).then_some((rows, steps));
    }

    /// Takes the loops of the killed process.
    pub fn take_dead(&self) -> Option<Range<usize>> {
        self.core().dead.take()
    }

    /// Ends the turn and waits for this loop's next one.
    pub fn give_back<'a>(&'a self, mut core: MutexGuard<'a, Core>, me: usize, then: AfterTurn) {
        core.then = then;
        core.running = None;
        drop(core);
        // The lock must be free for the woken thread.
        self.turn.notify_one();
        core = self.core();
        while core.running != Some(me) {
            core = self.turns[me].wait(core).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn now(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }

    /// Waits until all loops have started.
    pub fn wait_for_start(&self) {
        self.wait_until(|core| core.loops.list.iter().all(|l| l.started)).acting = true;
    }

    /// Adds loops that are about to start.
    pub fn expect(&self, loops: usize) {
        let Core { loops: all, accept_queues, acting, .. } = &mut *self.core();
        all.add(loops);
        accept_queues.expect(loops);
        *acting = false;
    }

    /// Whether at most this many loops are left.
    pub fn at_most_left(&self, last: usize) -> bool {
        self.core().loops.rows().filter(|l| !l.gone).count() <= last
    }

    /// Notes that loops may have events, since something happened outside of them.
    pub fn note_events(&self) {
        self.core().loops.may_have_events = true;
    }

    /// Notes that a connection is established.
    pub fn arrive(&self, accept_queue: usize) {
        let now = self.now();
        let Core { loops, accept_queues, dice, .. } = &mut *self.core();
        loops.arrive(accept_queue, now, accept_queues, dice);
    }

    /// Stops a loop's process for this time, as SIGSTOP does.
    pub fn stop(&self, i: usize, time: u64) {
        let now = self.now();
        let mut core = self.core();
        core.loops.list[2 * i..][..2].iter_mut().for_each(|l| l.stopped = now + time);
        core.trace.add(now, "stops", i as u64, time);
    }

    /// Whether a sleeping loop could serve an event of this time, and no other loop has fetched it.
    pub fn could_relieve(&self, came: u64) -> bool {
        let (now, core) = (self.now(), self.core());
        let sleeps = core.loops.rows().any(|l| l.is_asleep(now));
        sleeps && core.loops.rows().all(|l| l.is_asleep(now) || l.fetched < came)
    }

    /// The measurements of the listening sockets, and the number of connections that each loop
    /// accepted.
    pub fn seen(&self) -> (Seen, Vec<u64>) {
        let core = self.core();
        (core.accept_queues.seen(), core.accept_queues.accepted.clone())
    }

    pub fn peers(&self, peers: u64) {
        self.core().peers = peers;
    }

    pub fn note(&self, what: &str, a: u64, b: u64) {
        let now = self.now();
        self.core().trace.add(now, what, a, b);
    }

    /// The world's date, in seconds since 1970.
    pub fn date(&self) -> i64 {
        self.secs + (self.now() / 1_000_000_000) as i64
    }

    pub fn trace(&self) -> u64 {
        self.core().trace.hash
    }

    /// The most system calls of a turn.
    pub fn most_calls(&self) -> u64 {
        self.core().most_calls
    }

    /// Adds a connection on which more bytes arrive whenever the server reads.
    pub fn flood(&self, fd: OwnedFd) {
        self.core().floods.push(fd);
    }

    /// Ends all faults, kills and endless streams.
    pub fn end_faults(&self) {
        let mut core = self.core();
        core.faults = Faults::default();
        core.floods.clear();
        (core.kill_after, core.calm) = (None, true);
    }

    /// Gives one loop a turn. Returns whether a loop had something to do.
    pub fn turn_one(&self) -> bool {
        let now = self.now();
        let mut core = self.core();
        let Core { loops, accept_queues, dice, .. } = &mut *core;
        loops.settle(now, accept_queues, dice);
        let Some(i) = loops.dispatch(now, dice) else { return false };
        let l = &mut loops.list[i];
        if std::mem::take(&mut l.new_turn) {
            l.calls = 0;
        }
        if l.rested {
            l.fetched = now;
        }
        self.nanos.store(now + 1_000 + dice.below(4_000) as u64, Ordering::Relaxed);
        core.acting = false;
        core.running = Some(i);
        drop(core);
        self.turns[i].notify_one();
        let mut core = self.wait_until(|core| core.running.is_none());
        core.acting = true;
        // The loop's work takes effect now, but its processor is busy until then. Other loops may
        // use the other processors meanwhile.
        let until = self.nanos.swap(now, Ordering::Relaxed);
        if let AfterTurn::Die = core.then {
            core.drop_killed(now);
            return true;
        }
        let Core { loops, then, trace, most_calls, .. } = &mut *core;
        let l = &mut loops.list[i];
        l.rested = matches!(then, AfterTurn::Rest(_));
        l.works(now, until, *then);
        *most_calls = l.calls.max(*most_calls);
        trace.add(now, "turn", i as u64, l.calls);
        loops.may_have_events = true;
        true
    }

    /// The next time at which a loop or a job has something to do.
    pub fn next(&self) -> Option<u64> {
        let core = self.core();
        let job = core.jobs.keys().map(|(at, _)| *at).next();
        core.loops.next(self.now()).into_iter().chain(job).min()
    }

    pub fn advance(&self, to: u64) {
        let Core { loops, accept_queues, .. } = &mut *self.core();
        let now = self.nanos.fetch_max(to, Ordering::Relaxed);
        accept_queues.observe(now, to.max(now), loops);
    }

    /// Runs the jobs that are due. Returns whether there were any.
    pub fn work(&self) -> bool {
        let mut any = false;
        loop {
            let now = self.now();
            let mut core = self.core();
            let Some((&(at, number), _)) = core.jobs.first_key_value() else { return any };
            if at > now {
                return any;
            }
            let job = core.jobs.remove(&(at, number));
            core.trace.add(now, "job", number, 0);
            drop(core);
            any = true;
            if let Some((_, job)) = job {
                job();
            }
            self.note_events();
        }
    }

    /// The numbers of tasks and sockets of each of the last loops.
    pub fn held(&self, last: usize) -> Vec<(usize, usize)> {
        let core = self.core();
        let rows = core.loops.rows();
        let first = rows.len() - last;
        rows.skip(first).map(|l| l.holds).collect()
    }

    pub fn all_gone(&self) -> bool {
        self.core().loops.are_gone()
    }

    /// Notes that the server has ended, so that no thread runs jobs any more.
    pub fn finish(&self) {
        self.core().over = true;
        self.turn.notify_all();
    }

    /// Runs the jobs of ended loops at once, until the server has ended.
    pub fn clean_up(&self) {
        loop {
            let mut core = self.wait_until(|core| core.over || !core.jobs.is_empty());
            let Some(((at, _), (_, job))) = core.jobs.pop_first() else { return };
            drop(core);
            self.advance(at);
            job();
        }
    }
}

/// Calls the world at each step in shared memory.
pub fn on_step(world: &Arc<World>) {
    static WORLD: OnceLock<Arc<World>> = OnceLock::new();
    let _ = WORLD.set(Arc::clone(world));
    weir_zone::on_step(|holding| {
        if let Some(world) = WORLD.get() {
            world.at_word(THREAD_INDEX.get(), holding);
        }
    });
}

/// A queue of events in order of time.
pub type Queue<T> = std::collections::BinaryHeap<Reverse<(u64, u64, T)>>;
