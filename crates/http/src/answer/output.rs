//! The answer's way to the client: header filters, the head as bytes, body filters, framing, the socket.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use bytes::Bytes;
use weir_engine::{Boxed, Chain, Handle, OpenFile, Segment};
use weir_proto::http1::{Method, Version, chunk_end, chunk_head};
use weir_proto::{Renew, as_new};
use weir_values::doing;

use crate::answer::cutter::Cutter;
use crate::answer::filters::Filters;
use crate::carrier::{CONTINUE, LEFT, TIMED_OUT, Unsent};
use crate::escape::within_line;
use crate::phases::Step;
use crate::request::Request;
pub use weir_values::builtin::write_number;

/// Memory bodies up to this size travel in one buffer with the head: one send, no list of pieces.
const INLINE: usize = 8 * 1024;

/// The framing of a chunk and of the last one has room in it.
const FRAME: u64 = 32;

/// Room for a head; with a body behind it, half of this is enough for most.
const HEAD: usize = 1024;

/// What is held instead of being sent; filters may make much of little.
const HELD: u64 = 1024 * 1024;

/// What the way of an answer behind its handler is called.
pub const SENDING: &str = "sending";

/// What waits to be sent.
#[derive(Default)]
pub struct Output {
    /// The head, and small bodies with it.
    head: Vec<u8>,
    /// Behind it.
    chain: Chain,
    /// What the body passes before it is framed.
    pub filters: Filters,
    /// Ranges that were asked for.
    pub cutter: Option<Cutter>,
    /// What waits is sent by [`Request::send_held`], unless it is too much.
    pub held: bool,
    /// Nothing waits while a subrequest is waited for.
    pub unbuffered: bool,
    /// Takes the place of `postpone_output` where buffers of the answer's server are smaller.
    pub postpone: Option<u64>,
    /// Bytes sent, head and all: `$bytes_sent`.
    pub sent: u64,
    /// The last byte was sent: `$request_completion`.
    pub complete: bool,
    /// What waits is the end of the answer.
    ending: bool,
    /// Some of the body waits, not the head alone.
    body_waits: bool,
    /// Bytes that a body of known length still lacks.
    left: Option<u64>,
    /// Why nothing more can be sent: a client that was waited for once is not waited for again.
    failed: Option<io::ErrorKind>,
}

impl Renew for Output {
    fn renew(&mut self) {
        as_new!(self, Output {
            head, chain, filters;
            cutter, held, unbuffered, postpone, sent, complete, ending, body_waits, left, failed
        });
    }
}

impl Output {
    /// Only these ranges of the body are to be sent.
    pub fn cut(&mut self, cutter: Cutter) {
        self.cutter = Some(cutter);
    }
}

impl Request {
    /// Sends a whole answer from memory.
    pub async fn respond(&mut self, body: Bytes) -> Step {
        if let Err(error) = self.discard_received()
            && self.error_status == 0
        {
            return error.into();
        }
        if self.response.content_length.is_none() {
            self.response.content_length = Some(body.len() as u64);
        }
        if let Err(end) = self.send_head() {
            return end;
        }
        let mut chain = Chain::default();
        if !body.is_empty() {
            chain.push(Segment::Bytes(body));
        }
        match self.send_body(chain, true).await {
            Ok(()) => Step::Sent,
            Err(_) => Step::Abort,
        }
    }

    /// Runs the header filters and writes the head into the output. It leaves with the first of the body.
    pub fn send_head(&mut self) -> Result<(), Step> {
        if self.error_status > 0 {
            self.response.status = self.error_status;
            self.response.status_line = None;
        }
        self.invite();
        self.filter_head()?;
        if !self.is_main() {
            // Its body becomes a part of another answer, which has a head of its own.
            self.response.sent = true;
            return Ok(());
        }
        self.frame();
        let mut head = std::mem::take(&mut self.output.head);
        if head.capacity() == 0 {
            // What will travel with the head is to find its room there: a buffer that grows costs twice.
            let body = self.output.left.filter(|n| *n <= INLINE as u64).unwrap_or(0) as usize;
            head = self.event_loop.handle.take_buf(HEAD.max(HEAD / 2 + body));
        }
        let before = head.len();
        self.write_head(&mut head);
        self.response.head_bytes = (head.len() - before) as u64;
        self.output.head = head;
        self.response.sent = true;
        Ok(())
    }

    fn filter_head(&mut self) -> Result<(), Step> {
        let mut noted = false;
        for filter in &self.location.plan.header_filters {
            if !filter.module.is_empty() {
                noted = true;
                doing::note("the header filters", filter.module, self.location);
            }
            (filter.run)(self)?;
        }
        if noted {
            doing::note(SENDING, "", self.location);
        }
        Ok(())
    }

