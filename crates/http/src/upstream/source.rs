//! The body of an answer, as received from the server: read, unframed, and kept in memory, or in a
//! temporary file if the client is slower than the server.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use weir_engine::{Chain, Handle, OpenFile, Segment, spend, yield_now};
use weir_upstream::{Connection, Pace};

use super::passing::UpstreamConf;
use super::protocol::{Extra, Protocol, Reader};
use super::transport::{StreamCounts, Transport};
use crate::answer::headers::Headers;
use crate::body::FRAMING;
use crate::files::temp_file::Keep;
use crate::request::passed::Attempt;

/// Bytes of one read, enough for usual answers.
const READ: usize = 32 * 1024;
/// A temporary file of this size is dropped once all of it was sent, to free the disk.
const LET_GO: u64 = 1024 * 1024;
/// Bytes of a piece in an exchange, which must not wait for the client.
const PIECE: u64 = 64 * 1024;

/// Why the rest of a body will not arrive; `E` is the error of its [`Reader`].
#[derive(Debug)]
pub enum Broken<E> {
    /// The connection failed or timed out.
    Io(io::Error),
    /// The connection was closed before the end.
    Closed,
    /// The stream ended before the body.
    Cut,
    /// The body is malformed.
    Invalid(E),
    /// A temporary file could not be written.
    File(io::Error),
}

/// A temporary file without a name, which disappears with its last user. Sent data remain in the
/// socket's queue as references to the file's pages until the client acknowledges them. So no part
/// of the file is written twice.
struct Temp {
    file: Arc<OpenFile>,
    /// Offset of the next write.
    end: u64,
}

impl Temp {
    /// Whether the file has grown and nothing of it is queued or being sent, so that a new one
    /// should be used.
    fn is_used_up(&self, limit: u64) -> bool {
        self.end >= limit.min(LET_GO) && Arc::strong_count(&self.file) == 1
    }
}

/// Why a body of this protocol will not arrive.
type BrokenBody<P> = Broken<<<P as Protocol>::Reader as Reader>::Error>;

/// A body that is being read.
pub struct Source<'p, P: Protocol> {
    /// The connection or stream.
    pub transport: Transport,
    protocol: &'p mut P,
    handle: Handle,
    passing: &'static UpstreamConf,
    queue: Chain,
    in_memory: usize,
    temp: Option<Temp>,
    /// Nothing more will be read.
    pub done: bool,
    /// Why the body ended too early. It is never cleared, since later data on the connection are no
    /// other answer.
    broken: Option<BrokenBody<P>>,
    /// Data after the end of the body.
    extra: Option<Extra>,
    /// Bytes that are not counted for the attempt yet.
    uncounted: Came,
    /// Bytes received, with those received with the head.
    received: u64,
    /// Bytes of the body.
    pub length: u64,
    /// `proxy_limit_rate` and kin.
    pace: Option<Pace>,
    within: Duration,
    spills: bool,
    has_spilled: bool,
    /// The path of the first temporary file, until it was logged.
    pub spilled: Option<PathBuf>,
}

/// Numbers of received bytes.
#[derive(Debug, Default)]
pub struct Came {
    /// Bytes received after the head.
    received: u64,
    /// Bytes of the body with its framing.
    length: u64,
    /// For a stream: its totals so far, and the bytes of the body.
    stream: Option<(StreamCounts, u64)>,
}

impl Came {
    /// Adds the numbers to the attempt.
    pub fn count(self, attempt: &mut Attempt) {
        attempt.received += self.received;
        attempt.length += self.length;
        if let Some((counts, length)) = self.stream {
            counts.tell(attempt);
            attempt.length = length;
        }
    }
}

/// How a body is read ahead of the client.
pub struct Ahead {
    /// A temporary file may be used.
    pub file: bool,
    /// The rate limit in bytes a second.
    pub rate: Option<u64>,
    /// How long the server may send no bytes.
    pub within: Duration,
}

