//! The client of a case: it reads what has come, and only then lets the server go on.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use flate2::write::GzDecoder;
use weir_proto::http2::frame::{self, FrameHead, FrameType};
use weir_proto::http2::hpack::{self, Decoder, FieldLimits};
use weir_testkit::{PATIENCE, Server};

use crate::PIECES;
use crate::case::{Case, Out, Setting, Step, Way, Wire};
use crate::origin::{Origins, holds, mark, piece};
use crate::secured::secured;

trait Socket: Read + Write {}
impl<T: Read + Write> Socket for T {}

/// A request on its way, and what has come of its answer.
struct Conn {
    raw: TcpStream,
    socket: Box<dyn Socket>,
    is_http2: bool,
    /// What has come and was not understood yet.
    got: Vec<u8>,
    has_hints: bool,
    has_head: bool,
    chunked: bool,
    left: Option<usize>,
    gzip: Option<GzDecoder<Vec<u8>>>,
    decoder: Decoder,
    body: Vec<u8>,
    status: u16,
    ended: bool,
}

/// Performs a case: which steps came before more was sent. `patience` says of each whether it is waited for, and how long. If
/// `strict`, one that was waited for must come.
pub fn talk(
    n: usize,
    case: &Case,
    origins: &Origins,
    server: &Server,
    strict: bool,
    patience: &dyn Fn(usize) -> Option<Duration>,
) -> Result<Vec<bool>, String> {
    let run = origins.begin(n, case);
    let mut conn = Conn::ask(case, server, &run.uri).map_err(|e| format!("asking: {e}"))?;
    let mut follower = None;
    let mut seen = Vec::new();
    for (i, step) in case.steps().into_iter().enumerate() {
        if let (Step::Piece(n), true) = (step, case.has_body()) {
            conn.send_piece(case, n).map_err(|e| format!("sending {step:?}: {e}"))?;
        }
        let came = match patience(i) {
            None => false,
            Some(patience) if case.is_up() => run.has_arrived(i + 1, patience),
            Some(patience) => match step {
                Step::Hints => conn.until(patience, |conn| conn.has_hints),
                Step::Head => conn.until(patience, |conn| conn.has_head),
                Step::Piece(n) => conn.until(patience, |conn| holds(&conn.body, &mark(n))),
            }
            .map_err(|e| format!("reading {step:?}: {e}; {conn:?}"))?,
        };
        if strict && !came && patience(i).is_some() {
            return Err(format!("{step:?} is held back; {conn:?}"));
        }
        if let (Step::Piece(n), Way::Tunnel) = (step, case.way) {
            let back = piece(n, case.size);
            conn.socket.write_all(&back).map_err(|e| format!("sending back: {e}"))?;
        }
        if came && case.is_followed() && follower.is_none() {
            follower =
                Some(Conn::ask(case, server, &run.uri).map_err(|e| format!("following: {e}"))?);
        }
        run.allow(i + 1);
        seen.push(came);
    }
    for mut conn in [Some(conn), follower].into_iter().flatten() {
        let ended = conn.until(PATIENCE, |conn| conn.ended);
        let ended = ended.map_err(|e| format!("reading to the end: {e}; {conn:?}"))?;
        let whole = match case.is_up() {
            true => holds(&conn.body, b"taken"),
            false => (0..PIECES).all(|n| holds(&conn.body, &piece(n, case.size))),
        };
        if !ended || !whole {
            return Err(format!("not whole; {conn:?}"));
        }
    }
    Ok(seen)
}

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy(&self.body);
        let text = text.replace("..........", "");
        let (status, head, ended) = (self.status, self.has_head, self.ended);
        write!(f, "status {status}, head {head}, ended {ended}, body {text:?}")
    }
}

impl Conn {
    fn open(case: &Case, server: &Server) -> io::Result<Conn> {
        let is_stream = case.out == Out::Stream;
        let first = match case.out {
            Out::Stream => 2,
            Out::Connect => 4,
            _ => 0,
        };
        let port = first + usize::from(case.wire.is_tls());
        let raw = TcpStream::connect(("127.0.0.1", server.port_at(port)))?;
        raw.set_nodelay(true)?;
        raw.set_read_timeout(Some(PATIENCE))?;
        raw.set_write_timeout(Some(PATIENCE))?;
        let socket: Box<dyn Socket> = match case.wire.is_tls() {
            true => Box::new(secured(raw.try_clone()?, "www.example.org", case.wire.is_http2())?),
            false => Box::new(raw.try_clone()?),
        };
        let mut conn = Conn {
            raw,
            socket,
            is_http2: case.wire.is_http2(),
            got: Vec::new(),
            has_hints: false,
            has_head: is_stream,
            chunked: false,
            left: None,
            gzip: None,
            decoder: Decoder::default(),
            body: Vec::new(),
            status: 0,
            ended: false,
        };
        if case.wire == Wire::Kept {
            conn.socket.write_all(b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n")?;
            let mut byte = [0];
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                conn.socket.read_exact(&mut byte)?;
                head.push(byte[0]);
            }
        }
        Ok(conn)
    }

