//! An HTTP/1 response to a request of the server itself: a health check, an export of spans, an
//! OCSP request. The head is read whole, the body up to a limit.

use std::borrow::Cow;
use std::{fmt, io};

use weir_proto::http1::{
    BodyDecoder, BodyError, HeadProgress, ResponseHead, ResponseParser, Version,
};
use weir_tls::Wire;

use crate::framing::{BadFraming, Framing};

/// A connection that a response is read from.
#[expect(async_fn_in_trait, reason = "loops do not share their tasks")]
pub trait Incoming {
    /// Waits until there are data or the end of them.
    async fn readable(&self) -> io::Result<()>;

    /// Receives available data; 0 at the end, `None` if there are none yet.
    fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>>;

    /// Waits for data and appends them. False at the end.
    async fn more(&self, buf: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            self.readable().await?;
            buf.reserve(PIECE);
            if let Some(n) = self.try_recv(buf)? {
                return Ok(n > 0);
            }
        }
    }
}

impl Incoming for Wire {
    async fn readable(&self) -> io::Result<()> {
        Wire::readable(self).await
    }

    fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        Wire::try_recv(self, buf)
    }
}

/// Bytes for each read.
const PIECE: usize = 4096;
/// The longest head, and the most bytes of 1xx responses before it.
pub const HEAD: usize = 64 * 1024;

/// Why there is no response.
#[derive(Debug)]
pub enum Unread {
    /// Receiving failed.
    Io(io::Error),
    /// The data are no valid response.
    Wrong(BadReply),
}

/// Why a response is invalid. The texts are nginx's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadReply {
    /// The connection ended within the head.
    Closed,
    /// The head is longer than [`HEAD`].
    HeadTooBig,
    /// More than [`HEAD`] bytes of responses 1xx came before it.
    TooManyInterim,
    /// The head is malformed, as its parser says.
    Head(Cow<'static, str>),
    /// The length of the body cannot be determined.
    Framing(BadFraming),
    /// The body is malformed.
    Body(BodyError),
}

impl fmt::Display for BadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadReply::Closed => "upstream prematurely closed connection",
            BadReply::HeadTooBig => "upstream sent too big header",
            BadReply::TooManyInterim => "upstream sent too many interim responses",
            BadReply::Head(reason) => reason,
            BadReply::Framing(error) => return error.fmt(f),
            BadReply::Body(BodyError::InvalidChunk) => "upstream sent invalid chunked response",
            BadReply::Body(BodyError::TrailersTooBig) => "upstream sent too big trailers",
            BadReply::Body(BodyError::FramingTooBig) => {
                "upstream sent too big chunk extensions or trailers"
            }
            BadReply::Body(BodyError::InvalidTrailer { line, byte }) => {
                return write!(f, "upstream sent invalid trailer: \"{line}\\x{byte:02x}...\"");
            }
        })
    }
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Unread {
        Unread::Io(error)
    }
}

impl From<BadReply> for Unread {
    fn from(error: BadReply) -> Unread {
        Unread::Wrong(error)
    }
}

/// A response whose head was read.
pub struct Reply {
    head: ResponseHead,
    /// The head's bytes.
    text: Vec<u8>,
    /// Bytes behind the head that were received with it.
    rest: Vec<u8>,
    /// `None` if the body ends with the connection.
    decoder: Option<BodyDecoder>,
    closes: bool,
}

/// A body, or its beginning.
#[derive(Default)]
pub struct ReplyBody {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The body is complete.
    pub is_whole: bool,
    /// The body is complete and the connection may serve another request.
    pub reusable: bool,
}

impl Reply {
    /// Reads the head of the final response.
    pub async fn read(from: &impl Incoming) -> Result<Reply, Unread> {
        let (mut text, mut parser, mut before) = (Vec::new(), ResponseParser::new(), 0);
        loop {
            match parser.parse(&text) {
                Ok(HeadProgress::Done) if parser.head().status >= 200 => break,
                Ok(HeadProgress::Done) => {
                    let end = (parser.head().end as usize).min(text.len());
                    before += end;
                    text.drain(..end);
                    parser.reset();
                    if before <= HEAD {
                        continue;
                    }
                    return Err(BadReply::TooManyInterim.into());
                }
                Ok(_) if text.len() > HEAD => return Err(BadReply::HeadTooBig.into()),
                Ok(_) => {}
                Err(error) => return Err(BadReply::Head(error.reason(&text)).into()),
            }
            if !from.more(&mut text).await? {
                return Err(BadReply::Closed.into());
            }
        }
        let head = parser.take_head();
        let rest = text.split_off((head.end as usize).min(text.len()));
        let framing = Framing::of(&head.headers, &text).map_err(BadReply::Framing)?;
        let decoder = match framing.length {
            _ if matches!(head.status, 204 | 304) => Some(BodyDecoder::length(0)),
            _ if framing.chunked => Some(BodyDecoder::chunked()),
            length => length.map(BodyDecoder::length),
        };
        let closes = framing.close || head.version < Version::Http11 || decoder.is_none();
        Ok(Reply { head, text, rest, decoder, closes })
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// The names and values of the headers.
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.head.headers.iter().map(|h| (h.name.of(&self.text), h.value.of(&self.text)))
    }