    /// A client that waits for `100 Continue` gets it before an answer that leaves its body unread; error
    /// pages have withdrawn the invitation.
    pub fn invite(&mut self) {
        let asked = std::mem::take(&mut self.body.expects_continue);
        if asked && self.version == Version::Http11 && self.is_main() {
            self.output.head.extend_from_slice(CONTINUE);
        }
    }

    /// Decides how the body's end is told: by length, in chunks, or by closing.
    fn frame(&mut self) {
        if self.event_loop.retiring() {
            self.keepalive = false;
        }
        let has_frames = self.carrier.has_frames();
        let response = &mut self.response;
        let bodiless = matches!(response.status, 204 | 304);
        if bodiless || self.method == Method::Head {
            response.header_only = true;
        }
        if response.status == 204 {
            response.last_modified = None;
            // nginx leaves what a server has sent with words for the status, but not over HTTP/2.
            if response.status_line.is_none() || has_frames {
                response.content_length = None;
                response.content_type.clear();
            }
        }
        if !matches!(response.status, 200 | 206 | 304) {
            response.last_modified = None;
        }
        let unknown = response.content_length.is_none() || response.expects_trailers;
        // Nothing but a tunnel follows. Frames tell themselves where a body ends.
        let last_status = if self.method == Method::Connect { 299 } else { 199 };
        let framed = has_frames || response.status <= last_status;
        if unknown && !framed && !bodiless && self.method != Method::Head {
            if self.version >= Version::Http11 && self.location.conf.core.chunked {
                response.content_length = None;
                response.chunked = true;
            } else if response.content_length.is_none() {
                self.keepalive = false;
            }
        }
        self.output.left = if response.header_only { None } else { response.content_length };
    }

    /// Sends a range of a file as the next piece of the body.
    pub async fn send_file(
        &mut self,
        file: &Arc<OpenFile>,
        offset: u64,
        len: u64,
        last: bool,
    ) -> io::Result<()> {
        let mut chain = Chain::new();
        chain.push(Segment::File { file: file.clone(), offset, len });
        self.send_body(chain, last).await
    }

    /// Frames a piece that has passed all filters, and sends it if it is time. Waits while the client is slow.
    pub async fn finish(&mut self, chain: Chain, last: bool) -> io::Result<()> {
        match self.finish_now(chain, last)? {
            None => Ok(()),
            Some(unsent) => self.finish_unsent(unsent, last).await,
        }
    }

    /// The same, as far as it goes out at once: what does not is for [`Request::finish_unsent`].
    pub fn finish_now(&mut self, chain: Chain, last: bool) -> io::Result<Option<Unsent>> {
        let takes_trailers =
            self.response.chunked || self.carrier.has_frames() && !self.response.header_only;
        if last && self.response.expects_trailers && takes_trailers {
            for filter in &self.location.plan.trailer_filters {
                (filter.run)(self);
            }
        }
        if !self.response.header_only {
            self.enqueue(chain, last);
        }
        let waiting = self.output.head.len() as u64 + self.output.chain.len();
        self.output.ending = last;
        let postpone = self.output.postpone.unwrap_or(self.conf().core.postpone_output);
        if (last || waiting >= postpone)
            && let Some(unsent) = self.flush_now()?
        {
            return Ok(Some(unsent));
        }
        self.finished(last);
        Ok(None)
    }

    /// Sends the rest of a piece.
    pub async fn finish_unsent(&mut self, unsent: Unsent, last: bool) -> io::Result<()> {
        self.flush_unsent(unsent).await?;
        self.finished(last);
        Ok(())
    }

    fn finished(&mut self, last: bool) {
        self.output.complete = last;
        if last && self.output.left.is_some_and(|left| left > 0) {
            // Fewer bytes than were announced: only closing tells the client.
            self.keepalive = false;
        }
    }

    /// Frames a piece and puts it behind what waits.
    fn enqueue(&mut self, chain: Chain, last: bool) {
        let output = &mut self.output;
        let len = chain.len();
        output.body_waits |= len > 0;
        if let Some(left) = &mut output.left {
            *left = left.saturating_sub(len);
        }
        if self.carrier.has_frames() {
            let mut chain = chain;
            return output.chain.append(&mut chain);
        }
        let chunked = self.response.chunked;
        output.make_room(len + FRAME, &self.event_loop.handle);
        if chunked && len > 0 {
            output.put_framing(|to| chunk_head(len, to));
        }
        output.put(chain, &self.event_loop.handle);
        if chunked && len > 0 {
            output.put_framing(chunk_end);
        }
        if chunked && last {
            let own_texts = self.site.variables.own_texts();
            output.put_framing(|to| {
                to.extend_from_slice(b"0\r\n");
                for (name, value) in self.response.trailers.iter() {
                    let from = to.len();
                    to.extend_from_slice(&[name, b": ", value].concat());
                    within_line(to, from, own_texts);
                    to.extend_from_slice(b"\r\n");
                }
                to.extend_from_slice(b"\r\n");
            });
        }
    }

