//! The state that a session of datagrams shares with the socket of its client's datagrams.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use weir_engine::{Answering, Datagram, Handle, SocketAddrAny};
use weir_upstream::Rate;
use weir_upstream::tunnel::PassedBytes;
use weir_values::Address;

use super::Leaving;
use super::table::Id;
use crate::settings::Proxy;
use crate::site::Server;

/// How long answers are waited for after the port's last receiver has ended.
const GRACE: Duration = Duration::from_secs(1);

/// The client of a session, and the address from which it is answered.
pub struct Ends {
    /// The socket that its client's datagrams came to.
    pub socket: Answering,
    /// Its number.
    pub listen: usize,
    /// Its client; one without a name cannot be answered.
    pub peer: Option<SocketAddrAny>,
    /// The address of this host that the client asked, where the socket has many.
    pub asked: Option<IpAddr>,
    /// The same as an address.
    pub local: Address,
}

/// Why a session ends that nothing has ended yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Another one needs its place.
    Evicted,
    /// Its loop leaves the port.
    Shutdown,
    /// Something was sent that its server does not take.
    Broken,
}

/// What a session's client sends.
pub struct Flow {
    /// Its place.
    pub id: Id,
    ends: Ends,
    /// The server with the settings that count.
    pub server: &'static Server,
    /// What has gone through after the first datagram.
    pub passed: Rc<PassedBytes>,
    /// Datagrams from the client.
    pub requests: Cell<u64>,
    /// Datagrams from the server.
    pub answers: Cell<u64>,
    /// Bytes of the first datagram.
    first: u64,
    /// What came before there was a server.
    early: RefCell<VecDeque<Vec<u8>>>,
    way: OnceCell<ServerPath>,
    assured: Cell<bool>,
    /// The client has sent something since the last answer.
    asked: Cell<bool>,
    /// Its loop has left the port: when it ends at the latest.
    leaves_by: Cell<Option<Instant>>,
    over: Cell<Option<Over>>,
    /// Why its server does not take what was sent.
    broken: Cell<Option<io::Error>>,
    waker: RefCell<Option<Waker>>,
}

/// Where datagrams go, once that is known.
struct ServerPath {
    socket: Rc<Datagram>,
    timeout: Duration,
    expected: Expected,
    rate: Option<Rate>,
    /// Nothing more passes until then.
    resumes: Cell<Option<Instant>>,
    /// Until then the server need not answer, since the client is held back. As with nginx, a session's first datagram
    /// holds it back from sending more, and the server has no more time for it.
    held: Cell<Option<Instant>>,
}

/// What makes a session complete.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// `proxy_requests`; 0: any number.
    requests: u64,
    /// `proxy_responses`, to each of them.
    responses: Option<u64>,
}

impl Expected {
    /// As a configuration says.
    pub fn of(proxy: &Proxy) -> Expected {
        Expected { requests: proxy.requests, responses: proxy.responses }
    }

    /// So many answers are all that will come, as far as can be told.
    pub fn answered(self, requests: u64, answers: u64) -> bool {
        self.responses.is_none_or(|each| answers >= each.saturating_mul(requests))
    }

    /// The client's datagrams are those of another session from now on.
    pub fn is_full(self, requests: u64) -> bool {
        self.requests > 0 && requests >= self.requests
    }

    /// The session is complete. nginx: ngx_stream_proxy_test_finalize.
    pub fn is_done(self, requests: u64, answers: u64) -> bool {
        (self.requests == 0 || self.is_full(requests))
            && self.responses.is_some()
            && self.answered(requests, answers)
    }
}

/// What became of a datagram from the client.
#[derive(Debug, PartialEq, Eq)]
pub enum Delivered {
    /// It is on its way.
    Here,
    /// It came too early, or there was no room for it.
    Dropped,
    /// It is the first that waits for the session's server, which may be known once the session's task has run.
    Waits,
    /// It was the last of this session.
    Last,
}

