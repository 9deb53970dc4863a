//! An answer while it comes in: one puts pieces in, any number of readers take them out, a writer brings them
//! into a file. All may be on different loops.
//!
//! Pieces stay in memory up to a limit. Beyond it, those go that are in the file; if there is none, those that
//! every reader has had. So a slow reader holds nobody up, unless the disk fails.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use weir_engine::{OpenFile, Segment};

use crate::entry::Entry;

/// An answer that comes in.
#[derive(Debug)]
pub struct Fill {
    state: Mutex<State>,
    /// Bytes of the body that stay in memory.
    limit: u64,
}

/// Answers up to this length are waited for as a whole.
const SMALL: u64 = 64 * 1024;

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All of it is there.
    Whole,
    /// The rest will not come.
    Broken,
}

#[derive(Debug, Default)]
struct State {
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
    /// It is not to be stored: a newer one is, or somebody wanted it gone.
    superseded: bool,
    end: Option<End>,
    /// Where each reader is.
    readers: Vec<Option<u64>>,
    waiting: Vec<Waker>,
}

#[derive(Debug, Default)]
enum Head {
    #[default]
    Unknown,
    Known(Arc<Entry>, Option<u64>),
    /// It is not to be shared after all.
    Withdrawn,
}

/// What a reader gets.
#[derive(Debug)]
pub enum Piece {
    /// The next bytes.
    Data(Segment),
    /// There are no more.
    End(End),
}

impl Fill {
    /// Nothing is known yet.
    pub fn new(limit: u64) -> Arc<Fill> {
        Arc::new(Fill { state: Mutex::default(), limit })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and tells all who wait.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let out = change(&mut state);
        state.trim(self.limit);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
        out
    }

    async fn until<T>(&self, ready: impl Fn(&mut State) -> Option<T>) -> T {
        poll_fn(|cx| self.poll(cx, &ready)).await
    }

