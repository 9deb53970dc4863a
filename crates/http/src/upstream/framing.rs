//! What the header lines of an answer say of its body and its connection.

use weir_proto::http1::{Header, HeaderId};

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

impl Framing {
    /// Reads these headers. The error is for the log.
    pub fn of(headers: &[Header], buf: &[u8]) -> Result<Framing, String> {
        let mut this = Framing::default();
        let (mut length, mut encoding) = (None::<&Header>, None::<&Header>);
        for header in headers {
            let value = header.value.of(buf);
            let text = || String::from_utf8_lossy(value);
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
                        return Err(duplicate(header, first, buf));
                    }
                    if other.is_some() {
                        return Err(BOTH.to_owned());
                    }
                    *own = Some(header);
                    if is_length {
                        let n = weir_conf::values::number(value).ok_or_else(|| {
                            let name = header.name.of(buf);
                            let name = String::from_utf8_lossy(name);
                            format!(
                                "upstream sent invalid \"Content-Length\" header: \"{name}: {}\"",
                                text()
                            )
                        })?;
                        this.length = Some(n);
                    } else if value.eq_ignore_ascii_case(b"chunked") {
                        this.chunked = true;
                    } else {
                        return Err(format!(
                            "upstream sent unknown \"Transfer-Encoding\": \"{}\"",
                            text()
                        ));
                    }
                }
                _ => {}
            }
        }
        Ok(this)
    }
}

const BOTH: &str =
    "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time";

fn duplicate(header: &Header, first: &Header, buf: &[u8]) -> String {
    let text = |span: weir_proto::Span| String::from_utf8_lossy(span.of(buf)).into_owned();
    format!(
        "upstream sent duplicate header line: \"{}: {}\", previous value: \"{}: {}\"",
        text(header.name),
        text(header.value),
        text(first.name),
        text(first.value)
    )
}
