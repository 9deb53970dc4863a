//! A small world for policies: loops with blocking handlers, clients, and the kernel's wait queue,
//! in virtual time.
//!
//! It runs the same [`Seat`] as the server. What it models is what decides who gets a connection:
//! the order of registration, exclusive and plain wake-ups, that only sleepers count, the
//! level-triggered report, the hash of SO_REUSEPORT, and the first-come-first-served order of
//! blocked accepts. Loops can be stopped, killed, and started again in the middle of anything.

mod clients;
mod notes;
mod queue;
mod witness;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

pub use self::clients::Client;
use self::clients::Clients;
pub use self::notes::{Note, What};
pub use self::queue::{Socket, Visit};
pub use self::witness::Witness;
use crate::{After, Arm, Kind, Load, LoadTable, Probe, Seat, Setup, Shape};

/// From the wake-up to the first line of a turn.
const WAKE: Duration = Duration::from_micros(20);
/// What a turn costs beside its handlers.
const TURN: Duration = Duration::from_micros(5);

/// The world.
pub struct World {
    kind: Kind,
    base: Instant,
    now: Duration,
    words: Vec<AtomicU64>,
    loops: Vec<Loop>,
    sockets: Vec<Socket>,
    clients: Clients,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    serial: u64,
    witness: Witness,
    /// Handlers take these times, drawn at random; none: what their clients say.
    services: Vec<Duration>,
    /// What happened to the listening sockets, if that is to be told.
    notes: Option<Vec<Note>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Connect(usize),
    Request(usize),
    /// The loop's sleep number so-and-so ends.
    Wake(usize, u64),
    /// A turn of the loop's life number so-and-so.
    Turn(usize, u64),
    Answer(usize, u64, usize),
    Stop(usize),
    Continue(usize),
    Kill(usize),
    Start(usize),
}

struct Loop {
    seat: Option<Seat>,
    asleep: bool,
    asleep_since: Duration,
    stopped: bool,
    /// An event came while the loop was stopped.
    held: VecDeque<Event>,
    sleep: u64,
    life: u64,
    armed: bool,
    connections: BTreeSet<usize>,
    inflight: u64,
    ready: VecDeque<usize>,
    batch: usize,
    handed: VecDeque<usize>,
    accepted_since_added: bool,
}

impl World {
    /// `n` idle loops under a policy. `base` is any instant.
    #[must_use]
    pub fn new(kind: Kind, n: usize, base: Instant) -> World {
        let sockets = if kind.shape() == Shape::SocketEach { n } else { 1 };
        let mut world = World {
            kind,
            base,
            now: Duration::ZERO,
            words: (0..LoadTable::words(n)).map(|_| AtomicU64::new(0)).collect(),
            loops: (0..n).map(|_| Loop::new()).collect(),
            sockets: (0..sockets).map(|_| Socket::default()).collect(),
            clients: Clients::default(),
            events: BinaryHeap::new(),
            serial: 0,
            witness: Witness { answered: vec![0; n], accepted: vec![0; n], ..Witness::default() },
            services: Vec::new(),
            notes: None,
        };
        for i in 0..n {
            world.start(i);
        }
        world
    }

    /// A client that connects at `at`.
    pub fn client(&mut self, at: Duration, client: Client) {
        let id = self.clients.add(client);
        self.schedule(at, Event::Connect(id));
    }

    /// From now on each request blocks its loop for one of these times, drawn at random, whatever
    /// its client says.
    pub fn draw_services(&mut self, times: Vec<Duration>) {
        self.services = times;
    }

    /// From now on what happens to the listening sockets is noted.
    pub fn take_notes(&mut self) {
        self.notes = Some(Vec::new());
    }

