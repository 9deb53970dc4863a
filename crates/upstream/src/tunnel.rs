//! Bytes in both directions between a client and a server: sessions, and connections that agreed to another
//! protocol (101, CONNECT).

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

use crate::Rate;
use moving::Offering;
pub use moving::run_movable;

/// One read, where nothing else is said.
pub const PIECE: usize = 16 * 1024;
/// What reads grow to, where nothing else is said. For each send the other end of a connection is woken, and opens its
/// window: on Linux 6.18, 64 KiB in four pieces of 16 cost twice what they cost in one, of which `splice` saves a tenth at most.
pub const MOST: usize = 64 * 1024;

/// How bytes pass.
#[derive(Debug, Clone, Copy)]
pub struct Ways {
    /// It ends when neither side has sent anything for so long.
    pub timeout: Duration,
    /// The first read of a side, and each after one that could not be passed on at once.
    pub piece: usize,
    /// What reads grow to as long as the other side takes all at once.
    pub most: usize,
    /// Bytes a second from the client; 0: no limit.
    pub up_rate: u64,
    /// Bytes a second to the client; 0: no limit.
    pub down_rate: u64,
    /// It ends when the server takes nothing of what waits for it, and nothing else passes, for so long. None: `timeout`
    /// is all that counts.
    pub up_patience: Option<Duration>,
    /// The same of the client.
    pub down_patience: Option<Duration>,
    /// One side may be done long before the other.
    pub half_close: bool,
}

