//! The course of a world: what happens next, until everybody is done.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use weir_testkit::Dice;

use crate::book::Book;
use crate::client::{Ask, Client, Kind};
use crate::fate::Fate;
use crate::multiplexed::Multiplexed;
use crate::server::Served;
use crate::wire::{Came, Way, Wire};
use crate::world::{Queue, World};

/// No client takes so long, in nanoseconds.
const MOST: u64 = 2_000_000_000_000;
/// After so long nothing is left of anything: keep-alive and caches' files included.
const QUIET: u64 = 400_000_000_000;

/// A head may be so long, and must come in time.
const HEADS: u64 = 4_000;
/// Who finds no room tries again after this time.
const STUCK: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Comes,
    Send(u64),
    Take(u64),
    Answer(u64),
    Nothing,
}

enum Peer {
    Client(Box<Client>),
    Multiplexed(Box<Multiplexed>),
    Server(Box<Served>),
}

impl Peer {
    fn wire(&mut self) -> &mut Wire {
        match self {
            Peer::Client(client) => &mut client.wire,
            Peer::Multiplexed(client) => &mut client.wire,
            Peer::Server(served) => &mut served.wire,
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Peer::Client(client) => client.done,
            Peer::Multiplexed(client) => client.done,
            Peer::Server(served) => served.done,
        }
    }
}

pub struct Course {
    world: Arc<World>,
    fate: Fate,
    home: PathBuf,
    dice: Dice,
    queue: Queue<What>,
    numbers: u64,
    peers: BTreeMap<u64, Peer>,
    doors: Vec<OwnedFd>,
    epoll: OwnedFd,
    pub book: Book,
    to_come: usize,
    asks: u64,
}

const DOOR: u64 = 1 << 40;

impl Course {
    pub fn new(world: Arc<World>, fate: Fate, home: &Path) -> Course {
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("an epoll instance");
        let doors: Vec<OwnedFd> = (0..2).map(|i| door(&home.join(format!("u{i}")))).collect();
        for (i, door) in doors.iter().enumerate() {
            let data = EventData::new_u64(DOOR + i as u64);
            epoll::add(&epoll, door, data, EventFlags::IN).expect("a door to watch");
        }
        let (dice, to_come) = (Dice::salted(fate.seed, "course"), fate.clients);
        Course {
            world,
            fate,
            home: home.to_owned(),
            dice,
            queue: Queue::new(),
            numbers: 0,
            peers: BTreeMap::new(),
            doors,
            epoll,
            book: Book::default(),
            to_come,
            asks: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn after(&mut self, delay: u64, what: What) {
        let number = self.number();
        self.queue.push(Reverse((self.world.now() + delay, number, what)));
    }

    /// From the first client to the last one's end, and then until all is quiet.
    pub fn run(&mut self) {
        self.world.gather();
        while self.world.turn_one() {}
        let before = descriptors();
        self.after(0, What::Comes);
        while (self.to_come > 0 || self.clients() > 0) && self.world.now() < MOST {
            if !self.step() {
                self.book.find("nothing will ever happen again".to_owned());
                break;
            }
        }
        for peer in self.peers.values() {
            let what = match peer {
                Peer::Client(client) => client.waits_for(),
                Peer::Multiplexed(client) => client.waits_for(),
                Peer::Server(_) => continue,
            };
            self.book.find(format!("waits for ever for {what}"));
        }
        self.world.calm();
        let end = self.world.now() + QUIET;
        self.after(QUIET, What::Nothing);
        while self.world.now() < end && self.step() {}
        for peer in self.peers.values() {
            if let Peer::Server(_) = peer {
                self.book.find("a server's connection is still open".to_owned());
            }
        }
        self.peers.clear();
        while self.world.turn_one() {}
        let after = descriptors();
        if after != before {
            self.book.find(format!("{before} descriptors before, {after} after"));
        }
    }

    /// The server is told to end, and has to.
    pub fn quit(&mut self) {
        let me = rustix::process::getpid();
        let _ = rustix::process::kill_process(me, rustix::process::Signal::QUIT);
        self.world.stir();
        let end = self.world.now() + MOST;
        while !self.world.all_gone() && self.world.now() < end {
            if !self.step() && !self.world.all_gone() {
                self.book.find("the server does not end".to_owned());
                return;
            }
        }
    }

    fn clients(&self) -> usize {
        self.peers.values().filter(|peer| !matches!(peer, Peer::Server(_))).count()
    }

    /// One thing happens; false if nothing ever will.
    fn step(&mut self) -> bool {
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
            self.look();
            return true;
        }
        if any {
            return true;
        }
        let own = self.queue.peek().map(|Reverse((at, ..))| *at);
        match own.into_iter().chain(self.world.next()).min() {
            Some(at) => self.world.advance(at),
            None => return false,
        }
        true
    }

    fn happen(&mut self, what: What) {
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
            What::Nothing => {}
        }
    }

