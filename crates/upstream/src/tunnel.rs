//! Passes bytes in both directions between a client and a server: sessions of `stream` and `mail`,
//! and HTTP connections after 101 or CONNECT.

mod moving;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::{Duration, Instant};

use weir_engine::{Chain, Either, Handle, Patience, Segment, either};
use weir_tls::Wire;

use crate::Pace;
use moving::Offering;
pub use moving::run_movable;

/// The default size of the first read.
pub const PIECE: usize = 16 * 1024;
/// The default size that reads grow to. Each send wakes the receiver and opens its window. On Linux
/// 6.18, 64 KiB in four sends of 16 KiB cost twice as much as in one. `splice` would save a tenth
/// of that, at most.
pub const MOST: usize = 64 * 1024;

/// Settings of a tunnel.
#[derive(Debug, Clone, Copy)]
pub struct TunnelOptions {
    /// The tunnel ends when neither side has sent anything for this long.
    pub timeout: Duration,
    /// The size of a direction's first read, and of each read after data that could not be sent at
    /// once.
    pub piece: usize,
    /// The size that reads grow to while all data can be sent at once.
    pub most: usize,
    /// Bytes a second from the client; 0 for no limit.
    pub up_rate: u64,
    /// Bytes a second to the client; 0 for no limit.
    pub down_rate: u64,
    /// The tunnel ends when data wait for the server and nothing passes in either direction for
    /// this long. If `None`, only `timeout` applies.
    pub up_patience: Option<Duration>,
    /// The same for data that wait for the client.
    pub down_patience: Option<Duration>,
    /// The tunnel goes on after one side has closed its sending side. nginx: `proxy_half_close`.
    pub half_close: bool,
}

impl TunnelOptions {
    /// Settings without rate limits.
    pub fn plain(
        timeout: Duration,
        up_patience: Duration,
        down_patience: Duration,
    ) -> TunnelOptions {
        TunnelOptions {
            timeout,
            piece: PIECE,
            most: MOST,
            up_rate: 0,
            down_rate: 0,
            up_patience: Some(up_patience),
            down_patience: Some(down_patience),
            half_close: false,
        }
    }
}

/// Byte counters of a tunnel, which other tasks may read while it runs.
#[derive(Debug, Default)]
pub struct PassedBytes {
    /// Received from the client.
    pub up: Bytes,
    /// Sent to the server.
    pub up_sent: Bytes,
    /// Received from the server.
    pub down: Bytes,
    /// Sent to the client.
    pub down_sent: Bytes,
    /// When the first bytes of the server arrived.
    pub first: OnceLock<Instant>,
}

/// A byte counter. One loop at a time writes it.
#[derive(Debug, Default)]
pub struct Bytes(AtomicU64);

impl Bytes {
    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Adds `n` bytes.
    pub fn add(&self, n: u64) {
        self.0.store(self.get() + n, Relaxed);
    }

    /// Subtracts `n` bytes.
    pub fn take_back(&self, n: u64) {
        self.0.store(self.get().saturating_sub(n), Relaxed);
    }
}

/// An end of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelEnd {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// Why a tunnel failed.
#[derive(Debug)]
pub struct TunnelError {
    /// The end whose connection failed.
    pub end: TunnelEnd,
    /// Whether sending failed. Otherwise receiving did.
    pub sending: bool,
    /// The error.
    pub error: io::Error,
}

/// Passes bytes until one side has closed and its data are sent, or until neither side has sent
/// anything for the timeout. With `half_close`, until both sides have closed. Returns the side that
/// ended the tunnel. Calls `answered` at the server's first bytes.
pub async fn run(
    handle: &Handle,
    client: &Wire,
    server: &Wire,
    ways: TunnelOptions,
    passed: &PassedBytes,
    answered: impl Fn(),
) -> Result<TunnelEnd, TunnelError> {
    // Cannot happen: without an `Offering`, no other loop takes the tunnel.
    let gone = || TunnelError::with(TunnelEnd::Server, reading(io::ErrorKind::NotConnected.into()));
    pass(handle, client, server, ways, passed, answered, None).await.unwrap_or_else(|| Err(gone()))
}

