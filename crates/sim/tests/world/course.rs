//! The course of a world: what happens next, until all peers are done.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use weir_engine::Either;
use weir_server::Generations;
use weir_testkit::Dice;

use crate::book::Book;
use crate::caller::Caller;
use crate::calls::{DATAGRAMS, Flight};
use crate::client::{Ask, Client, Kind};
use crate::crash;
use crate::fate::{ACCEPT_QUEUES, Fate, OF_SCRIPTS};
use crate::multiplexed::Multiplexed;
use crate::origin::Origin;
use crate::peer::Peer;
use crate::secured::Secrets;
use crate::server::Served;
use crate::wire::{Came, Way, Wire};
use crate::world::{BEGINNING, Queue, World};

/// The limit of a client's time, in nanoseconds.
pub const MOST: u64 = 2_000_000_000_000;
/// After this time all has ended, keep-alive connections and inactive files of caches included.
const QUIET: u64 = 400_000_000_000;

/// The time in which all loops do what they can do at once.
pub const SHORT: u64 = 100_000_000;

/// The number of bytes of a head, or of a handshake, that must come in time.
const HEADS: u64 = 8_000;
/// A peer that finds no room tries again after this time.
const STUCK: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Comes,
    Send(u64),
    Take(u64),
    Answer(u64),
    /// Give the answer to one request of a connection.
    AnswerOne(u64, u32),
    /// A client that has all its answers leaves.
    Leave(u64),
    /// A loop's process is stopped.
    Stop,
    /// Another configuration takes the place of this one.
    Reload,
    /// The workers of the newest configuration take another site.
    Change,
    /// The workers of older configurations are told to finish.
    Retire,
    /// A worker is killed. `Bury`: its master hears of it.
    Kill,
    Bury(usize),
    /// A client of QUIC has something to do; a datagram arrives.
    Calls(u64),
    Lands(u64),
    Nothing,
}

pub struct Course {
    pub world: Arc<World>,
    pub fate: Fate,
    pub generations: Option<Generations>,
    pub home: PathBuf,
    pub dice: Dice,
    pub secrets: Secrets,
    queue: Queue<What>,
    numbers: u64,
    pub peers: BTreeMap<u64, Peer>,
    /// Clients of QUIC, and datagrams on their way.
    pub callers: BTreeMap<u64, Box<Caller>>,
    pub flights: BTreeMap<u64, Flight>,
    /// How many sockets clients of QUIC have had.
    pub sockets: u16,
    accept_queues: Vec<OwnedFd>,
    pub epoll: OwnedFd,
    pub book: Book,
    to_come: usize,
    pub asks: u64,
    /// All peers have gone. Only those that look at what is left are still to come.
    pub last: bool,
    /// The longest time that a client waited at a stalled loop while another loop slept.
    pub most_beside: u64,
    /// The number of killed workers.
    pub killed: usize,
    /// The number of sites that running workers have taken.
    pub changed: usize,
}

const ACCEPT_QUEUE: u64 = 1 << 40;

impl Course {
    pub fn new(world: Arc<World>, fate: Fate, home: &Path, generations: Generations) -> Course {
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("an epoll instance");
        let accept_queues: Vec<OwnedFd> =
            (0..ACCEPT_QUEUES).map(|i| accept_queue(&home.join(format!("u{i}")))).collect();
        for (i, accept_queue) in accept_queues.iter().enumerate() {
            let data = EventData::new_u64(ACCEPT_QUEUE + i as u64);
            epoll::add(&epoll, accept_queue, data, EventFlags::IN)
                .expect("an accept queue to watch");
        }
        let part = if fate.again { "again" } else { "course" };
        let (mut dice, to_come) = (Dice::salted(fate.seed, part), fate.clients);
        let secrets = Secrets::new(&mut dice);
        // The store of a former course must not be taken for this one's.
        let mut book = Book::default();
        book.first = if fate.again { 1_000 } else { 0 };
        Course {
            world,
            fate,
            generations: Some(generations),
            home: home.to_owned(),
            dice,
            secrets,
            queue: Queue::new(),
            numbers: 0,
            peers: BTreeMap::new(),
            callers: BTreeMap::new(),
            flights: BTreeMap::new(),
            sockets: 0,
            accept_queues,
            epoll,
            book,
            to_come,
            asks: 0,
            last: false,
            most_beside: 0,
            killed: 0,
            changed: 0,
        }
    }

    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub fn after(&mut self, delay: u64, what: What) {
        let number = self.number();
        self.queue.push(Reverse((self.world.now() + delay, number, what)));
    }

