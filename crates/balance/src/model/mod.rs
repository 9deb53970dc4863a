//! A simulation for accept policies in virtual time: loops with blocking handlers, clients, and the
//! kernel's wait queue.
//!
//! It runs the same [`AcceptDriver`] as the server. It models what decides which loop gets a connection:
//! the order of registration, exclusive and plain wake-ups, that only sleepers count, the
//! level-triggered report, the hash of SO_REUSEPORT, and the first-come-first-served order of
//! blocked accepts. Loops can be stopped, killed, and started again in the middle of anything. Each
//! loop has a CPU of its own, unless all are to share a [`Machine`].

mod clients;
mod cpus;
mod kernel;
mod machine;
mod notes;
mod promises;
mod queue;
mod turns;
mod witness;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use self::clients::Clients;
pub use self::clients::ModelClient;
pub use self::machine::Machine;
use self::machine::{Host, ModelTask};
pub use self::notes::{Note, What};
pub use self::promises::{Bound, PROMISES, Promise, Spread};
pub use self::queue::{ModelSocket, Visit};
pub use self::witness::Witness;
use crate::{AcceptDriver, AcceptPolicy, Load, LoadTable, SocketLayout, Stance};

/// The time from a wake-up to the first instruction of a turn.
const WAKE: Duration = Duration::from_micros(20);
/// The time of a turn without its handlers.
const TURN: Duration = Duration::from_micros(5);

/// The world.
pub struct World {
    kind: AcceptPolicy,
    base: Instant,
    now: Duration,
    words: Rc<[AtomicU64]>,
    loops: Vec<ModelLoop>,
    sockets: Vec<ModelSocket>,
    clients: Clients,
    events: BinaryHeap<Reverse<(Duration, u64, ModelEvent)>>,
    serial: u64,
    witness: Witness,
    /// The times that handlers take, drawn at random. Empty: as their clients say.
    services: Vec<Duration>,
    /// The machine, unless each loop has its own CPU.
    host: Option<Host>,
    seed: u64,
    draws: u64,
    /// What happened to the listening sockets, if it is recorded.
    notes: Option<Vec<Note>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ModelEvent {
    Connect(usize),
    Request(usize),
    /// The end of a loop's sleep, which has this number.
    Wake(usize, u64),
    /// A turn of the loop, in the life with this number.
    Turn(usize, u64),
    /// The turn's connections are accepted; its handlers follow.
    Handle(usize, u64),
    /// The end of a handler's sleep.
    Rouse(usize, u64, usize),
    Answer(usize, u64, usize),
    /// The client program has computed for its next chore.
    Chore,
    /// A timer of a CPU, with the CPU's token.
    OnCpu(usize, u64),
    Stop(usize),
    Continue(usize),
    Kill(usize),
    Start(usize),
}

struct ModelLoop {
    driver: Option<AcceptDriver>,
    asleep: bool,
    stopped: bool,
    /// Events that happened while the loop was stopped.
    held: VecDeque<ModelEvent>,
    sleep: u64,
    life: u64,
    armed: bool,
    connections: BTreeSet<usize>,
    inflight: u64,
    ready: VecDeque<usize>,
    batch: usize,
    handed: VecDeque<usize>,
    accepted_since_added: bool,
    /// The most connections of the loop.
    room: usize,
}

impl World {
    /// `n` idle loops with this policy. `base` is any instant.
    #[must_use]
    pub fn new(kind: AcceptPolicy, n: usize, base: Instant) -> World {
        let sockets = if kind.shape() == SocketLayout::SocketEach { n } else { 1 };
        let mut world = World {
            kind,
            base,
            now: Duration::ZERO,
            words: (0..LoadTable::words(n)).map(|_| AtomicU64::new(0)).collect(),
            loops: (0..n).map(|_| ModelLoop::new()).collect(),
            sockets: (0..sockets).map(|_| ModelSocket::default()).collect(),
            clients: Clients::default(),
            events: BinaryHeap::new(),
            serial: 0,
            witness: Witness { answered: vec![0; n], accepted: vec![0; n], ..Witness::default() },
            services: Vec::new(),
            host: None,
            seed: 0,
            draws: 0,
            notes: None,
        };
        for i in 0..n {
            world.start(i);
        }
        world
    }

