//! Received frames: their meaning, and their effect on the connection. Each end adds its own part
//! by [`FrameHandler`].

use std::rc::Rc;

use weir_engine::{is_spent, spend};
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting, SizeError};
use weir_proto::http2::hpack::{BlockError, Decoder};

use super::link::Link;
use super::way::{Stream, extend};

/// So many bytes of a frame cost a point of the task's budget.
const FRAMED: usize = 128;

/// The other end broke the protocol: nothing that follows on the connection can be understood.
#[derive(Debug)]
pub struct Broken {
    /// What the other end is told.
    pub code: ErrorCode,
    /// What the log is told.
    pub text: String,
    /// The stream of the frame, if it was of one.
    pub stream: Option<u32>,
}

impl Broken {
    /// With the words for the log.
    pub fn new<T>(code: ErrorCode, text: impl Into<String>) -> ReadResult<T> {
        Err(Broken { code, text: text.into(), stream: None })
    }
}

/// What reading comes to.
pub type ReadResult<T = ()> = Result<T, Broken>;

/// What is wrong with a frame, so that the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// It is longer than frames may be.
    Large,
    /// It is not as long as its kind wants.
    Length,
    /// It acknowledges, and says something beside.
    Acknowledgement,
    /// It is shorter than its padding.
    Padding(usize),
    /// It is of the connection, and names a stream.
    Stream,
    /// It is not the rest of the block of this stream, which has to follow; or it is the rest of none.
    Unexpected(Option<u32>),
    /// It is never sent to this end.
    Push,
    /// The block of fields that it belongs to takes more than it may.
    Block,
    /// The block of fields that it ends cannot be read.
    Fields(BlockError),
    /// It is more of a body than the connection has room for: so much.
    Window(u32),
}

/// A block of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block<K> {
    /// Of which stream.
    pub stream: u32,
    /// Nothing follows in the stream.
    pub last: bool,
    /// What it is.
    pub kind: K,
}

/// A piece of the body of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyPiece<'a> {
    /// Of which stream.
    pub stream: u32,
    /// The piece.
    pub data: &'a [u8],
    /// What windows count of it: with the padding, if its frame ends here.
    pub framed: usize,
    /// Nothing follows in the stream.
    pub last: bool,
}

/// What an end makes of frames, and says of wrong ones.
pub trait FrameHandler {
    /// Its streams.
    type Stream: Stream;
    /// What a block of fields is, as its first frame tells.
    type Block;
    /// What comes before all frames.
    const PREFACE: &'static [u8];
    /// The largest payload of a frame that may be long.
    const LARGEST: usize;

    /// The connection.
    fn link(&self) -> &Link<Self::Stream>;
    /// What is told of a wrong frame, and written to the log.
    fn wrong(&self, head: FrameHead, wrong: Wrong) -> Broken;
    /// A frame begins.
    fn begins(&mut self, _head: FrameHead) {}
    /// The stream that a frame is about; `None` for one that lives no more.
    fn stream(&self, head: FrameHead) -> ReadResult<Option<Rc<Self::Stream>>>;

