//! How a request comes and how its answer goes: one face for each version of HTTP.
//!
//! Everything above asks what a [`Carrier`] can do, never which version it is. Another version of HTTP is one more
//! variant here and one more file.

mod conn;
mod http1;
mod http2;

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use weir_engine::Chain;

use crate::http2::Stream;
use crate::request::Request;

pub use conn::{Conn, Resting, Secure, TIMED_OUT};
pub use http1::CONTINUE;

/// A part of an answer on its way: the bytes that it took, and how it ended.
pub type Sending = Pin<Box<dyn Future<Output = (u64, io::Result<()>)>>>;

/// What a request came by. HTTP/1 until something else is said.
#[derive(Clone, Default)]
pub struct Carrier(Kind);

#[derive(Clone, Default)]
enum Kind {
    /// The connection itself.
    #[default]
    Http1,
    /// A stream of the connection.
    Http2(Rc<Stream>),
}

/// What a version of HTTP is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 and what is older.
    Http1,
    /// HTTP/2.
    Http2,
}

/// An answer before the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interim {
    /// 100: the client sends its body now.
    Continue,
    /// 103: what the answer's head will probably say.
    EarlyHints,
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

impl Interim {
    /// Its status.
    pub fn status(self) -> u16 {
        match self {
            Interim::Continue => 100,
            Interim::EarlyHints => 103,
        }
    }
}

impl Carrier {
    /// A stream of HTTP/2.
    pub fn http2(stream: Rc<Stream>) -> Carrier {
        Carrier(Kind::Http2(stream))
    }

    /// For variables that name the version. Decisions ask for what they depend on.
    pub fn protocol(&self) -> Protocol {
        match &self.0 {
            Kind::Http1 => Protocol::Http1,
            Kind::Http2(_) => Protocol::Http2,
        }
    }

    /// Frames tell where a body ends, in both directions: it needs no chunks, trailers may follow it, and the connection goes
    /// on behind it.
    pub fn has_frames(&self) -> bool {
        match &self.0 {
            Kind::Http1 => false,
            Kind::Http2(_) => true,
        }
    }

    /// The connection can go on with another protocol (101).
    pub fn can_upgrade(&self) -> bool {
        !self.has_frames()
    }

    /// Files are read before they are sent, rather than sent by the kernel or by the carrier.
    pub fn needs_files_in_memory(&self, is_tls: bool, sendfile: bool) -> bool {
        match &self.0 {
            Kind::Http1 => is_tls || !sendfile,
            // The stream reads them itself, as far as there is a window.
            Kind::Http2(_) => false,
        }
    }

    /// How far the body has come. None where the body's own bytes tell.
    pub fn arrival(&self) -> Option<Arrival> {
        match &self.0 {
            Kind::Http1 => None,
            Kind::Http2(stream) => Some(Arrival {
                ended: stream.is_ended(),
                drained: stream.is_drained(),
                gone: stream.is_gone(),
            }),
        }
    }

    /// Bytes sent that belong neither to the answer's head nor to its body, in an answer without
    /// chunks.
    pub fn framing(&self) -> u64 {
        match &self.0 {
            Kind::Http1 => 0,
            Kind::Http2(stream) => stream.framing(),
        }
    }

    /// The client gets no answer, by the configuration's wish (444).
    pub fn shut_out(&self) {
        match &self.0 {
            // The connection closes without a word.
            Kind::Http1 => {}
            Kind::Http2(stream) => stream.shut_out(),
        }
    }

    /// What the log calls a field that was left out, and what it shows of it.
    pub fn dropped_field<'a>(&self, line: &'a [u8]) -> (&'static str, &'a [u8]) {
        match &self.0 {
            Kind::Http1 => ("header line", line),
            Kind::Http2(_) => ("header", line.split(|b| *b == b':').next().unwrap_or_default()),
        }
    }
}

