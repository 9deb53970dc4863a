//! A connection's task: reads frames, sends what waits, and ends the connection.

#![expect(clippy::disallowed_methods, reason = "this is the room")]

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use weir_engine::{Either, Wake, either, is_spent, yield_now};
use weir_http2::{Broken, Frames, PeerState, Pipe, ReaderHistory};
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

/// So much of what came before the worker's end is read before the client is told of it. More is an upload that goes on.
const CATCH_UP: usize = 1024 * 1024;

/// What the first bytes of a connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// HTTP/2.
    Http2,
    /// That may become HTTP/2.
    Unclear,
    /// Something else.
    Other,
}

/// Looks at the first bytes of a connection without TLS.
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
    /// In order: the client is told, and may read what is on its way.
    Done,
    /// The client was silent, or its place is needed: it is told.
    Idle,
    /// Nothing is to be done: the connection needs no task. So long it may be silent still.
    Parked(Duration),
    /// The client broke the protocol.
    Broken(Broken),
    /// The client is gone.
    Lost,
}

impl From<Broken> for End {
    fn from(broken: Broken) -> End {
        End::Broken(broken)
    }
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Lost
    }
}

/// Serves a connection to its end; `read` is what was read of it. The connection counts as busy.
pub async fn serve(conn: Rc<Conn>, presence: Presence, event_loop: Rc<LoopState>, read: Vec<u8>) {
    let link = Link::new(conn, event_loop, PeerState::default(), Ledger::default());
    link.conn.set_nodelay(link.conf().core.tcp_nodelay);
    greet(&link);
    // From now on only streams count as work.
    presence.quiet(&link.event_loop());
    let frames = Frames::new(
        Reader::new(link.clone(), History::default()),
        ReaderHistory::nothing(Decoder::default()),
    );
    Task { link, presence, frames, pipe: Pipe::new(read), told: false }.live(Wake::Ready).await;
}

/// Goes on with a connection that was parked.
pub async fn resume(
    link: Rc<Link>,
    presence: Presence,
    seen: ReaderHistory,
    history: History,
    why: Wake,
) {
    let frames = Frames::new(Reader::new(link.clone(), history), seen);
    let told = why == Wake::Ready;
    Task { link, presence, frames, pipe: Pipe::default(), told }.live(why).await;
}

