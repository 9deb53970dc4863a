//! Frames that a server sends.

use std::rc::Rc;

use weir_engine::spend;
use weir_http2::Stream as _;
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, Kind, Setting, SizeError};
use weir_proto::http2::hpack::{Decoder, FieldLimits};
use weir_upstream::Failure;

use super::ending::{Broken, Ending};
use super::link::Link;
use super::message::{Message, unreadable};
use super::stream::State;

/// Bytes of frames that one block of fields may be spread over, beyond what its stream has room for.
const BLOCK: usize = 64 * 1024;
/// No name and no value is longer, whoever asks for it.
const FIELDS: FieldLimits = FieldLimits { field: 1 << 20, block: usize::MAX };
/// So many settings, and so many pings, may come without anything of an answer between them.
const IDLE_TALK: u32 = 1000;

/// So many bytes of a frame cost a point of the task's budget.
const FRAMED: usize = 128;

type Read<T = ()> = Result<T, Broken>;

/// Reads the frames of one connection.
pub struct Reader {
    link: Rc<Link>,
    decoder: Decoder,
    /// A block of fields that goes on.
    block: Option<Block>,
    /// What the server may send on the connection.
    window: u32,
    /// Settings and pings since the last frame of an answer.
    settings: u32,
    pings: u32,
}

struct Block {
    stream: u32,
    ended: bool,
    bytes: Vec<u8>,
    framed: usize,
}

impl Reader {
    /// Of a connection on which nothing has come.
    pub fn new(link: Rc<Link>) -> Reader {
        // A table would save the server bytes, and cost memory for each connection.
        let decoder = Decoder::with_table(0);
        Reader { link, decoder, block: None, window: frame::MAX_WINDOW, settings: 0, pings: 0 }
    }

    /// Handles whole frames at the head of `buf`: how many bytes that were.
    pub fn read(&mut self, buf: &[u8]) -> Read<usize> {
        let mut at = 0;
        while let Some(head) = FrameHead::read(buf.get(at..).unwrap_or_default()) {
            if head.len > frame::MAX_PAYLOAD {
                let text = format!("upstream sent too large http2 frame: {}", head.len);
                return Broken::new(ErrorCode::FrameSize, text);
            }
            let start = at + frame::HEAD;
            let Some(payload) = buf.get(start..start + head.len) else { break };
            spend(1 + (head.len / FRAMED) as u32);
            self.frame(head, payload)?;
            at = start + head.len;
        }
        Ok(at)
    }

    fn frame(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        // A server's settings are the first that it sends; one that sends other things has none.
        if head.kind != Kind::Settings {
            self.link.greeted();
        }
        let going_on = head.kind == Kind::Continuation;
        let expected = self.block.as_ref().map(|block| block.stream);
        if going_on != expected.is_some() || expected.is_some_and(|id| id != head.stream) {
            return unexpected(head);
        }
        match head.kind {
            Kind::Data => self.data(head, payload),
            Kind::Headers => self.headers(head, payload),
            Kind::Continuation => self.continuation(head, payload),
            Kind::RstStream => self.rst_stream(head, payload),
            Kind::Settings => self.take_settings(head, payload),
            Kind::Ping => self.ping(head, payload),
            Kind::Goaway => self.goaway(head, payload),
            Kind::WindowUpdate => self.window_update(head, payload),
            Kind::PushPromise => {
                let text = "upstream sent unexpected push promise frame";
                Broken::new(ErrorCode::Protocol, text)
            }
            Kind::Priority | Kind::Unknown(_) => Ok(()),
        }
    }

    /// A stream that lives; `None` for one that did.
    fn stream(&self, head: FrameHead) -> Read<Option<Rc<State>>> {
        let id = head.stream;
        if id == 0 || id.is_multiple_of(2) || id > self.link.last() {
            let data = if head.kind == Kind::Data { "data " } else { "" };
            let text = format!("upstream sent {data}frame for unknown stream {id}");
            return Broken::new(ErrorCode::Protocol, text);
        }
        let stream = self.link.stream(id);
        if let Some(stream) = &stream {
            stream.count(head.len);
        }
        Ok(stream)
    }
}

