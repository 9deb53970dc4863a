//! Reads a body piece by piece, and discards bodies that no handler needs.

use std::io;
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use weir_engine::spend;
use weir_proto::http1::Version;

use super::{FRAMING, RequestBodyError};
use crate::carrier::{Arrival, Interim};
use crate::request::Request;

impl Request {
    /// Whether the next piece of the body must be received first.
    pub fn body_needs_bytes(&self) -> bool {
        !self.body.done && self.body.at >= self.buf.len()
    }

    /// Takes the bytes behind the request, for the protocol that the connection was upgraded to.
    pub fn take_unread(&mut self) -> Vec<u8> {
        self.body.hand_over();
        self.buf.split_off(self.body.at.min(self.buf.len()))
    }

    /// The next piece of the body if it was received, without waiting.
    pub fn body_piece_now(&mut self) -> Result<Option<Bytes>, RequestBodyError> {
        let span = self.body_span_now()?;
        Ok(span.and_then(|span| self.buf.get(span).map(Bytes::copy_from_slice)))
    }

    /// The position of that piece in the buffer. It is valid until the next read.
    pub(super) fn body_span_now(&mut self) -> Result<Option<Range<usize>>, RequestBodyError> {
        while !self.body_needs_bytes() && !self.body.done && !self.body.discarding {
            let span = self.decode()?;
            if !span.is_empty() {
                return Ok(Some(span));
            }
        }
        Ok(None)
    }

    /// Waits for more of the body. Then [`Request::body_piece_now`] returns it.
    pub async fn more_body(&mut self) -> Result<(), RequestBodyError> {
        self.read_body_bytes(None).await
    }

    /// Keeps a piece that was passed on, for `$request_body`. If the body exceeds
    /// `client_body_buffer_size`, all pieces are dropped.
    pub fn keep_body_piece(&mut self, piece: &Bytes) {
        if self.body.received <= self.conf().core.client_body_buffer_size {
            self.body.memory.push(piece.clone());
        } else {
            self.body.memory.clear();
        }
    }

    /// The position of the next piece of the body in the buffer. It is valid until the next read.
    pub(crate) async fn next_body_span(
        &mut self,
    ) -> Result<Option<Range<usize>>, RequestBodyError> {
        // Even an empty body may have been announced with `Expect`.
        self.send_continue().await?;
        while !self.body.done && !self.body.discarding {
            if self.body.at < self.buf.len() {
                let piece = self.decode()?;
                if !piece.is_empty() {
                    return Ok(Some(piece));
                }
            } else {
                self.read_body_bytes(None).await?;
            }
        }
        Ok(None)
    }