impl Flow {
    /// A session that begins with its first datagram.
    pub fn new(id: Id, ends: Ends, first: u64, server: &'static Server) -> Flow {
        Flow {
            id,
            ends,
            server,
            passed: Rc::default(),
            requests: Cell::new(1),
            answers: Cell::new(0),
            first,
            early: RefCell::default(),
            way: OnceCell::new(),
            assured: Cell::new(false),
            asked: Cell::new(true),
            leaves_by: Cell::new(None),
            over: Cell::new(None),
            broken: Cell::new(None),
            waker: RefCell::default(),
        }
    }

    /// The number of the socket that it came to.
    pub fn listen(&self) -> usize {
        self.ends.listen
    }

    /// The address that the client asked.
    pub fn local(&self) -> &Address {
        &self.ends.local
    }

    /// True once: the client has come back after an answer.
    pub fn is_assured_now(&self) -> bool {
        self.answers.get() > 0 && !self.assured.replace(true)
    }

    /// Whether the next datagram begins another session. One that leads to no server ends with its first.
    pub fn is_full(&self) -> bool {
        let conf = &self.server.conf;
        !conf.content.leads() || Expected::of(&conf.proxy).is_full(self.requests.get())
    }

    /// Another datagram from the client. Until there is a server, one waits, and as many more as `proxy_buffer_size`
    /// has room for.
    pub fn deliver(&self, handle: &Handle, bytes: &[u8]) -> Delivered {
        match self.way.get() {
            Some(way) => {
                let from_client = self.first + self.passed.up.get();
                if !way.may_pass(handle.now(), from_client, bytes.len() as u64) {
                    return Delivered::Dropped;
                }
                self.count(bytes);
                way.held.set(way.resumes.get());
                self.send(way, bytes, handle.now());
                if way.expected.is_done(self.requests.get(), self.answers.get()) {
                    self.wake();
                }
            }
            None => {
                let mut early = self.early.borrow_mut();
                let waiting: usize = early.iter().map(|datagram| datagram.len().max(1)).sum();
                let is_first = early.is_empty();
                if !is_first && waiting + bytes.len() > self.server.conf.proxy.buffer {
                    return Delivered::Dropped;
                }
                self.count(bytes);
                early.push_back(bytes.to_vec());
                if is_first && !self.is_full() {
                    return Delivered::Waits;
                }
            }
        }
        if self.is_full() { Delivered::Last } else { Delivered::Here }
    }

    fn count(&self, bytes: &[u8]) {
        self.requests.set(self.requests.get() + 1);
        self.asked.set(true);
        self.passed.up.add(bytes.len() as u64);
    }

    /// Datagrams go there from now on, beginning with those that have come meanwhile. Returns how many of these the rate
    /// does not let pass.
    pub fn connect(&self, handle: &Handle, socket: Rc<Datagram>, rate: u64) -> u64 {
        let proxy = &self.server.conf.proxy;
        let (expected, timeout, now) = (Expected::of(proxy), proxy.timeout, handle.now());
        let rate = Rate::new(rate, now);
        let (resumes, held) = (Cell::new(None), Cell::new(None));
        let way = ServerPath { socket, timeout, expected, rate, resumes, held };
        let way = self.way.get_or_init(|| way);
        self.be_patient(way, now);
        let (mut from_client, mut dropped) = (self.first, 0);
        for datagram in std::mem::take(&mut *self.early.borrow_mut()) {
            let length = datagram.len() as u64;
            if way.may_pass(now, from_client, length) {
                from_client += length;
                self.send(way, &datagram, now);
            } else {
                self.requests.set(self.requests.get() - 1);
                self.passed.up.take_back(length);
                dropped += 1;
            }
        }
        dropped
    }

    /// The server may be silent for `proxy_timeout` from now on, or from when the rate holds the client back no longer,
    /// but not beyond the time at which the session must end.
    fn be_patient(&self, way: &ServerPath, now: Instant) {
        let held = way.held.get().map(|until| until.saturating_duration_since(now));
        let timeout = way.timeout.saturating_add(held.unwrap_or_default());
        let left = self.leaves_by.get().map(|by| by.saturating_duration_since(now));
        way.socket.set_timeout(Some(left.map_or(timeout, |left| left.min(timeout))));
    }

