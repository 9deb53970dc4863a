//! An answer while it comes in. One request puts pieces in, any number of readers take them out,
//! and a writer brings them into a file. All may be on different loops.
//!
//! Pieces stay in memory up to a limit. Beyond it, pieces that are in the file are dropped. If the
//! disk takes no more, the answer belongs to the request that fetches it: its own client sets the
//! pace. Every other reader then asks the server itself for the [`MissingRest`]. So no reader waits
//! for another one, and memory stays bounded.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use weir_engine::{Files, OpenFile, Segment};

use crate::entry::CacheEntry;
use crate::key::CacheKey;

/// An answer that comes in.
#[derive(Debug)]
pub struct Fill {
    state: Mutex<FillState>,
    /// Bytes of the body that stay in memory.
    limit: u64,
    /// What was asked for, and when.
    asked: Asked,
}

/// What a server was asked for, to tell whether the answer was removed meanwhile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// The key, without the variant.
    pub key: CacheKey,
    /// [`Index::last`](crate::Index::last) at that time.
    pub since: u32,
}

/// Answers up to this length are waited for as a whole.
const SMALL: u64 = 64 * 1024;

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillEnd {
    /// All of it is there.
    Whole,
    /// The rest will not come.
    Broken,
}

#[derive(Debug, Default)]
struct FillState {
    head: Head,
    pieces: VecDeque<Bytes>,
    /// Where in the body the first piece begins.
    start: u64,
    /// How much has come.
    received: u64,
    /// How much of it is in the file.
    written: u64,
    /// The file, and where in it the body begins.
    file: Option<(Arc<OpenFile>, u64)>,
    /// There is no file, or no more room in it.
    storeless: bool,
    /// It is not to be stored: a newer answer is, or this one was purged.
    superseded: bool,
    end: Option<FillEnd>,
    /// Where the reader of the request is that fetches it; none: its client has left.
    own: Option<u64>,
    /// How many others read it.
    joined: usize,
    /// Where those were when the disk took no more: what had come, and is not in the file.
    tail: Vec<Bytes>,
    waiting: Vec<Waker>,
}

#[derive(Debug, Default)]
enum Head {
    #[default]
    Unknown,
    Known(Arc<CacheEntry>, Option<u64>),
    /// It is not to be shared after all.
    Withdrawn,
}

/// What a reader gets.
#[derive(Debug)]
pub enum FillPiece {
    /// The next bytes.
    Data(Segment),
    /// There are no more.
    End(FillEnd),
    /// The rest is to be asked for: see [`FillReader::rest`].
    Alone,
}

impl Fill {
    /// Nothing is known of the answer yet.
    pub fn new(limit: u64, asked: Asked) -> Arc<Fill> {
        Arc::new(Fill { state: Mutex::default(), limit, asked })
    }

    /// What was asked for, and when.
    pub fn asked(&self) -> Asked {
        self.asked
    }

    fn lock(&self) -> MutexGuard<'_, FillState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes all tasks that wait.
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

/// The side that puts it in.
impl Fill {
    /// The head has come; `length` is that of the body, if it is told.
    pub fn set_head(&self, entry: Arc<CacheEntry>, length: Option<u64>) {
        self.change(|s| s.head = Head::Known(entry, length));
    }

    /// It will not be shared: requests that wait for it ask a server themselves.
    pub fn withdraw(&self) {
        self.change(|s| {
            s.head = Head::Withdrawn;
            s.end.get_or_insert(FillEnd::Broken);
        });
    }

    /// More of the body.
    pub fn push(&self, piece: Bytes) {
        if !piece.is_empty() {
            self.change(|s| {
                s.received += piece.len() as u64;
                s.pieces.push_back(piece);
            });
        }
    }

    /// Nothing more will come.
    pub fn finish(&self, end: FillEnd) {
        self.change(|s| {
            s.end.get_or_insert(end);
        });
    }

    /// Waits until there is room for more. False if no reader is left to take it.
    pub async fn room(&self) -> bool {
        let limit = self.limit;
        self.until(|s| {
            let nobody = s.storeless && s.own.is_none();
            (nobody || !s.is_full(limit)).then_some(!nobody)
        })
        .await
    }
}

/// The side that brings it into a file.
impl Fill {
    /// Waits for `least` bytes that are not in the file, or for the end. The bytes, their place in the body, and the end.
    pub async fn unwritten(&self, least: u64) -> (Vec<Bytes>, u64, Option<FillEnd>) {
        let limit = self.limit;
        self.until(|s| {
            let unwritten = s.received - s.written;
            // The side that puts pieces in may wait for room that only writing makes.
            let enough = unwritten >= least || (unwritten > 0 && s.is_full(limit));
            (enough || s.end.is_some()).then(|| (s.from(s.written), s.written, s.end))
        })
        .await
    }

    /// So much of the body is in this file now, behind a head of `body` bytes.
    pub fn written(&self, file: &Arc<OpenFile>, body: u64, until: u64) {
        self.change(|s| {
            s.written = until;
            s.file.get_or_insert_with(|| (file.clone(), body));
        });
    }

