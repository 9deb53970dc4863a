//! Connections to peers that wait for their next request. A loop keeps its own; an idle connection is a socket
//! and a few words, so that loops of a process may share them one day.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use weir_engine::{Handle, Sleep};
use weir_tls::Wire;

use crate::Peer;

/// How many connections are kept, and how long. nginx: `keepalive` and kin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// At most so many idle connections.
    pub idle: usize,
    /// Requests on one connection.
    pub requests: u64,
    /// The age at which one is closed.
    pub time: Duration,
    /// How long one may be idle.
    pub timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            idle: 32,
            requests: 1000,
            time: Duration::from_secs(3600),
            timeout: Duration::from_secs(60),
        }
    }
}

/// A connection to a peer.
pub struct Connection {
    /// The socket.
    pub stream: Wire,
    /// Whom it leads to.
    pub peer: Arc<Peer>,
    /// How it is secured; only those that want the same may have it.
    pub tag: u64,
    /// Requests so far.
    pub requests: u64,
    /// When it was opened.
    pub started: Instant,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stream.close_notify();
    }
}

struct Idle {
    connection: Connection,
    until: Instant,
}

/// The idle connections of one loop to the peers of a group.
#[derive(Default)]
pub struct Pool {
    /// The newest last.
    idle: RefCell<Vec<Idle>>,
    /// Somebody watches them.
    tended: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Pool {
    /// Takes the newest connection to a peer that still seems good.
    pub fn take(&self, peer: &Arc<Peer>, tag: u64) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        let fits = |i: &Idle| i.connection.tag == tag && same(&i.connection.peer, peer);
        while let Some(at) = idle.iter().rposition(fits) {
            let mut connection = idle.remove(at).connection;
            connection.stream.set_deadline(None);
            if is_silent(&connection.stream) {
                connection.requests += 1;
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for later, if the limits allow it and nothing came on it unasked.
    pub fn give(self: &Rc<Self>, handle: &Handle, connection: Connection, limits: &Limits) {
        let now = handle.now();
        let age = now.saturating_duration_since(connection.started);
        if limits.idle == 0 || connection.requests >= limits.requests || age >= limits.time {
            return;
        }
        if !is_silent(&connection.stream) {
            return;
        }
        connection.stream.set_deadline(None);
        let new = connection.requests <= 1;
        let mut idle = self.idle.borrow_mut();
        if idle.len() >= limits.idle {
            idle.remove(0);
        }
        idle.push(Idle { connection, until: now + limits.timeout });
        drop(idle);
        if !self.tended.replace(true) {
            handle.spawn(Tending { pool: self.clone(), handle: handle.clone(), sleep: None });
        } else if new && let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Closes all.
    pub fn clear(&self) {
        self.idle.borrow_mut().clear();
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
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

/// Nothing came that nobody asked for, neither bytes nor the end. Costs a system call only where something
/// may be there.
fn is_silent(stream: &Wire) -> bool {
    if stream.socket().peek_closed() {
        return false;
    }
    let handle = stream.socket().handle();
    let mut probe = handle.take_buf(1);
    let answer = stream.try_recv(&mut probe);
    handle.give_buf(probe);
    matches!(answer, Ok(None))
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
        let mut idle = this.pool.idle.borrow_mut();
        idle.retain(|i| {
            let mut closed = i.connection.stream.socket().closed();
            i.until > now && Pin::new(&mut closed).poll(cx).is_pending()
        });
        let Some(next) = idle.iter().map(|i| i.until).min() else {
            this.pool.tended.set(false);
            *this.pool.waker.borrow_mut() = None;
            return Poll::Ready(());
        };
        drop(idle);
        *this.pool.waker.borrow_mut() = Some(cx.waker().clone());
        let mut sleep = this.handle.sleep_until(next);
        if Pin::new(&mut sleep).poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        this.sleep = Some(sleep);
        Poll::Pending
    }
}
