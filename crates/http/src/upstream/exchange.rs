//! Both directions of a request at once: its answer is on its way to the client while the client's body is on its
//! way to the server. Neither waits for the other, or a client that writes all before it reads would wait for ever
//! for a server that answers as it reads.

use std::io;
use std::pin::{Pin, pin};

use weir_engine::{Either, either};

use super::http2::Sender;
use super::passing::Passing;
use super::protocol::Protocol;
use super::relay::tell;
use super::source::Source;
use super::upload::{Rest, Went};
use crate::answer::output::Sending;
use crate::modules::core;
use crate::phases::Step;
use crate::request::Request;

/// A request whose body is not complete, and whose answer has begun.
pub struct Exchange {
    body: Box<Rest>,
    to: Sender,
    /// A piece of the answer.
    sending: Option<Sending>,
    /// All of the body went out, or nobody wants the rest.
    over: bool,
}

impl Exchange {
    /// Sends the rest of a body beside the answer.
    pub fn new(body: Box<Rest>, to: Sender) -> Exchange {
        Exchange { body, to, sending: None, over: false }
    }

    /// Sends a piece of the answer and of the body, or waits for one. False if only the answer goes on.
    pub async fn turn<P: Protocol>(
        &mut self,
        r: &mut Request,
        passing: &'static Passing,
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
        let body = self.body.go_on(r, passing, &self.to);
        let next = match &mut self.sending {
            // What was read ahead while a piece was sent in its own time goes next.
            None if !source.is_empty() || source.done => {
                match either(body, std::future::ready(())).await {
                    Either::Left(went) => Either::Right(went),
                    Either::Right(()) => return Ok(true),
                }
            }
            None => match either(source.wait(), body).await {
                Either::Left(()) => return Ok(true),
                Either::Right(went) => Either::Right(went),
            },
            Some(sending) => {
                r.expect_reading();
                ahead_of(buffering, source, pin!(either(sending, body))).await
            }
        };
        tell(r, source);
        match next {
            Either::Left(sent) => self.sent(r, sent)?,
            Either::Right(Ok(Went::More)) => {
                let more = r.more_body().await;
                if more.and_then(|()| self.body.fill(r, source.protocol())).is_err() {
                    r.keepalive = false;
                    return Err(Step::Abort);
                }
            }
            Either::Right(Ok(Went::Out)) => self.over = self.body.is_last(),
            // What became of the stream is found where it is read.
            Either::Right(Err(_)) => self.over = true,
        }
        Ok(true)
    }

    /// Takes a piece of the answer, no more than may wait in memory for the client.
    async fn send_piece<P: Protocol>(
        &mut self,
        r: &mut Request,
        buffering: bool,
        source: &mut Source<'_, P>,
    ) -> io::Result<()> {
        // What has a rate is sent in its own time.
        r.output.held = core::rate(r).is_none();
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

    /// The answer goes on alone.
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
            r.log_late(&error);
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
