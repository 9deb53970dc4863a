//! HTTP/1 connections. A task reads heads and serves requests one after another. Between requests the socket is parked
//! as a small value without buffers.

#![expect(clippy::disallowed_methods, reason = "this is the room")]

mod check;
mod handshake;
mod head;
mod pause;
pub mod presence;
mod scripted;
pub mod streamed;

use std::any::Any;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

pub use check::check;
use weir_engine::{Handle, Idle, Stream, Wake, breathe};
use weir_log::Level;
use weir_metrics::Metric;
use weir_ssl::HandedConnection;
use weir_sys::prefetch::prefetch;
use weir_values::Retire;

use head::{FIRST_READ, Head};
pub use pause::{GRACE, PAUSING, rest};

use crate::address::Address;
use crate::carrier::{Conn, Resting, TIMED_OUT};
use crate::connection::presence::Presence;
use crate::doing;
use crate::event_loop::LoopState;
use crate::http2;
use crate::phases;
use crate::request::begun::Begun;
use crate::request::{Request, Scratch};
use crate::site::core::Conf;

/// The log message for a client that closed its connection before it sent a request.
const CLOSED: &str = "client closed connection";
/// A client whose first bytes arrive within this time after the accept counts as one that sends its request at once.
const SOON: Duration = Duration::from_millis(16);

/// A connection between two requests.
struct Parked {
    conn: Resting,
    presence: Presence,
    /// Until when it stays open although the worker retires: for `keepalive_min_timeout`, or for the time in which a first
    /// request may arrive. An accepted client is promised an answer.
    stays: Instant,
}

impl LoopState {
    /// Takes an accepted socket (non-blocking) of the site's listening socket number `listen`.
    pub fn accepted(self: &Rc<Self>, fd: OwnedFd, peer: Address, listen: usize) {
        self.metrics.add(Metric::Accepted, 1);
        if let Ok(stream) = self.handle.stream(fd) {
            self.metrics.add(Metric::Handled, 1);
            accepted(self, stream, peer, listen);
        }
    }

    /// Takes over a connection for the site's listening socket number `listen`.
    pub fn take_over(self: &Rc<Self>, handed: HandedConnection, listen: usize) {
        taken_over(self, handed, listen);
    }

    /// Retires the loop: parked connections get no further requests.
    pub fn retire(&self, how: Retire) {
        self.begin_retiring(how);
        match how {
            Retire::Quit | Retire::Yield => self.handle.unpark_all(Wake::Shutdown),
            Retire::Reload => self.handle.unpark_where(Wake::Shutdown, http2::is_parked),
        };
    }
}

/// Takes a new connection. It is served at once if its first bytes are there, and parked until then otherwise.
#[inline]
fn accepted(event_loop: &Rc<LoopState>, stream: Stream, peer: Address, listen: usize) {
    let now = event_loop.handle.now();
    let number = event_loop.next_connection();
    let until = now + event_loop.site.first_timeout(listen);
    let conn = Resting::new(peer, listen, number, now);
    let new = Parked { conn, presence: Presence::begin(event_loop), stays: until };
    let Some((stream, parked)) = serve_at_once(event_loop, new, stream) else { return };
    parked.presence.wait(event_loop);
    rest(event_loop, stream, parked, until);
}

/// Takes over a connection from another listener, which may have read from it and may have begun TLS.
fn taken_over(event_loop: &Rc<LoopState>, handed: HandedConnection, listen: usize) {
    let (now, number) = (event_loop.handle.now(), event_loop.next_connection());
    let (stream, conn, bytes) = Resting::handed(handed, listen, number, now);
    let (mut conn, presence) = (conn.on(stream), Presence::begin(event_loop));
    let ssl = event_loop.site.protocols(&conn).ssl;
    if ssl && conn.is_tls() {
        handshake::take_over(&mut conn, event_loop);
    }
    if !ssl || conn.is_tls() {
        let mut scratch = event_loop.take_scratch();
        scratch.fill(bytes);
        let (conn, serving) = (Rc::new(conn), event_loop.clone());
        event_loop.handle.spawn_large(|| run(conn, presence, serving, scratch));
    } else {
        let serving = event_loop.clone();
        event_loop.handle.spawn_large(|| secure(conn, presence, serving, bytes));
    }
}

