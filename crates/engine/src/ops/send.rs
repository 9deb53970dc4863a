//! Sending a chain of memory and file ranges.

use std::fs::File;
use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::Stream;
use crate::budget;
use crate::chain::{Chain, FileWay, Segment};
use crate::clock;
use crate::file_ways::Way;
use crate::files::{Offload, Rank, Residence, is_refused, name_of, read_waiting, residence};
use crate::operation::operation;
use crate::ops::must_yield;
use crate::ready::Ready;
use crate::seam::{self, Call};
use crate::source::Registered;

/// The most pieces of memory in one system call.
const PIECES: usize = 16;

/// Bytes that the file pool reads at once from a file that is not in memory.
const COLD_READ: usize = 128 << 10;

/// How long a send waits for a peer that takes no bytes. Every send names a limit, since a peer
/// that never reads would otherwise hold its task forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The longest time without progress. The whole send may take longer, and reading files does
    /// not count.
    Idle(Duration),
    /// The time by which everything must be sent.
    Until(Instant),
    /// No limit here: the caller has set the stream's deadline or drops the send by itself.
    Watched,
}

/// See [`Stream::send`] and [`Stream::send_some`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Send<'a> {
    stream: &'a Stream,
    chain: &'a mut Chain,
    /// The send is over once some bytes were sent.
    some: bool,
    /// The first segment is a file, and this many bytes of it are in memory.
    warm: u64,
    cold: Option<Offload<(io::Result<usize>, Vec<u8>)>>,
    patience: Patience,
    /// The peer has taken bytes since the stream's deadline was set, or none were waiting for it.
    moved: bool,
}

impl Stream {
    /// Sends all of `chain`. If it fails or is dropped, the chain keeps the bytes that were not
    /// sent. The file pool reads files that are not in memory, so that no disk stalls the loop.
    /// Fails with [`io::ErrorKind::TimedOut`] when `patience` is over, for which it sets the
    /// stream's deadline.
    pub fn send<'a>(&'a self, chain: &'a mut Chain, patience: Patience) -> Send<'a> {
        Send { stream: self, chain, some: false, warm: 0, cold: None, patience, moved: true }
    }

    /// As [`Stream::send`], but ready once some bytes of `chain` were sent. For tasks that do other
    /// work between pieces, such as setting a deadline for each. Use it to wait after
    /// [`Stream::try_send`]: that the socket is writable is not enough if a file has to be read
    /// first.
    pub fn send_some<'a>(&'a self, chain: &'a mut Chain, patience: Patience) -> Send<'a> {
        Send { some: true, ..self.send(chain, patience) }
    }

    /// Sets the stream's deadline for `patience`.
    pub fn begin_patience(&self, patience: Patience) {
        match patience {
            Patience::Idle(time) => self.set_timeout(Some(time)),
            Patience::Until(at) => self.set_deadline(Some(at)),
            Patience::Watched => {}
        }
    }

    /// As [`Stream::try_send`], for bytes in memory. Returns how many were sent.
    #[inline]
    pub fn try_send_bytes(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send_bytes(bytes)
    }

    /// Sends what can be sent without waiting and removes it from `chain`. Returns the number of
    /// bytes, or `None` if the send buffer was full. Stops when the task has used up its budget,
    /// but tries once in any case, so that a final message gets out. Also stops before a file that
    /// is not in memory; [`Stream::send`] and [`Stream::send_some`] read those.
    pub fn try_send(&self, chain: &mut Chain) -> io::Result<Option<u64>> {
        if chain.is_one_buffer() {
            return self.0.send_buffer(chain);
        }
        let mut sent = 0;
        let mut files = chain.file_chunk();
        while !chain.is_empty() && files > 0 && !(sent > 0 && budget::is_spent()) {
            let way = self.0.next_way(chain);
            let cold = way == Way::Sendfile
                && chain.front_file().is_some_and(|(file, offset, len)| {
                    !file.waits_here()
                        && residence(file, offset, len.min(files)) == Residence::Unknown
                });
            let once = if cold { Once::Cold } else { self.0.send_once(chain, files, way)? };
            let Once::Sent { all, of_file } = once else {
                if sent == 0 {
                    return Ok(None);
                }
                break;
            };
            files -= of_file.min(files);
            sent += all;
        }
        Ok(Some(sent))
    }
}

