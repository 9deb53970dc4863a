//! FastCGI as an upstream protocol.

use std::fmt;

use bytes::Bytes;
use weir_engine::Chain;
use weir_proto::fastcgi::{self, HEAD, PIECE, RecordError, RecordPart, Records, STDIN_END};
use weir_proto::http1::HeaderLine;

use super::Conf;
use crate::body::Body;
use crate::request::Request;
use crate::upstream::cgi::{Announced, ScriptHead};
use crate::upstream::{
    Answer, AnswerError, Extra, Found, Outgoing, OutgoingError, Protocol, Reader, Taken,
};

/// A request to a FastCGI server.
pub struct FastCgi {
    conf: &'static Conf,
    records: Records,
    head: ScriptHead,
    heard: Heard,
    /// The output is complete.
    out_ended: bool,
    /// The request is over.
    ended: bool,
    /// Data were received after the end of the request.
    more: bool,
    /// An error in the records, which is reported when the body has been read up to it.
    broken: Option<RecordError>,
    announced: Announced,
    framing: Framing,
}

/// Why an answer is invalid. The texts are nginx's.
pub enum FastCgiError {
    /// The head of the script is invalid.
    Head(AnswerError),
    /// A record is invalid.
    Record(RecordError),
    /// A log message of the server has a text of `fastcgi_catch_stderr`.
    Caught(String),
    /// The output ended too early.
    OutClosed,
    /// The request ended before the head of its answer.
    NoHead,
    /// The request ended before the body of its answer.
    RequestClosed,
}

impl From<AnswerError> for FastCgiError {
    fn from(error: AnswerError) -> FastCgiError {
        FastCgiError::Head(error)
    }
}

impl fmt::Display for FastCgiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FastCgiError::Head(error) => return error.fmt(f),
            FastCgiError::Record(error) => return error.fmt(f),
            FastCgiError::Caught(text) => text,
            FastCgiError::OutClosed => "upstream prematurely closed FastCGI stdout",
            FastCgiError::NoHead => "upstream sent unexpected FastCGI record: 3",
            FastCgiError::RequestClosed => "upstream prematurely closed FastCGI request",
        })
    }
}

/// The positions and lengths of framing bytes in the output, which usually is one record.
#[derive(Default)]
struct Framing {
    /// All framing bytes.
    total: usize,
    /// Framing bytes before the first output.
    before: usize,
    /// For each later record: framing bytes before it, and the output before it.
    later: Vec<(usize, usize)>,
    /// The head is known, so positions are not recorded any more.
    settled: bool,
}

impl Framing {
    /// Records that output follows `output` bytes of output and `others` framing bytes.
    fn note(&mut self, others: usize, output: usize) {
        match output {
            _ if self.settled => {}
            0 => self.before = self.total + others,
            _ => self.later.push((self.total + others, output)),
        }
    }

    /// Framing bytes after the first `output` bytes of output.
    fn behind(&self, output: usize) -> usize {
        let before = self.later.iter().rev().find(|(_, at)| *at < output);
        self.total - before.map_or(self.before, |(before, _)| *before)
    }
}

/// The server's log messages (FCGI_STDERR).
#[derive(Default)]
struct Heard {
    /// The message that is being received.
    coming: Vec<u8>,
    /// Complete messages.
    said: Vec<String>,
    /// A message that makes the answer invalid, and the length of the output before it.
    caught: Option<(usize, String)>,
}

/// The most messages that wait for the log. More are dropped.
const MESSAGES: usize = 32;
/// The longest part of a message: one log line.
const MESSAGE: usize = 2048;