    /// A frame of a body begins, so long without its padding: whether its pieces are of interest.
    fn data(&mut self, head: FrameHead, len: usize) -> ReadResult<bool>;
    /// A piece of a body. Its stream may have ended since.
    fn piece(&mut self, piece: BodyPiece<'_>);

    /// A block of fields waits for another turn of the connection's task: other tasks come first.
    fn defers(&mut self, _head: FrameHead) -> bool {
        false
    }
    /// A block of fields begins: what it is. Of the end that asks, [`frame::dependency`] may be told.
    fn head(&mut self, head: FrameHead, depends_on: Option<u32>) -> ReadResult<Self::Block>;
    /// Bytes of frames that a block may take.
    fn most(&self, stream: u32) -> usize;
    /// The first frame of a block is there in part.
    fn foresee(&mut self, _head: FrameHead, _part: &[u8]) -> ReadResult {
        Ok(())
    }
    /// A block is there in whole.
    fn fields(
        &mut self,
        block: Block<Self::Block>,
        bytes: &[u8],
        decoder: &mut Decoder,
    ) -> Result<(), BlockError>;

    /// A stream is given up by the other end.
    fn reset(&mut self, head: FrameHead, code: u32) -> ReadResult;
    /// A frame that costs the other end nothing: settings, or a ping.
    fn talk(&mut self, _head: FrameHead) -> ReadResult {
        Ok(())
    }
    /// One of the settings; the window of streams is changed by itself.
    fn setting(&mut self, setting: Setting) -> ReadResult;
    /// The settings are taken over, or ours are: `acknowledged`.
    fn settled(&mut self, acknowledged: bool);
    /// A window cannot be made so large, or larger by nothing: that of a stream that lives, or of which the frame tells.
    fn misfits(&mut self, head: FrameHead, stream: Option<&Self::Stream>, by: u32) -> ReadResult;
    /// The other end looks at no stream above `last`.
    fn goaway(&mut self, _last: u32, _code: u32) {}
    /// Priorities are ignored.
    fn priority(&mut self, _head: FrameHead, _payload: &[u8]) -> ReadResult {
        Ok(())
    }
}

/// What of the reading is to be remembered while nothing comes.
#[derive(Debug)]
pub struct ReaderHistory {
    decoder: Decoder,
    /// What comes before all frames was read.
    greeted: bool,
    /// What the other end may still send of bodies, before it is told that it may send more.
    window: u32,
}

impl ReaderHistory {
    /// Nothing; fields are read with this decoder.
    pub fn nothing(decoder: Decoder) -> ReaderHistory {
        ReaderHistory { decoder, greeted: false, window: frame::MAX_WINDOW }
    }
}

/// Reads the frames of a connection.
pub struct Frames<E: FrameHandler> {
    /// The end that handles them.
    pub end: E,
    seen: ReaderHistory,
    /// A block of fields that is not complete.
    block: Option<Gathered<E::Block>>,
    /// A frame that need not be there in whole to be read.
    part: Option<PartialFrame>,
    /// Something was left, since the task has done enough for this turn.
    behind: bool,
}

/// What has come of a block.
struct Gathered<K> {
    block: Block<K>,
    bytes: Vec<u8>,
    /// Bytes of frames that it took, their heads and all.
    framed: usize,
}

/// What is left of a frame that is read as it comes.
struct PartialFrame {
    head: FrameHead,
    /// Bytes that are still to come, without the padding.
    left: usize,
    /// Padding behind them.
    padding: usize,
    /// They are of interest.
    wanted: bool,
}

impl<E: FrameHandler> Frames<E> {
    /// Goes on where `seen` ends.
    pub fn new(end: E, seen: ReaderHistory) -> Frames<E> {
        Frames { end, seen, block: None, part: None, behind: false }
    }

    /// Takes it apart, between two frames.
    pub fn into_parts(mut self) -> (E, ReaderHistory) {
        self.seen.decoder.release();
        (self.end, self.seen)
    }

    /// The end that handles the frames, and the block that is not complete.
    pub fn end_and_block(&mut self) -> (&mut E, Option<&mut Block<E::Block>>) {
        (&mut self.end, self.block.as_mut().map(|gathered| &mut gathered.block))
    }

    /// So many bytes are there of the block that is not complete.
    pub fn gathered(&self) -> usize {
        self.block.as_ref().map_or(0, |gathered| gathered.bytes.len())
    }

    /// The rest of a block is to come.
    pub fn is_within_block(&self) -> bool {
        self.block.is_some()
    }

    /// The rest of a block is to come, or of a frame of which something was read.
    pub fn is_within(&self) -> bool {
        self.block.is_some() || self.part.is_some()
    }

    /// Something other than a body has not come in whole, when `rest` was left: the greeting, or the rest of a head.
    pub fn is_incomplete(&self, rest: &[u8]) -> bool {
        let head = match &self.part {
            Some(part) => Some(part.head),
            None if rest.is_empty() => return !self.seen.greeted || self.block.is_some(),
            None => FrameHead::read(rest),
        };
        !self.seen.greeted
            || self.block.is_some()
            || head.is_none_or(|head| head.kind != FrameType::Data)
    }

