//! Reading a body piece by piece, and throwing away what no handler asked for.

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
    /// True if the next piece of the body is not there yet.
    pub fn body_needs_bytes(&self) -> bool {
        !self.body.done && self.body.at >= self.buf.len()
    }

    /// Takes what was read behind the request, for another protocol that both sides agreed to.
    pub fn take_unread(&mut self) -> Vec<u8> {
        self.body.hand_over();
        self.buf.split_off(self.body.at.min(self.buf.len()))
    }

    /// The next piece of the client's body, `None` at its end.
    pub async fn next_body_piece(&mut self) -> Result<Option<Bytes>, RequestBodyError> {
        let piece = self.next_body_span().await?;
        let bytes = |span| Bytes::copy_from_slice(self.buf.get(span).unwrap_or_default());
        Ok(piece.map(bytes))
    }

    /// What is there of the next piece of the body, without waiting.
    pub fn body_piece_now(&mut self) -> Result<Option<Bytes>, RequestBodyError> {
        let span = self.body_span_now()?;
        Ok(span.and_then(|span| self.buf.get(span).map(Bytes::copy_from_slice)))
    }

    /// Where in the buffer it stands, until the next read.
    pub(super) fn body_span_now(&mut self) -> Result<Option<Range<usize>>, RequestBodyError> {
        while !self.body_needs_bytes() && !self.body.done && !self.body.discarding {
            let span = self.decode()?;
            if !span.is_empty() {
                return Ok(Some(span));
            }
        }
        Ok(None)
    }

    /// Waits for more of the body, which [`Request::body_piece_now`] then finds.
    pub async fn more_body(&mut self) -> Result<(), RequestBodyError> {
        self.read_body_bytes(None).await
    }

    /// Keeps a piece that was passed on, for `$request_body`, as long as all of the body fits into
    /// `client_body_buffer_size`.
    pub fn keep_body_piece(&mut self, piece: &Bytes) {
        if self.body.received <= self.conf().core.client_body_buffer_size {
            self.body.memory.push(piece.clone());
        } else {
            self.body.memory.clear();
        }
    }

    /// Where in the buffer the next piece of the body stands, until the next read.
    pub(crate) async fn next_body_span(
        &mut self,
    ) -> Result<Option<Range<usize>>, RequestBodyError> {
        // Even an empty body may have been announced.
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

    /// Reads what is left of the body and forgets it. False if the connection is of no more use.
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

    /// Checks what came of a body that no handler asked for: a broken one is refused while the client can still be told.
    /// Does not wait for more.
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

    /// Checks what came of the body with the head, and leaves it there: no server is asked for a request that is refused. True if
    /// all of it has come, or there is none: its length is known, and it can be had without waiting.
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
            let came = step.data.len() as u64;
            self.check_chunk(before, came.saturating_add(decoder.data_left()))?;
            if step.done || step.consumed == 0 {
                return Ok(step.done);
            }
            at += step.consumed;
            before += came;
        }
    }

    /// Looks at what was read; the answer is where data stands, if any.
    fn decode(&mut self) -> Result<Range<usize>, RequestBodyError> {
        if let Some(arrival) = self.carrier.arrival() {
            let piece = self.body.at..self.buf.len();
            self.body.at = self.buf.len();
            self.body.received += piece.len() as u64;
            self.body_came(arrival)?;
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
            // Now the length is known. Nothing is left of a body that is thrown away.
            let left = if self.body.discarding { 0 } else { self.body.received };
            self.body.length = Some(left);
        }
        let (came, left) = (step.data.len() as u64, decoder.data_left());
        self.check_chunk(self.body.received - came, came.saturating_add(left))?;
        Ok(at + step.data.start..at + step.data.end)
    }

    /// `client_max_body_size`, of a body in chunks: a chunk that is too large is refused as soon as its size is known. `size` is
    /// what is known of it, behind so many bytes before it.
    fn check_chunk(&mut self, before: u64, size: u64) -> Result<(), RequestBodyError> {
        let limit = self.conf().core.client_max_body_size;
        let unwanted = !self.body.chunked || limit == 0 || self.body.discarding;
        if unwanted || before.saturating_add(size) <= limit {
            return Ok(());
        }
        Err(self.body_failed(RequestBodyError::ChunkTooLarge { before, size }))
    }

    /// `client_max_body_size`, for a body in frames without an announced length.
    fn check_chunked_size(&mut self) -> Result<(), RequestBodyError> {
        let limit = self.conf().core.client_max_body_size;
        let received = self.body.received;
        if self.body.chunked && limit > 0 && received > limit && !self.body.discarding {
            return Err(self.body_failed(RequestBodyError::StreamTooLarge(received)));
        }
        Ok(())
    }

    /// More of a body came in frames, or its end: is it what was announced?
    fn body_came(&mut self, arrival: Arrival) -> Result<(), RequestBodyError> {
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

    /// Reads more of the body in the place of what was read of it; `end` bounds what is thrown away.
    async fn read_body_bytes(&mut self, end: Option<Instant>) -> Result<(), RequestBodyError> {
        self.buf.truncate(self.parser.head().end as usize);
        self.body.at = self.buf.len();
        match (self.receive_body(end).await, self.carrier.arrival()) {
            (Ok(0), Some(arrival)) => self.body_came(arrival),
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
                // Without frames, what is read may belong to the next request: it counts where it is decoded.
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

    /// Tells a client that asked (`Expect: 100-continue`) to send its body, over HTTP/2 and HTTP/3 as well: some wait for that until
    /// they give up. A client that does not take it within `send_timeout` gets nothing else either.
    pub async fn send_continue(&mut self) -> Result<(), RequestBodyError> {
        let asked = std::mem::take(&mut self.body.expects_continue);
        if !asked || self.version < Version::Http11 || self.response.sent {
            return Ok(());
        }
        let Err(error) = self.send_interim(Interim::Continue, std::iter::empty()).await.1 else {
            return Ok(());
        };
        let timed_out = error.kind() == io::ErrorKind::TimedOut;
        Err(self.body_failed(RequestBodyError::ContinueUnsent { timed_out }))
    }
}
