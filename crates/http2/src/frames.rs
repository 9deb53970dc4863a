//! Parses received frames, and handles those of the connection itself. Each end handles frames of
//! streams by [`FrameHandler`].

use std::rc::Rc;

use weir_engine::{is_spent, spend};
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting, SizeError};
use weir_proto::http2::hpack::{BlockError, Decoder};

use super::link::Link;
use super::send::{Stream, extend};

/// Bytes of a frame per point of the task's budget.
const FRAMED: usize = 128;

/// A connection error: RFC 9113, section 5.4.1.
#[derive(Debug)]
pub struct ConnectionError {
    /// The error code for GOAWAY.
    pub code: ErrorCode,
    /// The text for the error log.
    pub text: String,
    /// The stream of the frame, if it has one.
    pub stream: Option<u32>,
}

impl ConnectionError {
    /// An error with this text for the log.
    pub fn new<T>(code: ErrorCode, text: impl Into<String>) -> ReadResult<T> {
        Err(ConnectionError { code, text: text.into(), stream: None })
    }
}

/// The result of reading frames.
pub type ReadResult<T = ()> = Result<T, ConnectionError>;

/// A fault of a frame that is a connection error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameFault {
    /// It is longer than SETTINGS_MAX_FRAME_SIZE.
    Large,
    /// It has a length that its type does not permit.
    Length,
    /// A SETTINGS frame with the ACK flag has a payload.
    Acknowledgement,
    /// Its padding, of this length, is longer than its payload.
    Padding(usize),
    /// A frame of the connection has a stream ID.
    Stream,
    /// A CONTINUATION frame of this stream has to follow, or (`None`) a CONTINUATION frame continues no field block.
    Unexpected(Option<u32>),
    /// It is a PUSH_PROMISE.
    Push,
    /// Its field block is too large.
    Block,
    /// Its field block cannot be decoded.
    Fields(BlockError),
    /// A DATA frame exceeds the connection's window, of this size.
    Window(u32),
}

/// A field block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block<K> {
    /// The stream ID.
    pub stream: u32,
    /// END_STREAM is set.
    pub last: bool,
    /// The handler's kind of the block.
    pub kind: K,
}

/// A piece of the body of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyPiece<'a> {
    /// The stream ID.
    pub stream: u32,
    /// The bytes.
    pub data: &'a [u8],
    /// The bytes that flow control counts: with the padding, if the frame ends here.
    pub framed: usize,
    /// The stream ends here: END_STREAM.
    pub last: bool,
}

/// One end's handling of frames.
pub trait FrameHandler {
    /// The end's streams.
    type Stream: Stream;
    /// The kind of a field block, known from its HEADERS frame.
    type Block;
    /// The bytes before the first frame.
    const PREFACE: &'static [u8];
    /// The largest payload of DATA, HEADERS, CONTINUATION and unknown frames.
    const LARGEST: usize;

    /// The connection.
    fn link(&self) -> &Link<Self::Stream>;
    /// The connection error for a fault of a frame.
    fn connection_error(&self, head: FrameHead, fault: FrameFault) -> ConnectionError;
    /// A frame begins.
    fn frame_begins(&mut self, _head: FrameHead) {}
    /// The stream of a WINDOW_UPDATE frame; `None` if it has ended.
    fn stream(&self, head: FrameHead) -> ReadResult<Option<Rc<Self::Stream>>>;