impl<'p, P: Protocol> Source<'p, P> {
    /// A body before the first read.
    pub fn new(
        transport: Transport,
        protocol: &'p mut P,
        handle: Handle,
        passing: &'static UpstreamConf,
        ahead: Ahead,
    ) -> Self {
        let pace = ahead.rate.and_then(|rate| Pace::new(rate, handle.now()));
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
            pace,
            within: ahead.within,
            spills: ahead.file,
            has_spilled: false,
            spilled: None,
        }
    }

    /// Why the body ended too early, if it did.
    pub fn broken(&self) -> Option<&BrokenBody<P>> {
        self.broken.as_ref()
    }

    /// Data after the end of the body.
    pub fn extra(&self) -> Option<Extra> {
        self.extra
    }

    /// The connection, if the complete body was received and nothing else, so that it can be used
    /// again.
    pub fn into_reusable(self) -> Option<Box<Connection>> {
        let whole = self.done && self.broken.is_none() && self.extra.is_none();
        let whole = whole && !self.protocol.reader().ends_with_connection();
        self.transport.into_own().filter(|_| whole)
    }

    /// Takes the numbers since the last call.
    pub fn take_count(&mut self) -> Came {
        let stream = self.transport.counted().map(|counted| (counted, self.length));
        Came { stream, ..std::mem::take(&mut self.uncounted) }
    }

    /// The protocol, for sending meanwhile.
    pub fn protocol(&self) -> &P {
        self.protocol
    }

    /// Adds the trailers, after the body.
    pub fn trailers(&mut self, out: &mut Headers) {
        self.protocol.reader().trailers(out);
        self.transport.trailers(out);
    }

    /// Begins with the bytes that were received with the head.
    pub fn begin(&mut self, mut bytes: Vec<u8>) {
        let received = bytes.len();
        self.count(received);
        self.uncounted.length = received as u64;
        if received == 0 {
            // With records, an empty body may have ended already.
            return self.unwrap(&mut bytes);
        }
        self.take_in(bytes, received);
    }

    /// Takes the server's log messages.
    pub fn said(&mut self) -> Vec<String> {
        self.protocol.reader().said()
    }

    /// See [`Reader::comes_in_pieces`].
    ///
    /// [`Reader::comes_in_pieces`]: super::protocol::Reader::comes_in_pieces
    pub fn comes_in_pieces(&mut self) -> bool {
        self.protocol.reader().comes_in_pieces()
    }

    /// Takes the data that were read so far.
    pub fn take(&mut self) -> Chain {
        self.in_memory = 0;
        std::mem::take(&mut self.queue)
    }

    /// Takes a piece of the data that were read so far.
    pub fn take_piece(&mut self) -> Chain {
        let piece = self.queue.split_to(PIECE);
        self.in_memory = self.queue.segments().filter_map(Segment::memory).map(<[u8]>::len).sum();
        piece
    }

    /// Whether there are no data to take.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Reads available data without waiting, as long as there is room in memory.
    pub fn read_now(&mut self) {
        while !self.done && self.has_room() && self.pause().is_none() {
            let mut buf = match self.pace {
                // Exactly as much as the rate allows.
                Some(_) => Vec::with_capacity(READ.min(self.room_of_rate())),
                None => self.handle.take_buf(READ.min(self.passing.memory())),
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

    /// As [`Source::wait`], but borrows the source only shared, so that the transport can send
    /// meanwhile. Pass the result to [`Source::heard`].
    pub async fn ready(&self) -> io::Result<()> {
        if let Some(pause) = self.pause() {
            self.handle.sleep(pause).await;
            return Ok(());
        }
        self.transport.set_deadline(Some(self.handle.now() + self.within));
        self.transport.readable().await
    }

    /// Handles the result of [`Source::ready`].
    pub fn heard(&mut self, ready: io::Result<()>) {
        if let Err(error) = ready {
            self.fail(Broken::Io(error));
        }
    }

    /// Whether there is room in memory.
    pub fn has_room(&self) -> bool {
        self.in_memory < self.passing.memory()
    }

    /// Runs `sending`, and reads ahead while that waits for the client.
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
            // Data on their way into the file must not be lost.
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
            // The file is for slow clients. Sending may only be waiting for its turn, or for the
            // task that writes frames, so the loop gets a chance first.
            yield_now().await;
            writing.set(true);
            if let Err(error) = self.spill().await {
                self.fail(Broken::File(error));
            }
            writing.set(false);
        }
    }

    /// Moves the queued data into the file.
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
                // Data after the lost bytes must not be sent.
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

    /// How long the rate limit forbids to read.
    fn pause(&self) -> Option<Duration> {
        self.pace?.left(self.handle.now(), self.received).err()
    }

    /// How many bytes the rate limit allows to read now; as in nginx, one buffer at most.
    fn room_of_rate(&self) -> usize {
        let Some(pace) = &self.pace else { return READ };
        let room = pace.left(self.handle.now(), self.received).unwrap_or(1);
        usize::try_from(room.min(self.passing.buffers.1)).unwrap_or(READ)
    }

    fn count(&mut self, n: usize) {
        self.received += n as u64;
        if let Some(pace) = &mut self.pace {
            pace.read(n as u64, self.handle.now());
        }
    }

    /// Reads once. `None` if there are no data now; false if there will be none.
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
            // Copied: a slow server must not fill memory with nearly empty buffers.
            self.queue.push(Bytes::copy_from_slice(&buf));
            self.handle.give_buf(buf);
        } else if buf.is_empty() || buf.len() <= SMALL && self.queue.extend_last(&buf) {
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

/// A piece up to this size is copied only behind data that wait for the client already. Otherwise
/// it is copied behind the head when it is sent.
const SMALL: usize = 4096;
