//! A connection's task: it reads and sends frames, and ends the connection.

#![expect(clippy::disallowed_methods, reason = "this is the room")]

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use weir_engine::{Either, Wake, either, is_spent, yield_now};
use weir_http2::{ConnectionError, Frames, PeerState, Pipe, ReaderHistory};
use weir_log::Level;
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};
use weir_proto::http2::hpack::Decoder;

use super::link::{Ledger, Link};
use super::parked;
use super::reader::{History, LARGEST, Reader};
use crate::body::Linger;
use crate::carrier::{Conn, LEFT, TIMED_OUT};
use crate::connection::presence::Presence;
use crate::connection::{GRACE, PAUSING};
use crate::event_loop::LoopState;

/// The most bytes that are read before the GOAWAY of a retiring worker. More are an upload that goes on.
const CATCH_UP: usize = 1024 * 1024;

/// The protocol of a connection by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// The preface of HTTP/2.
    Http2,
    /// A part of the preface.
    Unclear,
    /// Another protocol.
    Other,
}

/// Detects the protocol of a connection without TLS.
pub fn greeting(bytes: &[u8]) -> Greeting {
    let seen = bytes.get(..frame::PREFACE.len()).unwrap_or(bytes);
    if !frame::PREFACE.starts_with(seen) {
        Greeting::Other
    } else if seen.len() == frame::PREFACE.len() {
        Greeting::Http2
    } else {
        Greeting::Unclear
    }
}

/// Why a connection ends.
enum End {
    /// In order, after GOAWAY. The client may read what is in flight.
    Done,
    /// The connection was idle for too long, or its place is needed. GOAWAY is sent.
    Idle,
    /// The connection has no streams and needs no task. It may stay idle for this time.
    Parked(Duration),
    /// A connection error.
    ConnectionError(ConnectionError),
    /// The client has closed the connection.
    Lost,
}

impl From<ConnectionError> for End {
    fn from(broken: ConnectionError) -> End {
        End::ConnectionError(broken)
    }
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Lost
    }
}

/// Serves a connection to its end. `read` holds the bytes received before. The connection counts as busy.
pub async fn serve(conn: Rc<Conn>, presence: Presence, event_loop: Rc<LoopState>, read: Vec<u8>) {
    let link = Link::new(conn, event_loop, PeerState::default(), Ledger::default());
    link.conn.set_nodelay(link.conf().core.tcp_nodelay);
    send_settings(&link);
    // From now on the connection counts as busy by its streams only.
    presence.quiet(&link.event_loop());
    let frames = Frames::new(
        Reader::new(link.clone(), History::default()),
        ReaderHistory::nothing(Decoder::default()),
    );
    Task { link, presence, frames, pipe: Pipe::new(read), readable: false }.live(Wake::Ready).await;
}

/// Resumes a parked connection.
pub async fn resume(
    link: Rc<Link>,
    presence: Presence,
    seen: ReaderHistory,
    history: History,
    why: Wake,
) {
    let frames = Frames::new(Reader::new(link.clone(), history), seen);
    let readable = why == Wake::Ready;
    Task { link, presence, frames, pipe: Pipe::default(), readable }.live(why).await;
}

fn send_settings(link: &Link) {
    let v2 = link.v2();
    let word = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let settings = [
        Setting::MaxConcurrentStreams(word(v2.max_concurrent_streams)),
        Setting::InitialWindowSize(word(v2.body_preread_size)),
        Setting::MaxFrameSize(word(LARGEST as u64)),
    ];
    link.write(|out| {
        frame::write_settings(&settings, out);
        frame::write_window_update(0, frame::MAX_WINDOW - frame::DEFAULT_WINDOW, out);
    });
}

struct Task {
    link: Rc<Link>,
    presence: Presence,
    frames: Frames<Reader>,
    pipe: Pipe,
    /// The connection was resumed because the socket is readable. It was not read since.
    readable: bool,
}

impl Task {
    /// Serves the connection until it ends, or is parked.
    async fn live(mut self, why: Wake) {
        let registered = self.link.conn.number;
        let link: Weak<Link> = Rc::downgrade(&self.link);
        self.link.event_loop().register_link(registered, link);
        let end = match why {
            Wake::Ready | Wake::Shutdown => self.run().await,
            Wake::Deadline | Wake::Evicted => End::Idle,
        };
        if let End::Parked(left) = end {
            self.link.event_loop().unregister_link(registered);
            return parked::park(self.link, self.presence, self.frames, left);
        }
        if matches!(end, End::ConnectionError(_) | End::Lost) && self.link.streams() > 0 {
            // Requests that were received before run first.
            yield_now().await;
        }
        if matches!(end, End::Done) {
            let event_loop = self.link.event_loop();
            event_loop.logged(self.link.conn.lines()).await;
        }
        self.finish(end).await;
        self.link.event_loop().unregister_link(registered);
        self.link.conn.wire().close_notify();
    }

