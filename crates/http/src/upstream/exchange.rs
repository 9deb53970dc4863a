//! Both directions of a request at once: the answer is sent to the client while the client's body
//! is sent to the server. Neither waits for the other. Otherwise a client that writes everything
//! before it reads would deadlock with a server that answers as it reads.

use std::future::pending;
use std::io;
use std::pin::{Pin, pin};

use weir_engine::{Either, either};

use super::http2::Sender;
use super::passing::UpstreamConf;
use super::protocol::Protocol;
use super::relay::tell;
use super::source::Source;
use super::transport::Transport;
use super::upload::{UnsentRequest, Way, Went};
use crate::carrier::Sending;
use crate::phases::Step;
use crate::request::Request;

/// An event of an exchange.
enum Next {
    /// A piece of the answer was sent, or failed.
    Sent((u64, io::Result<()>)),
    /// More of the answer arrived.
    Came(io::Result<()>),
    /// The body was sent further, or failed.
    Went(io::Result<Went>),
}

/// A request whose body is incomplete and whose answer has begun.
pub struct Exchange {
    body: Box<UnsentRequest>,
    /// The stream, if the request has one; otherwise it has its own connection.
    to: Option<Sender>,
    /// The piece of the answer that is being sent.
    sending: Option<Sending>,
    /// The whole body was sent, or the server takes no more.
    over: bool,
}

impl Exchange {
    /// An exchange for the rest of a body. As in nginx, the rest of a buffered body is not sent
    /// after an early answer over HTTP/1.
    pub fn new(body: Box<UnsentRequest>, to: Option<Sender>) -> Option<Exchange> {
        let goes_on = to.is_some() || body.goes_on();
        goes_on.then_some(Exchange { body, to, sending: None, over: false })
    }

    /// Sends or waits for a piece of the answer or of the body. False if only the answer is left.
    pub async fn turn<P: Protocol>(
        &mut self,
        r: &mut Request,
        passing: &'static UpstreamConf,
        buffering: bool,
        source: &mut Source<'_, P>,
    ) -> Result<bool, Step> {
        source.read_now();
        if source.done || self.over {
            self.end(r, buffering, source).await?;
            return Ok(false);
        }
        if self.sending.is_none() {
            self.send_piece(r, buffering, source).await.map_err(|_| Step::Abort)?;
        }
        let before = self.body.unsent();
        let next = self.next(r, passing, buffering, source).await;
        if let (None, Some(attempt)) = (&self.to, r.contexts.upstream.attempt()) {
            attempt.sent += before - self.body.unsent();
        }
        tell(r, source);
        match next {
            Next::Sent(sent) => self.sent(r, sent)?,
            Next::Came(ready) => source.heard(ready),
            Next::Went(Ok(Went::More)) => {
                let more = r.more_body().await;
                if more.and_then(|()| self.body.fill(r, source.protocol())).is_err() {
                    r.keepalive = false;
                    return Err(Step::Abort);
                }
            }
            Next::Went(Ok(Went::Out)) => self.over = self.body.is_over(),
            // Reading the connection will find out what happened to it.
            Next::Went(Err(_)) => self.over = true,
        }
        Ok(true)
    }

    /// Waits until a piece of the answer or of the body was sent, or more of either arrived.
    async fn next<P: Protocol>(
        &mut self,
        r: &mut Request,
        passing: &'static UpstreamConf,
        buffering: bool,
        source: &mut Source<'_, P>,
    ) -> Next {
        if self.sending.is_some() {
            r.expect_reading();
        }
        if let (Some(sending), Some(to)) = (&mut self.sending, &self.to) {
            let body = self.body.go_on(r, passing, Way::Stream(to));
            return match ahead_of(buffering, source, pin!(either(sending, body))).await {
                Either::Left(sent) => Next::Sent(sent),
                Either::Right(went) => Next::Went(went),
            };
        }
        let way = match (&self.to, &source.transport) {
            (Some(to), _) => Way::Stream(to),
            (None, Transport::Own(connection)) => Way::Own(connection),
            // Cannot happen: every stream has a sender.
            (None, Transport::Stream(_)) => {
                return Next::Went(Err(io::ErrorKind::NotConnected.into()));
            }
        };
        let body = self.body.go_on(r, passing, way);
        let Some(sending) = &mut self.sending else {
            // Data that were read ahead are sent first.
            let waits = source.is_empty() && !source.done;
            let came = async { if waits { source.ready().await } else { Ok(()) } };
            return match either(body, came).await {
                Either::Left(went) => Next::Went(went),
                Either::Right(ready) => Next::Came(ready),
            };
        };
        // The connection is borrowed for both reading and writing here, so `ahead_of` cannot read
        // it.
        let reads = buffering && source.has_room();
        let came = async { if reads { source.ready().await } else { pending().await } };
        match either(sending, either(came, body)).await {
            Either::Left(sent) => Next::Sent(sent),
            Either::Right(Either::Left(ready)) => Next::Came(ready),
            Either::Right(Either::Right(went)) => Next::Went(went),
        }
    }

    /// Sends a piece of the answer, of limited size.
    async fn send_piece<P: Protocol>(
        &mut self,
        r: &mut Request,
        buffering: bool,
        source: &mut Source<'_, P>,
    ) -> io::Result<()> {
        // With a rate limit, sending takes its own time and is not held.
        r.output.held = crate::answer::rate::rate(r).is_none();
        if !source.is_empty() {
            let piece = source.take_piece();
            if buffering {
                source.ahead_of(pin!(r.send_body_on(piece))).await?;
            } else {
                r.send_body(piece, false).await?;
                r.flush_body().await?;
            }
        }
        if source.is_empty() {
            let pieces = source.comes_in_pieces();
            ahead_of(buffering, source, pin!(r.pause_body(pieces))).await?;
        }
        if r.output.held {
            self.sending = r.send_held();
        }
        Ok(())
    }

    /// Finishes the piece that is being sent. The answer goes on alone.
    async fn end<P: Protocol>(
        &mut self,
        r: &mut Request,
        buffering: bool,
        source: &mut Source<'_, P>,
    ) -> Result<(), Step> {
        r.output.held = false;
        let Some(sending) = &mut self.sending else { return Ok(()) };
        r.expect_reading();
        let sent = ahead_of(buffering, source, pin!(sending)).await;
        tell(r, source);
        self.sent(r, sent)
    }

    fn sent(&mut self, r: &mut Request, sent: (u64, io::Result<()>)) -> Result<(), Step> {
        self.sending = None;
        let (bytes, sent) = sent;
        r.output.sent += bytes;
        sent.map_err(|error| {
            r.sending_failed(&error);
            Step::Abort
        })
    }
}

async fn ahead_of<P: Protocol, T>(
    buffering: bool,
    source: &mut Source<'_, P>,
    sending: Pin<&mut impl Future<Output = T>>,
) -> T {
    if buffering { source.ahead_of(sending).await } else { sending.await }
}
