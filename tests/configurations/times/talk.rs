//! A client that speaks a piece at a time, and notes what comes meanwhile, over each protocol.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use weir_proto::http2::frame::{self, FrameHead, FrameType, Setting};
use weir_proto::http2::hpack::{self, Decoder, FieldLimits};

use crate::ask::Wire;
use crate::secured::secured;
use crate::wire::Socket;

/// Far longer than the short times of the configurations, and far shorter than the long ones.
pub const PAUSE: Duration = Duration::from_millis(250);

/// What a client has sent so far, and what it was told.
pub struct Talk {
    wire: Wire,
    raw: TcpStream,
    socket: Option<Box<dyn Socket>>,
    got: Vec<u8>,
    body: Body,
    decoder: Decoder,
    greeted: bool,
    /// Of the stream that was begun last.
    stream: u32,
    /// Whether a window is opened again once its bytes have come.
    pub takes: bool,
    /// For how long nothing must come to be silence.
    silence: Duration,
    events: Vec<String>,
    whole: usize,
    closed: bool,
}

/// What is left of an answer over HTTP/1.
enum Body {
    None,
    Left(u64),
    Chunks,
    UntilClose,
}

impl Talk {
    /// A connection on which nothing was said: with TLS, not even a greeting.
    pub fn begin(wire: Wire, address: (&str, u16), silence: Duration) -> std::io::Result<Talk> {
        let raw = TcpStream::connect(address)?;
        raw.set_nodelay(true)?;
        // So that a long answer does not fit into the client's kernel.
        rustix::net::sockopt::set_socket_recv_buffer_size(&raw, 32 * 1024)?;
        Ok(Talk {
            wire,
            raw,
            socket: None,
            got: Vec::new(),
            body: Body::None,
            decoder: Decoder::default(),
            greeted: false,
            stream: 0,
            takes: true,
            silence,
            events: Vec::new(),
            whole: 0,
            closed: false,
        })
    }

    pub fn is_http2(&self) -> bool {
        matches!(self.wire, Wire::Http2 | Wire::Http2Tls)
    }

    pub fn is_secured(&self) -> bool {
        matches!(self.wire, Wire::Tls | Wire::Http2Tls)
    }

    /// The handshake of TLS, where that is the wire.
    pub fn greet(&mut self) {
        if self.socket.is_some() {
            return;
        }
        let _ = self.raw.set_read_timeout(Some(self.silence.max(Duration::from_secs(5))));
        let Ok(raw) = self.raw.try_clone() else { return };
        let socket: std::io::Result<Box<dyn Socket>> = match self.is_secured() {
            true => secured(raw, "s1.example", self.is_http2()).map(|socket| Box::new(socket) as _),
            false => Ok(Box::new(raw)),
        };
        match socket {
            Ok(socket) => self.socket = Some(socket),
            Err(_) => self.end(),
        }
    }

