//! The cached part of a file that a loop has read last, to send it by a copy.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

use weir_sys::pagecache::Framing;

use crate::clock;
use crate::files::{Files, OpenFile, read_waiting};

/// The most bytes that are read at once. They fit into the processor's caches, from which the
/// kernel then copies them.
const MOST: u64 = 128 << 10;

/// The loop's one buffer for sends by copy. Requests of one turn for the same part of a file share
/// one read.
#[derive(Debug, Default)]
pub(crate) struct WarmPart {
    buf: Vec<u8>,
    file: Weak<OpenFile>,
    offset: u64,
    /// The number of bytes that the caller asked for.
    asked: usize,
    turn: Option<Instant>,
}

impl WarmPart {
    /// Reads the beginning of a range of a file, as far as it is cached. `None` if none of it is.
    /// For a file whose reads block the calling thread, the result is empty if the file ends before
    /// the range.
    pub(crate) fn read(
        &mut self,
        files: &Files,
        file: &Arc<OpenFile>,
        offset: u64,
        len: u64,
    ) -> io::Result<Option<&[u8]>> {
        let asked = len.min(MOST) as usize;
        let turn = clock::turn();
        let is_there = turn.is_some()
            && (self.turn, self.offset, self.asked) == (turn, offset, asked)
            && self.file.as_ptr() == Arc::as_ptr(file);
        if is_there {
            return Ok(Some(&self.buf));
        }
        self.turn = None;
        self.buf.clear();
        self.buf.reserve(asked);
        if file.waits_here() {
            read_waiting(file, &mut self.buf, offset)?;
            self.buf.truncate(asked);
            return Ok(Some(&self.buf));
        }
        // One frame without a head, of at most this many bytes.
        let framing = Framing { head: 0, body: asked };
        if files.read_framed_now(file, &mut self.buf, offset, asked, framing).is_none() {
            return Ok(None);
        }
        if file.is_local() {
            let file = Arc::downgrade(file);
            let buf = std::mem::take(&mut self.buf);
            *self = WarmPart { buf, file, offset, asked, turn };
        }
        Ok(Some(&self.buf))
    }
}
