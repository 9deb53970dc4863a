//! The world as the engine sees it: whose turn it is, what time it is, what fails.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrUnix};
use weir_engine::sim::{self, Job, Rest};
use weir_engine::{Arm, Call};
use weir_testkit::Dice;

use crate::door::{Doors, Seen};
use crate::fate::{Fate, Faults};
use crate::looping::{Loops, Then};

/// The world's time when it begins.
pub const BEGINNING: u64 = 1_000_000_000;
/// So many system calls a task may make in a turn, or a few more; and there are a few tasks without a peer.
const BUDGET: u64 = 150;
const FEW: u64 = 4;
/// For so long a loop takes nothing after an accept failed.
const SHORTAGE: u64 = 510_000_000;
/// What a system call takes, in nanoseconds.
const CALL: u64 = 800;

/// What comes at once of what has no end.
const FLOOD: &[u8] = &[b'a'; 16_384];

thread_local! {
    /// Which of the threads of loops and of those beside them this one is.
    static ME: Cell<usize> = const { Cell::new(0) };
}

/// What everybody shares.
pub struct World {
    core: Mutex<Core>,
    /// The world's turn, and those of the loops.
    turn: Condvar,
    turns: Vec<Condvar>,
    nanos: AtomicU64,
    secs: i64,
}

struct Core {
    dice: Dice,
    faults: Faults,
    loops: Loops,
    doors: Doors,
    running: Option<usize>,
    /// What the loop that ran wants next.
    then: Then,
    /// The world itself is at work.
    acting: bool,
    jobs: BTreeMap<(u64, u64), Job>,
    numbers: u64,
    most_calls: u64,
    /// So many peers are connected: each may be worth a task's budget.
    peers: u64,
    trace: Trace,
    /// Connections on which more comes whenever the server reads.
    floods: Vec<OwnedFd>,
    over: bool,
}

/// What happened, in one number: two runs of a seed must agree on it.
#[derive(Clone, Default)]
pub struct Trace {
    hash: u64,
    shown: bool,
}

impl Trace {
    fn add(&mut self, now: u64, what: &str, a: u64, b: u64) {
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
            doors: Doors::new(loops),
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
        };
        Arc::new(World {
            core: Mutex::new(core),
            turn: Condvar::new(),
            turns: (0..2 * loops * (1 + fate.reloads.len())).map(|_| Condvar::new()).collect(),
            nanos: AtomicU64::new(BEGINNING),
            secs,
        })
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, mut is: impl FnMut(&Core) -> bool) -> MutexGuard<'_, Core> {
        let mut core = self.core();
        while !is(&core) {
            core = self.turn.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
        core
    }

    /// The loop that runs gives the turn back, and waits for its next one.
    fn give_back<'a>(&'a self, mut core: MutexGuard<'a, Core>, me: usize, then: Then) {
        core.then = then;
        core.running = None;
        drop(core);
        // Who is woken finds no lock in its way.
        self.turn.notify_one();
        core = self.core();
        while core.running != Some(me) {
            core = self.turns[me].wait(core).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn now(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }

    /// All loops wait to begin.
    pub fn gather(&self) {
        self.wait_until(|core| core.loops.list.iter().all(|l| l.began)).acting = true;
    }

    /// So many loops more are about to begin.
    pub fn expect(&self, loops: usize) {
        let Core { loops: all, doors, acting, .. } = &mut *self.core();
        all.add(loops);
        doors.expect(loops);
        *acting = false;
    }

    /// Whether all loops have ended but the last ones.
    pub fn are_gone_but(&self, last: usize) -> bool {
        self.core().loops.list.iter().rev().skip(2 * last).all(|l| l.gone)
    }

    /// Something happened outside of the loops: they may have something to do.
    pub fn stir(&self) {
        self.core().loops.stirred = true;
    }

    /// A connection is established.
    pub fn arrive(&self, door: usize) {
        let now = self.now();
        let Core { loops, doors, dice, .. } = &mut *self.core();
        loops.arrive(door, now, doors, dice);
    }

    /// A loop's process is stopped for so long.
    pub fn stop(&self, i: usize, time: u64) {
        let now = self.now();
        let mut core = self.core();
        core.loops.list[2 * i..][..2].iter_mut().for_each(|l| l.stopped = now + time);
        core.trace.add(now, "stops", i as u64, time);
    }

    /// Whether a loop sleeps that could do what came at that time, and nobody else has fetched it.
    pub fn could_relieve(&self, came: u64) -> bool {
        let (now, core) = (self.now(), self.core());
        let sleeps = core.loops.rows().any(|l| l.is_asleep(now));
        sleeps && core.loops.rows().all(|l| l.is_asleep(now) || l.fetched < came)
    }

    /// What was seen of the listening socket, and who took how many.
    pub fn seen(&self) -> (Seen, Vec<u64>) {
        let core = self.core();
        (core.doors.seen(), core.doors.accepted.clone())
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

    /// The most system calls that one turn made.
    pub fn most_calls(&self) -> u64 {
        self.core().most_calls
    }

    /// From now on more comes on this connection whenever the server reads.
    pub fn flood(&self, fd: OwnedFd) {
        self.core().floods.push(fd);
    }

    /// No more faults, and no more floods.
    pub fn calm(&self) {
        let mut core = self.core();
        core.faults = Faults::default();
        core.floods.clear();
    }

    /// Lets one loop have a turn, if one has something to do; whether one had.
    pub fn turn_one(&self) -> bool {
        let now = self.now();
        let mut core = self.core();
        let Core { loops, doors, dice, .. } = &mut *core;
        loops.settle(now, doors, dice);
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
        // What it did is done now; the others go on from here, as long as there are processors.
        let until = self.nanos.swap(now, Ordering::Relaxed);
        let Core { loops, then, trace, most_calls, .. } = &mut *core;
        let l = &mut loops.list[i];
        l.rested = matches!(then, Then::Rest(_));
        l.works(now, until, *then);
        *most_calls = l.calls.max(*most_calls);
        trace.add(now, "turn", i as u64, l.calls);
        loops.stirred = true;
        true
    }

    /// When something happens by itself in the loops, or a job is due.
    pub fn next(&self) -> Option<u64> {
        let core = self.core();
        let job = core.jobs.keys().map(|(at, _)| *at).next();
        core.loops.next(self.now()).into_iter().chain(job).min()
    }

    pub fn advance(&self, to: u64) {
        let Core { loops, doors, .. } = &mut *self.core();
        let now = self.nanos.fetch_max(to, Ordering::Relaxed);
        doors.observe(now, to.max(now), loops);
    }

    /// Does the jobs that are due; whether there were any.
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
            if let Some(job) = job {
                job();
            }
            self.stir();
        }
    }

    /// The tasks and sockets of each of the last loops.
    pub fn held(&self, last: usize) -> Vec<(usize, usize)> {
        let core = self.core();
        let rows = core.loops.rows();
        let first = rows.len() - last;
        rows.skip(first).map(|l| l.holds).collect()
    }

    pub fn all_gone(&self) -> bool {
        self.core().loops.are_gone()
    }

    /// The server has ended: nobody asks for jobs any more.
    pub fn finish(&self) {
        self.core().over = true;
        self.turn.notify_all();
    }

    /// After the loops' end: whatever their threads want done yet, at once, until the server has ended.
    pub fn clean_up(&self) {
        loop {
            let mut core = self.wait_until(|core| core.over || !core.jobs.is_empty());
            let Some(((at, _), job)) = core.jobs.pop_first() else { return };
            drop(core);
            self.advance(at);
            job();
        }
    }
}

