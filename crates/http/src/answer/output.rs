//! Sends an answer: header filters, the head, body filters, framing, the socket.

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

/// Bodies in memory up to this size are copied behind the head, so that one buffer is sent.
const INLINE: usize = 8 * 1024;

/// An upper bound of the framing of a chunk and of the last chunk.
const FRAME: u64 = 32;

/// The capacity for a head. Half of it suffices for most.
const HEAD: usize = 1024;

/// The most bytes that are held instead of being sent. Filters may enlarge a body.
const HELD: u64 = 1024 * 1024;

/// The name of the phase behind the content handler.
pub const SENDING: &str = "sending";

/// The pending output, and the state of sending.
#[derive(Default)]
pub struct Output {
    /// The head, and a small body behind it.
    head: Vec<u8>,
    /// The segments behind that.
    chain: Chain,
    /// The body filters.
    pub filters: Filters,
    /// Cuts the requested ranges out of the body.
    pub cutter: Option<Cutter>,
    /// Output is held for [`Request::send_held`], up to a limit.
    pub held: bool,
    /// Output is sent before a subrequest is waited for.
    pub unbuffered: bool,
    /// Replaces `postpone_output` if the buffers for the answer's server are smaller.
    pub postpone: Option<u64>,
    /// Bytes sent, including the head: `$bytes_sent`.
    pub sent: u64,
    /// Those of them that were interim answers, and so neither head nor body.
    pub interim: u64,
    /// The last byte was sent: `$request_completion`.
    pub complete: bool,
    /// The pending output is the end of the answer.
    ending: bool,
    /// The pending output contains some of the body.
    body_waits: bool,
    /// The bytes that are still missing of a body of known length.
    left: Option<u64>,
    /// Bytes behind the known length were dropped.
    overlong: bool,
    /// The error after which nothing more is sent. A client that timed out once is not waited for again.
    failed: Option<io::ErrorKind>,
}

impl Renew for Output {
    fn renew(&mut self) {
        as_new!(self, Output {
            head, chain, filters;
            cutter, held, unbuffered, postpone, sent, interim, complete, ending, body_waits, left, overlong,
            failed
        });
    }
}

impl Output {
    /// The client did not take all that was sent.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Sends only these ranges of the body.
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

