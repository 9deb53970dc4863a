//! A request over each protocol, and what came of it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use weir_proto::http2::frame::{self, FrameHead, FrameType};
use weir_proto::http2::hpack::{self, Decoder, FieldLimits};
use weir_testkit::PATIENCE;

use crate::anybody::Anybody;

/// A request.
#[derive(Debug, Clone)]
pub struct Ask {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: &'static str,
    pub chunked: bool,
}

/// Status and body.
pub type Answer = (u16, String);

/// A client over one protocol, with a kept connection.
pub enum Client {
    /// HTTP/1.0
    Old(u16),
    Plain(u16, Option<weir_testkit::Client>),
    Tls(u16),
    /// Over TLS.
    Http2(u16, Option<Box<Http2>>),
    /// Without TLS, by a client that knows that it is spoken.
    Known(u16, Option<Box<Http2>>),
}

impl Client {
    pub fn name(&self) -> &'static str {
        match self {
            Client::Old(_) => "HTTP/1.0",
            Client::Plain(..) => "HTTP/1.1",
            Client::Tls(_) => "TLS",
            Client::Http2(..) => "HTTP/2",
            Client::Known(..) => "HTTP/2 in the clear",
        }
    }

    /// An error: the connection had ended, or did so without an answer.
    pub fn ask(&mut self, ask: &Ask) -> io::Result<Answer> {
        match self {
            _ if ask.method == "CONNECT" => self.through(ask),
            Client::Old(port) => {
                let text = http1(ask, "").replacen(" HTTP/1.1", " HTTP/1.0", 1);
                answer(&to_end(&mut socket(*port), &text))
            }
            Client::Plain(port, kept) => {
                let client = kept.take().unwrap_or_else(|| weir_testkit::Client::connect(*port));
                plain(client, kept, ask)
            }
            Client::Tls(port) => {
                let text = http1(ask, "Connection: close\r\n");
                answer(&to_end(&mut tls(*port, b"http/1.1"), &text))
            }
            Client::Http2(port, kept) => streamed(kept, ask, || tls(*port, b"h2")),
            Client::Known(port, kept) => streamed(kept, ask, || socket(*port)),
        }
    }

    /// CONNECT, and a request to the tunnel's other end.
    fn through(&mut self, ask: &Ask) -> io::Result<Answer> {
        let text = http1(ask, "") + "GET /hit/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        match self {
            Client::Old(port) | Client::Plain(port, _) | Client::Known(port, _) => {
                answer(&to_end(&mut socket(*port), &text))
            }
            Client::Tls(port) | Client::Http2(port, _) => {
                answer(&to_end(&mut tls(*port, b"http/1.1"), &text))
            }
        }
    }
}

fn plain(
    mut client: weir_testkit::Client,
    kept: &mut Option<weir_testkit::Client>,
    ask: &Ask,
) -> io::Result<Answer> {
    client.try_send(http1(ask, ""))?;
    let said = client.try_response()?;
    if !said.header("Connection").is_some_and(|v| v.eq_ignore_ascii_case("close")) {
        *kept = Some(client);
    }
    Ok((said.status, said.body()))
}

/// Over HTTP/2, on the connection that is kept or on one that begins.
fn streamed<W: Wire + 'static>(
    kept: &mut Option<Box<Http2>>,
    ask: &Ask,
    connect: impl FnOnce() -> W,
) -> io::Result<Answer> {
    let mut client = match kept.take() {
        Some(client) => client,
        None => Box::new(Http2::over(Box::new(connect()))?),
    };
    let said = client.ask(ask)?;
    *kept = Some(client);
    Ok(said)
}

fn http1(ask: &Ask, more: &str) -> String {
    let Ask { method, target, headers, body, chunked } = ask;
    let host = if method == "CONNECT" { target.as_str() } else { "localhost" };
    let mut text = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{more}");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if *chunked {
        text +=
            &format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    } else if body.is_empty() && method != "PUT" {
        text += "\r\n";
    } else {
        text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    }
    text
}