/// As [`run`]. While no data are in flight, the tunnel is offered to other loops. None if one has
/// taken it.
async fn pass(
    handle: &Handle,
    client: &Wire,
    server: &Wire,
    ways: TunnelOptions,
    passed: &PassedBytes,
    answered: impl Fn(),
    mut offering: Option<&mut Offering<'_>>,
) -> Option<Result<TunnelEnd, TunnelError>> {
    let active = &Cell::new(handle.now());
    let waits = [&Cell::new(false), &Cell::new(false)];
    let pauses = &Cell::new(0);
    let up = Direction {
        from: client,
        to: server,
        rate: ways.up_rate,
        patience: ways.up_patience,
        active,
        may_be_silent: false,
        waits: waits[0],
        pauses,
    };
    let down = Direction {
        from: server,
        to: client,
        rate: ways.down_rate,
        patience: ways.down_patience,
        active,
        may_be_silent: true,
        waits: waits[1],
        pauses,
    };
    let first = || {
        if passed.first.set(handle.now()).is_ok() {
            answered();
        }
    };
    let up = up.pass(handle, ways, &passed.up, &passed.up_sent, || {});
    let down = down.pass(handle, ways, &passed.down, &passed.down_sent, first);
    let (mut up, mut down) = (pin!(up), pin!(down));
    let (mut up_first, mut up_done, mut down_done) = (false, false, false);
    // As in nginx, the first direction that ends also ends the tunnel. Both directions share the
    // task's budget, so they take turns in going first.
    poll_fn(|cx| {
        if offering.as_mut().is_some_and(|offering| !offering.withdraw()) {
            return Poll::Ready(None);
        }
        up_first = !up_first;
        for turn in [up_first, !up_first] {
            let (done, other, end) = match turn {
                true => (&mut up_done, down_done, TunnelEnd::Client),
                false => (&mut down_done, up_done, TunnelEnd::Server),
            };
            if *done {
                continue;
            }
            let polled = match turn {
                true => up.as_mut().poll(cx),
                false => down.as_mut().poll(cx),
            };
            match polled {
                Poll::Pending => {}
                Poll::Ready(Ok(())) if ways.half_close && !other => *done = true,
                Poll::Ready(Ok(())) => return Poll::Ready(Some(Ok(end))),
                Poll::Ready(Err(failed)) => {
                    return Poll::Ready(Some(Err(TunnelError::with(end, failed))));
                }
            }
        }
        if waits.iter().all(|waits| waits.get()) {
            offering.iter_mut().for_each(|offering| offering.offer());
        }
        Poll::Pending
    })
    .await
}

impl TunnelError {
    /// The error of the direction that begins at this end.
    fn with(from: TunnelEnd, DirectionError { sending, error }: DirectionError) -> TunnelError {
        let end = match (sending, from) {
            (false, end) => end,
            (true, TunnelEnd::Client) => TunnelEnd::Server,
            (true, TunnelEnd::Server) => TunnelEnd::Client,
        };
        TunnelError { end, sending, error }
    }
}

/// Why a direction failed.
struct DirectionError {
    sending: bool,
    error: io::Error,
}

fn reading(error: io::Error) -> DirectionError {
    DirectionError { sending: false, error }
}

fn sending(error: io::Error) -> DirectionError {
    DirectionError { sending: true, error }
}

/// One direction.
struct Direction<'w> {
    from: &'w Wire,
    to: &'w Wire,
    rate: u64,
    patience: Option<Duration>,
    /// While data wait for the receiving end, it need not send anything: its deadline is off.
    may_be_silent: bool,
    /// When data last passed in either direction.
    active: &'w Cell<Instant>,
    /// The direction has nothing in flight and waits for data.
    waits: &'w Cell<bool>,
    /// How many directions pause for their rate limit. While one does, neither end has a timeout,
    /// since this server causes the silence.
    pauses: &'w Cell<u32>,
}