    /// Opens a connection, and asks.
    fn ask(case: &Case, server: &Server, uri: &str) -> io::Result<Conn> {
        let mut conn = Conn::open(case, server)?;
        if case.out == Out::Connect {
            conn.socket.write_all(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n")?;
            conn.until(PATIENCE, |conn| conn.has_head)?;
        }
        match case.out {
            Out::Connect | Out::Stream => conn.socket.write_all(uri.as_bytes())?,
            _ => conn.send_head(case, uri)?,
        }
        Ok(conn)
    }

    /// Sends the head of the request, and of a body nothing.
    fn send_head(&mut self, case: &Case, uri: &str) -> io::Result<()> {
        let (method, length) = match case.way {
            Way::Up => ("POST", Some((case.size * PIECES).to_string())),
            Way::UpChunked | Way::Turns => ("POST", None),
            _ => ("GET", None),
        };
        let mut fields: Vec<(&str, &str)> = Vec::new();
        if let Some(length) = &length {
            fields.push(("content-length", length));
        }
        if case.has(Setting::Gzip) {
            fields.push(("accept-encoding", "gzip"));
        }
        if self.is_http2 {
            let mut out = frame::PREFACE.to_vec();
            frame::write_settings(&[], &mut out);
            let begin = frame::leave_head(&mut out);
            let scheme = if case.wire.is_tls() { "https" } else { "http" };
            let pseudo =
                [(":method", method), (":scheme", scheme), (":path", uri), (":authority", "a")];
            for (name, value) in pseudo.into_iter().chain(fields) {
                hpack::field(name.as_bytes(), value.as_bytes(), &mut out);
            }
            let flags = if case.has_body() { 0 } else { frame::END_STREAM };
            frame::finish_headers(&mut out, begin, 1, flags, frame::MAX_PAYLOAD);
            return self.socket.write_all(&out);
        }
        let version = if case.wire == Wire::Http10 { "1.0" } else { "1.1" };
        if case.way == Way::UpChunked {
            fields.push(("transfer-encoding", "chunked"));
        }
        match case.way {
            Way::Tunnel => fields.extend([("connection", "upgrade"), ("upgrade", "x")]),
            _ => fields.push(("connection", "close")),
        }
        let mut text = format!("{method} {uri} HTTP/{version}\r\nhost: a\r\n");
        for (name, value) in fields {
            text += &format!("{name}: {value}\r\n");
        }
        self.socket.write_all((text + "\r\n").as_bytes())
    }

    /// Sends a piece of the request's body, and the end with the last.
    fn send_piece(&mut self, case: &Case, n: usize) -> io::Result<()> {
        let (text, last) = (piece(n, case.size), n + 1 == PIECES);
        let mut out = Vec::new();
        if self.is_http2 {
            let flags = if last { frame::END_STREAM } else { 0 };
            FrameHead { len: text.len(), kind: FrameType::Data, flags, stream: 1 }.write(&mut out);
            out.extend_from_slice(&text);
        } else if case.way == Way::UpChunked {
            out.extend_from_slice(format!("{:x}\r\n", text.len()).as_bytes());
            out.extend_from_slice(&text);
            out.extend_from_slice(if last { b"\r\n0\r\n\r\n" } else { b"\r\n" });
        } else {
            out = text;
        }
        self.socket.write_all(&out)
    }

    /// Reads until `done`; false when that has not come in time, or at the end.
    fn until(&mut self, patience: Duration, done: impl Fn(&Conn) -> bool) -> io::Result<bool> {
        let end = Instant::now() + patience;
        loop {
            self.understand()?;
            if done(self) {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.ended {
                return Ok(false);
            }
            self.raw.set_read_timeout(Some(left))?;
            let mut buf = [0; 16 * 1024];
            match self.socket.read(&mut buf) {
                Ok(0) => self.end()?,
                Ok(n) => self.got.extend_from_slice(&buf[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                // A server that has nothing more to say over TLS may close without a word.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => self.end()?,
                Err(e) => return Err(e),
            }
        }
    }

    /// The connection has ended.
    fn end(&mut self) -> io::Result<()> {
        let is_late = self.is_http2 || self.chunked || self.left.is_some_and(|left| left > 0);
        if !self.ended && (is_late || !self.has_head) {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection broke off"));
        }
        self.ended = true;
        Ok(())
    }

    fn understand(&mut self) -> io::Result<()> {
        if self.is_http2 {
            return self.frames();
        }
        while !self.has_head {
            let Some(at) = self.got.windows(4).position(|w| w == b"\r\n\r\n") else {
                return Ok(());
            };
            let rest = self.got.split_off(at + 4);
            let head = std::mem::replace(&mut self.got, rest);
            let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
            let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
            self.status = head.get(9..12).and_then(|s| s.parse().ok()).unwrap_or(0);
            if self.status == 103 {
                self.has_hints = true;
                continue;
            }
            self.chunked = field("transfer-encoding: chunked").is_some();
            self.left = field("content-length: ").and_then(|length| length.parse().ok());
            self.begin(field("content-encoding: gzip").is_some());
        }
        loop {
            if self.chunked && self.left.is_none() {
                let Some(at) = self.got.windows(2).position(|w| w == b"\r\n") else {
                    return Ok(());
                };
                let size = String::from_utf8_lossy(&self.got[..at]).into_owned();
                let size = usize::from_str_radix(&size, 16)
                    .map_err(|_| io::Error::other(format!("a chunk of {size:?}")))?;
                // A chunk, and the line end behind it.
                if self.got.len() < at + 2 + size + 2 {
                    return Ok(());
                }
                let data: Vec<u8> = self.got.drain(..at + 2 + size + 2).skip(at + 2).collect();
                self.more(&data[..size])?;
                if size == 0 {
                    (self.chunked, self.ended) = (false, true);
                    return Ok(());
                }
                continue;
            }
            let data = std::mem::take(&mut self.got);
            if let Some(left) = &mut self.left {
                *left = left.saturating_sub(data.len());
                self.ended |= *left == 0;
            }
            return self.more(&data);
        }
    }

    fn begin(&mut self, gzip: bool) {
        self.has_head = true;
        self.gzip = gzip.then(|| GzDecoder::new(Vec::new()));
    }

    fn more(&mut self, data: &[u8]) -> io::Result<()> {
        let Some(gzip) = &mut self.gzip else {
            self.body.extend_from_slice(data);
            return Ok(());
        };
        gzip.write_all(data)?;
        gzip.flush()?;
        self.body = gzip.get_ref().clone();
        Ok(())
    }

    fn frames(&mut self) -> io::Result<()> {
        while let Some(head) = self.got.get(..frame::HEAD).and_then(FrameHead::read)
            && self.got.len() >= frame::HEAD + head.len
        {
            let payload: Vec<u8> =
                self.got.drain(..frame::HEAD + head.len).skip(frame::HEAD).collect();
            match head.kind {
                FrameType::Settings if !head.has(frame::ACK) => {
                    let mut out = Vec::new();
                    frame::write_settings_ack(&mut out);
                    self.socket.write_all(&out)?;
                }
                FrameType::Headers => {
                    let (mut status, mut gzip) = (0, false);
                    let limits = FieldLimits { field: 1 << 16, block: 1 << 18 };
                    let found = |name: &[u8], value: &[u8]| match name {
                        b":status" => {
                            let text = String::from_utf8_lossy(value);
                            status = text.parse().unwrap_or(0);
                        }
                        b"content-encoding" => gzip = value == b"gzip",
                        _ => {}
                    };
                    let decoded = self.decoder.decode(&payload, limits, found);
                    decoded.map_err(|_| io::Error::other("a block of fields"))?;
                    self.has_hints |= status == 103;
                    if !self.has_head && status != 103 {
                        self.status = status;
                        self.begin(gzip);
                    }
                }
                FrameType::Data => self.more(&payload)?,
                FrameType::RstStream | FrameType::Goaway if !self.ended => {
                    return Err(io::Error::other(format!("{:?} {payload:?}", head.kind)));
                }
                _ => {}
            }
            let is_end = matches!(head.kind, FrameType::Headers | FrameType::Data);
            self.ended |= is_end && head.has(frame::END_STREAM);
        }
        Ok(())
    }
}
