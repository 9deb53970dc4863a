//! Reads HTTP/1 responses: where each ends, and whether the connection is kept alive.

use std::cell::RefCell;
use std::io;

use weir_proto::http1::{
    BodyDecoder, HeadProgress, HeaderId, ResponseHead, ResponseParser, Version,
};
use weir_tls::Wire;

use crate::RequestFailure;

/// Longest response head, in bytes. A longer one counts as malformed.
const LONGEST_HEAD: usize = 256 << 10;
/// Bytes of buffer to reserve before a receive: usually, and for long bodies.
const RECEIVE_SIZE: usize = 4 << 10;
const BODY_RECEIVE_SIZE: usize = 128 << 10;

/// A response that was read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompleteResponse {
    pub(crate) status: u16,
    /// Whether the connection may serve another request.
    pub(crate) keep_alive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseFraming {
    Length(u64),
    Chunked,
    UntilClose,
}

/// The last parsed head and its meaning. Most responses of a server have equal heads, and comparing
/// is cheaper than parsing.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    head: Vec<u8>,
    meaning: Option<(CompleteResponse, ResponseFraming)>,
}

/// Received bytes of a connection that are not yet parsed.
#[derive(Debug, Default)]
pub(crate) struct ResponseReader {
    buf: Vec<u8>,
    start: usize,
    /// Bytes received since the reader was created.
    pub(crate) received: u64,
}

impl ResponseReader {
    /// Discards all received bytes and keep_alive the memory.
    pub(crate) fn reset(&mut self) {
        self.buf.clear();
        self.start = 0;
    }

    /// Whether all received bytes are used.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.buf.len()
    }

    /// Waits for the first byte of a response.
    pub(crate) async fn first_byte(&mut self, wire: &Wire) -> Result<(), RequestFailure> {
        if self.is_empty() && self.receive(wire).await? == 0 {
            return Err(RequestFailure::Closed);
        }
        Ok(())
    }

    /// Reads one response to its end. Interim responses (1xx, except 101) are skipped.
    pub(crate) async fn answer(
        &mut self,
        wire: &Wire,
        is_head: bool,
        memo: &RefCell<Memo>,
    ) -> Result<CompleteResponse, RequestFailure> {
        loop {
            let (answer, framing) = self.head(wire, memo).await?;
            if (100..200).contains(&answer.status) && answer.status != 101 {
                continue;
            }
            let without = is_head || matches!(answer.status, 101 | 204 | 304);
            let framing = if without { ResponseFraming::Length(0) } else { framing };
            self.body(wire, framing).await?;
            let keep_alive =
                answer.keep_alive && framing != ResponseFraming::UntilClose && answer.status != 101;
            return Ok(CompleteResponse { keep_alive, ..answer });
        }
    }

    async fn head(
        &mut self,
        wire: &Wire,
        memo: &RefCell<Memo>,
    ) -> Result<(CompleteResponse, ResponseFraming), RequestFailure> {
        let mut parser = None;
        loop {
            let unread = self.buf.get(self.start..).unwrap_or_default();
            if parser.is_none()
                && let Some((meaning, len)) = memo.borrow().recall(unread)
            {
                self.start += len;
                return Ok(meaning);
            }
            let parser = parser.get_or_insert_with(ResponseParser::new);
            match parser.parse(unread).map_err(|_| RequestFailure::Malformed)? {
                HeadProgress::Done => {
                    let meaning = meaning(parser.head(), unread)?;
                    let len = parser.head().end as usize;
                    memo.borrow_mut().note(unread.get(..len).unwrap_or_default(), meaning);
                    self.start += len;
                    return Ok(meaning);
                }
                HeadProgress::More if unread.len() > LONGEST_HEAD => {
                    return Err(RequestFailure::Malformed);
                }
                HeadProgress::More | HeadProgress::Server => self.more(wire).await?,
            }
        }
    }

    async fn body(&mut self, wire: &Wire, framing: ResponseFraming) -> Result<(), RequestFailure> {
        let mut decoder = match framing {
            ResponseFraming::Length(n) => {
                let here = (self.buf.len() - self.start) as u64;
                if n <= here {
                    self.start += n as usize;
                    return Ok(());
                }
                BodyDecoder::length(n)
            }
            ResponseFraming::Chunked => BodyDecoder::chunked(),
            ResponseFraming::UntilClose => return self.until_close(wire).await,
        };
        loop {
            let unread = self.buf.get(self.start..).unwrap_or_default();
            let step = decoder.decode(unread).map_err(|_| RequestFailure::Malformed)?;
            self.start += step.consumed;
            if step.done {
                return Ok(());
            }
            if step.consumed == 0 {
                self.drop_used();
                if decoder.expected().is_some_and(|left| left > RECEIVE_SIZE as u64) {
                    self.buf.reserve(BODY_RECEIVE_SIZE);
                }
                self.more(wire).await?;
            }
        }
    }

    async fn until_close(&mut self, wire: &Wire) -> Result<(), RequestFailure> {
        loop {
            self.reset();
            if self.receive(wire).await? == 0 {
                return Ok(());
            }
        }
    }

    async fn more(&mut self, wire: &Wire) -> Result<(), RequestFailure> {
        match self.receive(wire).await? {
            0 => Err(RequestFailure::Closed),
            _ => Ok(()),
        }
    }

    async fn receive(&mut self, wire: &Wire) -> Result<usize, RequestFailure> {
        if self.is_empty() {
            self.reset();
        }
        if self.buf.capacity() == self.buf.len() {
            self.buf.reserve(RECEIVE_SIZE);
        }
        let (received, buf) = wire.recv(std::mem::take(&mut self.buf)).await;
        self.buf = buf;
        let received: io::Result<usize> = received;
        let n = received.map_err(|e| RequestFailure::of_receive(&e))?;
        self.received += n as u64;
        Ok(n)
    }

    fn drop_used(&mut self) {
        self.buf.drain(..self.start);
        self.start = 0;
    }
}