    /// Runs the header filters and writes the head into the output. It is sent with the first piece of the body.
    pub fn send_head(&mut self) -> Result<(), Step> {
        if self.error_status > 0 {
            self.response.status = self.error_status;
            self.response.status_line = None;
        }
        self.invite();
        self.filter_head()?;
        if !self.is_main() {
            // A subrequest's body becomes a part of another answer, which has its own head.
            self.response.sent = true;
            return Ok(());
        }
        self.frame();
        let mut head = std::mem::take(&mut self.output.head);
        if head.capacity() == 0 {
            // Reserves space for a small body, since growing the buffer would copy it.
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

    /// Sends `100 Continue` to a client that waits for it, before an answer that leaves its body unread. Error pages have
    /// cancelled that.
    pub fn invite(&mut self) {
        let asked = std::mem::take(&mut self.body.expects_continue);
        if asked && self.version == Version::Http11 && self.is_main() {
            self.output.head.extend_from_slice(CONTINUE);
            self.output.interim += CONTINUE.len() as u64;
        }
    }

    /// Decides on the framing of the body: by length, in chunks, or by closing the connection.
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
            // nginx leaves the length of an answer whose status line a server has sent, but not over HTTP/2.
            if response.status_line.is_none() || has_frames {
                response.content_length = None;
                response.content_type.clear();
            }
        }
        if !matches!(response.status, 200 | 206 | 304) {
            response.last_modified = None;
        }
        let unknown = response.content_length.is_none() || response.expects_trailers;
        // Behind these statuses there is only a tunnel. Frames show the end of a body.
        let last_status = if self.method == Method::Connect { 299 } else { 199 };
        let tunnels = response.status <= last_status;
        let framed = has_frames || tunnels;
        if unknown && !framed && !bodiless && self.method != Method::Head {
            if self.version >= Version::Http11 && self.location.conf.core.chunked {
                response.content_length = None;
                response.chunked = true;
            } else if response.content_length.is_none() {
                self.keepalive = false;
            }
        }
        let bounded = !response.header_only && !tunnels;
        self.output.left = response.content_length.filter(|_| bounded);
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

    /// Frames a piece behind all filters, and sends it if enough is pending. Waits while the client is slow.
    pub async fn finish(&mut self, chain: Chain, last: bool) -> io::Result<()> {
        match self.finish_now(chain, last)? {
            None => Ok(()),
            Some(unsent) => self.finish_unsent(unsent, last).await,
        }
    }

    /// The same without waiting. Returns the rest for [`Request::finish_unsent`].
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
            // The body is shorter than its announced length. Only closing the connection shows that.
            self.keepalive = false;
        }
    }

    /// Frames a piece and appends it to the pending output.
    fn enqueue(&mut self, mut chain: Chain, last: bool) {
        if let Some(left) = self.output.left {
            if chain.len() > left {
                chain = chain.split_to(left);
                self.tell_overlong();
            }
            self.output.left = Some(left - chain.len());
        }
        let output = &mut self.output;
        let len = chain.len();
        output.body_waits |= len > 0;
        if self.carrier.has_frames() {
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

    /// Logs once that the body is longer than the length in the head, such as after a script that lengthens it. The rest is
    /// dropped: the client would take it for the next answer of the connection.
    fn tell_overlong(&mut self) {
        if !std::mem::replace(&mut self.output.overlong, true) {
            let text = format_args!("the body is longer than its Content-Length, and is cut");
            self.log(weir_log::Level::Error, text);
        }
    }

    /// Sends the pending output if it contains some of the body. A head alone waits for the first piece, unless it is long.
    pub async fn flush_begun(&mut self) -> io::Result<()> {
        if self.output.body_waits { self.flush().await } else { self.flush_head().await }
    }

    /// Sends a head alone if it is at least as long as `postpone_output`.
    pub async fn flush_head(&mut self) -> io::Result<()> {
        let head = self.output.head.len() as u64;
        let is_long = !self.output.body_waits && head >= self.conf().core.postpone_output;
        if head > 0 && is_long { self.flush().await } else { Ok(()) }
    }

    /// Sends all pending output.
    pub async fn flush(&mut self) -> io::Result<()> {
        match self.flush_now()? {
            None => Ok(()),
            // The state for a wait is allocated only if there is one.
            Some(unsent) => Boxed::new(|| self.flush_unsent(unsent)).await,
        }
    }

    /// Sends as much of the pending output as goes out at once.
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

    /// Logs a failed send. A client that timed out may be reset (`reset_timedout_connection`).
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
            // A stream that the client has reset has a log line of its own.
            let left = error.kind() == io::ErrorKind::ConnectionAborted && self.output.sent > 0;
            if left && stream.farewell().is_none() {
                self.log(level, format_args!("{LEFT}{doing}"));
            }
        } else if error.raw_os_error().is_some() {
            self.log(level, format_args!("{LEFT} {}{doing}", weir_log::Cause(error)));
        }
    }

    /// The log's words for what the request does at the moment.
    pub fn doing(&self) -> &'static str {
        match self.response.sent {
            _ if self.is_logged => " while logging request",
            true => self.sending(),
            false => "",
        }
    }

    /// The log's words for sending the answer.
    pub fn sending(&self) -> &'static str {
        match self.contexts.upstream.attempts.is_empty() {
            true => " while sending response to client",
            false => " while sending to client",
        }
    }
}

impl Output {
    /// Takes the pending head and segments, and whether they are the end of the answer.
    pub fn take(&mut self) -> (Vec<u8>, Chain, bool) {
        self.body_waits = false;
        (std::mem::take(&mut self.head), std::mem::take(&mut self.chain), self.ending)
    }

    /// Takes the pending head alone.
    pub fn take_head(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.head)
    }

    /// Reserves space behind the head, from the loop's spare buffers. A buffer that grows would be allocated for each answer.
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

    /// Appends framing to the pending output.
    fn put_framing(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.chain.is_empty() {
            return write(&mut self.head);
        }
        let mut framing = Vec::with_capacity(FRAME as usize);
        write(&mut framing);
        self.chain.push(Segment::Bytes(framing.into()));
    }
}