/// Serves a new connection if its first bytes are there. Returns it otherwise.
#[inline]
fn serve_at_once(
    event_loop: &Rc<LoopState>,
    new: Parked,
    stream: Stream,
) -> Option<(Stream, Parked)> {
    // A connection that is served at once must not overtake one of the same turn that was parked.
    // Where slow connections are handled first in this turn, an idle loop may steal a parked one.
    if event_loop.common.unasked.get()
        || event_loop.handle.others_come_first()
        || !event_loop.common.first_bytes.tries()
    {
        event_loop.common.unasked.set(true);
        return Some((stream, new));
    }
    let Parked { conn, presence, stays } = new;
    let conn = conn.on(stream);
    let part = |conn: Conn, presence| {
        let (stream, conn) = conn.part();
        (stream, Parked { conn, presence, stays })
    };
    if event_loop.site.protocols(&conn).ssl {
        return Some(part(conn, presence));
    }
    let mut scratch = event_loop.take_scratch();
    let buf = scratch.head().1;
    buf.reserve(FIRST_READ);
    let received = conn.wire().try_recv(buf);
    event_loop.common.first_bytes.learn(!matches!(received, Ok(None)));
    match received {
        Ok(Some(0)) => {
            event_loop.give_scratch(scratch);
            waited_for(&conn, event_loop, CLOSED);
            None
        }
        Ok(Some(_)) => {
            event_loop.note_spoke_soon(conn.listen);
            let (conn, serving) = (Rc::new(conn), event_loop.clone());
            event_loop.handle.spawn_behind(|| run(conn, presence, serving, scratch));
            None
        }
        Ok(None) => {
            event_loop.give_scratch(scratch);
            Some(part(conn, presence))
        }
        Err(error) => {
            event_loop.give_scratch(scratch);
            waited_for(&conn, event_loop, &head::lost(&error));
            None
        }
    }
}

/// A box for a pausing connection. It is kept for the next pause.
#[derive(Default)]
struct Place(Option<Parked>);

impl Idle for Place {
    fn resume(self: Box<Self>, handle: &Handle, stream: Stream, why: Wake) {
        if let Some(parked) = self.0 {
            Box::new(parked).resume(handle, stream, why);
        }
    }
}

impl Idle for Parked {
    fn stays(&self) -> bool {
        self.conn.stays()
    }

    fn resume(self: Box<Self>, handle: &Handle, stream: Stream, why: Wake) {
        let Some(event_loop) = LoopState::current() else { return };
        let stays = self.stays;
        if why == Wake::Shutdown && handle.now() < stays {
            return rest(&event_loop, stream, *self, stays);
        }
        let Parked { mut conn, mut presence, .. } = *self;
        presence.arrive(&mut conn, &event_loop);
        presence.wake(&event_loop);
        let conn = conn.on(stream);
        let first = conn.requests.get() == 0;
        if !has_come(&conn, why) {
            if first && why == Wake::Deadline {
                waited_for(&conn, &event_loop, TIMED_OUT);
            }
            conn.wire().close_notify();
            return;
        }
        if first && handle.now().saturating_duration_since(conn.started) < SOON {
            event_loop.note_spoke_soon(conn.listen);
        }
        if first && event_loop.site.protocols(&conn).ssl {
            handle.spawn_large(|| secure(conn, presence, event_loop, Vec::new()));
        } else {
            let (conn, scratch) = (Rc::new(conn), event_loop.take_scratch());
            handle.spawn_large(|| run(conn, presence, event_loop, scratch));
        }
    }
}