    /// Something waits for another turn.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Handles what is at the head of `buf`, as far as the task's budget goes: how many bytes that were.
    pub fn read(&mut self, buf: &[u8]) -> ReadResult<usize> {
        self.behind = false;
        let mut at = 0;
        if !self.seen.greeted {
            let seen = buf.get(..E::PREFACE.len()).unwrap_or(buf);
            if !E::PREFACE.starts_with(seen) {
                return Broken::new(ErrorCode::Protocol, "invalid connection preface");
            }
            if seen.len() < E::PREFACE.len() {
                return Ok(0);
            }
            self.seen.greeted = true;
            at = seen.len();
        }
        loop {
            let rest = buf.get(at..).unwrap_or_default();
            let read = match self.part.take() {
                Some(part) => self.go_on(part, rest),
                None => self.begin(rest)?,
            };
            match read {
                Some(read) => at += read,
                None => return Ok(at),
            }
        }
    }

    /// A frame begins: how many bytes of it were read, if enough of it is there.
    fn begin(&mut self, rest: &[u8]) -> ReadResult<Option<usize>> {
        let Some(head) = FrameHead::read(rest) else { return Ok(None) };
        self.check(head)?;
        let payload = rest.get(frame::HEAD..).unwrap_or_default();
        let read_in_part = matches!(head.kind, FrameType::Data | FrameType::Unknown(_));
        // The padding's length is told first.
        let wanted = if !read_in_part {
            head.len
        } else {
            usize::from(head.kind == FrameType::Data && head.has(frame::PADDED)).min(head.len)
        };
        let Some(payload) = payload.get(..wanted) else {
            if head.kind == FrameType::Headers {
                self.end.foresee(head, payload)?;
            }
            return Ok(None);
        };
        self.behind = head.kind == FrameType::Headers && self.end.defers(head);
        if self.behind || !self.take_turn(payload.len()) {
            return Ok(None);
        }
        self.end.begins(head);
        self.frame(head, payload)?;
        Ok(Some(frame::HEAD + wanted))
    }

    /// What can be said of a frame before it is there.
    fn check(&self, head: FrameHead) -> ReadResult {
        let wrong = |wrong| self.wrong(head, wrong);
        let in_block = head.kind == FrameType::Continuation;
        let most = match head.kind {
            FrameType::Data
            | FrameType::Headers
            | FrameType::Continuation
            | FrameType::Unknown(_) => E::LARGEST,
            _ => frame::MAX_PAYLOAD,
        };
        if head.len > most {
            return wrong(Wrong::Large);
        }
        if head.kind == FrameType::PushPromise {
            return wrong(Wrong::Push);
        }
        let gathered = self.block.as_ref();
        let expected = gathered.map(|gathered| gathered.block.stream);
        if in_block != expected.is_some() || expected.is_some_and(|id| id != head.stream) {
            return wrong(Wrong::Unexpected(expected));
        }
        let framed = gathered.map_or(0, |gathered| gathered.framed) + head.len;
        if (in_block || head.kind == FrameType::Headers) && framed > self.end.most(head.stream) {
            return wrong(Wrong::Block);
        }
        Ok(())
    }

    /// The task has something left for so many bytes.
    fn take_turn(&mut self, len: usize) -> bool {
        self.behind = is_spent();
        if !self.behind {
            spend(1 + (len / FRAMED) as u32);
        }
        !self.behind
    }

