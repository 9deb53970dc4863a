//! The world as the engine sees it: which thread has the turn, what time it is, what fails.

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
use crate::fate::{Fate, Faults};
use crate::looping::{Loops, Then};

/// The world's time when it begins.
pub const BEGINNING: u64 = 1_000_000_000;
thread_local! {
    /// The number of this thread, among those of loops and those beside them.
    pub static ME: Cell<usize> = const { Cell::new(0) };
}

/// What all threads share.
pub struct World {
    pub core: Mutex<Core>,
    /// The condition variables of the world's turn and of the loops' turns.
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
    /// What the loop that ran wants next.
    pub then: Then,
    /// The world itself acts.
    pub acting: bool,
    /// Jobs by their time, and the loop of each.
    pub jobs: BTreeMap<(u64, u64), (usize, Job)>,
    pub numbers: u64,
    pub most_calls: u64,
    /// The number of connected peers: each may be worth a task's budget.
    pub peers: u64,
    pub trace: Trace,
    /// Connections with an endless stream: more comes whenever the server reads.
    pub floods: Vec<OwnedFd>,
    pub over: bool,
    /// The rows of the loops to kill, and the number of their steps until then.
    pub doom: Option<(Range<usize>, u64)>,
    /// No more kills.
    pub calm: bool,
    /// The rows of the loops that were killed.
    pub dead: Option<Range<usize>>,
}

impl Core {
    /// Clears what the loops of a killed process were about to do.
    fn bury(&mut self, now: u64) {
        let Some(rows) = self.dead.clone() else { return };
        self.trace.add(now, "killed", rows.start as u64, rows.end as u64);
        for i in 2 * rows.start..2 * rows.end {
            let l = &mut self.loops.list[i];
            (l.gone, l.news) = (true, None);
            self.accept_queues.forget(i);
        }
        // The jobs of its threads are not even dropped.
        let jobs = std::mem::take(&mut self.jobs);
        let (dead, living): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|(_, (whose, _))| rows.contains(whose));
        self.jobs.extend(living);
        dead.into_iter().for_each(|(_, job)| std::mem::forget(job));
        self.loops.may_have_events = true;
    }
}

