//! Fuzz target: frames of any peer.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use weir_engine::{Handle, Loop, Options};
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, Setting};
use weir_proto::http2::hpack::{BlockError, Decoder, FieldLimits};

use super::*;

/// Streams up to this ID are open, and those above are idle.
const LAST: u32 = 5;
const PREFACE: &[u8] = b"GO";
const MOST: usize = 40;

pub(super) struct FuzzStream {
    pub(super) id: u32,
    pub(super) link: Rc<Link<FuzzStream>>,
    pub(super) send_window: SendWindow,
}

impl Stream for FuzzStream {
    fn id(&self) -> u32 {
        self.id
    }

    fn link(&self) -> &Link<FuzzStream> {
        &self.link
    }

    fn send_window(&self) -> &SendWindow {
        &self.send_window
    }

    fn check(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The calls of the handler.
#[derive(Debug, Default, PartialEq, Eq)]
struct FuzzRecord {
    bodies: BTreeMap<u32, (Vec<u8>, usize, bool)>,
    calls: Vec<String>,
}

struct FuzzHandler {
    link: Rc<Link<FuzzStream>>,
    record: RefCell<FuzzRecord>,
}

impl FuzzHandler {
    fn note(&self, what: String) {
        self.record.borrow_mut().calls.push(what);
    }
}

impl FrameHandler for FuzzHandler {
    type Stream = FuzzStream;
    type Block = ();
    const PREFACE: &'static [u8] = PREFACE;
    const LARGEST: usize = 1 << 20;

    fn link(&self) -> &Link<FuzzStream> {
        &self.link
    }

    fn connection_error(&self, head: FrameHead, fault: FrameFault) -> ConnectionError {
        ConnectionError {
            code: ErrorCode::Protocol,
            text: format!("{head:?} {fault:?}"),
            stream: None,
        }
    }

    fn stream(&self, head: FrameHead) -> ReadResult<Option<Rc<FuzzStream>>> {
        if head.stream == 0 || head.stream > LAST {
            return ConnectionError::new(ErrorCode::Protocol, "idle");
        }
        Ok(self.link.stream(head.stream))
    }

    fn data(&mut self, head: FrameHead, _len: usize) -> ReadResult<bool> {
        Ok(self.stream(head)?.is_some())
    }

    fn piece(&mut self, piece: BodyPiece<'_>) {
        let mut record = self.record.borrow_mut();
        let (body, framed, ended) = record.bodies.entry(piece.stream).or_default();
        body.extend_from_slice(piece.data);
        *framed += piece.framed;
        *ended |= piece.last;
    }

    fn head(&mut self, head: FrameHead, depends_on: Option<u32>) -> ReadResult {
        self.note(format!("{head:?} {depends_on:?}"));
        Ok(())
    }

    fn block_limit(&self, _stream: u32) -> usize {
        MOST
    }

    fn fields(
        &mut self,
        block: Block<()>,
        bytes: &[u8],
        decoder: &mut Decoder,
    ) -> Result<(), BlockError> {
        assert!(bytes.len() <= MOST);
        self.note(format!("{block:?}"));
        let limits = FieldLimits { field: 100, block: 1000 };
        decoder.decode(bytes, limits, |name, value| self.note(format!("{name:?}: {value:?}")))
    }

    fn reset(&mut self, head: FrameHead, code: u32) -> ReadResult {
        self.note(format!("reset {} {code}", head.stream));
        Ok(())
    }

    fn setting(&mut self, setting: Setting) -> ReadResult {
        self.note(format!("{setting:?}"));
        Ok(())
    }

    fn settings_done(&mut self, acknowledged: bool) {
        self.note(format!("settings_done {acknowledged}"));
    }

    fn invalid_window(
        &mut self,
        head: FrameHead,
        stream: Option<&FuzzStream>,
        by: u32,
    ) -> ReadResult {
        let id = stream.map(|stream| stream.id);
        ConnectionError::new(ErrorCode::FlowControl, format!("{head:?} {id:?} {by}"))
    }

    fn goaway(&mut self, last: u32, code: u32) {
        self.note(format!("goaway {last} {code}"));
    }
}

/// Reads `input` in pieces of so many bytes. Returns the handler's record, and the frames for the peer.
fn read_in_pieces(
    handle: &Handle,
    input: &[u8],
    piece: usize,
) -> (FuzzRecord, Option<String>, Option<Vec<u8>>) {
    let link = Rc::new(Link::new(handle.clone(), PeerState::default(), frame::MAX_PAYLOAD));
    for id in [1, 3] {
        link.add(Rc::new(FuzzStream {
            id,
            link: link.clone(),
            send_window: SendWindow::new(10, false),
        }));
    }
    let listener = FuzzHandler { link: link.clone(), record: RefCell::default() };
    let mut frames = Frames::new(listener, ReaderHistory::nothing(Decoder::default()));
    let (mut unread, mut broken) = (PREFACE.to_vec(), None);
    for piece in input.chunks(piece) {
        unread.extend_from_slice(piece);
        match frames.read(&unread) {
            Ok(read) => drop(unread.drain(..read)),
            Err(why) => {
                broken = Some(why.text);
                break;
            }
        }
        // The parser leaves only a frame header, or a frame that it reads in one piece.
        assert!(unread.len() < frame::HEAD + frame::MAX_PAYLOAD);
        assert!(!frames.has_backlog());
    }
    for id in [1, 3] {
        link.remove(id);
    }
    let (listener, _) = frames.into_parts();
    (listener.record.take(), broken, link.out.take().memory().map(<[u8]>::to_vec))
}

#[test]
fn frames() {
    let own = Loop::new(&Options::default()).unwrap();
    // An input leaves only buffers in the loop, which do not affect the next.
    let handle = AssertUnwindSafe(own.handle());
    bolero::check!().for_each(|input: &[u8]| {
        let whole = read_in_pieces(&handle, input, usize::MAX);
        let (left, right) = (read_in_pieces(&handle, input, 1), read_in_pieces(&handle, input, 7));
        for pieces in [left, right] {
            assert_eq!(pieces.1, whole.1);
            assert_eq!((pieces.0.calls, pieces.2), (whole.0.calls.clone(), whole.2.clone()));
            assert_eq!(pieces.0.bodies, whole.0.bodies);
        }
    });
}