    fn frame(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        match head.kind {
            FrameType::Data => self.data(head, payload),
            FrameType::Headers => self.headers(head, payload),
            FrameType::Continuation => self.continuation(head, payload),
            FrameType::Priority => self.end.priority(head, payload),
            FrameType::RstStream => match frame::word(payload) {
                Some(code) => self.end.reset(head, code),
                None => self.wrong(head, Wrong::Length),
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

    fn wrong<T>(&self, head: FrameHead, wrong: Wrong) -> ReadResult<T> {
        let stream = Some(head.stream).filter(|id| *id != 0);
        Err(Broken { stream, ..self.end.wrong(head, wrong) })
    }
}

/// Bodies.
impl<E: FrameHandler> Frames<E> {
    /// A frame of a body begins: `payload` is the length of its padding, if it has any.
    fn data(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        let (mut left, mut padding) = (head.len, 0);
        if head.has(frame::PADDED) {
            let Some(&byte) = payload.first() else { return self.wrong(head, Wrong::Length) };
            padding = usize::from(byte);
            match (head.len - 1).checked_sub(padding) {
                Some(len) => left = len,
                None => return self.wrong(head, Wrong::Padding(padding)),
            }
        }
        self.count(head)?;
        let wanted = self.end.data(head, left)?;
        self.part = Some(PartialFrame { head, left, padding, wanted });
        Ok(())
    }

    /// Bodies count for the connection, even if no stream reads them.
    fn count(&mut self, head: FrameHead) -> ReadResult {
        let window = self.seen.window;
        let Some(left) = window.checked_sub(head.len as u32) else {
            return self.wrong(head, Wrong::Window(window));
        };
        self.seen.window = left;
        if left < frame::MAX_WINDOW / 4 {
            let by = frame::MAX_WINDOW - left;
            self.end.link().write(|out| frame::write_window_update(0, by, out));
            self.seen.window = frame::MAX_WINDOW;
        }
        Ok(())
    }

    /// Takes what has come of a frame that is read as it comes; without any of it, waits for more.
    fn go_on(&mut self, mut part: PartialFrame, rest: &[u8]) -> Option<usize> {
        let PartialFrame { head, padding, .. } = part;
        let data = rest.get(..part.left).unwrap_or(rest);
        part.left -= data.len();
        // An end without bytes is part of what came before.
        let turn = data.is_empty() || self.take_turn(data.len());
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

/// Blocks of fields.
impl<E: FrameHandler> Frames<E> {
    fn headers(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        let mut fields = match frame::unpadded(head.flags, payload) {
            Ok(fields) => fields,
            Err(SizeError::Short) => return self.wrong(head, Wrong::Length),
            Err(SizeError::Padding(padding)) => return self.wrong(head, Wrong::Padding(padding)),
        };
        let mut depends_on = None;
        if head.has(frame::PRIORITY) {
            let Ok((stream, rest)) = frame::dependency(fields) else {
                return self.wrong(head, Wrong::Length);
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
            return self.wrong(head, Wrong::Unexpected(None));
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
        read.or_else(|error| self.wrong(head, Wrong::Fields(error)))
    }
}

/// Frames of the connection.
impl<E: FrameHandler> Frames<E> {
    fn settings(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        if head.stream != 0 {
            return self.wrong(head, Wrong::Stream);
        }
        if head.has(frame::ACK) {
            if head.len != 0 {
                return self.wrong(head, Wrong::Acknowledgement);
            }
            self.end.settled(true);
            return Ok(());
        }
        if !head.len.is_multiple_of(6) {
            return self.wrong(head, Wrong::Length);
        }
        self.end.talk(head)?;
        let mut window = None;
        for setting in frame::settings(payload) {
            match setting {
                Setting::InitialWindowSize(size) if size > frame::MAX_WINDOW => {
                    return self.end.misfits(head, None, size);
                }
                Setting::InitialWindowSize(size) => window = Some(size),
                other => self.end.setting(other)?,
            }
        }
        self.end.link().write(frame::write_settings_ack);
        if let Some(size) = window {
            for stream in self.end.link().set_initial_window(size) {
                self.end.misfits(head, Some(&stream), size)?;
            }
        }
        self.end.settled(false);
        Ok(())
    }

    fn ping(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        if head.len != 8 {
            return self.wrong(head, Wrong::Length);
        }
        if head.stream != 0 {
            return self.wrong(head, Wrong::Stream);
        }
        self.end.talk(head)?;
        if !head.has(frame::ACK) {
            self.end.link().write(|out| frame::write_pong(payload, out));
        }
        Ok(())
    }

    fn goaway(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        let Some(&[a, b, c, d, e, f, g, h]) = payload.first_chunk::<8>() else {
            return self.wrong(head, Wrong::Length);
        };
        if head.stream != 0 {
            return self.wrong(head, Wrong::Stream);
        }
        let last = u32::from_be_bytes([a & 0x7f, b, c, d]);
        self.end.goaway(last, u32::from_be_bytes([e, f, g, h]));
        Ok(())
    }

    fn window_update(&mut self, head: FrameHead, payload: &[u8]) -> ReadResult {
        let Some(by) = frame::word(payload).map(|word| word & frame::MAX_WINDOW) else {
            return self.wrong(head, Wrong::Length);
        };
        let stream = if head.stream == 0 { None } else { self.end.stream(head)? };
        let fits = match &stream {
            _ if by == 0 => false,
            Some(stream) => extend(stream, i64::from(by)),
            // Of a stream that has ended, or of the connection.
            None => head.stream != 0 || self.end.link().extend(by),
        };
        if fits { Ok(()) } else { self.end.misfits(head, stream.as_deref(), by) }
    }
}