    /// From the first client to the last one's end, and then until all is quiet.
    pub fn run(&mut self) {
        self.world.gather();
        self.rest_for(SHORT);
        let before = (self.descriptors(), self.world.held(self.fate.loops));
        // A worker's process closes what its configuration holds open, such as the file of its log.
        // Here all workers are one process, so it stays open.
        let takes_along = !self.fate.reloads.is_empty() || !self.fate.kills.is_empty();
        // The first loop of a worker has a task that turns the keys of tickets. A reload may bring
        // such keys, and more workers.
        let turns_keys = usize::from(!self.fate.reloads.is_empty());
        self.after(0, What::Comes);
        if self.fate.stops {
            self.after(1_000_000, What::Stop);
        }
        self.plan_reload();
        self.plan_change();
        self.plan_kill();
        while (self.to_come > 0 || self.clients() > 0) && self.world.now() < MOST {
            if self.fate.crash.is_some_and(|at| self.world.now() > BEGINNING + at) {
                self.fate.crash = None;
                self.book.settle();
                // Faults that were found already are reported before the crash.
                if self.book.findings.is_empty() {
                    return crash::happens(&self.home, &self.world, &self.fate);
                }
            }
            if !self.step() {
                self.book.find("nothing will ever happen again".to_owned());
                break;
            }
        }
        for peer in self.peers.values() {
            let what = match peer {
                Peer::Client(client) => client.waits_for(),
                Peer::Multiplexed(client) => client.waits_for(),
                Peer::Server(_) | Peer::Origin(_) => continue,
            };
            self.book.find(format!("waits for ever for {what}"));
        }
        for caller in self.callers.values().filter(|caller| !caller.done) {
            self.book.find(format!("waits for ever for {}", caller.waits_for()));
        }
        self.judge_law();
        self.world.calm();
        self.rest_for(QUIET);
        // The cache goes on fetching after its clients have left, also from a server that sends
        // byte by byte.
        while !self.world.are_gone_but(self.fate.loops)
            && self.peers.values().any(|peer| matches!(peer, Peer::Server(_) | Peer::Origin(_)))
            && self.world.now() < MOST
        {
            self.rest_for(QUIET);
        }
        if !self.world.are_gone_but(self.fate.loops) {
            self.book.find("an older configuration's worker does not end".to_owned());
        }
        self.look_whether_all_is_given_back();
        self.look_for_old_sites();
        self.rest_for(QUIET);
        for peer in self.peers.values() {
            if let Peer::Server(_) | Peer::Origin(_) = peer {
                self.book.find("a server's connection is still open".to_owned());
            }
        }
        self.peers.clear();
        self.callers.clear();
        self.rest_for(SHORT);
        self.look_for_calls();
        self.look_what_is_left();
        self.rest_for(SHORT);
        let after = (self.descriptors(), self.world.held(self.fate.loops));
        let more = |((task, socket), (tasks, sockets)): (&(usize, usize), &(usize, usize))| {
            *tasks > task + turns_keys || sockets > socket
        };
        let changed = self.killed == 0 && before.1.iter().zip(&after.1).any(more);
        if after.0 != before.0 && !takes_along || changed {
            let what = "descriptors, and tasks and sockets of each loop";
            self.book.find(format!("{before:?} {what} before, {after:?} after"));
        }
    }

    /// Lets time pass, with all that happens by itself.
    pub fn rest_for(&mut self, time: u64) {
        let end = self.world.now() + time;
        self.after(time, What::Nothing);
        while self.world.now() < end && self.step() {}
    }

    fn clients(&self) -> usize {
        let others = |p: &&Peer| !matches!(p, Peer::Server(_) | Peer::Origin(_));
        self.peers.values().filter(others).count() + self.callers.len()
    }