    /// Bytes past TLS.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.raw.write_all(bytes);
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.greet();
        if let Some(socket) = &mut self.socket
            && !self.closed
        {
            // A peer that has closed its end shows when its bytes are read.
            let _ = self.raw.set_write_timeout(Some(PAUSE));
            let _ = socket.write_all(bytes);
        }
    }

    /// A request's head: of a new stream, where there are streams; with the length of the body that is to follow.
    pub fn head(&mut self, path: &str, length: Option<usize>) -> Vec<u8> {
        self.head_with(path, length, &[])
    }

    pub fn head_with(
        &mut self,
        path: &str,
        length: Option<usize>,
        fields: &[(&str, &str)],
    ) -> Vec<u8> {
        let method = if length.is_some() { "POST" } else { "GET" };
        let lines = length.map(|length| ("content-length", length.to_string()));
        if !self.is_http2() {
            let mut text = format!("{method} {path} HTTP/1.1\r\nHost: s1.example\r\n");
            for (name, value) in
                lines.iter().map(|(n, v)| (*n, v.as_str())).chain(fields.iter().copied())
            {
                text += &format!("{name}: {value}\r\n");
            }
            return (text + "\r\n").into_bytes();
        }
        let mut out = self.preface(&[]);
        self.stream = if self.stream == 0 { 1 } else { self.stream + 2 };
        let begin = frame::leave_head(&mut out);
        let scheme = if self.is_secured() { "https" } else { "http" };
        let pseudo = [
            (":method", method),
            (":scheme", scheme),
            (":path", path),
            (":authority", "s1.example"),
        ];
        for (name, value) in pseudo {
            hpack::field(name.as_bytes(), value.as_bytes(), &mut out);
        }
        for (name, value) in
            lines.iter().map(|(n, v)| (*n, v.as_str())).chain(fields.iter().copied())
        {
            if name != "connection" {
                hpack::field(name.as_bytes(), value.as_bytes(), &mut out);
            }
        }
        let flags = if length.is_some() { 0 } else { frame::END_STREAM };
        frame::finish_headers(&mut out, begin, self.stream, flags, frame::MAX_PAYLOAD);
        out
    }

    /// What a connection over HTTP/2 begins with; nothing, once it has.
    pub fn preface(&mut self, settings: &[Setting]) -> Vec<u8> {
        if self.greeted {
            return Vec::new();
        }
        self.greeted = true;
        let mut out = frame::PREFACE.to_vec();
        frame::write_settings(settings, &mut out);
        out
    }

    /// A piece of a body.
    pub fn piece(&self, bytes: &[u8], last: bool) -> Vec<u8> {
        if !self.is_http2() {
            return bytes.to_vec();
        }
        let mut out = Vec::new();
        let flags = if last { frame::END_STREAM } else { 0 };
        FrameHead { len: bytes.len(), kind: FrameType::Data, flags, stream: self.stream }
            .write(&mut out);
        out.extend_from_slice(bytes);
        out
    }

    /// Listens for as long as short times take.
    pub fn pause(&mut self) {
        let end = Instant::now() + PAUSE;
        while !self.closed && self.hear(end) {}
    }

    /// Looks away for as long as short times take.
    pub fn look_away(&self) {
        pass(PAUSE);
    }

    /// Waits until so many answers have come whole, the end, or a silence.
    pub fn answers(&mut self, count: usize) {
        while self.whole < count && !self.closed && self.hear(Instant::now() + self.silence) {}
    }

    /// All that comes until the end, or a silence; what the client has seen altogether.
    pub fn seen(mut self) -> String {
        while !self.closed && self.hear(Instant::now() + self.silence) {}
        // Which of two streams is told first has no meaning, but what each is told has.
        let mut events = self.events;
        if matches!(self.wire, Wire::Http2 | Wire::Http2Tls) {
            events.sort();
        }
        events.push(if self.closed { "closed" } else { "open" }.to_owned());
        events.join(", ")
    }

    /// Reads once; false if nothing came until then.
    fn hear(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let _ = self.raw.set_read_timeout(Some(left));
        let mut buf = [0; 64 * 1024];
        let read = match &mut self.socket {
            Some(socket) => socket.read(&mut buf),
            // Before the handshake only an alert can come, which says no more than the end behind it.
            None => (&self.raw).read(&mut buf),
        };
        match read {
            Ok(0) => self.end(),
            Ok(n) if self.socket.is_some() => {
                self.got.extend_from_slice(&buf[..n]);
                if self.is_http2() { self.frames() } else { self.lines() }
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return false;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.end(),
        }
        true
    }

    fn end(&mut self) {
        match self.body {
            Body::UntilClose => self.events.push("whole".to_owned()),
            Body::None if self.got.is_empty() => {}
            _ => self.events.push("cut".to_owned()),
        }
        self.closed = true;
    }

    /// Takes answers over HTTP/1 apart, as far as they have come.
    fn lines(&mut self) {
        loop {
            match self.body {
                Body::None => {
                    let Some(end) = find(&self.got, b"\r\n\r\n") else { return };
                    let head = String::from_utf8_lossy(&self.got[..end]).to_ascii_lowercase();
                    self.got.drain(..end + 4);
                    let status = head.split(' ').nth(1).unwrap_or("?").to_owned();
                    self.events.push(status.clone());
                    let length = head.split("\r\ncontent-length: ").nth(1);
                    let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
                    self.body = match (status.as_str(), length) {
                        ("100", _) => continue,
                        ("101", _) => Body::UntilClose,
                        (_, Some(length)) => Body::Left(length),
                        _ if head.contains("\r\ntransfer-encoding: chunked") => Body::Chunks,
                        _ => Body::UntilClose,
                    };
                }
                Body::Left(left) => {
                    let now = left.min(self.got.len() as u64);
                    self.got.drain(..now as usize);
                    self.body = Body::Left(left - now);
                    if left > now {
                        return;
                    }
                    self.is_whole();
                }
                Body::Chunks => {
                    let Some(end) = find(&self.got, b"0\r\n\r\n") else { return };
                    self.got.drain(..end + 5);
                    self.is_whole();
                }
                Body::UntilClose => return self.got.clear(),
            }
        }
    }

    fn is_whole(&mut self) {
        self.body = Body::None;
        self.whole += 1;
        self.events.push("whole".to_owned());
    }

    /// Takes frames apart, as far as they have come. SETTINGS stay without ACK: it might come in the middle of a frame.
    fn frames(&mut self) {
        while let Some(head) =
            self.got.first_chunk::<{ frame::HEAD }>().and_then(|h| FrameHead::read(h))
            && self.got.len() >= frame::HEAD + head.len
        {
            let payload: Vec<u8> =
                self.got.drain(..frame::HEAD + head.len).skip(frame::HEAD).collect();
            let mut out = Vec::new();
            match head.kind {
                FrameType::Headers => {
                    let mut status = String::new();
                    let limits = FieldLimits { field: 1 << 16, block: 1 << 16 };
                    let _ = self.decoder.decode(&payload, limits, |name, value| {
                        if name == b":status" {
                            status = String::from_utf8_lossy(value).into_owned();
                        }
                    });
                    self.events.push(format!("{}: {status}", head.stream));
                }
                FrameType::Data if self.takes && head.len > 0 => {
                    frame::write_window_update(0, head.len as u32, &mut out);
                    frame::write_window_update(head.stream, head.len as u32, &mut out);
                }
                FrameType::RstStream => {
                    let code = frame::word(&payload).unwrap_or_default();
                    // NO_ERROR behind a whole answer: what is not wanted of the request's body.
                    if code != 0 {
                        self.events.push(format!("{}: reset {code}", head.stream));
                    }
                }
                FrameType::Goaway => {
                    let code = frame::word(&payload[4..]).unwrap_or_default();
                    self.events.push(format!("goaway {code}"));
                }
                _ => {}
            }
            if matches!(head.kind, FrameType::Headers | FrameType::Data)
                && head.has(frame::END_STREAM)
            {
                self.whole += 1;
                self.events.push(format!("{}: whole", head.stream));
            }
            if !out.is_empty() {
                self.send(&out);
            }
        }
    }
}

/// Lets time pass.
#[expect(clippy::disallowed_methods, reason = "what is looked at is what the passing of time does")]
pub fn pass(time: Duration) {
    std::thread::sleep(time);
}

fn find(within: &[u8], what: &[u8]) -> Option<usize> {
    within.windows(what.len()).position(|piece| piece == what)
}