impl Ways {
    /// As fast as both sides can, and as long as each may take to take something.
    pub fn plain(timeout: Duration, up_patience: Duration, down_patience: Duration) -> Ways {
        Ways {
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

/// What went through, for readers while the tunnel lives.
#[derive(Debug, Default)]
pub struct PassedBytes {
    /// From the client.
    pub up: Bytes,
    /// To the server.
    pub up_sent: Bytes,
    /// From the server.
    pub down: Bytes,
    /// To the client.
    pub down_sent: Bytes,
    /// When the server's first bytes came.
    pub first: OnceLock<Instant>,
}

/// How many they are; one loop at a time writes it.
#[derive(Debug, Default)]
pub struct Bytes(AtomicU64);

impl Bytes {
    /// So far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// So many more.
    pub fn add(&self, n: u64) {
        self.0.store(self.get() + n, Relaxed);
    }

    /// So many of them do not count after all.
    pub fn take_back(&self, n: u64) {
        self.0.store(self.get().saturating_sub(n), Relaxed);
    }
}

/// The end that was done first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelEnd {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// How a tunnel broke: with which end, reading or sending.
#[derive(Debug)]
pub struct Broke {
    /// The end that it broke with.
    pub end: TunnelEnd,
    /// What was sent did not go out.
    pub sending: bool,
    /// Why.
    pub error: io::Error,
}

/// Passes bytes until one side is done and what it sent has gone out, or until neither has sent anything for the
/// time-out. With `half_close`, until both are done. `answered` is called at the server's first bytes.
pub async fn run(
    handle: &Handle,
    client: &Wire,
    server: &Wire,
    ways: Ways,
    passed: &PassedBytes,
    answered: impl Fn(),
) -> Result<TunnelEnd, Broke> {
    // Only bytes that are offered are taken.
    let gone = || Broke::with(TunnelEnd::Server, reading(io::ErrorKind::NotConnected.into()));
    pass(handle, client, server, ways, passed, answered, None).await.unwrap_or_else(|| Err(gone()))
}

/// As [`run`]. While nothing is on its way it is offered to other loops; none if one has taken it.
async fn pass(
    handle: &Handle,
    client: &Wire,
    server: &Wire,
    ways: Ways,
    passed: &PassedBytes,
    answered: impl Fn(),
    mut offering: Option<&mut Offering<'_>>,
) -> Option<Result<TunnelEnd, Broke>> {
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
    // nginx ends a tunnel with the first direction that ends. They share the task's budget, so each goes first
    // every other time.
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
                    return Poll::Ready(Some(Err(Broke::with(end, failed))));
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

impl Broke {
    /// The direction from this end failed.
    fn with(from: TunnelEnd, DirectionError { sending, error }: DirectionError) -> Broke {
        let end = match (sending, from) {
            (false, end) => end,
            (true, TunnelEnd::Client) => TunnelEnd::Server,
            (true, TunnelEnd::Server) => TunnelEnd::Client,
        };
        Broke { end, sending, error }
    }
}

/// Why a direction ended.
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
    /// The end that is to take the bytes need not send meanwhile: only the other end is waited for.
    may_be_silent: bool,
    /// When something went either way.
    active: &'w Cell<Instant>,
    /// Nothing is on its way, and it is waited for.
    waits: &'w Cell<bool>,
    /// How many directions pause for their rate. While one does, neither end has a time-out: the silence is this server's.
    pauses: &'w Cell<u32>,
}

impl Direction<'_> {
    async fn pass(
        self,
        handle: &Handle,
        ways: Ways,
        read: &Bytes,
        sent: &Bytes,
        heard: impl Fn(),
    ) -> Result<(), DirectionError> {
        let Direction { from, to, active, .. } = self;
        let rate = Rate::new(self.rate, handle.now());
        let mut piece = ways.piece;
        loop {
            let allowed = match rate {
                None => piece,
                Some(rate) => self.permitted(handle, ways, rate, read.get()).await.min(ways.piece),
            };
            self.wait_no_longer_than(ways.timeout);
            self.waits.set(true);
            let readable = from.readable().await;
            self.waits.set(false);
            readable.map_err(reading)?;
            let mut buf = room(handle, allowed, rate.is_some());
            let received = from.try_recv(&mut buf);
            if let Ok(None) = received {
                handle.give_buf(buf);
                continue;
            }
            // Its end is heard, too.
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
                // It is rare, and no part of every tunnel.
                Some(left) => {
                    Box::pin(self.give(handle, left, ways, sent)).await.map_err(sending)?
                }
            };
            piece = match at_once {
                true if n >= piece => (piece * 2).min(ways.most),
                true => piece,
                false => ways.piece,
            };
            let pause = rate.map(|rate| rate.time_of(n as u64));
            if let Some(pause) = pause.filter(|pause| !pause.is_zero()) {
                self.pause(handle, ways, pause).await;
            }
        }
    }

    /// Sends what there is room for, where that needs no more than a call: what is left.
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

    /// Sends all; whether there was room for it at once.
    async fn give(
        &self,
        handle: &Handle,
        bytes: Segment,
        ways: Ways,
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

    /// How many bytes may pass, once some may.
    async fn permitted(&self, handle: &Handle, ways: Ways, rate: Rate, passed: u64) -> usize {
        loop {
            match rate.left(handle.now(), passed) {
                Ok(left) => return usize::try_from(left).unwrap_or(usize::MAX),
                Err(late) => self.pause(handle, ways, late).await,
            }
        }
    }

    /// Reads nothing for so long. The time-out of both ends begins anew when no direction pauses any more.
    async fn pause(&self, handle: &Handle, ways: Ways, time: Duration) {
        self.pauses.set(self.pauses.get() + 1);
        self.wait_no_longer_than(ways.timeout);
        handle.sleep(time).await;
        self.pauses.set(self.pauses.get() - 1);
        self.wait_no_longer_than(ways.timeout);
    }

    /// Something has just passed, or may: from now on both ends have so much time, unless a direction pauses.
    fn wait_no_longer_than(&self, timeout: Duration) {
        let most = (self.pauses.get() == 0).then_some(timeout);
        self.from.set_timeout(most);
        self.to.set_timeout(most);
    }

    /// Sends some, unless nothing passes either way for too long.
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

    /// Waits until nothing has passed for so long.
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

/// Where bytes are received: as many as there is room for, or no more than may pass now.
fn room(handle: &Handle, piece: usize, exactly: bool) -> Vec<u8> {
    match exactly {
        true => Vec::with_capacity(piece),
        false => handle.take_buf(piece),
    }
}

#[cfg(test)]
mod tests;
