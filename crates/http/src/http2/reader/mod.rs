//! Handles the frames of a client.

mod control;
mod words;

use std::rc::Rc;
use std::time::Instant;

use weir_engine::spend;
use weir_http2::{Block, BodyPiece, ConnectionError, FrameFault, FrameHandler, ReadResult};
use weir_proto::http1::{Composer, HeadDraft};
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};
use weir_proto::http2::hpack::{BlockError, Decoder, FieldLimits};

use super::link::{Late, Link};
use super::request;
use super::stream::Stream;
use crate::connection::streamed::{self, Fields};
use crate::request::Scratch;

/// SETTINGS_MAX_FRAME_SIZE. DATA frames are read in pieces, so they may be large.
pub const LARGEST: usize = 1 << 20;
/// The allowance for a field block's overhead, such as the headers of CONTINUATION frames, beyond twice the limit of heads.
const BLOCK_SLACK: usize = 16 * 1024;
/// Received bytes beyond eight times those of field blocks and bodies that make a flood.
const FLOOD: u64 = 1 << 20;
/// Points of the connection task's budget per request, without its fields.
const REQUEST: u32 = 32;
/// Bytes of fields per point.
const FIELDS: usize = 4;
/// Points per reset stream.
const CANCEL: u32 = 96;

/// The handler of a client's frames.
pub struct Reader {
    link: Rc<Link>,
    history: History,
    composer: Composer,
    /// Streams opened in this call of the parser. A deferred frame continues the count in the next call.
    opened: u64,
    /// A stream was reset, and its task has not run since.
    has_reset: bool,
    /// The next HEADERS frame has waited for the tasks of other streams.
    deferred: bool,
    /// Bytes of the incomplete HEADERS frame that were checked.
    checked: usize,
    /// When the field block began, if it has not arrived in one piece.
    begun: Option<Instant>,
    /// The number of complete field blocks.
    blocks: u64,
}

/// The reader's state between two frames, which a parked connection keeps.
#[derive(Default)]
pub struct History {
    /// The client has acknowledged the server's SETTINGS.
    acknowledged: bool,
    /// The last stream that was opened. GOAWAY names it.
    last: u32,
    /// The last stream that the client has opened after GOAWAY. It is ignored.
    ignored: u32,
    /// A stream whose HEADERS frame timed out.
    late: u32,
    /// Since when there is no stream. `None` from the time that one begins.
    idle: Option<Instant>,
    /// Requests on this connection.
    requests: u64,
    refused: u64,
    priorities: u64,
    /// Streams that were reset, by the client or for its errors.
    cancelled: u64,
    total: u64,
}

impl History {
    /// The stream is idle: the client has not opened it, not even after GOAWAY.
    fn is_idle(&self, stream: u32) -> bool {
        stream > self.last.max(self.ignored)
    }
}

/// The kind of a field block.
#[derive(Clone, Copy)]
pub enum BlockKind {
    /// A request head.
    Request,
    /// A block that is decoded for the dynamic table only.
    Refused,
    /// A trailer section.
    Trailers,
}

impl Reader {
    /// A reader that continues in this state.
    pub fn new(link: Rc<Link>, history: History) -> Reader {
        Reader {
            link,
            history,
            composer: Composer::default(),
            opened: 0,
            has_reset: false,
            deferred: false,
            checked: 0,
            begun: None,
            blocks: 0,
        }
    }

    /// The state for a parked connection.
    pub fn into_history(self) -> History {
        self.history
    }

    /// The client has opened a stream, also if its head has timed out.
    pub fn has_seen_requests(&self) -> bool {
        self.history.last > 0
    }

    /// The number of complete field blocks since the connection was resumed.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Since when there is no stream. Only a new stream resets it, so that other frames do not keep the connection.
    pub fn idle_since(&mut self, now: Instant) -> Instant {
        *self.history.idle.get_or_insert(now)
    }

    /// Sends GOAWAY. No new streams begin from now on.
    pub fn send_goaway(&self, code: ErrorCode) {
        self.link.write(|out| frame::write_goaway(self.history.last, code, out));
        self.link.leave();
    }

    /// Handles the timeout of an incomplete field block or frame. `gathered` is the length of the block so far, and `rest` the part of
    /// a frame. Resets the stream of a field block, and ignores the rest of the block. False if it is no field block, or its stream
    /// was reset before.
    pub fn time_out(
        &mut self,
        block: Option<&mut Block<BlockKind>>,
        gathered: usize,
        rest: &[u8],
    ) -> bool {
        let (id, request, len) = match (block, FrameHead::read(rest)) {
            (Some(block), _) if !matches!(block.kind, BlockKind::Refused) => {
                let kind = std::mem::replace(&mut block.kind, BlockKind::Refused);
                (block.stream, matches!(kind, BlockKind::Request), gathered)
            }
            (None, Some(head)) => {
                let begins = head.kind == FrameType::Headers && head.stream > self.history.last;
                if !begins || head.stream == self.history.late {
                    return false;
                }
                self.history.late = head.stream;
                (head.stream, true, head.len)
            }
            _ => return false,
        };
        if request {
            let scratch = self.link.event_loop().take_scratch();
            self.log_unread(id, scratch, len as u64, 408);
        }
        self.link.note_reset(id, None);
        self.link.write(|out| frame::write_reset(id, ErrorCode::Protocol, out));
        true
    }

