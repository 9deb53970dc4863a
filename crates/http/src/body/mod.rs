//! The client's body: its framing, how much of it was read, and where the bytes are (memory or a file).

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use weir_engine::{Chain, Segment};
use weir_proto::http1::BodyDecoder;

use crate::files::temp_file::TempFile;

mod error;
mod gathering;
mod read;
mod whole;

pub use error::RequestBodyError;

/// So many bytes around a body's own cost a point: the heads of chunks, extensions, trailers.
pub const FRAMING: usize = 16;

/// How much of the client's body was read, and what was kept of it.
#[derive(Default)]
pub struct Body {
    decoder: Option<BodyDecoder>,
    /// `Content-Length`, if it was given.
    pub length: Option<u64>,
    /// `Transfer-Encoding: chunked`
    pub chunked: bool,
    /// It ends behind the head, in a frame of its own, even if it is empty.
    ends_apart: bool,
    /// The client waits for `100 Continue`.
    pub expects_continue: bool,
    /// Where in the request's buffer the unread bytes begin.
    at: usize,
    /// The last byte of it was read.
    done: bool,
    /// What was read so far, without framing.
    pub received: u64,
    /// The whole body, once [`crate::request::Request::read_body`] has read it into memory.
    pub memory: Vec<Bytes>,
    /// The same in a file, if it was too large or a file was asked for.
    pub file: Option<BodyFile>,
    /// What came of a body that broke off, for `$request_body` alone: no handler gets it.
    pub part: Vec<u8>,
    /// [`crate::request::Request::gather_now`] has begun to read it.
    gathering: Option<Box<gathering::Gathering>>,
    /// [`crate::request::Request::read_body`] has read it.
    whole: bool,
    /// The handler wants it as a file that it may keep.
    for_keeps: bool,
    /// What is read is thrown away.
    discarding: bool,
    /// The connection broke inside the body, or the client is not worth waiting for.
    broken: bool,
    /// The request was refused, and the client still sends.
    sends_on: bool,
    /// What follows is of another protocol.
    handed_over: bool,
    /// The client has left inside it.
    left: bool,
    /// The client took too long to send more of it.
    late: Cell<bool>,
    /// In a subrequest, how long the body is that the request has which it is made for: it counts as its own where
    /// one may not be too large.
    outer: Option<u64>,
}

/// A body in a file.
#[derive(Clone)]
pub struct BodyFile {
    /// The file; subrequests share it.
    pub file: Rc<TempFile>,
    /// The body's length.
    pub len: u64,
}

/// `lingering_close`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Linger {
    /// Never.
    Off,
    /// Where the client may still be sending.
    #[default]
    On,
    /// Always.
    Always,
}

impl Body {
    /// No body.
    pub fn none() -> Body {
        Body { done: true, whole: true, ..Body::default() }
    }

    /// The body as a subrequest sees it: all of it if it was read, and nothing more to come.
    pub fn for_subrequest(&self) -> Body {
        if !self.whole {
            return self.for_subrequest_without();
        }
        let (memory, file) = (self.memory.clone(), self.file.clone());
        // A request without a body has none to tell of.
        let has = self.length.is_some() || self.chunked || self.received > 0;
        let length = has.then_some(self.received);
        Body { length, received: self.received, memory, file, ..Body::none() }
    }

    /// The client has left inside it: no page reaches it.
    pub fn is_left(&self) -> bool {
        self.left
    }

    /// The client took too long to send more of it.
    pub fn time_out(&self) {
        self.late.set(true);
    }

    /// That was so.
    pub fn is_late(&self) -> bool {
        self.late.get()
    }

    /// No body for a subrequest of the request that has this one.
    pub fn for_subrequest_without(&self) -> Body {
        Body { outer: self.size(), ..Body::none() }
    }

    /// Its length, where that is known and the body is not thrown away.
    pub fn size(&self) -> Option<u64> {
        self.length.or(self.outer).filter(|_| !self.discarding)
    }

    /// The head ends here; what follows is the body, or the next request.
    pub fn starts_at(&mut self, at: usize) {
        (self.at, self.done) = (at, true);
    }

    /// The head was refused: nothing behind it is read, or all of it until the client stops. What answers, an error page too,
    /// finds no body.
    pub fn refused(&mut self, at: usize, linger: bool) {
        (self.at, self.done, self.broken) = (at, !linger, !linger);
        (self.discarding, self.whole) = (true, true);
    }

    /// The head was refused with bytes behind the fault: the client has more to send than was read.
    pub fn refused_amid(&mut self) {
        self.sends_on = true;
    }

