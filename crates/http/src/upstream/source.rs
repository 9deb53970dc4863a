//! The body of an answer on its way from the server: read, taken out of its framing, kept in memory, and in a
//! file when the client is slower than the server.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_engine::{Chain, Handle, OpenFile, Segment, spend, yield_now};
use weir_upstream::Connection;

use super::passing::UpstreamConf;
use super::protocol::{Extra, Protocol, Reader};
use super::transport::{StreamCounts, Transport};
use crate::answer::headers::Headers;
use crate::body::FRAMING;
use crate::files::temp_file::Keep;
use crate::request::passed::Attempt;

/// One read; whole answers of usual sizes fit.
const READ: usize = 32 * 1024;
/// A file of which all was sent is let go once it has this length, so that it does not take much of the disk.
const LET_GO: u64 = 1024 * 1024;
/// Handed over at once where the client must not be waited for.
const PIECE: u64 = 64 * 1024;

/// Why the rest of a body will not come; `E` is the error of its [`Reader`].
#[derive(Debug)]
pub enum Broken<E> {
    /// The connection failed, or nothing came in time.
    Io(io::Error),
    /// It was closed before the end.
    Closed,
    /// The stream ended before the body.
    Cut,
    /// What came is no body.
    Invalid(E),
    /// A temporary file could not be written.
    File(io::Error),
}

/// A file that has no name any more, so that it ends with its last user. What was sent of it stands in the socket's
/// queue as the file's own pages until the client has acknowledged them: nothing is written to a place twice.
struct Temp {
    file: Arc<OpenFile>,
    /// Where the next bytes go.
    end: u64,
}

impl Temp {
    /// It has grown, and nothing of it is queued or under way: time to let it go, and to begin another.
    fn is_used_up(&self, limit: u64) -> bool {
        self.end >= limit.min(LET_GO) && Arc::strong_count(&self.file) == 1
    }
}

/// Why a body of this protocol will not come.
type BrokenBody<P> = Broken<<<P as Protocol>::Reader as Reader>::Error>;

/// A body that is being read.
pub struct Source<'p, P: Protocol> {
    /// Where it comes from.
    pub transport: Transport,
    protocol: &'p mut P,
    handle: Handle,
    passing: &'static UpstreamConf,
    queue: Chain,
    in_memory: usize,
    temp: Option<Temp>,
    /// Nothing more comes.
    pub done: bool,
    /// It ended too early. This must stay: what comes yet on such a connection is not another
    /// answer.
    broken: Option<BrokenBody<P>>,
    /// What came behind its end.
    extra: Option<Extra>,
    /// What the attempt does not know of yet.
    uncounted: Came,
    /// Bytes received, with those that came with the head.
    received: u64,
    /// Bytes of the body.
    pub length: u64,
    rate: Option<Pace>,
    within: Duration,
    spills: bool,
    has_spilled: bool,
    /// The first file that was created for it, until the log was told.
    pub spilled: Option<PathBuf>,
}

/// How much came of a body.
#[derive(Debug, Default)]
pub struct Came {
    /// Bytes received behind the head.
    received: u64,
    /// Bytes of the body as they came, with its framing.
    length: u64,
    /// All of a stream so far, and the bytes of its body.
    stream: Option<(StreamCounts, u64)>,
}

impl Came {
    /// Tells the attempt.
    pub fn count(self, attempt: &mut Attempt) {
        attempt.received += self.received;
        attempt.length += self.length;
        if let Some((counts, length)) = self.stream {
            counts.tell(attempt);
            attempt.length = length;
        }
    }
}

/// `proxy_limit_rate` and its like, for one body.
struct Pace {
    /// Bytes a second.
    rate: u64,
    since: Instant,
    /// Not before this is more read: what was read last takes its time.
    next: Instant,
}

impl Pace {
    fn new(rate: u64, now: Instant) -> Pace {
        Pace { rate: rate.max(1), since: now, next: now }
    }

    /// So many bytes were read.
    fn read(&mut self, n: usize, now: Instant) {
        self.next = now + Duration::from_millis((n as u64).saturating_mul(1000) / self.rate);
    }

    /// What may have been read by now.
    fn allowed(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.since).as_secs();
        self.rate.saturating_mul(elapsed + 1)
    }

    /// How long nothing is read, after so many bytes.
    fn pause(&self, received: u64, now: Instant) -> Option<Duration> {
        if now < self.next {
            return Some(self.next - now);
        }
        let over = received.checked_sub(self.allowed(now))?;
        Some(Duration::from_millis(over.saturating_mul(1000) / self.rate + 1))
    }
}

/// How a body is read ahead.
pub struct Ahead {
    /// A file may hold what does not fit into memory.
    pub file: bool,
    /// Bytes a second.
    pub rate: Option<u64>,
    /// How long the server may send no bytes.
    pub within: Duration,
}

