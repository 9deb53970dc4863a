//! A request as a stream of its connection, as HTTP/2 has it: what a version of HTTP gives to the requests that it carries.
//!
//! HTTP/1 has no streams: its requests have the connection to themselves, one after another.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_engine::Chain;
use weir_http2::Pause;

/// The answer to `Expect: 100-continue`, in front of another answer.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A part of an answer on its way: the bytes that it took, and how it ended.
pub type Sending = Pin<Box<dyn Future<Output = (u64, io::Result<()>)>>>;

/// What waited of an answer and did not go out at once.
pub struct Unsent {
    pub(super) chain: Chain,
    /// It is the end of the answer.
    pub(super) ending: bool,
}

/// What a request came by. HTTP/1 until something else is said.
#[derive(Clone, Default)]
pub struct Carrier(Option<Rc<dyn RequestStream>>);

/// What a version of HTTP is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 and what is older.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3.
    Http3,
}

/// An answer before the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interim {
    /// 100: the client sends its body now.
    Continue,
    /// 103: what the answer's head will probably say.
    EarlyHints,
    /// Another one that a server has sent.
    Other(u16),
}

/// How far a body has come, where the carrier tells where it ends.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// The client has sent all of it.
    pub ended: bool,
    /// All of it was read, or it was given up.
    pub drained: bool,
    /// The client has given up the request.
    pub gone: bool,
}

/// A section of an answer that is made of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// An answer before the answer.
    Interim(Interim),
    /// The head, with its status.
    Head(u16),
    /// What follows the body.
    Trailers,
}

/// What follows a written head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Following {
    /// Nothing: the answer ends with it.
    Nothing,
    /// A body, or its first piece, of so many bytes: [`RequestStream::send_body`] is called next. The head may wait for it.
    Body(u64),
    /// Something, later: the head leaves now.
    Later,
}

/// Takes fields one after another: name and value.
pub type TakeField<'a> = &'a mut dyn FnMut(&[u8], &[u8]);

/// A stream of a connection, which carries one request and its answer. Nothing here waits: what may have to wait is a `poll_`
/// function, so that no send needs an allocation.
pub trait RequestStream {
    /// The version of HTTP.
    fn protocol(&self) -> Protocol;

    /// How far the body has come.
    fn arrival(&self) -> Arrival;

    /// Something is there to be received, or nothing more will come.
    fn has_incoming(&self) -> bool;

    /// All that came was read: the client may send on, `window` bytes at least.
    fn invite(&self, window: u64);

    /// Waits for something to be received.
    fn poll_incoming(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Receives what is there; 0 at the end.
    fn receive(&self, buf: &mut Vec<u8>) -> io::Result<usize>;

    /// Waits until the client gives the stream up, or the connection ends.
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// What the log is told of a client that has given the stream up.
    fn farewell(&self) -> Option<String> {
        None
    }

    /// The client took too long to send, or to take.
    fn time_out(&self);

    /// That was so.
    fn has_timed_out(&self) -> bool;

    /// The client gets no answer, by the configuration's wish (444).
    fn shut_out(&self);

    /// Appends a section as it goes over the connection; `fields` names its fields. Trailers end the stream.
    fn write(&self, section: Section, fields: &mut dyn FnMut(TakeField<'_>), out: &mut Vec<u8>);

    /// Sends a written head or interim answer.
    fn send_head(&self, written: &mut [u8], following: Following) -> io::Result<()>;

    /// Sends written trailers.
    fn send_trailers(&self, written: &[u8]) -> io::Result<()>;

    /// Bodies are sent in frames of at most so many bytes; none: of `http2_chunk_size`.
    fn chunk(&self) -> Option<usize> {
        None
    }

    /// Sends of a body what the client takes now, in frames of at most `chunk` bytes; `last` ends it.
    fn send_body(&self, chain: &mut Chain, last: bool, chunk: usize) -> io::Result<Pause>;

    /// Waits until more of a body can be sent, or none at all.
    fn poll_room(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()>;

    /// Bytes of the request that were understood, heads of frames and all. None where fields and bodies count alone.
    fn received(&self) -> Option<u64> {
        None
    }

    /// Bytes of bodies sent, heads of frames and all.
    fn sent(&self) -> u64;

    /// Bytes sent that are neither of the answer's head nor of its body: heads of frames, and trailers.
    fn framing(&self) -> u64;
}

impl Interim {
    /// Its status.
    pub fn status(self) -> u16 {
        match self {
            Interim::Continue => 100,
            Interim::EarlyHints => 103,
            Interim::Other(status) => status,
        }
    }
}

impl Carrier {
    /// A stream of its connection.
    pub fn of(stream: Rc<dyn RequestStream>) -> Carrier {
        Carrier(Some(stream))
    }

    /// The stream, if it is one.
    #[inline]
    pub fn stream(&self) -> Option<&Rc<dyn RequestStream>> {
        self.0.as_ref()
    }

    /// For variables that name the version. Decisions ask for what they depend on.
    pub fn protocol(&self) -> Protocol {
        self.stream().map_or(Protocol::Http1, |stream| stream.protocol())
    }

    /// Frames tell where a body ends, in both directions: it needs no chunks, trailers may follow it, and the connection goes
    /// on behind it.
    #[inline]
    pub fn has_frames(&self) -> bool {
        self.0.is_some()
    }

    /// The connection can go on with another protocol (101).
    pub fn can_upgrade(&self) -> bool {
        !self.has_frames()
    }

    /// Files are read before they are sent, rather than sent by the kernel or by the carrier: a stream reads them itself,
    /// as far as there is a window.
    pub fn needs_files_in_memory(&self, is_tls: bool) -> bool {
        !self.has_frames() && is_tls
    }

    /// How far the body has come. None where the body's own bytes tell.
    #[inline]
    pub fn arrival(&self) -> Option<Arrival> {
        self.stream().map(|stream| stream.arrival())
    }

    /// Bytes of the request that were understood, if more than fields and body count.
    pub fn received(&self) -> Option<u64> {
        self.stream().and_then(|stream| stream.received())
    }

    /// Bytes sent that belong neither to the answer's head nor to its body, in an answer without
    /// chunks.
    pub fn framing(&self) -> u64 {
        self.stream().map_or(0, |stream| stream.framing())
    }

    /// The client gets no answer, by the configuration's wish (444). Over HTTP/1 the connection closes without a word.
    pub fn shut_out(&self) {
        if let Some(stream) = self.stream() {
            stream.shut_out();
        }
    }

    /// What the log calls a field that was left out, and what it shows of it.
    pub fn dropped_field<'a>(&self, line: &'a [u8]) -> (&'static str, &'a [u8]) {
        match self.stream() {
            None => ("header line", line),
            Some(_) => ("header", line.split(|b| *b == b':').next().unwrap_or_default()),
        }
    }
}