    /// A client that connects at `at`.
    pub fn client(&mut self, at: Duration, client: ModelClient) {
        let id = self.clients.add(client);
        self.schedule(at, ModelEvent::Connect(id));
    }

    /// Makes each request block its loop for one of these times, drawn at random, instead of the
    /// time that its client says.
    pub fn draw_services(&mut self, times: Vec<Duration>) {
        self.services = times;
    }

    /// Seeds everything that is random, such as the hash of SO_REUSEPORT.
    pub fn seed(&mut self, seed: u64) {
        self.seed = mixed(seed);
    }

    /// Records what happens to the listening sockets from now on.
    pub fn take_notes(&mut self) {
        self.notes = Some(Vec::new());
    }

    /// What was recorded.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        self.notes.as_deref().unwrap_or_default()
    }

    /// The waiters of socket `n` in the order of the kernel's walk: the loop, and whether it is
    /// exclusive.
    #[must_use]
    pub fn waiters(&self, n: usize) -> Vec<(usize, bool)> {
        self.sockets.get(n).map(ModelSocket::order).unwrap_or_default()
    }

    /// Limits loop `i` to this many connections from now on.
    pub fn room(&mut self, i: usize, connections: usize) {
        self.loops[i].room = connections;
    }

    /// Stops loop `i`, as SIGSTOP does.
    pub fn stop(&mut self, at: Duration, i: usize) {
        self.schedule(at, ModelEvent::Stop(i));
    }

    /// Continues loop `i`, as SIGCONT does.
    pub fn cont(&mut self, at: Duration, i: usize) {
        self.schedule(at, ModelEvent::Continue(i));
    }

    /// Kills loop `i`, as SIGKILL does. A successor starts after `respawn`.
    pub fn kill(&mut self, at: Duration, i: usize, respawn: Duration) {
        self.schedule(at, ModelEvent::Kill(i));
        self.schedule(at + respawn, ModelEvent::Start(i));
    }

    /// Runs until `end`. Returns everything observed so far.
    pub fn run(&mut self, end: Duration) -> &Witness {
        while let Some(&Reverse((at, _, event))) = self.events.peek() {
            if at > end {
                break;
            }
            self.events.pop();
            self.observe_until(at);
            self.now = at;
            self.handle(event);
            self.observe();
        }
        self.observe_until(end);
        self.now = end;
        &self.witness
    }

    /// Everything observed so far.
    #[must_use]
    pub fn witness(&self) -> &Witness {
        &self.witness
    }