    /// A DATA frame begins, with `len` bytes without padding. True if the handler wants its pieces.
    fn data(&mut self, head: FrameHead, len: usize) -> ReadResult<bool>;
    /// A piece of a DATA frame. The stream may have ended since the frame began.
    fn piece(&mut self, piece: BodyPiece<'_>);

    /// Whether a HEADERS frame must wait for another turn of the connection's task, so that other tasks run first.
    fn defers(&mut self, _head: FrameHead) -> bool {
        false
    }
    /// A field block begins. Returns its kind. `depends_on` is the stream dependency, if the PRIORITY flag is set.
    fn head(&mut self, head: FrameHead, depends_on: Option<u32>) -> ReadResult<Self::Block>;
    /// The largest field block of a stream, in bytes of frames.
    fn block_limit(&self, stream: u32) -> usize;
    /// A part of a HEADERS frame has arrived.
    fn check_partial(&mut self, _head: FrameHead, _part: &[u8]) -> ReadResult {
        Ok(())
    }
    /// A field block is complete.
    fn fields(
        &mut self,
        block: Block<Self::Block>,
        bytes: &[u8],
        decoder: &mut Decoder,
    ) -> Result<(), BlockError>;

    /// RST_STREAM.
    fn reset(&mut self, head: FrameHead, code: u32) -> ReadResult;
    /// SETTINGS or PING, so that floods can be counted.
    fn control_frame(&mut self, _head: FrameHead) -> ReadResult {
        Ok(())
    }
    /// A setting of a SETTINGS frame, except SETTINGS_INITIAL_WINDOW_SIZE.
    fn setting(&mut self, setting: Setting) -> ReadResult;
    /// A SETTINGS frame was applied, or (`acknowledged`) the peer has applied this end's.
    fn settings_done(&mut self, acknowledged: bool);
    /// A window increment of 0, or a window that becomes too large. `stream` is `None` for the connection, and for the value of
    /// SETTINGS_INITIAL_WINDOW_SIZE.
    fn invalid_window(
        &mut self,
        head: FrameHead,
        stream: Option<&Self::Stream>,
        by: u32,
    ) -> ReadResult;
    /// GOAWAY: the peer does not process streams above `last`.
    fn goaway(&mut self, _last: u32, _code: u32) {}
    /// PRIORITY.
    fn priority(&mut self, _head: FrameHead, _payload: &[u8]) -> ReadResult {
        Ok(())
    }
}

/// The parser's state between two frames, which a parked connection keeps.
#[derive(Debug)]
pub struct ReaderHistory {
    decoder: Decoder,
    /// The preface was read.
    preface_read: bool,
    /// The connection's window for receiving.
    window: u32,
}

impl ReaderHistory {
    /// The state of a new connection.
    pub fn nothing(decoder: Decoder) -> ReaderHistory {
        ReaderHistory { decoder, preface_read: false, window: frame::MAX_WINDOW }
    }
}

/// The frame parser of a connection.
pub struct Frames<E: FrameHandler> {
    /// The end that handles them.
    pub end: E,
    seen: ReaderHistory,
    /// A field block that waits for CONTINUATION.
    block: Option<Gathered<E::Block>>,
    /// A DATA or unknown frame that is read in pieces.
    part: Option<PartialFrame>,
    /// Received frames wait for another turn: the task's budget was spent, or the handler defers them.
    backlog: bool,
}

/// An incomplete field block.
struct Gathered<K> {
    block: Block<K>,
    bytes: Vec<u8>,
    /// Bytes of its frames so far: payloads, and the headers of CONTINUATION frames.
    framed: usize,
}

/// The rest of a frame that is read in pieces.
struct PartialFrame {
    head: FrameHead,
    /// Bytes that have not been read, without the padding.
    left: usize,
    /// The length of the padding behind them.
    padding: usize,
    /// The handler wants the pieces.
    wanted: bool,
}

impl<E: FrameHandler> Frames<E> {
    /// A parser that continues in this state.
    pub fn new(end: E, seen: ReaderHistory) -> Frames<E> {
        Frames { end, seen, block: None, part: None, backlog: false }
    }

    /// Returns the handler and the state. Only valid between two frames.
    pub fn into_parts(mut self) -> (E, ReaderHistory) {
        self.seen.decoder.release();
        (self.end, self.seen)
    }

    /// The handler, and the incomplete field block.
    pub fn handler_and_block(&mut self) -> (&mut E, Option<&mut Block<E::Block>>) {
        (&mut self.end, self.block.as_mut().map(|gathered| &mut gathered.block))
    }

    /// The number of bytes of the incomplete field block.
    pub fn gathered(&self) -> usize {
        self.block.as_ref().map_or(0, |gathered| gathered.bytes.len())
    }

