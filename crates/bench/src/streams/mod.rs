//! Connections with concurrent requests: HTTP/2 and HTTP/3.
//!
//! Each connection has as many streams as the plan says. Each stream is a client that makes one
//! request after another. The first stream that needs a connection opens it, and the others wait
//! for it. The protocol implements [`Multiplexed`].

mod pool;

use std::rc::Rc;
use std::time::Instant;

use weir_engine::{Either, either};

use self::pool::ConnectionPool;
use crate::RequestFailure;
use crate::thread_state::{ClientGuard, DueRequest, ThreadState};

/// A connection. Each clone can make requests, and the connection closes with the last clone.
pub(crate) trait Multiplexed: Clone + 'static {
    /// Connects to the peer of this index.
    async fn connect(state: &Rc<ThreadState>, peer: usize) -> Result<Self, RequestFailure>;
    /// Makes a request and reads its response. The future may be dropped at any time.
    async fn exchange(self, state: &ThreadState, due: &DueRequest<'_>)
    -> Result<(), ExchangeError>;
}

/// Why a request has no response.
pub(crate) enum ExchangeError {
    /// The server has not processed the request, so it may be sent again.
    Unprocessed(RequestFailure),
    /// Any other failure.
    Other(RequestFailure),
}

/// Starts the clients of one connection.
pub(crate) fn spawn<C: Multiplexed>(state: &Rc<ThreadState>, order: u32, streams: usize) {
    let pool = ConnectionPool::<C>::new(state.plan.peers.len(), order);
    state.live.set(state.live.get() + streams);
    for n in 0..streams {
        let client = StreamLoop {
            state: Rc::clone(state),
            pool: Rc::clone(&pool),
            free_since: state.schedule.began,
        };
        state.h.spawn(client.run(order, n == 0));
    }
}

/// One stream of a connection.
struct StreamLoop<C> {
    state: Rc<ThreadState>,
    pool: Rc<ConnectionPool<C>>,
    /// When the last request ended.
    free_since: Instant,
}

impl<C: Multiplexed> StreamLoop<C> {
    async fn run(mut self, order: u32, is_first: bool) {
        let state = Rc::clone(&self.state);
        let _guard = ClientGuard(Rc::clone(&state));
        if let Some(gap) = state.plan.connect_first {
            if is_first {
                state.h.sleep(gap.saturating_mul(order)).await;
                // A failure is not counted here. The first request connects again and counts it.
                let first = state.plan.calls.first().map_or(0, |call| call.peer);
                let _ = self.pool.sender(&state, first).await;
            }
            state.h.sleep_until(state.schedule.began).await;
        }
        while let Some(start) = state.schedule.claim(Instant::now()) {
            let Some(due) = state.begin(start, self.free_since).await else { return };
            if let Err(failure) = self.serve(&due).await {
                state.failed(failure, 1).await;
            }
            self.free_since = Instant::now();
        }
    }

    /// Makes one request. If the server has not processed it, for example because the connection
    /// reached its limit of requests, it is sent once more on a new connection. Browsers do the
    /// same.
    async fn serve(&mut self, due: &DueRequest<'_>) -> Result<(), RequestFailure> {
        let mut again = true;
        loop {
            let peer = due.call.peer;
            let (sender, number) = self.pool.sender(&self.state, peer).await?;
            let over = either(
                sender.exchange(&self.state, due),
                self.state.h.sleep(self.state.plan.timeout),
            );
            match over.await {
                Either::Left(Ok(())) => {
                    if self.pool.closes(&self.state) {
                        self.pool.retire(peer, number);
                    }
                    return Ok(());
                }
                Either::Left(Err(ExchangeError::Unprocessed(_))) if again => {
                    again = false;
                    self.pool.retire(peer, number);
                }
                Either::Left(Err(
                    ExchangeError::Unprocessed(failure) | ExchangeError::Other(failure),
                )) => {
                    if !matches!(
                        failure,
                        RequestFailure::StreamReset | RequestFailure::StreamRefused
                    ) {
                        self.pool.retire(peer, number);
                    }
                    return Err(failure);
                }
                Either::Right(()) => return Err(RequestFailure::Timeout),
            }
        }
    }
}
