//! A request over HTTP/3: its bytes, and how its answer is parsed and checked.

use weir_testkit::Dice;

use crate::client_request::{ClientRequest, Head, RequestKind};
use crate::fields::{self, DATA, HEADERS, frame, take_number};
use crate::pattern;
use crate::records::Records;

/// Longest field section of an answer.
const LONGEST: usize = 70_000;

/// A request and its answer.
pub struct Stream {
    pub request: ClientRequest,
    pub out: Vec<u8>,
    pub at: usize,
    /// Whether the stream is to be finished once all is written.
    pub ends: bool,
    pub buf: Vec<u8>,
    /// The bytes that are left of a DATA frame.
    pub data: u64,
    pub head: Option<fields::Read>,
    pub body: Vec<u8>,
    /// The client cancels the request after this many bytes of the answer.
    pub enough: Option<usize>,
    /// The client resets the request after sending this many bytes.
    pub breaks: Option<usize>,
}

/// Encodes a request.
pub fn write(request: &ClientRequest, dice: &mut Dice) -> Vec<u8> {
    let (path, id) = (request.path(), request.id.to_string());
    let range = request.range.map(|(from, to)| format!("bytes={from}-{to}"));
    let mut all = vec![
        (":method", request.method()),
        (":scheme", "https"),
        (":authority", "h"),
        (":path", &path),
        ("x-ask", &id),
    ];
    if let Some(range) = &range {
        all.push(("range", range));
    }
    let long = "y".repeat(dice.below(3_000));
    if dice.one_in(4) {
        all.push(("x-long", &long));
    }
    let len = if let RequestKind::Upload(len) = request.kind { Some(len) } else { None };
    let text = len.map(|len| len.to_string());
    if let Some(text) = text.as_ref().filter(|_| dice.one_in(2)) {
        all.push(("content-length", text));
    }
    let (mut section, mut out) = (Vec::new(), Vec::new());
    fields::section(&mut section, &all);
    if dice.one_in(4) {
        // A reserved frame type, which the server must ignore.
        frame(&mut out, 0x21 + 0x1f * 3, b"grease");
    }
    frame(&mut out, HEADERS, &section);
    let (mut at, len) = (0, len.unwrap_or(0));
    while at < len {
        let n = (1 + dice.below(70_000) as u64).min(len - at);
        let mut piece = Vec::new();
        pattern::fill(&mut piece, request.id, at, n);
        frame(&mut out, DATA, &piece);
        at += n;
    }
    out
}

impl Stream {
    /// Parses frames as far as they have arrived. Returns what is wrong with them.
    pub fn parse(&mut self) -> Option<String> {
        loop {
            let take = (self.data.min(self.buf.len() as u64)) as usize;
            self.body.extend(self.buf.drain(..take));
            self.data -= take as u64;
            let mut rest = &self.buf[..];
            if self.data > 0 || rest.is_empty() {
                return None;
            }
            let (Some(kind), Some(len)) = (take_number(&mut rest), take_number(&mut rest)) else {
                return None;
            };
            let used = self.buf.len() - rest.len();
            if kind == DATA {
                if self.head.is_none() {
                    return Some("data before a head".to_owned());
                }
                self.data = len;
                self.buf.drain(..used);
                continue;
            }
            if len as usize > LONGEST {
                return Some(format!("a frame of type {kind} and {len} bytes"));
            }
            let payload = rest.get(..len as usize)?;
            if kind == HEADERS {
                let Some(head) = fields::read(payload) else {
                    return Some(format!("fields {payload:x?}"));
                };
                // Trailers have no status, and an interim answer is not the answer.
                if self.head.is_none() && head.status >= 200 {
                    self.head = Some(head);
                }
            }
            self.buf.drain(..used + len as usize);
        }
    }

    /// Checks an answer, or what has arrived of it.
    pub fn judge(&self, whole: bool, records: &mut Records) {
        let request = &self.request;
        let (id, path) = (request.id, request.path());
        let Some(read) = &self.head else {
            if whole {
                request.suspect(
                    records,
                    format!("request {id} {path} over HTTP/3 ended without a head"),
                );
            }
            return;
        };
        let field = |name: &str| {
            let found = read.fields.iter().find(|(n, _)| n == name);
            found.map(|(_, value)| value.clone())
        };
        let head = Head { status: read.status, field: &field };
        let text = match request.expected_body(&head) {
            Err(why) => format!("got {why}: {read:?}"),
            Ok(None) => String::new(),
            Ok(Some((owner, from, len))) => {
                records.verified += self.body.len() as u64;
                let expected = if request.head_only { 0 } else { len };
                let seen = self.body.len() as u64;
                match pattern::first_wrong(owner, from, &self.body) {
                    Some(at) => format!("got wrong bytes at {at} of {len}"),
                    None if seen > expected || whole && seen != expected && !request.excused => {
                        format!("got {seen} bytes instead of {expected}")
                    }
                    None => String::new(),
                }
            }
        };
        if !text.is_empty() {
            request.suspect(records, format!("request {id} {path} over HTTP/3 {text}"));
        }
        let within = self.data > 0 || !self.buf.is_empty();
        if whole && within {
            request
                .suspect(records, format!("request {id} {path} over HTTP/3 ended within a frame"));
        }
        if whole {
            let count = if read.status < 300 { &mut records.answered } else { &mut records.failed };
            *count += 1;
            records.over_quic += 1;
        }
    }

    /// Reports that the request was not completely answered.
    pub fn fails(&self, why: String, records: &mut Records) {
        let request = &self.request;
        if request.excused || request.changes && self.head.is_some() {
            records.excused += 1;
            return;
        }
        let (id, path, seen) = (request.id, request.path(), self.body.len());
        let begun = if self.head.is_some() { "begun" } else { "not begun" };
        let text = format!("request {id} {path} over HTTP/3: {why}, {begun}, {seen} bytes");
        request.suspect(records, text);
    }
}
