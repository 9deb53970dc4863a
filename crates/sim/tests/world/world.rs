//! The world as the engine sees it: whose turn it is, what time it is, what fails.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::SendFlags;
use weir_engine::Call;
use weir_engine::sim::{self, Job};
use weir_testkit::Dice;

use crate::fate::Faults;

/// More system calls than this in one turn of a loop: it does not let others go.
const MOST_CALLS: u64 = 20_000;
/// What a system call takes, in nanoseconds.
const CALL: u64 = 800;

/// What comes at once of what has no end.
const FLOOD: &[u8] = &[b'a'; 16_384];

thread_local! {
    /// Which loop this thread is.
    static ME: Cell<usize> = Cell::new(number_of_this_thread());
}

fn number_of_this_thread() -> usize {
    let thread = std::thread::current();
    let number = thread.name().and_then(|name| name.strip_prefix("weir: loop "));
    number.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// What everybody shares.
pub struct World {
    core: Mutex<Core>,
    turn: Condvar,
    nanos: AtomicU64,
    secs: i64,
}

/// A loop, as far as the world is concerned.
#[derive(Clone, Default)]
struct Looping {
    began: bool,
    gone: bool,
    until: Option<u64>,
    /// Something has happened since it looked.
    stirred: bool,
    worked: bool,
}

struct Core {
    dice: Dice,
    faults: Faults,
    loops: Vec<Looping>,
    running: Option<usize>,
    /// The world itself is at work.
    acting: bool,
    jobs: BTreeMap<(u64, u64), Job>,
    numbers: u64,
    calls: u64,
    most_calls: u64,
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
    pub fn new(seed: u64, loops: usize, faults: Faults, shown: bool) -> Arc<World> {
        let secs = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let core = Core {
            dice: Dice::salted(seed, "world"),
            faults,
            loops: vec![Looping::default(); loops],
            running: None,
            acting: false,
            jobs: BTreeMap::new(),
            numbers: 0,
            calls: 0,
            most_calls: 0,
            trace: Trace { hash: 0, shown },
            floods: Vec::new(),
            over: false,
        };
        Arc::new(World {
            core: Mutex::new(core),
            turn: Condvar::new(),
            nanos: AtomicU64::new(1_000_000_000),
            secs: secs.map_or(0, |since| since.as_secs() as i64),
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

    pub fn now(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }

    /// All loops wait to begin.
    pub fn gather(&self) {
        let mut core = self.wait_until(|core| core.loops.iter().all(|l| l.began));
        core.acting = true;
        core.loops.iter_mut().for_each(|l| l.stirred = true);
    }

    /// Something happened outside of the loops: they may have something to do.
    pub fn stir(&self) {
        self.core().loops.iter_mut().for_each(|l| l.stirred = true);
    }

    pub fn note(&self, what: &str, a: u64, b: u64) {
        let now = self.now();
        self.core().trace.add(now, what, a, b);
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
        let due = |l: &Looping| !l.gone && (l.stirred || l.until.is_some_and(|until| until <= now));
        let ready: Vec<usize> =
            core.loops.iter().enumerate().filter(|(_, l)| due(l)).map(|(i, _)| i).collect();
        if ready.is_empty() {
            return false;
        }
        let i = ready[core.dice.below(ready.len())];
        let cost = 1_000 + core.dice.below(4_000) as u64;
        self.nanos.fetch_add(cost, Ordering::Relaxed);
        core.loops[i].stirred = false;
        core.loops[i].worked = false;
        core.calls = 0;
        core.acting = false;
        core.running = Some(i);
        drop(core);
        self.turn.notify_all();
        let mut core = self.wait_until(|core| core.running.is_none());
        core.acting = true;
        core.most_calls = core.most_calls.max(core.calls);
        if core.loops[i].worked {
            let calls = core.calls;
            core.trace.add(now, "turn", i as u64, calls);
            // Whatever it did may concern the others.
            core.loops.iter_mut().for_each(|l| l.stirred = true);
        }
        true
    }

    /// When the next loop wants to look again by itself, or a job is due.
    pub fn next(&self) -> Option<u64> {
        let core = self.core();
        let loops = core.loops.iter().filter(|l| !l.gone).filter_map(|l| l.until);
        loops.chain(core.jobs.keys().map(|(at, _)| *at).take(1)).min()
    }

    pub fn advance(&self, to: u64) {
        self.nanos.fetch_max(to, Ordering::Relaxed);
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

    pub fn all_gone(&self) -> bool {
        self.core().loops.iter().all(|l| l.gone)
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

    fn begin(&self) {
        let (world, me) = (&self.0, ME.get());
        world.core().loops[me].began = true;
        world.turn.notify_all();
        drop(world.wait_until(|core| core.running == Some(me)));
    }

    fn rest(&self, until: Option<u64>, looked: bool) {
        let (world, me) = (&self.0, ME.get());
        let mut core = world.core();
        let me_now = &mut core.loops[me];
        me_now.until = until;
        me_now.worked |= !looked;
        core.running = None;
        drop(core);
        world.turn.notify_all();
        drop(world.wait_until(|core| core.running == Some(me)));
    }

    fn end(&self) {
        let (world, me) = (&self.0, ME.get());
        let mut core = world.core();
        core.loops[me].gone = true;
        core.loops[me].worked = true;
        core.running = None;
        drop(core);
        world.turn.notify_all();
    }

    fn call(&self, call: Call) -> Result<(), Errno> {
        let mut core = self.0.core();
        // Before the first turn and after the last one, threads do as they like.
        if !core.acting && core.running != Some(ME.get()) {
            return Ok(());
        }
        core.calls += 1;
        if core.calls > MOST_CALLS {
            println!(
                "a turn of loop {:?} made {MOST_CALLS} system calls, the last {call:?}",
                core.running
            );
            std::process::exit(1);
        }
        self.0.nanos.fetch_add(CALL, Ordering::Relaxed);
        let Core { dice, faults, floods, .. } = &mut *core;
        if call == Call::Recv {
            let more = |fd: &mut OwnedFd| {
                let sent = rustix::net::send(fd, FLOOD, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                matches!(sent, Ok(_) | Err(Errno::AGAIN))
            };
            floods.retain_mut(more);
        }
        match faults.of(call, dice) {
            Some(errno) => Err(errno),
            None => Ok(()),
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

    fn below(&self, n: usize) -> usize {
        self.0.core().dice.below(n)
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

/// In the order of time.
pub type Queue<T> = std::collections::BinaryHeap<Reverse<(u64, u64, T)>>;
