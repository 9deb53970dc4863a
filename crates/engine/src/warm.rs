//! What a loop has read last of a file that is in memory, to send it by a copy.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

use weir_sys::pagecache::Framing;

use crate::clock;
use crate::files::{Files, OpenFile, read_waiting};

/// Read at once. It fits the processor's caches, where the kernel copies it from again.
const MOST: u64 = 128 << 10;

/// One buffer of a loop's, for all that it sends so. Requests of one turn for the same part of a file read it once.
#[derive(Debug, Default)]
pub(crate) struct WarmPart {
    buf: Vec<u8>,
    file: Weak<OpenFile>,
    offset: u64,
    /// So many bytes were asked for.
    asked: usize,
    turn: Option<Instant>,
}

impl WarmPart {
    /// The beginning of a range of a file, as far as it is in memory; `None` if nothing of it is. Empty if the file ends before
    /// the range, where the calling thread waits for it.
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
        // One frame without a head: at most so many bytes.
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
