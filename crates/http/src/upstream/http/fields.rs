//! The fields of a request over HTTP/2.

use bytes::Bytes;
use weir_proto::http2::hpack;

use super::SetHeaders;
use crate::answer::output::write_number;
use crate::request::Request;
use weir_values::Subject;

/// The parts of the head that are no headers.
pub struct RequestLine<'a> {
    /// GET, POST ...
    pub method: &'a [u8],
    /// Path and query.
    pub path: &'a [u8],
    /// The body's length, if known.
    pub length: Option<u64>,
}

/// Connection-specific fields. HTTP/2 does not have them, and servers reject requests with one.
const OF_CONNECTIONS: [&[u8]; 5] =
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];
/// Indices of fields in HPACK's fixed table: RFC 7541 appendix A.
const AUTHORITY: u8 = 1;
const METHOD: u8 = 2;
const GET: u8 = 2;
const POST: u8 = 3;
const PATH: u8 = 4;
const HTTP: u8 = 6;
const HTTPS: u8 = 7;
const CONTENT_LENGTH: u8 = 28;
/// The first allocation for a block, enough for most requests.
const ROOM: usize = 512;

/// Writes the field block. `pass`: with the client's own fields.
pub fn write(r: &mut Request, line: &RequestLine<'_>, headers: &SetHeaders, pass: bool) -> Bytes {
    let (mut out, mut value) = (Vec::with_capacity(ROOM), Vec::new());
    match line.method {
        b"GET" => hpack::indexed(GET, &mut out),
        b"POST" => hpack::indexed(POST, &mut out),
        method => hpack::with_name_of(METHOD, method, &mut out),
    }
    write_scheme(r.contexts.upstream.vars.as_ref().map_or("", |vars| vars.scheme), &mut out);
    write_path(line.path, &mut out);
    write_authority(r, headers, &mut value, &mut out);
    write_set(r, headers, line.length, &mut value, &mut out);
    if pass {
        for header in &r.head().headers {
            let name = header.name.of(&r.buf);
            if !headers.dropped.contains(header.id, name) {
                hpack::field(name, header.value.of(&r.buf), &mut out);
            }
        }
    }
    Bytes::from(out)
}

/// The field block of this server's own GET: these `lines`, of which `Host` becomes the authority,
/// and `agent` if they do not have it.
pub fn get(
    scheme: &str,
    path: &[u8],
    host: &[u8],
    lines: &[(Bytes, Bytes)],
    agent: (Bytes, Bytes),
) -> Bytes {
    let (mut out, mut host) = (Vec::new(), host);
    hpack::indexed(GET, &mut out);
    write_scheme(scheme, &mut out);
    write_path(path, &mut out);
    let is_host = |name: &[u8]| name.eq_ignore_ascii_case(b"host");
    if let Some((_, value)) = lines.iter().find(|(name, value)| is_host(name) && !value.is_empty())
    {
        host = value;
    }
    hpack::with_name_of(AUTHORITY, host, &mut out);
    let has_agent = lines.iter().any(|(name, _)| name.eq_ignore_ascii_case(&agent.0));
    for (name, value) in lines.iter().chain(Some(&agent).filter(|_| !has_agent)) {
        if !value.is_empty() && !is_host(name) && may_pass(name, value) {
            hpack::field(name, value, &mut out);
        }
    }
    out.into()
}

fn write_scheme(scheme: &str, out: &mut Vec<u8>) {
    let secured = matches!(scheme, "https://" | "grpcs://");
    hpack::indexed(if secured { HTTPS } else { HTTP }, out);
}

fn write_path(path: &[u8], out: &mut Vec<u8>) {
    match path {
        b"/" => hpack::indexed(PATH, out),
        path => hpack::with_name_of(PATH, path, out),
    }
}

fn write_authority(r: &mut Request, headers: &SetHeaders, value: &mut Vec<u8>, out: &mut Vec<u8>) {
    value.clear();
    if let Some(host) = &headers.host {
        host.eval_into(r, value);
    }
    if value.is_empty() {
        value.extend_from_slice(r.contexts.upstream.vars.as_ref().map_or(b"", |v| &v.host));
    }
    r.within_line(value, 0);
    hpack::with_name_of(AUTHORITY, value, out);
}

/// Writes `..._set_header` and the body's length.
fn write_set(
    r: &mut Request,
    headers: &SetHeaders,
    length: Option<u64>,
    value: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    for (name, template) in &headers.lines {
        value.clear();
        template.eval_into(r, value);
        r.within_line(value, 0);
        if !value.is_empty() && may_pass(name, value) {
            hpack::field(name, value, out);
        }
    }
    if let Some(n) = length.filter(|_| headers.length) {
        value.clear();
        write_number(n, value);
        hpack::with_name_of(CONTENT_LENGTH, value, out);
    }
}

/// Whether a configured line is valid in HTTP/2. One list of lines serves both versions.
fn may_pass(name: &[u8], value: &[u8]) -> bool {
    if name.eq_ignore_ascii_case(b"te") {
        return value.eq_ignore_ascii_case(b"trailers");
    }
    !OF_CONNECTIONS.iter().any(|other| name.eq_ignore_ascii_case(other))
}

#[cfg(test)]
mod tests {
    use super::may_pass;

    #[test]
    fn fields_of_connections_stay() {
        assert!(may_pass(b"X-Real-IP", b"1"));
        assert!(may_pass(b"TE", b"trailers"));
        assert!(!may_pass(b"TE", b"gzip"));
        assert!(!may_pass(b"Connection", b"upgrade"));
        assert!(!may_pass(b"upgrade", b"websocket"));
    }
}
