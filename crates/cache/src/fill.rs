//! An answer that is being received. One request adds pieces, any number of readers read them, and
//! a writer writes them into a file. All may be on different loops.
//!
//! Pieces stay in memory up to a limit. Beyond it, pieces that are in the file are dropped. If the
//! disk is too slow, the answer is not stored, and its pace is that of the fetching request's
//! client. Every other reader then asks the server itself for the [`MissingRest`]. So no reader
//! waits for another one, and memory stays bounded.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use weir_engine::{Files, OpenFile, Segment};

use crate::entry::CacheEntry;
use crate::key::CacheKey;

/// An answer that is being received.
#[derive(Debug)]
pub struct Fill {
    state: Mutex<FillState>,
    /// The most bytes of the body in memory.
    limit: u64,
    /// What was requested, and when.
    asked: Asked,
}

/// What was requested of a server, to find out whether the key was purged meanwhile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// The main key, without the variant.
    pub key: CacheKey,
    /// [`Index::last`](crate::Index::last) at the time of the request.
    pub since: u32,
}

/// Pieces are joined up to this share of the limit.
const SHORT: u64 = 128;

/// Readers wait until they can have answers up to this length completely.
const SMALL: u64 = 64 * 1024;

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillEnd {
    /// The answer is complete.
    Whole,
    /// The rest will not arrive.
    Broken,
}

#[derive(Debug, Default)]
struct FillState {
    head: Head,
    pieces: VecDeque<Bytes>,
    /// Offset in the body of the first piece in memory.
    start: u64,
    /// Bytes received.
    received: u64,
    /// Bytes in the file.
    written: u64,
    /// The file, and the offset of the body in it.
    file: Option<(Arc<OpenFile>, u64)>,
    /// The answer cannot be written, or not any further.
    storeless: bool,
    /// The answer is not to be stored, since there is a newer one or it was purged.
    superseded: bool,
    end: Option<FillEnd>,
    /// Offset of the fetching request's own reader. `None` if there is none, for example after its
    /// client left.
    own: Option<u64>,
    /// The number of other readers.
    joined: usize,
    /// When writing failed: the bytes that had been received and are not in the file, for the other
    /// readers.
    tail: Vec<Bytes>,
    waiting: Vec<Waker>,
}

#[derive(Debug, Default)]
enum Head {
    #[default]
    Unknown,
    Known(Arc<CacheEntry>, Option<u64>),
    /// The answer is not shared after all.
    Withdrawn,
}

/// The next part of an answer, for a reader.
#[derive(Debug)]
pub enum FillPiece {
    /// Bytes.
    Data(Segment),
    /// The end.
    End(FillEnd),
    /// The reader must ask the server for the rest: see [`FillReader::rest`].
    FetchRest,
}

impl Fill {
    /// A fill before the head. `limit` is in bytes.
    pub fn new(limit: u64, asked: Asked) -> Arc<Fill> {
        Arc::new(Fill { state: Mutex::default(), limit, asked })
    }

    /// What was requested, and when.
    pub fn asked(&self) -> Asked {
        self.asked
    }

    fn lock(&self) -> MutexGuard<'_, FillState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes all waiting tasks.
    fn change<T>(&self, change: impl FnOnce(&mut FillState) -> T) -> T {
        let mut state = self.lock();
        let out = change(&mut state);
        state.trim(self.limit);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
        out
    }

    async fn until<T>(&self, ready: impl Fn(&mut FillState) -> Option<T>) -> T {
        poll_fn(|cx| self.poll(cx, &ready)).await
    }