/// A hash of what happened: two runs of a seed must agree on it.
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
    pub fn new(fate: &Fate, secs: i64, shown: bool) -> Arc<World> {
        let Fate { loops, cpus, faults, .. } = *fate;
        let part = if fate.again { "world again" } else { "world" };
        let core = Core {
            dice: Dice::salted(fate.seed, part),
            faults,
            loops: Loops::new(loops, cpus),
            accept_queues: AcceptQueues::new(loops, fate.config.accept_queues > 1),
            running: None,
            then: Then::Run,
            acting: false,
            jobs: BTreeMap::new(),
            numbers: 0,
            most_calls: 0,
            peers: 0,
            trace: Trace { hash: 0, shown },
            floods: Vec::new(),
            over: false,
            doom: None,
            calm: false,
            dead: None,
        };
        Arc::new(World {
            core: Mutex::new(core),
            turn: Condvar::new(),
            turns: (0..2 * loops * (1 + fate.reloads.len() + fate.kills.len()))
                .map(|_| Condvar::new())
                .collect(),
            nanos: AtomicU64::new(BEGINNING),
            secs,
            seed: fate.seed,
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

    /// A word of shared memory is about to be read or changed. If no lock is held, other loops may
    /// run before.
    fn at_word(&self, me: usize, holding: Holding) {
        self.step(self.core(), me);
        let mut core = self.core();
        let often = core.faults.words;
        let may = core.running == Some(me) && holding == Holding::Nothing && often > 0;
        if may && core.dice.one_in(often) {
            self.give_back(core, me, Then::Run);
        }
    }

    /// A doomed loop dies here if this was its last step.
    pub fn step(&self, mut core: MutexGuard<'_, Core>, me: usize) {
        let runs = core.running == Some(me);
        let Some((rows, left)) =
            core.doom.as_mut().filter(|(rows, _)| runs && rows.contains(&(me / 2)))
        else {
            return;
        };
        if *left > 0 {
            *left -= 1;
            return;
        }
        core.dead = Some(rows.clone());
        core.doom = None;
        // The loop never gets another turn.
        self.give_back(core, me, Then::Die);
    }

    /// Condemns the loops of these rows to die after so many steps of theirs.
    pub fn doom(&self, rows: Range<usize>, steps: u64) {
        let mut core = self.core();
        core.doom = (!core.calm).then_some((rows, steps));
    }

    /// The rows of the killed process, once.
    pub fn take_dead(&self) -> Option<Range<usize>> {
        self.core().dead.take()
    }

    /// Gives the turn back, and waits for this loop's next one.
    pub fn give_back<'a>(&'a self, mut core: MutexGuard<'a, Core>, me: usize, then: Then) {
        core.then = then;
        core.running = None;
        drop(core);
        // The woken thread must find the lock free.
        self.turn.notify_one();
        core = self.core();
        while core.running != Some(me) {
            core = self.turns[me].wait(core).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn now(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }

    /// Waits until all loops are about to begin.
    pub fn gather(&self) {
        self.wait_until(|core| core.loops.list.iter().all(|l| l.began)).acting = true;
    }

    /// Announces so many more loops.
    pub fn expect(&self, loops: usize) {
        let Core { loops: all, accept_queues, acting, .. } = &mut *self.core();
        all.add(loops);
        accept_queues.expect(loops);
        *acting = false;
    }

    /// Whether at most so many loops are left.
    pub fn are_gone_but(&self, last: usize) -> bool {
        self.core().loops.rows().filter(|l| !l.gone).count() <= last
    }

    /// Something happened outside of the loops: they may have something to do.
    pub fn stir(&self) {
        self.core().loops.may_have_events = true;
    }

    /// A connection is established.
    pub fn arrive(&self, accept_queue: usize) {
        let now = self.now();
        let Core { loops, accept_queues, dice, .. } = &mut *self.core();
        loops.arrive(accept_queue, now, accept_queues, dice);
    }

    /// Stops a loop's process for this time.
    pub fn stop(&self, i: usize, time: u64) {
        let now = self.now();
        let mut core = self.core();
        core.loops.list[2 * i..][..2].iter_mut().for_each(|l| l.stopped = now + time);
        core.trace.add(now, "stops", i as u64, time);
    }

    /// Whether a loop sleeps that could serve what came at that time, and no other loop has fetched
    /// it.
    pub fn could_relieve(&self, came: u64) -> bool {
        let (now, core) = (self.now(), self.core());
        let sleeps = core.loops.rows().any(|l| l.is_asleep(now));
        sleeps && core.loops.rows().all(|l| l.is_asleep(now) || l.fetched < came)
    }

    /// What was seen of the listening socket, and how many connections each loop accepted.
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

    /// The seconds since 1970.
    pub fn date(&self) -> i64 {
        self.secs + (self.now() / 1_000_000_000) as i64
    }

    pub fn trace(&self) -> u64 {
        self.core().trace.hash
    }

    /// The most system calls of one turn.
    pub fn most_calls(&self) -> u64 {
        self.core().most_calls
    }

    /// From now on, more comes on this connection whenever the server reads.
    pub fn flood(&self, fd: OwnedFd) {
        self.core().floods.push(fd);
    }

    /// Ends all faults and endless streams.
    pub fn calm(&self) {
        let mut core = self.core();
        core.faults = Faults::default();
        core.floods.clear();
        (core.doom, core.calm) = (None, true);
    }

    /// Lets one loop have a turn. Returns whether one had something to do.
    pub fn turn_one(&self) -> bool {
        let now = self.now();
        let mut core = self.core();
        let Core { loops, accept_queues, dice, .. } = &mut *core;
        loops.settle(now, accept_queues, dice);
        let Some(i) = loops.dispatch(now, dice) else { return false };
        let l = &mut loops.list[i];
        if std::mem::take(&mut l.fresh) {
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
        // The loop's work takes effect now. The others go on from here, as long as there are
        // processors.
        let until = self.nanos.swap(now, Ordering::Relaxed);
        if let Then::Die = core.then {
            core.bury(now);
            return true;
        }
        let Core { loops, then, trace, most_calls, .. } = &mut *core;
        let l = &mut loops.list[i];
        l.rested = matches!(then, Then::Rest(_));
        l.works(now, until, *then);
        *most_calls = l.calls.max(*most_calls);
        trace.add(now, "turn", i as u64, l.calls);
        loops.may_have_events = true;
        true
    }

    /// The next time at which something happens by itself in the loops, or a job is due.
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

    /// Does the jobs that are due. Returns whether there were any.
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
            self.stir();
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

    /// The server has ended: no thread takes jobs any more.
    pub fn finish(&self) {
        self.core().over = true;
        self.turn.notify_all();
    }

    /// After the loops' end: does at once what their threads still want, until the server has
    /// ended.
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

/// Runs at each step of shared memory, in the one world that there is.
pub fn on_step(world: &Arc<World>) {
    static WORLD: OnceLock<Arc<World>> = OnceLock::new();
    let _ = WORLD.set(Arc::clone(world));
    weir_zone::on_step(|holding| {
        if let Some(world) = WORLD.get() {
            world.at_word(ME.get(), holding);
        }
    });
}

/// A queue in the order of time.
pub type Queue<T> = std::collections::BinaryHeap<Reverse<(u64, u64, T)>>;
