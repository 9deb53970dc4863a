//! Converts the fields of an answer to a head in HTTP/1 form.

use std::fmt;

use weir_proto::http2::hpack::BlockError;

use super::ending::Ending;
use crate::answer::headers::Headers;

/// Connection-specific fields, which HTTP/2 does not have.
const OF_CONNECTIONS: [&[u8]; 5] =
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];

/// A block of fields.
pub enum Message {
    /// A head.
    Head {
        /// The head in HTTP/1 form, from the status line on. Empty before the status.
        text: Vec<u8>,
        /// Another head follows.
        interim: bool,
        /// The longest head, in bytes.
        limit: usize,
        /// What is wrong with it.
        fault: Option<MessageError>,
    },
    /// Trailers.
    Trailers {
        /// Names and values.
        fields: Headers,
        /// Their length in HTTP/1 form.
        len: usize,
        /// The longest trailers, in bytes.
        limit: usize,
        /// What is wrong with them.
        fault: Option<MessageError>,
    },
}

impl Message {
    /// An empty head.
    pub fn head(limit: usize) -> Message {
        Message::Head { text: Vec::new(), interim: false, limit, fault: None }
    }

    /// Empty trailers.
    pub fn trailers(limit: usize) -> Message {
        Message::Trailers { fields: Headers::default(), len: 0, limit, fault: None }
    }

    /// Adds a field. After the first fault, fields are ignored.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        match self {
            Message::Head { fault: Some(_), .. } | Message::Trailers { fault: Some(_), .. } => {}
            Message::Head { text, interim, limit, fault } => {
                *fault = head_field(name, value, text, interim).err();
                if text.len() > *limit {
                    fault.get_or_insert(MessageError::TooBig);
                }
            }
            Message::Trailers { fields, len, limit, fault } => {
                *len += name.len() + b": \r\n".len() + value.len();
                if name.first() == Some(&b':') {
                    *fault = Some(MessageError::PseudoTrailer(shown(name, value)));
                } else if !is_valid(name, value) {
                    *fault = Some(MessageError::Field(shown(name, value)));
                } else if *len > *limit {
                    *fault = Some(MessageError::TooBigTrailers);
                } else {
                    fields.add(name, value);
                }
            }
        }
    }

    /// Ends the block. `last`: it ends the stream.
    pub fn finish(mut self, last: bool) -> Result<Message, Ending> {
        let wrong = match &mut self {
            Message::Head { fault, .. } | Message::Trailers { fault, .. } if fault.is_some() => {
                fault.take()
            }
            Message::Head { text, .. } if text.is_empty() => Some(MessageError::NoStatus),
            Message::Head { interim: true, .. } if last => Some(MessageError::InterimAlone),
            Message::Head { text, .. } => {
                text.extend_from_slice(b"\r\n");
                None
            }
            Message::Trailers { .. } if !last => Some(MessageError::TrailersGoOn),
            Message::Trailers { .. } => None,
        };
        wrong.map_or(Ok(self), |error| Err(Ending::invalid(error.to_string())))
    }
}

/// What is wrong with a block of fields. A field is shown as `name: value`.
#[derive(Debug)]
pub enum MessageError {
    /// The head is longer than its limit.
    TooBig,
    /// The head does not begin with its status.
    NoStatus,
    /// A second status.
    DuplicateStatus,
    /// A status that is no number of three digits.
    InvalidStatus(String),
    /// A status that HTTP/2 does not have.
    UnexpectedStatus(String),
    /// A pseudo-header field in a head that is not the status.
    Pseudo(String),
    /// A pseudo-header field in trailers.
    PseudoTrailer(String),
    /// A name or value that is invalid in HTTP/1.
    Field(String),
    /// An interim head at the end of the stream.
    InterimAlone,
    /// Trailers that do not end the stream.
    TrailersGoOn,
    /// The trailers are longer than their limit.
    TooBigTrailers,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("upstream ")?;
        f.write_str(match self {
            MessageError::TooBig => "sent too big header",
            MessageError::NoStatus => "sent no :status header",
            MessageError::DuplicateStatus => "sent duplicate :status header",
            MessageError::InvalidStatus(value) => {
                return write!(f, "sent invalid :status \"{value}\"");
            }
            MessageError::UnexpectedStatus(value) => {
                return write!(f, "sent unexpected :status \"{value}\"");
            }
            MessageError::Pseudo(field) => {
                return write!(f, "sent invalid header \"{field}\"");
            }
            MessageError::PseudoTrailer(field) => {
                return write!(f, "sent invalid trailer \"{field}\"");
            }
            MessageError::Field(field) => {
                return write!(f, "sent invalid header: \"{field}\"");
            }
            MessageError::InterimAlone => "prematurely closed stream",
            MessageError::TrailersGoOn => "sent trailer without end stream flag",
            MessageError::TooBigTrailers => "sent too big trailers",
        })
    }
}

fn head_field(
    name: &[u8],
    value: &[u8],
    text: &mut Vec<u8>,
    interim: &mut bool,
) -> Result<(), MessageError> {
    if name == b":status" {
        if !text.is_empty() {
            return Err(MessageError::DuplicateStatus);
        }
        let shown = || weir_log::Bytes(value).to_string();
        let code = value.iter().all(u8::is_ascii_digit).then(|| shown().parse::<u16>().ok());
        let Some(code) = code.flatten().filter(|_| value.len() == 3) else {
            return Err(MessageError::InvalidStatus(shown()));
        };
        if code < 100 || code == 101 {
            return Err(MessageError::UnexpectedStatus(shown()));
        }
        *interim = code < 200;
        text.extend_from_slice(&[b"HTTP/2.0 ", value, b"\r\n"].concat());
        return Ok(());
    }
    if name.first() == Some(&b':') {
        return Err(MessageError::Pseudo(shown(name, value)));
    }
    if text.is_empty() {
        return Err(MessageError::NoStatus);
    }
    if !is_valid(name, value) {
        return Err(MessageError::Field(shown(name, value)));
    }
    if !OF_CONNECTIONS.contains(&name) {
        for part in [name, b": ", value, b"\r\n"] {
            text.extend_from_slice(part);
        }
    }
    Ok(())
}

fn shown(name: &[u8], value: &[u8]) -> String {
    format!("{}: {}", weir_log::Bytes(name), weir_log::Bytes(value))
}

/// Whether the field is safe in HTTP/1: it ends no line, its name stays one name, and the name has only bytes that RFC 9113,
/// section 8.2.1, allows.
fn is_valid(name: &[u8], value: &[u8]) -> bool {
    let wrong = |b: &u8| *b <= b' ' || *b >= 0x7f || *b == b':' || b.is_ascii_uppercase();
    !name.iter().any(wrong) && !value.iter().any(|b| matches!(b, 0 | b'\r' | b'\n'))
}

/// The log text for a block that cannot be decoded, in nginx's words if it has any.
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
