//! The client's body: read piece by piece, whole into memory or a file, or thrown away.

use std::io;

use bytes::Bytes;
use weir_log::Level;
use weir_proto::http1::{BodyDecoder, Version};

use crate::request::Request;

/// Room for one read of a body.
const PIECE: usize = 16 * 1024;

/// How much of the client's body was read, and what was kept of it.
#[derive(Default)]
pub struct Body {
    decoder: Option<BodyDecoder>,
    /// `Content-Length`, if it was given.
    pub length: Option<u64>,
    /// `Transfer-Encoding: chunked`
    pub chunked: bool,
    /// The client waits for `100 Continue`.
    pub expects_continue: bool,
    /// Where in the request's buffer the unread bytes begin.
    at: usize,
    /// The last byte of it was read.
    done: bool,
    /// What was read so far, without framing.
    pub received: u64,
    /// The whole body, once [`Request::read_body`] has read it into memory.
    pub memory: Vec<Bytes>,
    /// The connection broke inside the body.
    broken: bool,
}

/// `lingering_close`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Linger {
    /// Never.
    Off,
    /// Where the client may still be sending.
    #[default]
    On,
    /// Always.
    Always,
}

impl Body {
    /// The head ends here; what follows is the body, or the next request.
    pub fn starts_at(&mut self, at: usize) {
        (self.at, self.done) = (at, true);
    }

    /// The head was refused: nothing behind it is read, or all of it until the client stops.
    pub fn refused(&mut self, at: usize, linger: bool) {
        (self.at, self.done) = (at, !linger);
    }

    /// A body of this framing follows.
    pub fn expect(&mut self, decoder: BodyDecoder) {
        (self.decoder, self.done) = (Some(decoder), false);
    }

    /// How many bytes of the request's buffer belong to this request.
    pub fn read_to(&self) -> usize {
        self.at
    }

    /// True when no byte of the body is left unread.
    pub fn is_read(&self) -> bool {
        self.done
    }

    /// The client is not worth waiting for: its request was no request.
    pub fn never_linger(&mut self) {
        self.broken = true;
    }

    /// Whether to read on before closing.
    pub fn should_linger(&self, linger: Linger) -> bool {
        match linger {
            Linger::Off => false,
            Linger::On => !self.done && !self.broken,
            Linger::Always => true,
        }
    }
}

impl Request {
    /// The next piece of the client's body, `None` at its end. The error is the status to answer with.
    pub async fn next_body_piece(&mut self) -> Result<Option<Bytes>, u16> {
        if self.body.done {
            return Ok(None);
        }
        self.send_continue().await;
        loop {
            if self.body.at < self.buf.len() {
                match self.decode()? {
                    Some(piece) if !piece.is_empty() => return Ok(Some(piece)),
                    _ if self.body.done => return Ok(None),
                    _ => {}
                }
            }
            self.read_body_bytes().await?;
        }
    }

    /// Reads all of the body into memory, within the limits that the location sets.
    pub async fn read_body(&mut self) -> Result<(), u16> {
        while let Some(piece) = self.next_body_piece().await? {
            self.body.memory.push(piece);
        }
        Ok(())
    }

    /// Reads what is left of the body and forgets it. False if the connection is of no more use.
    pub async fn discard_body(&mut self) -> bool {
        self.body.expects_continue = false;
        loop {
            match self.next_body_piece().await {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn decode(&mut self) -> Result<Option<Bytes>, u16> {
        let Some(decoder) = &mut self.body.decoder else {
            self.body.done = true;
            return Ok(None);
        };
        let input = self.buf.get(self.body.at..).unwrap_or_default();
        let step = match decoder.decode(input) {
            Ok(step) => step,
            Err(_) => {
                (self.body.done, self.body.broken, self.keepalive) = (true, true, false);
                self.log(Level::Error, format_args!("client sent invalid chunked body"));
                return Err(400);
            }
        };
        let piece = Bytes::copy_from_slice(input.get(step.data.clone()).unwrap_or_default());
        self.body.at += step.consumed;
        self.body.done = step.done;
        self.body.received += piece.len() as u64;
        let limit = self.conf().core.client_max_body_size;
        if limit > 0 && self.body.received > limit {
            self.log(
                Level::Error,
                format_args!(
                    "client intended to send too large chunked body: {} bytes",
                    self.body.received
                ),
            );
            return Err(413);
        }
        Ok(Some(piece))
    }

    async fn read_body_bytes(&mut self) -> Result<(), u16> {
        let conn = self.conn.clone();
        let mut buf = std::mem::take(&mut self.buf);
        buf.truncate(self.parser.head().end as usize);
        self.body.at = buf.len();
        buf.reserve(PIECE);
        conn.stream
            .set_deadline(Some(self.worker.handle.now() + self.conf().core.client_body_timeout));
        let (result, buf) = conn.stream.recv(buf).await;
        conn.stream.set_deadline(None);
        self.buf = buf;
        match result {
            Ok(0) => {
                self.log(Level::Info, format_args!("client prematurely closed connection"));
                self.give_up(400)
            }
            Ok(n) => {
                self.request_length += n as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                self.log(Level::Info, format_args!("client timed out (110: Connection timed out)"));
                self.give_up(408)
            }
            Err(_) => self.give_up(400),
        }
    }

    fn give_up(&mut self, status: u16) -> Result<(), u16> {
        (self.body.done, self.body.broken, self.keepalive) = (true, true, false);
        Err(status)
    }

    /// Tells a client that asked (`Expect: 100-continue`) to send its body.
    async fn send_continue(&mut self) {
        let asked = std::mem::take(&mut self.body.expects_continue);
        let waiting = self.body.at >= self.buf.len();
        if asked && waiting && self.version == Version::Http11 && !self.response.sent {
            let conn = self.conn.clone();
            let mut chain = weir_engine::Chain::default();
            let line = Bytes::from_static(b"HTTP/1.1 100 Continue\r\n\r\n");
            chain.push(weir_engine::Segment::Bytes(line));
            let _ = conn.stream.send(&mut chain).await;
        }
    }
}
