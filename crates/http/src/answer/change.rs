//! Headers that a configuration or a script changes by their names, whoever wrote them.

use weir_proto::Span;
use weir_proto::http1::{Header, HeaderId};

use crate::request::Request;

/// Lines of an answer with a field of their own in [`Response`](crate::answer::response::Response).
pub const WITH_A_FIELD: &[&str] = &[
    "Content-Type",
    "Content-Length",
    "Location",
    "ETag",
    "Content-Encoding",
    "Last-Modified",
    "Server",
    "Date",
    "Transfer-Encoding",
];

/// A `Content-Length` that is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoLength;

/// Replaces all lines of this name in the answer; without a value there are none then.
pub fn set_answer(r: &mut Request, name: &[u8], values: &[Vec<u8>]) -> Result<(), NoLength> {
    let last = values.last().filter(|value| !value.is_empty()).cloned();
    let response = &mut r.response;
    match name.to_ascii_lowercase().as_slice() {
        b"content-type" => response.say_type(&last.unwrap_or_default()),
        b"content-length" => {
            let number =
                last.as_deref().map(|text| weir_conf::values::number(text).ok_or(NoLength));
            response.content_length = number.transpose()?;
        }
        b"location" => response.location = last,
        b"etag" => response.etag = last,
        // An empty one shows none, not even weir's own.
        b"server" => response.server = Some(last.unwrap_or_default()),
        b"date" => response.date = Some(last.unwrap_or_default()),
        b"content-encoding" => response.content_encoding = last,
        b"last-modified" => response.set_last_modified(&last.unwrap_or_default()),
        b"connection" => {
            if last.is_some_and(|value| value.eq_ignore_ascii_case(b"close")) {
                r.keepalive = false;
            }
        }
        // How the end of the body is told, only the body's writer can say.
        b"transfer-encoding" => {}
        _ => {
            response.headers.remove(name);
            for value in values.iter().filter(|value| !value.is_empty()) {
                response.headers.add(name, value);
            }
        }
    }
    Ok(())
}

/// Replaces all lines of this name in the request, as if the client had sent them so.
pub fn set_request(r: &mut Request, name: &[u8], values: &[Vec<u8>]) {
    let buf = std::mem::take(&mut r.buf);
    let head = r.parser.head_mut();
    head.headers.retain(|header| !header.name.of(&buf).eq_ignore_ascii_case(name));
    r.buf = buf;
    for value in values {
        let at = r.parser.head().end as usize;
        let line = [name, value.as_slice()].concat();
        // Behind the head, and before what was read of the body.
        if at > r.buf.len() {
            return;
        }
        r.body.shift(line.len());
        r.buf.splice(at..at, line);
        let end = at + name.len();
        let (name, value) = (Span::new(at, end), Span::new(end, end + value.len()));
        let id = HeaderId::from_name(name.of(&r.buf));
        let head = r.parser.head_mut();
        head.add_header(Header { name, value, id });
        head.end = value.end;
    }
    if name.eq_ignore_ascii_case(b"host") {
        r.host = values.last().cloned().unwrap_or_default();
        let end = r.host.iter().position(|b| *b == b':').unwrap_or(r.host.len());
        r.host.truncate(end);
        r.host.make_ascii_lowercase();
    }
}