    /// A field block is incomplete.
    pub fn is_within_block(&self) -> bool {
        self.block.is_some()
    }

    /// A field block is incomplete, or a frame of which something was read.
    pub fn is_within(&self) -> bool {
        self.block.is_some() || self.part.is_some()
    }

    /// The preface, a field block or a frame other than DATA is incomplete. `rest` holds the bytes that were not parsed.
    pub fn is_incomplete(&self, rest: &[u8]) -> bool {
        let head = match &self.part {
            Some(part) => Some(part.head),
            None if rest.is_empty() => return !self.seen.preface_read || self.block.is_some(),
            None => FrameHead::read(rest),
        };
        !self.seen.preface_read
            || self.block.is_some()
            || head.is_none_or(|head| head.kind != FrameType::Data)
    }

    /// Received frames wait for another turn.
    pub fn has_backlog(&self) -> bool {
        self.backlog
    }

    /// Handles frames at the start of `buf`, as far as the task's budget lasts. Returns the number of bytes.
    pub fn read(&mut self, buf: &[u8]) -> ReadResult<usize> {
        self.backlog = false;
        let mut at = 0;
        if !self.seen.preface_read {
            let seen = buf.get(..E::PREFACE.len()).unwrap_or(buf);
            if !E::PREFACE.starts_with(seen) {
                return ConnectionError::new(ErrorCode::Protocol, "invalid connection preface");
            }
            if seen.len() < E::PREFACE.len() {
                return Ok(0);
            }
            self.seen.preface_read = true;
            at = seen.len();
        }
        loop {
            let rest = buf.get(at..).unwrap_or_default();
            let read = match self.part.take() {
                Some(part) => self.read_piece(part, rest),
                None => self.begin(rest)?,
            };
            match read {
                Some(read) => at += read,
                None => return Ok(at),
            }
        }
    }

    /// Begins a frame. Returns how many bytes of it were read; `None` if more must arrive, or the frame waits for another turn.
    fn begin(&mut self, rest: &[u8]) -> ReadResult<Option<usize>> {
        let Some(head) = FrameHead::read(rest) else { return Ok(None) };
        self.check(head)?;
        let payload = rest.get(frame::HEAD..).unwrap_or_default();
        let read_in_part = matches!(head.kind, FrameType::Data | FrameType::Unknown(_));
        // A padded frame begins with the length of its padding.
        let wanted = if !read_in_part {
            head.len
        } else {
            usize::from(head.kind == FrameType::Data && head.has(frame::PADDED)).min(head.len)
        };
        let Some(payload) = payload.get(..wanted) else {
            if head.kind == FrameType::Headers {
                self.end.check_partial(head, payload)?;
            }
            return Ok(None);
        };
        self.backlog = head.kind == FrameType::Headers && self.end.defers(head);
        if self.backlog || !self.spend_budget(payload.len()) {
            return Ok(None);
        }
        self.end.frame_begins(head);
        self.frame(head, payload)?;
        Ok(Some(frame::HEAD + wanted))
    }

    /// Checks a frame's header.
    fn check(&self, head: FrameHead) -> ReadResult {
        let fault = |fault| self.fault(head, fault);
        let in_block = head.kind == FrameType::Continuation;
        let most = match head.kind {
            FrameType::Data
            | FrameType::Headers
            | FrameType::Continuation
            | FrameType::Unknown(_) => E::LARGEST,
            _ => frame::MAX_PAYLOAD,
        };
        if head.len > most {
            return fault(FrameFault::Large);
        }
        if head.kind == FrameType::PushPromise {
            return fault(FrameFault::Push);
        }
        let gathered = self.block.as_ref();
        let expected = gathered.map(|gathered| gathered.block.stream);
        if in_block != expected.is_some() || expected.is_some_and(|id| id != head.stream) {
            return fault(FrameFault::Unexpected(expected));
        }
        let framed = gathered.map_or(0, |gathered| gathered.framed) + head.len;
        if (in_block || head.kind == FrameType::Headers)
            && framed > self.end.block_limit(head.stream)
        {
            return fault(FrameFault::Block);
        }
        Ok(())
    }

