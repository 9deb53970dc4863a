//! Connections with several requests at a time: HTTP/2 and HTTP/3.
//!
//! Each connection has as many streams as were asked for; each is a client that makes one request after another. The first
//! that needs the connection makes it, the others wait for it. What is spoken on it is a [`Multiplexed`]'s.

mod pool;

use std::rc::Rc;
use std::time::Instant;

use weir_engine::{Either, either};

use self::pool::ConnectionPool;
use crate::RequestFailure;
use crate::site::{DueRequest, Leave, ThreadPlan};

/// A connection, of which each copy can make requests. It is closed with the last copy.
pub(crate) trait Multiplexed: Clone + 'static {
    /// Makes a connection to the peer of this number.
    async fn connect(site: &Rc<ThreadPlan>, peer: usize) -> Result<Self, RequestFailure>;
    /// Makes a request and reads its answer. It may be given up at any time.
    async fn exchange(self, site: &ThreadPlan, begun: &DueRequest<'_>) -> Result<(), Lost>;
}

/// Why a request has no answer.
pub(crate) enum Lost {
    /// The server has said that it did not begin with it: it may be sent again.
    Untouched(RequestFailure),
    /// Any other way.
    For(RequestFailure),
}

/// Starts the clients of one connection.
pub(crate) fn spawn<C: Multiplexed>(site: &Rc<ThreadPlan>, order: u32, streams: usize) {
    let pool = ConnectionPool::<C>::new(site.plan.peers.len(), order);
    site.live.set(site.live.get() + streams);
    for n in 0..streams {
        let client =
            StreamLoop { site: Rc::clone(site), pool: Rc::clone(&pool), free: site.schedule.began };
        site.h.spawn(client.run(order, n == 0));
    }
}

/// One stream after another of a connection.
struct StreamLoop<C> {
    site: Rc<ThreadPlan>,
    pool: Rc<ConnectionPool<C>>,
    /// When the last request was over.
    free: Instant,
}

impl<C: Multiplexed> StreamLoop<C> {
    async fn run(mut self, order: u32, is_first: bool) {
        let site = Rc::clone(&self.site);
        let _leave = Leave(Rc::clone(&site));
        if let Some(gap) = site.plan.connect_first {
            if is_first {
                site.h.sleep(gap.saturating_mul(order)).await;
                // A client that cannot connect tries again with the first request, where failures
                // count.
                let first = site.plan.calls.first().map_or(0, |call| call.peer);
                let _ = self.pool.sender(&site, first).await;
            }
            site.h.sleep_until(site.schedule.began).await;
        }
        while let Some(start) = site.schedule.claim(Instant::now()) {
            let Some(begun) = site.begin(start, self.free).await else { return };
            if let Err(failure) = self.serve(&begun).await {
                site.failed(failure, 1).await;
            }
            self.free = Instant::now();
        }
    }

    /// One request. One that the server did not begin with, as when it ends the connection after so
    /// many requests, is sent once more over the next connection, as browsers do.
    async fn serve(&mut self, begun: &DueRequest<'_>) -> Result<(), RequestFailure> {
        let mut again = true;
        loop {
            let peer = begun.call.peer;
            let (sender, number) = self.pool.sender(&self.site, peer).await?;
            let over = either(
                sender.exchange(&self.site, begun),
                self.site.h.sleep(self.site.plan.timeout),
            );
            match over.await {
                Either::Left(Ok(())) => {
                    if self.pool.closes(&self.site) {
                        self.pool.leave(peer, number);
                    }
                    return Ok(());
                }
                Either::Left(Err(Lost::Untouched(_))) if again => {
                    again = false;
                    self.pool.leave(peer, number);
                }
                Either::Left(Err(Lost::Untouched(failure) | Lost::For(failure))) => {
                    if !matches!(
                        failure,
                        RequestFailure::StreamReset | RequestFailure::StreamRefused
                    ) {
                        self.pool.leave(peer, number);
                    }
                    return Err(failure);
                }
                Either::Right(()) => return Err(RequestFailure::Timeout),
            }
        }
    }
}
