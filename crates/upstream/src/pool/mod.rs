//! The keepalive pool: idle connections to peers. Each loop keeps and watches its own. If none
//! fits, it takes a connection that another loop of the process has left unused ([`SharedPool`]),
//! with its TLS state.

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

/// How long a connection must be idle before another loop may take it. A loop under load uses its
/// connections again sooner. If others could take them at once, it would have to take theirs in
/// turn. Each move costs two calls of epoll_ctl and a wake-up.
const SHARED_AFTER: Duration = Duration::from_millis(500);

/// Limits of a keepalive pool. nginx: `keepalive` and kin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The most idle connections for each loop. A loop may keep more if other loops keep fewer.
    pub idle: usize,
    /// The most requests on one connection.
    pub requests: u64,
    /// The age at which a connection is not kept any more.
    pub time: Duration,
    /// How long a connection may be idle.
    pub timeout: Duration,
    /// Each location keeps its own connections. nginx: `local`.
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

/// Connections to a peer serve the same requests only if their tags are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tag {
    /// Identifies the TLS settings; 0 without TLS.
    pub secured: u64,
    /// Identifies the location that opened the connection, if [`Limits::local`].
    pub place: usize,
    /// The local address that the connection was bound to.
    pub from: Option<SocketAddr>,
}

/// A connection to a peer. It is moved often, so it is boxed.
pub struct Connection {
    /// The socket.
    pub stream: Wire,
    /// The peer at the other end.
    pub peer: Arc<Peer>,
    /// Requests with the same tag may use the connection.
    pub tag: Tag,
    /// Requests so far, the present one included.
    pub requests: u64,
    /// When the connection was opened.
    pub started: Instant,
    /// Sending failed and consumed the socket's error. Receiving then reports an end of data, as if
    /// the peer had closed.
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
    /// The connection is also offered in the loop's part of the shared pool.
    offered: bool,
}

/// The idle connections of one loop to the peers of a group.
pub struct Pool {
    /// In order of their last use, the newest last.
    idle: RefCell<Vec<IdleConnection>>,
    /// An [`IdleWatch`] runs.
    watched: Cell<bool>,
    last: Cell<u64>,
    shared: Arc<SharedPool>,
    part: Arc<PublishedIdle>,
}

impl Pool {
    /// The pool of loop `number`, with its part of a shared pool.
    pub fn new(shared: Arc<SharedPool>, number: u32) -> Pool {
        let part = shared.open(number);
        let (idle, watched, last) = Default::default();
        Pool { idle, watched, last, shared, part }
    }

    /// Takes the newest connection to a peer that is still open: one of this loop, or else one that
    /// another loop has left unused.
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

    /// Withdraws an offer, and puts the TLS state back into the connection. False if another loop
    /// has taken it.
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
        let is_left_unused =
            |offer: &Offer| now.saturating_duration_since(offer.since) >= SHARED_AFTER;
        let fits = |offer: &Offer| {
            offer.tag == tag && offer.peer.endpoint == peer.endpoint && is_left_unused(offer)
        };
        loop {
            let offer = self.shared.take(&self.part, fits)?;
            // The other loop may not have noticed yet that the peer sent or closed.
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
            // TLS may hold data that are no answer, such as session tickets.
            if silent || connection.stream.is_silent() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for later requests, if the limits allow it and the peer has sent nothing
    /// more.
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
        if !self.watched.replace(true) {
            kept::register(self);
            handle.spawn(IdleWatch { pool: self.clone(), handle: handle.clone(), sleep: None });
        } else if new {
            self.part.wake();
        }
    }

    /// Offers the connection to the other loops. False if it cannot move.
    fn offer(&self, id: u64, connection: &Connection, since: Instant) -> bool {
        let Some(fd) = connection.stream.socket().shared() else { return false };
        let Some(secured) = connection.stream.lend() else { return false };
        let &Connection { tag, requests, started, .. } = connection;
        let peer = connection.peer.clone();
        self.part.offer(Offer { id, fd, secured, tag, peer, requests, started, since });
        true
    }

    /// When the oldest connection times out.
    fn oldest(&self) -> Option<Instant> {
        self.idle.borrow().first().map(|idle| idle.until)
    }

    /// Closes the oldest connection.
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

    /// Closes all connections, before the loop ends.
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

    /// The number of idle connections.
    pub fn len(&self) -> usize {
        self.idle.borrow().len()
    }

    /// Whether there is no idle connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn same(a: &Arc<Peer>, b: &Arc<Peer>) -> bool {
    Arc::ptr_eq(a, b) || a.endpoint == b.endpoint
}

/// Closes connections that the peer has closed or that have timed out. The task is woken only for a
/// new connection. A connection that was kept before is still being watched.
struct IdleWatch {
    pool: Rc<Pool>,
    handle: Handle,
    sleep: Option<Sleep>,
}

impl Future for IdleWatch {
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
            this.pool.watched.set(false);
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