impl<'p, P: Protocol> Source<'p, P> {
    /// Nothing was read yet.
    pub fn new(
        transport: Transport,
        protocol: &'p mut P,
        handle: Handle,
        passing: &'static UpstreamConf,
        ahead: Ahead,
    ) -> Self {
        let rate = ahead.rate.map(|rate| Pace::new(rate, handle.now()));
        Source {
            transport,
            protocol,
            handle,
            passing,
            queue: Chain::new(),
            in_memory: 0,
            temp: None,
            done: false,
            broken: None,
            extra: None,
            uncounted: Came::default(),
            received: 0,
            length: 0,
            rate,
            within: ahead.within,
            spills: ahead.file,
            has_spilled: false,
            spilled: None,
        }
    }

    /// Why the rest does not come, if it ended too early.
    pub fn broken(&self) -> Option<&BrokenBody<P>> {
        self.broken.as_ref()
    }

    /// What came behind its end.
    pub fn extra(&self) -> Option<Extra> {
        self.extra
    }

    /// The connection, if all of the body came and nothing else, and so another answer can follow on it.
    pub fn into_reusable(self) -> Option<Box<Connection>> {
        let whole = self.done && self.broken.is_none() && self.extra.is_none();
        let whole = whole && !self.protocol.reader().ends_with_connection();
        self.transport.into_own().filter(|_| whole)
    }

    /// What came since it was asked last.
    pub fn take_count(&mut self) -> Came {
        let stream = self.transport.counted().map(|counted| (counted, self.length));
        Came { stream, ..std::mem::take(&mut self.uncounted) }
    }

    /// The protocol, for what goes out meanwhile.
    pub fn protocol(&self) -> &P {
        self.protocol
    }

    /// Trailers behind the body, when it is over.
    pub fn trailers(&mut self, out: &mut Headers) {
        self.protocol.reader().trailers(out);
        self.transport.trailers(out);
    }

    /// Takes bytes that were received with the head.
    pub fn begin(&mut self, mut bytes: Vec<u8>) {
        let received = bytes.len();
        self.count(received);
        self.uncounted.length = received as u64;
        if received == 0 {
            // Where records end a body, its end may have come without a byte of it.
            return self.unwrap(&mut bytes);
        }
        self.take_in(bytes, received);
    }

    /// What the server has said for the log.
    pub fn said(&mut self) -> Vec<String> {
        self.protocol.reader().said()
    }

    /// See [`Reader::comes_in_pieces`].
    ///
    /// [`Reader::comes_in_pieces`]: super::protocol::Reader::comes_in_pieces
    pub fn comes_in_pieces(&mut self) -> bool {
        self.protocol.reader().comes_in_pieces()
    }

    /// What was read so far.
    pub fn take(&mut self) -> Chain {
        self.in_memory = 0;
        std::mem::take(&mut self.queue)
    }

    /// A piece of what was read so far.
    pub fn take_piece(&mut self) -> Chain {
        let piece = self.queue.split_to(PIECE);
        self.in_memory = self.queue.segments().filter_map(Segment::memory).map(<[u8]>::len).sum();
        piece
    }

    /// Nothing waits to be taken.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Reads what is there without waiting, up to the room in memory.
    pub fn read_now(&mut self) {
        while !self.done && self.has_room() && self.pause().is_none() {
            let mut buf = match self.rate {
                // Exactly what the rate allows.
                Some(_) => Vec::with_capacity(READ.min(self.room_of_rate())),
                None => self.handle.take_buf(READ),
            };
            match self.receive(&mut buf) {
                Some(true) => self.absorb(buf),
                Some(false) => return,
                None => {
                    self.handle.give_buf(buf);
                    return;
                }
            }
        }
    }

    /// Waits until there is something to read, or until the rate allows it.
    pub async fn wait(&mut self) {
        let ready = self.ready().await;
        self.heard(ready);
    }

    /// The waiting alone, beside which something may be sent on the same transport. [`Source::heard`] takes what came of it.
    pub async fn ready(&self) -> io::Result<()> {
        if let Some(pause) = self.pause() {
            self.handle.sleep(pause).await;
            return Ok(());
        }
        self.transport.set_deadline(Some(self.handle.now() + self.within));
        self.transport.readable().await
    }

    /// What came of waiting.
    pub fn heard(&mut self, ready: io::Result<()>) {
        if let Err(error) = ready {
            self.fail(Broken::Io(error));
        }
    }

    /// There is room in memory for more.
    pub fn has_room(&self) -> bool {
        self.in_memory < self.passing.memory()
    }

    /// Runs `sending`, and reads ahead while it waits for the client.
    pub async fn ahead_of<T>(&mut self, mut sending: Pin<&mut impl Future<Output = T>>) -> T {
        let (stop, writing) = (Cell::new(false), Cell::new(false));
        let mut filling = pin!(self.fill(&stop, &writing));
        let mut filled = false;
        let out = std::future::poll_fn(|cx| {
            if let Poll::Ready(out) = sending.as_mut().poll(cx) {
                return Poll::Ready(out);
            }
            filled = filled || filling.as_mut().poll(cx).is_ready();
            Poll::Pending
        })
        .await;
        stop.set(true);
        if !filled && writing.get() {
            // What was read is on its way into the file: it must not be forgotten there.
            filling.await;
        }
        out
    }

