//! Data to be sent: memory and file ranges in order.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::OpenFile;

/// A piece of a [`Chain`].
#[derive(Clone, Debug)]
pub enum Segment {
    /// Shared memory.
    Bytes(Bytes),
    /// A buffer of the loop's ([`crate::Handle::take_buf`]), from `start` on; it goes back to the
    /// loop when it is sent.
    Buf {
        /// The buffer.
        buf: Vec<u8>,
        /// The first byte that is not sent yet.
        start: usize,
    },
    /// A range of a file.
    File {
        /// The file.
        file: Arc<OpenFile>,
        /// The first byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

impl Segment {
    /// Bytes left in it.
    pub fn len(&self) -> u64 {
        match self {
            Segment::Bytes(bytes) => bytes.len() as u64,
            Segment::Buf { buf, start } => buf.len().saturating_sub(*start) as u64,
            Segment::File { len, .. } => *len,
        }
    }

    /// True if nothing is left in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes, if it is memory.
    pub fn memory(&self) -> Option<&[u8]> {
        match self {
            Segment::Bytes(bytes) => Some(bytes),
            Segment::Buf { buf, start } => Some(buf.get(*start..).unwrap_or_default()),
            Segment::File { .. } => None,
        }
    }

    /// Its bytes without a copy, if it is memory.
    pub fn into_bytes(self) -> Option<Bytes> {
        match self {
            Segment::Bytes(bytes) => Some(bytes),
            Segment::Buf { buf, start } => {
                let bytes = Bytes::from(buf);
                Some(bytes.slice(start.min(bytes.len())..))
            }
            Segment::File { .. } => None,
        }
    }

    /// Splits off the first `n` bytes, fewer than it has. A buffer that is split becomes shared
    /// memory, so that nothing is copied.
    fn split_to(&mut self, n: u64) -> Segment {
        let at = n as usize;
        match self {
            Segment::Bytes(bytes) => Segment::Bytes(bytes.split_to(at.min(bytes.len()))),
            Segment::Buf { buf, start } => {
                let mut bytes = Bytes::from(std::mem::take(buf));
                let used = (*start).min(bytes.len());
                bytes::Buf::advance(&mut bytes, used);
                let head = bytes.split_to(at.min(bytes.len()));
                *self = Segment::Bytes(bytes);
                Segment::Bytes(head)
            }
            Segment::File { file, offset, len } => {
                let head = Segment::File { file: file.clone(), offset: *offset, len: n.min(*len) };
                self.advance(n);
                head
            }
        }
    }

    /// Drops the first `n` bytes.
    fn advance(&mut self, n: u64) {
        match self {
            Segment::Bytes(bytes) => bytes::Buf::advance(bytes, (n as usize).min(bytes.len())),
            Segment::Buf { start, .. } => *start += n as usize,
            Segment::File { offset, len, .. } => {
                *offset += n;
                *len -= n.min(*len);
            }
        }
    }
}

impl From<Bytes> for Segment {
    fn from(bytes: Bytes) -> Self {
        Segment::Bytes(bytes)
    }
}

impl From<&'static [u8]> for Segment {
    fn from(bytes: &'static [u8]) -> Self {
        Segment::Bytes(Bytes::from_static(bytes))
    }
}

impl From<Vec<u8>> for Segment {
    fn from(buf: Vec<u8>) -> Self {
        Segment::Buf { buf, start: 0 }
    }
}

/// How files of a [`Chain`] are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileWay {
    /// By `sendfile`, which passes page references on, or by a copy: whichever costs the loop less,
    /// as measured.
    #[default]
    Cheapest,
    /// Read into the loop's memory and sent from there, together with the memory before it.
    Copy,
}

/// Segments to send, in order. The first is kept in the chain itself, so that a response of one
/// buffer allocates nothing.
#[derive(Debug, Default)]
pub struct Chain {
    first: Option<Segment>,
    rest: VecDeque<Segment>,
    /// 0 for the engine's default.
    file_chunk: u64,
    file_way: FileWay,
}

impl Chain {
    /// An empty chain.
    pub fn new() -> Self {
        Self::default()
    }

