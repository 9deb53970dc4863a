//! Handles the frames of a server.

use std::rc::Rc;

use weir_http2::{Block, BodyPiece, ConnectionError, FrameFault, FrameHandler, ReadResult};
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};
use weir_proto::http2::hpack::{BlockError, Decoder, FieldLimits};
use weir_upstream::Failure;

use super::ending::Ending;
use super::link::Link;
use super::message::{Message, unreadable};
use super::stream::StreamState;

/// The most bytes of one field block, beyond the room for a head.
const BLOCK: usize = 64 * 1024;
/// The limit for a name or value, for all requests.
const FIELDS: FieldLimits = FieldLimits { field: 1 << 20, block: usize::MAX };
/// The most SETTINGS frames, and the most PINGs, without any progress of an answer or of sending
/// between them.
const IDLE_TALK: u32 = 1000;

/// The handler of a server's frames.
pub struct ServerFrameReader {
    link: Rc<Link>,
    /// SETTINGS and PINGs since the last progress.
    settings: u32,
    pings: u32,
}

impl ServerFrameReader {
    /// For a new connection.
    pub fn new(link: Rc<Link>) -> ServerFrameReader {
        ServerFrameReader { link, settings: 0, pings: 0 }
    }

    /// Notes progress: part of an answer was received, or the server accepted data. A server may
    /// send PINGs as long as a request lasts.
    pub fn is_of_use(&mut self) {
        (self.settings, self.pings) = (0, 0);
    }
}

impl FrameHandler for ServerFrameReader {
    type Stream = StreamState;
    type Block = ();
    const PREFACE: &'static [u8] = b"";
    const LARGEST: usize = frame::MAX_PAYLOAD;

    fn link(&self) -> &weir_http2::Link<StreamState> {
        &self.link
    }

    fn connection_error(&self, head: FrameHead, fault: FrameFault) -> ConnectionError {
        connection_error(head, fault)
    }

    fn frame_begins(&mut self, head: FrameHead) {
        self.link.hear();
        // SETTINGS must be a server's first frame. A server that begins with another frame has
        // none.
        if head.kind != FrameType::Settings {
            self.link.greeted();
        }
        if head.kind == FrameType::Continuation
            && let Some(stream) = self.link.stream(head.stream)
        {
            stream.count(head.len);
        }
    }

    fn stream(&self, head: FrameHead) -> ReadResult<Option<Rc<StreamState>>> {
        let id = head.stream;
        if id == 0 || id.is_multiple_of(2) || id > self.link.last() {
            let data = if head.kind == FrameType::Data { "data " } else { "" };
            let text = format!("upstream sent {data}frame for unknown stream {id}");
            return ConnectionError::new(ErrorCode::Protocol, text);
        }
        let stream = self.link.stream(id);
        if let Some(stream) = &stream {
            stream.count(head.len);
        }
        Ok(stream)
    }