    /// Begins a call of the frame parser.
    pub fn begin(&mut self) {
        if !self.deferred {
            self.opened = 0;
        }
    }

    /// Counts parsed bytes. Fails on a flood: nginx's rule. Sent bodies are payload, too: the client has to give windows for them.
    pub fn count(&mut self, bytes: usize) -> ReadResult {
        self.check_cancelled()?;
        self.history.total += bytes as u64;
        if self.history.total / 8 > self.link.payload() + FLOOD {
            return ConnectionError::new(ErrorCode::NoError, "http2 flood detected");
        }
        Ok(())
    }

    fn log(&self, text: std::fmt::Arguments<'_>) {
        self.link.log(text);
    }
}

impl FrameHandler for Reader {
    type Stream = Stream;
    type Block = BlockKind;
    const PREFACE: &'static [u8] = frame::PREFACE;
    const LARGEST: usize = LARGEST;

    fn link(&self) -> &weir_http2::Link<Stream> {
        &self.link
    }

    fn connection_error(&self, head: FrameHead, fault: FrameFault) -> ConnectionError {
        words::connection_error(head, fault)
    }

    fn frame_begins(&mut self, head: FrameHead) {
        self.checked = 0;
        if let FrameType::Unknown(kind) = head.kind {
            self.log(format_args!("client sent frame with unknown type {kind}"));
        }
    }

    fn stream(&self, head: FrameHead) -> ReadResult<Option<Rc<Stream>>> {
        if self.history.is_idle(head.stream) {
            let text = format!("client sent WINDOW_UPDATE frame for idle stream {}", head.stream);
            return ConnectionError::new(ErrorCode::Protocol, text);
        }
        Ok(self.link.stream(head.stream))
    }

    fn data(&mut self, head: FrameHead, len: usize) -> ReadResult<bool> {
        self.body(head, len)
    }

    fn piece(&mut self, piece: BodyPiece<'_>) {
        let BodyPiece { stream, data, framed, last } = piece;
        self.link.count_payload(data.len());
        match self.link.stream(stream).filter(|stream| !stream.is_gone()) {
            Some(stream) => {
                let was_malformed = stream.is_malformed();
                stream.take(data, framed, last);
                self.history.cancelled += u64::from(stream.is_malformed() && !was_malformed);
            }
            // The stream has ended since the frame began.
            None => _ = self.link.late_data(stream, data.len(), last),
        }
    }

    fn defers(&mut self, head: FrameHead) -> bool {
        let has_reset = std::mem::take(&mut self.has_reset);
        let full = self.link.streams() as u64 >= self.link.v2().max_concurrent_streams;
        let begins = head.stream > self.history.last;
        self.deferred = !self.deferred && begins && (has_reset || full);
        self.deferred
    }

    fn head(&mut self, head: FrameHead, depends_on: Option<u32>) -> ReadResult<BlockKind> {
        let ended = head.has(frame::END_STREAM);
        if !head.has(frame::END_HEADERS) {
            self.note_block_start();
        }
        match self.link.stream(head.stream) {
            Some(stream) => self.trailers(head, &stream, ended),
            None => self.open(head, depends_on, ended),
        }
    }

    fn block_limit(&self, _stream: u32) -> usize {
        self.link.server().conf.head_limits.total * 2 + BLOCK_SLACK
    }

    fn check_partial(&mut self, head: FrameHead, part: &[u8]) -> ReadResult {
        self.note_block_start();
        let padded = head.has(frame::PADDED);
        let padding = part.first().copied().filter(|_| padded).unwrap_or(0);
        let dependency = if head.has(frame::PRIORITY) { 5 } else { 0 };
        let from = usize::from(padded) + dependency + self.checked;
        let to = head.len.saturating_sub(usize::from(padding)).min(part.len());
        match Decoder::check_partial(part.get(from..to).unwrap_or_default()) {
            Ok(whole) => self.checked += whole,
            Err(error) => return Err(self.connection_error(head, FrameFault::Fields(error))),
        }
        Ok(())
    }

    fn fields(
        &mut self,
        block: Block<BlockKind>,
        bytes: &[u8],
        decoder: &mut Decoder,
    ) -> Result<(), BlockError> {
        self.blocks += 1;
        self.whole_block(block, bytes, decoder)
    }

