//! Idle connections to peers. A loop keeps its own and watches them. If none of them fits, it takes
//! one that another loop of the process does not use ([`SharedPool`]), with its TLS state.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use weir_engine::{Handle, Sleep};
use weir_tls::Wire;

use crate::Peer;

mod kept;
mod shared;

pub use kept::close_idle;
pub use shared::SharedPool;
use shared::{Offer, PublishedIdle};

/// A connection that has been idle for so long in one loop may go to another one. A loop in traffic uses its connections again
/// sooner. If others took them it would take others' in turn, and each move costs two calls of epoll_ctl and a wake-up.
const UNUSED: Duration = Duration::from_millis(500);

/// How many connections are kept, and how long. nginx: `keepalive` and kin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// At most so many idle connections of each loop; what one does not keep, another may.
    pub idle: usize,
    /// Requests on one connection.
    pub requests: u64,
    /// The age at which one is closed.
    pub time: Duration,
    /// How long one may be idle.
    pub timeout: Duration,
    /// Each place of the configuration keeps its own, and none is lent to another; nginx: `local`.
    pub local: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            idle: 32,
            requests: 1000,
            time: Duration::from_secs(3600),
            timeout: Duration::from_secs(60),
            local: true,
        }
    }
}

/// What connections to one peer must have in common to serve the same requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tag {
    /// How they are secured; 0: not at all.
    pub secured: u64,
    /// The place of the configuration that opened them, where that matters ([`Limits::local`]).
    pub place: usize,
    /// The address that they were bound to.
    pub from: Option<SocketAddr>,
}

/// A connection to a peer. It goes from hand to hand, so it is passed on in a box.
pub struct Connection {
    /// The socket.
    pub stream: Wire,
    /// The server at its other end.
    pub peer: Arc<Peer>,
    /// Only those that want the same may have it.
    pub tag: Tag,
    /// Requests so far.
    pub requests: u64,
    /// When it was opened.
    pub started: Instant,
    /// Sending failed, and has taken the socket's error: what is received ends as if the peer had ended it.
    pub is_broken: Cell<bool>,
}

impl Connection {
    /// A connection before its first request.
    pub fn new(stream: Wire, peer: Arc<Peer>, tag: Tag, started: Instant) -> Box<Connection> {
        let is_broken = Cell::new(false);
        Box::new(Connection { stream, peer, tag, requests: 1, started, is_broken })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stream.close_notify();
    }
}

struct IdleConnection {
    id: u64,
    connection: Box<Connection>,
    until: Instant,
    /// It stands in the loop's part of the shared pool, too.
    offered: bool,
}

/// The idle connections of one loop to the peers of a group.
pub struct Pool {
    /// The newest last.
    idle: RefCell<Vec<IdleConnection>>,
    /// A task watches them.
    tended: Cell<bool>,
    last: Cell<u64>,
    shared: Arc<SharedPool>,
    part: Arc<PublishedIdle>,
}

impl Pool {
    /// The part of loop `number` of a shared pool.
    pub fn new(shared: Arc<SharedPool>, number: u32) -> Pool {
        let part = shared.open(number);
        let (idle, tended, last) = Default::default();
        Pool { idle, tended, last, shared, part }
    }

    /// Takes the newest connection to a peer that still seems good: an own one, or one that another loop does not use.
    pub fn take(&self, handle: &Handle, peer: &Arc<Peer>, tag: Tag) -> Option<Box<Connection>> {
        let own = self.take_own(peer, tag);
        if own.is_none() && self.shared.is_shared() {
            return self.take_others(handle, peer, tag);
        }
        own
    }

    fn take_own(&self, peer: &Arc<Peer>, tag: Tag) -> Option<Box<Connection>> {
        let mut idle = self.idle.borrow_mut();
        let fits = |i: &IdleConnection| i.connection.tag == tag && same(&i.connection.peer, peer);
        while let Some(at) = idle.iter().rposition(fits) {
            let IdleConnection { id, mut connection, offered, .. } = idle.remove(at);
            if offered && !self.withdraw(id, &connection) {
                continue;
            }
            connection.stream.set_deadline(None);
            if connection.stream.is_silent() {
                connection.requests += 1;
                return Some(connection);
            }
        }
        None
    }

    /// Takes an offer back, and with it the state of the connection's TLS; false if another loop has it now.
    fn withdraw(&self, id: u64, connection: &Connection) -> bool {
        let Some(offer) = self.part.withdraw(id) else { return false };
        if let (Wire::Tls(tls), Some(secured)) = (&connection.stream, offer.secured) {
            tls.take_back(secured);
        }
        true
    }

