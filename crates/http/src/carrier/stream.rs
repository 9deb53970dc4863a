//! The interface of a stream: what HTTP/2 and HTTP/3 offer to the requests that they carry.
//!
//! HTTP/1 has no streams. Its requests use the connection one after another.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_engine::Chain;
use weir_http2::Pause;

/// The answer to `Expect: 100-continue`, in front of another answer.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Sends a part of an answer. Returns the number of bytes sent and the result.
pub type Sending = Pin<Box<dyn Future<Output = (u64, io::Result<()>)>>>;

/// The pending part of an answer that could not be sent at once.
pub struct Unsent {
    pub(super) chain: Chain,
    /// It is the end of the answer.
    pub(super) ending: bool,
}

/// How a request came. The default is HTTP/1.
#[derive(Clone, Default)]
pub struct Carrier(Option<Rc<dyn RequestStream>>);

/// A version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 and older versions.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3.
    Http3,
}

/// An interim answer (1xx).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interim {
    /// 100: the client may send its body.
    Continue,
    /// 103: fields that the answer's head will probably have.
    EarlyHints,
    /// Another interim answer from a server behind.
    Other(u16),
}

/// How much of a body has arrived, where frames show its end.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// The client has sent all of it.
    pub ended: bool,
    /// All of it was read, or the request has abandoned it.
    pub drained: bool,
    /// The client has reset the stream, or the connection is gone.
    pub gone: bool,
}

/// A field section of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// An interim answer (1xx).
    Interim(Interim),
    /// The head, with its status.
    Head(u16),
    /// Trailers.
    Trailers,
}

/// What follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Following {
    /// Nothing: the answer ends with it.
    Nothing,
    /// A body, or its first piece, of so many bytes. [`RequestStream::send_body`] is called next, and the head may wait for it.
    Body(u64),
    /// Something later. The head is sent now.
    Later,
}

/// Takes the fields one by one, each by name and value.
pub type TakeField<'a> = &'a mut dyn FnMut(&[u8], &[u8]);

/// A stream of a connection, which carries one request and its answer. No method waits. Those whose caller may have to wait
/// are `poll_` functions, so that no send needs an allocation.
pub trait RequestStream {
    /// The version of HTTP.
    fn protocol(&self) -> Protocol;

    /// How much of the body has arrived.
    fn arrival(&self) -> Arrival;

    /// Whether something can be received, or the end has come.
    fn has_incoming(&self) -> bool;

    /// Opens the stream's flow-control window to at least `window` bytes, since all that came was read.
    fn invite(&self, window: u64);

    /// Waits until something can be received.
    fn poll_incoming(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Receives what has arrived. Returns 0 at the end.
    fn receive(&self, buf: &mut Vec<u8>) -> io::Result<usize>;

    /// Waits until the client resets the stream, or the connection ends.
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

    /// The most bytes of a body's frame. None: `http2_chunk_size`.
    fn chunk(&self) -> Option<usize> {
        None
    }

    /// Sends as much of a body as flow control allows now, in frames of at most `chunk` bytes. `last` ends the body.
    fn send_body(&self, chain: &mut Chain, last: bool, chunk: usize) -> io::Result<Pause>;

    /// Waits until more of a body can be sent, or the stream is gone.
    fn poll_room(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()>;

    /// The bytes of the request that were parsed, frame headers included. None if only fields and body count.
    fn received(&self) -> Option<u64> {
        None
    }

    /// The bytes of the body that were sent, frame headers included.
    fn sent(&self) -> u64;

    /// The bytes sent that belong neither to the answer's head nor to its body: frame headers and trailers.
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
    /// A carrier over this stream.
    pub fn of(stream: Rc<dyn RequestStream>) -> Carrier {
        Carrier(Some(stream))
    }

    /// The stream, if it is one.
    #[inline]
    pub fn stream(&self) -> Option<&Rc<dyn RequestStream>> {
        self.0.as_ref()
    }

    /// The version, for variables. Decisions ask the other methods, and not this one.
    pub fn protocol(&self) -> Protocol {
        self.stream().map_or(Protocol::Http1, |stream| stream.protocol())
    }

    /// Whether frames show the end of a body, in both directions. Then it needs no chunked encoding, trailers may follow it, and
    /// the connection is usable afterwards.
    #[inline]
    pub fn has_frames(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the connection can switch to another protocol (101).
    pub fn can_upgrade(&self) -> bool {
        !self.has_frames()
    }

    /// Whether files must be read into memory before they are sent. Without TLS the kernel sends them, and a stream reads them
    /// itself as far as flow control allows.
    pub fn needs_files_in_memory(&self, is_tls: bool) -> bool {
        !self.has_frames() && is_tls
    }

    /// How much of the body has arrived. None if the body's own bytes show its end.
    #[inline]
    pub fn arrival(&self) -> Option<Arrival> {
        self.stream().map(|stream| stream.arrival())
    }

    /// The bytes of the request that were parsed, if more than fields and body count.
    pub fn received(&self) -> Option<u64> {
        self.stream().and_then(|stream| stream.received())
    }

    /// The bytes sent that belong neither to the answer's head nor to its body, in an answer without chunked encoding.
    pub fn framing(&self) -> u64 {
        self.stream().map_or(0, |stream| stream.framing())
    }

    /// The client gets no answer (444). Over HTTP/1 the connection just closes.
    pub fn shut_out(&self) {
        if let Some(stream) = self.stream() {
            stream.shut_out();
        }
    }

    /// The log's word for a field that was dropped, and the part of it that the log shows.
    pub fn dropped_field<'a>(&self, line: &'a [u8]) -> (&'static str, &'a [u8]) {
        match self.stream() {
            None => ("header line", line),
            Some(_) => ("header", line.split(|b| *b == b':').next().unwrap_or_default()),
        }
    }
}