    /// Resets the chain to [`Chain::new`], in place.
    #[inline]
    pub fn renew(&mut self) {
        let Chain { first, rest, file_chunk, file_way } = self;
        (*first, *file_chunk, *file_way) = (None, 0, FileWay::default());
        if rest.capacity() > 0 {
            *rest = VecDeque::new();
        }
    }

    /// Appends a segment; an empty one is dropped.
    pub fn push(&mut self, segment: impl Into<Segment>) {
        let segment = segment.into();
        if segment.is_empty() {
            return;
        }
        if self.first.is_none() {
            self.first = Some(segment);
        } else {
            self.rest.push_back(segment);
        }
    }

    /// Copies bytes to the end of the last segment, if that is a buffer with room for them. False
    /// if it is not. So many short pieces share one buffer.
    pub fn extend_last(&mut self, bytes: &[u8]) -> bool {
        let last = self.rest.back_mut().or(self.first.as_mut());
        let Some(Segment::Buf { buf, .. }) = last else { return false };
        let fits = buf.capacity() - buf.len() >= bytes.len();
        if fits {
            buf.extend_from_slice(bytes);
        }
        fits
    }

    /// Moves all of `other` to the end of this chain.
    pub fn append(&mut self, other: &mut Chain) {
        if let Some(first) = other.first.take() {
            self.push(first);
        }
        self.rest.extend(other.rest.drain(..));
    }

    /// Bytes left to send.
    #[inline]
    pub fn len(&self) -> u64 {
        let Some(first) = &self.first else { return 0 };
        // Called a few times for every answer. Most answers are one segment.
        let rest = if self.rest.is_empty() { 0 } else { self.rest.iter().map(Segment::len).sum() };
        first.len() + rest
    }

    /// True if nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The first segment left.
    pub fn front(&self) -> Option<&Segment> {
        self.first.as_ref()
    }

    /// The file, offset and length of the first segment, if it is a file.
    pub(crate) fn front_file(&self) -> Option<(&Arc<OpenFile>, u64, u64)> {
        match self.front()? {
            Segment::File { file, offset, len } => Some((file, *offset, *len)),
            _ => None,
        }
    }

    /// Replaces the beginning of the first segment by `bytes`, which were read from there.
    pub(crate) fn fill_front(&mut self, mut bytes: Vec<u8>) {
        let Some(mut first) = self.pop() else { return };
        bytes.truncate(usize::try_from(first.len()).unwrap_or(usize::MAX));
        first.advance(bytes.len() as u64);
        self.push_front(first);
        self.push_front(bytes);
    }

    /// Whether the chain is one piece of memory.
    #[inline]
    pub(crate) fn is_one_buffer(&self) -> bool {
        self.only().is_some_and(|only| only.memory().is_some())
    }

    /// The segment of a chain with one segment.
    #[inline]
    pub(crate) fn only(&self) -> Option<&Segment> {
        if self.rest.is_empty() { self.first.as_ref() } else { None }
    }

    /// Whether the first or second segment is a file.
    pub(crate) fn has_file_early(&self) -> bool {
        self.segments().take(2).any(|next| next.memory().is_none())
    }