    #[allow(clippy::disallowed_methods, reason = "one byte, and only a look at it")]
    fn take_others(&self, handle: &Handle, peer: &Arc<Peer>, tag: Tag) -> Option<Box<Connection>> {
        let now = handle.now();
        let is_unused = |offer: &Offer| now.saturating_duration_since(offer.since) >= UNUSED;
        let fits = |offer: &Offer| {
            offer.tag == tag && offer.peer.endpoint == peer.endpoint && is_unused(offer)
        };
        loop {
            let offer = self.shared.take(&self.part, fits)?;
            // Its own loop may not have heard yet that something came.
            let mut byte = [0u8; 1];
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let silent = match rustix::net::recv(&offer.fd, &mut byte[..], flags) {
                Err(Errno::AGAIN) => true,
                Ok((n, _)) if n > 0 && offer.secured.is_some() => false,
                _ => continue,
            };
            let Offer { fd, secured, peer, requests, started, .. } = offer;
            let stream = Wire::join(handle.stream_shared(fd).ok()?, secured);
            let mut connection = Connection::new(stream, peer, tag, started);
            connection.requests = requests + 1;
            // Tickets are no answer.
            if silent || connection.stream.is_silent() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for later, if the limits allow it and nothing came on it unasked.
    pub fn give(self: &Rc<Self>, handle: &Handle, connection: Box<Connection>, limits: &Limits) {
        let now = handle.now();
        let age = now.saturating_duration_since(connection.started);
        if limits.idle == 0 || connection.requests >= limits.requests || age >= limits.time {
            return;
        }
        if !connection.stream.is_silent() {
            return;
        }
        connection.stream.set_deadline(None);
        let new = connection.requests <= 1;
        let mut idle = self.idle.borrow_mut();
        let shared = self.shared.is_shared();
        if idle.len() >= limits.idle && !(shared && self.shared.has_room(limits.idle)) {
            drop(idle);
            self.close_oldest();
            idle = self.idle.borrow_mut();
        }
        let id = self.last.get() + 1;
        self.last.set(id);
        let offered = shared && self.offer(id, &connection, now);
        idle.push(IdleConnection { id, connection, until: now + limits.timeout, offered });
        drop(idle);
        if !self.tended.replace(true) {
            kept::enter(self);
            handle.spawn(Tending { pool: self.clone(), handle: handle.clone(), sleep: None });
        } else if new {
            self.part.wake();
        }
    }

    /// Shows the connection to the other loops, if it can go there.
    fn offer(&self, id: u64, connection: &Connection, since: Instant) -> bool {
        let Some(fd) = connection.stream.socket().shared() else { return false };
        let Some(secured) = connection.stream.lend() else { return false };
        let &Connection { tag, requests, started, .. } = connection;
        let peer = connection.peer.clone();
        self.part.offer(Offer { id, fd, secured, tag, peer, requests, started, since });
        true
    }

    /// When the oldest would have been closed.
    fn oldest(&self) -> Option<Instant> {
        self.idle.borrow().first().map(|idle| idle.until)
    }

    /// Closes the oldest.
    fn close_oldest(&self) {
        let mut idle = self.idle.borrow_mut();
        if idle.is_empty() {
            return;
        }
        let oldest = idle.remove(0);
        if oldest.offered {
            self.withdraw(oldest.id, &oldest.connection);
        }
    }

    /// Closes all: the loop is about to end.
    pub fn clear(&self) {
        self.shared.close(&self.part);
        for idle in self.idle.borrow_mut().drain(..) {
            if idle.offered {
                self.withdraw(idle.id, &idle.connection);
            }
        }
        self.part.clear();
        self.part.wake();
    }

    /// Idle connections.
    pub fn len(&self) -> usize {
        self.idle.borrow().len()
    }

    /// None is idle.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn same(a: &Arc<Peer>, b: &Arc<Peer>) -> bool {
    Arc::ptr_eq(a, b) || a.endpoint == b.endpoint
}

/// Closes connections that their peer has closed, or that waited too long. Woken only when one is new, since a
/// connection that comes back is still watched from before.
struct Tending {
    pool: Rc<Pool>,
    handle: Handle,
    sleep: Option<Sleep>,
}

impl Future for Tending {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let now = this.handle.now();
        let pool = &this.pool;
        let part = &pool.part;
        let mut idle = this.pool.idle.borrow_mut();
        idle.retain(|i| {
            let mut closed = i.connection.stream.socket().closed();
            let good = i.until > now && Pin::new(&mut closed).poll(cx).is_pending();
            // Another loop may have taken it, or takes it now.
            match (i.offered, good) {
                (true, true) => part.has(i.id),
                (true, false) => {
                    pool.withdraw(i.id, &i.connection);
                    false
                }
                (false, good) => good,
            }
        });
        let Some(next) = idle.iter().map(|i| i.until).min() else {
            this.pool.tended.set(false);
            part.set_waker(None);
            return Poll::Ready(());
        };
        drop(idle);
        part.set_waker(Some(cx.waker().clone()));
        let mut sleep = this.handle.sleep_until(next);
        if Pin::new(&mut sleep).poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        this.sleep = Some(sleep);
        Poll::Pending
    }
}
