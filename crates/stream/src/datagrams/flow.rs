//! The part of a datagram session that its task shares with the receiver of its client's datagrams.

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

/// How long a session may wait for answers when the port is closed for good.
const GRACE: Duration = Duration::from_secs(1);

/// The two ends of a session on the client's side.
pub struct Ends {
    /// Sends answers through the listening socket.
    pub socket: Answering,
    /// The number of the listening socket.
    pub listen: usize,
    /// The client's address. A client on an unnamed Unix socket cannot be answered.
    pub peer: Option<SocketAddrAny>,
    /// The local address that the client sent to, where the socket is bound to several.
    pub local_ip: Option<IpAddr>,
    /// The same with the port.
    pub local: Address,
}

/// Why a session's task must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The table was full, and a new session took its place.
    Evicted,
    /// Its loop leaves the port.
    Shutdown,
    /// Sending to the server failed.
    SendFailed,
}

/// A datagram session, as the receiver of its client's datagrams sees it.
pub struct Flow {
    /// Its entry in the table.
    pub id: Id,
    ends: Ends,
    /// The server block whose settings apply.
    pub server: &'static Server,
    /// Bytes relayed after the first datagram.
    pub passed: Rc<PassedBytes>,
    /// Datagrams from the client.
    pub requests: Cell<u64>,
    /// Datagrams from the server.
    pub answers: Cell<u64>,
    /// Length of the first datagram.
    first_len: u64,
    /// Datagrams that came before the path to the server was known.
    early: RefCell<VecDeque<Vec<u8>>>,
    path: OnceCell<ServerPath>,
    assured: Cell<bool>,
    /// Whether the client has sent something since the last answer.
    unanswered: Cell<bool>,
    /// When the session must end, set when its loop leaves the port.
    leaves_by: Cell<Option<Instant>>,
    end_reason: Cell<Option<EndReason>>,
    /// Why sending to the server failed.
    send_error: Cell<Option<io::Error>>,
    waker: RefCell<Option<Waker>>,
}

/// The path to the upstream server.
struct ServerPath {
    socket: Rc<Datagram>,
    timeout: Duration,
    expected: Expected,
    rate: Option<Rate>,
    /// The upload rate lets no datagram pass before this time.
    resumes: Cell<Option<Instant>>,
    /// The server's time-out starts at this time at the earliest: until then the upload rate holds
    /// the client back. The first datagram does not set it: as in nginx, the server gets no more
    /// time for it.
    timeout_from: Cell<Option<Instant>>,
}

/// When a session is complete.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// `proxy_requests`; 0: any number.
    requests: u64,
    /// `proxy_responses`: answers to each datagram.
    responses: Option<u64>,
}

impl Expected {
    /// The limits of a configuration.
    pub fn of(proxy: &Proxy) -> Expected {
        Expected { requests: proxy.requests, responses: proxy.responses }
    }

    /// Whether no more answers are expected for so many datagrams.
    pub fn answered(self, requests: u64, answers: u64) -> bool {
        self.responses.is_none_or(|each| answers >= each.saturating_mul(requests))
    }

    /// Whether the session takes no more datagrams: the client's next one begins another session.
    pub fn is_full(self, requests: u64) -> bool {
        self.requests > 0 && requests >= self.requests
    }

    /// Whether the session is complete. nginx: ngx_stream_proxy_test_finalize.
    pub fn is_done(self, requests: u64, answers: u64) -> bool {
        (self.requests == 0 || self.is_full(requests))
            && self.responses.is_some()
            && self.answered(requests, answers)
    }
}

/// What became of a datagram from the client.
#[derive(Debug, PartialEq, Eq)]
pub enum Delivered {
    /// It was sent to the server, or queued behind others until there is one.
    Accepted,
    /// It exceeded the upload rate, or the queue was full.
    Dropped,
    /// It was queued as the first one. The session's task may find the server as soon as it runs.
    Waits,
    /// It was the session's last.
    Last,
}

impl Flow {
    /// A session whose first datagram has `first_len` bytes.
    pub fn new(id: Id, ends: Ends, first_len: u64, server: &'static Server) -> Flow {
        Flow {
            id,
            ends,
            server,
            passed: Rc::default(),
            requests: Cell::new(1),
            answers: Cell::new(0),
            first_len,
            early: RefCell::default(),
            path: OnceCell::new(),
            assured: Cell::new(false),
            unanswered: Cell::new(true),
            leaves_by: Cell::new(None),
            end_reason: Cell::new(None),
            send_error: Cell::new(None),
            waker: RefCell::default(),
        }
    }

    /// The number of the listening socket.
    pub fn listen(&self) -> usize {
        self.ends.listen
    }

    /// The local address that the client sent to.
    pub fn local(&self) -> &Address {
        &self.ends.local
    }

    /// True once, at the client's first datagram after an answer.
    pub fn is_assured_now(&self) -> bool {
        self.answers.get() > 0 && !self.assured.replace(true)
    }

    /// Whether the client's next datagram begins another session. A session that is not proxied
    /// ends with its first.
    pub fn is_full(&self) -> bool {
        let conf = &self.server.conf;
        !conf.content.is_proxied() || Expected::of(&conf.proxy).is_full(self.requests.get())
    }