/// Answers.
impl Reader {
    fn data(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        let data = unpadded(head, payload)?;
        self.count(head.len)?;
        let Some(stream) = self.stream(head)? else { return Ok(()) };
        let credit = stream.credit();
        if head.len as i64 > credit {
            stream.fail(Ending::invalid(format!(
                "upstream violated stream flow control, received {} data frame with window {credit}",
                head.len
            )));
        } else if stream.has_ended() {
            stream.fail(closed(&stream));
        } else if !stream.has_head() {
            let text = "upstream sent unexpected http2 frame: 0";
            stream.fail(Ending::invalid(text));
        } else {
            self.is_answered();
            stream.take_data(data, head.len, head.has(frame::END_STREAM));
        }
        Ok(())
    }

    /// Bodies count for the connection, whoever reads them.
    fn count(&mut self, len: usize) -> Read {
        let window = self.window;
        let Some(left) = window.checked_sub(len as u32) else {
            return Broken::new(
                ErrorCode::FlowControl,
                format!(
                    "upstream violated connection flow control, received {len} data frame with \
                     window {window}"
                ),
            );
        };
        self.window = left;
        if left < frame::MAX_WINDOW / 4 {
            let by = frame::MAX_WINDOW - left;
            self.link.write(|out| frame::write_window_update(0, by, out));
            self.window = frame::MAX_WINDOW;
        }
        Ok(())
    }

    fn headers(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        let mut block = unpadded(head, payload)?;
        if head.has(frame::PRIORITY) {
            let Ok((_, rest)) = frame::dependency(block) else {
                let text = format!("upstream sent headers frame with invalid length: {}", head.len);
                return Broken::new(ErrorCode::FrameSize, text);
            };
            block = rest;
        }
        self.stream(head)?;
        let ended = head.has(frame::END_STREAM);
        if head.has(frame::END_HEADERS) {
            return self.whole_block(head.stream, ended, block);
        }
        let bytes = block.to_vec();
        self.block = Some(Block { stream: head.stream, ended, bytes, framed: head.len });
        Ok(())
    }

    fn continuation(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        let stream = self.stream(head)?;
        let Some(block) = &mut self.block else { return unexpected(head) };
        block.bytes.extend_from_slice(payload);
        block.framed += frame::HEAD + payload.len();
        // Nobody can take the fields in turn if they are not all looked at.
        if block.framed > BLOCK + stream.map_or(0, |stream| stream.room.head) {
            return Broken::new(ErrorCode::EnhanceYourCalm, "upstream sent too big header");
        }
        if head.has(frame::END_HEADERS)
            && let Some(block) = self.block.take()
        {
            return self.whole_block(block.stream, block.ended, &block.bytes);
        }
        Ok(())
    }

    fn whole_block(&mut self, id: u32, ended: bool, block: &[u8]) -> Read {
        self.is_answered();
        let stream = self.link.stream(id);
        let mut message = match &stream {
            Some(stream) if !stream.has_head() => Message::head(stream.room.head),
            _ => Message::trailers(),
        };
        let decoded = self.decoder.decode(block, FIELDS, |name, value| message.field(name, value));
        if let Err(error) = decoded {
            return Broken::new(ErrorCode::Compression, unreadable(error));
        }
        match stream {
            Some(stream) if stream.has_ended() => stream.fail(closed(&stream)),
            Some(stream) => stream.take_message(message, ended),
            None => {}
        }
        Ok(())
    }

    fn rst_stream(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        let Some(code) = frame::word(payload) else {
            return bad_length("rst stream", head);
        };
        if let Some(stream) = self.stream(head)? {
            stream.take_reset(code);
        }
        Ok(())
    }

    /// Something of an answer came.
    fn is_answered(&mut self) {
        (self.settings, self.pings) = (0, 0);
    }
}

/// Frames of the connection.
impl Reader {
    fn take_settings(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        of_connection("settings", head)?;
        if head.has(frame::ACK) {
            return if head.len == 0 {
                Ok(())
            } else {
                let text = "upstream sent settings frame with ack flag and non-zero length";
                Broken::new(ErrorCode::FrameSize, format!("{text}: {}", head.len))
            };
        }
        if !head.len.is_multiple_of(6) {
            return bad_length("settings", head);
        }
        self.settings += 1;
        if self.settings > IDLE_TALK {
            let text = "upstream sent too many settings frames";
            return Broken::new(ErrorCode::EnhanceYourCalm, text);
        }
        for setting in frame::settings(payload) {
            self.setting(setting)?;
        }
        self.link.write(frame::write_settings_ack);
        self.link.greeted();
        Ok(())
    }