impl Heard {
    fn add(&mut self, bytes: &[u8]) {
        let room = fastcgi::LONGEST.saturating_sub(self.coming.len());
        self.coming.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    /// Ends a message, at the end of its record.
    fn end(&mut self, caught: &[Vec<u8>], output: usize) {
        let coming = std::mem::take(&mut self.coming);
        let end = coming.iter().rposition(|b| !b"\n\r. ".contains(b)).map_or(0, |at| at + 1);
        let text = coming.get(..end.min(MESSAGE)).unwrap_or_default();
        let text = format!("FastCGI sent in stderr: \"{}\"", weir_log::Bytes(text));
        let holds = |text: &Vec<u8>| memchr::memmem::find(&coming, text).is_some();
        if self.caught.is_none() && caught.iter().any(holds) {
            self.caught = Some((output, text));
        } else if self.said.len() < MESSAGES {
            self.said.push(text);
        }
    }
}

impl FastCgi {
    /// A new request.
    pub fn new(conf: &'static Conf) -> FastCgi {
        FastCgi {
            conf,
            records: Records::default(),
            head: ScriptHead::lines(),
            heard: Heard::default(),
            out_ended: false,
            ended: false,
            more: false,
            broken: None,
            announced: Announced::default(),
            framing: Framing::default(),
        }
    }
}

impl Protocol for FastCgi {
    type Reader = Self;

    fn reader(&mut self) -> &mut Self {
        self
    }

    fn scheme(&self) -> &'static str {
        "fastcgi://"
    }

    fn may_stream(&self, _: &Request) -> bool {
        !self.conf.passing.request_buffering && self.sends_body()
    }

    fn sends_body(&self) -> bool {
        self.conf.passing.pass_request_body
    }

    fn names_itself(&self) -> bool {
        false
    }

    fn request(&mut self, r: &mut Request) -> Result<Outgoing, OutgoingError> {
        let mut out = Vec::with_capacity(ROOM);
        fastcgi::begin(self.conf.keep_conn, &mut out);
        out.resize(out.len() + HEAD, 0);
        let start = out.len();
        let headers = self.conf.passing.pass_request_headers;
        self.conf.params.write::<fastcgi::Params>(r, headers, &mut out);
        fastcgi::end_params(start, &mut out)
            .map_err(|length| OutgoingError::TooLong { what: "fastcgi request record", length })?;
        if !self.sends_body() || !self.streams(r) && r.body.len() == 0 {
            out.extend_from_slice(&STDIN_END);
        }
        Ok(Outgoing { bytes: Bytes::from(out), ..Outgoing::default() })
    }

    fn frame_whole(&self, body: &Body, out: &mut Chain) {
        if body.len() == 0 {
            // Without a body, its end follows the parameters.
            return;
        }
        let mut whole = Chain::new();
        body.append_to(&mut whole);
        while !whole.is_empty() {
            let mut piece = whole.split_to(PIECE as u64);
            push_head(piece.len() as usize, out);
            let padding = fastcgi::padding(piece.len() as usize);
            out.append(&mut piece);
            push_padding(padding, out);
        }
        self.end_frame(out);
    }

    fn frame(&self, mut piece: Bytes, out: &mut Chain) {
        while !piece.is_empty() {
            let part = piece.split_to(piece.len().min(PIECE));
            let padding = fastcgi::padding(part.len());
            push_head(part.len(), out);
            out.push(part);
            push_padding(padding, out);
        }
    }

    fn end_frame(&self, out: &mut Chain) {
        out.push(Bytes::from_static(&STDIN_END));
    }

    /// As in nginx, all answers have the same key without `fastcgi_cache_key`.
    fn cache_key(&self, _: &mut Request, _: &mut Vec<u8>) {}
}

impl Reader for FastCgi {
    type Error = FastCgiError;

    fn restart(&mut self) {
        *self = FastCgi::new(self.conf);
    }