    /// A client connects.
    fn come(&mut self) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let kind = SocketType::STREAM;
        let fd =
            rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).expect("a socket");
        let to = SocketAddrUnix::new(self.home.join("s")).expect("an address");
        match rustix::net::connect(&fd, &to) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return self.after(1_000_000, What::Comes),
            Err(e) => return self.book.find(format!("cannot connect: {e}")),
        }
        self.to_come -= 1;
        let count = 1 + self.dice.below(6);
        let asks = (0..count).map(|_| {
            self.asks += 1;
            Ask::draw(&mut self.dice, &self.fate, self.asks, &mut self.book)
        });
        let asks: Vec<Ask> = asks.collect();
        let weights = asks.iter().map(|ask| ask.weight(&self.fate, &self.book));
        let (to, fro) = weights.fold((0, 0), |(a, b), (c, d)| (a.max(c), b.max(d)));
        let there = Way::draw(&mut self.dice, to + HEADS);
        let back = Way::draw(&mut self.dice, fro);
        let wire = Wire::new(fd, there, back);
        let (dice, book, breaks) = (&mut self.dice, &mut self.book, self.fate.broken_clients);
        let peer = if dice.one_in(4) {
            let whole = |ask: &Ask| !matches!(ask.kind, Kind::Upload(_)) && ask.range.is_none();
            let asks = asks.into_iter().filter(whole).collect();
            Peer::Multiplexed(Box::new(Multiplexed::new(wire, asks, fro, dice, breaks)))
        } else {
            Peer::Client(Box::new(Client::new(wire, asks, dice, &self.fate, book)))
        };
        let id = self.enter(peer);
        self.world.note("comes", id, count as u64);
        if self.to_come > 0 {
            let pause = self.dice.pick(&[0, 100_000, 10_000_000, 1_000_000_000]);
            let pause = self.dice.below(pause + 1) as u64;
            self.after(pause, What::Comes);
        }
    }

    fn enter(&mut self, mut peer: Peer) -> u64 {
        let id = self.number();
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let fd = &peer.wire().fd;
        epoll::add(&self.epoll, fd, EventData::new_u64(id), flags).expect("a socket to watch");
        self.peers.insert(id, peer);
        self.go_on(id);
        id
    }

    /// Sees to it that what is to be sent will be.
    fn go_on(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.is_done() || peer.wire().is_over() {
            self.world.note("gone", id, 0);
            self.peers.remove(&id);
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
        let wire = peer.wire();
        wire.taking = false;
        let came = wire.take(&mut self.dice, &mut bytes);
        let n = if let Came::Bytes(n) = came { n as u64 } else { 0 };
        self.world.note("gets", id, n);
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
                served.hear(&bytes, &self.fate, &mut self.book);
                if let Some(delay) = served.thinks.take() {
                    self.after(delay, What::Answer(id));
                }
            }
            (Peer::Server(served), Came::End | Came::Reset) => served.done = true,
        }
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

    /// What the server has done.
    fn look(&mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&now));
        for Event { data, .. } in events {
            match data.u64().checked_sub(DOOR) {
                Some(door) => self.answer_door(door as usize),
                None => self.will_take(data.u64()),
            }
        }
    }

    fn answer_door(&mut self, door: usize) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        while let Ok(fd) = rustix::net::accept_with(&self.doors[door], flags) {
            let there = Way::draw(&mut self.dice, self.fate.longest);
            let back = Way::draw(&mut self.dice, self.fate.longest);
            let id = self.enter(Peer::Server(Box::new(Served::new(Wire::new(fd, there, back)))));
            self.world.note("connects", id, door as u64);
        }
    }
}

fn door(path: &Path) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let fd = fd.expect("a socket");
    let address = SocketAddrUnix::new(path).expect("an address");
    rustix::net::bind(&fd, &address).expect("a name");
    rustix::net::listen(&fd, 500).expect("a listening socket");
    fd
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