    fn setting(&self, setting: Setting) -> Read {
        let link = &self.link;
        match setting {
            Setting::MaxConcurrentStreams(most) => link.set_most(most),
            Setting::HeaderTableSize(size) if size < USUAL_TABLE => link.change_table(),
            Setting::InitialWindowSize(size)
                if size > frame::MAX_WINDOW || !link.set_initial_window(size).is_empty() =>
            {
                let text = "upstream sent settings frame with too large initial window size";
                return Broken::new(ErrorCode::FlowControl, format!("{text}: {size}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn ping(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        of_connection("ping", head)?;
        if head.len != 8 {
            return bad_length("ping", head);
        }
        if head.has(frame::ACK) {
            let text = "upstream sent ping frame with ack flag";
            return Broken::new(ErrorCode::Protocol, text);
        }
        self.pings += 1;
        if self.pings > IDLE_TALK {
            let text = "upstream sent too many ping frames";
            return Broken::new(ErrorCode::EnhanceYourCalm, text);
        }
        self.link.write(|out| frame::write_pong(payload, out));
        Ok(())
    }

    fn goaway(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        of_connection("goaway", head)?;
        let words = payload.first_chunk::<8>().map(|&[a, b, c, d, e, f, g, h]| {
            (u32::from_be_bytes([a & 0x7f, b, c, d]), u32::from_be_bytes([e, f, g, h]))
        });
        let Some((last, code)) = words else { return bad_length("goaway", head) };
        let text = format!("upstream sent goaway with error {code}");
        self.link.refuse(last, &Ending::Said(text, Failure::Refused));
        Ok(())
    }

    fn window_update(&mut self, head: FrameHead, payload: &[u8]) -> Read {
        let Some(by) = frame::word(payload).map(|word| word & frame::MAX_WINDOW) else {
            return bad_length("window update", head);
        };
        const TOO_LARGE: &str = "upstream sent too large window update";
        if head.stream == 0 {
            return match by {
                0 => Broken::new(ErrorCode::Protocol, "upstream sent zero window update"),
                by if !self.link.extend(by) => Broken::new(ErrorCode::FlowControl, TOO_LARGE),
                _ => Ok(()),
            };
        }
        let Some(stream) = self.stream(head)? else { return Ok(()) };
        if by == 0 {
            stream.fail(Ending::invalid("upstream sent zero window update"));
        } else if !stream.way().extend(i64::from(by)) {
            stream.fail(Ending::invalid(TOO_LARGE));
        }
        Ok(())
    }
}

/// The table of fields that an end has unless it says otherwise.
const USUAL_TABLE: u32 = 4096;

fn closed(stream: &State) -> Ending {
    Ending::invalid(format!("upstream sent frame for closed stream {}", stream.id))
}

fn unexpected<T>(head: FrameHead) -> Read<T> {
    let kind = head.kind.byte();
    Broken::new(ErrorCode::Protocol, format!("upstream sent unexpected http2 frame: {kind}"))
}

fn bad_length<T>(what: &str, head: FrameHead) -> Read<T> {
    let text = format!("upstream sent {what} frame with invalid length: {}", head.len);
    Broken::new(ErrorCode::FrameSize, text)
}

fn of_connection(what: &str, head: FrameHead) -> Read {
    if head.stream == 0 {
        return Ok(());
    }
    let text = format!("upstream sent {what} frame with non-zero stream id: {}", head.stream);
    Broken::new(ErrorCode::Protocol, text)
}

fn unpadded(head: FrameHead, payload: &[u8]) -> Read<&[u8]> {
    frame::unpadded(head.flags, payload).or_else(|error| match error {
        SizeError::Short => {
            Broken::new(ErrorCode::FrameSize, "upstream sent too short http2 frame")
        }
        SizeError::Padding(padding) => Broken::new(
            ErrorCode::Protocol,
            format!(
                "upstream sent http2 frame with too long padding: {padding} in frame {}",
                head.len
            ),
        ),
    })
}