    async fn fill(&mut self, stop: &Cell<bool>, writing: &Cell<bool>) {
        while !self.done && !stop.get() {
            if self.has_room() {
                self.wait().await;
                self.read_now();
                continue;
            }
            let limit = self.passing.file();
            self.temp.take_if(|temp| temp.is_used_up(limit));
            let used = self.temp.as_ref().map_or(0, |t| t.end);
            if !self.spills || used >= limit {
                return;
            }
            // Sending may only wait for its turn, or for the task that writes its frames: the file is for a client that takes no more.
            yield_now().await;
            writing.set(true);
            if let Err(error) = self.spill().await {
                self.fail(Broken::File(error));
            }
            writing.set(false);
        }
    }

    /// Moves what is queued into the file.
    async fn spill(&mut self) -> io::Result<()> {
        let temp = match &mut self.temp {
            Some(temp) => temp,
            none => {
                let made = self.passing.temp_path.create(&self.handle, Keep::Nameless).await;
                let made = made.map_err(|failed| failed.error)?;
                if !std::mem::replace(&mut self.has_spilled, true) {
                    self.spilled = Some(made.path.clone());
                }
                none.insert(Temp { file: made.file.clone(), end: 0 })
            }
        };
        let mut moved = Chain::new();
        while let Some(segment) = self.queue.pop() {
            let Some(memory) = segment.memory() else {
                moved.push(segment);
                continue;
            };
            let (offset, len) = (temp.end, memory.len() as u64);
            let buf = match segment {
                Segment::Buf { buf, start: 0 } => buf,
                other => other.memory().unwrap_or_default().to_vec(),
            };
            let (written, buf) = self.handle.files().write_at(&temp.file, buf, offset).await;
            self.handle.give_buf(buf);
            if let Err(error) = written {
                // What follows these bytes must not be sent without them.
                self.queue = moved;
                self.in_memory = 0;
                return Err(error);
            }
            temp.end += len;
            moved.push(Segment::File { file: temp.file.clone(), offset, len });
        }
        self.queue = moved;
        self.in_memory = 0;
        Ok(())
    }

    /// How long the rate forbids to read.
    fn pause(&self) -> Option<Duration> {
        self.rate.as_ref()?.pause(self.received, self.handle.now())
    }

    /// How many bytes the rate allows to read now: a buffer at most, as in nginx.
    fn room_of_rate(&self) -> usize {
        let Some(pace) = &self.rate else { return READ };
        let room = pace.allowed(self.handle.now()).saturating_sub(self.received).max(1);
        usize::try_from(room.min(self.passing.buffers.1)).unwrap_or(READ)
    }

    fn count(&mut self, n: usize) {
        self.received += n as u64;
        if let Some(pace) = &mut self.rate {
            pace.read(n, self.handle.now());
        }
    }

    /// One read. `None`: nothing is there now; false: nothing will be.
    fn receive(&mut self, buf: &mut Vec<u8>) -> Option<bool> {
        match self.transport.try_recv(buf) {
            Ok(None) => None,
            Ok(Some(0)) => {
                match (self.protocol.reader().ends_with_connection(), &self.transport) {
                    (true, _) => self.done = true,
                    (false, Transport::Own(_)) => self.fail(Broken::Closed),
                    (false, Transport::Stream(_)) => self.fail(Broken::Cut),
                }
                Some(false)
            }
            Ok(Some(n)) => {
                self.count(n);
                self.uncounted.received += n as u64;
                self.uncounted.length += n as u64;
                Some(true)
            }
            Err(error) => {
                self.fail(Broken::Io(error));
                Some(false)
            }
        }
    }

    fn absorb(&mut self, mut buf: Vec<u8>) {
        let received = buf.len();
        self.protocol.reader().unframe(&mut buf, 0);
        self.take_in(buf, received);
    }

    fn unwrap(&mut self, buf: &mut Vec<u8>) {
        match self.protocol.reader().body(buf) {
            Ok(taken) => {
                self.done |= taken.done;
                self.extra = self.extra.or(taken.extra);
            }
            Err(error) => self.fail(Broken::Invalid(error)),
        }
    }

    fn take_in(&mut self, mut buf: Vec<u8>, received: usize) {
        self.unwrap(&mut buf);
        spend((received.saturating_sub(buf.len()) / FRAMING) as u32);
        self.length += buf.len() as u64;
        self.in_memory += buf.len();
        if buf.len() * 4 < buf.capacity() && buf.len() > SMALL {
            // A slow server must not fill memory with buffers that are nearly empty.
            self.queue.push(Bytes::copy_from_slice(&buf));
            self.handle.give_buf(buf);
        } else if buf.is_empty() {
            self.handle.give_buf(buf);
        } else {
            self.queue.push(buf);
        }
    }

    fn fail(&mut self, why: BrokenBody<P>) {
        self.done = true;
        self.broken.get_or_insert(why);
    }
}

/// Pieces up to this size are copied behind the head anyway.
const SMALL: usize = 4096;