    /// What was noted.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        self.notes.as_deref().unwrap_or_default()
    }

    /// The waiters of socket `n`, in the order of the kernel's walk: who, and whether exclusive.
    #[must_use]
    pub fn waiters(&self, n: usize) -> Vec<(usize, bool)> {
        self.sockets.get(n).map(Socket::order).unwrap_or_default()
    }

    /// SIGSTOP for loop `i`.
    pub fn stop(&mut self, at: Duration, i: usize) {
        self.schedule(at, Event::Stop(i));
    }

    /// SIGCONT for loop `i`.
    pub fn cont(&mut self, at: Duration, i: usize) {
        self.schedule(at, Event::Continue(i));
    }

    /// SIGKILL for loop `i`; a successor starts after `respawn`.
    pub fn kill(&mut self, at: Duration, i: usize, respawn: Duration) {
        self.schedule(at, Event::Kill(i));
        self.schedule(at + respawn, Event::Start(i));
    }

    /// Lets time pass until `end`; returns what was seen so far.
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

    /// What was seen so far.
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

    /// What the loops tell each other.
    #[must_use]
    pub fn table(&self) -> LoadTable<'_> {
        LoadTable::over(&self.words, self.base)
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((at, self.serial, event)));
    }

    fn handle(&mut self, event: Event) {
        if let Event::Wake(i, _) | Event::Turn(i, _) | Event::Answer(i, ..) = event
            && self.loops[i].stopped
        {
            self.loops[i].held.push_back(event);
            return;
        }
        if let Event::Turn(i, life) | Event::Answer(i, life, _) = event
            && self.loops[i].life != life
        {
            return;
        }
        match event {
            Event::Connect(client) => self.connect(client),
            Event::Request(client) => self.request(client),
            Event::Wake(i, sleep) => {
                if self.loops[i].asleep && self.loops[i].sleep == sleep {
                    self.wake(i);
                }
            }
            Event::Turn(i, _) => self.turn(i),
            Event::Answer(i, _, client) => self.answer(i, client),
            Event::Stop(i) => self.loops[i].stopped = true,
            Event::Continue(i) => self.go_on(i),
            Event::Kill(i) => self.die(i),
            Event::Start(i) => self.start(i),
        }
    }

    // Clients and kernel.

    fn connect(&mut self, client: usize) {
        let gap = self.clients.connected(client, self.now);
        self.schedule(self.now + gap, Event::Request(client));
        match self.kind.shape() {
            Shape::AcceptorOne => return self.hand_over(client),
            Shape::AcceptorEach => return self.end_blocked_accept(client),
            _ => {}
        }
        let socket = self.hash(client);
        let loops = &self.loops;
        let walk = self.sockets[socket].arrive(client, self.now, |i| loops[i].is_sleeping());
        for visit in walk.iter().filter(|visit| visit.asleep) {
            self.wake(visit.who);
        }
        self.note_arrival(client, socket, walk);
    }

    /// The acceptor's work; a connection that nobody can take stays in the queue.
    fn hand_over(&mut self, client: usize) {
        let (now, table) = (self.base + self.now, LoadTable::over(&self.words, self.base));
        let setup = self.setup(0);
        match self.kind.policy(setup).place(now, &table) {
            Some(i) => {
                self.loops[i].handed.push_back(client);
                self.wake(i);
            }
            None => {
                self.sockets[0].arrive(client, self.now, |_| false);
            }
        }
    }

    /// The thread that blocks longest in accept(2) gets the connection and posts it to its loop.
    fn end_blocked_accept(&mut self, client: usize) {
        let loops = &self.loops;
        let walk = self.sockets[0].arrive(client, self.now, |i| !loops[i].stopped);
        let first = walk.iter().find(|visit| visit.asleep).map(|visit| visit.who);
        self.note_arrival(client, 0, walk);
        if let Some(i) = first {
            self.sockets[0].remove(i);
            self.take_over(i);
            self.wake(i);
        }
    }

    fn take_over(&mut self, i: usize) {
        let taken = self.sockets[0].accept();
        self.loops[i].handed.extend(taken);
    }

    fn request(&mut self, client: usize) {
        if let Some(i) = self.clients.sent(client) {
            self.loops[i].ready.push_back(client);
            self.wake(i);
        }
    }

    fn hash(&self, client: usize) -> usize {
        (mixed(client as u64 ^ self.serial << 20) % self.sockets.len() as u64) as usize
    }

    // Loops.

    fn setup(&self, me: usize) -> Setup {
        Setup { me, sockets: 1, connections: 1 << 20, mutex_delay: Duration::from_millis(500) }
    }

    fn start(&mut self, i: usize) {
        if self.loops[i].seat.is_some() {
            return;
        }
        let (now, setup) = (self.base + self.now, self.setup(i));
        let seat = Seat::take(self.kind, setup, now, &LoadTable::over(&self.words, self.base));
        self.loops[i].seat = Some(seat);
        self.before_wait(i);
        if self.kind.shape() == Shape::AcceptorOne {
            while let Some(client) = self.sockets[0].accept() {
                self.hand_over(client);
            }
        }
    }

    fn die(&mut self, i: usize) {
        if self.loops[i].seat.take().is_none() {
            return;
        }
        self.sockets.iter_mut().for_each(|s| s.remove(i));
        self.table().clear(i);
        let next = Loop { life: self.loops[i].life + 1, sleep: self.loops[i].sleep, ..Loop::new() };
        let dead = std::mem::replace(&mut self.loops[i], next);
        let gone = dead.connections.into_iter().chain(dead.handed);
        for client in gone {
            self.witness.lost += 1;
            self.clients.lost(client);
        }
    }

    fn go_on(&mut self, i: usize) {
        let lp = &mut self.loops[i];
        lp.stopped = false;
        lp.asleep_since = self.now;
        let held = std::mem::take(&mut lp.held);
        let was_asleep = lp.asleep;
        for event in held {
            self.schedule(self.now, event);
        }
        if was_asleep {
            self.wake(i);
        }
    }

    fn wake(&mut self, i: usize) {
        let lp = &mut self.loops[i];
        if lp.is_sleeping() {
            lp.asleep = false;
            let turn = Event::Turn(i, lp.life);
            self.schedule(self.now + WAKE, turn);
        }
    }

    fn turn(&mut self, i: usize) {
        let Some(mut seat) = self.loops[i].seat.take() else { return };
        let now = self.base + self.now;
        let probe = seat.after_wait(now, &LoadTable::over(&self.words, self.base));
        self.loops[i].seat = Some(seat);
        self.wake_others(i);
        self.accept(i, probe == Probe::Try);
        self.loops[i].batch = self.loops[i].ready.len();
        self.step(i);
    }

    fn accept(&mut self, i: usize, probe: bool) {
        while let Some(client) = self.loops[i].handed.pop_front() {
            self.admit(i, client);
        }
        let socket = if self.sockets.len() > 1 { i } else { 0 };
        let told = self.sockets[socket].was_told(i);
        if !probe && !self.sockets[socket].reports(i) {
            self.witness.empty += u64::from(told);
            if told {
                self.note(|| What::FoundNone { who: i });
            }
            return;
        }
        if let Some(client) = self.sockets[socket].accept() {
            self.admit(i, client);
        }
    }

    fn admit(&mut self, i: usize, client: usize) {
        let lp = &mut self.loops[i];
        lp.connections.insert(client);
        lp.inflight += 1;
        lp.accepted_since_added = true;
        if self.clients.admitted(client, i) {
            lp.ready.push_back(client);
        }
        self.witness.accepted[i] += 1;
        let left = self.sockets[self.registration(i).0].len();
        self.note(|| What::Accepted { who: i, connection: client, left });
        let load = self.loops[i].load();
        let table = LoadTable::over(&self.words, self.base);
        let Some(seat) = self.loops[i].seat.as_mut() else { return };
        if self.kind.shape() == Shape::AcceptorOne {
            seat.taken(&table, load);
        } else if seat.accepted(self.base + self.now, &table, load, 1) == After::Readd {
            self.readd(i);
        }
        self.wake_others(i);
    }

    fn wake_others(&mut self, i: usize) {
        let now = self.base + self.now;
        loop {
            let table = LoadTable::over(&self.words, self.base);
            let Some(seat) = self.loops[i].seat.as_mut() else { return };
            let Some(other) = seat.next_to_wake(now, &table) else { return };
            self.wake(other);
        }
    }

    /// The next handler of this turn, or its end.
    fn step(&mut self, i: usize) {
        let lp = &mut self.loops[i];
        let next = lp.batch.checked_sub(1).and_then(|rest| {
            lp.batch = rest;
            lp.ready.pop_front()
        });
        match next {
            Some(client) => {
                lp.inflight += u64::from(self.clients.is_another(client));
                let answer = Event::Answer(i, lp.life, client);
                let work = self.work(client);
                self.schedule(self.now + work, answer);
            }
            None => self.before_wait(i),
        }
    }

    fn answer(&mut self, i: usize, client: usize) {
        self.witness.answered[i] += 1;
        let lp = &mut self.loops[i];
        lp.inflight = lp.inflight.saturating_sub(1);
        let (latency, next) = self.clients.answered(client, self.now);
        self.witness.latencies.push(latency);
        if !self.clients.is_kept(client) {
            lp.connections.remove(&client);
            if let Some(seat) = &mut lp.seat {
                seat.closed(self.base + self.now);
            }
        }
        match next {
            Some(at) if self.clients.is_kept(client) => self.schedule(at, Event::Request(client)),
            Some(at) => self.schedule(at, Event::Connect(client)),
            None => {}
        }
        self.step(i);
    }

    fn before_wait(&mut self, i: usize) {
        let table = LoadTable::over(&self.words, self.base);
        let lp = &mut self.loops[i];
        let load = lp.load();
        let Some(seat) = lp.seat.as_mut() else { return };
        let wait = seat.before_wait(self.base + self.now, &table, load, true);
        self.arm(i, wait.arm);
        let socket = if self.sockets.len() > 1 { i } else { 0 };
        let mut reports = self.sockets[socket].reports(i);
        if self.kind.shape() == Shape::AcceptorEach {
            if reports {
                self.sockets[0].remove(i);
                self.take_over(i);
            }
            reports = false;
        }
        let lp = &mut self.loops[i];
        if reports || !lp.ready.is_empty() || !lp.handed.is_empty() {
            let turn = Event::Turn(i, lp.life);
            self.schedule(self.now + TURN, turn);
            return;
        }
        lp.asleep = true;
        lp.asleep_since = self.now;
        lp.sleep += 1;
        let sleep = lp.sleep;
        if let Some(at_most) = wait.at_most {
            self.schedule(self.now + at_most, Event::Wake(i, sleep));
        }
    }

    /// How long a request blocks its loop.
    fn work(&self, client: usize) -> Duration {
        let n = self.services.len().max(1);
        let drawn = self.services.get(mixed(self.clients.seed(client)) as usize % n);
        drawn.copied().unwrap_or_else(|| self.clients.work(client))
    }

    fn note(&mut self, what: impl FnOnce() -> What) {
        let at = self.now;
        if let Some(notes) = &mut self.notes {
            notes.push(Note { at, what: what() });
        }
    }

    fn note_arrival(&mut self, connection: usize, socket: usize, walk: Vec<Visit>) {
        if self.notes.is_some() {
            let order = self.waiters(socket);
            self.note(|| What::Arrived { connection, order, walk });
        }
    }

    fn note_order(&mut self, who: usize, armed: bool) {
        if self.notes.is_some() {
            let order = self.waiters(self.registration(who).0);
            self.note(|| What::Registered { who, armed, order });
        }
    }

    fn arm(&mut self, i: usize, arm: Arm) {
        let (socket, exclusive) = self.registration(i);
        match (arm, self.loops[i].armed && self.sockets[socket].is_added(i)) {
            (Arm::Disarmed, true) => {
                self.sockets[socket].remove(i);
                self.note_order(i, false);
            }
            (Arm::Disarmed, false) => self.sockets[socket].remove(i),
            (Arm::ArmedLast, true) if self.loops[i].accepted_since_added => self.readd(i),
            (_, true) => {}
            (_, false) => {
                self.sockets[socket].add(i, exclusive);
                self.loops[i].accepted_since_added = false;
                self.note_order(i, true);
            }
        }
        self.loops[i].armed = arm != Arm::Disarmed;
    }

    fn readd(&mut self, i: usize) {
        let (socket, exclusive) = self.registration(i);
        self.sockets[socket].remove(i);
        self.sockets[socket].add(i, exclusive);
        self.loops[i].accepted_since_added = false;
        self.note_order(i, true);
    }

    fn registration(&self, i: usize) -> (usize, bool) {
        match self.kind.shape() {
            Shape::Shared { exclusive } => (0, exclusive),
            Shape::SharedEpoll => (0, false),
            Shape::SocketEach => (i, false),
            Shape::AcceptorEach | Shape::AcceptorOne => (0, true),
        }
    }

    // The witness.

    fn observe(&mut self) {
        let mut living = self.loops.iter().filter(|l| l.seat.is_some() && !l.stopped);
        let unarmed = self.kind.shape() != Shape::AcceptorOne
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
        if let [socket] = &self.sockets[..]
            && let Some(arrived) = socket.oldest()
        {
            let sleepers = self.loops.iter().filter(|l| l.is_sleeping());
            for both in sleepers.map(|l| at - arrived.max(l.asleep_since)) {
                w.waited_beside_sleeper = w.waited_beside_sleeper.max(both);
            }
        }
        if let Some(since) = w.unarmed_since {
            w.nobody_armed = w.nobody_armed.max(at - since);
        }
    }
}

/// A number that looks random.
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Loop {
    fn new() -> Loop {
        Loop {
            seat: None,
            asleep: false,
            asleep_since: Duration::ZERO,
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
        }
    }

    /// Asleep in the kernel's eyes: a stopped process waits for nothing.
    fn is_sleeping(&self) -> bool {
        self.asleep && !self.stopped && self.seat.is_some()
    }

    fn load(&self) -> Load {
        Load { inflight: self.inflight, open: self.connections.len() as u64 }
    }
}
