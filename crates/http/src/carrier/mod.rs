//! How a request is received and its answer is sent: on an HTTP/1 connection, or on a stream of HTTP/2 or HTTP/3.
//!
//! All code above asks what a [`Carrier`] can do, and never which version it is. A further version of HTTP with streams only
//! needs a [`RequestStream`]: `framed` serves all of them.

mod conn;
mod framed;
mod http1;
mod stream;

use std::future::poll_fn;
use std::io;
use std::time::{Duration, Instant};

use weir_engine::{Chain, Either, either};
use weir_log::Level;

use crate::request::Request;

pub use conn::{Conn, LEFT, Resting, Secure, TIMED_OUT};
pub use stream::{
    Arrival, CONTINUE, Carrier, Following, Interim, Protocol, RequestStream, Section, Sending,
    TakeField, Unsent,
};

/// Receiving.
impl Request {
    /// Receives a piece of the body, behind the contents of the buffer. Returns 0 at the end. `end` is the deadline of a body
    /// that is discarded. The head stays in the buffer meanwhile, since the log needs it if the request ends here.
    pub async fn receive_body(&mut self, end: Option<Instant>) -> io::Result<usize> {
        match self.carrier.stream().cloned() {
            None => http1::receive(self, end).await,
            Some(stream) => framed::receive(self, &stream).await,
        }
    }

    /// Waits until there may be more of the body, or its end.
    pub async fn body_readable(&self) {
        match self.carrier.stream() {
            None => http1::readable(self).await,
            Some(stream) => framed::readable(self, stream).await,
        }
    }

    /// Marks the body as timed out. The next read returns that error.
    pub fn body_timed_out(&self) {
        match self.carrier.stream() {
            None => self.body.time_out(),
            Some(stream) => stream.time_out(),
        }
    }

    /// Marks the client as timed out, or as one that gets no answer (444). A stream is reset at the end of the request.
    pub fn timed_out(&self) {
        if self.carrier.stream().is_none() {
            self.conn.timed_out(self.conf().core.reset_timedout_connection);
        }
    }

    /// Waits until the client closes its connection or resets the stream. Never returns for a request whose answer no client
    /// gets.
    pub async fn client_left(&self) {
        if self.is_detached() {
            return std::future::pending().await;
        }
        match self.carrier.stream() {
            None => http1::left(self).await,
            Some(stream) => poll_fn(|cx| stream.poll_gone(cx)).await,
        }
    }
}

/// Delays.
impl Request {
    /// Waits for a time. Returns false if the client left before: see [`Request::client_stays_until`].
    pub async fn client_stays_for(&self, time: Duration, doing: &str) -> bool {
        self.client_stays_until(self.event_loop.handle.sleep(time), doing).await
    }

    /// Waits for `what`. Returns false if the client left before, which is logged. `doing` is the end of the log line.
    pub async fn client_stays_until(&self, what: impl Future<Output = ()>, doing: &str) -> bool {
        let stays = matches!(either(what, self.client_left()).await, Either::Left(()));
        if !stays {
            self.log(Level::Info, format_args!("{LEFT}{doing}"));
        }
        stays
    }
}

/// Sending.
impl Request {
    /// Appends the head of the answer.
    pub fn write_head(&self, out: &mut Vec<u8>) {
        match self.carrier.stream() {
            None => http1::write_head(self, out),
            Some(stream) => framed::write_head(self, &**stream, out),
        }
    }

    /// Sends as much of the pending answer as goes out at once, which mostly is all. [`Request::send_unsent`] sends the rest.
    pub fn send_waiting(&mut self) -> io::Result<Option<Unsent>> {
        match self.carrier.stream() {
            None => http1::send_waiting(self),
            Some(stream) => {
                let stream = stream.clone();
                framed::send_waiting(self, &*stream)
            }
        }
    }

    /// Sends the rest of a pending answer. Waits while the client is slow.
    pub async fn send_unsent(&mut self, unsent: Unsent) -> io::Result<()> {
        match self.carrier.stream() {
            None => http1::send_unsent(self, unsent).await,
            Some(stream) => {
                let stream = stream.clone();
                framed::send_unsent(self, &stream, unsent).await
            }
        }
    }

    /// Sends the head before its body comes. Over HTTP/1 the head waits for the first piece of the body.
    pub fn send_head_ahead(&mut self) -> io::Result<()> {
        match self.carrier.stream() {
            Some(stream) if self.is_main() => {
                let stream = stream.clone();
                framed::send_head_ahead(self, &*stream)
            }
            _ => Ok(()),
        }
    }

    /// Takes the pending part of an answer that is not at its end. The returned future sends it without borrowing the request.
    pub fn send_held(&mut self) -> Option<Sending> {
        match self.carrier.stream() {
            None => http1::send_held(self),
            Some(stream) => {
                let stream = stream.clone();
                framed::send_held(self, stream)
            }
        }
    }

    /// Sends a part of the pending answer at once, for `limit_rate`.
    pub async fn send_part(&mut self, part: &mut Chain) -> io::Result<()> {
        match self.carrier.stream() {
            None => http1::send_part(self, part).await,
            Some(stream) => {
                let stream = stream.clone();
                framed::send_body(self, &stream, part, false).await
            }
        }
    }

    /// Sends an interim answer, and counts its bytes.
    pub async fn send_interim<'a>(
        &mut self,
        what: Interim,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> io::Result<()> {
        let (bytes, sent) = match self.carrier.stream() {
            None => http1::send_interim(self, what, fields).await,
            Some(stream) => framed::send_interim(&**stream, what, fields),
        };
        self.output.sent += bytes;
        self.output.interim += bytes;
        sent
    }

    /// Starts `send_timeout` for the client. Over a stream each send has its own deadline.
    pub fn expect_reading(&self) {
        if self.carrier.stream().is_none() {
            http1::expect_reading(self);
        }
    }
}
