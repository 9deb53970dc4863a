//! One request of a client over HTTP/3: what is sent, and how the answer is read and checked.

use weir_testkit::Dice;

use crate::book::Book;
use crate::client::{Ask, Head, Kind};
use crate::fields::{self, DATA, HEADERS, frame, take_number};
use crate::pattern;

/// Fields of an answer are shorter.
const LONGEST: usize = 70_000;

/// One request.
pub struct Stream {
    pub ask: Ask,
    pub out: Vec<u8>,
    pub at: usize,
    /// The end is said now, or later.
    pub ends: bool,
    pub buf: Vec<u8>,
    /// What is left of a frame of data.
    pub data: u64,
    pub head: Option<fields::Read>,
    pub body: Vec<u8>,
    /// The client wants no more after so many bytes.
    pub enough: Option<usize>,
    /// The client gives up what it sends after so many bytes.
    pub breaks: Option<usize>,
}

/// A request as bytes.
pub fn write(ask: &Ask, dice: &mut Dice) -> Vec<u8> {
    let (path, id) = (ask.path(), ask.id.to_string());
    let range = ask.range.map(|(from, to)| format!("bytes={from}-{to}"));
    let mut all = vec![
        (":method", ask.method()),
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
    let len = if let Kind::Upload(len) = ask.kind { Some(len) } else { None };
    let text = len.map(|len| len.to_string());
    if let Some(text) = text.as_ref().filter(|_| dice.one_in(2)) {
        all.push(("content-length", text));
    }
    let (mut section, mut out) = (Vec::new(), Vec::new());
    fields::section(&mut section, &all);
    if dice.one_in(4) {
        // A frame that means nothing.
        frame(&mut out, 0x21 + 0x1f * 3, b"grease");
    }
    frame(&mut out, HEADERS, &section);
    let (mut at, len) = (0, len.unwrap_or(0));
    while at < len {
        let n = (1 + dice.below(70_000) as u64).min(len - at);
        let mut piece = Vec::new();
        pattern::fill(&mut piece, ask.id, at, n);
        frame(&mut out, DATA, &piece);
        at += n;
    }
    out
}

impl Stream {
    /// Reads frames as far as they have come. What is wrong with them.
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
                // Fields after a body have no status, and an interim answer is none.
                if self.head.is_none() && head.status >= 200 {
                    self.head = Some(head);
                }
            }
            self.buf.drain(..used + len as usize);
        }
    }

    /// Checks what has come of an answer, or all of it.
    pub fn judge(&self, whole: bool, book: &mut Book) {
        let ask = &self.ask;
        let (id, path) = (ask.id, ask.path());
        let Some(read) = &self.head else {
            if whole {
                ask.doubt(book, format!("request {id} {path} over HTTP/3 ended without a head"));
            }
            return;
        };
        let field = |name: &str| {
            let found = read.fields.iter().find(|(n, _)| n == name);
            found.map(|(_, value)| value.clone())
        };
        let head = Head { status: read.status, field: &field };
        let text = match ask.owner(&head) {
            Err(why) => format!("got {why}: {read:?}"),
            Ok(None) => String::new(),
            Ok(Some((owner, from, len))) => {
                book.verified += self.body.len() as u64;
                let expected = if ask.head_only { 0 } else { len };
                let seen = self.body.len() as u64;
                match pattern::first_wrong(owner, from, &self.body) {
                    Some(at) => format!("got wrong bytes at {at} of {len}"),
                    None if seen > expected || whole && seen != expected && !ask.excused => {
                        format!("got {seen} bytes instead of {expected}")
                    }
                    None => String::new(),
                }
            }
        };
        if !text.is_empty() {
            ask.doubt(book, format!("request {id} {path} over HTTP/3 {text}"));
        }
        let within = self.data > 0 || !self.buf.is_empty();
        if whole && within {
            ask.doubt(book, format!("request {id} {path} over HTTP/3 ended within a frame"));
        }
        if whole {
            let count = if read.status < 300 { &mut book.answered } else { &mut book.failed };
            *count += 1;
            book.over_quic += 1;
        }
    }

    /// It is not answered, or not as a whole.
    pub fn fails(&self, why: String, book: &mut Book) {
        let ask = &self.ask;
        if ask.excused || ask.changes && self.head.is_some() {
            book.excused += 1;
            return;
        }
        let (id, path, seen) = (ask.id, ask.path(), self.body.len());
        let begun = if self.head.is_some() { "begun" } else { "not begun" };
        let text = format!("request {id} {path} over HTTP/3: {why}, {begun}, {seen} bytes");
        ask.doubt(book, text);
    }
}
