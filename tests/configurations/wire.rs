//! Sends a request over its protocol, and reads what comes back, as lines.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

use weir_proto::http2::frame::{self, FrameHead, FrameType};
use weir_proto::http2::hpack::{self, Decoder, FieldLimits};
use weir_testkit::PATIENCE;

use crate::ask::{Ask, Framing, Wire};
use crate::secured::secured;

/// What came: a status, the lines of the head, the body, the trailers, and how it ended where it ended badly.
#[derive(Debug, Default)]
pub struct Came {
    pub status: String,
    /// Names as they came.
    pub head: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    pub end: String,
}

impl Came {
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.head.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

type Reader = BufReader<Box<dyn Socket>>;

pub trait Socket: Read + Write {}
impl<T: Read + Write> Socket for T {}

/// A connection to a server with its ports in the order plain, TLS, HTTP/2.
pub fn connect(wire: Wire, address: &str, ports: [u16; 3]) -> std::io::Result<Box<dyn Socket>> {
    let port = match wire {
        Wire::Plain => ports[0],
        Wire::Tls | Wire::Http2Tls => ports[1],
        Wire::Http2 => ports[2],
    };
    let socket = TcpStream::connect((address, port))?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(match wire {
        Wire::Plain | Wire::Http2 => Box::new(socket),
        Wire::Tls => Box::new(secured(socket, "s1.example", false)?),
        Wire::Http2Tls => Box::new(secured(socket, "s1.example", true)?),
    })
}

/// Sends a request on a connection of its own.
pub fn ask(ask: &Ask, ports: [u16; 3]) -> Came {
    ask_at(ask, "127.0.0.1", ports)
}

/// As [`ask`], of a server at another address.
pub fn ask_at(ask: &Ask, address: &str, ports: [u16; 3]) -> Came {
    let failed =
        |error: std::io::Error| Came { end: format!("{:?}", error.kind()), ..Came::default() };
    let mut socket = match connect(ask.wire, address, ports) {
        Ok(socket) => socket,
        Err(error) => return failed(error),
    };
    if ask.is_http2() {
        return http2(ask, socket.as_mut());
    }
    // A server that refuses a head closes before it has read all: that is an answer, too.
    let _ = socket.write_all(&ask.http1());
    let mut reader = BufReader::new(socket);
    let mut came = Came::default();
    if let Err(error) = http1(&mut reader, ask, &mut came) {
        came.end = ending(&error);
    }
    came
}

fn ending(error: &std::io::Error) -> String {
    match error.kind() {
        // With TLS a close without goodbye, without it a reset or an end: which, is chance.
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "closed".to_owned()
        }
        kind => format!("{kind:?}"),
    }
}

fn http1(reader: &mut Reader, ask: &Ask, came: &mut Came) -> std::io::Result<()> {
    loop {
        came.status =
            line(reader)?.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        came.head = fields(reader)?;
        if !came.status.starts_with('1') {
            break;
        }
        came.trailers.push(("interim".to_owned(), came.status.clone()));
    }
    let none =
        ask.method == "HEAD" || ["204", "304"].iter().any(|status| came.status.starts_with(status));
    let chunked = came.field("Transfer-Encoding") == Some("chunked");
    let length: Option<u64> = came.field("Content-Length").and_then(|n| n.parse().ok());
    if none {
    } else if chunked {
        loop {
            let head = line(reader)?;
            let size = u64::from_str_radix(&head, 16)
                .map_err(|_| std::io::Error::other(format!("no chunk: {head}")))?;
            reader.by_ref().take(size).read_to_end(&mut came.body)?;
            if size == 0 {
                came.trailers.extend(fields(reader)?);
                break;
            }
            line(reader)?;
        }
    } else if let Some(length) = length {
        let read = reader.by_ref().take(length).read_to_end(&mut came.body)?;
        if (read as u64) < length {
            came.end = "cut".to_owned();
        }
    }
    if came.field("Connection") == Some("close") {
        // What follows belongs to the body, or must not be there.
        reader.read_to_end(&mut came.body)?;
    }
    Ok(())
}

fn line(reader: &mut Reader) -> std::io::Result<String> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    if line.pop() != Some(b'\r') {
        return Err(std::io::Error::other("a line ends without CR"));
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn fields(reader: &mut Reader) -> std::io::Result<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let line = line(reader)?;
        if line.is_empty() {
            return Ok(fields);
        }
        let (name, value) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
        fields.push((name.to_owned(), value.to_owned()));
    }
}