/// Logs what happened to a client that has sent nothing yet.
fn waited_for(conn: &Conn, event_loop: &LoopState, what: &str) {
    let server = event_loop.site.default_server(conn);
    let protocols = event_loop.site.protocols(conn);
    let doing = match conn.tls.is_none() {
        true if protocols.proxy_protocol => "reading PROXY protocol",
        true if protocols.ssl => "SSL handshaking",
        _ => "waiting for request",
    };
    let log = &event_loop.site.location(server.location).conf.core.error_log;
    conn.log(event_loop.site, log, Level::Info, format_args!("{what} while {doing}"));
}

/// How a connection goes on after an answer.
enum After {
    /// With the next request, whose first bytes may be there already.
    Next,
    /// With HTTP/2.
    Http2,
    /// With the same request, which has begun to arrive, by the newest configuration.
    Again,
    /// It closes.
    Close,
}

/// Makes the handshake, then serves requests.
async fn secure(conn: Conn, presence: Presence, event_loop: Rc<LoopState>, bytes: Vec<u8>) {
    let done = handshake::handshake(conn, presence, &event_loop, bytes).await;
    after_handshake(done, event_loop).await;
}

/// Continues a handshake that another loop has begun, then serves requests.
pub async fn shaken(
    conn: Conn,
    presence: Presence,
    event_loop: Rc<LoopState>,
    begun: handshake::Begun,
) {
    let done = handshake::go_on(conn, presence, &event_loop, begun).await;
    after_handshake(done, event_loop).await;
}

async fn after_handshake(done: Option<handshake::Done>, event_loop: Rc<LoopState>) {
    match done {
        Some((conn, presence, bytes))
            if conn.with_tls(|c| c.alpn() == Some(b"h2")) == Some(true) =>
        {
            http2::serve(Rc::new(conn), presence, event_loop, bytes).await;
        }
        Some((conn, presence, bytes)) => {
            let mut scratch = event_loop.take_scratch();
            scratch.fill(bytes);
            run(Rc::new(conn), presence, event_loop, scratch).await;
        }
        None => {}
    }
}

/// Serves requests. `scratch` holds the bytes that were read of the first.
async fn run(
    conn: Rc<Conn>,
    mut presence: Presence,
    mut event_loop: Rc<LoopState>,
    scratch: Scratch,
) {
    presence.busy(&event_loop);
    let mut place = None;
    let mut r = Box::new(Request::new(conn.clone(), event_loop.clone(), scratch));
    loop {
        // A pipelining client's requests might all be served without a wait, and other connections starve.
        breathe().await;
        if event_loop.is_replaced() {
            event_loop = event_loop.newest();
            let (started, pipelined) = (r.started, r.pipelined);
            let scratch = r.into_scratch();
            r = Box::new(Request::new(conn.clone(), event_loop.clone(), scratch));
            (r.started, r.pipelined) = (started, pipelined);
        }
        let after = request(&mut r).await;
        if matches!(after, After::Again) {
            continue;
        }
        if matches!(after, After::Http2) {
            let read = std::mem::take(&mut r.buf);
            give_back(r);
            return Box::pin(http2::serve(conn, presence, event_loop, read)).await;
        }
        if conn.requests.get() == 1 && conn.with_tls(|c| c.is_early()) == Some(true) {
            complete(&conn, &r).await;
        }
        if matches!(after, After::Close) {
            conn.wire().close_notify();
            give_back(r);
            return;
        }
        let core = &r.conf().core;
        r.renew();
        if r.buf.is_empty() {
            presence.quiet(&event_loop);
            conn.set_nodelay(core.tcp_nodelay);
            presence = match pause(&conn, presence, &event_loop, core, &mut place).await {
                Paused::Ready(presence) => {
                    if event_loop.handle.is_crowded() {
                        // Both are needed as soon as the kernel has copied the bytes.
                        prefetch(&*r, size_of::<Request>());
                        prefetch(&*conn, size_of::<Conn>());
                    }
                    presence
                }
                Paused::Over(presence, why, waited) => {
                    let until = rests_until(&event_loop, core, why, waited);
                    if until > event_loop.handle.now() {
                        give_back(r);
                        return park(conn, presence, &event_loop, core, until);
                    }
                    if !has_come(&conn, why) {
                        give_back(r);
                        return conn.wire().close_notify();
                    }
                    presence
                }
                Paused::Taken => return give_back(r),
            };
            presence.busy(&event_loop);
            r.started = event_loop.handle.now();
        }
    }
}