    async fn run(&mut self) -> End {
        let mut since = Since::default();
        loop {
            match self.turn(&mut since).await {
                Ok(true) => {}
                Ok(false) => return End::Done,
                Err(end) => return end,
            }
        }
    }

    /// Handles received frames, sends frames, and waits for more. False at the end of the connection.
    async fn turn(&mut self, since: &mut Since) -> Result<bool, End> {
        self.parse_received()?;
        let caught_up = self.retire(since)?;
        self.flush(since)?;
        if self.frames.has_backlog() || !caught_up {
            yield_now().await;
            return Ok(true);
        }
        let alone = self.is_idle();
        // An incomplete field block may be of a stream that GOAWAY has named as accepted.
        if alone && self.link.is_leaving() && !self.frames.is_within_block() {
            return self.wait_for_close(since).await;
        }
        since.look(self.awaits_client(), self.frames.end.blocks(), &self.link);
        if alone && since.incomplete.is_none() {
            return self.wait_idle().await;
        }
        let link = self.link.clone();
        let deadline = since.deadline(&link);
        link.conn.wire().set_deadline(deadline);
        let readable = self.pipe.wait(&link, link.conn.wire()).await;
        match readable {
            Ok(true) => self.receive(),
            Ok(false) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                link.log(format_args!("{TIMED_OUT}"));
                if since.is_blocked(&link) {
                    link.conn.timed_out(link.conf().core.reset_timedout_connection);
                    return Err(End::Lost);
                }
                since.incomplete = None;
                if self.time_out() {
                    since.late = true;
                    return Ok(true);
                }
                if self.is_between() {
                    // A client that has sent no part of a frame has made no error.
                    return Err(End::Idle);
                }
                Err(End::ConnectionError(ConnectionError {
                    code: ErrorCode::Protocol,
                    text: String::new(),
                    stream: None,
                }))
            }
            Err(_) => Err(End::Lost),
        }
    }

    /// Waits for the client to close the connection after GOAWAY, for `lingering_time`, and for `lingering_timeout` since the last
    /// bytes. A client that processes received data slowly (Firefox) takes an end of the connection for that of an incomplete answer.
    async fn wait_for_close(&mut self, since: &mut Since) -> Result<bool, End> {
        let link = self.link.clone();
        let core = &link.conf().core;
        if core.lingering_close == Linger::Off {
            return Ok(false);
        }
        let now = link.event_loop().handle.now();
        let end = *since.parting.get_or_insert(now + core.lingering_time);
        let silent = *since.silent.get_or_insert(now);
        self.pipe.release_buffer(&link.event_loop().handle);
        link.conn.wire().set_deadline(Some(end.min(silent + core.lingering_timeout)));
        match self.pipe.wait(&link, link.conn.wire()).await {
            Ok(true) => {
                since.silent = None;
                self.receive()
            }
            Ok(false) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(End::Idle),
            Err(_) => Err(End::Lost),
        }
    }

    fn parse_received(&mut self) -> Result<(), ConnectionError> {
        self.frames.end.begin();
        let understood = self.pipe.parse(&mut self.frames)?;
        self.frames.end.count(understood)
    }

    /// Sends frames as far as the socket accepts them, and notes since when it does not.
    fn flush(&mut self, since: &mut Since) -> Result<(), End> {
        let link = &self.link;
        let moved = self.pipe.flush(link, link.conn.wire())?;
        if moved || !self.pipe.is_sending() {
            since.blocked = None;
        }
        if self.pipe.is_sending() {
            since.blocked.get_or_insert(link.event_loop().handle.now());
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<bool, End> {
        let link = &self.link;
        if self.pipe.receive(&link.event_loop().handle, link.conn.wire())? {
            return Ok(true);
        }
        if link.streams() > 0 || self.is_incomplete() {
            link.log(format_args!("{LEFT}"));
        }
        Err(End::Lost)
    }

    /// The preface, a field block or a frame other than DATA is incomplete.
    fn is_incomplete(&self) -> bool {
        self.frames.is_incomplete(self.pipe.unread())
    }

    /// `client_header_timeout` runs: something is incomplete. While requests are served, only an incomplete field block counts, since
    /// no request waits for the rest of another frame.
    fn awaits_client(&self) -> bool {
        self.is_incomplete() && (self.link.streams() == 0 || self.is_within_head())
    }

    /// A field block is incomplete.
    fn is_within_head(&self) -> bool {
        let begun = FrameHead::read(self.pipe.unread()).map(|head| head.kind);
        self.frames.is_within_block() || begun == Some(FrameType::Headers)
    }

    /// No frame or field block is incomplete.
    fn is_between(&self) -> bool {
        self.pipe.unread().is_empty() && !self.frames.is_within()
    }

    /// As [`Reader::time_out`].
    fn time_out(&mut self) -> bool {
        let gathered = self.frames.gathered();
        let (reader, block) = self.frames.handler_and_block();
        reader.time_out(block, gathered, self.pipe.unread())
    }

    /// There are no streams, and nothing is to be sent.
    fn is_idle(&self) -> bool {
        self.link.streams() == 0 && !self.pipe.is_sending() && self.link.out.is_empty()
    }

    /// No other task holds the connection, and no frame is incomplete. A task of a request may outlive
    /// its stream.
    fn is_parkable(&self) -> bool {
        // The reader has the second reference.
        let link = &self.link;
        self.is_between() && Rc::strong_count(link) == 2 && Rc::strong_count(&link.conn) == 1
    }

    /// The rest of the idle timeout: `client_header_timeout` before the first request, `keepalive_timeout` later. nginx:
    /// ngx_http_v2_handle_connection, which starts the timer once.
    fn idle_time_left(&mut self) -> Duration {
        let (link, now) = (&self.link, self.link.event_loop().handle.now());
        let end = match self.frames.end.has_seen_requests() {
            true => self.frames.end.idle_since(now) + link.conf().core.keepalive_timeout,
            false => link.conn.started + link.server().conf.client_header_timeout,
        };
        end.saturating_duration_since(now)
    }

    /// Waits for the next request without buffers. Parks the connection after a while, as between two requests of HTTP/1.
    async fn wait_idle(&mut self) -> Result<bool, End> {
        if std::mem::take(&mut self.readable) {
            return self.receive();
        }
        let timeout = self.idle_time_left();
        if timeout.is_zero() {
            return Err(End::Idle);
        }
        let (event_loop, conn) = (self.link.event_loop(), &self.link.conn);
        self.pipe.release_buffer(&event_loop.handle);
        let place = self.is_parkable().then(|| event_loop.pausing(PAUSING));
        let grace = if place.is_some() { timeout.min(GRACE) } else { timeout };
        let stalled = event_loop.handle.has_stalled_lately();
        // A waiting connection must not keep an old site.
        drop(event_loop);
        let (woken, waited) = match &place {
            // Parks it at once, so that another loop can take it.
            Some(place) if (place.is_none() || stalled) && !conn.wire().is_ready() => {
                (Some(Wake::Deadline), Duration::ZERO)
            }
            _ => (self.link.rest(&self.presence, grace).await, grace),
        };
        drop(place);
        match woken {
            None => Ok(true),
            Some(Wake::Ready) => self.receive(),
            Some(Wake::Deadline) if waited < timeout => Err(End::Parked(timeout - waited)),
            Some(Wake::Deadline | Wake::Evicted | Wake::Shutdown) => Err(End::Idle),
        }
    }

    /// Sends GOAWAY if the worker retires. False if received bytes must be read first: they may contain requests that GOAWAY would
    /// refuse, and clients cannot repeat all of them (gRPC in Go: a message above 256 KiB).
    fn retire(&mut self, since: &mut Since) -> Result<bool, End> {
        let event_loop = self.link.event_loop();
        // A new client may be about to send its first request. GOAWAY would cost it another connection.
        let is_new = event_loop.has_successor() && !self.frames.end.has_seen_requests();
        if !event_loop.retiring() || is_new || self.link.is_leaving() {
            return Ok(true);
        }
        if self.frames.has_backlog() {
            return Ok(false);
        }
        if since.caught_up < CATCH_UP {
            let before = self.pipe.unread().len();
            self.receive()?;
            let came = self.pipe.unread().len() - before;
            since.caught_up += came;
            // With its budget spent, a task receives nothing even if bytes have arrived.
            if came > 0 || is_spent() {
                return Ok(false);
            }
        }
        self.frames.end.send_goaway(ErrorCode::NoError);
        Ok(true)
    }

    /// Sends GOAWAY unless the client is gone, ends the streams, and waits for their tasks.
    async fn finish(&mut self, end: End) {
        let link = self.link.clone();
        let code = match &end {
            End::Done | End::Idle => Some(ErrorCode::NoError),
            End::ConnectionError(broken) => {
                if !broken.text.is_empty() {
                    link.log(format_args!("{}", broken.text));
                }
                Some(broken.code)
            }
            End::Lost | End::Parked(_) => None,
        };
        if matches!(end, End::Lost) {
            // The client may have closed only its sending direction.
            let _ = self.flush(&mut Since::default());
        }
        if let Some(code) = code {
            if !link.is_leaving() || code != ErrorCode::NoError {
                self.frames.end.send_goaway(code);
            }
            link.fail();
            let core = &link.conf().core;
            let (time, timeout) = (core.lingering_time, core.lingering_timeout);
            if matches!(end, End::Idle) || core.lingering_close == Linger::Off {
                let _ = self.flush(&mut Since::default());
            } else if self.send_rest().await.is_ok() {
                let handle = link.event_loop().handle.clone();
                link.conn.linger(&handle, time, timeout).await;
            }
        }
        link.fail();
        poll_fn(|cx| {
            while link.streams() > 0 {
                if !link.out.take_signal(cx) {
                    return Poll::Pending;
                }
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Sends all waiting frames, and discards received bytes. A client may have to finish its writes before it reads.
    async fn send_rest(&mut self) -> Result<(), End> {
        let link = self.link.clone();
        let (stream, mut since) = (link.conn.wire(), Since::default());
        loop {
            self.flush(&mut since)?;
            if !self.pipe.is_sending() {
                return Ok(());
            }
            stream.set_deadline(since.deadline(&link));
            match either(stream.writable(), stream.readable()).await {
                Either::Left(writable) => writable?,
                Either::Right(readable) => {
                    readable?;
                    self.pipe.discard_received();
                    self.receive()?;
                }
            }
        }
    }
}

/// Since when the client has to do something, and until when.
#[derive(Default)]
struct Since {
    /// Since when the preface, a field block or a frame is incomplete.
    incomplete: Option<Instant>,
    /// The incomplete field block timed out before, and its stream was reset.
    late: bool,
    /// The number of complete field blocks.
    blocks: u64,
    /// Since when the socket accepts no bytes.
    blocked: Option<Instant>,
    /// Since when the client sends nothing, after GOAWAY.
    silent: Option<Instant>,
    /// Until when the client may close the connection, after GOAWAY.
    parting: Option<Instant>,
    /// Bytes received before the GOAWAY of a retiring worker.
    caught_up: usize,
}

impl Since {
    /// Notes whether something is incomplete, after so many complete field blocks. Each has its own time: a client may send the
    /// end of one together with the beginning of the next, again and again.
    fn look(&mut self, awaits_client: bool, blocks: u64, link: &Link) {
        if !awaits_client || self.blocks != blocks {
            (self.incomplete, self.late, self.blocks) = (None, false, blocks);
        }
        if awaits_client {
            self.incomplete.get_or_insert_with(|| link.event_loop().handle.now());
        }
    }

    /// The client has not read for too long.
    fn is_blocked(&self, link: &Link) -> bool {
        let timeout = link.conf().core.send_timeout;
        self.blocked.is_some_and(|at| at + timeout <= link.event_loop().handle.now())
    }

    fn deadline(&self, link: &Link) -> Option<Instant> {
        let core = &link.conf().core;
        let head = link.server().conf.client_header_timeout;
        let sending = self.blocked.map(|at| at + core.send_timeout);
        let patience = if self.late { head.max(core.keepalive_timeout) } else { head };
        let reading = self.incomplete.map(|at| at + patience);
        match (sending, reading) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

impl Link {
    /// Waits until the socket is readable, or (`None`) the task has work.
    async fn rest(&self, presence: &Presence, grace: Duration) -> Option<Wake> {
        presence.wait(&self.event_loop());
        let mut resting = pin!(self.conn.wire().rest(grace));
        let woken = poll_fn(|cx| {
            if self.out.take_signal(cx) {
                return Poll::Ready(None);
            }
            resting.as_mut().poll(cx).map(Some)
        })
        .await;
        presence.wake(&self.event_loop());
        woken
    }

    /// Writes to the connection's error log.
    pub fn log(&self, text: std::fmt::Arguments<'_>) {
        let log = &self.conf().core.error_log;
        let text = format_args!("{text} while processing HTTP/2 connection");
        self.conn.log(self.event_loop().site, log, Level::Info, text);
    }
}