    /// What the head means was refused. A body that it has announced still comes; what else follows is not looked at.
    pub fn refused_unread(&mut self) {
        self.broken = self.done;
    }

    /// It is larger than allowed, or cannot be had whole any more. What answers, an error page too, finds no body, and what still
    /// comes is thrown away.
    pub fn refuse(&mut self) {
        (self.expects_continue, self.discarding) = (false, true);
        (self.length, self.whole) = (Some(0), true);
        self.memory.clear();
        self.file = None;
    }

    /// It was refused: how long it would have been is not known.
    pub fn is_refused(&self) -> bool {
        self.whole && self.discarding
    }

    /// It comes by a stream of HTTP/2, which tells where it ends. A reader finds out whether it ended early.
    /// `drained`: nothing is left to come; `bare`: the frame of the head was the end.
    pub fn comes_by_stream(&mut self, drained: bool, bare: bool) {
        let done = drained && matches!(self.length, None | Some(0));
        (self.decoder, self.done) = (None, done);
        self.expects_continue &= !drained && !bare;
        self.ends_apart = !bare;
    }

    /// A stream of HTTP/2 ended it in a frame of its own. A server may wait for such a frame: some gRPC servers do not take
    /// the end of the head's frame for the end of a call's messages.
    pub fn ends_apart(&self) -> bool {
        self.ends_apart
    }

    /// A body of this framing follows.
    pub fn expect(&mut self, decoder: BodyDecoder) {
        (self.decoder, self.done) = (Some(decoder), false);
    }

    /// How many bytes of the request's buffer belong to this request.
    pub fn read_to(&self) -> usize {
        self.at
    }

    /// True when no byte of the body is left unread.
    pub fn is_read(&self) -> bool {
        self.done
    }

    /// The body is wanted as a file, however small, that may be kept ([`TempFile::keep`]).
    pub fn keep_in_file(&mut self) {
        self.for_keeps = true;
    }

    /// The whole body was read, and is in memory or in a file.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// The client has sent a body without a byte, and all of it was read.
    pub fn was_read_empty(&self) -> bool {
        let announced = self.chunked || self.length.is_some();
        self.whole && announced && !self.discarding && self.received == 0 && self.file.is_none()
    }

    /// A part of it was read that [`crate::request::Request::read_body`] adds the rest to.
    pub fn is_half_read(&self) -> bool {
        self.gathering.is_some() && !self.whole
    }

    /// The length of the whole body.
    pub fn len(&self) -> u64 {
        match &self.file {
            Some(file) => file.len,
            None => self.memory.iter().map(|piece| piece.len() as u64).sum(),
        }
    }

    /// All that was read of it is still there: what was sent of it can be sent again.
    pub fn is_kept(&self) -> bool {
        self.len() == self.received
    }

    /// A part of it was sent to a server as it came, and is gone: no other server can have it.
    pub fn is_spent(&self) -> bool {
        !self.whole && !self.is_kept()
    }

    /// Appends the whole body. It stays, too, for another attempt.
    pub fn append_to(&self, chain: &mut Chain) {
        match &self.file {
            Some(BodyFile { file, len }) => {
                chain.push(Segment::File { file: file.file.clone(), offset: 0, len: *len });
            }
            None => self.memory.iter().for_each(|piece| chain.push(piece.clone())),
        }
    }

    /// The head in front of the body has grown by this much.
    pub fn shift(&mut self, by: usize) {
        self.at += by;
    }

    /// Another body takes the place of the whole one that was read.
    pub fn replace(&mut self, bytes: Bytes) {
        (self.length, self.chunked) = (Some(bytes.len() as u64), false);
        self.received = bytes.len() as u64;
        self.file = None;
        self.memory.clear();
        if !bytes.is_empty() {
            self.memory.push(bytes);
        }
    }

    /// The client is not worth waiting for: its request was no request.
    pub fn never_linger(&mut self) {
        self.broken = true;
    }

    /// The request was none, its body broke off, or its client took too long.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// What follows on the connection is of another protocol, and no longer the client's next request.
    pub fn hand_over(&mut self) {
        self.handed_over = true;
    }

    /// Whether bytes that came unread are a reason to read on before closing.
    pub fn may_be_followed(&self, linger: Linger) -> bool {
        linger != Linger::Off && !self.handed_over
    }

    /// Whether to read on before closing, when `read` bytes of the connection were read: more than the request
    /// means that the client sends on.
    pub fn should_linger(&self, linger: Linger, read: usize) -> bool {
        match linger {
            Linger::Off => false,
            Linger::On => self.sends_on || self.at < read || !(self.done || self.broken),
            Linger::Always => true,
        }
    }
}
