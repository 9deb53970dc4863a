//! Frames of any peer.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use weir_engine::{Handle, Loop, Options};
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, Setting};
use weir_proto::http2::hpack::{BlockError, Decoder, FieldLimits};

use super::*;

/// Streams up to this one live, and those above have not been asked for.
const LAST: u32 = 5;
const PREFACE: &[u8] = b"GO";
const MOST: usize = 40;

struct FuzzStream {
    id: u32,
    link: Rc<Link<FuzzStream>>,
    way: SendWindow,
}

impl Stream for FuzzStream {
    fn id(&self) -> u32 {
        self.id
    }

    fn link(&self) -> &Link<FuzzStream> {
        &self.link
    }

    fn way(&self) -> &SendWindow {
        &self.way
    }

    fn check(&self) -> io::Result<()> {
        Ok(())
    }
}

/// What came of the frames.
#[derive(Debug, Default, PartialEq, Eq)]
struct FuzzRecord {
    bodies: BTreeMap<u32, (Vec<u8>, usize, bool)>,
    said: Vec<String>,
}

struct FuzzHandler {
    link: Rc<Link<FuzzStream>>,
    heard: RefCell<FuzzRecord>,
}

impl FuzzHandler {
    fn say(&self, what: String) {
        self.heard.borrow_mut().said.push(what);
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

    fn wrong(&self, head: FrameHead, wrong: Wrong) -> Broken {
        Broken { code: ErrorCode::Protocol, text: format!("{head:?} {wrong:?}"), stream: None }
    }

    fn stream(&self, head: FrameHead) -> ReadResult<Option<Rc<FuzzStream>>> {
        if head.stream == 0 || head.stream > LAST {
            return Broken::new(ErrorCode::Protocol, "idle");
        }
        Ok(self.link.stream(head.stream))
    }

    fn data(&mut self, head: FrameHead, _len: usize) -> ReadResult<bool> {
        Ok(self.stream(head)?.is_some())
    }

    fn piece(&mut self, piece: BodyPiece<'_>) {
        let mut heard = self.heard.borrow_mut();
        let (body, framed, ended) = heard.bodies.entry(piece.stream).or_default();
        body.extend_from_slice(piece.data);
        *framed += piece.framed;
        *ended |= piece.last;
    }

    fn head(&mut self, head: FrameHead, depends_on: Option<u32>) -> ReadResult {
        self.say(format!("{head:?} {depends_on:?}"));
        Ok(())
    }

    fn most(&self, _stream: u32) -> usize {
        MOST
    }

    fn fields(
        &mut self,
        block: Block<()>,
        bytes: &[u8],
        decoder: &mut Decoder,
    ) -> Result<(), BlockError> {
        assert!(bytes.len() <= MOST);
        self.say(format!("{block:?}"));
        let limits = FieldLimits { field: 100, block: 1000 };
        decoder.decode(bytes, limits, |name, value| self.say(format!("{name:?}: {value:?}")))
    }

    fn reset(&mut self, head: FrameHead, code: u32) -> ReadResult {
        self.say(format!("reset {} {code}", head.stream));
        Ok(())
    }

    fn setting(&mut self, setting: Setting) -> ReadResult {
        self.say(format!("{setting:?}"));
        Ok(())
    }

    fn settled(&mut self, acknowledged: bool) {
        self.say(format!("settled {acknowledged}"));
    }

    fn misfits(&mut self, head: FrameHead, stream: Option<&FuzzStream>, by: u32) -> ReadResult {
        let id = stream.map(|stream| stream.id);
        Broken::new(ErrorCode::FlowControl, format!("{head:?} {id:?} {by}"))
    }

    fn goaway(&mut self, last: u32, code: u32) {
        self.say(format!("goaway {last} {code}"));
    }
}

/// What comes of `input` if it comes in pieces of so many bytes; and what is said to the other end.
fn heard(
    handle: &Handle,
    input: &[u8],
    piece: usize,
) -> (FuzzRecord, Option<String>, Option<Vec<u8>>) {
    let link = Rc::new(Link::new(handle.clone(), PeerState::default(), frame::MAX_PAYLOAD));
    for id in [1, 3] {
        link.add(Rc::new(FuzzStream { id, link: link.clone(), way: SendWindow::new(10, false) }));
    }
    let listener = FuzzHandler { link: link.clone(), heard: RefCell::default() };
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
        // Nothing is kept but a head, or a frame that is read in whole.
        assert!(unread.len() < frame::HEAD + frame::MAX_PAYLOAD);
        assert!(!frames.is_behind());
    }
    for id in [1, 3] {
        link.remove(id);
    }
    let (listener, _) = frames.into_parts();
    (listener.heard.take(), broken, link.out.take().memory().map(<[u8]>::to_vec))
}

#[test]
fn frames() {
    let own = Loop::new(&Options::default()).unwrap();
    // What one input leaves in the loop is of no matter to the next: buffers.
    let handle = AssertUnwindSafe(own.handle());
    bolero::check!().for_each(|input: &[u8]| {
        let whole = heard(&handle, input, usize::MAX);
        let (left, right) = (heard(&handle, input, 1), heard(&handle, input, 7));
        for pieces in [left, right] {
            assert_eq!(pieces.1, whole.1);
            assert_eq!((pieces.0.said, pieces.2), (whole.0.said.clone(), whole.2.clone()));
            assert_eq!(pieces.0.bodies, whole.0.bodies);
        }
    });
}