impl Send<'_> {
    /// Waits for room in the send buffer. The time limit starts anew if the peer has taken bytes
    /// since.
    fn wait_for_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.moved) {
            self.stream.begin_patience(self.patience);
        }
        self.stream.0.wait_write(cx)
    }
}

impl Future for Send<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // A file's pages may have left memory since the last turn.
        this.warm = 0;
        let mut files = this.chain.file_chunk();
        while !this.chain.is_empty() {
            if files == 0 {
                budget::spend(budget::TURN);
            }
            if must_yield(cx) {
                return Poll::Pending;
            }
            let way = this.stream.0.next_way(this.chain);
            ready!(this.poll_warm(cx, files, way))?;
            let from_file = if way == Way::Copy { files } else { this.warm };
            match this.stream.0.send_once(this.chain, from_file, way)? {
                Once::Sent { of_file, .. } => {
                    this.warm -= of_file.min(this.warm);
                    files -= of_file.min(files);
                }
                Once::Full => return this.wait_for_room(cx),
                Once::Cold => {
                    this.read_cold();
                    continue;
                }
            }
            this.moved = true;
            if this.some {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Send<'_> {
    /// Ready when the head of the chain is in memory. Has the file pool read it otherwise. For a
    /// file, `warm` is then the number of bytes in memory.
    fn poll_warm(&mut self, cx: &mut Context<'_>, at_most: u64, way: Way) -> Poll<io::Result<()>> {
        loop {
            if let Some(cold) = &mut self.cold {
                let (read, mut buf) = ready!(Pin::new(cold).poll(cx))?;
                self.cold = None;
                if read? == 0 {
                    let ended = self.chain.front_file().map(|(file, ..)| truncated(file));
                    let ended = ended.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
                    return Poll::Ready(Err(ended));
                }
                buf.truncate(usize::try_from(at_most).unwrap_or(usize::MAX));
                self.chain.fill_front(buf);
                self.moved = true;
                return Poll::Ready(Ok(()));
            }
            // A copy finds out as it reads whether the file is in memory.
            if self.warm > 0 || way == Way::Copy {
                return Poll::Ready(Ok(()));
            }
            let Some((file, offset, len)) = self.chain.front_file() else {
                return Poll::Ready(Ok(()));
            };
            let len = len.min(at_most);
            if file.waits_here() || residence(file, offset, len) == Residence::Cached {
                self.warm = len;
                return Poll::Ready(Ok(()));
            }
            self.read_cold();
        }
    }

    /// Makes the file pool read from the file at the head of the chain.
    fn read_cold(&mut self) {
        let Some((file, offset, _)) = self.chain.front_file() else { return };
        let file = Arc::clone(file);
        let (h, pool) = (&self.stream.0.h, file.pool().clone());
        let mut buf = h.take_buf(COLD_READ);
        let read = move || (read_waiting(&file, &mut buf, offset), buf);
        self.cold = Some(h.files().run_in(&pool, Rank::Read, read));
    }
}

/// The result of one attempt to send.
enum Once {
    Sent {
        all: u64,
        of_file: u64,
    },
    /// The send buffer is full.
    Full,
    /// Nothing of the file at the head is in memory.
    Cold,
}

impl Registered {
    /// Sends with one system call. Returns 0 if the send buffer is full.
    fn send_bytes(&self, bytes: &[u8]) -> io::Result<usize> {
        if !self.source.is(Ready::WRITABLE) || bytes.is_empty() {
            return Ok(0);
        }
        let sent = self.send_pieces(&[IoSlice::new(bytes)], SendFlags::empty())?;
        if sent.is_none() {
            self.is_full()?;
        }
        self.note_full(sent, bytes.len());
        Ok(sent.unwrap_or(0))
    }

    /// Notes that the send buffer is full. Fails if the backend refused the socket, since no event
    /// would come: see `try_recv`.
    fn is_full(&self) -> io::Result<()> {
        if self.source.is(Ready::ERR) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.exhausted(Ready::WRITE);
        Ok(())
    }

    /// Sends with one system call; at most `from_file` bytes of a file.
    fn send_once(&self, chain: &mut Chain, from_file: u64, way: Way) -> io::Result<Once> {
        // A failed connection is tried, too, since only the system call returns its error.
        if !self.source.is(Ready::WRITABLE) {
            return Ok(Once::Full);
        }
        // A copy sends the memory before the file in the same call.
        if chain.is_one_buffer() || (way == Way::Sendfile && chain.front_file().is_none()) {
            let sent = self.send_memory(chain)?;
            return self.sent(chain, sent, 0);
        }
        let since = clock::nanos();
        let once = match way {
            Way::Sendfile => match self.send_file(chain, from_file) {
                // Some file systems have no `sendfile`. They may be read.
                Err(e)
                    if e.raw_os_error().map(Errno::from_raw_os_error).is_some_and(is_refused) =>
                {
                    chain.set_file_way(FileWay::Copy);
                    return self.send_copy(chain, from_file);
                }
                sent => sent?,
            },
            Way::Copy => self.send_copy(chain, from_file)?,
        };
        if let Once::Sent { of_file, .. } = once {
            let took = clock::nanos().saturating_sub(since);
            self.h.0.file_ways.learn(way, took, of_file);
        }
        Ok(once)
    }

    /// Chooses the way of the next send.
    #[inline]
    fn next_way(&self, chain: &Chain) -> Way {
        match chain.file_way() {
            FileWay::Copy => Way::Copy,
            FileWay::Cheapest if chain.has_file_early() => self.h.0.file_ways.choose(),
            FileWay::Cheapest => Way::Sendfile,
        }
    }

    /// Sends a chain of one buffer, as far as there is room.
    #[inline]
    fn send_buffer(&self, chain: &mut Chain) -> io::Result<Option<u64>> {
        if !self.source.is(Ready::WRITABLE) {
            return Ok(None);
        }
        let sent = self.send_memory(chain)?;
        self.drop_sent(chain, sent)
    }

    /// Removes sent bytes from the chain, or notes that the send buffer is full.
    #[inline]
    fn drop_sent(&self, chain: &mut Chain, sent: Option<u64>) -> io::Result<Option<u64>> {
        match sent {
            Some(sent) => chain.consume(sent, |buf| self.h.give_buf(buf)),
            None => self.is_full()?,
        }
        Ok(sent)
    }

    /// As [`Registered::drop_sent`]. `of_file` of the bytes are a file's.
    fn sent(&self, chain: &mut Chain, all: Option<u64>, of_file: u64) -> io::Result<Once> {
        let all = self.drop_sent(chain, all)?;
        Ok(all.map_or(Once::Full, |all| Once::Sent { all, of_file }))
    }

    /// Sends the memory at the head of the chain and the cached bytes of the file behind it with
    /// one call. Bytes that the client does not take are read again later. So a slow client holds
    /// no buffer.
    fn send_copy(&self, chain: &mut Chain, from_file: u64) -> io::Result<Once> {
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (mut count, mut memory) = (0, 0);
        let before = chain.segments().map_while(Segment::memory);
        for (slot, bytes) in pieces.iter_mut().zip(before) {
            *slot = IoSlice::new(bytes);
            (count, memory) = (count + 1, memory + bytes.len());
        }
        let mut warm = self.h.0.warm.take();
        let read = match chain.segments().nth(count) {
            Some(Segment::File { file, offset, len }) if count < PIECES => {
                warm.read(self.h.files(), file, *offset, (*len).min(from_file))?
            }
            _ => None,
        };
        if read.is_some_and(<[u8]>::is_empty)
            && let Some(Segment::File { file, .. }) = chain.segments().nth(count)
        {
            return Err(truncated(file));
        }
        let mut total = memory;
        if let (Some(slot), Some(read)) = (pieces.get_mut(count), read) {
            *slot = IoSlice::new(read);
            (count, total) = (count + 1, total + read.len());
        }
        if count == 0 {
            self.h.0.warm.set(warm);
            return Ok(Once::Cold);
        }
        let sent = self.send_pieces(pieces.get(..count).unwrap_or_default(), SendFlags::empty())?;
        self.h.0.warm.set(warm);
        let sent = self.note_full(sent, total);
        self.sent(chain, sent, sent.unwrap_or(0).saturating_sub(memory as u64))
    }

    /// Sends the memory at the head of the chain with one call.
    fn send_memory(&self, chain: &Chain) -> io::Result<Option<u64>> {
        if let Some(memory) = chain.only().and_then(Segment::memory) {
            let sent = self.send_pieces(&[IoSlice::new(memory)], SendFlags::empty())?;
            return Ok(self.note_full(sent, memory.len()));
        }
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (mut count, mut total, mut file_follows) = (0, 0, false);
        for (slot, segment) in pieces.iter_mut().zip(chain.segments()) {
            let Some(memory) = segment.memory() else {
                file_follows = true;
                break;
            };
            *slot = IoSlice::new(memory);
            total += memory.len();
            count += 1;
        }
        // MSG_MORE: the head and the file behind it leave in one packet.
        let more = if file_follows { SendFlags::MORE } else { SendFlags::empty() };
        let sent = self.send_pieces(pieces.get(..count).unwrap_or_default(), more)?;
        Ok(self.note_full(sent, total))
    }

    /// Notes a full send buffer. The kernel sends less memory than offered only then.
    fn note_full(&self, sent: Option<usize>, offered: usize) -> Option<u64> {
        if sent.is_some_and(|n| n < offered) {
            self.exhausted(Ready::WRITE);
        }
        sent.map(|n| n as u64)
    }

    fn send_pieces(&self, pieces: &[IoSlice<'_>], more: SendFlags) -> io::Result<Option<usize>> {
        let (fd, flags) = (&self.source.fd, SendFlags::NOSIGNAL | more);
        loop {
            seam::at(Call::Send)?;
            let sent = match pieces {
                [piece] => rustix::net::send(fd, piece, flags),
                _ => rustix::net::sendmsg(fd, pieces, &mut SendAncillaryBuffer::default(), flags),
            };
            match sent {
                Ok(n) => {
                    budget::spend_call(n);
                    return Ok(Some(n));
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends from the file at the head of the chain.
    fn send_file(&self, chain: &mut Chain, at_most: u64) -> io::Result<Once> {
        let sent = match chain.front_file() {
            Some((file, offset, len)) => self.send_pages(file, offset, len.min(at_most))?,
            None => Some(0),
        };
        self.sent(chain, sent, sent.unwrap_or(0))
    }

    fn send_pages(&self, file: &File, offset: u64, len: u64) -> io::Result<Option<u64>> {
        let mut at = offset;
        let count = usize::try_from(len).unwrap_or(usize::MAX);
        loop {
            seam::at(Call::Send)?;
            let send = || rustix::fs::sendfile(&self.source.fd, file, Some(&mut at), count);
            match operation("sendfile", send) {
                Ok(0) => return Err(truncated(file)),
                Ok(n) => {
                    budget::spend_file(n as u64);
                    return Ok(Some(n as u64));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// The error of sending a file that ends before the range to be sent.
pub fn truncated(file: &File) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, Truncated(name_of(file.as_raw_fd())))
}

/// The path of the file, if the error is [`truncated`].
pub fn truncated_file(error: &io::Error) -> Option<&Path> {
    let truncated = error.get_ref()?.downcast_ref::<Truncated>()?;
    Some(&truncated.0)
}

#[derive(Debug)]
struct Truncated(PathBuf);

impl std::fmt::Display for Truncated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the file became shorter while it was sent")
    }
}

impl std::error::Error for Truncated {}