    /// Relays another datagram from the client. Before the path to the server is known, one
    /// datagram is queued, and more as far as `proxy_buffer_size` allows.
    pub fn deliver(&self, handle: &Handle, bytes: &[u8]) -> Delivered {
        match self.path.get() {
            Some(path) => {
                let from_client = self.first_len + self.passed.up.get();
                if !path.may_pass(handle.now(), from_client, bytes.len() as u64) {
                    return Delivered::Dropped;
                }
                self.count(bytes);
                path.timeout_from.set(path.resumes.get());
                self.send(path, bytes, handle.now());
                if path.expected.is_done(self.requests.get(), self.answers.get()) {
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
        if self.is_full() { Delivered::Last } else { Delivered::Accepted }
    }

    fn count(&self, bytes: &[u8]) {
        self.requests.set(self.requests.get() + 1);
        self.unanswered.set(true);
        self.passed.up.add(bytes.len() as u64);
    }

    /// Sets the path to the server, and sends the datagrams that were queued. Returns how many of
    /// them the upload rate dropped.
    pub fn connect(&self, handle: &Handle, socket: Rc<Datagram>, rate: u64) -> u64 {
        let proxy = &self.server.conf.proxy;
        let (expected, timeout, now) = (Expected::of(proxy), proxy.timeout, handle.now());
        let rate = Rate::new(rate, now);
        let (resumes, timeout_from) = (Cell::new(None), Cell::new(None));
        let path = ServerPath { socket, timeout, expected, rate, resumes, timeout_from };
        let path = self.path.get_or_init(|| path);
        self.set_timeout(path, now);
        let (mut from_client, mut dropped) = (self.first_len, 0);
        for datagram in std::mem::take(&mut *self.early.borrow_mut()) {
            let length = datagram.len() as u64;
            if path.may_pass(now, from_client, length) {
                from_client += length;
                self.send(path, &datagram, now);
            } else {
                self.requests.set(self.requests.get() - 1);
                self.passed.up.take_back(length);
                dropped += 1;
            }
        }
        dropped
    }

    /// Restarts the server's time-out. `proxy_timeout` counts from now, or from when the upload
    /// rate no longer holds the client back, but does not exceed the time at which the session must
    /// end.
    fn set_timeout(&self, path: &ServerPath, now: Instant) {
        let held = path.timeout_from.get().map(|until| until.saturating_duration_since(now));
        let timeout = path.timeout.saturating_add(held.unwrap_or_default());
        let left = self.leaves_by.get().map(|by| by.saturating_duration_since(now));
        path.socket.set_timeout(Some(left.map_or(timeout, |left| left.min(timeout))));
    }

    /// Restarts the server's time-out after answers were held back by the download rate.
    pub fn restart_timeout(&self, now: Instant) {
        if let Some(path) = self.path.get() {
            self.set_timeout(path, now);
        }
    }

    fn send(&self, path: &ServerPath, bytes: &[u8], now: Instant) {
        match path.socket.try_send_to(bytes, None) {
            Ok(Some(n)) => self.passed.up_sent.add(n as u64),
            // The socket's send buffer is full: the datagram is lost, as datagrams may be.
            Ok(None) => {}
            Err(e) => {
                self.send_error.set(Some(e));
                self.end(EndReason::SendFailed);
            }
        }
        self.set_timeout(path, now);
    }

    /// Sends to the client. False if the socket had no room, or the client has no address.
    pub fn answer(&self, bytes: &[u8]) -> bool {
        let ends = &self.ends;
        let Some(peer) = &ends.peer else { return false };
        ends.socket.try_send(bytes, peer, ends.local_ip).is_ok_and(|sent| sent)
    }

    /// Counts an answer of so many bytes. True if it was the first.
    pub fn count_answer(&self, bytes: u64, now: Instant) -> bool {
        let passed = &self.passed;
        passed.down.add(bytes);
        let first = passed.first.set(now).is_ok();
        self.answers.set(self.answers.get() + 1);
        self.unanswered.set(false);
        if let Some(path) = self.path.get() {
            self.set_timeout(path, now);
            if self.leaves_by.get().is_some() && !self.awaits_answer(path) {
                self.end(EndReason::Shutdown);
            }
        }
        first
    }

    /// The loop leaves the port. The session ends when its client's pending answers have arrived,
    /// and after a fixed time at the latest, however much its server sends: otherwise an old worker
    /// would not exit.
    pub fn leave(&self, now: Instant, how: Leaving) {
        let timeout = self.server.conf.proxy.timeout;
        let limit = if how == Leaving::ForGood { timeout.min(GRACE) } else { timeout };
        self.leaves_by.set(now.checked_add(limit));
        match self.path.get() {
            Some(path) if self.awaits_answer(path) => self.set_timeout(path, now),
            None if how == Leaving::ToOthers => {}
            _ => self.end(EndReason::Shutdown),
        }
    }

    /// Whether the time that [`Flow::leave`] set is over.
    pub fn leave_time_is_over(&self, now: Instant) -> bool {
        self.leaves_by.get().is_some_and(|by| by <= now)
    }

    /// Whether an answer is due: one that `proxy_responses` counts, or else one to the client's
    /// last datagram.
    fn awaits_answer(&self, path: &ServerPath) -> bool {
        match path.expected.responses {
            Some(_) => !path.expected.answered(self.requests.get(), self.answers.get()),
            None => self.unanswered.get(),
        }
    }

    /// Why sending to the server failed.
    pub fn take_send_error(&self) -> io::Error {
        self.send_error.take().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Tells the session's task to end.
    pub fn end(&self, reason: EndReason) {
        if self.end_reason.get().is_none() {
            self.end_reason.set(Some(reason));
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Ready when the task must end. Otherwise the task is woken when it must, and when the session
    /// may be complete.
    pub fn poll_end(&self, cx: &Context<'_>) -> Poll<EndReason> {
        if let Some(reason) = self.end_reason.get() {
            return Poll::Ready(reason);
        }
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until the task must end.
    pub async fn ended(&self) -> EndReason {
        poll_fn(|cx| self.poll_end(cx)).await
    }
}

impl ServerPath {
    /// Whether the upload rate lets a datagram pass now. One that comes too early is dropped.
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
