//! Parses answers of HTTP servers. An answer over HTTP/2 has its head in HTTP/1 form, and no
//! framing.

use weir_proto::http1::{
    BodyDecoder, HeadProgress, HeaderLine, Method, ResponseError, ResponseParser, Version,
};
use weir_upstream::framing::Framing;

use crate::answer::headers::Headers;
use crate::request::Request;
use crate::upstream::protocol::{Extra, TOO_MUCH};
use crate::upstream::{Answer, AnswerError, Found, Reader, Taken};

/// Parses one answer after another.
pub struct Answers {
    parser: ResponseParser,
    body: Body,
    /// Answers come from streams of HTTP/2.
    shared: bool,
    /// The longest trailers of chunked bodies; `None` if they are not wanted.
    trailers: Option<usize>,
    /// The request is HEAD: no body follows, whatever the head says.
    to_head: bool,
    /// The body is chunked.
    framed_in_chunks: bool,
    until_close: bool,
}

/// The state of the body.
enum Body {
    /// It is over.
    Over,
    /// It is being read.
    Coming(BodyDecoder),
    /// It is being read, and ends with its stream. The bytes that are left of `Content-Length`, if
    /// given.
    Stream(Option<u64>),
}

impl Answers {
    /// The parser before the first answer.
    pub fn new(shared: bool, trailers: Option<usize>) -> Answers {
        Answers {
            parser: ResponseParser::new(),
            body: Body::Over,
            shared,
            trailers,
            to_head: false,
            framed_in_chunks: false,
            until_close: false,
        }
    }

    /// Sets whether the request is HEAD.
    pub fn set_head_only(&mut self, yes: bool) {
        self.to_head = yes;
    }
}

impl Reader for Answers {
    type Error = AnswerError;

    fn restart(&mut self) {
        self.parser.reset();
        (self.body, self.until_close) = (Body::Over, false);
    }

    fn head(&mut self, r: &mut Request, buf: &mut Vec<u8>) -> Result<Found, AnswerError> {
        match self.parser.parse(buf) {
            Ok(HeadProgress::Done) => {}
            Ok(_) => return Ok(Found::More),
            Err(ResponseError::NoStatusLine) if !r.is_main() => return Ok(self.old_answer(r)),
            Err(error) => return Err(AnswerError::head(error, buf)),
        }
        let head = self.parser.head();
        let end = head.end as usize;
        if (100..200).contains(&head.status) && head.status != 101 {
            if head.version < Version::Http11 && head.status == 103 {
                return Err(AnswerError::EarlyHints);
            }
            let head = self.parser.take_head();
            self.parser.reset();
            return Ok(Found::Interim(head.status, head.headers, end));
        }
        let framing = Framing::of(&head.headers, buf)?;
        Ok(self.understood(framing))
    }

    fn lines(&mut self) -> Vec<HeaderLine> {
        self.parser.take_head().headers
    }

    fn has_body(&mut self, r: &Request, answer: &Answer) -> bool {
        // Data after an answer without a body count as a body, so that they are logged. After HEAD
        // they are ignored.
        let more = || r.method != Method::Head && r.contexts.upstream.head.len() > answer.end;
        !matches!(self.body, Body::Over) || more()
    }

    fn body(&mut self, buf: &mut Vec<u8>) -> Result<Taken, AnswerError> {
        let (mut at, mut kept, mut taken) = (0, 0, Taken::default());
        let chunked = self.framed_in_chunks;
        let decoder = match &mut self.body {
            Body::Coming(decoder) => decoder,
            Body::Stream(left) => return rest_of_stream(left, buf),
            Body::Over => {
                buf.clear();
                return Ok(Taken { done: true, extra: Some(TOO_MUCH) });
            }
        };
        while at < buf.len() && !taken.done {
            let step = match decoder.decode(&buf[at..]) {
                Ok(step) => step,
                Err(error) => {
                    buf.truncate(kept);
                    return Err(error.into());
                }
            };
            let data = at + step.data.start..at + step.data.end;
            let len = data.len();
            if data.start != kept {
                buf.copy_within(data, kept);
            }
            kept += len;
            at += step.consumed;
            taken.done = step.done;
            if step.consumed == 0 {
                break;
            }
        }
        if taken.done && at < buf.len() {
            taken.extra = Some(if chunked { AFTER_CHUNKS } else { TOO_MUCH });
        }
        buf.truncate(kept);
        Ok(taken)
    }

    fn comes_in_pieces(&self) -> bool {
        self.framed_in_chunks || self.shared
    }

    fn ends_with_connection(&self) -> bool {
        self.until_close || matches!(self.body, Body::Stream(None | Some(0)))
    }

    fn trailers(&self, out: &mut Headers) {
        let Body::Coming(decoder) = &self.body else { return };
        let Some(trailers) = decoder.trailers() else { return };
        let (bytes, headers) = trailers.headers();
        for header in headers {
            out.add(header.name.of(bytes), header.value.of(bytes));
        }
    }
}

/// Counts a piece of a body that ends with its stream.
fn rest_of_stream(left: &mut Option<u64>, buf: &mut Vec<u8>) -> Result<Taken, AnswerError> {
    if let Some(announced) = left {
        let Some(rest) = announced.checked_sub(buf.len() as u64) else {
            buf.clear();
            return Err(AnswerError::Larger);
        };
        *announced = rest;
    }
    Ok(Taken::default())
}

const AFTER_CHUNKS: Extra = Extra::warned("upstream sent data after final chunk");

impl Answers {
    /// Handles an answer without a head. In a subrequest it is a body of HTTP/0.9. The main request
    /// cannot use it, since it would need a head.
    fn old_answer(&mut self, r: &Request) -> Found {
        let text = "upstream sent no valid HTTP/1.0 header";
        r.log(
            weir_log::Level::Error,
            format_args!("{text} while reading response header from upstream"),
        );
        (self.body, self.until_close) = (Body::Coming(BodyDecoder::until_close()), true);
        Found::Head(Answer::of_no_head())
    }

    fn understood(&mut self, framing: Framing) -> Found {
        let head = self.parser.take_head();
        let length = if framing.chunked { None } else { framing.length };
        let shared = self.shared;
        // A stream ends where it says so: trailers may follow an empty body.
        let empty = length == Some(0) && !shared;
        let bodiless = self.to_head || matches!(head.status, 101 | 204 | 304) || empty;
        self.framed_in_chunks = framing.chunked;
        self.until_close = !bodiless && !shared && !framing.chunked && length.is_none();
        self.body = match length {
            _ if bodiless => Body::Over,
            _ if shared => Body::Stream(length),
            _ if framing.chunked => Body::Coming(match self.trailers {
                Some(limit) => BodyDecoder::chunked_with_trailers(limit),
                None => BodyDecoder::chunked(),
            }),
            Some(n) => Body::Coming(BodyDecoder::length(n)),
            None => Body::Coming(BodyDecoder::until_close()),
        };
        Found::Head(Answer {
            status: head.status,
            // HTTP/2 has no reason phrase. Over HTTP/1, a status line without one is passed on as
            // it is.
            status_line: (!shared || head.status_line.len() > 3).then_some(head.status_line),
            end: head.end as usize,
            length,
            keepalive: head.version >= Version::Http11
                && !(framing.close || shared)
                && head.status != 101,
            headers: head.headers,
        })
    }
}