    /// Spends budget for so many bytes. False if the budget was spent before.
    fn spend_budget(&mut self, len: usize) -> bool {
        self.backlog = is_spent();
        if !self.backlog {
            spend(1 + (len / FRAMED) as u32);
        }
        !self.backlog
    }

    fn frame(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        match head.kind {
            FrameType::Data => self.data(head, payload),
            FrameType::Headers => self.headers(head, payload),
            FrameType::Continuation => self.continuation(head, payload),
            FrameType::Priority => self.end.priority(head, payload),
            FrameType::RstStream => match frame::word(payload) {
                Some(code) => self.end.reset(head, code),
                None => self.fault(head, FrameFault::Length),
            },
            FrameType::Settings => self.settings(head, payload),
            FrameType::Ping => self.ping(head, payload),
            FrameType::Goaway => self.goaway(head, payload),
            FrameType::WindowUpdate => self.window_update(head, payload),
            FrameType::PushPromise | FrameType::Unknown(_) => {
                self.part = Some(PartialFrame { head, left: head.len, padding: 0, wanted: false });
                Ok(())
            }
        }
    }

    fn fault<T>(&self, head: FrameHead, fault: FrameFault) -> ReadResult<T> {
        let stream = Some(head.stream).filter(|id| *id != 0);
        Err(ConnectionError { stream, ..self.end.connection_error(head, fault) })
    }
}

/// Bodies.
impl<E: FrameHandler> Frames<E> {
    /// Begins a DATA frame. `payload` is the padding length field, if there is one.
    fn data(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        let (mut left, mut padding) = (head.len, 0);
        if head.has(frame::PADDED) {
            let Some(&byte) = payload.first() else { return self.fault(head, FrameFault::Length) };
            padding = usize::from(byte);
            match (head.len - 1).checked_sub(padding) {
                Some(len) => left = len,
                None => return self.fault(head, FrameFault::Padding(padding)),
            }
        }
        self.count(head)?;
        let wanted = self.end.data(head, left)?;
        self.part = Some(PartialFrame { head, left, padding, wanted });
        Ok(())
    }

    /// Counts a DATA frame for the connection's window, also if no stream reads it. WINDOW_UPDATE follows once three quarters are
    /// used: streams bound memory by their own windows.
    fn count(&mut self, head: FrameHead) -> ReadResult {
        let window = self.seen.window;
        let Some(left) = window.checked_sub(head.len as u32) else {
            return self.fault(head, FrameFault::Window(window));
        };
        self.seen.window = left;
        if left < frame::MAX_WINDOW / 4 {
            let by = frame::MAX_WINDOW - left;
            self.end.link().write(|out| frame::write_window_update(0, by, out));
            self.seen.window = frame::MAX_WINDOW;
        }
        Ok(())
    }

    /// Reads a piece of a frame. `None` if no byte has arrived, or the budget is spent.
    fn read_piece(&mut self, mut part: PartialFrame, rest: &[u8]) -> Option<usize> {
        let PartialFrame { head, padding, .. } = part;
        let data = rest.get(..part.left).unwrap_or(rest);
        part.left -= data.len();
        // The end of a frame without further bytes costs no budget.
        let turn = data.is_empty() || self.spend_budget(data.len());
        if !turn || (data.is_empty() && part.left > 0) {
            part.left += data.len();
            self.part = Some(part);
            return None;
        }
        let whole = part.left == 0;
        if part.wanted {
            let own = if head.has(frame::PADDED) { 1 + padding } else { 0 };
            let framed = data.len() + if whole { own } else { 0 };
            let last = whole && head.has(frame::END_STREAM);
            self.end.piece(BodyPiece { stream: head.stream, data, framed, last });
        }
        if !whole {
            self.part = Some(part);
        } else if padding > 0 {
            self.part = Some(PartialFrame { head, left: padding, padding: 0, wanted: false });
        }
        Some(data.len())
    }
}

/// Field blocks.
impl<E: FrameHandler> Frames<E> {
    fn headers(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        let mut fields = match frame::unpadded(head.flags, payload) {
            Ok(fields) => fields,
            Err(SizeError::Short) => return self.fault(head, FrameFault::Length),
            Err(SizeError::Padding(padding)) => {
                return self.fault(head, FrameFault::Padding(padding));
            }
        };
        let mut depends_on = None;
        if head.has(frame::PRIORITY) {
            let Ok((stream, rest)) = frame::dependency(fields) else {
                return self.fault(head, FrameFault::Length);
            };
            (fields, depends_on) = (rest, Some(stream));
        }
        let kind = self.end.head(head, depends_on)?;
        let block = Block { stream: head.stream, last: head.has(frame::END_STREAM), kind };
        if head.has(frame::END_HEADERS) {
            return self.whole(head, block, fields);
        }
        self.block = Some(Gathered { block, bytes: fields.to_vec(), framed: head.len });
        Ok(())
    }