fn to_end(stream: &mut (impl Read + Write), text: &str) -> String {
    let mut bytes = Vec::new();
    // What came before a reset is there all the same.
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn answer(text: &str) -> io::Result<Answer> {
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, text.to_owned()))
}

fn socket(port: u16) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", port)).expect("a listening server");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.set_nodelay(true).expect("no delay");
    socket
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn tls(port: u16, protocol: &[u8]) -> Tls {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody::default()));
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
    StreamOwned::new(connection, socket(port))
}

/// A connection with TLS or without.
trait Wire: Read + Write + Send {}

impl<T: Read + Write + Send> Wire for T {}

/// A connection over HTTP/2, one request at a time.
pub struct Http2 {
    stream: Box<dyn Wire>,
    decoder: Decoder,
    last: u32,
}

impl Http2 {
    fn over(mut stream: Box<dyn Wire>) -> io::Result<Http2> {
        let mut bytes = frame::PREFACE.to_vec();
        frame::write_settings(&[], &mut bytes);
        stream.write_all(&bytes)?;
        Ok(Http2 { stream, decoder: Decoder::default(), last: 0 })
    }

    fn ask(&mut self, ask: &Ask) -> io::Result<Answer> {
        let mut out = Vec::new();
        self.last += if self.last == 0 { 1 } else { 2 };
        let begin = frame::leave_head(&mut out);
        let length = ask.body.len().to_string();
        let fixed = [
            (":method", ask.method.as_str()),
            (":scheme", "https"),
            (":path", ask.target.as_str()),
            (":authority", "localhost"),
        ];
        for (name, value) in fixed {
            hpack::field(name.as_bytes(), value.as_bytes(), &mut out);
        }
        for (name, value) in &ask.headers {
            hpack::field(name.to_ascii_lowercase().as_bytes(), value.as_bytes(), &mut out);
        }
        let ended = ask.body.is_empty() && !ask.chunked && ask.method != "PUT";
        if !ended && !ask.chunked {
            hpack::field(b"content-length", length.as_bytes(), &mut out);
        }
        let flags = if ended { frame::END_STREAM } else { 0 };
        frame::finish_headers(&mut out, begin, self.last, flags, frame::MAX_PAYLOAD);
        if !ended {
            let len = ask.body.len();
            let flags = frame::END_STREAM;
            FrameHead { len, kind: FrameType::Data, flags, stream: self.last }.write(&mut out);
            out.extend_from_slice(ask.body.as_bytes());
        }
        self.stream.write_all(&out)?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let (mut status, mut body) = (0, Vec::new());
        loop {
            let mut head = [0; frame::HEAD];
            self.stream.read_exact(&mut head)?;
            let head = FrameHead::read(&head).ok_or(io::ErrorKind::InvalidData)?;
            let mut payload = vec![0; head.len];
            self.stream.read_exact(&mut payload)?;
            match head.kind {
                FrameType::Settings if !head.has(frame::ACK) => {
                    let mut out = Vec::new();
                    frame::write_settings_ack(&mut out);
                    self.stream.write_all(&out)?;
                }
                FrameType::Headers if head.stream == self.last => {
                    let limits = FieldLimits { field: 1 << 16, block: 1 << 18 };
                    let take = |name: &[u8], value: &[u8]| {
                        if name == b":status" {
                            status = String::from_utf8_lossy(value).parse().unwrap_or(0);
                        }
                    };
                    let decoded = self.decoder.decode(&payload, limits, take);
                    decoded.map_err(|_| io::ErrorKind::InvalidData)?;
                }
                FrameType::Data if head.stream == self.last => {
                    body.extend_from_slice(&payload);
                    let mut out = Vec::new();
                    frame::write_window_update(0, head.len.max(1) as u32, &mut out);
                    self.stream.write_all(&out)?;
                }
                FrameType::RstStream if head.stream == self.last && status == 0 => {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                _ => {}
            }
            if head.stream == self.last && head.has(frame::END_STREAM) {
                return Ok((status, String::from_utf8_lossy(&body).into_owned()));
            }
        }
    }
}