    fn unframe(&mut self, buf: &mut Vec<u8>, from: usize) {
        let (mut at, mut kept) = (from, from);
        while at < buf.len() && self.broken.is_none() {
            if self.ended {
                self.more = true;
                break;
            }
            let (taken, part) = match self.records.decode(&buf[at..]) {
                Ok(step) => step,
                Err(error) => {
                    self.broken = Some(error);
                    break;
                }
            };
            match part {
                RecordPart::Nothing => {}
                RecordPart::Out(range) => {
                    self.framing.note(at - kept, kept);
                    buf.copy_within(at + range.start..at + range.end, kept);
                    kept += range.len();
                }
                RecordPart::Err(range) => {
                    self.heard.add(&buf[at + range.start..at + range.end]);
                    if self.records.is_whole() {
                        // After the head, messages do not make the answer invalid.
                        let caught: &[_] = match self.framing.settled {
                            true => &[],
                            false => &self.conf.catch_stderr,
                        };
                        self.heard.end(caught, kept);
                    }
                }
                RecordPart::OutEnd => self.out_ended = true,
                RecordPart::End => self.ended = true,
            }
            at += taken;
        }
        self.framing.total += buf.len() - kept;
        buf.truncate(kept);
    }

    fn framing_behind(&self, end: usize) -> usize {
        self.framing.behind(end)
    }

    fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.heard.said)
    }

    fn head(&mut self, r: &mut Request, buf: &mut Vec<u8>) -> Result<Found, FastCgiError> {
        let answer = self.head.read(buf)?;
        let caught = self.heard.caught.take();
        let before = |output: usize| answer.as_ref().is_none_or(|answer| output < answer.end);
        match caught {
            Some((output, text)) if before(output) => return Err(FastCgiError::Caught(text)),
            Some((_, text)) => self.heard.said.push(text),
            None => {}
        }
        let Some(mut answer) = answer else {
            return match self.broken.take() {
                Some(error) => Err(FastCgiError::Record(error)),
                None if self.out_ended => Err(FastCgiError::OutClosed),
                None if self.ended => Err(FastCgiError::NoHead),
                None => Ok(Found::More),
            };
        };
        if answer.status == 101 {
            return Err(AnswerError::Status("101".to_owned()).into());
        }
        self.framing.settled = true;
        self.announced = Announced::by(r, &answer);
        let left = self.announced.is_left(r, &self.conf.passing);
        answer.keepalive = self.conf.keep_conn && (self.ended || !left);
        Ok(Found::Head(answer))
    }

    fn lines(&mut self) -> Vec<HeaderLine> {
        self.head.take_lines()
    }

    fn has_body(&mut self, r: &Request, answer: &Answer) -> bool {
        if self.announced.is_left(r, &self.conf.passing) {
            return false;
        }
        let whole = self.ended && !self.announced.is_due() && self.broken.is_none() && !self.more;
        !whole || r.contexts.upstream.head.len() > answer.end
    }

    fn body(&mut self, buf: &mut Vec<u8>) -> Result<Taken, FastCgiError> {
        if let Some(extra) = self.announced.take(buf) {
            return Ok(Taken { done: true, extra: Some(extra) });
        }
        if let Some(error) = self.broken.take() {
            return Err(FastCgiError::Record(error));
        }
        if self.announced.is_due() && self.out_ended {
            return Err(FastCgiError::OutClosed);
        }
        if self.announced.is_due() && self.ended {
            return Err(FastCgiError::RequestClosed);
        }
        // Bytes after the end of the request are an error.
        let extra = self.more.then_some(AFTER_END);
        Ok(Taken { done: self.ended, extra })
    }

    fn comes_in_pieces(&self) -> bool {
        // The connection stays open, so each record is complete by itself.
        self.conf.keep_conn
    }

    fn ends_with_connection(&self) -> bool {
        // With `fastcgi_keep_conn` a record ends the request. It is waited for if the answer is
        // buffered.
        let ends = !self.conf.keep_conn || self.out_ended && !self.conf.passing.buffering;
        ends && !self.ended && self.records.is_between() && !self.announced.is_due()
    }
}

fn push_head(length: usize, out: &mut Chain) {
    out.push(Bytes::copy_from_slice(&fastcgi::stdin(length)));
}

fn push_padding(length: usize, out: &mut Chain) {
    const ZEROES: &[u8; HEAD] = &[0; HEAD];
    out.push(Bytes::from_static(ZEROES.get(..length).unwrap_or_default()));
}

const AFTER_END: Extra = Extra::warned("upstream sent data after the end of its FastCGI request");
/// The first allocation for a request, enough for most.
const ROOM: usize = 2048;
