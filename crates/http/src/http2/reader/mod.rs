//! Frames from the client, and what each of them does.

mod control;

use std::rc::Rc;

use weir_engine::{is_spent, spend};
use weir_proto::http1::{Composer, Draft};
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, Kind, SizeError};
use weir_proto::http2::hpack::{BlockError, Decoder, FieldLimits};

use super::link::{Late, Link};
use super::request::{self, Fields};
use super::stream::Stream;

/// What CONTINUATION frames may hold beside the fields themselves: padding of the Huffman code, and their heads.
const BLOCK_SLACK: usize = 16 * 1024;
/// Bytes that are no request's, beyond an eighth of what requests are, before a client is taken for a flood.
const FLOOD: u64 = 1 << 20;
/// What a request costs of the task's budget, beside its fields; its answer is made by a task of its own.
const REQUEST: u32 = 32;
/// So many bytes of fields cost a point.
const FIELDS: usize = 4;
/// What it costs to give up a request: most of the work was for nothing.
const CANCEL: u32 = 96;

/// Why a connection ends.
#[derive(Debug)]
pub struct Broken {
    /// What the client is told.
    pub code: ErrorCode,
    /// What the log is told.
    pub text: String,
}

type Read<T = ()> = Result<T, Broken>;

fn broken<T>(code: ErrorCode, text: impl Into<String>) -> Read<T> {
    Err(Broken { code, text: text.into() })
}

/// Where the reading of a connection stands.
pub struct Reader {
    link: Rc<Link>,
    history: History,
    composer: Composer,
    /// A block of fields that is not complete.
    block: Option<Block>,
    /// Streams since the last wait.
    opened: u64,
    /// Bytes of fields that were looked at before their frame was there.
    foreseen: usize,
    /// Whole frames were left, since the task has done enough for this turn.
    behind: bool,
}

/// What was read, as far as it matters for what comes.
pub struct History {
    decoder: Decoder,
    /// The client's greeting was read.
    greeted: bool,
    /// It has acknowledged our settings.
    acknowledged: bool,
    /// The stream that was opened last.
    last: u32,
    /// A stream that ended before its head was there.
    late: u32,
    /// What the client may still send of bodies, before it is told that it may send more.
    window: u32,
    /// Requests on this connection.
    requests: u64,
    refused: u64,
    priorities: u64,
    /// Streams that were given up before there was an answer.
    cancelled: u64,
    total: u64,
}

impl Default for History {
    fn default() -> History {
        History {
            decoder: Decoder::default(),
            greeted: false,
            acknowledged: false,
            last: 0,
            late: 0,
            window: frame::MAX_WINDOW,
            requests: 0,
            refused: 0,
            priorities: 0,
            cancelled: 0,
            total: 0,
        }
    }
}

struct Block {
    stream: u32,
    ended: bool,
    kind: BlockKind,
    bytes: Vec<u8>,
    /// Bytes of frames, heads and all.
    framed: usize,
}

#[derive(Clone, Copy)]
enum BlockKind {
    /// A request.
    Request,
    /// One that is not looked at.
    Refused,
    /// What follows a body.
    Trailers,
}

impl Reader {
    /// Goes on where `history` ends.
    pub fn new(link: Rc<Link>, history: History) -> Reader {
        let composer = Composer::default();
        Reader { link, history, composer, block: None, opened: 0, foreseen: 0, behind: false }
    }

    /// What is to be remembered while nothing comes; between two blocks only.
    pub fn part(self) -> History {
        let mut history = self.history;
        history.decoder.release();
        history
    }

    /// The client has asked for something, if only so slowly that it got no answer.
    pub fn has_seen_requests(&self) -> bool {
        self.history.last > 0
    }

    /// Takes leave: no new streams from now on.
    pub fn say_goodbye(&self, code: ErrorCode) {
        self.link.write(|out| frame::write_goaway(self.history.last, code, out));
        self.link.leave();
    }

    /// Something is expected that has not come in whole, when `rest` was read behind the last whole frame: the
    /// greeting, or the rest of a head.
    pub fn is_incomplete(&self, rest: &[u8]) -> bool {
        let head = FrameHead::read(rest).is_none_or(|head| head.kind != Kind::Data);
        !self.history.greeted || self.block.is_some() || (!rest.is_empty() && head)
    }

    /// CONTINUATION is to come.
    pub fn is_within_head(&self) -> bool {
        self.block.is_some()
    }

