//! The client's body: its framing, how much was read, and where it is (memory or a file).

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

/// The number of framing bytes that cost a point of the task's budget: heads and extensions of
/// chunks, trailers.
pub const FRAMING: usize = 16;

/// The state of the client's body, and the part that was kept.
#[derive(Default)]
pub struct Body {
    decoder: Option<BodyDecoder>,
    /// `Content-Length`, if it was given.
    pub length: Option<u64>,
    /// `Transfer-Encoding: chunked`
    pub chunked: bool,
    /// Whether a frame of its own ends the body, behind that of the head. The body may be empty.
    ends_apart: bool,
    /// Whether the client waits for `100 Continue`.
    pub expects_continue: bool,
    /// The offset of the unread bytes in the request's buffer.
    at: usize,
    /// Whether the last byte of the body was read.
    done: bool,
    /// The bytes read so far, without framing.
    pub received: u64,
    /// The whole body, once [`crate::request::Request::read_body`] has read it into memory.
    pub memory: Vec<Bytes>,
    /// The whole body in a file, if it was too large for memory or a file was requested.
    pub file: Option<BodyFile>,
    /// The part of an incomplete body, for `$request_body` alone. No handler gets it.
    pub part: Vec<u8>,
    /// The state of [`crate::request::Request::gather_now`] until the body is complete.
    gathering: Option<Box<gathering::Gathering>>,
    /// Whether [`crate::request::Request::read_body`] has completed.
    whole: bool,
    /// Whether the handler needs a file that it may keep.
    may_keep_file: bool,
    /// Whether the rest of the body is discarded.
    discarding: bool,
    /// Whether the connection broke inside the body, or is closed without waiting for the client.
    broken: bool,
    /// Whether the request was refused while the client is still sending.
    sends_on: bool,
    /// Whether the connection carries another protocol from here on.
    handed_over: bool,
    /// Whether the client has disconnected inside the body.
    left: bool,
    /// Whether a timeout for the body has expired.
    late: Cell<bool>,
    /// In a subrequest without the body: the length of its parent's body. It counts against
    /// `client_max_body_size` as well.
    outer: Option<u64>,
}

/// A body in a file.
#[derive(Clone)]
pub struct BodyFile {
    /// The file, which subrequests share.
    pub file: Rc<TempFile>,
    /// The body's length.
    pub len: u64,
}

/// `lingering_close`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Linger {
    /// Never lingers.
    Off,
    /// Lingers if the client may still be sending.
    #[default]
    On,
    /// Always lingers.
    Always,
}

impl Body {
    /// The state of a request without a body.
    pub fn none() -> Body {
        Body { done: true, whole: true, ..Body::default() }
    }

    /// The body for a subrequest: the whole body if it was read, otherwise none.
    pub fn for_subrequest(&self) -> Body {
        if !self.whole {
            return self.for_subrequest_without();
        }
        let (memory, file) = (self.memory.clone(), self.file.clone());
        // A request without a body has no `Content-Length`.
        let has = self.length.is_some() || self.chunked || self.received > 0;
        let length = has.then_some(self.received);
        Body { length, received: self.received, memory, file, ..Body::none() }
    }

    /// Whether the client has disconnected inside the body. It cannot receive an error page.
    pub fn is_left(&self) -> bool {
        self.left
    }

    /// Notes that a timeout for the body has expired.
    pub fn time_out(&self) {
        self.late.set(true);
    }

    /// Whether a timeout for the body has expired.
    pub fn is_late(&self) -> bool {
        self.late.get()
    }

    /// The empty body of a subrequest that does not get the body of this request.
    pub fn for_subrequest_without(&self) -> Body {
        Body { outer: self.size(), ..Body::none() }
    }

    /// The length of the body, if it is known and the body is not discarded.
    pub fn size(&self) -> Option<u64> {
        self.length.or(self.outer).filter(|_| !self.discarding)
    }

    /// Called when the head was parsed. The bytes from here on are the body or the next request.
    pub fn starts_at(&mut self, at: usize) {
        (self.at, self.done) = (at, true);
    }

    /// Refuses the head. With `linger`, everything behind it is discarded until the client stops,
    /// otherwise nothing is read. Handlers and error pages see no body.
    pub fn refused(&mut self, at: usize, linger: bool) {
        (self.at, self.done, self.broken) = (at, !linger, !linger);
        (self.discarding, self.whole) = (true, true);
    }

    /// Notes that a refused head had more bytes behind the error, so the client is still sending.
    pub fn note_bytes_behind_error(&mut self) {
        self.sends_on = true;
    }