    fn continuation(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        let Some(mut gathered) = self.block.take() else {
            return self.fault(head, FrameFault::Unexpected(None));
        };
        gathered.bytes.extend_from_slice(payload);
        gathered.framed += frame::HEAD + payload.len();
        if head.has(frame::END_HEADERS) {
            return self.whole(head, gathered.block, &gathered.bytes);
        }
        self.block = Some(gathered);
        Ok(())
    }

    fn whole(&mut self, head: FrameHead, block: Block<E::Block>, bytes: &[u8]) -> ReadResult {
        let read = self.end.fields(block, bytes, &mut self.seen.decoder);
        read.or_else(|error| self.fault(head, FrameFault::Fields(error)))
    }
}

/// Frames of the connection.
impl<E: FrameHandler> Frames<E> {
    fn settings(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        if head.stream != 0 {
            return self.fault(head, FrameFault::Stream);
        }
        if head.has(frame::ACK) {
            if head.len != 0 {
                return self.fault(head, FrameFault::Acknowledgement);
            }
            self.end.settings_done(true);
            return Ok(());
        }
        if !head.len.is_multiple_of(6) {
            return self.fault(head, FrameFault::Length);
        }
        self.end.control_frame(head)?;
        let mut window = None;
        for setting in frame::settings(payload) {
            match setting {
                Setting::InitialWindowSize(size) if size > frame::MAX_WINDOW => {
                    return self.end.invalid_window(head, None, size);
                }
                Setting::InitialWindowSize(size) => window = Some(size),
                other => self.end.setting(other)?,
            }
        }
        self.end.link().write(frame::write_settings_ack);
        if let Some(size) = window {
            for stream in self.end.link().set_initial_window(size) {
                self.end.invalid_window(head, Some(&stream), size)?;
            }
        }
        self.end.settings_done(false);
        Ok(())
    }

    fn ping(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        if head.len != 8 {
            return self.fault(head, FrameFault::Length);
        }
        if head.stream != 0 {
            return self.fault(head, FrameFault::Stream);
        }
        self.end.control_frame(head)?;
        if !head.has(frame::ACK) {
            self.end.link().write(|out| frame::write_pong(payload, out));
        }
        Ok(())
    }

    fn goaway(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        let Some(&[a, b, c, d, e, f, g, h]) = payload.first_chunk::<8>() else {
            return self.fault(head, FrameFault::Length);
        };
        if head.stream != 0 {
            return self.fault(head, FrameFault::Stream);
        }
        let last = u32::from_be_bytes([a & 0x7f, b, c, d]);
        self.end.goaway(last, u32::from_be_bytes([e, f, g, h]));
        Ok(())
    }

    fn window_update(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        let Some(by) = frame::word(payload).map(|word| word & frame::MAX_WINDOW) else {
            return self.fault(head, FrameFault::Length);
        };
        let stream = if head.stream == 0 { None } else { self.end.stream(head)? };
        let fits = match &stream {
            _ if by == 0 => false,
            Some(stream) => extend(stream, i64::from(by)),
            // The frame is for a stream that has ended, or for the connection.
            None => head.stream != 0 || self.end.link().extend(by),
        };
        if fits { Ok(()) } else { self.end.invalid_window(head, stream.as_deref(), by) }
    }
}