    /// Lets one thing happen. False if nothing is left to happen.
    pub fn step(&mut self) -> bool {
        let mut any = self.world.work();
        let now = self.world.now();
        while let Some(Reverse((at, _, what))) = self.queue.peek().copied()
            && at <= now
        {
            self.queue.pop();
            self.happen(what);
            self.world.stir();
            any = true;
        }
        if self.world.turn_one() {
            self.look_for_dead();
            self.look();
            return true;
        }
        if any {
            return true;
        }
        let own = self.queue.peek().map(|Reverse((at, ..))| *at);
        match own.into_iter().chain(self.world.next()).min() {
            Some(at) => {
                self.judge_relief(at);
                self.world.advance(at);
            }
            None => return false,
        }
        true
    }

    fn happen(&mut self, what: What) {
        self.book.now = self.world.now();
        match what {
            What::Comes => self.come(),
            What::Send(id) => self.send(id),
            What::Take(id) => self.take(id),
            What::Answer(id) => {
                if let Some(Peer::Server(served)) = self.peers.get_mut(&id) {
                    self.world.note("answer", id, 0);
                    served.answer(&self.fate, &mut self.book);
                    self.go_on(id);
                }
            }
            What::AnswerOne(id, stream) => {
                if let Some(Peer::Origin(origin)) = self.peers.get_mut(&id) {
                    self.world.note("answer", id, u64::from(stream));
                    origin.answer(stream, &self.fate, &mut self.book);
                    self.go_on(id);
                }
            }
            What::Leave(id) => {
                self.world.note("leaves", id, 0);
                self.peers.remove(&id);
                self.callers.remove(&id);
                self.world.peers(self.peers.len() as u64 + 4 * self.callers.len() as u64);
            }
            What::Calls(id) => self.goes_on(id),
            What::Lands(number) => self.land(number),
            What::Stop => {
                let (i, time) =
                    (self.dice.below(self.fate.loops), 1 + self.dice.below(300_000_000));
                self.world.stop(i, time as u64);
                if self.to_come > 0 {
                    let pause = self.dice.below(400_000_000) as u64;
                    self.after(pause, What::Stop);
                }
            }
            What::Reload => self.reload(),
            What::Change => self.change(),
            What::Retire => self.generations.iter_mut().for_each(Generations::retire),
            What::Kill => self.kill(),
            What::Bury(first) => self.bury(first),
            What::Nothing => {}
        }
    }

    /// A client connects.
    fn come(&mut self) {
        let by = match self.fate.http3.filter(|_| self.dice.one_in(2)) {
            Some(server) => Either::Right(server),
            None => match self.connect() {
                Some(fd) => Either::Left(fd),
                None => return self.after(1_000_000, What::Comes),
            },
        };
        let came = self.fate.clients - self.to_come;
        self.to_come -= 1;
        let six = self.comes_alone(came);
        let count = if six { 1 } else { 1 + self.dice.below(6) };
        let asks = (0..count).map(|_| {
            self.asks += 1;
            Ask::draw(&mut self.dice, &self.fate, self.asks, &mut self.book)
        });
        let asks: Vec<Ask> = asks.collect();
        let fd = match by {
            Either::Left(fd) => fd,
            Either::Right(server) => {
                let plain = |ask: Ask| Ask { zipped: false, ..ask };
                let id = self.call(server, asks.into_iter().map(plain).collect());
                self.world.note("comes", id, count as u64);
                return self.plan_next(false, false);
            }
        };
        let weights = asks.iter().map(|ask| ask.weight(&self.fate, &self.book));
        // About caches, all answers may be long, and come at once over HTTP/2.
        let caching = self.fate.extras.caching;
        let both = |b: u64, d: u64| if caching { b + d } else { b.max(d) };
        let (to, fro) = weights.fold((0, 0), |(a, b), (c, d)| (a.max(c), both(b, d)));
        let quick = self.fate.accepts.is_some();
        let way = |dice: &mut Dice, n| if quick { Way::quick(dice) } else { Way::draw(dice, n) };
        let there = way(&mut self.dice, to + HEADS);
        let back = way(&mut self.dice, fro + HEADS);
        let mut wire = Wire::new(fd, there, back);
        let multiplexed = !quick && self.dice.one_in(4);
        wire.tls = self.fate.tls.then(|| self.secrets.connect(&mut self.dice, multiplexed));
        let (dice, book, breaks) = (&mut self.dice, &mut self.book, self.fate.broken_clients);
        let peer = if multiplexed {
            let whole = |ask: &Ask| !matches!(ask.kind, Kind::Upload(_)) && ask.range.is_none();
            let asks = asks.into_iter().filter(whole).collect();
            // The client answers each frame that it gets.
            wire.there.piece = wire.there.piece.max(100);
            wire.there.delay = wire.there.delay.min(1_000_000);
            Peer::Multiplexed(Box::new(Multiplexed::new(wire, asks, fro, dice, breaks, book)))
        } else {
            let mut client = Client::new(wire, asks, dice, &self.fate, book);
            client.came = self.world.now();
            Peer::Client(Box::new(client))
        };
        let id = self.enter(peer);
        self.world.note("comes", id, count as u64);
        self.plan_next(quick, six);
    }