/// Completes the handshake of a client that was answered before (early data). If the connection closed before, the client
/// could lose the answer.
async fn complete(conn: &Conn, r: &Request) {
    let timeout = r.server.conf.client_header_timeout;
    conn.wire().set_deadline(Some(r.event_loop.handle.now() + timeout));
    // If it fails, the next read notices.
    let _ = conn.wire().completed().await;
    conn.wire().set_deadline(None);
}

/// Gives the buffers of a connection's last request to other connections.
fn give_back(r: Box<Request>) {
    let event_loop = r.event_loop.clone();
    event_loop.give_scratch(r.into_scratch());
}

/// How a pause between two requests ends.
enum Paused {
    /// The next request is there.
    Ready(Presence),
    /// The wait ended for this reason after this time, without a request.
    Over(Presence, Wake, Duration),
    /// Another loop has taken the connection. The rest of it here must be dropped.
    Taken,
}

/// Waits for the next request of a client that was just answered. Mostly it arrives soon. Other loops may take the
/// connection meanwhile. `place` is the box in which it is offered to them.
async fn pause(
    conn: &Rc<Conn>,
    presence: Presence,
    event_loop: &Rc<LoopState>,
    core: &Conf,
    place: &mut Option<Box<Place>>,
) -> Paused {
    if conn.wire().is_ready() {
        return Paused::Ready(presence);
    }
    let Some(_place) = event_loop.pausing(PAUSING) else {
        return Paused::Over(presence, Wake::Deadline, Duration::ZERO);
    };
    presence.wait(event_loop);
    let grace = core.keepalive_timeout.min(GRACE);
    // A part of a request that goes on after its answer may still hold the connection.
    let movable = event_loop.handle.has_steal_group() && Rc::strong_count(conn) == HOLDERS;
    let rested = match movable.then(|| conn.lend()).flatten() {
        None => Some((presence, conn.wire().rest(grace).await)),
        Some(lent) => {
            offer(
                conn,
                Parked { conn: lent, presence, stays: event_loop.handle.now() },
                grace,
                place,
            )
            .await
        }
    };
    let Some((presence, why)) = rested else { return Paused::Taken };
    presence.wake(event_loop);
    match why {
        Wake::Ready => Paused::Ready(presence),
        why => Paused::Over(presence, why, grace),
    }
}

/// References to an idle connection: that of its task, and that of its request.
const HOLDERS: usize = 2;

/// Pauses, and lets other loops take the connection meanwhile. Returns none if one has.
async fn offer(
    conn: &Conn,
    parked: Parked,
    grace: Duration,
    place: &mut Option<Box<Place>>,
) -> Option<(Presence, Wake)> {
    let mut offered = place.take().unwrap_or_default();
    offered.0 = Some(parked);
    let (why, idle) = conn.wire().socket().rest_stealable(grace, offered).await?;
    let mut back = (idle as Box<dyn Any>).downcast::<Place>().ok()?;
    let Parked { conn: lent, presence, .. } = back.0.take()?;
    conn.take_back(lent);
    *place = Some(back);
    Some((presence, why))
}

/// Until when a connection whose pause ended without a request may be parked. If that has passed, it closes.
fn rests_until(event_loop: &LoopState, core: &Conf, why: Wake, waited: Duration) -> Instant {
    let now = event_loop.handle.now();
    let stays = now + core.keepalive_min_timeout;
    match why {
        // A client that was answered before the loop retired had the time for another request.
        Wake::Deadline if event_loop.retiring() && !event_loop.has_successor() => stays,
        Wake::Deadline => now + core.keepalive_timeout.saturating_sub(waited),
        Wake::Shutdown => stays,
        Wake::Ready | Wake::Evicted => now,
    }
}