    /// No more of it can come before it is written.
    pub(crate) fn is_held_up(&self) -> bool {
        let state = self.lock();
        state.end.is_none() && state.is_full(self.limit)
    }

    /// It cannot be written any further.
    pub fn store_failed(&self) {
        self.change(|s| {
            if !std::mem::replace(&mut s.storeless, true) && s.joined > 0 {
                s.tail = s.from(s.written);
            }
        });
    }

    /// All of the body, where it still is in memory.
    pub fn in_memory(&self) -> Option<Bytes> {
        let state = self.lock();
        let whole = state.start == 0 && state.end == Some(FillEnd::Whole);
        whole.then(|| match state.pieces.len() {
            1 => state.pieces.front().cloned().unwrap_or_default(),
            _ => Bytes::from(state.pieces.iter().flatten().copied().collect::<Vec<u8>>()),
        })
    }
}

/// The side that reads it.
impl Fill {
    /// Waits for the head, and for the whole of a small answer: a request that has not begun to
    /// read may still look for another answer if the server is slow. Returns what is known of the
    /// answer, and the body's length if it is known. `None`: it was withdrawn.
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

    /// Whether it still can be stored, and shall be.
    pub fn is_storable(&self) -> bool {
        let state = self.lock();
        !state.storeless && !state.superseded
    }

    /// It is not to be stored any more. Its readers may go on.
    pub fn supersede(&self) {
        self.lock().superseded = true;
    }

    /// What is known of it so far.
    pub(crate) fn known(&self) -> Option<Arc<CacheEntry>> {
        match &self.lock().head {
            Head::Known(entry, _) => Some(entry.clone()),
            _ => None,
        }
    }

    /// Whether all of it is there.
    pub fn is_whole(&self) -> bool {
        self.lock().end == Some(FillEnd::Whole)
    }

    /// The reader of the request that fetches it.
    pub fn own_reader(self: &Arc<Self>) -> FillReader {
        self.lock().own = Some(0);
        FillReader { fill: self.clone(), own: true, at: 0 }
    }

    /// A reader of another request, from the beginning; `None` where it would not come to the end.
    pub fn reader(self: &Arc<Self>) -> Option<FillReader> {
        let mut state = self.lock();
        if state.end == Some(FillEnd::Broken) || state.storeless {
            return None;
        }
        state.joined += 1;
        Some(FillReader { fill: self.clone(), own: false, at: 0 })
    }
}

/// Takes an answer that comes in.
#[derive(Debug)]
pub struct FillReader {
    fill: Arc<Fill>,
    /// It is that of the request that fetches the answer.
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

    /// The next piece, if it is there.
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

    /// Whether it has had all of a whole answer.
    pub fn is_done(&self) -> bool {
        let state = self.fill.lock();
        state.end == Some(FillEnd::Whole) && state.received == self.at
    }

    /// Whether it has had as many bytes as the answer was said to have.
    pub fn has_announced(&self) -> bool {
        match &self.fill.lock().head {
            Head::Known(_, length) => *length == Some(self.at),
            _ => false,
        }
    }

    /// Behind [`FillPiece::Alone`], what is to be asked for.
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

/// What a reader lacks of an answer that the disk did not take. The server is asked once more: what its client has of the
/// first answer must be the beginning of the second one.
#[derive(Debug)]
pub struct MissingRest {
    /// So much of the body the client has.
    pub at: u64,
    /// What is known of the answer.
    pub entry: Arc<CacheEntry>,
    /// Its length, if that was told.
    pub length: Option<u64>,
    file: Option<(Arc<OpenFile>, u64)>,
    written: u64,
    tail: Vec<Bytes>,
}

impl MissingRest {
    /// Whether the body that the client has begun to get has these bytes at this place.
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

/// So much of a file is compared at once.
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
    /// No more is to stay in memory.
    fn is_full(&self, limit: u64) -> bool {
        self.received - self.start >= limit.max(1)
    }

    /// Lets pieces go that are not needed in memory. Once all has come there is no need for room.
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

    /// All that is in memory behind this place.
    fn from(&self, at: u64) -> Vec<Bytes> {
        let mut start = self.start;
        let mut out = Vec::new();
        for piece in &self.pieces {
            let end = start + piece.len() as u64;
            if end > at {
                out.push(piece.slice((at.max(start) - start) as usize..));
            }
            start = end;
        }
        out
    }

    fn piece(&self, at: u64, own: bool) -> Option<FillPiece> {
        let alone = self.storeless && !own;
        if alone && self.end.is_none() {
            return Some(FillPiece::Alone);
        }
        if at < self.start {
            let Some((file, body)) = self.file.as_ref().filter(|_| at < self.written) else {
                return Some(if alone {
                    FillPiece::Alone
                } else {
                    FillPiece::End(FillEnd::Broken)
                });
            };
            let len = self.written.min(self.start) - at;
            let segment = Segment::File { file: file.clone(), offset: body + at, len };
            return Some(FillPiece::Data(segment));
        }
        if at < self.received {
            return self.from(at).into_iter().next().map(|bytes| FillPiece::Data(bytes.into()));
        }
        self.end.map(FillPiece::End)
    }
}

#[cfg(test)]
#[path = "fill/tests.rs"]
mod tests;