    /// Whole frames wait for another turn.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// What is incomplete has been so for too long. A head's stream ends, and what comes of it is not looked at;
    /// false if there is no such stream, or if it has ended so before.
    pub fn time_out(&mut self, rest: &[u8]) -> bool {
        let id = match (&mut self.block, FrameHead::read(rest)) {
            (Some(block), _) if !matches!(block.kind, BlockKind::Refused) => {
                block.kind = BlockKind::Refused;
                block.stream
            }
            (None, Some(head)) => {
                let begins = head.kind == Kind::Headers && head.stream > self.history.last;
                if !begins || head.stream == self.history.late {
                    return false;
                }
                self.history.late = head.stream;
                head.stream
            }
            _ => return false,
        };
        self.link.note_reset(id, None);
        self.link.write(|out| frame::write_reset(id, ErrorCode::Protocol, out));
        true
    }

    /// Handles whole frames at the head of `buf`, as far as the task's budget goes: how many bytes that were.
    pub fn read(&mut self, buf: &[u8]) -> Read<usize> {
        let mut at = 0;
        self.behind = false;
        self.opened = 0;
        if !self.history.greeted {
            let seen = buf.get(..frame::PREFACE.len()).unwrap_or(buf);
            if !frame::PREFACE.starts_with(seen) {
                return broken(ErrorCode::Protocol, "invalid connection preface");
            }
            if seen.len() < frame::PREFACE.len() {
                return Ok(0);
            }
            self.history.greeted = true;
            at = seen.len();
        }
        while let Some(head) = FrameHead::read(buf.get(at..).unwrap_or_default()) {
            if head.len > self.link.largest_frame() {
                let text = format!("client sent frame with too large length {}", head.len);
                return broken(ErrorCode::FrameSize, text);
            }
            let payload = at + frame::HEAD;
            if head.kind == Kind::PushPromise {
                return broken(ErrorCode::Protocol, "client sent PUSH_PROMISE frame");
            }
            let Some(payload) = buf.get(payload..payload + head.len) else {
                self.foresee(head, buf.get(payload..).unwrap_or_default())?;
                break;
            };
            self.behind = is_spent();
            if self.behind {
                break;
            }
            spend(1);
            self.foreseen = 0;
            self.frame(head, payload)?;
            at += frame::HEAD + head.len;
        }
        self.history.total += at as u64;
        if self.history.total / 8 > self.link.ledger.payload.get() + FLOOD {
            return broken(ErrorCode::NoError, "http2 flood detected");
        }
        Ok(at)
    }

    /// Looks at the part of a head that has come: who errs hears of it, and does not have to send the rest.
    fn foresee(&mut self, head: FrameHead, part: &[u8]) -> Read {
        if head.kind != Kind::Headers || self.block.is_some() {
            return Ok(());
        }
        let padded = head.has(frame::PADDED);
        let padding = part.first().copied().filter(|_| padded).unwrap_or(0);
        let dependency = if head.has(frame::PRIORITY) { 5 } else { 0 };
        let from = usize::from(padded) + dependency + self.foreseen;
        let to = head.len.saturating_sub(usize::from(padding)).min(part.len());
        match Decoder::foresee(part.get(from..to).unwrap_or_default()) {
            Ok(whole) => self.foreseen += whole,
            Err(error) => return broken(code_of(error), format!("client sent {error}")),
        }
        Ok(())
    }

    fn frame(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        if let Some(block) = &self.block {
            if head.kind != Kind::Continuation {
                let text = "client sent inappropriate frame while CONTINUATION was expected";
                return broken(ErrorCode::Protocol, text);
            }
            if head.stream != block.stream {
                let text = "client sent CONTINUATION frame with incorrect identifier";
                return broken(ErrorCode::Protocol, text);
            }
        }
        match head.kind {
            Kind::Data => self.data(head, payload),
            Kind::Headers => self.headers(head, payload),
            Kind::Continuation => self.continuation(head, payload),
            Kind::Priority => self.priority(head, payload),
            Kind::RstStream => self.rst_stream(head, payload),
            Kind::Settings => self.settings(head, payload),
            Kind::Ping => self.ping(head, payload),
            Kind::Goaway => control::goaway(head),
            Kind::WindowUpdate => self.window_update(head, payload),
            Kind::PushPromise | Kind::Unknown(_) => Ok(()),
        }
    }

    fn log(&self, text: std::fmt::Arguments<'_>) {
        self.link.log(text);
    }
}