    /// The first header of this name.
    pub fn header(&self, name: &[u8]) -> Option<&[u8]> {
        let mut all = self.headers();
        all.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Whether the connection persists after the body.
    pub fn keeps(&self) -> bool {
        !self.closes
    }

    /// Reads the body. Stops after the first read that goes beyond `most` bytes.
    pub async fn body(&mut self, from: &impl Incoming, most: usize) -> Result<ReplyBody, Unread> {
        let mut body = ReplyBody::default();
        let ends_with_connection = self.decoder.is_none();
        let mut decoder = self.decoder.take().unwrap_or_else(BodyDecoder::until_close);
        let mut buf = std::mem::take(&mut self.rest);
        loop {
            let mut at = 0;
            loop {
                let input = buf.get(at..).unwrap_or_default();
                let step = decoder.decode(input).map_err(BadReply::Body)?;
                body.bytes.extend_from_slice(input.get(step.data.clone()).unwrap_or_default());
                at += step.consumed;
                if step.done {
                    body.is_whole = true;
                    body.reusable = self.keeps() && at == buf.len();
                    return Ok(body);
                }
                if step.consumed == 0 || at >= buf.len() {
                    break;
                }
            }
            buf.drain(..at.min(buf.len()));
            if body.bytes.len() > most {
                return Ok(body);
            }
            if !from.more(&mut buf).await? {
                body.is_whole = ends_with_connection;
                return Ok(body);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// What a server sends, piece by piece; then it closes.
    struct Pieces(RefCell<VecDeque<Vec<u8>>>);

    impl Incoming for Pieces {
        async fn readable(&self) -> io::Result<()> {
            Ok(())
        }

        fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
            let piece = self.0.borrow_mut().pop_front().unwrap_or_default();
            buf.extend_from_slice(&piece);
            Ok(Some(piece.len()))
        }
    }

    /// Status, body, and whether the connection may serve another request; or what is wrong.
    fn read(text: &str, pieces: usize) -> Result<(u16, String, bool), String> {
        let all = text.as_bytes().chunks(text.len().div_ceil(pieces)).map(<[u8]>::to_vec);
        let from = Pieces(RefCell::new(all.collect()));
        let reading = async {
            let mut reply = Reply::read(&from).await?;
            let body = reply.body(&from, 100).await?;
            let bytes = String::from_utf8_lossy(&body.bytes).into_owned();
            Ok((reply.status(), bytes, body.reusable))
        };
        let Poll::Ready(read) = pin!(reading).poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("nothing is waited for");
        };
        read.map_err(|error| match error {
            Unread::Io(error) => error.to_string(),
            Unread::Wrong(error) => error.to_string(),
        })
    }

    #[test]
    fn an_answer_is_read_whole_however_it_comes() {
        for (text, status, body, reusable) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok", true),
            (
                "HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",
                503,
                "",
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                200,
                "ok",
                true,
            ),
            ("HTTP/1.1 204 None\r\n\r\n", 204, "", true),
            ("HTTP/1.1 304 Same\r\nContent-Length: 7\r\n\r\n", 304, "", true),
            // Its end is the connection's; it closes; it is of an older version; it says more than it should.
            ("HTTP/1.1 200 OK\r\n\r\nok", 200, "ok", false),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x, close\r\n\r\nok",
                200,
                "ok",
                false,
            ),
            ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokay", 200, "ok", false),
            // It breaks off.
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", 200, "ok", false),
        ] {
            let whole = Ok((status, body.to_owned(), reusable));
            assert_eq!(read(text, 1), whole, "{text}");
            let bytewise = read(text, text.len());
            // What comes behind the answer is not there yet.
            if !text.ends_with("okay") {
                assert_eq!(bytewise, whole, "{text}");
            }
        }
    }

    #[test]
    fn what_is_no_answer_is_said() {
        let endless = "HTTP/1.1 100 Go on\r\n\r\n".repeat(HEAD / 10);
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "a".repeat(HEAD));
        let body = format!("HTTP/1.1 200 OK\r\n\r\n{}", "a".repeat(300));
        for (text, why) in [
            ("HTTP/1.1 200 OK\r\n", "upstream prematurely closed connection"),
            ("hello\r\n\r\n", "upstream sent no valid HTTP/1.0 header"),
            (endless.as_str(), "upstream sent too many interim responses"),
            (long.as_str(), "upstream sent too big header"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
                "upstream sent duplicate header line: \"Content-Length: 1\", previous value: \"Content-Length: 1\"",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
                "upstream sent invalid chunked response",
            ),
        ] {
            assert_eq!(read(text, 1), Err(why.to_owned()));
        }
        // No more is read than is asked for, and a piece.
        let (_, read, _) = read(&body, 30).unwrap();
        assert!(read.len() > 100 && read.len() < 120, "{}", read.len());
    }
}