/// The bytes of a connection over HTTP/2 with one request.
pub fn http2_bytes(ask: &Ask) -> (Vec<u8>, Vec<u8>) {
    let mut out = frame::PREFACE.to_vec();
    frame::write_settings(&[], &mut out);
    let begin = frame::leave_head(&mut out);
    let scheme = if ask.wire == Wire::Http2 { "http" } else { "https" };
    let pseudo = [
        (":method", ask.method),
        (":scheme", scheme),
        (":path", &ask.target),
        (":authority", &ask.host),
    ];
    for (name, value) in pseudo {
        hpack::field(name.as_bytes(), value.as_bytes(), &mut out);
    }
    for (name, value) in &ask.fields {
        if *name != "Connection" {
            let name = name.to_ascii_lowercase();
            hpack::field(name.as_bytes(), value.as_bytes(), &mut out);
        }
    }
    if ask.framing == Framing::Length {
        let length = ask.body.len().to_string();
        hpack::field(b"content-length", length.as_bytes(), &mut out);
    }
    let ended = ask.framing == Framing::None;
    let flags = if ended { frame::END_STREAM } else { 0 };
    frame::finish_headers(&mut out, begin, 1, flags, frame::MAX_PAYLOAD);
    let mut data = Vec::new();
    if !ended {
        let head = FrameHead {
            len: ask.body.len(),
            kind: FrameType::Data,
            flags: frame::END_STREAM,
            stream: 1,
        };
        head.write(&mut data);
        data.extend_from_slice(ask.body.as_bytes());
    }
    (out, data)
}

fn http2(ask: &Ask, socket: &mut dyn Socket) -> Came {
    let (mut bytes, data) = http2_bytes(ask);
    bytes.extend(data);
    let _ = socket.write_all(&bytes);
    let mut came = Came::default();
    let mut block = Block::default();
    loop {
        match http2_frame(socket, &mut block, &mut came) {
            Ok(false) => {}
            Ok(true) => return came,
            Err(error) => {
                came.end = ending(&error);
                return came;
            }
        }
    }
}

/// A block of fields may come in several frames.
#[derive(Default)]
pub struct Block {
    decoder: Decoder,
    bytes: Vec<u8>,
    ended: bool,
}

/// Reads one frame; true when the stream has ended.
pub fn http2_frame(
    socket: &mut dyn Socket,
    block: &mut Block,
    came: &mut Came,
) -> std::io::Result<bool> {
    let mut head = [0; frame::HEAD];
    socket.read_exact(&mut head)?;
    let head = FrameHead::read(&head).ok_or_else(|| std::io::Error::other("no frame"))?;
    let mut payload = vec![0; head.len];
    socket.read_exact(&mut payload)?;
    match head.kind {
        FrameType::Headers | FrameType::Continuation => {
            block.bytes.extend_from_slice(&payload);
            block.ended |= head.kind == FrameType::Headers && head.has(frame::END_STREAM);
            if !head.has(frame::END_HEADERS) {
                return Ok(false);
            }
            let payload = std::mem::take(&mut block.bytes);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let mut fields = Vec::new();
            let limits = FieldLimits { field: 1 << 20, block: 1 << 21 };
            let read =
                block.decoder.decode(&payload, limits, |n, v| fields.push((text(n), text(v))));
            read.map_err(|_| std::io::Error::other("no block of fields"))?;
            if came.status.is_empty() {
                let at = fields.iter().position(|(name, _)| name == ":status");
                came.status = at.map(|at| fields.remove(at).1).unwrap_or_default();
                came.head = fields;
                if came.status.starts_with('1') {
                    let interim = std::mem::take(&mut came.status);
                    came.trailers.push(("interim".to_owned(), interim));
                }
            } else {
                came.trailers.extend(fields);
            }
            Ok(block.ended)
        }
        FrameType::Data => {
            came.body.extend_from_slice(&payload);
            if !payload.is_empty() {
                let mut out = Vec::new();
                frame::write_window_update(0, head.len as u32, &mut out);
                let _ = socket.write_all(&out);
            }
            Ok(head.has(frame::END_STREAM))
        }
        FrameType::RstStream => {
            // A reset after a whole answer is no part of the answer.
            came.end = format!("reset {}", frame::word(&payload).unwrap_or_default());
            Ok(true)
        }
        FrameType::Goaway => {
            came.end = format!("goaway {}", frame::word(&payload[4..]).unwrap_or_default());
            Ok(came.end != "goaway 0")
        }
        FrameType::Settings if !head.has(frame::ACK) => {
            let mut out = Vec::new();
            frame::write_settings_ack(&mut out);
            let _ = socket.write_all(&out);
            Ok(false)
        }
        _ => Ok(false),
    }
}