/// A share of the world that the engine can have.
pub struct Share(pub Arc<World>);

impl sim::World for Share {
    fn nanos(&self) -> u64 {
        self.0.now()
    }

    fn secs(&self) -> i64 {
        self.0.secs
    }

    fn born(&self, number: usize) {
        ME.set(2 * number);
    }

    fn me(&self) -> usize {
        ME.get() / 2
    }

    fn is_runnable(&self, number: usize) -> bool {
        self.0.core().loops.list[2 * number].is_runnable(self.0.now())
    }

    fn has_used(&self, number: usize) -> u64 {
        self.0.core().loops.list[2 * number].used(self.0.now())
    }

    fn after(&self, nanos: u64, job: Job) {
        let mut core = self.0.core();
        core.numbers += 1;
        let number = core.numbers;
        core.jobs.insert((self.0.now() + nanos, number), job);
    }

    fn beside(&self) -> usize {
        let number = ME.get() | 1;
        self.0.core().loops.list[number].expect();
        number
    }

    fn begin_beside(&self, number: usize) {
        ME.set(number);
        self.begin();
    }

    fn call_beside(&self) {
        let Core { loops, .. } = &mut *self.0.core();
        loops.list[ME.get() | 1].called = true;
        loops.stirred = true;
    }

    fn wait(&self, until: Option<u64>) {
        self.0.give_back(self.0.core(), ME.get(), Then::Rest(until));
    }