/// What comes.
impl Request {
    /// Receives a piece of the body behind what is in the buffer; 0 where there is no more. `end` bounds a body that is
    /// thrown away.
    pub async fn receive_body(
        &self,
        buf: Vec<u8>,
        end: Option<Instant>,
    ) -> (io::Result<usize>, Vec<u8>) {
        match &self.carrier.0 {
            Kind::Http1 => http1::receive(self, buf, end).await,
            Kind::Http2(stream) => http2::receive(self, stream, buf).await,
        }
    }

    /// Waits until there may be more of the body, or its end.
    pub async fn body_readable(&self) {
        match &self.carrier.0 {
            Kind::Http1 => http1::readable(self).await,
            Kind::Http2(stream) => {
                let core = &self.conf().core;
                stream.readable(core.client_body_buffer_size, core.client_body_timeout).await;
            }
        }
    }

    /// The client took too long to send its body.
    pub fn body_timed_out(&self) {
        match &self.carrier.0 {
            Kind::Http1 => self.conn.timed_out(self.conf().core.reset_timedout_connection),
            // The end of the request resets the stream.
            Kind::Http2(_) => {}
        }
    }

    /// Waits until the client leaves: closes its connection, or gives the stream up. A client that never hears of
    /// the request does not leave it.
    pub async fn client_left(&self) {
        if self.is_unheard() {
            return std::future::pending().await;
        }
        match &self.carrier.0 {
            Kind::Http1 => http1::left(self).await,
            Kind::Http2(stream) => stream.gone().await,
        }
    }
}

/// What goes.
impl Request {
    /// Appends the head of the answer.
    pub fn write_head(&self, out: &mut Vec<u8>) {
        match &self.carrier.0 {
            Kind::Http1 => http1::write_head(self, out),
            Kind::Http2(stream) => http2::write_head(self, stream, out),
        }
    }

    /// Sends all that waits of the answer.
    pub async fn send_waiting(&mut self) -> io::Result<()> {
        match &self.carrier.0 {
            Kind::Http1 => http1::send_waiting(self).await,
            Kind::Http2(stream) => {
                let stream = stream.clone();
                http2::send_waiting(self, &stream).await
            }
        }
    }

    /// Sends a head before its body comes, where the head need not wait for company.
    pub fn send_head_ahead(&mut self) -> io::Result<()> {
        match &self.carrier.0 {
            Kind::Http2(stream) if self.is_main() => {
                let stream = stream.clone();
                http2::send_head_ahead(self, &stream)
            }
            _ => Ok(()),
        }
    }

    /// Takes what waits of an answer that is not at its end. Polling the answer sends it, without the request.
    pub fn send_held(&mut self) -> Option<Sending> {
        match &self.carrier.0 {
            Kind::Http1 => http1::send_held(self),
            Kind::Http2(stream) => {
                let stream = stream.clone();
                http2::send_held(self, stream)
            }
        }
    }

    /// Sends a part of what waits, at once: for `limit_rate`.
    pub async fn send_part(&mut self, part: &mut Chain) -> io::Result<()> {
        match &self.carrier.0 {
            Kind::Http1 => http1::send_part(self, part).await,
            Kind::Http2(stream) => {
                let stream = stream.clone();
                http2::send_body(self, &stream, part, false).await
            }
        }
    }

    /// Sends an interim answer. Returns the number of its bytes, and how it ended.
    pub async fn send_interim<'a>(
        &self,
        what: Interim,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> (u64, io::Result<()>) {
        match &self.carrier.0 {
            Kind::Http1 => http1::send_interim(self, what, fields).await,
            Kind::Http2(stream) => match stream.send_interim(what.status(), fields) {
                Ok(sent) => (sent, Ok(())),
                Err(error) => (0, Err(error)),
            },
        }
    }

    /// From now on the client has to read within `send_timeout`.
    pub fn expect_reading(&self) {
        match &self.carrier.0 {
            Kind::Http1 => http1::expect_reading(self),
            // Each send has its own deadline.
            Kind::Http2(_) => {}
        }
    }
}
