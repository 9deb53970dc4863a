//! Runs a course: the next event, until all peers are done, and then the final checks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::SocketFlags;
use weir_engine::Either;
use weir_server::Generations;
use weir_testkit::Dice;

use crate::client::Client;
use crate::client_request::{ClientRequest, RequestKind};
use crate::crash;
use crate::http1_server::Http1Server;
use crate::http2_server::Http2Server;
use crate::multiplexed::Multiplexed;
use crate::peer::{Peer, accept_queue};
use crate::plan::{ACCEPT_QUEUES, CoursePlan, SCRIPT_SERVER};
use crate::quic_client::QuicClient;
use crate::quic_network::{DATAGRAMS, DatagramInFlight};
use crate::records::Records;
use crate::tls::TlsSettings;
use crate::wire::{Link, Received, Wire};
use crate::world::{Queue, START_TIME, World};

/// The longest time of a client, in nanoseconds.
pub const MAX_TIME: u64 = 2_000_000_000_000;
/// After this time everything has ended, including keep-alive connections and inactive files of
/// caches.
const QUIET: u64 = 400_000_000_000;

/// Time for all loops to finish what they can do at once.
pub const SHORT: u64 = 100_000_000;

/// Bytes of a head or of a handshake, which must arrive in time.
const HEAD_BYTES: u64 = 8_000;
/// The pause before a peer retries, if its socket buffer is full.
const RETRY_DELAY: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CourseEvent {
    Comes,
    Send(u64),
    Take(u64),
    Answer(u64),
    /// The answer to one request of a connection with several.
    AnswerOne(u64, u32),
    /// A client with all its answers closes.
    Leave(u64),
    /// A loop's process is stopped.
    Stop,
    /// Another configuration replaces this one.
    Reload,
    /// The workers of the newest configuration take another site.
    Change,
    /// The workers of older configurations are told to finish.
    Retire,
    /// A worker is killed, and later its master notices.
    Kill,
    NoticeKill(usize),
    /// A QUIC client has work, and a datagram arrives.
    Calls(u64),
    Lands(u64),
    Nothing,
}

pub struct Course {
    pub world: Arc<World>,
    pub plan: CoursePlan,
    pub generations: Option<Generations>,
    pub home: PathBuf,
    pub dice: Dice,
    pub tls_settings: TlsSettings,
    queue: Queue<CourseEvent>,
    numbers: u64,
    pub peers: BTreeMap<u64, Peer>,
    /// QUIC clients, and datagrams in flight.
    pub quic_clients: BTreeMap<u64, Box<QuicClient>>,
    pub datagrams: BTreeMap<u64, DatagramInFlight>,
    /// The number of sockets that QUIC clients have used.
    pub sockets: u16,
    accept_queues: Vec<OwnedFd>,
    pub epoll: OwnedFd,
    pub records: Records,
    to_come: usize,
    pub request_count: u64,
    /// Whether all peers have gone, so that only the clients of the final checks are left.
    pub last: bool,
    /// The longest time that a client waited for a stalled loop while another loop slept.
    pub most_beside: u64,
    /// The number of killed workers.
    pub killed: usize,
    /// The number of sites that running workers have taken.
    pub changed: usize,
}

const ACCEPT_QUEUE: u64 = 1 << 40;