    /// Plans the next client.
    fn plan_next(&mut self, quick: bool, six: bool) {
        if self.to_come > 0 {
            let pauses = [0, 100_000, 10_000_000, if quick { 3_000_000 } else { 1_000_000_000 }];
            let pause = self.dice.pick(&pauses);
            let pause = self.dice.below(pause + 1) as u64;
            self.after(if six { 300_000_000 } else { pause }, What::Comes);
        }
    }

    /// The first six clients come one after another to three idle loops, with a short request each.
    fn comes_alone(&mut self, came: usize) -> bool {
        let Some(law) = self.fate.accepts else { return false };
        let alone = self.fate.loops == 3
            && self.fate.cpus >= 3
            && !self.fate.stops
            && !self.fate.faults.excuse();
        if alone && came == 6 {
            let (_, accepted) = self.world.seen();
            law.judge_six(&accepted, &mut self.book);
        }
        alone && came < 6
    }

    fn enter(&mut self, mut peer: Peer) -> u64 {
        let id = self.number();
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let fd = &peer.wire().fd;
        epoll::add(&self.epoll, fd, EventData::new_u64(id), flags).expect("a socket to watch");
        self.peers.insert(id, peer);
        self.world.peers(self.peers.len() as u64 + 4 * self.callers.len() as u64);
        self.go_on(id);
        id
    }

    /// Plans the sending of what a peer has to send.
    fn go_on(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.is_done() || peer.wire().is_over() {
            if let Peer::Client(client) = peer
                && client.lingers()
            {
                let time = self.dice.pick(&[0, 0, 5_000_000, 100_000_000]);
                let time = self.dice.below(time + 1) as u64;
                return self.after(time, What::Leave(id));
            }
            self.world.note("gone", id, 0);
            self.peers.remove(&id);
            self.world.peers(self.peers.len() as u64 + 4 * self.callers.len() as u64);
            return;
        }
        let wire = peer.wire();
        if wire.has_more() && !wire.sending {
            wire.sending = true;
            let delay = wire.there.time(&mut self.dice);
            let delay = if wire.stuck { delay.max(STUCK) } else { delay };
            self.after(delay, What::Send(id));
        }
    }

    fn send(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let wire = peer.wire();
        wire.sending = false;
        wire.send(&mut self.dice);
        let all = !wire.has_more();
        if let Peer::Client(client) = peer
            && all
        {
            client.asked_at = Some(self.world.now());
        }
        match peer {
            Peer::Server(served) => served.arrived(self.world.now()),
            Peer::Origin(origin) => origin.pump(),
            _ => {}
        }
        if let Peer::Server(served) = peer
            && served.floods
            && !served.wire.has_more()
            && let Ok(fd) = served.wire.fd.try_clone()
        {
            served.floods = false;
            self.world.flood(fd);
        }
        self.world.note("arrives", id, 0);
        self.go_on(id);
    }

