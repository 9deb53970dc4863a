//! The requests that are sent to generated sites.

use weir_testkit::Dice;

/// A request, before a protocol has given it its form.
#[derive(Clone, Debug)]
pub struct Ask {
    pub wire: Wire,
    pub method: &'static str,
    pub target: String,
    pub host: String,
    /// HTTP/1.0 or HTTP/1.1, where that is the protocol.
    pub version: &'static str,
    /// Names and values; `Connection` goes over HTTP/1 only.
    pub fields: Vec<(&'static str, String)>,
    pub body: &'static str,
    pub framing: Framing,
}

/// How a request reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Plain,
    Tls,
    Http2,
    Http2Tls,
}

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    None,
    Length,
    /// In chunks; over HTTP/2, by the end of the stream alone.
    Open,
}

pub const WIRES: &[Wire] = &[Wire::Plain, Wire::Plain, Wire::Tls, Wire::Http2, Wire::Http2Tls];

const PATHS: &[&str] = &[
    "/p/a.html",
    "/p/b.txt",
    "/p/c.json",
    "/p/",
    "/p",
    "/p/none",
    "/p/ssi.html",
    "/p/link.txt",
    "/p/n/a.html",
    "/p/n/b.txt",
    "/p/n/",
    "/p/n",
    "/p/n/none",
    "/e.txt",
    "/r/b.txt",
    "/r/a.html",
    "/r/",
    "/r/none",
    "/i/b.txt",
    "/i/b.txt?i=1",
    "/i/?i=1",
    "/i/a.html?i=1&s=1",
    "/i/none?i=1",
    "/l/b.txt",
    "/l/",
    "/l/none",
    "/",
    "/none",
    "//p//b.txt",
    "/yes",
];

/// Fields that one request has together.
const FIELDS: &[&[(&str, &str)]] = &[
    &[],
    &[],
    &[],
    &[("Accept-Encoding", "gzip")],
    &[("Accept-Encoding", "gzip"), ("Via", "1.1 x"), ("User-Agent", "agent")],
    &[("Range", "bytes=1-3")],
    &[("Range", "bytes=0-0,2-3")],
    &[("If-Modified-Since", "Sun, 13 Sep 2020 12:26:40 GMT")],
    &[("If-None-Match", "\"5f5e1000-7d0\"")],
    &[("Authorization", "Basic dTpw")],
    &[("Authorization", "Basic dTp3")],
    &[("X-Forwarded-For", "1.2.3.4"), ("X-Real-IP", "10.1.1.1")],
    &[("X-Forwarded-For", "1.2.3.4, 10.1.1.1, 127.0.0.1"), ("X", "1.2.3.4")],
    &[("Referer", "http://s1.example/x")],
    &[("Referer", "garbage")],
    &[("X_Under", "y"), ("X", "a"), ("X", "b")],
    &[("User-Agent", "Mozilla/4.0 (compatible; MSIE 6.0; Windows)")],
    &[("Cookie", "a=b"), ("Cookie", "c=d")],
    &[("TE", "trailers"), ("Cookie", "uid=AQAAf2ZvbwAAAAAAAAAAAgA=")],
];

const MORE: &[&str] =
    &["", "", "", "s=1", "up=404", "up=move", "up=accel", "up=odd", "up=500", "up=304", "up=cut"];

impl Ask {
    /// Its body comes in frames.
    pub fn is_body_over_http2(&self) -> bool {
        matches!(self.wire, Wire::Http2 | Wire::Http2Tls) && !self.body.is_empty()
    }

    /// One for a connection of its own; `old` for an nginx that reads repeated fields otherwise.
    pub fn any(dice: &mut Dice, old: bool) -> Ask {
        let methods = ["GET", "GET", "GET", "GET", "GET", "HEAD", "POST", "PUT", "OPTIONS"];
        let method = dice.pick(&methods);
        let mut target = dice.pick(PATHS).to_owned();
        let more = dice.pick(MORE);
        if !more.is_empty() {
            target += if target.contains('?') { "&" } else { "?" };
            target += more;
        }
        let mut fields: Vec<(&str, String)> =
            dice.pick(FIELDS).iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        if old {
            // `$http_x` joins the values of several lines only since nginx 1.23.
            fields.retain(|(name, value)| *name != "X" || value != "b");
        }
        let sends = matches!(method, "POST" | "PUT");
        let body = if sends { dice.pick(&["", "body", "0123456789"]) } else { "" };
        let framing = match sends {
            true => dice.pick(&[Framing::Length, Framing::Length, Framing::Open]),
            false => Framing::None,
        };
        // weir tells no body from an empty body if the body comes in time.
        let framing = if sends && body.is_empty() { Framing::Length } else { framing };
        if sends {
            fields.push(("Content-Type", "text/sent".to_owned()));
        }
        match dice.below(3) {
            0 => fields.push(("Connection", "close".to_owned())),
            1 => fields.push(("Connection", "keep-alive".to_owned())),
            _ => {}
        }
        Ask {
            wire: dice.pick(WIRES),
            method,
            target,
            host: "s1.example".to_owned(),
            version: dice.pick(&["1.1", "1.1", "1.1", "1.1", "1.0"]),
            fields,
            body,
            framing,
        }
    }

    pub fn is_http2(&self) -> bool {
        matches!(self.wire, Wire::Http2 | Wire::Http2Tls)
    }

    /// As HTTP/1 says it.
    pub fn http1(&self) -> Vec<u8> {
        let (method, target, version) = (self.method, &self.target, self.version);
        let mut text = format!("{method} {target} HTTP/{version}\r\nHost: {}\r\n", self.host);
        for (name, value) in &self.fields {
            text += &format!("{name}: {value}\r\n");
        }
        let chunked = self.framing == Framing::Open && self.version == "1.1";
        if chunked {
            text += "Transfer-Encoding: chunked\r\n";
        } else if self.framing != Framing::None {
            text += &format!("Content-Length: {}\r\n", self.body.len());
        }
        text += "\r\n";
        match chunked {
            true if self.body.is_empty() => text += "0\r\n\r\n",
            true => text += &format!("{:x}\r\n{}\r\n0\r\n\r\n", self.body.len(), self.body),
            false => text += self.body,
        }
        text.into_bytes()
    }
}