    /// Refuses the meaning of a valid head. An announced body is still discarded. Any other bytes
    /// are not read.
    pub fn refuse_valid_head(&mut self) {
        self.broken = self.done;
    }

    /// Refuses a body that is too large or cannot be read whole. Handlers and error pages see no
    /// body, and the rest is discarded.
    pub fn refuse(&mut self) {
        (self.expects_continue, self.discarding) = (false, true);
        (self.length, self.whole) = (Some(0), true);
        self.memory.clear();
        self.file = None;
    }

    /// Whether the body was refused. Its length is then unknown.
    pub fn is_refused(&self) -> bool {
        self.whole && self.discarding
    }

    /// Prepares for a body in frames, whose end the stream reports. The reader checks the length.
    /// `drained`: no more bytes follow. `bare`: the frame of the head ended the stream.
    pub fn expect_frames(&mut self, drained: bool, bare: bool) {
        let done = drained && matches!(self.length, None | Some(0));
        (self.decoder, self.done) = (None, done);
        self.expects_continue &= !drained && !bare;
        self.ends_apart = !bare;
    }

    /// Whether a frame of its own ended the body. The same is then done to the upstream server:
    /// some gRPC servers do not take the end of the head's frame for the end of a call's messages.
    pub fn ends_apart(&self) -> bool {
        self.ends_apart
    }

    /// Prepares for a body with this framing.
    pub fn expect(&mut self, decoder: BodyDecoder) {
        (self.decoder, self.done) = (Some(decoder), false);
    }

    /// The end of this request in the buffer, as far as it was read.
    pub fn read_to(&self) -> usize {
        self.at
    }

    /// Whether all of the body was read.
    pub fn is_read(&self) -> bool {
        self.done
    }

    /// Has the body written to a file of any size that may be kept ([`TempFile::keep`]).
    pub fn keep_in_file(&mut self) {
        self.may_keep_file = true;
    }

    /// Whether the whole body is in memory or in a file.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether the client sent an empty body, and its end was read.
    pub fn was_read_empty(&self) -> bool {
        let announced = self.chunked || self.length.is_some();
        self.whole && announced && !self.discarding && self.received == 0 && self.file.is_none()
    }

    /// Whether a part of the body was read, and [`crate::request::Request::read_body`] reads the
    /// rest.
    pub fn is_half_read(&self) -> bool {
        self.gathering.is_some() && !self.whole
    }

    /// The length of the kept body.
    pub fn len(&self) -> u64 {
        match &self.file {
            Some(file) => file.len,
            None => self.memory.iter().map(|piece| piece.len() as u64).sum(),
        }
    }

    /// Whether all bytes that were read are still kept, so that they can be sent again.
    pub fn is_kept(&self) -> bool {
        self.len() == self.received
    }

    /// Whether a part of the body was sent to a server and not kept, so that no other server can
    /// get the request.
    pub fn is_spent(&self) -> bool {
        !self.whole && !self.is_kept()
    }

    /// Appends the whole body. It is kept for another attempt.
    pub fn append_to(&self, chain: &mut Chain) {
        match &self.file {
            Some(BodyFile { file, len }) => {
                chain.push(Segment::File { file: file.file.clone(), offset: 0, len: *len });
            }
            None => self.memory.iter().for_each(|piece| chain.push(piece.clone())),
        }
    }

    /// The head in front of the body has grown by this many bytes.
    pub fn shift(&mut self, by: usize) {
        self.at += by;
    }

    /// Replaces the body. It is whole then.
    pub fn replace(&mut self, bytes: Bytes) {
        (self.length, self.chunked, self.whole) = (Some(bytes.len() as u64), false, true);
        self.received = bytes.len() as u64;
        self.file = None;
        self.memory.clear();
        if !bytes.is_empty() {
            self.memory.push(bytes);
        }
    }

    /// Closes the connection without lingering, since the client did not send a valid request.
    pub fn never_linger(&mut self) {
        self.broken = true;
    }

    /// Whether the request was malformed, its body broke off, or its client took too long.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The connection carries another protocol from here on instead of a next request.
    pub fn hand_over(&mut self) {
        self.handed_over = true;
    }

    /// Whether unread bytes of the client are a reason to linger.
    pub fn lingers_for_unread(&self, linger: Linger) -> bool {
        linger != Linger::Off && !self.handed_over
    }

    /// Whether to linger before the connection is closed, if `read` bytes of the buffer were
    /// received. Bytes behind the request mean that the client is still sending.
    pub fn should_linger(&self, linger: Linger, read: usize) -> bool {
        match linger {
            Linger::Off => false,
            Linger::On => self.sends_on || self.at < read || !(self.done || self.broken),
            Linger::Always => true,
        }
    }
}
