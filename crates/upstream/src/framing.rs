//! The framing of an HTTP/1 response, from its header lines: how its body ends, and whether the
//! connection stays.

use std::fmt;

use weir_proto::http1::{HeaderId, HeaderLine};

/// What the headers say of the body and the connection.
#[derive(Debug, Default)]
pub struct Framing {
    /// `Content-Length`
    pub length: Option<u64>,
    /// `Transfer-Encoding: chunked`
    pub chunked: bool,
    /// `Connection: close`
    pub close: bool,
}

/// Why the length of a response's body cannot be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadFraming {
    /// A header line that may stand there once stands there twice.
    Duplicate {
        /// The second line.
        line: String,
        /// The first one.
        previous: String,
    },
    /// Both lines that say how long the body is.
    LengthAndEncoding,
    /// A `Content-Length` that is no number: the line.
    InvalidLength(String),
    /// A `Transfer-Encoding` that is not known: its value.
    UnknownEncoding(String),
}

impl fmt::Display for BadFraming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("upstream sent ")?;
        match self {
            BadFraming::Duplicate { line, previous } => {
                write!(f, "duplicate header line: \"{line}\", previous value: \"{previous}\"")
            }
            BadFraming::LengthAndEncoding => {
                f.write_str("\"Content-Length\" and \"Transfer-Encoding\" headers at the same time")
            }
            BadFraming::InvalidLength(line) => {
                write!(f, "invalid \"Content-Length\" header: \"{line}\"")
            }
            BadFraming::UnknownEncoding(value) => {
                write!(f, "unknown \"Transfer-Encoding\": \"{value}\"")
            }
        }
    }
}

impl Framing {
    /// Reads these headers.
    pub fn of(headers: &[HeaderLine], buf: &[u8]) -> Result<Framing, BadFraming> {
        let mut this = Framing::default();
        let (mut length, mut encoding) = (None::<&HeaderLine>, None::<&HeaderLine>);
        for header in headers {
            let value = header.value.of(buf);
            match header.id {
                HeaderId::Connection => {
                    this.close |= value.windows(5).any(|w| w.eq_ignore_ascii_case(b"close"));
                }
                HeaderId::ContentLength | HeaderId::TransferEncoding => {
                    let is_length = header.id == HeaderId::ContentLength;
                    let (own, other) = match is_length {
                        true => (&mut length, encoding),
                        false => (&mut encoding, length),
                    };
                    if let Some(first) = own {
                        let (line, previous) = (line(header, buf), line(first, buf));
                        return Err(BadFraming::Duplicate { line, previous });
                    }
                    if other.is_some() {
                        return Err(BadFraming::LengthAndEncoding);
                    }
                    *own = Some(header);
                    if is_length {
                        let n = weir_conf::values::number(value);
                        let invalid = || BadFraming::InvalidLength(line(header, buf));
                        this.length = Some(n.ok_or_else(invalid)?);
                    } else if value.eq_ignore_ascii_case(b"chunked") {
                        this.chunked = true;
                    } else {
                        let value = String::from_utf8_lossy(value).into_owned();
                        return Err(BadFraming::UnknownEncoding(value));
                    }
                }
                _ => {}
            }
        }
        Ok(this)
    }
}

/// A header line as logs show it.
fn line(header: &HeaderLine, buf: &[u8]) -> String {
    let text = |span: weir_proto::Span| String::from_utf8_lossy(span.of(buf)).into_owned();
    format!("{}: {}", text(header.name), text(header.value))
}