    /// Sends what waits, if any of the body does: a head alone leaves with the first of its body, unless it is long.
    pub async fn flush_begun(&mut self) -> io::Result<()> {
        if self.output.body_waits { self.flush().await } else { self.flush_head().await }
    }

    /// Sends a head alone that is as long as `postpone_output`.
    pub async fn flush_head(&mut self) -> io::Result<()> {
        let head = self.output.head.len() as u64;
        let is_long = !self.output.body_waits && head >= self.conf().core.postpone_output;
        if head > 0 && is_long { self.flush().await } else { Ok(()) }
    }

    /// Sends all that waits.
    pub async fn flush(&mut self) -> io::Result<()> {
        match self.flush_now()? {
            None => Ok(()),
            // The room to wait is held only while there is a wait.
            Some(unsent) => Boxed::new(|| self.flush_unsent(unsent)).await,
        }
    }

    /// Sends of all that waits what goes out at once.
    fn flush_now(&mut self) -> io::Result<Option<Unsent>> {
        if self.output.held && self.output.chain.len() < HELD {
            return Ok(None);
        }
        self.output.body_waits = false;
        if let Some(kind) = self.output.failed {
            return Err(kind.into());
        }
        let sent = self.send_waiting();
        sent.inspect_err(|error| {
            self.sending_failed(error);
            self.output.failed = Some(error.kind());
        })
    }

    async fn flush_unsent(&mut self, unsent: Unsent) -> io::Result<()> {
        let sent = self.send_unsent(unsent).await;
        sent.inspect_err(|error| self.output.failed = Some(error.kind()))
    }

    /// Sending has failed. The log is told; a client that took too long to read may be reset.
    pub fn sending_failed(&self, error: &io::Error) {
        let (level, doing) = (weir_log::Level::Info, self.sending());
        if error.kind() == io::ErrorKind::TimedOut {
            self.log(level, format_args!("{TIMED_OUT}{doing}"));
            self.timed_out();
        } else if let Some(file) = weir_engine::truncated_file(error) {
            let file = weir_log::Bytes(file.as_os_str().as_bytes());
            let text = format_args!("a file that is being sent was truncated: \"{file}\"{doing}");
            self.log(weir_log::Level::Alert, text);
        } else if let Some(stream) = self.carrier.stream() {
            // The end of a stream that the client gives up has a line of its own.
            let left = error.kind() == io::ErrorKind::ConnectionAborted && self.output.sent > 0;
            if left && stream.farewell().is_none() {
                self.log(level, format_args!("{LEFT}{doing}"));
            }
        } else if error.raw_os_error().is_some() {
            self.log(level, format_args!("{LEFT} {}{doing}", weir_log::Cause(error)));
        }
    }

    /// What goes on while something is found out, in the log's words.
    pub fn doing(&self) -> &'static str {
        match self.response.sent {
            _ if self.is_logged => " while logging request",
            true => self.sending(),
            false => "",
        }
    }

    /// What goes on while the client is sent its answer, in the log's words.
    pub fn sending(&self) -> &'static str {
        match self.contexts.upstream.attempts.is_empty() {
            true => " while sending response to client",
            false => " while sending to client",
        }
    }
}

impl Output {
    /// The head and what stands behind it, and whether that is the end.
    pub fn take(&mut self) -> (Vec<u8>, Chain, bool) {
        self.body_waits = false;
        (std::mem::take(&mut self.head), std::mem::take(&mut self.chain), self.ending)
    }

    /// The head alone, if it waits.
    pub fn take_head(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.head)
    }

    /// Room for so much more behind the head, out of the loop's buffers: what grows by itself is allocated anew for each
    /// answer.
    #[inline]
    fn make_room(&mut self, more: u64, handle: &Handle) {
        let needed = self.head.len() as u64 + more;
        if self.chain.is_empty()
            && needed > self.head.capacity() as u64
            && needed <= INLINE as u64 + FRAME
        {
            let mut larger = handle.take_buf(needed as usize);
            larger.extend_from_slice(&self.head);
            handle.give_buf(std::mem::replace(&mut self.head, larger));
        }
    }

    #[inline]
    fn put(&mut self, mut chain: Chain, handle: &Handle) {
        if self.chain.is_empty()
            && self.head.len() as u64 + chain.len() <= INLINE as u64
            && chain.segments().all(|s| s.memory().is_some())
        {
            for memory in chain.segments().filter_map(Segment::memory) {
                self.head.extend_from_slice(memory);
            }
            return chain.consume(chain.len(), |buf| handle.give_buf(buf));
        }
        self.chain.append(&mut chain);
    }

    /// What is written goes behind all that waits.
    fn put_framing(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.chain.is_empty() {
            return write(&mut self.head);
        }
        let mut framing = Vec::with_capacity(FRAME as usize);
        write(&mut framing);
        self.chain.push(Segment::Bytes(framing.into()));
    }
}