    fn take(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let mut bytes = Vec::new();
        let deaf = matches!(peer, Peer::Origin(origin) if origin.is_deaf());
        let wire = peer.wire();
        if deaf {
            return self.after(STUCK, What::Take(id));
        }
        wire.taking = false;
        let came = wire.take(&mut self.dice, &mut bytes);
        let n = if let Came::Bytes(n) = came { n as u64 } else { 0 };
        let came = match came {
            Came::Torn(why) => {
                self.book.find(format!("connection {id}: {why}"));
                Came::Reset
            }
            came => came,
        };
        self.world.note("gets", id, n);
        if let Peer::Server(served) = &peer
            && served.wire.tls.as_ref().is_some_and(|tls| tls.resumed())
        {
            self.book.resumed.insert(id);
        }
        match (peer, came) {
            (_, Came::Nothing) => return,
            (Peer::Client(client), Came::Bytes(_)) => {
                client.hear(&bytes, &mut self.dice, &mut self.book);
            }
            (Peer::Multiplexed(client), Came::Bytes(_)) => client.hear(&bytes, &mut self.book),
            (Peer::Multiplexed(client), Came::End) => client.end("closed", &mut self.book),
            (Peer::Multiplexed(client), Came::Reset) => client.end("lost", &mut self.book),
            (Peer::Client(client), Came::End) => client.end("closed", &mut self.book),
            (Peer::Client(client), Came::Reset) => client.end("reset", &mut self.book),
            (Peer::Server(served), Came::Bytes(_)) => {
                let whose = served.hear(&bytes, &self.fate, &mut self.book);
                self.world.note("asked", id, whose);
                if let Some(delay) = served.thinks.take() {
                    self.after(delay, What::Answer(id));
                }
            }
            (Peer::Server(served), Came::End | Came::Reset) => served.done = true,
            (Peer::Origin(origin), Came::Bytes(_)) => {
                origin.hear(&bytes, &self.fate, &mut self.book);
                for (stream, delay) in std::mem::take(&mut origin.thinks) {
                    self.after(delay, What::AnswerOne(id, stream));
                }
            }
            (Peer::Origin(origin), Came::End | Came::Reset) => origin.done = true,
            (_, Came::Torn(_)) => {}
        }
        self.judge_limits(id);
        self.will_take(id);
        self.go_on(id);
    }

    fn will_take(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let wire = peer.wire();
        if !wire.taking {
            wire.taking = true;
            let delay = wire.back.time(&mut self.dice);
            self.after(delay, What::Take(id));
        }
    }

    /// Looks at what the server has done.
    fn look(&mut self) {
        // A descriptor that came together with a connection is seen only after the connection is
        // accepted.
        while self.look_once() {}
    }

    /// Looks once. Returns whether the server has connected to a peer.
    fn look_once(&mut self) -> bool {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&now));
        let mut any = false;
        for Event { data, .. } in events {
            if data.u64() >= DATAGRAMS {
                self.take_datagrams(data.u64());
                continue;
            }
            match data.u64().checked_sub(ACCEPT_QUEUE) {
                Some(accept_queue) => {
                    self.answer_accept_queue(accept_queue as usize);
                    any = true;
                }
                None => {
                    self.judge_order(data.u64());
                    self.will_take(data.u64());
                }
            }
        }
        any
    }

    fn answer_accept_queue(&mut self, accept_queue: usize) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        while let Ok(fd) = rustix::net::accept_with(&self.accept_queues[accept_queue], flags) {
            // A peer must read a request faster than weir's timeout for an answer.
            let (most, last) = (self.fate.longest + HEADS, self.last);
            // Many requests share a connection over HTTP/2.
            let most = if accept_queue > OF_SCRIPTS { 10 * most } else { most };
            let way = |d: &mut Dice| if last { Way::quick(d) } else { Way::draw(d, most) };
            let (there, back) = (way(&mut self.dice), way(&mut self.dice));
            let mut wire = Wire::new(fd, there, back);
            if self.fate.tls_behind && accept_queue != OF_SCRIPTS {
                let multiplexed = accept_queue > OF_SCRIPTS;
                wire.tls = Some(self.secrets.accept(&mut self.dice, accept_queue, multiplexed));
            }
            let peer = if accept_queue > OF_SCRIPTS {
                let longest = self.fate.longest;
                Peer::Origin(Box::new(Origin::new(wire, &mut self.dice, longest)))
            } else {
                Peer::Server(Box::new(Served::new(wire, accept_queue)))
            };
            let id = self.enter(peer);
            self.world.note("connects", id, accept_queue as u64);
        }
    }
}

fn accept_queue(path: &Path) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let fd = fd.expect("a socket");
    let address = SocketAddrUnix::new(path).expect("an address");
    rustix::net::bind(&fd, &address).expect("a name");
    rustix::net::listen(&fd, 500).expect("a listening socket");
    fd
}