    /// Reads the rest of the body and discards it. False if the connection cannot be used any more.
    pub async fn discard_body(&mut self) -> bool {
        if self.body.done {
            return true;
        }
        (self.body.expects_continue, self.body.discarding) = (false, true);
        let end = self.event_loop.handle.now() + self.conf().core.lingering_time;
        while !self.body.done {
            if self.body.at < self.buf.len() && self.decode().is_err() {
                return false;
            }
            let more = !self.body.done && self.body.at >= self.buf.len();
            if more && self.read_body_bytes(Some(end)).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Decodes the received part of a body that no handler needs. A malformed body is refused while
    /// an error can still be sent. Does not wait.
    pub fn discard_received(&mut self) -> Result<(), RequestBodyError> {
        if self.body.done {
            return Ok(());
        }
        self.body.discarding = true;
        while !self.body.done && self.body.at < self.buf.len() {
            self.decode()?;
        }
        Ok(())
    }

    /// Checks the part of the body that was received with the head, and leaves it unread. So a
    /// refused request is not passed to a server. True if the body is complete: its length is known
    /// and it can be read without waiting.
    pub fn check_body_received(&mut self) -> Result<bool, RequestBodyError> {
        if self.body.done {
            return Ok(true);
        }
        if let Some(arrival) = self.carrier.arrival() {
            return Ok(arrival.ended);
        }
        let Some(mut decoder) = self.body.decoder.clone() else { return Ok(false) };
        let (mut at, mut before) = (self.body.at, self.body.received);
        loop {
            let step = match decoder.decode(self.buf.get(at..).unwrap_or_default()) {
                Ok(step) => step,
                Err(error) => return Err(self.body_failed(RequestBodyError::Chunks(error))),
            };
            let received = step.data.len() as u64;
            self.check_chunk(before, received.saturating_add(decoder.data_left()))?;
            if step.done || step.consumed == 0 {
                return Ok(step.done);
            }
            at += step.consumed;
            before += received;
        }
    }

    /// Decodes received bytes. Returns the position of body data, which may be empty.
    fn decode(&mut self) -> Result<Range<usize>, RequestBodyError> {
        if let Some(arrival) = self.carrier.arrival() {
            let piece = self.body.at..self.buf.len();
            self.body.at = self.buf.len();
            self.body.received += piece.len() as u64;
            self.check_arrival(arrival)?;
            return Ok(piece);
        }
        let Some(decoder) = &mut self.body.decoder else {
            self.body.done = true;
            return Ok(0..0);
        };
        let at = self.body.at;
        let step = match decoder.decode(self.buf.get(at..).unwrap_or_default()) {
            Ok(step) => step,
            Err(error) => return Err(self.body_failed(RequestBodyError::Chunks(error))),
        };
        spend(((step.consumed - step.data.len()) / FRAMING) as u32);
        if !self.body.discarding {
            self.request_length += step.consumed as u64;
        }
        self.body.at += step.consumed;
        self.body.done = step.done;
        self.body.received += step.data.len() as u64;
        if step.done && self.body.chunked {
            // The length is known now. A discarded body has the length 0.
            let left = if self.body.discarding { 0 } else { self.body.received };
            self.body.length = Some(left);
        }
        let (received, left) = (step.data.len() as u64, decoder.data_left());
        self.check_chunk(self.body.received - received, received.saturating_add(left))?;
        Ok(at + step.data.start..at + step.data.end)
    }

    /// Checks a chunk against `client_max_body_size` as soon as its size is known. `before` bytes
    /// of the body precede it.
    fn check_chunk(&mut self, before: u64, size: u64) -> Result<(), RequestBodyError> {
        let limit = self.conf().core.client_max_body_size;
        let unwanted = !self.body.chunked || limit == 0 || self.body.discarding;
        if unwanted || before.saturating_add(size) <= limit {
            return Ok(());
        }
        Err(self.body_failed(RequestBodyError::ChunkTooLarge { before, size }))
    }

    /// Checks a body in frames without a declared length against `client_max_body_size`.
    fn check_chunked_size(&mut self) -> Result<(), RequestBodyError> {
        let limit = self.conf().core.client_max_body_size;
        let received = self.body.received;
        if self.body.chunked && limit > 0 && received > limit && !self.body.discarding {
            return Err(self.body_failed(RequestBodyError::StreamTooLarge(received)));
        }
        Ok(())
    }

    /// Checks a body in frames against the declared length, after more bytes or its end were
    /// received.
    fn check_arrival(&mut self, arrival: Arrival) -> Result<(), RequestBodyError> {
        let (received, ended) = (self.body.received, arrival.drained);
        let announced = self.body.length.filter(|_| !self.body.chunked);
        if arrival.gone {
            return Err(self.stream_closed());
        }
        match announced {
            Some(length) if received > length => {
                return Err(self.body_failed(RequestBodyError::StreamLong));
            }
            Some(length) if ended && received < length => {
                let http3 = self.conn.quic().is_some();
                let short = RequestBodyError::StreamShort { received, length, http3 };
                return Err(self.body_failed(short));
            }
            Some(_) => {}
            None => self.check_chunked_size()?,
        }
        self.body.done = ended;
        if ended && self.body.chunked {
            self.body.length = Some(received);
        }
        Ok(())
    }

    /// Receives more of the body into the buffer, in place of the part that was consumed. `end` is
    /// the deadline of a body that is discarded.
    async fn read_body_bytes(&mut self, end: Option<Instant>) -> Result<(), RequestBodyError> {
        self.buf.truncate(self.parser.head().end as usize);
        self.body.at = self.buf.len();
        match (self.receive_body(end).await, self.carrier.arrival()) {
            (Ok(0), Some(arrival)) => self.check_arrival(arrival),
            (Err(error), Some(_)) if error.kind() != io::ErrorKind::TimedOut => {
                Err(self.stream_closed())
            }
            (result, _) => self.body_received(result),
        }
    }

    fn stream_closed(&mut self) -> RequestBodyError {
        let http3 = self.conn.quic().is_some();
        self.body_failed(RequestBodyError::StreamClosed { http3 })
    }

    fn body_received(&mut self, result: io::Result<usize>) -> Result<(), RequestBodyError> {
        match result {
            Ok(0) => Err(self.body_failed(RequestBodyError::Closed)),
            Ok(n) => {
                // HTTP/1 bytes may belong to the next request, so they are counted when they are
                // decoded.
                if let Some(all) = self.carrier.received() {
                    self.request_length = all;
                } else if self.carrier.has_frames() {
                    self.request_length += n as u64;
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(self.body_failed(RequestBodyError::TimedOut))
            }
            Err(error) => Err(self.body_failed(RequestBodyError::Broken(error))),
        }
    }

    /// Sends `100 Continue` to a client that sent `Expect: 100-continue`, also over HTTP/2 and
    /// HTTP/3: some clients wait for it until they give up. If it cannot be sent within
    /// `send_timeout`, the request ends.
    pub async fn send_continue(&mut self) -> Result<(), RequestBodyError> {
        let asked = std::mem::take(&mut self.body.expects_continue);
        if !asked || self.version < Version::Http11 || self.response.sent {
            return Ok(());
        }
        let Err(error) = self.send_interim(Interim::Continue, std::iter::empty()).await else {
            return Ok(());
        };
        let timed_out = error.kind() == io::ErrorKind::TimedOut;
        Err(self.body_failed(RequestBodyError::ContinueUnsent { timed_out }))
    }
}
