//! A request that both a used and a fresh server are asked, on either protocol.

use weir_proto::http2::frame::{self, FrameHead, FrameType};
use weir_proto::http2::hpack;
use weir_testkit::Dice;

use super::site::PATHS;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ask {
    pub http2: bool,
    pub method: &'static str,
    path: &'static str,
    fields: [(&'static str, &'static str); 2],
    body: &'static str,
    pub flaw: Option<Flaw>,
}

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Behind all fields stands a byte that does not belong there.
    Byte,
    /// There is a second `Host`, or a second `:path`.
    Twice,
    /// A field is larger than any may be.
    Large,
    /// The body is larger than it may be.
    LargeBody,
}

const FIELDS: &[(&str, &str)] = &[
    ("x-none", ""),
    ("x-mine", "1"),
    ("cookie", "a=b; c=d"),
    ("range", "bytes=2-5"),
    ("range", "bytes=0-1,100-"),
    ("accept-encoding", "gzip"),
    ("accept-encoding", "br, zstd;q=0.5"),
    ("if-none-match", "*"),
    ("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT"),
    ("content-type", "text/x-mine"),
    ("authorization", "Basic bWU6eA=="),
    ("authorization", "Basic bWU6c2VjcmV0"),
    ("user-agent", "me"),
    ("referer", "http://good.example/"),
    ("x-forwarded-for", "10.1.2.3, 10.9.9.9"),
    ("expect", "200-ok"),
    ("te", "trailers"),
];

/// Where answers are stored.
const STORED: &str = "/cached";

impl Ask {
    pub fn any(dice: &mut Dice) -> Ask {
        let flaws = [Flaw::Byte, Flaw::Twice, Flaw::Large, Flaw::LargeBody];
        let flaw = dice.one_in(6).then(|| dice.pick(&flaws));
        let with_body = dice.one_in(3) || flaw == Some(Flaw::LargeBody);
        let mut fields = [dice.pick(FIELDS), dice.pick(FIELDS)];
        if fields[0].0 == fields[1].0 {
            fields[1] = FIELDS[0];
        }
        let method = match with_body {
            true => dice.pick(&["POST", "POST", "PUT"]),
            false => dice.pick(&["GET", "GET", "GET", "GET", "HEAD", "OPTIONS"]),
        };
        let body = if with_body { dice.pick(&["b", "body=1&c=2"]) } else { "" };
        let (http2, path) = (dice.one_in(2), dice.pick(PATHS));
        // An answer that is being stored is sent as a whole, even if the request names several
        // parts. A stored one is sent in parts.
        if path.starts_with(STORED) {
            fields
                .iter_mut()
                .filter(|field| field.1.contains(",100-"))
                .for_each(|f| *f = FIELDS[0]);
        }
        Ask { http2, method, path, fields, body, flaw }
    }

    /// The answer may be one that was given to another.
    pub fn is_stored(&self) -> bool {
        self.path.starts_with(STORED)
    }

    fn length(&self) -> usize {
        if self.flaw == Some(Flaw::LargeBody) { 1 << 20 } else { self.body.len() }
    }

    fn large(&self) -> String {
        if self.flaw == Some(Flaw::Large) { "l".repeat(9000) } else { "s".to_owned() }
    }

    /// As text, or as frames of stream `id`.
    pub fn bytes(&self, id: u32) -> Vec<u8> {
        if self.http2 { self.frames(id) } else { self.text() }
    }

    fn text(&self) -> Vec<u8> {
        let Ask { method, path, fields, body, .. } = self;
        let (length, large) = (self.length(), self.large());
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nx-l: {large}\r\n");
        for (name, value) in fields {
            text += &format!("{name}: {value}\r\n");
        }
        if length > 0 {
            text += &format!("content-length: {length}\r\n");
        }
        text += match self.flaw {
            Some(Flaw::Byte) => "x\0: y\r\n",
            Some(Flaw::Twice) => "host: b\r\n",
            _ => "",
        };
        (text + "\r\n" + body).into_bytes()
    }

    fn frames(&self, id: u32) -> Vec<u8> {
        let mut out = Vec::new();
        let begin = frame::leave_head(&mut out);
        let (length, large) = (self.length().to_string(), self.large());
        let path = (":path", self.path);
        let again = if self.flaw == Some(Flaw::Twice) { path } else { ("x-n", "") };
        for (name, value) in [
            (":method", self.method),
            (":scheme", "http"),
            path,
            (":authority", "a"),
            self.fields[0],
            self.fields[1],
            ("x-l", &large),
            ("content-length", &length),
            again,
        ] {
            if name != "content-length" || value != "0" {
                hpack::field(name.as_bytes(), value.as_bytes(), &mut out);
            }
        }
        if self.flaw == Some(Flaw::Byte) {
            out.push(0x80);
        }
        let flags = if self.body.is_empty() { frame::END_STREAM } else { 0 };
        frame::finish_headers(&mut out, begin, id, flags, frame::MAX_PAYLOAD);
        if !self.body.is_empty() {
            let flags = frame::END_STREAM;
            FrameHead { len: self.body.len(), kind: FrameType::Data, flags, stream: id }
                .write(&mut out);
            out.extend_from_slice(self.body.as_bytes());
        }
        out
    }
}