    fn reset(&mut self, head: FrameHead, code: u32) -> ReadResult {
        self.cancel(head, code)
    }

    fn setting(&mut self, setting: Setting) -> ReadResult {
        self.take_setting(setting)
    }

    fn settings_done(&mut self, acknowledged: bool) {
        self.history.acknowledged |= acknowledged;
    }

    fn invalid_window(&mut self, head: FrameHead, stream: Option<&Stream>, by: u32) -> ReadResult {
        self.refuse_window(head, stream, by)
    }

    fn priority(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        self.count_priority(head, payload)
    }
}

/// Bodies.
impl Reader {
    /// Begins a DATA frame. True if its pieces are wanted.
    fn body(&mut self, head: FrameHead, len: usize) -> ReadResult<bool> {
        if head.stream == 0 {
            let text = "client sent DATA frame with incorrect identifier";
            return ConnectionError::new(ErrorCode::Protocol, text);
        }
        let living = self.link.stream(head.stream).filter(|stream| !stream.is_gone());
        let Some(stream) = living else {
            self.late_data(head, len)?;
            return Ok(false);
        };
        if head.len as i64 > stream.credit() {
            self.log(format_args!(
                "client violated flow control for stream {}: received DATA frame length {}, \
                 available window {}",
                head.stream,
                head.len,
                stream.credit()
            ));
            self.reset_stream(&stream, ErrorCode::FlowControl)?;
            return Ok(false);
        }
        if stream.is_ended() {
            self.log(format_args!("client sent DATA frame for half-closed stream {}", head.stream));
            self.reset_stream(&stream, ErrorCode::StreamClosed)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Begins a DATA frame of a stream that has ended. The client may have sent it before it received RST_STREAM.
    fn late_data(&self, head: FrameHead, len: usize) -> ReadResult {
        let id = head.stream;
        if self.history.is_idle(id) || id.is_multiple_of(2) {
            let text = format!("client sent DATA frame for idle stream {id}");
            return ConnectionError::new(ErrorCode::Protocol, text);
        }
        if id > self.history.last {
            // The stream was opened after GOAWAY, and is ignored.
            return Ok(());
        }
        let code = match self.link.late_data(id, len, head.has(frame::END_STREAM)) {
            Late::Expected => return Ok(()),
            Late::WrongLength => ErrorCode::Protocol,
            Late::Unexpected => ErrorCode::StreamClosed,
        };
        if code == ErrorCode::StreamClosed {
            // One RST_STREAM per stream is enough.
            self.link.note_reset(id, None);
        }
        self.link.write(|out| frame::write_reset(id, code, out));
        Ok(())
    }
}

/// Heads.
impl Reader {
    /// Begins the trailer section of an open stream.
    fn trailers(&mut self, head: FrameHead, stream: &Stream, ended: bool) -> ReadResult<BlockKind> {
        if stream.was_reset() {
            return Ok(BlockKind::Refused);
        }
        if stream.is_ended() || !ended {
            let over = stream.is_ended();
            let code = if over { ErrorCode::StreamClosed } else { ErrorCode::Protocol };
            let last = self.history.last;
            return ConnectionError::new(
                code,
                format!(
                    "client sent HEADERS frame with incorrect identifier {}, the last was {last}",
                    head.stream
                ),
            );
        }
        Ok(BlockKind::Trailers)
    }

    /// Opens a stream.
    fn open(
        &mut self,
        head: FrameHead,
        depends_on: Option<u32>,
        ended: bool,
    ) -> ReadResult<BlockKind> {
        let id = head.stream;
        if id.is_multiple_of(2) || id <= self.history.last {
            let last = self.history.last;
            let text = format!(
                "client sent HEADERS frame with incorrect identifier {id}, the last was {last}"
            );
            return ConnectionError::new(ErrorCode::Protocol, text);
        }
        if depends_on == Some(id) {
            let text =
                format!("client sent HEADERS frame for stream {id} with incorrect dependency");
            return ConnectionError::new(ErrorCode::Protocol, text);
        }
        if self.link.is_leaving() {
            // After GOAWAY the client has to use another connection.
            self.history.ignored = self.history.ignored.max(id);
            return Ok(BlockKind::Refused);
        }
        (self.history.last, self.history.idle) = (id, None);
        if id == self.history.late {
            return Ok(BlockKind::Refused);
        }
        let conf = self.link.v2();
        let most = conf.max_concurrent_streams;
        self.opened += 1;
        let early = !self.history.acknowledged && !ended;
        if self.link.streams() as u64 >= most {
            self.log(format_args!("concurrent streams exceeded {}", self.link.streams()));
        } else if self.opened > 2 * most {
            self.log(format_args!("client sent too many streams at once"));
        } else if early && conf.body_preread_size < u64::from(frame::DEFAULT_WINDOW) {
            let text = "client sent stream with data before settings were acknowledged";
            self.log(format_args!("{text}"));
        } else {
            self.count_request();
            return Ok(BlockKind::Request);
        }
        self.history.refused += 1;
        if self.history.refused > most.max(100) {
            return ConnectionError::new(
                ErrorCode::NoError,
                "client sent too many refused streams",
            );
        }
        self.link.note_reset(id, None);
        self.link.write(|out| frame::write_reset(id, ErrorCode::RefusedStream, out));
        Ok(BlockKind::Refused)
    }

    /// Counts a request. Sends GOAWAY if it is the last by `keepalive_requests` or `keepalive_time`.
    fn count_request(&mut self) {
        self.history.requests += 1;
        let core = &self.link.conf().core;
        let started = self.link.conn.started;
        let age = self.link.event_loop().handle.now().saturating_duration_since(started);
        if core.keepalive_timeout.is_zero()
            || self.history.requests >= core.keepalive_requests
            || age > core.keepalive_time
        {
            self.send_goaway(ErrorCode::NoError);
        }
    }

    /// Notes when an incomplete field block began.
    fn note_block_start(&mut self) {
        let handle = &self.link.event_loop().handle;
        self.begun.get_or_insert_with(|| handle.now());
    }

    /// Logs a request without a complete head, with the fields that were decoded.
    fn log_unread(&mut self, id: u32, mut scratch: Scratch, len: u64, status: u16) {
        let link = self.link.clone();
        let (parser, buf) = scratch.head();
        let limits = &link.server().conf.head_limits;
        let mut draft = HeadDraft::new(limits, parser, buf);
        let verdict = self.composer.finish(true, &mut draft);
        let begun = self.begun.take();
        let fields = Fields { scratch, verdict, len, ended: true, begun };
        let (conn, event_loop) = (link.conn.clone(), link.event_loop());
        let stream = Stream::new(link, id, true, 0, None);
        streamed::log_unread(conn, event_loop, stream, fields, status);
    }

    fn whole_block(
        &mut self,
        block: Block<BlockKind>,
        bytes: &[u8],
        decoder: &mut Decoder,
    ) -> Result<(), BlockError> {
        let Block { stream: id, last: ended, kind } = block;
        spend(REQUEST + (bytes.len() / FIELDS) as u32);
        let link = &self.link;
        let limits = &link.server().conf.head_limits;
        let sizes = FieldLimits { field: limits.line, block: limits.total };
        let mut scratch = link.event_loop().take_scratch();
        let (parser, buf) = scratch.head();
        let site = link.event_loop().site;
        let limits_of = |host: &[u8]| site.head_limits_of(&link.conn, host);
        let mut draft = HeadDraft { limits, limits_of: &limits_of, parser, buf };
        let request = matches!(kind, BlockKind::Request);
        // Pseudo-header fields are not permitted in trailers (RFC 9113, section 8.1).
        let mut pseudo = false;
        let decoded = decoder.decode(bytes, sizes, |name, value| {
            if request {
                self.composer.field(name, value, &mut draft);
            } else {
                pseudo |= name.starts_with(b":");
            }
        });
        if let Err(error) = decoded {
            let len = bytes.len() as u64;
            match request {
                true => self.log_unread(id, scratch, len, 0),
                false => link.event_loop().give_scratch(scratch),
            }
            return Err(error);
        }
        if !request {
            self.begun = None;
            link.event_loop().give_scratch(scratch);
            match (kind, link.stream(id)) {
                (BlockKind::Trailers, Some(stream)) if pseudo => {
                    self.log(format_args!("client sent pseudo-header fields behind a body"));
                    stream.reset(ErrorCode::Protocol);
                    self.note_cancelled();
                }
                (BlockKind::Trailers, Some(stream)) => stream.take(b"", 0, true),
                _ => {}
            }
            return Ok(());
        }
        let verdict = self.composer.finish(ended, &mut draft);
        let len = bytes.len() as u64;
        link.count_payload(bytes.len());
        let credit = link.v2().body_preread_size.min(u64::from(frame::MAX_WINDOW)) as i64;
        // Before the client has acknowledged SETTINGS, it may use the default window.
        let credit = if self.history.acknowledged {
            credit
        } else {
            credit.max(i64::from(frame::DEFAULT_WINDOW))
        };
        let announced = draft.parser.head().content_length.filter(|_| verdict.is_ok());
        let stream = Stream::new(link.clone(), id, ended, credit, announced);
        link.add(stream.clone());
        request::start(stream, Fields { scratch, verdict, len, ended, begun: self.begun.take() });
        Ok(())
    }
}