/// Bodies.
impl Reader {
    fn data(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        let data = unpadded(head, payload, "DATA")?;
        if head.stream == 0 {
            return broken(ErrorCode::Protocol, "client sent DATA frame with incorrect identifier");
        }
        self.count(head.len)?;
        let living = self.link.stream(head.stream).filter(|stream| !stream.is_gone());
        let Some(stream) = living else { return self.late_data(head, data.len()) };
        if head.len as i64 > stream.credit() {
            self.log(format_args!(
                "client violated flow control for stream {}: received DATA frame length {}, \
                 available window {}",
                head.stream,
                head.len,
                stream.credit()
            ));
            stream.reset(ErrorCode::FlowControl);
            return Ok(());
        }
        if stream.is_ended() {
            self.log(format_args!("client sent DATA frame for half-closed stream {}", head.stream));
            stream.reset(ErrorCode::StreamClosed);
            return Ok(());
        }
        stream.take(data, head.len, head.has(frame::END_STREAM));
        let payload = &self.link.ledger.payload;
        payload.set(payload.get() + data.len() as u64);
        Ok(())
    }

    /// Bodies count for the connection, whoever reads them.
    fn count(&mut self, len: usize) -> Read {
        let len = len as u32;
        let Some(left) = self.history.window.checked_sub(len) else {
            let window = self.history.window;
            return broken(
                ErrorCode::FlowControl,
                format!(
                    "client violated connection flow control: received DATA frame length {len}, \
                     available window {window}"
                ),
            );
        };
        self.history.window = left;
        if left < frame::MAX_WINDOW / 4 {
            let by = frame::MAX_WINDOW - left;
            self.link.write(|out| frame::write_window_update(0, by, out));
            self.history.window = frame::MAX_WINDOW;
        }
        Ok(())
    }

    /// A piece of a body for a stream that does not live: it may have been on its way when this end gave up.
    fn late_data(&self, head: FrameHead, len: usize) -> Read {
        let id = head.stream;
        if id > self.history.last || id.is_multiple_of(2) {
            let text = format!("client sent DATA frame for idle stream {id}");
            return broken(ErrorCode::Protocol, text);
        }
        let code = match self.link.late_data(id, len, head.has(frame::END_STREAM)) {
            Late::Expected => return Ok(()),
            Late::WrongLength => ErrorCode::Protocol,
            Late::Unexpected => ErrorCode::StreamClosed,
        };
        if code == ErrorCode::StreamClosed {
            // Once is enough.
            self.link.note_reset(id, None);
        }
        self.link.write(|out| frame::write_reset(id, code, out));
        Ok(())
    }
}

/// Heads.
impl Reader {
    fn headers(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        let mut block = unpadded(head, payload, "HEADERS")?;
        let mut depends_on = None;
        if head.has(frame::PRIORITY) {
            let Ok((stream, rest)) = frame::dependency(block) else {
                let text = format!("client sent HEADERS frame with incorrect length {}", head.len);
                return broken(ErrorCode::FrameSize, text);
            };
            (block, depends_on) = (rest, Some(stream));
        }
        let ended = head.has(frame::END_STREAM);
        let kind = match self.link.stream(head.stream) {
            Some(stream) => self.trailers(head, &stream, ended)?,
            None => self.open(head, depends_on, ended)?,
        };
        if head.has(frame::END_HEADERS) {
            return self.whole_block(head.stream, kind, ended, block);
        }
        let bytes = block.to_vec();
        self.block = Some(Block { stream: head.stream, ended, kind, bytes, framed: head.len });
        Ok(())
    }

    /// A second head of a stream.
    fn trailers(&mut self, head: FrameHead, stream: &Stream, ended: bool) -> Read<BlockKind> {
        if stream.was_reset() {
            return Ok(BlockKind::Refused);
        }
        if stream.is_ended() || !ended {
            let over = stream.is_ended();
            let code = if over { ErrorCode::StreamClosed } else { ErrorCode::Protocol };
            let last = self.history.last;
            return broken(
                code,
                format!(
                    "client sent HEADERS frame with incorrect identifier {}, the last was {last}",
                    head.stream
                ),
            );
        }
        Ok(BlockKind::Trailers)
    }

