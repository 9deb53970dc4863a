//! The connections that one client's streams share: one to each peer, made when needed.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};

use super::socket::Socket;
use crate::site::Site;
use crate::{Closing, Failure};

/// How much a server may send before we have taken it; as large as it may be, so that it is never
/// the client that slows it.
const WINDOW: u32 = (1 << 31) - 1;
/// Room for a frame of an answer, as the protocol's least.
const FRAME: u32 = 16 << 10;

pub(super) struct Line {
    slots: RefCell<Vec<Slot>>,
    random: Cell<u64>,
    /// The next connection's number.
    next: Cell<u64>,
}

enum Slot {
    Empty,
    /// One is being made, and these wait for it.
    Opening(Vec<Waker>),
    Open(SendRequest<Bytes>, u64),
}

impl Line {
    pub(super) fn new(peers: usize, order: u32) -> Rc<Line> {
        let slots = (0..peers).map(|_| Slot::Empty).collect();
        let random = Cell::new(Closing::seed(order));
        Rc::new(Line { slots: RefCell::new(slots), random, next: Cell::new(0) })
    }

    /// A way to send to a peer, and the connection's number. Its time is bounded by the plan's.
    pub(super) async fn sender(
        &self,
        site: &Rc<Site>,
        peer: usize,
    ) -> Result<(SendRequest<Bytes>, u64), Failure> {
        if let Some(open) = poll_fn(|cx| self.open_or_mine(peer, cx.waker())).await {
            return Ok(open);
        }
        let made = connect(site, peer).await;
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(peer) else { return Err(Failure::Connect) };
        let number = self.next.replace(self.next.get() + 1);
        let new = match &made {
            Ok(sender) => Slot::Open(sender.clone(), number),
            Err(_) => Slot::Empty,
        };
        if let Slot::Opening(waiting) = std::mem::replace(slot, new) {
            waiting.into_iter().for_each(Waker::wake);
        }
        made.map(|sender| (sender, number))
    }

    /// The open connection; or nothing, and it is the caller's to open one.
    #[allow(clippy::type_complexity, reason = "a poll of what `sender` returns")]
    fn open_or_mine(&self, peer: usize, waker: &Waker) -> Poll<Option<(SendRequest<Bytes>, u64)>> {
        match self.slots.borrow_mut().get_mut(peer) {
            Some(Slot::Open(sender, number)) => Poll::Ready(Some((sender.clone(), *number))),
            Some(Slot::Opening(waiting)) => {
                waiting.push(waker.clone());
                Poll::Pending
            }
            Some(slot @ Slot::Empty) => {
                *slot = Slot::Opening(Vec::new());
                Poll::Ready(None)
            }
            None => Poll::Ready(None),
        }
    }

    /// No further request goes over this connection; it ends when the last of its requests has.
    pub(super) fn leave(&self, peer: usize, number: u64) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(peer)
            && matches!(slot, Slot::Open(_, open) if *open == number)
        {
            *slot = Slot::Empty;
        }
    }

    /// Whether the connection is left after a request.
    pub(super) fn closes(&self, site: &Site) -> bool {
        let mut random = self.random.get();
        let closes = site.plan.closing.draw(&mut random);
        self.random.set(random);
        closes
    }
}

async fn connect(site: &Rc<Site>, peer: usize) -> Result<SendRequest<Bytes>, Failure> {
    let Some(to) = site.plan.peers.get(peer) else { return Err(Failure::Connect) };
    let socket = Socket::new(site.open(to).await?, Rc::clone(site));
    let streams = site.plan.http2.unwrap_or(1);
    let (sender, connection) = Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .enable_push(false)
        .initial_max_send_streams(streams)
        .handshake(socket)
        .await
        .map_err(|_| Failure::Send)?;
    // How it ends is told to each of its requests.
    site.h.spawn(async move { drop(connection.await) });
    Ok(sender)
}