    /// The segments left, in order.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.first.iter().chain(&self.rest)
    }

    /// Takes the first segment out.
    pub fn pop(&mut self) -> Option<Segment> {
        std::mem::replace(&mut self.first, self.rest.pop_front())
    }

    /// Puts a segment before the first; an empty one is dropped.
    pub fn push_front(&mut self, segment: impl Into<Segment>) {
        let segment = segment.into();
        if segment.is_empty() {
            return;
        }
        if let Some(old) = self.first.replace(segment) {
            self.rest.push_front(old);
        }
    }

    /// Drops all segments, keeps the allocation of the list.
    pub fn clear(&mut self) {
        self.first = None;
        self.rest.clear();
    }

    /// Sets how many bytes of files a send transfers before it yields to other tasks; nginx:
    /// `sendfile_max_chunk`. 0 is the engine's default of 2 MiB.
    pub fn set_file_chunk(&mut self, bytes: u64) {
        self.file_chunk = bytes;
    }

    pub(crate) fn file_chunk(&self) -> u64 {
        if self.file_chunk == 0 { 2 << 20 } else { self.file_chunk }
    }

    /// Sets how files are sent.
    pub fn set_file_way(&mut self, way: FileWay) {
        self.file_way = way;
    }

    pub(crate) fn file_way(&self) -> FileWay {
        self.file_way
    }

    /// Splits off the first `n` bytes, or all if there are fewer.
    pub fn split_to(&mut self, mut n: u64) -> Chain {
        let (file_chunk, file_way) = (self.file_chunk, self.file_way);
        let mut head = Chain { file_chunk, file_way, ..Chain::default() };
        while let Some(first) = self.first.as_mut().filter(|_| n > 0) {
            let len = first.len();
            if n < len {
                head.push(first.split_to(n));
                break;
            }
            n -= len;
            if let Some(first) = self.pop() {
                head.push(first);
            }
        }
        head
    }

    /// Drops the first `n` bytes.
    pub fn advance(&mut self, n: u64) {
        self.consume(n, drop);
    }

    /// As [`Chain::advance`]. Passes buffers that are used up to `spent`.
    pub fn consume(&mut self, mut n: u64, mut spent: impl FnMut(Vec<u8>)) {
        while let Some(first) = &mut self.first {
            let len = first.len();
            if n < len {
                first.advance(n);
                return;
            }
            n -= len;
            if let Some(Segment::Buf { buf, .. }) = self.pop() {
                spent(buf);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn empty_segments_never_enter() {
        let mut chain = Chain::new();
        chain.push(Bytes::new());
        chain.push(Vec::new());
        assert!(chain.is_empty());
        chain.push(&b"ab"[..]);
        chain.push_front(Vec::new());
        assert_eq!(chain.len(), 2);
    }

    #[test]
    fn short_pieces_share_a_buffer() {
        let mut chain = Chain::new();
        assert!(!chain.extend_last(b"a"), "there is no buffer");
        let mut buf = Vec::with_capacity(4);
        buf.push(b'a');
        chain.push(buf);
        assert!(chain.extend_last(b"bcd") && !chain.extend_last(b"e"));
        chain.push(&b"e"[..]);
        assert!(!chain.extend_last(b"f"), "static bytes do not grow");
        assert_eq!((memory(&chain), chain.segments().count()), (b"abcde".to_vec(), 2));
    }

    #[test]
    fn a_used_up_buffer_goes_back() {
        let mut chain = Chain::new();
        chain.push(b"head".to_vec());
        chain.push(&b"body"[..]);
        let mut back = Vec::new();
        chain.consume(3, |buf| back.push(buf));
        assert!(back.is_empty());
        chain.consume(2, |buf| back.push(buf));
        assert_eq!(back, [b"head".to_vec()]);
        assert_eq!(chain.len(), 3);
    }

    fn memory(chain: &Chain) -> Vec<u8> {
        chain.segments().filter_map(Segment::memory).flatten().copied().collect()
    }

    proptest! {
        #[test]
        fn a_chain_is_cut_anywhere(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8),
            used in 0u64..20,
            cuts in prop::collection::vec(0u64..30, 0..8),
        ) {
            let mut flat: Vec<u8> = parts.concat();
            let mut chain = Chain::new();
            for (i, part) in parts.into_iter().enumerate() {
                if i % 2 == 0 { chain.push(part) } else { chain.push(Bytes::from(part)) }
            }
            chain.advance(used);
            flat.drain(..(used as usize).min(flat.len()));
            for n in cuts {
                let head = chain.split_to(n);
                let taken: Vec<u8> = flat.drain(..(n as usize).min(flat.len())).collect();
                prop_assert_eq!(memory(&head), taken);
                prop_assert_eq!(memory(&chain), flat.clone());
                prop_assert_eq!(chain.is_empty(), flat.is_empty());
            }
        }

        #[test]
        fn advancing_drops_exactly_the_first_bytes(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8),
            steps in prop::collection::vec(0u64..30, 0..12),
        ) {
            let mut flat: Vec<u8> = parts.concat();
            let mut chain = Chain::new();
            for (i, part) in parts.into_iter().enumerate() {
                if i % 2 == 0 { chain.push(part) } else { chain.push(Bytes::from(part)) }
            }
            for step in steps {
                chain.advance(step);
                flat.drain(..(step as usize).min(flat.len()));
                prop_assert_eq!(&memory(&chain), &flat);
                prop_assert_eq!(chain.len(), flat.len() as u64);
                prop_assert_eq!(chain.is_empty(), flat.is_empty());
            }
        }
    }
}
