//! How a request comes and how its answer goes: over HTTP/1 itself, or by a stream of its connection.
//!
//! Everything above asks what a [`Carrier`] can do, never which version it is. Another version of HTTP with streams is one
//! more [`RequestStream`]: `framed` serves them all.

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

/// What comes.
impl Request {
    /// Receives a piece of the body behind what is in the buffer; 0 where there is no more. `end` bounds a body that is
    /// thrown away. Meanwhile the head stays in the buffer: the log needs it if the request ends here.
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

    /// The client took too long to send more of the body: the next read says so.
    pub fn body_timed_out(&self) {
        match self.carrier.stream() {
            None => self.body.time_out(),
            Some(stream) => stream.time_out(),
        }
    }

    /// The client took too long, or gets no answer (444). The end of the request resets a stream.
    pub fn timed_out(&self) {
        if self.carrier.stream().is_none() {
            self.conn.timed_out(self.conf().core.reset_timedout_connection);
        }
    }

    /// Waits until the client leaves: closes its connection, or gives the stream up. A client that never hears of
    /// the request does not leave it.
    pub async fn client_left(&self) {
        if self.is_unheard() {
            return std::future::pending().await;
        }
        match self.carrier.stream() {
            None => http1::left(self).await,
            Some(stream) => poll_fn(|cx| stream.poll_gone(cx)).await,
        }
    }
}

/// A client that is held back.
impl Request {
    /// Lets a time pass. False if the client left before: see [`Request::client_stays_until`].
    pub async fn client_stays_for(&self, time: Duration, doing: &str) -> bool {
        self.client_stays_until(self.event_loop.handle.sleep(time), doing).await
    }

    /// Waits for something. False if the client left before: the log was told. `doing` ends its line.
    pub async fn client_stays_until(&self, what: impl Future<Output = ()>, doing: &str) -> bool {
        let stays = matches!(either(what, self.client_left()).await, Either::Left(()));
        if !stays {
            self.log(Level::Info, format_args!("{LEFT}{doing}"));
        }
        stays
    }
}

/// What goes.
impl Request {
    /// Appends the head of the answer.
    pub fn write_head(&self, out: &mut Vec<u8>) {
        match self.carrier.stream() {
            None => http1::write_head(self, out),
            Some(stream) => framed::write_head(self, &**stream, out),
        }
    }

    /// Sends of what waits of the answer what goes out at once: mostly that is all. Else [`Request::send_unsent`] sends the
    /// rest.
    pub fn send_waiting(&mut self) -> io::Result<Option<Unsent>> {
        match self.carrier.stream() {
            None => http1::send_waiting(self),
            Some(stream) => {
                let stream = stream.clone();
                framed::send_waiting(self, &*stream)
            }
        }
    }

    /// Sends what did not go out at once. Waits while the client is slow.
    pub async fn send_unsent(&mut self, unsent: Unsent) -> io::Result<()> {
        match self.carrier.stream() {
            None => http1::send_unsent(self, unsent).await,
            Some(stream) => {
                let stream = stream.clone();
                framed::send_unsent(self, &stream, unsent).await
            }
        }
    }

    /// Sends a head before its body comes, where the head need not wait for company.
    pub fn send_head_ahead(&mut self) -> io::Result<()> {
        match self.carrier.stream() {
            Some(stream) if self.is_main() => {
                let stream = stream.clone();
                framed::send_head_ahead(self, &*stream)
            }
            _ => Ok(()),
        }
    }

    /// Takes what waits of an answer that is not at its end. Polling the answer sends it, without the request.
    pub fn send_held(&mut self) -> Option<Sending> {
        match self.carrier.stream() {
            None => http1::send_held(self),
            Some(stream) => {
                let stream = stream.clone();
                framed::send_held(self, stream)
            }
        }
    }

    /// Sends a part of what waits, at once: for `limit_rate`.
    pub async fn send_part(&mut self, part: &mut Chain) -> io::Result<()> {
        match self.carrier.stream() {
            None => http1::send_part(self, part).await,
            Some(stream) => {
                let stream = stream.clone();
                framed::send_body(self, &stream, part, false).await
            }
        }
    }

    /// Sends an interim answer. Returns the number of its bytes, and how it ended.
    pub async fn send_interim<'a>(
        &self,
        what: Interim,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> (u64, io::Result<()>) {
        match self.carrier.stream() {
            None => http1::send_interim(self, what, fields).await,
            Some(stream) => framed::send_interim(&**stream, what, fields),
        }
    }

    /// From now on the client has to read within `send_timeout`. Over a stream each send has its own deadline.
    pub fn expect_reading(&self) {
        if self.carrier.stream().is_none() {
            http1::expect_reading(self);
        }
    }
}