    fn data(&mut self, head: FrameHead, _len: usize) -> ReadResult<bool> {
        let Some(stream) = self.stream(head)? else { return Ok(false) };
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
            self.is_of_use();
            return Ok(true);
        }
        Ok(false)
    }

    fn piece(&mut self, piece: BodyPiece<'_>) {
        if let Some(stream) = self.link.stream(piece.stream) {
            stream.take_data(piece.data, piece.framed, piece.last);
        }
    }

    fn head(&mut self, head: FrameHead, _depends_on: Option<u32>) -> ReadResult {
        self.stream(head).map(|_| ())
    }

    fn block_limit(&self, stream: u32) -> usize {
        // Blocks of removed streams must be decoded, too, since decoding changes the dynamic table.
        BLOCK + self.link.stream(stream).map_or(0, |stream| stream.room.head)
    }

    fn fields(
        &mut self,
        block: Block<()>,
        bytes: &[u8],
        decoder: &mut Decoder,
    ) -> Result<(), BlockError> {
        self.is_of_use();
        let stream = self.link.stream(block.stream);
        let mut message = match &stream {
            Some(stream) if !stream.has_head() => Message::head(stream.room.head),
            stream => Message::trailers(stream.as_ref().map_or(0, |stream| stream.room.head)),
        };
        decoder.decode(bytes, FIELDS, |name, value| message.field(name, value))?;
        match stream {
            Some(stream) if stream.has_ended() => stream.fail(closed(&stream)),
            Some(stream) => stream.take_message(message, block.last),
            None => {}
        }
        Ok(())
    }

    fn reset(&mut self, head: FrameHead, code: u32) -> ReadResult {
        if let Some(stream) = self.stream(head)? {
            stream.take_reset(code);
        }
        Ok(())
    }

    fn control_frame(&mut self, head: FrameHead) -> ReadResult {
        if head.kind == FrameType::Ping && head.has(frame::ACK) {
            let text = "upstream sent ping frame with ack flag";
            return ConnectionError::new(ErrorCode::Protocol, text);
        }
        let said = if head.kind == FrameType::Ping { &mut self.pings } else { &mut self.settings };
        *said += 1;
        if *said > IDLE_TALK {
            let text = format!("upstream sent too many {} frames", name(head.kind));
            return ConnectionError::new(ErrorCode::EnhanceYourCalm, text);
        }
        Ok(())
    }

    fn setting(&mut self, setting: Setting) -> ReadResult {
        match setting {
            Setting::MaxConcurrentStreams(most) => self.link.set_most(most),
            Setting::HeaderTableSize(size) => self.link.set_table_size(size),
            Setting::MaxFrameSize(size) if !(16_384..1 << 24).contains(&size) => {
                let text = "upstream sent settings frame with incorrect max frame size";
                return ConnectionError::new(ErrorCode::Protocol, format!("{text}: {size}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn settings_done(&mut self, acknowledged: bool) {
        if !acknowledged {
            self.link.greeted();
        }
    }

    fn invalid_window(
        &mut self,
        head: FrameHead,
        stream: Option<&StreamState>,
        by: u32,
    ) -> ReadResult {
        const TOO_LARGE: &str = "upstream sent too large window update";
        const ZERO: &str = "upstream sent zero window update";
        let text = if by == 0 { ZERO } else { TOO_LARGE };
        match stream {
            _ if head.kind == FrameType::Settings => {
                let text = "upstream sent settings frame with too large initial window size";
                ConnectionError::new(ErrorCode::FlowControl, format!("{text}: {by}"))
            }
            Some(stream) => {
                stream.fail(Ending::invalid(text));
                Ok(())
            }
            // The stream has ended.
            None if head.stream != 0 => Ok(()),
            None if by == 0 => ConnectionError::new(ErrorCode::Protocol, text),
            None => ConnectionError::new(ErrorCode::FlowControl, text),
        }
    }

    fn goaway(&mut self, last: u32, code: u32) {
        let text = format!("upstream sent goaway with error {code}");
        self.link.refuse(last, &Ending::Said(text, Failure::Refused));
    }
}

fn closed(stream: &StreamState) -> Ending {
    Ending::invalid(format!("upstream sent frame for closed stream {}", stream.id))
}

/// The connection error for an invalid frame, in nginx's words.
fn connection_error(head: FrameHead, fault: FrameFault) -> ConnectionError {
    let (name, len, id) = (name(head.kind), head.len, head.stream);
    let (code, what) = match fault {
        FrameFault::Large => (ErrorCode::FrameSize, format!("too large http2 frame: {len}")),
        FrameFault::Length
            if len == 0 && matches!(head.kind, FrameType::Data | FrameType::Headers) =>
        {
            (ErrorCode::FrameSize, "too short http2 frame".to_owned())
        }
        FrameFault::Length => {
            (ErrorCode::FrameSize, format!("{name} frame with invalid length: {len}"))
        }
        FrameFault::Acknowledgement => {
            let text = format!("{name} frame with ack flag and non-zero length: {len}");
            (ErrorCode::FrameSize, text)
        }
        FrameFault::Padding(padding) => {
            // The length without the padding length byte.
            let rest = len.saturating_sub(1);
            let text = format!("http2 frame with too long padding: {padding} in frame {rest}");
            (ErrorCode::Protocol, text)
        }
        FrameFault::Stream => {
            (ErrorCode::Protocol, format!("{name} frame with non-zero stream id: {id}"))
        }
        FrameFault::Unexpected(_) => {
            (ErrorCode::Protocol, format!("unexpected http2 frame: {}", head.kind.byte()))
        }
        FrameFault::Push => (ErrorCode::Protocol, format!("unexpected {name} frame")),
        FrameFault::Block => (ErrorCode::EnhanceYourCalm, "too big header".to_owned()),
        FrameFault::Fields(error) => (ErrorCode::Compression, unreadable(error)),
        FrameFault::Window(window) => {
            let text = "upstream violated connection flow control, received";
            let text = format!("{text} {len} {name} frame with window {window}");
            return ConnectionError { code: ErrorCode::FlowControl, text, stream: None };
        }
    };
    ConnectionError { code, text: format!("upstream sent {what}"), stream: None }
}

fn name(kind: FrameType) -> &'static str {
    match kind {
        FrameType::Data => "data",
        FrameType::Headers => "headers",
        FrameType::Priority => "priority",
        FrameType::RstStream => "rst stream",
        FrameType::Settings => "settings",
        FrameType::PushPromise => "push promise",
        FrameType::Ping => "ping",
        FrameType::Goaway => "goaway",
        FrameType::WindowUpdate => "window update",
        FrameType::Continuation => "continuation",
        FrameType::Unknown(_) => "unknown",
    }
}