    /// A new stream.
    fn open(&mut self, head: FrameHead, depends_on: Option<u32>, ended: bool) -> Read<BlockKind> {
        let id = head.stream;
        if id.is_multiple_of(2) || id <= self.history.last {
            let last = self.history.last;
            let text = format!(
                "client sent HEADERS frame with incorrect identifier {id}, the last was {last}"
            );
            return broken(ErrorCode::Protocol, text);
        }
        if depends_on == Some(id) {
            let text =
                format!("client sent HEADERS frame for stream {id} with incorrect dependency");
            return broken(ErrorCode::Protocol, text);
        }
        if self.link.is_leaving() {
            // Behind GOAWAY, which told the client to ask elsewhere.
            return Ok(BlockKind::Refused);
        }
        self.history.last = id;
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
            return broken(ErrorCode::NoError, "client sent too many refused streams");
        }
        self.link.note_reset(id, None);
        self.link.write(|out| frame::write_reset(id, ErrorCode::RefusedStream, out));
        Ok(BlockKind::Refused)
    }

    /// `keepalive_requests` and `keepalive_time`: the client is told which request is the last.
    fn count_request(&mut self) {
        self.history.requests += 1;
        let core = &self.link.conf().core;
        let started = self.link.conn.started;
        let age = self.link.worker.handle.now().saturating_duration_since(started);
        if core.keepalive_timeout.is_zero()
            || self.history.requests >= core.keepalive_requests
            || age > core.keepalive_time
        {
            self.say_goodbye(ErrorCode::NoError);
        }
    }

    fn continuation(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        let most = self.link.server.conf.head_limits.total * 2 + BLOCK_SLACK;
        let Some(block) = &mut self.block else {
            return broken(ErrorCode::Protocol, "client sent unexpected CONTINUATION frame");
        };
        block.bytes.extend_from_slice(payload);
        block.framed += frame::HEAD + payload.len();
        if block.framed > most {
            return broken(ErrorCode::EnhanceYourCalm, "client sent too large header");
        }
        if head.has(frame::END_HEADERS)
            && let Some(block) = self.block.take()
        {
            return self.whole_block(block.stream, block.kind, block.ended, &block.bytes);
        }
        Ok(())
    }

    fn whole_block(&mut self, id: u32, kind: BlockKind, ended: bool, block: &[u8]) -> Read {
        spend(REQUEST + (block.len() / FIELDS) as u32);
        let link = &self.link;
        let limits = &link.server.conf.head_limits;
        let sizes = FieldLimits { field: limits.line, block: limits.total };
        let mut scratch = link.worker.take_scratch();
        let (parser, buf) = scratch.head();
        let mut draft = Draft { limits, parser, buf };
        let request = matches!(kind, BlockKind::Request);
        let decoded = self.history.decoder.decode(block, sizes, |name, value| {
            if request {
                self.composer.field(name, value, &mut draft);
            }
        });
        if let Err(error) = decoded {
            link.worker.give_scratch(scratch);
            return broken(code_of(error), format!("client sent {error}"));
        }
        if !request {
            link.worker.give_scratch(scratch);
            if let (BlockKind::Trailers, Some(stream)) = (kind, link.stream(id)) {
                stream.take(b"", 0, true);
            }
            return Ok(());
        }
        let verdict = self.composer.finish(ended, &mut draft);
        let len = block.len() as u64;
        link.ledger.payload.set(link.ledger.payload.get() + len);
        let credit = link.v2().body_preread_size.min(u64::from(frame::MAX_WINDOW)) as i64;
        // Until the client knows our settings, it goes by the protocol's.
        let credit = if self.history.acknowledged {
            credit
        } else {
            credit.max(i64::from(frame::DEFAULT_WINDOW))
        };
        let announced = draft.parser.head().content_length.filter(|_| verdict.is_ok());
        let stream = Stream::new(link.clone(), id, ended, credit, announced);
        link.add(stream.clone());
        request::start(stream, Fields { scratch, verdict, len });
        Ok(())
    }
}

fn unpadded<'a>(head: FrameHead, payload: &'a [u8], name: &str) -> Read<&'a [u8]> {
    let text = format_args!("client sent padded {name} frame with incorrect length");
    match frame::unpadded(head.flags, payload) {
        Ok(data) => Ok(data),
        Err(SizeError::Short) => broken(ErrorCode::FrameSize, format!("{text}: {}", head.len)),
        Err(SizeError::Padding(padding)) => {
            broken(ErrorCode::Protocol, format!("{text}: {}, padding: {padding}", head.len))
        }
    }
}

fn code_of(error: BlockError) -> ErrorCode {
    match error {
        BlockError::LargeField | BlockError::LargeBlock => ErrorCode::EnhanceYourCalm,
        BlockError::EmptyName => ErrorCode::Protocol,
        BlockError::Truncated => ErrorCode::FrameSize,
        _ => ErrorCode::Compression,
    }
}
