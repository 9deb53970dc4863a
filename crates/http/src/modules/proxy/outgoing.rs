//! Serializes requests for HTTP/1.

use bytes::Bytes;
use weir_proto::http1::Version;

use super::conf::{Conf, ProxyPass};
use crate::answer::output::write_number;
use crate::escape::within_word;
use crate::request::Request;
use crate::request::passed::Length;
use crate::upstream::http::{SetHeaders, To, uri};
use crate::upstream::{Outgoing, OutgoingError};
use weir_values::Subject;

/// Writes the request line, the headers, and the body of `proxy_set_body`.
pub fn write(
    r: &mut Request,
    conf: &'static Conf,
    pass: &'static ProxyPass,
    length: Length,
) -> Result<Outgoing, OutgoingError> {
    let body = conf.body.as_ref().map(|t| t.eval(r).into_owned());
    let length = match &body {
        Some(body) => Length::Known(body.len() as u64),
        None => length,
    };
    r.contexts.upstream.length = length;
    let mut out = Vec::with_capacity(ROOM);
    match &conf.method {
        _ if r.contexts.upstream.ask_with_get => out.extend_from_slice(b"GET"),
        Some(method) => {
            method.eval_into(r, &mut out);
            within_word(&mut out, 0);
        }
        None => out.extend_from_slice(r.method_name()),
    }
    out.push(b' ');
    let start = out.len();
    write_target(r, pass, &mut out)?;
    let uri = start..out.len();
    out.extend_from_slice(match conf.version {
        Version::Http11 => b" HTTP/1.1\r\n",
        _ => b" HTTP/1.0\r\n",
    });
    let headers = if r.is_cacheable() { &conf.cached_headers } else { &conf.headers };
    write_host(r, conf, headers, &mut out);
    write_set(r, headers, length, &mut out);
    if conf.passing.pass_request_headers {
        let dropped = &headers.dropped;
        for header in &r.head().headers {
            let name = header.name.of(&r.buf);
            if !dropped.contains(header.id, name) {
                line(name, header.value.of(&r.buf), &mut out);
            }
        }
    }
    out.extend_from_slice(b"\r\n");
    if let Some(body) = body {
        out.extend_from_slice(&body);
    }
    let bytes = Bytes::from(out);
    Ok(Outgoing { uri: bytes.slice(uri), bytes, body: Bytes::new() })
}

/// Writes the requested URL: the default cache key.
pub fn write_key(r: &Request, pass: &ProxyPass, out: &mut Vec<u8>) {
    if let Some(vars) = r.contexts.upstream.vars.as_deref() {
        out.extend_from_slice(vars.scheme.as_bytes());
        match &vars.socket {
            Some(socket) => {
                out.extend_from_slice(socket);
                out.push(b':');
            }
            None => out.extend_from_slice(&vars.host),
        }
    }
    write_uri(r, pass, out);
}

/// Writes the request's URI. An error if it is empty or climbs out of that of `proxy_pass`.
pub fn write_target(r: &Request, pass: &ProxyPass, out: &mut Vec<u8>) -> Result<(), OutgoingError> {
    let start = out.len();
    write_uri(r, pass, out);
    within_word(out, start);
    if out.len() == start {
        return Err(OutgoingError::NoUri);
    }
    if parts(r, pass).climbs() {
        return Err(OutgoingError::Climbs);
    }
    Ok(())
}

fn write_uri(r: &Request, pass: &ProxyPass, out: &mut Vec<u8>) {
    uri::write(&parts(r, pass), out);
}

fn parts<'r>(r: &'r Request, pass: &'r ProxyPass) -> uri::Parts<'r> {
    let vars = r.contexts.upstream.vars.as_deref();
    let head = r.head();
    uri::Parts {
        own: vars.map_or(b"", |v| &v.uri),
        computed: matches!(pass.to, To::Computed(_)),
        location: &pass.location,
        location_holds: !r.rewritten_in_place,
        as_sent: r.target_as_sent(),
        path: &r.path,
        escapes: head.quoted || r.internal,
        args: &r.args,
    }
}

fn write_host(r: &mut Request, conf: &Conf, headers: &SetHeaders, out: &mut Vec<u8>) {
    let mark = out.len();
    out.extend_from_slice(b"Host: ");
    let start = out.len();
    if let Some(host) = &headers.host {
        host.eval_into(r, out);
    }
    // HTTP/1.1 requires `Host`, so an empty value is replaced there.
    let computed = headers.host.is_none() || conf.version == Version::Http11;
    if out.len() == start && computed {
        out.extend_from_slice(r.contexts.upstream.vars.as_ref().map_or(b"", |v| &v.host));
    }
    end_line(r, mark, start, out);
}

/// Ends the line that began at `mark`, with its value at `start`. A line without a value is removed.
fn end_line(r: &Request, mark: usize, start: usize, out: &mut Vec<u8>) {
    if out.len() == start {
        return out.truncate(mark);
    }
    r.within_line(out, start);
    out.extend_from_slice(b"\r\n");
}

/// Writes `proxy_set_header` and the length of the body.
fn write_set(r: &mut Request, headers: &SetHeaders, length: Length, out: &mut Vec<u8>) {
    for (name, value) in &headers.lines {
        let mark = out.len();
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        let start = out.len();
        value.eval_into(r, out);
        end_line(r, mark, start, out);
    }
    match length {
        Length::Known(n) if headers.length => {
            out.extend_from_slice(b"Content-Length: ");
            write_number(n, out);
            out.extend_from_slice(b"\r\n");
        }
        Length::Chunked if headers.chunked => {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        _ => {}
    }
}

fn line(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The first allocation for a request, enough for most.
const ROOM: usize = 1024;
