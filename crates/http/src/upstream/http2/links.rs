//! A loop's shared connections to the servers of one group.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Instant;

use weir_proto::http2::frame;
use weir_upstream::{Limits, Peer, Tag};

use super::link::{Link, MOST};

/// The connections of one loop.
#[derive(Default)]
pub struct Links {
    list: RefCell<Vec<Rc<Link>>>,
    /// Connections that are being opened.
    dials: RefCell<Vec<Rc<Dial>>>,
}

/// The result of looking for a connection.
pub enum FoundLink {
    /// A connection with room for it.
    Link(Rc<Link>),
    /// A connection that is being opened and may have room for the request.
    Coming(Coming),
    /// None. The caller must open one.
    None(Opening),
}

/// A connection that is being opened.
struct Dial {
    peer: std::sync::Arc<Peer>,
    tag: Tag,
    /// Whether it was opened or failed. `None` before that.
    open: Cell<Option<bool>>,
    /// Number of requests that wait for it.
    streams: Cell<u32>,
    /// Bytes of their bodies.
    bodies: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

/// The right to open a connection. Dropping it means failure.
pub struct Opening {
    dial: Rc<Dial>,
    links: Weak<Links>,
}

/// A connection that another request is opening.
pub struct Coming(Rc<Dial>);

impl Links {
    /// Finds a connection to a peer with this tag, for a request with `body` bytes. Without
    /// `shared`, always a new one.
    pub fn find(
        self: &Rc<Self>,
        peer: &std::sync::Arc<Peer>,
        tag: Tag,
        body: u64,
        limits: &Limits,
        now: Instant,
        shared: bool,
    ) -> FoundLink {
        if shared {
            let list = self.list.borrow();
            let fits = |link: &&Rc<Link>| {
                let connection = &link.connection;
                connection.tag == tag
                    && connection.peer.endpoint == peer.endpoint
                    && link.has_room(body, limits, now)
            };
            if let Some(link) = list.iter().find(fits) {
                return FoundLink::Link(link.clone());
            }
            // The server's limit is probably the same on the next connection.
            let same = list.iter().filter(|link| link.connection.peer.endpoint == peer.endpoint);
            let most = same.map(|link| link.most()).min().unwrap_or(MOST);
            let dials = self.dials.borrow();
            let fits = |dial: &&Rc<Dial>| {
                dial.tag == tag && dial.peer.endpoint == peer.endpoint && dial.takes(body, most)
            };
            if let Some(dial) = dials.iter().find(fits) {
                return FoundLink::Coming(Coming(dial.clone()));
            }
        }
        let (open, waiting) = Default::default();
        let (streams, bodies) = (Cell::new(1), Cell::new(body));
        let dial = Rc::new(Dial { peer: peer.clone(), tag, open, streams, bodies, waiting });
        self.dials.borrow_mut().push(dial.clone());
        FoundLink::None(Opening { dial, links: Rc::downgrade(self) })
    }

    /// Adds a connection.
    pub fn add(&self, link: Rc<Link>) {
        self.list.borrow_mut().push(link);
    }

    /// Removes a connection that has ended.
    pub fn remove(&self, link: &Rc<Link>) {
        self.list.borrow_mut().retain(|other| !Rc::ptr_eq(other, link));
    }

    /// Ends the connection that has been idle longest, if more than `most` are idle.
    pub fn trim(&self, most: usize) {
        let list = self.list.borrow();
        let idle = || list.iter().filter(|l| !l.is_leaving() && l.idle_since().is_some());
        if idle().count() > most
            && let Some(oldest) = idle().min_by_key(|link| link.idle_since())
        {
            oldest.leave();
        }
    }

    /// Lets all connections end with their last streams, before the loop ends.
    pub fn clear(&self) {
        for link in self.list.borrow().iter() {
            link.leave();
        }
    }
}

impl Dial {
    /// Adds a waiting request, if its `body` bytes fit and fewer than `most` wait. True if it was
    /// added.
    fn takes(&self, body: u64, most: u32) -> bool {
        let before = self.bodies.get();
        let bodies = before.saturating_add(body);
        let fits = body == 0 || before == 0 || bodies <= u64::from(frame::DEFAULT_WINDOW) / 2;
        let takes = fits && self.streams.get() < most;
        if takes {
            self.bodies.set(bodies);
            self.streams.set(self.streams.get() + 1);
        }
        takes
    }
}

impl Opening {
    /// Notes that the connection is open and has room for the waiting requests.
    pub fn done(self) {
        self.dial.open.set(Some(true));
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let dial = &self.dial;
        if dial.open.get().is_none() {
            dial.open.set(Some(false));
        }
        if let Some(links) = self.links.upgrade() {
            links.dials.borrow_mut().retain(|other| !Rc::ptr_eq(other, dial));
        }
        for waker in dial.waiting.take() {
            waker.wake();
        }
    }
}

impl Coming {
    /// Waits until the connection is open. False if it failed.
    pub async fn wait(&self) -> bool {
        poll_fn(|cx| match self.0.open.get() {
            Some(open) => Poll::Ready(open),
            None => {
                let mut waiting = self.0.waiting.borrow_mut();
                if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }
}