    /// Connections in accept queues.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.clients.waiting()
    }

    /// Open connections, by loop.
    #[must_use]
    pub fn open(&self) -> Vec<usize> {
        self.loops.iter().map(|l| l.connections.len()).collect()
    }

    /// How often loops have fallen asleep.
    #[must_use]
    pub fn sleeps(&self) -> u64 {
        self.loops.iter().map(|l| l.sleep).sum()
    }

    /// The load table of the loops.
    #[must_use]
    pub fn table(&self) -> LoadTable<'_> {
        LoadTable::over(&self.words, self.base)
    }

    fn schedule(&mut self, at: Duration, event: ModelEvent) {
        self.serial += 1;
        self.events.push(Reverse((at, self.serial, event)));
    }

    fn handle(&mut self, event: ModelEvent) {
        if let ModelEvent::OnCpu(cpu, token) = event {
            if let Some(event) = self.on_cpu(cpu, token) {
                self.handle(event);
            }
            return;
        }
        if let Some((i, life)) = event.of_loop() {
            if self.loops[i].stopped {
                self.loops[i].held.push_back(event);
                return self.put_off(ModelTask::Loop(i));
            }
            if life.is_some_and(|life| self.loops[i].life != life) {
                return;
            }
        }
        match event {
            ModelEvent::Connect(_) | ModelEvent::Request(_) => self.chore(event),
            ModelEvent::Wake(i, sleep) => {
                if self.loops[i].asleep && self.loops[i].sleep == sleep {
                    self.wake(i);
                }
            }
            ModelEvent::Turn(i, _) => self.turn(i),
            ModelEvent::Handle(i, _) => self.step(i),
            ModelEvent::Rouse(i, life, client) => {
                let answer = ModelEvent::Answer(i, life, client);
                let closing = self.closing(client);
                self.compute(ModelTask::Loop(i), closing, answer, false);
            }
            ModelEvent::Answer(i, _, client) => self.answer(i, client),
            ModelEvent::Chore => self.do_chore(),
            ModelEvent::OnCpu(..) => {}
            ModelEvent::Stop(i) => {
                self.loops[i].stopped = true;
                self.pass_recheck(i);
            }
            ModelEvent::Continue(i) => self.go_on(i),
            ModelEvent::Kill(i) => self.die(i),
            ModelEvent::Start(i) => self.start(i),
        }
    }

    fn random(&mut self) -> u64 {
        self.draws += 1;
        mixed(self.seed ^ self.draws)
    }

    fn observe(&mut self) {
        let mut living = self.loops.iter().filter(|l| l.driver.is_some() && !l.stopped);
        let unarmed = self.kind.shape() != SocketLayout::AcceptorOne
            && living.clone().count() > 0
            && living.all(|l| l.asleep && !l.armed);
        if !unarmed {
            self.witness.unarmed_since = None;
        } else if self.witness.unarmed_since.is_none() {
            self.witness.unarmed_since = Some(self.now);
        }
    }

    fn observe_until(&mut self, at: Duration) {
        let w = &mut self.witness;
        let oldest = match &self.sockets[..] {
            [socket] => socket.oldest(),
            _ => None,
        };
        let (before, loops) = (w.beside.take(), self.loops.len());
        w.beside = oldest.map(|oldest| match before {
            Some((same, slept)) if same == oldest => (same, slept),
            _ => (oldest, vec![Duration::ZERO; loops]),
        });
        if let Some((_, slept)) = &mut w.beside {
            let sleepers = self.loops.iter().zip(slept).filter(|(l, _)| l.is_sleeping());
            for (_, slept) in sleepers {
                *slept += at - self.now;
                w.waited_beside_sleeper = w.waited_beside_sleeper.max(*slept);
            }
        }
        if let Some(since) = w.unarmed_since {
            w.nobody_armed = w.nobody_armed.max(at - since);
        }
    }
}

impl ModelEvent {
    /// The loop in which the event happens, and in which of its lives; none: in any life.
    fn of_loop(self) -> Option<(usize, Option<u64>)> {
        match self {
            ModelEvent::Wake(i, _) => Some((i, None)),
            ModelEvent::Turn(i, life)
            | ModelEvent::Handle(i, life)
            | ModelEvent::Rouse(i, life, _)
            | ModelEvent::Answer(i, life, _) => Some((i, Some(life))),
            _ => None,
        }
    }
}

/// A pseudo-random number from `seed` (SplitMix64).
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl ModelLoop {
    fn new() -> ModelLoop {
        ModelLoop {
            driver: None,
            asleep: false,
            stopped: false,
            held: VecDeque::new(),
            sleep: 0,
            life: 0,
            armed: false,
            connections: BTreeSet::new(),
            inflight: 0,
            ready: VecDeque::new(),
            batch: 0,
            handed: VecDeque::new(),
            accepted_since_added: false,
            room: usize::MAX,
        }
    }

    fn has_room(&self) -> bool {
        self.connections.len() < self.room
    }

    /// Whether the loop sleeps in the kernel's view. A stopped process does not.
    fn is_sleeping(&self) -> bool {
        self.asleep && !self.stopped && self.driver.is_some()
    }

    fn load(&self) -> Load {
        Load { inflight: self.inflight, open: self.connections.len() as u64 }
    }
}