    fn begin(&self) {
        let (world, me) = (&self.0, ME.get());
        let mut core = world.core();
        core.loops.list[me].began = true;
        world.turn.notify_one();
        while core.running != Some(me) {
            core = world.turns[me].wait(core).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn rest(&self, Rest { until, looked, news }: Rest<'_>) {
        let (world, me) = (&self.0, ME.get());
        let mut core = world.core();
        let l = &mut core.loops.list[me];
        if l.news.is_none() {
            l.news = news.and_then(|fd| fd.try_clone_to_owned().ok());
        }
        l.fresh |= !looked;
        world.give_back(core, me, Then::Rest(until));
    }

    fn holds(&self, tasks: usize, sockets: usize) {
        self.0.core().loops.list[ME.get()].holds = (tasks, sockets);
    }

    fn block(&self, time: Duration, computes: bool) {
        let (world, me) = (&self.0, ME.get());
        let nanos = time.as_nanos() as u64;
        let then = if computes { Then::Compute(nanos) } else { Then::Sleep(nanos) };
        world.give_back(world.core(), me, then);
    }

    fn end(&self) {
        let (world, me) = (&self.0, ME.get());
        let mut core = world.core();
        core.loops.list[me].gone = true;
        core.loops.list[me].news = None;
        core.doors.forget(me);
        // Its loop may wait for that.
        core.loops.list[me & !1].called |= me % 2 == 1;
        core.running = None;
        world.turn.notify_one();
    }

    fn call(&self, call: Call) -> Result<(), Errno> {
        let me = ME.get();
        let mut core = self.0.core();
        let runs = core.running == Some(me);
        // Before the first turn and after the last one, threads do as they like.
        if !core.acting && !runs {
            return Ok(());
        }
        // The others are under locks of the file pool or of pools of connections, or may be.
        let lets_go = matches!(call, Call::Accept | Call::Send | Call::Watch | Call::Connect);
        if runs && core.faults.others > 0 && lets_go {
            let Core { dice, faults, .. } = &mut *core;
            if dice.one_in(faults.others) {
                self.0.give_back(core, me, Then::Run);
                core = self.0.core();
            }
        }
        let peers = core.peers;
        let l = &mut core.loops.list[me];
        l.calls += 1;
        if l.calls > BUDGET * (peers + FEW) {
            let calls = l.calls;
            println!(
                "a turn of loop {me} beside {peers} peers made {calls} system calls, the last {call:?}"
            );
            std::process::exit(1);
        }
        self.0.nanos.fetch_add(CALL, Ordering::Relaxed);
        let Core { dice, faults, floods, loops, .. } = &mut *core;
        if call == Call::Recv {
            let more = |fd: &mut OwnedFd| {
                let sent = rustix::net::send(fd, FLOOD, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                matches!(sent, Ok(_) | Err(Errno::AGAIN))
            };
            floods.retain_mut(more);
        }
        let Some(errno) = faults.of(call, dice) else { return Ok(()) };
        if matches!(call, Call::Accept | Call::Watch) {
            let until = self.0.now() + SHORTAGE;
            match me % 2 {
                0 => loops.list[me].unable = until,
                // It has taken the wake-up with it, and others beside their loops hear of nothing.
                _ => loops.list.iter_mut().for_each(|l| l.unable = until),
            }
        }
        Err(errno)
    }

    fn enlist(&self, socket: BorrowedFd<'_>, arm: Arm) -> Option<usize> {
        let door = door_of(socket)?;
        self.0.core().doors.add(door, ME.get(), arm == Arm::Exclusive);
        Some(door)
    }

    fn leave(&self, door: usize) {
        self.0.core().doors.remove(door, ME.get());
    }

    fn is_told(&self, door: usize) -> bool {
        self.0.core().doors.reports(door, ME.get())
    }

    fn accepted(&self, socket: BorrowedFd<'_>) {
        if let Some(door) = door_of(socket) {
            self.0.core().doors.accept(door, ME.get() / 2);
        }
    }

    fn later(&self, job: Job) {
        let mut core = self.0.core();
        let ordered = core.acting || core.running == Some(ME.get());
        let slow = core.faults.slow_disk;
        let delay = if ordered { 20_000 + core.dice.below(slow as usize + 1) as u64 } else { 0 };
        core.numbers += 1;
        let number = core.numbers;
        core.jobs.insert((self.0.now() + delay, number), job);
        drop(core);
        self.0.turn.notify_all();
    }

    /// The kernel reports in order, and who came first is to be served first.
    fn below(&self, n: usize) -> usize {
        let mut core = self.0.core();
        if core.faults.orderly { n - 1 } else { core.dice.below(n) }
    }

    fn room(&self) -> usize {
        let mut core = self.0.core();
        core.dice.pick(&[1, 5_001, 20_003, 212_992])
    }

    fn hold_back(&self) -> Option<u64> {
        let mut core = self.0.core();
        let Core { dice, faults, .. } = &mut *core;
        let holds = faults.holds > 0 && dice.one_in(faults.holds);
        holds.then(|| dice.below(2_000_000) as u64)
    }
}

/// Which of the server's listening sockets it is, by its name; an epoll instance stands for the only one.
fn door_of(socket: BorrowedFd<'_>) -> Option<usize> {
    let name = match rustix::net::getsockname(socket) {
        Err(Errno::NOTSOCK) => return Some(0),
        name => SocketAddrUnix::try_from(name.ok()?).ok()?,
    };
    let path = std::str::from_utf8(name.path_bytes()?).ok()?;
    match path.rsplit_once('/')?.1.split_once('.') {
        None => Some(0),
        Some((_, number)) => number.parse().ok(),
    }
}

/// In the order of time.
pub type Queue<T> = std::collections::BinaryHeap<Reverse<(u64, u64, T)>>;