    /// Answers have waited for their rate, and the server has all of its time again.
    pub fn wait_anew(&self, now: Instant) {
        if let Some(way) = self.way.get() {
            self.be_patient(way, now);
        }
    }

    fn send(&self, way: &ServerPath, bytes: &[u8], now: Instant) {
        match way.socket.try_send_to(bytes, None) {
            Ok(Some(n)) => self.passed.up_sent.add(n as u64),
            // There is no room: a datagram is lost, as on any way.
            Ok(None) => {}
            Err(e) => {
                self.broken.set(Some(e));
                self.end(Over::Broken);
            }
        }
        self.be_patient(way, now);
    }

    /// Sends to the client; false if there was no room for it, or no way.
    pub fn answer(&self, bytes: &[u8]) -> bool {
        let ends = &self.ends;
        let Some(peer) = &ends.peer else { return false };
        ends.socket.try_send(bytes, peer, ends.asked).is_ok_and(|sent| sent)
    }

    /// So many bytes came from the server; true if they were the first.
    pub fn heard(&self, bytes: u64, now: Instant) -> bool {
        let passed = &self.passed;
        passed.down.add(bytes);
        let first = passed.first.set(now).is_ok();
        self.answers.set(self.answers.get() + 1);
        self.asked.set(false);
        if let Some(way) = self.way.get() {
            self.be_patient(way, now);
            if self.leaves_by.get().is_some() && !self.awaits_answer(way) {
                self.end(Over::Shutdown);
            }
        }
        first
    }

    /// Its loop leaves the port. It ends when the answers are there that its client waits for, and after a fixed time at
    /// the latest, however much its server sends: an old worker must come to its end.
    pub fn leave(&self, now: Instant, how: Leaving) {
        let timeout = self.server.conf.proxy.timeout;
        let limit = if how == Leaving::ForGood { timeout.min(GRACE) } else { timeout };
        self.leaves_by.set(now.checked_add(limit));
        match self.way.get() {
            Some(way) if self.awaits_answer(way) => self.be_patient(way, now),
            None if how == Leaving::ToOthers => {}
            _ => self.end(Over::Shutdown),
        }
    }

    /// Whether the time is over that [`Flow::leave`] has left it.
    pub fn has_left(&self, now: Instant) -> bool {
        self.leaves_by.get().is_some_and(|by| by <= now)
    }

    /// Whether an answer is due: one that `proxy_responses` counts, or else one to what the client has sent last.
    fn awaits_answer(&self, way: &ServerPath) -> bool {
        match way.expected.responses {
            Some(_) => !way.expected.answered(self.requests.get(), self.answers.get()),
            None => self.asked.get(),
        }
    }

    /// Why its server does not take what was sent.
    pub fn why_broken(&self) -> io::Error {
        self.broken.take().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// It ends as soon as its task runs.
    pub fn end(&self, over: Over) {
        if self.over.get().is_none() {
            self.over.set(Some(over));
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Whether it is to end. If not, the task is woken when it is, or when it may be complete.
    pub fn poll_over(&self, cx: &Context<'_>) -> Poll<Over> {
        if let Some(over) = self.over.get() {
            return Poll::Ready(over);
        }
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Ready when it is to end.
    pub async fn over(&self) -> Over {
        poll_fn(|cx| self.poll_over(cx)).await
    }
}

impl ServerPath {
    /// Whether another datagram may pass now; one that comes too early is lost.
    fn may_pass(&self, now: Instant, passed: u64, bytes: u64) -> bool {
        let Some(rate) = self.rate else { return true };
        if self.resumes.get().is_some_and(|at| now < at) {
            return false;
        }
        let left = rate.left(now, passed);
        let pause = left.map_or_else(|late| late, |_| rate.time_of(bytes));
        self.resumes.set(now.checked_add(pause));
        left.is_ok()
    }
}