    fn poll<T>(&self, cx: &Context<'_>, ready: impl Fn(&mut FillState) -> Option<T>) -> Poll<T> {
        let mut state = self.lock();
        match ready(&mut state) {
            Some(out) => Poll::Ready(out),
            None => {
                if !state.waiting.iter().any(|w| w.will_wake(cx.waker())) {
                    state.waiting.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

/// For the request that fetches the answer.
impl Fill {
    /// Sets the head. `length` is the length of the body, if known.
    pub fn set_head(&self, entry: Arc<CacheEntry>, length: Option<u64>) {
        self.change(|s| s.head = Head::Known(entry, length));
    }

    /// Ends sharing. Requests that wait for the answer ask a server themselves.
    pub fn withdraw(&self) {
        self.change(|s| {
            s.head = Head::Withdrawn;
            s.end.get_or_insert(FillEnd::Broken);
        });
    }

    /// Adds a piece of the body.
    pub fn push(&self, piece: Bytes) {
        if !piece.is_empty() {
            let short = self.limit / SHORT;
            self.change(|s| s.add(piece, short));
        }
    }

    /// Ends the answer.
    pub fn finish(&self, end: FillEnd) {
        self.change(|s| {
            s.end.get_or_insert(end);
        });
    }

    /// Waits until there is room for more. False if no more is needed: writing failed and the
    /// fetching request's reader is gone.
    pub async fn room(&self) -> bool {
        let limit = self.limit;
        self.until(|s| {
            let nobody = s.storeless && s.own.is_none();
            (nobody || !s.is_full(limit)).then_some(!nobody)
        })
        .await
    }
}

/// For the writer.
impl Fill {
    /// Waits for `least` bytes that are not in the file, or for the end. Returns the bytes, their
    /// offset in the body, and the end.
    pub async fn unwritten(&self, least: u64) -> (Vec<Bytes>, u64, Option<FillEnd>) {
        let limit = self.limit;
        self.until(|s| {
            let unwritten = s.received - s.written;
            // If memory is full, fewer bytes are enough: the fetching request waits for room that
            // only writing makes.
            let enough = unwritten >= least || (unwritten > 0 && s.is_full(limit));
            (enough || s.end.is_some()).then(|| (s.from(s.written).collect(), s.written, s.end))
        })
        .await
    }

    /// Notes that the body is in this file up to `until`. It begins at offset `body` of the file.
    pub fn written(&self, file: &Arc<OpenFile>, body: u64, until: u64) {
        self.change(|s| {
            s.written = until;
            s.file.get_or_insert_with(|| (file.clone(), body));
        });
    }

    /// Whether nothing more can be received before something is written.
    pub(crate) fn is_blocked_by_disk(&self) -> bool {
        let state = self.lock();
        state.end.is_none() && state.is_full(self.limit)
    }

    /// Notes that the answer cannot be written any further.
    pub fn store_failed(&self) {
        self.change(|s| {
            if !std::mem::replace(&mut s.storeless, true) && s.joined > 0 {
                s.tail = s.from(s.written).collect();
            }
        });
    }

    /// The body, if it is complete and still in memory.
    pub fn in_memory(&self) -> Option<Bytes> {
        let state = self.lock();
        let whole = state.start == 0 && state.end == Some(FillEnd::Whole);
        whole.then(|| match state.pieces.len() {
            1 => state.pieces.front().cloned().unwrap_or_default(),
            _ => Bytes::from(state.pieces.iter().flatten().copied().collect::<Vec<u8>>()),
        })
    }
}

/// For readers.
impl Fill {
    /// Waits for the head. Waits for the whole of a small answer, too: a request that has not begun
    /// to read can still use another answer if the server is slow. Returns the metadata, and the
    /// body's length if known. `None` if the answer was withdrawn.
    pub async fn head(&self) -> Option<(Arc<CacheEntry>, Option<u64>)> {
        self.until(|s| match &s.head {
            Head::Unknown if s.end.is_some() => Some(None),
            Head::Unknown => None,
            Head::Withdrawn => Some(None),
            Head::Known(..) if s.end.is_none() && s.received < SMALL => None,
            Head::Known(entry, length) => {
                let length = length.or((s.end == Some(FillEnd::Whole)).then_some(s.received));
                Some(Some((entry.clone(), length)))
            }
        })
        .await
    }

    /// Whether the answer is going to be stored.
    pub fn is_storable(&self) -> bool {
        let state = self.lock();
        !state.storeless && !state.superseded
    }

    /// Prevents that the answer is stored. Readers are not affected.
    pub fn supersede(&self) {
        self.lock().superseded = true;
    }

    /// The metadata, if the head is known.
    pub(crate) fn known(&self) -> Option<Arc<CacheEntry>> {
        match &self.lock().head {
            Head::Known(entry, _) => Some(entry.clone()),
            _ => None,
        }
    }

    /// Whether the answer is complete.
    pub fn is_whole(&self) -> bool {
        self.lock().end == Some(FillEnd::Whole)
    }

    /// The reader of the request that fetches the answer.
    pub fn own_reader(self: &Arc<Self>) -> FillReader {
        self.lock().own = Some(0);
        FillReader { fill: self.clone(), own: true, at: 0 }
    }

    /// A reader for another request, from the beginning. `None` if it could not read to the end.
    pub fn reader(self: &Arc<Self>) -> Option<FillReader> {
        let mut state = self.lock();
        if state.end == Some(FillEnd::Broken) || state.storeless {
            return None;
        }
        state.joined += 1;
        Some(FillReader { fill: self.clone(), own: false, at: 0 })
    }
}

/// Reads an answer that is being received.
#[derive(Debug)]
pub struct FillReader {
    fill: Arc<Fill>,
    /// The reader belongs to the request that fetches the answer.
    own: bool,
    at: u64,
}

impl FillReader {
    /// Waits for the next piece.
    pub async fn next(&mut self) -> FillPiece {
        let (at, own) = (self.at, self.own);
        let piece = self.fill.until(|s| s.piece(at, own)).await;
        self.passed(&piece);
        piece
    }

    /// The next piece, if there is one now.
    pub fn next_now(&mut self) -> Option<FillPiece> {
        let piece = self.fill.lock().piece(self.at, self.own)?;
        self.passed(&piece);
        Some(piece)
    }

    fn passed(&mut self, piece: &FillPiece) {
        let FillPiece::Data(segment) = piece else { return };
        self.at += segment.len();
        if self.own {
            self.fill.change(|s| s.own = Some(self.at));
        }
    }

    /// Whether it has read a complete answer to its end.
    pub fn is_done(&self) -> bool {
        let state = self.fill.lock();
        state.end == Some(FillEnd::Whole) && state.received == self.at
    }

    /// Whether it has read as many bytes as the head announced.
    pub fn has_announced(&self) -> bool {
        match &self.fill.lock().head {
            Head::Known(_, length) => *length == Some(self.at),
            _ => false,
        }
    }

    /// After [`FillPiece::FetchRest`]: the part that is missing.
    pub fn rest(self) -> Option<MissingRest> {
        let state = self.fill.lock();
        let Head::Known(entry, length) = &state.head else { return None };
        Some(MissingRest {
            at: self.at,
            entry: entry.clone(),
            length: *length,
            file: state.file.clone(),
            written: state.written,
            tail: state.tail.clone(),
        })
    }
}

/// The part that a reader lacks of an answer that could not be written. The server is asked again.
/// The bytes that the client already has must be the beginning of the second answer.
#[derive(Debug)]
pub struct MissingRest {
    /// Bytes of the body that the client has.
    pub at: u64,
    /// The metadata of the answer.
    pub entry: Arc<CacheEntry>,
    /// The length of the body, if known.
    pub length: Option<u64>,
    file: Option<(Arc<OpenFile>, u64)>,
    written: u64,
    tail: Vec<Bytes>,
}

impl MissingRest {
    /// Whether the first answer has these bytes at offset `at` of its body.
    pub async fn has(&self, files: &Files, mut at: u64, mut bytes: &[u8]) -> bool {
        while at < self.written && !bytes.is_empty() {
            let Some((file, body)) = &self.file else { return false };
            let most = usize::try_from(self.written - at).unwrap_or(usize::MAX);
            let room = Vec::with_capacity(bytes.len().min(most).min(COMPARED));
            let (read, mut known) = files.read_at(file, room, body + at).await;
            known.truncate(bytes.len().min(most));
            if !matches!(read, Ok(1..)) || !bytes.starts_with(&known) {
                return false;
            }
            at += known.len() as u64;
            bytes = bytes.get(known.len()..).unwrap_or_default();
        }
        let Some(behind) = at.checked_sub(self.written).filter(|_| !bytes.is_empty()) else {
            return bytes.is_empty();
        };
        let known = self.tail.iter().flatten().skip(usize::try_from(behind).unwrap_or(usize::MAX));
        known.take(bytes.len()).eq(bytes)
    }
}

/// Bytes that are compared at once.
const COMPARED: usize = 64 * 1024;

impl Drop for FillReader {
    fn drop(&mut self) {
        self.fill.change(|s| match self.own {
            true => s.own = None,
            false => s.joined = s.joined.saturating_sub(1),
        });
    }
}

impl FillState {
    /// Whether the limit of memory is reached.
    fn is_full(&self, limit: u64) -> bool {
        self.received - self.start >= limit.max(1)
    }

    /// Adds a piece. Pieces are copied into one up to the length `short`: the buffer of each may be
    /// much longer, and readers look through all pieces.
    fn add(&mut self, piece: Bytes, short: u64) {
        self.received += piece.len() as u64;
        match self.pieces.back_mut() {
            Some(last) if (last.len() + piece.len()) as u64 <= short => {
                *last = Bytes::from([&last[..], &piece].concat());
            }
            _ => self.pieces.push_back(piece),
        }
    }

    /// Drops pieces that are not needed in memory. After the end, no more room is needed.
    fn trim(&mut self, limit: u64) {
        while self.end.is_none() && self.is_full(limit) {
            let Some(front) = self.pieces.front() else { return };
            let end = self.start + front.len() as u64;
            let had = if self.storeless { self.own.unwrap_or(self.received) } else { 0 };
            if end > self.written.max(had) {
                return;
            }
            self.start = end;
            self.pieces.pop_front();
        }
    }

    /// The bytes in memory from this offset on.
    fn from(&self, at: u64) -> impl Iterator<Item = Bytes> {
        let mut end = self.start;
        self.pieces.iter().filter_map(move |piece| {
            let start = end;
            end += piece.len() as u64;
            (end > at).then(|| piece.slice((at.max(start) - start) as usize..))
        })
    }

    fn piece(&self, at: u64, own: bool) -> Option<FillPiece> {
        let alone = self.storeless && !own;
        if alone && self.end.is_none() {
            return Some(FillPiece::FetchRest);
        }
        if at < self.start {
            let Some((file, body)) = self.file.as_ref().filter(|_| at < self.written) else {
                return Some(if alone {
                    FillPiece::FetchRest
                } else {
                    FillPiece::End(FillEnd::Broken)
                });
            };
            let len = self.written.min(self.start) - at;
            let segment = Segment::File { file: file.clone(), offset: body + at, len };
            return Some(FillPiece::Data(segment));
        }
        if at < self.received {
            return self.from(at).next().map(|bytes| FillPiece::Data(bytes.into()));
        }
        self.end.map(FillPiece::End)
    }
}

#[cfg(test)]
#[path = "fill/tests.rs"]
mod tests;
