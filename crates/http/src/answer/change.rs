//! Changes headers by name, for configurations and scripts, whichever code set them.

use std::borrow::Cow;

use weir_proto::Span;
use weir_proto::http1::{HeaderId, HeaderLine};

use crate::escape::{is_name, within_name};
use crate::request::Request;
use weir_values::Subject;

/// Headers of an answer that have a field of their own in [`Response`](crate::answer::response::Response).
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

/// A name from a script or the configuration, with the bytes replaced that would end it.
fn checked(name: &[u8]) -> Cow<'_, [u8]> {
    if is_name(name) {
        return Cow::Borrowed(name);
    }
    let mut name = name.to_vec();
    within_name(&mut name, 0);
    Cow::Owned(name)
}

/// Replaces all lines of this name in the answer. No values: removes them. Scripts may read a line back, so bytes that would
/// end the line are replaced in the values at once.
pub fn set_answer(r: &mut Request, name: &[u8], values: &mut [Vec<u8>]) -> Result<(), NoLength> {
    let name = &*checked(name);
    values.iter_mut().for_each(|value| r.within_line(value, 0));
    let last = values.last().filter(|value| !value.is_empty()).cloned();
    let response = &mut r.response;
    match name.to_ascii_lowercase().as_slice() {
        b"content-type" => response.say_type(&last.unwrap_or_default()),
        b"content-length" => {
            let number =
                last.as_deref().map(|text| weir_conf::values::number(text).ok_or(NoLength));
            response.content_length = number.transpose()?;
        }
        b"location" => {
            response.headers.remove(name);
            response.location = last;
        }
        b"etag" => response.etag = last,
        // With an empty value the answer has no such line, not even weir's own.
        b"server" => response.server = Some(last.unwrap_or_default()),
        b"date" => response.date = Some(last.unwrap_or_default()),
        b"content-encoding" => response.content_encoding = last,
        b"last-modified" => response.set_last_modified(&last.unwrap_or_default()),
        b"connection" => {
            if last.is_some_and(|value| value.eq_ignore_ascii_case(b"close")) {
                r.keepalive = false;
            }
        }
        // Only the body's writer decides on the framing.
        b"transfer-encoding" | b"" => {}
        // There is at most one line of these.
        b"content-range" | b"expires" | b"refresh" => {
            response.headers.remove(name);
            if let Some(value) = last {
                response.headers.add(name, &value);
            }
        }
        _ => {
            response.headers.remove(name);
            for value in values.iter().filter(|value| !value.is_empty()) {
                response.headers.add(name, value);
            }
        }
    }
    Ok(())
}

/// Replaces all `Location` lines of the answer by those of a script. A path stays a path: behind a TLS terminator a URL would
/// lead the client to this server's own port. nginx: the lua module leaves such a line out of `headers_out.location`, which
/// becomes a URL.
pub fn set_location_as_said(r: &mut Request, values: &mut [Vec<u8>]) {
    const NAME: &[u8] = b"Location";
    values.iter_mut().for_each(|value| r.within_line(value, 0));
    let response = &mut r.response;
    response.headers.remove(NAME);
    response.location = None;
    match values {
        [one] if !one.is_empty() && !one.starts_with(b"/") => {
            response.location = Some(std::mem::take(one));
        }
        several => {
            for value in several.iter().filter(|value| !value.is_empty()) {
                response.headers.add(NAME, value);
            }
        }
    }
}

/// Replaces all lines of this name in the request, as if the client had sent them. No other code adds lines to a request, and
/// lines that are passed on are not checked again.
#[expect(clippy::disallowed_methods, reason = "what it adds is within its line")]
pub fn set_request(r: &mut Request, name: &[u8], values: &[Vec<u8>]) {
    let name = &*checked(name);
    if name.is_empty() {
        return;
    }
    let is_host = name.eq_ignore_ascii_case(b"host");
    if is_host {
        r.host.clear();
    }
    let buf = std::mem::take(&mut r.buf);
    let head = r.parser.head_mut();
    head.headers.retain(|header| !header.name.of(&buf).eq_ignore_ascii_case(name));
    r.buf = buf;
    for value in values {
        let at = r.parser.head().end as usize;
        let mut line = [name, value].concat();
        r.within_line(&mut line, name.len());
        let whole = at + line.len();
        // The lines go behind the head, before the part of the body that was read.
        if at > r.buf.len() {
            return;
        }
        if is_host {
            r.host.clear();
            r.host.extend_from_slice(line.get(name.len()..).unwrap_or_default());
        }
        r.body.shift(line.len());
        r.buf.splice(at..at, line);
        let end = at + name.len();
        let (name, value) = (Span::new(at, end), Span::new(end, whole));
        let id = HeaderId::from_name(name.of(&r.buf));
        let head = r.parser.head_mut();
        head.add_header(HeaderLine { name, value, id });
        head.end = value.end;
    }
    if is_host {
        let end = r.host.iter().position(|b| *b == b':').unwrap_or(r.host.len());
        r.host.truncate(end);
        r.host.make_ascii_lowercase();
    }
}
