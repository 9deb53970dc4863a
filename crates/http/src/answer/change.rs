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
        b"accept-ranges" | b"content-range" | b"expires" | b"refresh" => {
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

/// Headers of a request that have at most one line. nginx: `ngx_http_lua_set_handlers` of `ngx_http_lua_headers_in.c`.
const WITH_ONE_LINE: &[&str] = &[
    "Host",
    "Connection",
    "If-Modified-Since",
    "If-Unmodified-Since",
    "If-Match",
    "If-None-Match",
    "User-Agent",
    "Referer",
    "Content-Length",
    "Content-Type",
    "Range",
    "If-Range",
    "Transfer-Encoding",
    "Expect",
    "Upgrade",
    "Accept-Encoding",
    "Via",
    "Authorization",
    "Keep-Alive",
    "X-Real-IP",
    "Depth",
    "Destination",
    "Overwrite",
    "Date",
];

/// A value that the request's header of this name cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit;

/// Checks a value for a header of the request. An empty one removes the header.
pub fn fits_request(name: &[u8], value: &[u8]) -> Result<(), Unfit> {
    let fits = match () {
        () if value.is_empty() => true,
        () if name.eq_ignore_ascii_case(b"host") => host_of(value).is_some(),
        () if name.eq_ignore_ascii_case(b"content-length") => {
            weir_conf::values::number(value).is_some()
        }
        () => true,
    };
    if fits { Ok(()) } else { Err(Unfit) }
}

/// The name of a `Host` that a script or the configuration sets: without port and trailing dot. It may have bytes that a
/// client's may not have. nginx: `ngx_http_lua_validate_host`.
fn host_of(value: &[u8]) -> Option<&[u8]> {
    let end = match value.first() {
        Some(b'[') => value.iter().position(|b| *b == b']').map(|at| at + 1),
        _ => value.iter().position(|b| *b == b':'),
    };
    let host = value.get(..end.unwrap_or(value.len()))?;
    let host = host.strip_suffix(b".").unwrap_or(host);
    let is_bad =
        host.is_empty() || value.contains(&b'/') || memchr::memmem::find(value, b"..").is_some();
    (!is_bad).then_some(host)
}

/// Replaces all lines of this name in the request, as if the client had sent them. An empty value in place of the old ones adds
/// no line. Lines that are passed on are not checked again.
pub fn set_request(r: &mut Request, name: &[u8], values: &[Vec<u8>]) {
    let name = &*checked(name);
    remove_from_request(r, name);
    let values = values
        .split_first()
        .map_or(values, |(first, others)| if first.is_empty() { others } else { values });
    add_to_request(r, name, values);
}

/// Adds lines of this name to the request. A header that has one line only gets the last value.
pub fn add_request(r: &mut Request, name: &[u8], values: &[Vec<u8>]) {
    add_to_request(r, &checked(name), values);
}

#[expect(clippy::disallowed_methods, reason = "it adds no line")]
fn remove_from_request(r: &mut Request, name: &[u8]) {
    if name.eq_ignore_ascii_case(b"host") {
        r.host.clear();
    }
    let buf = std::mem::take(&mut r.buf);
    let head = r.parser.head_mut();
    head.headers.retain(|header| !header.name.of(&buf).eq_ignore_ascii_case(name));
    r.buf = buf;
}

fn add_to_request(r: &mut Request, name: &[u8], mut values: &[Vec<u8>]) {
    if name.is_empty() {
        return;
    }
    if let ([.., last], true) = (values, has_one_line(name)) {
        remove_from_request(r, name);
        values = if last.is_empty() { &[] } else { std::slice::from_ref(last) };
    }
    values.iter().for_each(|value| add_line(r, name, value));
}

fn has_one_line(name: &[u8]) -> bool {
    WITH_ONE_LINE.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Adds a line behind the head, before the part of the body that was read. No other code adds lines to a request.
#[expect(clippy::disallowed_methods, reason = "what it adds is within its line")]
fn add_line(r: &mut Request, name: &[u8], value: &[u8]) {
    let at = r.parser.head().end as usize;
    if at > r.buf.len() {
        return;
    }
    let mut line = [name, value].concat();
    r.within_line(&mut line, name.len());
    if name.eq_ignore_ascii_case(b"host") {
        let value = line.get(name.len()..).unwrap_or_default();
        r.host = host_of(value).unwrap_or_default().to_ascii_lowercase();
    }
    let (end, whole) = (at + name.len(), at + line.len());
    r.body.shift(line.len());
    r.buf.splice(at..at, line);
    let (name, value) = (Span::new(at, end), Span::new(end, whole));
    let id = HeaderId::from_name(name.of(&r.buf));
    let head = r.parser.head_mut();
    head.add_header(HeaderLine { name, value, id });
    head.end = value.end;
}
