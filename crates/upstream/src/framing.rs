//! The framing of an HTTP/1 response, from its header lines: how its body ends, and whether the
//! connection persists.

use std::fmt;

use weir_proto::http1::{HeaderId, HeaderLine};

/// The framing that header lines describe.
#[derive(Debug, Default)]
pub struct Framing {
    /// `Content-Length`
    pub length: Option<u64>,
    /// `Transfer-Encoding: chunked`
    pub chunked: bool,
    /// `Connection: close`
    pub close: bool,
}

/// Why the length of the body cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadFraming {
    /// A header line that may occur only once occurs twice.
    Duplicate {
        /// The second line.
        line: String,
        /// The first one.
        previous: String,
    },
    /// Both `Content-Length` and `Transfer-Encoding`.
    LengthAndEncoding,
    /// The line of a `Content-Length` that is no number.
    InvalidLength(String),
    /// The value of an unknown `Transfer-Encoding`.
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
    /// Reads the framing from header lines.
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

/// A header line as in logs.
fn line(header: &HeaderLine, buf: &[u8]) -> String {
    let text = |span: weir_proto::Span| String::from_utf8_lossy(span.of(buf)).into_owned();
    format!("{}: {}", text(header.name), text(header.value))
}
