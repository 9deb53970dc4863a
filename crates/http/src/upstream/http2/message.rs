//! Fields of an answer on their way to a head as HTTP/1 writes it.

use weir_proto::http2::hpack::BlockError;

use super::ending::Ending;
use crate::answer::headers::Headers;

/// The most that is kept of trailers.
const TRAILERS: usize = 16 * 1024;
/// Fields of a connection: HTTP/2 has none, and they mean nothing beyond the connection.
const OF_CONNECTIONS: [&[u8]; 5] =
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];

/// A block of fields.
pub enum Message {
    /// A head.
    Head {
        /// As HTTP/1 writes it, from the status line on; empty until the status has come.
        text: Vec<u8>,
        /// Another head follows.
        interim: bool,
        /// No more than this.
        limit: usize,
        /// What is wrong with it.
        fault: Option<String>,
    },
    /// Trailers.
    Trailers {
        /// Names and values.
        fields: Headers,
        /// Bytes of them.
        len: usize,
        /// What is wrong with them.
        fault: Option<String>,
    },
}

impl Message {
    /// A head of so many bytes at most.
    pub fn head(limit: usize) -> Message {
        Message::Head { text: Vec::new(), interim: false, limit, fault: None }
    }

    /// Trailers.
    pub fn trailers() -> Message {
        Message::Trailers { fields: Headers::default(), len: 0, fault: None }
    }

    /// The next field. Behind the first fault nothing is looked at.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        match self {
            Message::Head { fault: Some(_), .. } | Message::Trailers { fault: Some(_), .. } => {}
            Message::Head { text, interim, limit, fault } => {
                *fault = head_field(name, value, text, interim).err();
                if text.len() > *limit {
                    fault.get_or_insert("upstream sent too big header".to_owned());
                }
            }
            Message::Trailers { fields, len, fault } => {
                *len += name.len() + value.len();
                if name.first() == Some(&b':') {
                    *fault = Some(told("upstream sent invalid trailer", name, value));
                } else if !is_valid(name, value) {
                    *fault = Some(told("upstream sent invalid header:", name, value));
                } else if *len > TRAILERS {
                    *fault = Some("upstream sent too big trailers".to_owned());
                } else {
                    fields.add(name, value);
                }
            }
        }
    }

    /// All fields are there; `last`: nothing follows them.
    pub fn finish(mut self, last: bool) -> Result<Message, Ending> {
        let wrong = match &mut self {
            Message::Head { fault: Some(text), .. }
            | Message::Trailers { fault: Some(text), .. } => Some(std::mem::take(text)),
            Message::Head { text, .. } if text.is_empty() => Some(NO_STATUS.to_owned()),
            Message::Head { interim: true, .. } if last => {
                Some("upstream prematurely closed stream".to_owned())
            }
            Message::Head { text, .. } => {
                text.extend_from_slice(b"\r\n");
                None
            }
            Message::Trailers { .. } if !last => {
                Some("upstream sent trailer without end stream flag".to_owned())
            }
            Message::Trailers { .. } => None,
        };
        wrong.map_or(Ok(self), |text| Err(Ending::invalid(text)))
    }
}

const NO_STATUS: &str = "upstream sent no :status header";

fn head_field(
    name: &[u8],
    value: &[u8],
    text: &mut Vec<u8>,
    interim: &mut bool,
) -> Result<(), String> {
    if name == b":status" {
        if !text.is_empty() {
            return Err("upstream sent duplicate :status header".to_owned());
        }
        let shown = String::from_utf8_lossy(value);
        let code = value.iter().all(u8::is_ascii_digit).then(|| shown.parse::<u16>().ok());
        let Some(code) = code.flatten().filter(|_| value.len() == 3) else {
            return Err(format!("upstream sent invalid :status \"{shown}\""));
        };
        if code < 100 || code == 101 {
            return Err(format!("upstream sent unexpected :status \"{shown}\""));
        }
        *interim = code < 200;
        text.extend_from_slice(&[b"HTTP/2.0 ", value, b"\r\n"].concat());
        return Ok(());
    }
    if name.first() == Some(&b':') {
        return Err(told("upstream sent invalid header", name, value));
    }
    if text.is_empty() {
        return Err(NO_STATUS.to_owned());
    }
    if !is_valid(name, value) {
        return Err(told("upstream sent invalid header:", name, value));
    }
    if !OF_CONNECTIONS.contains(&name) {
        for part in [name, b": ", value, b"\r\n"] {
            text.extend_from_slice(part);
        }
    }
    Ok(())
}

fn told(what: &str, name: &[u8], value: &[u8]) -> String {
    let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
    format!("{what} \"{name}: {value}\"")
}

/// Nothing in it would end a line, or be another name in HTTP/1.
fn is_valid(name: &[u8], value: &[u8]) -> bool {
    let wrong = |b: &u8| *b <= b' ' || *b == 0x7f || *b == b':' || b.is_ascii_uppercase();
    !name.iter().any(wrong) && !value.iter().any(|b| matches!(b, 0 | b'\r' | b'\n'))
}

/// What a server sends with a block that cannot be read, in nginx's words where it has some.
pub fn unreadable(error: BlockError) -> String {
    match error {
        BlockError::Truncated => "truncated http2 header".to_owned(),
        BlockError::BadIndex(index) => format!("invalid http2 table index: {index}"),
        BlockError::BadTableSize(size) => {
            format!("invalid http2 dynamic table size update: {size}")
        }
        BlockError::EmptyName => "zero http2 header name length".to_owned(),
        BlockError::BadCode => "invalid encoded header".to_owned(),
        BlockError::LargeField | BlockError::LargeBlock => "too large http2 header".to_owned(),
        BlockError::LongNumber | BlockError::LateTableSize => "invalid header".to_owned(),
    }
}