impl Memo {
    fn recall(&self, unread: &[u8]) -> Option<((CompleteResponse, ResponseFraming), usize)> {
        let meaning = self.meaning?;
        unread.starts_with(&self.head).then_some((meaning, self.head.len()))
    }

    fn note(&mut self, head: &[u8], meaning: (CompleteResponse, ResponseFraming)) {
        self.head.clear();
        self.head.extend_from_slice(head);
        self.meaning = Some(meaning);
    }
}

fn meaning(
    head: &ResponseHead,
    buf: &[u8],
) -> Result<(CompleteResponse, ResponseFraming), RequestFailure> {
    let values = |id| {
        let fields = head.headers.iter().filter(move |header| header.id == id);
        fields.map(|header| header.value.of(buf))
    };
    let says = |word: &[u8]| {
        let mut parts = values(HeaderId::Connection).flat_map(|v| v.split(|b| *b == b','));
        parts.any(|part| part.trim_ascii().eq_ignore_ascii_case(word))
    };
    let keep_alive = match head.version {
        Version::Http11 => !says(b"close"),
        _ => says(b"keep-alive"),
    };
    let coding = values(HeaderId::TransferEncoding).next();
    let mut lengths = values(HeaderId::ContentLength);
    let first = lengths.next();
    if lengths.any(|other| Some(other) != first) {
        return Err(RequestFailure::Malformed);
    }
    let framing = match (coding, head.content_length(buf)) {
        (Some(coding), _) if coding.eq_ignore_ascii_case(b"chunked") => ResponseFraming::Chunked,
        (Some(_), _) => return Err(RequestFailure::Malformed),
        (None, Some(length)) => ResponseFraming::Length(length.ok_or(RequestFailure::Malformed)?),
        (None, None) => ResponseFraming::UntilClose,
    };
    Ok((CompleteResponse { status: head.status, keep_alive }, framing))
}