/// Whether a woken connection has bytes of a request. If the loop was blocked, a request may wait in the socket while the
/// timer has expired, and the loop has not seen its event yet. Unless the socket became readable this makes a system call.
fn has_come(conn: &Conn, why: Wake) -> bool {
    match why {
        Wake::Ready => true,
        Wake::Deadline | Wake::Shutdown => conn.wire().socket().has_bytes(),
        // Another connection needs its slot.
        Wake::Evicted => false,
    }
}

/// Parks the connection as a small value until the deadline.
fn park(conn: Rc<Conn>, presence: Presence, event_loop: &LoopState, core: &Conf, until: Instant) {
    let stays = event_loop.handle.now() + core.keepalive_min_timeout;
    // A part of the last request may still hold the connection. It closes when that part ends.
    let Ok(conn) = Rc::try_unwrap(conn) else { return };
    let (stream, conn) = conn.part();
    presence.wait(event_loop);
    rest(event_loop, stream, Parked { conn, presence, stays }, until);
}

/// Serves one request, from the first byte of its head to its log line.
async fn request(r: &mut Request) -> After {
    let event_loop = r.event_loop.clone();
    let metrics = &event_loop.metrics;
    let head = {
        let _reading = metrics.hold(Metric::Reading);
        head::read(r).await
    };
    let in_order = match head {
        Head::Over(0) => return After::Close,
        Head::Http2 => return After::Http2,
        Head::Replaced => return After::Again,
        Head::Over(status) => {
            // A request had begun.
            metrics.add(Metric::Requests, 1);
            r.count();
            r.response.status = status;
            drop(Begun(r));
            event_loop.logged(r.conn.lines()).await;
            return After::Close;
        }
        Head::Read | Head::Refused(_) => {
            metrics.add(Metric::Requests, 1);
            let _writing = metrics.hold(Metric::Writing);
            r.count();
            let begun = Begun(r);
            let (in_order, blocked) = {
                let serving = pin!(async {
                    let r = &mut *begun.0;
                    match head {
                        Head::Refused(status) => phases::refuse(r, status).await,
                        _ => match check::check(r) {
                            None => phases::serve(r).await,
                            Some(refusal) => {
                                r.body.refuse_valid_head();
                                phases::refuse(r, refusal.status()).await
                            }
                        },
                    }
                });
                doing::blocked(&event_loop.handle, serving).await
            };
            begun.0.blocked = blocked;
            in_order
        }
    };
    // A client that was told `keep-alive` may send another request, even if the worker retires meanwhile.
    if in_order && r.keepalive && r.discard_body().await {
        return After::Next;
    }
    // The log line is written before the client sees the end of the connection.
    event_loop.logged(r.conn.lines()).await;
    if in_order || client_may_read_on(r) {
        linger(r).await;
    }
    After::Close
}

/// Whether an answer broke off for another reason than its client, which may still read what was sent of it.
fn client_may_read_on(r: &Request) -> bool {
    r.response.sent && !r.output.has_failed() && !r.body.is_broken()
}

/// Lingers, so that a client that still sends can read the answer before the connection closes.
async fn linger(r: &mut Request) {
    let core = &r.conf().core;
    // More may have arrived than was read: of a malformed request, or behind one while it was answered. Closing the socket would
    // reset the connection, perhaps before the client has read the answer.
    let sent_more =
        |r: &Request| r.body.lingers_for_unread(core.lingering_close) && !r.conn.wire().is_silent();
    if !r.body.should_linger(core.lingering_close, r.buf.len()) && !sent_more(r) {
        return;
    }
    let (time, timeout) = (core.lingering_time, core.lingering_timeout);
    r.conn.clone().linger(&r.event_loop.handle, time, timeout).await;
}