impl Course {
    pub fn new(
        world: Arc<World>,
        plan: CoursePlan,
        home: &Path,
        generations: Generations,
    ) -> Course {
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("an epoll instance");
        let accept_queues: Vec<OwnedFd> =
            (0..ACCEPT_QUEUES).map(|i| accept_queue(&home.join(format!("u{i}")))).collect();
        for (i, accept_queue) in accept_queues.iter().enumerate() {
            let data = EventData::new_u64(ACCEPT_QUEUE + i as u64);
            epoll::add(&epoll, accept_queue, data, EventFlags::IN)
                .expect("an accept queue to watch");
        }
        let part = if plan.again { "again" } else { "course" };
        let (mut dice, to_come) = (Dice::salted(plan.seed, part), plan.clients);
        let tls_settings = TlsSettings::new(&mut dice);
        // Objects of the course before a crash must differ from this one's.
        let mut records = Records::default();
        records.first = if plan.again { 1_000 } else { 0 };
        Course {
            world,
            plan,
            generations: Some(generations),
            home: home.to_owned(),
            dice,
            tls_settings,
            queue: Queue::new(),
            numbers: 0,
            peers: BTreeMap::new(),
            quic_clients: BTreeMap::new(),
            datagrams: BTreeMap::new(),
            sockets: 0,
            accept_queues,
            epoll,
            records,
            to_come,
            request_count: 0,
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

    pub fn after(&mut self, delay: u64, what: CourseEvent) {
        let number = self.number();
        self.queue.push(Reverse((self.world.now() + delay, number, what)));
    }

    /// Runs from the first client to the end of the last one, and then the final checks.
    pub fn run(&mut self) {
        self.world.wait_for_start();
        self.run_for(SHORT);
        let before = (self.descriptors(), self.world.held(self.plan.loops));
        // A worker's process closes descriptors of its configuration, such as log files, when it
        // ends. Here all workers are one process, so these descriptors stay open.
        let takes_along = !self.plan.reloads.is_empty() || !self.plan.kills.is_empty();
        // The first loop of a worker has a task that rotates ticket keys. A reload may add such
        // keys and workers.
        let turns_keys = usize::from(!self.plan.reloads.is_empty());
        self.after(0, CourseEvent::Comes);
        if self.plan.stops {
            self.after(1_000_000, CourseEvent::Stop);
        }
        self.plan_reload();
        self.plan_change();
        self.plan_kill();
        while (self.to_come > 0 || self.clients() > 0) && self.world.now() < MAX_TIME {
            if self.plan.crash.is_some_and(|at| self.world.now() > START_TIME + at) {
                self.plan.crash = None;
                self.records.report_suspected();
                // Findings are reported before the power loss.
                if self.records.findings.is_empty() {
                    return crash::power_loss(&self.home, &self.world, &self.plan);
                }
            }
            if !self.step() {
                self.records.report("no event is left".to_owned());
                break;
            }
        }
        for peer in self.peers.values() {
            let what = match peer {
                Peer::Client(client) => client.waits_for(),
                Peer::Multiplexed(client) => client.waits_for(),
                Peer::Http1Server(_) | Peer::Http2Server(_) => continue,
            };
            self.records.report(format!("waits for ever for {what}"));
        }
        for quic_client in self.quic_clients.values().filter(|quic_client| !quic_client.done) {
            self.records.report(format!("waits for ever for {}", quic_client.waits_for()));
        }
        self.judge_law();
        self.world.end_faults();
        self.run_for(QUIET);
        // The cache may still fetch for clients that have left, even from a server that sends byte
        // by byte.
        while !self.world.at_most_left(self.plan.loops)
            && self
                .peers
                .values()
                .any(|peer| matches!(peer, Peer::Http1Server(_) | Peer::Http2Server(_)))
            && self.world.now() < MAX_TIME
        {
            self.run_for(QUIET);
        }
        if !self.world.at_most_left(self.plan.loops) {
            self.records.report("an older configuration's worker does not end".to_owned());
        }
        self.check_limits_and_cache();
        self.check_sites();
        self.run_for(QUIET);
        for peer in self.peers.values() {
            if let Peer::Http1Server(_) | Peer::Http2Server(_) = peer {
                self.records.report("a server's connection is still open".to_owned());
            }
        }
        self.peers.clear();
        self.quic_clients.clear();
        self.run_for(SHORT);
        self.check_quic_connections();
        self.check_leftovers();
        self.run_for(SHORT);
        let after = (self.descriptors(), self.world.held(self.plan.loops));
        let more = |((task, socket), (tasks, sockets)): (&(usize, usize), &(usize, usize))| {
            *tasks > task + turns_keys || sockets > socket
        };
        let changed = self.killed == 0 && before.1.iter().zip(&after.1).any(more);
        if after.0 != before.0 && !takes_along || changed {
            let what = "descriptors, and tasks and sockets of each loop";
            self.records.report(format!("{before:?} {what} before, {after:?} after"));
        }
    }

    /// Lets time pass, with all events that are due.
    pub fn run_for(&mut self, time: u64) {
        let end = self.world.now() + time;
        self.after(time, CourseEvent::Nothing);
        while self.world.now() < end && self.step() {}
    }

    fn clients(&self) -> usize {
        let others = |p: &&Peer| !matches!(p, Peer::Http1Server(_) | Peer::Http2Server(_));
        self.peers.values().filter(others).count() + self.quic_clients.len()
    }

    /// Lets one event happen. False if there is none.
    pub fn step(&mut self) -> bool {
        let mut any = self.world.work();
        let now = self.world.now();
        while let Some(Reverse((at, _, what))) = self.queue.peek().copied()
            && at <= now
        {
            self.queue.pop();
            self.handle(what);
            self.world.note_events();
            any = true;
        }
        if self.world.turn_one() {
            self.handle_killed();
            self.handle_peer_events();
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

    fn handle(&mut self, what: CourseEvent) {
        self.records.now = self.world.now();
        match what {
            CourseEvent::Comes => self.connect_client(),
            CourseEvent::Send(id) => self.send(id),
            CourseEvent::Take(id) => self.take(id),
            CourseEvent::Answer(id) => {
                if let Some(Peer::Http1Server(served)) = self.peers.get_mut(&id) {
                    self.world.note("answer", id, 0);
                    served.answer(&self.plan, &mut self.records);
                    self.plan_send(id);
                }
            }
            CourseEvent::AnswerOne(id, stream) => {
                if let Some(Peer::Http2Server(origin)) = self.peers.get_mut(&id) {
                    self.world.note("answer", id, u64::from(stream));
                    origin.answer(stream, &self.plan, &mut self.records);
                    self.plan_send(id);
                }
            }
            CourseEvent::Leave(id) => {
                self.world.note("leaves", id, 0);
                self.peers.remove(&id);
                self.quic_clients.remove(&id);
                self.world.peers(self.peers.len() as u64 + 4 * self.quic_clients.len() as u64);
            }
            CourseEvent::Calls(id) => self.run_quic_client(id),
            CourseEvent::Lands(number) => self.deliver(number),
            CourseEvent::Stop => {
                let (i, time) =
                    (self.dice.below(self.plan.loops), 1 + self.dice.below(300_000_000));
                self.world.stop(i, time as u64);
                if self.to_come > 0 {
                    let pause = self.dice.below(400_000_000) as u64;
                    self.after(pause, CourseEvent::Stop);
                }
            }
            CourseEvent::Reload => self.reload(),
            CourseEvent::Change => self.change(),
            CourseEvent::Retire => self.generations.iter_mut().for_each(Generations::retire),
            CourseEvent::Kill => self.kill(),
            CourseEvent::NoticeKill(first) => self.notice_killed(first),
            CourseEvent::Nothing => {}
        }
    }

    /// A client connects.
    fn connect_client(&mut self) {
        let by = match self.plan.http3.filter(|_| self.dice.one_in(2)) {
            Some(server) => Either::Right(server),
            None => match self.connect() {
                Some(fd) => Either::Left(fd),
                None => return self.after(1_000_000, CourseEvent::Comes),
            },
        };
        let came = self.plan.clients - self.to_come;
        self.to_come -= 1;
        let six = self.comes_alone(came);
        let count = if six { 1 } else { 1 + self.dice.below(6) };
        let requests = (0..count).map(|_| {
            self.request_count += 1;
            ClientRequest::draw(&mut self.dice, &self.plan, self.request_count, &mut self.records)
        });
        let requests: Vec<ClientRequest> = requests.collect();
        let fd = match by {
            Either::Left(fd) => fd,
            Either::Right(server) => {
                let plain = |request: ClientRequest| ClientRequest { zipped: false, ..request };
                let id = self.add_quic_client(server, requests.into_iter().map(plain).collect());
                self.world.note("comes", id, count as u64);
                return self.plan_next(false, false);
            }
        };
        let weights = requests.iter().map(|request| request.weight(&self.plan, &self.records));
        // In courses about caches, all answers may be long, and HTTP/2 clients receive them at
        // once.
        let caching = self.plan.extras.caching;
        let both = |b: u64, d: u64| if caching { b + d } else { b.max(d) };
        let (to, fro) = weights.fold((0, 0), |(a, b), (c, d)| (a.max(c), both(b, d)));
        let quick = self.plan.accepts.is_some();
        let way = |dice: &mut Dice, n| if quick { Link::quick(dice) } else { Link::draw(dice, n) };
        let there = way(&mut self.dice, to + HEAD_BYTES);
        let back = way(&mut self.dice, fro + HEAD_BYTES);
        let mut wire = Wire::new(fd, there, back);
        let multiplexed = !quick && self.dice.one_in(4);
        wire.tls = self.plan.tls.then(|| self.tls_settings.connect(&mut self.dice, multiplexed));
        let (dice, records, breaks) = (&mut self.dice, &mut self.records, self.plan.broken_clients);
        let peer = if multiplexed {
            let whole = |request: &ClientRequest| {
                !matches!(request.kind, RequestKind::Upload(_)) && request.range.is_none()
            };
            let requests = requests.into_iter().filter(whole).collect();
            // The client answers each frame that it receives.
            wire.there.piece = wire.there.piece.max(100);
            wire.there.delay = wire.there.delay.min(1_000_000);
            Peer::Multiplexed(Box::new(Multiplexed::new(
                wire, requests, fro, dice, breaks, records,
            )))
        } else {
            let mut client = Client::new(wire, requests, dice, &self.plan, records);
            client.connected_at = self.world.now();
            Peer::Client(Box::new(client))
        };
        let id = self.add_peer(peer);
        self.world.note("comes", id, count as u64);
        self.plan_next(quick, six);
    }

    /// Plans the next client.
    fn plan_next(&mut self, quick: bool, six: bool) {
        if self.to_come > 0 {
            let pauses = [0, 100_000, 10_000_000, if quick { 3_000_000 } else { 1_000_000_000 }];
            let pause = self.dice.pick(&pauses);
            let pause = self.dice.below(pause + 1) as u64;
            self.after(if six { 300_000_000 } else { pause }, CourseEvent::Comes);
        }
    }

    fn add_peer(&mut self, mut peer: Peer) -> u64 {
        let id = self.number();
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let fd = &peer.wire().fd;
        epoll::add(&self.epoll, fd, EventData::new_u64(id), flags).expect("a socket to watch");
        self.peers.insert(id, peer);
        self.world.peers(self.peers.len() as u64 + 4 * self.quic_clients.len() as u64);
        self.plan_send(id);
        id
    }

    /// Plans the next piece that a peer sends. A peer that is done leaves.
    fn plan_send(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.is_done() || peer.wire().is_over() {
            if let Peer::Client(client) = peer
                && client.lingers()
            {
                let time = self.dice.pick(&[0, 0, 5_000_000, 100_000_000]);
                let time = self.dice.below(time + 1) as u64;
                return self.after(time, CourseEvent::Leave(id));
            }
            self.world.note("gone", id, 0);
            self.peers.remove(&id);
            self.world.peers(self.peers.len() as u64 + 4 * self.quic_clients.len() as u64);
            return;
        }
        let wire = peer.wire();
        if wire.has_more() && !wire.sending {
            wire.sending = true;
            let delay = wire.there.time(&mut self.dice);
            let delay = if wire.stuck { delay.max(RETRY_DELAY) } else { delay };
            self.after(delay, CourseEvent::Send(id));
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
            client.arrived_at = Some(self.world.now());
        }
        match peer {
            Peer::Http1Server(served) => served.arrived(self.world.now()),
            Peer::Http2Server(origin) => origin.send_ready(),
            _ => {}
        }
        if let Peer::Http1Server(served) = peer
            && served.floods
            && !served.wire.has_more()
            && let Ok(fd) = served.wire.fd.try_clone()
        {
            served.floods = false;
            self.world.flood(fd);
        }
        self.world.note("arrives", id, 0);
        self.plan_send(id);
    }

    fn take(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let mut bytes = Vec::new();
        let not_reading = matches!(peer, Peer::Http2Server(origin) if origin.is_not_reading());
        let wire = peer.wire();
        if not_reading {
            return self.after(RETRY_DELAY, CourseEvent::Take(id));
        }
        wire.taking = false;
        let came = wire.take(&mut self.dice, &mut bytes);
        let n = if let Received::Bytes(n) = came { n as u64 } else { 0 };
        let came = match came {
            Received::Torn(why) => {
                self.records.report(format!("connection {id}: {why}"));
                Received::Reset
            }
            came => came,
        };
        self.world.note("gets", id, n);
        if let Peer::Http1Server(served) = &peer
            && served.wire.tls.as_ref().is_some_and(|tls| tls.resumed())
        {
            self.records.resumed.insert(id);
        }
        match (peer, came) {
            (_, Received::Nothing) => return,
            (Peer::Client(client), Received::Bytes(_)) => {
                client.receive(&bytes, &mut self.dice, &mut self.records);
            }
            (Peer::Multiplexed(client), Received::Bytes(_)) => {
                client.receive(&bytes, &mut self.records)
            }
            (Peer::Multiplexed(client), Received::End) => client.end("closed", &mut self.records),
            (Peer::Multiplexed(client), Received::Reset) => client.end("lost", &mut self.records),
            (Peer::Client(client), Received::End) => client.end("closed", &mut self.records),
            (Peer::Client(client), Received::Reset) => client.end("reset", &mut self.records),
            (Peer::Http1Server(served), Received::Bytes(_)) => {
                let whose = served.receive(&bytes, &self.plan, &mut self.records);
                self.world.note("asked", id, whose);
                if let Some(delay) = served.answer_delay.take() {
                    self.after(delay, CourseEvent::Answer(id));
                }
            }
            (Peer::Http1Server(served), Received::End | Received::Reset) => served.done = true,
            (Peer::Http2Server(origin), Received::Bytes(_)) => {
                origin.receive(&bytes, &self.plan, &mut self.records);
                for (stream, delay) in std::mem::take(&mut origin.due_answers) {
                    self.after(delay, CourseEvent::AnswerOne(id, stream));
                }
            }
            (Peer::Http2Server(origin), Received::End | Received::Reset) => origin.done = true,
            (_, Received::Torn(_)) => {}
        }
        self.judge_limits(id);
        self.plan_take(id);
        self.plan_send(id);
    }

    fn plan_take(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let wire = peer.wire();
        if !wire.taking {
            wire.taking = true;
            let delay = wire.back.time(&mut self.dice);
            self.after(delay, CourseEvent::Take(id));
        }
    }

    /// Handles what the server has sent to its peers.
    fn handle_peer_events(&mut self) {
        // The event of a new peer is seen only after its connection was accepted, so this repeats.
        while self.handle_pending() {}
    }

    /// Handles pending events once. Returns whether the server has connected to a peer.
    fn handle_pending(&mut self) -> bool {
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
                    self.plan_take(data.u64());
                }
            }
        }
        any
    }

    fn answer_accept_queue(&mut self, accept_queue: usize) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        while let Ok(fd) = rustix::net::accept_with(&self.accept_queues[accept_queue], flags) {
            // A server must read a request faster than weir's timeout for the answer.
            let (most, last) = (self.plan.longest + HEAD_BYTES, self.last);
            // Many requests share an HTTP/2 connection.
            let most = if accept_queue > SCRIPT_SERVER { 10 * most } else { most };
            let way = |d: &mut Dice| if last { Link::quick(d) } else { Link::draw(d, most) };
            let (there, back) = (way(&mut self.dice), way(&mut self.dice));
            let mut wire = Wire::new(fd, there, back);
            if self.plan.tls_behind && accept_queue != SCRIPT_SERVER {
                let multiplexed = accept_queue > SCRIPT_SERVER;
                wire.tls =
                    Some(self.tls_settings.accept(&mut self.dice, accept_queue, multiplexed));
            }
            let peer = if accept_queue > SCRIPT_SERVER {
                let longest = self.plan.longest;
                Peer::Http2Server(Box::new(Http2Server::new(wire, &mut self.dice, longest)))
            } else {
                Peer::Http1Server(Box::new(Http1Server::new(wire, accept_queue)))
            };
            let id = self.add_peer(peer);
            self.world.note("connects", id, accept_queue as u64);
        }
    }
}
