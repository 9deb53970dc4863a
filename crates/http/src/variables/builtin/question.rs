//! Variables of the request.

use weir_proto::base64::{self, Alphabet};
use weir_proto::http1::{HeaderId, Method};

use crate::request::Request;
use crate::variables::value::{ReadVariable, joined, put, put_number, put_some};

/// `$uri`. Empty if the path is not valid. A request line that did not come whole, or is refused for
/// anything but its path, has none: its length does not count either.
fn uri(r: &mut Request, out: &mut Vec<u8>) -> bool {
    let whole = r.request_length > 0 || r.carrier.has_frames();
    let named = !r.path.is_empty() || whole && !r.text(r.head().target).is_empty();
    named && put(out, &r.path)
}

pub const TABLE: &[(&str, ReadVariable)] = &[
    // A stream may end before its head was received.
    ("request", |r, out| {
        let line = Some(r.request_line());
        put_some(out, line.filter(|line| !line.is_empty() || !r.carrier.has_frames()))
    }),
    ("request_method", |r, out| {
        let name = r.main_method();
        put_some(out, Some(name).filter(|n| !n.is_empty()))
    }),
    ("request_uri", |r, out| {
        // A request line has a target, but the line of a refused request may not.
        put_some(out, Some(r.text(r.head().target)).filter(|uri| !uri.is_empty()))
    }),
    ("server_protocol", |r, out| {
        // The protocol does not begin a request line: it is empty for a refused request and for
        // HTTP/0.9, also over QUIC.
        let protocol = r.head().protocol;
        let text = r.text(protocol);
        let named = protocol.start > 0 || r.carrier.has_frames() && !text.is_empty();
        named && put(out, text)
    }),
    ("scheme", |r, out| put(out, if r.conn.is_tls() { b"https" } else { b"http" })),
    ("https", |r, out| put(out, if r.conn.is_tls() { b"on" } else { b"" })),
    ("uri", uri),
    ("document_uri", uri),
    ("args", args),
    ("query_string", args),
    ("is_args", |r, out| put(out, if r.args.is_empty() { b"" } else { b"?" })),
    ("host", |r, out| match r.host.is_empty() {
        true => put(out, r.server.name().as_bytes()),
        false => put(out, &r.host),
    }),
    ("server_name", |r, out| put(out, r.server.name().as_bytes())),
    ("request_port", |r, out| match r.head().port {
        0 => put(out, b""),
        port => put_number(out, u64::from(port)),
    }),
    ("is_request_port", |r, out| put(out, if r.head().port == 0 { b"" } else { b":" })),
    // Other names that a variable would spell like one of these do not count: not `X_Forwarded_For`.
    // A request with several is refused, and the first one counts for its log line.
    ("http_host", |r, out| r.header(HeaderId::Host).is_some_and(|host| put(out, host))),
    ("http_user_agent", |r, out| put_all(r, HeaderId::UserAgent, out)),
    ("http_referer", |r, out| put_all(r, HeaderId::Referer, out)),
    ("http_via", |r, out| put_all(r, HeaderId::Via, out)),
    ("http_x_forwarded_for", |r, out| put_all(r, HeaderId::XForwardedFor, out)),
    ("http_cookie", |r, out| put_all(r, HeaderId::Cookie, out)),
    ("content_type", |r, out| put_all(r, HeaderId::ContentType, out)),
    ("content_length", |r, out| match (r.header(HeaderId::ContentLength), r.body.length) {
        (Some(text), _) => put(out, text),
        (None, Some(length)) if !r.body.is_refused() => put_number(out, length),
        (None, _) => false,
    }),
    ("remote_user", |r, out| match credentials(r) {
        Some((user, _)) => put(out, &user),
        None => false,
    }),
    ("request_length", |r, out| put_number(out, r.request_length)),
    ("request_body", |r, out| {
        for piece in &r.body.memory {
            out.extend_from_slice(piece);
        }
        out.extend_from_slice(&r.body.part);
        !r.body.memory.is_empty() || !r.body.part.is_empty() || r.body.was_read_empty()
    }),
];

/// The values of all lines of a well-known header, joined.
fn put_all(r: &Request, id: HeaderId, out: &mut Vec<u8>) -> bool {
    let separator: &[u8] = if id == HeaderId::Cookie { b"; " } else { b", " };
    joined(r.head().all(id).map(|header| header.value.of(&r.buf)), separator, out)
}

/// `$args`. A request without `?` has no value, unless it was set to an empty one. An access log
/// shows the difference.
fn args(r: &mut Request, out: &mut Vec<u8>) -> bool {
    put(out, &r.args) && (r.args_set || !r.args.is_empty())
}

/// `set $args ...`
pub fn set_args(r: &mut Request, value: &[u8]) {
    r.args.clear();
    r.args.extend_from_slice(value);
    r.args_set = true;
    // The request's own target is no longer passed on, so that servers get the new arguments.
    r.unchanged_path = false;
}

/// User name and password of basic authentication (RFC 7617), if the client sent them.
pub fn credentials(r: &Request) -> Option<(Vec<u8>, Vec<u8>)> {
    let value = r.header(match r.method {
        Method::Connect => HeaderId::ProxyAuthorization,
        _ => HeaderId::Authorization,
    })?;
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let spaces = rest.iter().take_while(|ch| **ch == b' ').count();
    let mut user = base64::decode(Alphabet::Plain, rest.get(spaces..)?)?;
    let colon = memchr::memchr(b':', &user).filter(|at| *at > 0)?;
    let password = user.get(colon + 1..)?.to_vec();
    user.truncate(colon);
    Some((user, password))
}

/// 16 random bytes in hexadecimal. No other request has the same.
pub fn request_id(r: &mut Request, out: &mut Vec<u8>) -> bool {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for byte in r.event_loop.random_id() {
        out.push(HEX[usize::from(byte >> 4)]);
        out.push(HEX[usize::from(byte & 15)]);
    }
    true
}