fn greet(link: &Link) {
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
    /// It goes on because something came, and that is not read yet.
    told: bool,
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
        if matches!(end, End::Broken(_) | End::Lost) && self.link.streams() > 0 {
            // What was asked before has its turn, too.
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

    /// Understands what was read, sends what waits, and waits for more. False at the end.
    async fn turn(&mut self, since: &mut Since) -> Result<bool, End> {
        self.understand()?;
        let caught_up = self.retire(since)?;
        self.flush(since)?;
        if self.frames.is_behind() || !caught_up {
            yield_now().await;
            return Ok(true);
        }
        let alone = self.is_alone();
        // A head that has begun is of a request that was promised an answer.
        if alone && self.link.is_leaving() && !self.frames.is_within_block() {
            return self.part(since).await;
        }
        if self.is_awaited() {
            since.incomplete.get_or_insert(self.link.event_loop().handle.now());
        } else {
            (since.incomplete, since.late) = (None, false);
        }
        if alone && since.incomplete.is_none() {
            return self.rest().await;
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
                    // A client that has said nothing has broken nothing.
                    return Err(End::Idle);
                }
                Err(End::Broken(Broken {
                    code: ErrorCode::Protocol,
                    text: String::new(),
                    stream: None,
                }))
            }
            Err(_) => Err(End::Lost),
        }
    }

    /// Leaves it to the client to close the connection, which knows from GOAWAY that this is its part. One that passes on slowly
    /// what it has received (Firefox) takes the server's end for that of an incomplete answer. It has `lingering_time`, as long as it
    /// is not silent for `lingering_timeout`.
    async fn part(&mut self, since: &mut Since) -> Result<bool, End> {
        let link = self.link.clone();
        let core = &link.conf().core;
        if core.lingering_close == Linger::Off {
            return Ok(false);
        }
        let now = link.event_loop().handle.now();
        let end = *since.parting.get_or_insert(now + core.lingering_time);
        let heard = *since.heard.get_or_insert(now);
        self.pipe.give_room(&link.event_loop().handle);
        link.conn.wire().set_deadline(Some(end.min(heard + core.lingering_timeout)));
        match self.pipe.wait(&link, link.conn.wire()).await {
            Ok(true) => {
                since.heard = None;
                self.receive()
            }
            Ok(false) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(End::Idle),
            Err(_) => Err(End::Lost),
        }
    }

    fn understand(&mut self) -> Result<(), Broken> {
        self.frames.end.begin();
        let understood = self.pipe.understand(&mut self.frames)?;
        self.frames.end.count(understood)
    }

    /// Hands to the socket what waits, as far as it takes it.
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

    /// Something is expected that has not come in whole.
    fn is_incomplete(&self) -> bool {
        self.frames.is_incomplete(self.pipe.unread())
    }

    /// The client owes the rest of something. While requests are served, this is a head: the rest of another frame keeps none of
    /// them waiting.
    fn is_awaited(&self) -> bool {
        self.is_incomplete() && (self.link.streams() == 0 || self.is_within_head())
    }

    /// A head has begun, and its rest has not come.
    fn is_within_head(&self) -> bool {
        let begun = FrameHead::read(self.pipe.unread()).map(|head| head.kind);
        self.frames.is_within_block() || begun == Some(FrameType::Headers)
    }

    /// Nothing was read in part.
    fn is_between(&self) -> bool {
        self.pipe.unread().is_empty() && !self.frames.is_within()
    }

    /// As [`Reader::time_out`].
    fn time_out(&mut self) -> bool {
        let gathered = self.frames.gathered();
        let (reader, block) = self.frames.end_and_block();
        reader.time_out(block, gathered, self.pipe.unread())
    }

    /// Nothing is asked, and nothing is to be sent.
    fn is_alone(&self) -> bool {
        self.link.streams() == 0 && !self.pipe.is_sending() && self.link.out.is_empty()
    }

    /// Only this task has to do with the connection, and nothing was read in part: something of a
    /// request may outlive its stream.
    fn is_free(&self) -> bool {
        // The reader has the other one.
        let link = &self.link;
        self.is_between() && Rc::strong_count(link) == 2 && Rc::strong_count(&link.conn) == 1
    }

    /// For how long the client may go on without a request: at first as long as one of HTTP/1 may, then as one that is
    /// kept. nginx: ngx_http_v2_handle_connection, which starts the timer once.
    fn patience(&mut self) -> Duration {
        let (link, now) = (&self.link, self.link.event_loop().handle.now());
        let end = match self.frames.end.has_seen_requests() {
            true => self.frames.end.idle_since(now) + link.conf().core.keepalive_timeout,
            false => link.conn.started + link.server().conf.client_header_timeout,
        };
        end.saturating_duration_since(now)
    }

    /// Nothing is to be done: waits without holding buffers, and after a while without a task, as a connection of
    /// HTTP/1 does between two requests.
    async fn rest(&mut self) -> Result<bool, End> {
        if std::mem::take(&mut self.told) {
            return self.receive();
        }
        let timeout = self.patience();
        if timeout.is_zero() {
            return Err(End::Idle);
        }
        let (event_loop, conn) = (self.link.event_loop(), &self.link.conn);
        self.pipe.give_room(&event_loop.handle);
        let place = self.is_free().then(|| event_loop.pausing(PAUSING));
        let grace = if place.is_some() { timeout.min(GRACE) } else { timeout };
        let stalled = event_loop.handle.has_stalled_lately();
        // A connection that rests for long does not keep an old site.
        drop(event_loop);
        let (woken, waited) = match &place {
            // Another loop can take it once it has no task.
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

    /// The worker ends: the client is told to go elsewhere. False if some of what came before that is to be read first: GOAWAY would
    /// refuse its requests, and clients cannot send each of them again (gRPC in Go: a message above 256 KiB).
    fn retire(&mut self, since: &mut Since) -> Result<bool, End> {
        let event_loop = self.link.event_loop();
        // A client that has asked for nothing yet may be about to, and would have to come again.
        let is_new = event_loop.has_successor() && !self.frames.end.has_seen_requests();
        if !event_loop.retiring() || is_new || self.link.is_leaving() {
            return Ok(true);
        }
        if self.frames.is_behind() {
            return Ok(false);
        }
        if since.caught_up < CATCH_UP {
            let before = self.pipe.unread().len();
            self.receive()?;
            let came = self.pipe.unread().len() - before;
            since.caught_up += came;
            // A task that has done enough for its turn reads nothing.
            if came > 0 || is_spent() {
                return Ok(false);
            }
        }
        self.frames.end.say_goodbye(ErrorCode::NoError);
        Ok(true)
    }

    /// Tells the client, as far as there is one, and waits for the streams.
    async fn finish(&mut self, end: End) {
        let link = self.link.clone();
        let code = match &end {
            End::Done | End::Idle => Some(ErrorCode::NoError),
            End::Broken(broken) => {
                if !broken.text.is_empty() {
                    link.log(format_args!("{}", broken.text));
                }
                Some(broken.code)
            }
            End::Lost | End::Parked(_) => None,
        };
        if matches!(end, End::Lost) {
            // A client that writes nothing more may read still.
            let _ = self.flush(&mut Since::default());
        }
        if let Some(code) = code {
            if !link.is_leaving() || code != ErrorCode::NoError {
                self.frames.end.say_goodbye(code);
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

    /// Sends what waits as the client reads it, and throws away what comes: a client that writes before it reads must
    /// get to its reading.
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
                    self.pipe.forget();
                    self.receive()?;
                }
            }
        }
    }
}

/// Since when something is awaited of the client, and until when.
#[derive(Default)]
struct Since {
    /// The greeting, or the rest of a frame or head.
    incomplete: Option<Instant>,
    /// It is the rest of a head with a stream that was reset for that: no request waits for it.
    late: bool,
    /// That it reads.
    blocked: Option<Instant>,
    /// That it closes the connection, or says something before.
    heard: Option<Instant>,
    /// Until when it may close it.
    parting: Option<Instant>,
    /// So many bytes were read before it was told of the end.
    caught_up: usize,
}

impl Since {
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
    /// Waits for something to read, or to do (none).
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
        self.conn.log(log, Level::Info, text);
    }
}