impl Direction<'_> {
    async fn pass(
        self,
        handle: &Handle,
        ways: TunnelOptions,
        read: &Bytes,
        sent: &Bytes,
        heard: impl Fn(),
    ) -> Result<(), DirectionError> {
        let Direction { from, to, active, .. } = self;
        let mut pace = Pace::new(self.rate, handle.now());
        let mut piece = ways.piece;
        loop {
            let allowed = match pace {
                None => piece,
                Some(pace) => self.permitted(handle, ways, pace, read.get()).await.min(ways.piece),
            };
            self.wait_no_longer_than(ways.timeout);
            self.waits.set(true);
            let readable = from.readable().await;
            self.waits.set(false);
            readable.map_err(reading)?;
            let mut buf = room(handle, allowed, pace.is_some());
            let received = from.try_recv(&mut buf);
            if let Ok(None) = received {
                handle.give_buf(buf);
                continue;
            }
            // The end of data counts as heard, too.
            heard();
            let n = received.map_err(reading)?.unwrap_or(0);
            if n == 0 {
                handle.give_buf(buf);
                if ways.half_close {
                    let _ = to.shutdown_write();
                }
                return Ok(());
            }
            read.add(n as u64);
            active.set(handle.now());
            let at_once = match self.give_at_once(handle, buf, sent).map_err(sending)? {
                None => true,
                // Boxed, since it is rare and would make each tunnel's future larger.
                Some(left) => {
                    Box::pin(self.give(handle, left, ways, sent)).await.map_err(sending)?
                }
            };
            piece = match at_once {
                true if n >= piece => (piece * 2).min(ways.most),
                true => piece,
                false => ways.piece,
            };
            if let Some(pace) = &mut pace {
                pace.read(n as u64, handle.now());
            }
        }
    }

    /// Sends as much as fits into the socket's buffer, with one system call. Returns the rest. TLS
    /// sends nothing here.
    fn give_at_once(
        &self,
        handle: &Handle,
        buf: Vec<u8>,
        sent: &Bytes,
    ) -> io::Result<Option<Segment>> {
        let start = match self.to {
            Wire::Plain(stream) => stream.try_send_bytes(&buf)?,
            Wire::Tls(_) => 0,
        };
        sent.add(start as u64);
        if start < buf.len() {
            return Ok(Some(Segment::Buf { buf, start }));
        }
        handle.give_buf(buf);
        Ok(None)
    }

    /// Sends everything. True if there was room for it at once.
    async fn give(
        &self,
        handle: &Handle,
        bytes: Segment,
        ways: TunnelOptions,
        sent: &Bytes,
    ) -> io::Result<bool> {
        let mut chain = Chain::new();
        chain.push(bytes);
        let mut left = chain.len();
        let mut count = |chain: &Chain| {
            sent.add(left - chain.len());
            left = chain.len();
        };
        let tried = self.to.try_send(&mut chain);
        count(&chain);
        tried?;
        if chain.is_empty() {
            return Ok(true);
        }
        while !chain.is_empty() {
            let some = match self.patience {
                None => {
                    self.wait_no_longer_than(ways.timeout);
                    self.to.send_some(&mut chain, Patience::Watched).await
                }
                Some(patience) => self.send_some(handle, &mut chain, patience).await,
            };
            count(&chain);
            some?;
            self.active.set(handle.now());
        }
        Ok(false)
    }

    /// Waits until the rate limit allows some bytes, and returns how many.
    async fn permitted(
        &self,
        handle: &Handle,
        ways: TunnelOptions,
        pace: Pace,
        passed: u64,
    ) -> usize {
        loop {
            match pace.left(handle.now(), passed) {
                Ok(left) => return usize::try_from(left).unwrap_or(usize::MAX),
                Err(late) => self.pause(handle, ways, late).await,
            }
        }
    }

    /// Pauses reading. The timeout of both ends begins anew when no direction pauses any more.
    async fn pause(&self, handle: &Handle, ways: TunnelOptions, time: Duration) {
        self.pauses.set(self.pauses.get() + 1);
        self.wait_no_longer_than(ways.timeout);
        handle.sleep(time).await;
        self.pauses.set(self.pauses.get() - 1);
        self.wait_no_longer_than(ways.timeout);
    }

    /// Restarts the timeout of both ends. While a direction pauses, they have none.
    fn wait_no_longer_than(&self, timeout: Duration) {
        let most = (self.pauses.get() == 0).then_some(timeout);
        self.from.set_timeout(most);
        self.to.set_timeout(most);
    }

    /// Sends some data. Fails with a timeout if nothing passes in either direction for too long.
    async fn send_some(
        &self,
        handle: &Handle,
        chain: &mut Chain,
        most: Duration,
    ) -> io::Result<()> {
        if self.may_be_silent {
            self.to.set_deadline(None);
        }
        let sending = self.to.send_some(chain, Patience::Watched);
        match either(sending, self.silence(handle, most)).await {
            Either::Left(sent) => sent,
            Either::Right(()) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Waits until nothing has passed in either direction for `most`.
    async fn silence(&self, handle: &Handle, most: Duration) {
        loop {
            let end = self.active.get() + most;
            if handle.now() >= end {
                return;
            }
            handle.sleep_until(end).await;
        }
    }
}

/// A receive buffer. If `exactly`, it has room for `piece` bytes and no more, since a rate limit
/// applies.
fn room(handle: &Handle, piece: usize, exactly: bool) -> Vec<u8> {
    match exactly {
        true => Vec::with_capacity(piece),
        false => handle.take_buf(piece),
    }
}

#[cfg(test)]
mod tests;