    fn poll<T>(&self, cx: &Context<'_>, ready: impl Fn(&mut State) -> Option<T>) -> Poll<T> {
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

/// Who puts it in.
impl Fill {
    /// The head has come; `length` is that of the body, if it is told.
    pub fn set_head(&self, entry: Arc<Entry>, length: Option<u64>) {
        self.change(|s| s.head = Head::Known(entry, length));
    }

    /// It will not be shared: who waits for it has to help himself.
    pub fn withdraw(&self) {
        self.change(|s| {
            s.head = Head::Withdrawn;
            s.end.get_or_insert(End::Broken);
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
    pub fn finish(&self, end: End) {
        self.change(|s| {
            s.end.get_or_insert(end);
        });
    }

    /// Waits until there is room for more. False if nobody is there to take it.
    pub async fn room(&self) -> bool {
        let limit = self.limit;
        self.until(|s| {
            let nobody = s.storeless && s.readers.iter().all(Option::is_none);
            (nobody || !s.is_full(limit)).then_some(!nobody)
        })
        .await
    }
}

/// Who brings it into a file.
impl Fill {
    /// Waits for `least` bytes that are not in the file, or for the end. The bytes, their place in the body, and the end.
    pub async fn unwritten(&self, least: u64) -> (Vec<Bytes>, u64, Option<End>) {
        let limit = self.limit;
        self.until(|s| {
            let unwritten = s.received - s.written;
            // Who puts pieces in may wait for room that only writing makes.
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
        self.change(|s| s.storeless = true);
    }

    /// All of the body, where it still is in memory.
    pub fn in_memory(&self) -> Option<Bytes> {
        let state = self.lock();
        let whole = state.start == 0 && state.end == Some(End::Whole);
        whole.then(|| match state.pieces.len() {
            1 => state.pieces.front().cloned().unwrap_or_default(),
            _ => Bytes::from(state.pieces.iter().flatten().copied().collect::<Vec<u8>>()),
        })
    }

    /// How long the body is so far.
    pub fn received(&self) -> u64 {
        self.lock().received
    }
}

/// Who reads it.
impl Fill {
    /// Waits for the head, and for the whole of a small answer: who has not begun to read may still look for
    /// another one if the server is slow. What is known of the answer, and the body's length if that was told.
    /// `None`: it was withdrawn.
    pub async fn head(&self) -> Option<(Arc<Entry>, Option<u64>)> {
        self.until(|s| match &s.head {
            Head::Unknown if s.end.is_some() => Some(None),
            Head::Unknown => None,
            Head::Withdrawn => Some(None),
            Head::Known(..) if s.end.is_none() && s.received < SMALL => None,
            Head::Known(entry, length) => {
                let length = length.or((s.end == Some(End::Whole)).then_some(s.received));
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

    /// It is not to be stored any more. Who reads it may go on.
    pub fn supersede(&self) {
        self.lock().superseded = true;
    }

    /// What is known of it so far.
    pub(crate) fn known(&self) -> Option<Arc<Entry>> {
        match &self.lock().head {
            Head::Known(entry, _) => Some(entry.clone()),
            _ => None,
        }
    }

    /// Whether all of it is there.
    pub fn is_whole(&self) -> bool {
        self.lock().end == Some(End::Whole)
    }

    /// A reader from the beginning; `None` where the beginning is gone.
    pub fn reader(self: &Arc<Self>) -> Option<Reader> {
        let mut state = self.lock();
        if state.end == Some(End::Broken) || (state.start > 0 && state.file.is_none()) {
            return None;
        }
        let free = state.readers.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            state.readers.push(None);
            state.readers.len() - 1
        });
        if let Some(place) = state.readers.get_mut(slot) {
            *place = Some(0);
        }
        Some(Reader { fill: self.clone(), slot, at: 0 })
    }
}

/// Takes an answer that comes in.
#[derive(Debug)]
pub struct Reader {
    fill: Arc<Fill>,
    slot: usize,
    at: u64,
}

impl Reader {
    /// Waits for the next piece.
    pub async fn next(&mut self) -> Piece {
        let at = self.at;
        let piece = self.fill.until(|s| s.piece(at)).await;
        self.passed(&piece);
        piece
    }

    /// The next piece, if it is there.
    pub fn next_now(&mut self) -> Option<Piece> {
        let piece = self.fill.lock().piece(self.at)?;
        self.passed(&piece);
        Some(piece)
    }

    fn passed(&mut self, piece: &Piece) {
        if let Piece::Data(segment) = piece {
            self.at += segment.len();
            let (slot, at) = (self.slot, self.at);
            self.fill.change(|s| {
                if let Some(place) = s.readers.get_mut(slot) {
                    *place = Some(at);
                }
            });
        }
    }

    /// Whether it has had all of a whole answer.
    pub fn is_done(&self) -> bool {
        let state = self.fill.lock();
        state.end == Some(End::Whole) && state.received == self.at
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let slot = self.slot;
        self.fill.change(|s| {
            if let Some(place) = s.readers.get_mut(slot) {
                *place = None;
            }
        });
    }
}

impl State {
    /// No more is to stay in memory.
    fn is_full(&self, limit: u64) -> bool {
        self.received - self.start >= limit.max(1)
    }

    /// Lets pieces go that nobody needs in memory.
    fn trim(&mut self, limit: u64) {
        while self.is_full(limit) {
            let Some(front) = self.pieces.front() else { return };
            let end = self.start + front.len() as u64;
            let slowest = self.readers.iter().flatten().min().copied().unwrap_or(self.received);
            let free = self.written.max(if self.storeless { slowest } else { 0 });
            if end > free {
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

    fn piece(&self, at: u64) -> Option<Piece> {
        if at < self.start {
            let Some((file, body)) = self.file.as_ref().filter(|_| at < self.written) else {
                return Some(Piece::End(End::Broken));
            };
            let len = self.written.min(self.start) - at;
            let segment = Segment::File { file: file.clone(), offset: body + at, len };
            return Some(Piece::Data(segment));
        }
        if at < self.received {
            return self.from(at).into_iter().next().map(|bytes| Piece::Data(bytes.into()));
        }
        self.end.map(Piece::End)
    }
}

#[cfg(test)]
#[path = "fill/tests.rs"]
mod tests;
