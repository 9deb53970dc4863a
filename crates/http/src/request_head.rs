//! What a head means, once it is read: server, framing of the body, keep-alive. Rules of
//! RFC 9112 sections 3 and 6, refused as nginx refuses them.

use weir_log::Level;
use weir_proto::http1::{BodyDecoder, HeaderId, Method, Version};
use weir_proto::uri;

use crate::request::Request;

/// Takes over what the parser found. The error is the status to answer with.
pub fn accept(r: &mut Request) -> Result<(), u16> {
    let head = r.parser.head();
    r.method = head.method;
    r.version = head.version;
    r.request_length = u64::from(head.end);
    set_path(r)?;
    set_host(r)?;
    set_body(r)?;
    r.keepalive = wants_keepalive(r);
    match r.method {
        Method::Trace | Method::Connect => {
            r.log(Level::Info, format_args!("client sent TRACE or CONNECT method"));
            Err(405)
        }
        _ => Ok(()),
    }
}

fn set_path(r: &mut Request) -> Result<(), u16> {
    let head = r.parser.head();
    if let Some(args) = head.args {
        r.args.extend_from_slice(args.of(&r.buf));
    }
    let raw = head.path.of(&r.buf);
    if raw.is_empty() {
        r.path.push(b'/');
    } else if head.complex {
        uri::normalise(raw, r.server.conf.merge_slashes, &mut r.path).map_err(|_| {
            r.log(Level::Info, format_args!("client sent invalid request"));
            400u16
        })?;
    } else {
        r.path.extend_from_slice(raw);
    }
    Ok(())
}

fn set_host(r: &mut Request) -> Result<(), u16> {
    let mut hosts = r.head().headers.iter().filter(|h| h.id == HeaderId::Host).map(|h| h.value);
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        r.log(Level::Info, format_args!("client sent duplicate host header"));
        return Err(400);
    }
    if first.is_none() && r.version == Version::Http11 {
        r.log(Level::Info, format_args!("client sent HTTP/1.1 request without \"Host\" header"));
        return Err(400);
    }
    if let Some(header) = first {
        check_host(r, header)?;
    }
    let Some(span) = r.head().host.or(first) else { return Ok(()) };
    let host = check_host(r, span)?;
    r.host = host;
    if !r.site.is_single(&r.conn) {
        let host = std::mem::take(&mut r.host);
        r.server = r.site.server_for(r, &host);
        r.host = host;
        r.location = r.site.location(r.server.location);
    }
    Ok(())
}

fn check_host(r: &Request, span: weir_proto::Span) -> Result<Vec<u8>, u16> {
    match uri::host_valid(r.text(span)) {
        Ok((host, _port)) => Ok(host),
        Err(_) => {
            r.log(Level::Info, format_args!("client sent invalid host header"));
            Err(400)
        }
    }
}

fn set_body(r: &mut Request) -> Result<(), u16> {
    let mut length = None;
    let mut chunked = false;
    let mut fault = None;
    for header in &r.parser.head().headers {
        let value = header.value.of(&r.buf);
        match header.id {
            HeaderId::ContentLength if length.is_some() => {
                fault = Some((400, "client sent duplicate header line: \"Content-Length\""));
            }
            HeaderId::ContentLength => match decimal(value) {
                Some(n) => length = Some(n),
                None => fault = Some((400, "client sent invalid \"Content-Length\" header")),
            },
            HeaderId::TransferEncoding if chunked => {
                fault = Some((400, "client sent duplicate header line: \"Transfer-Encoding\""));
            }
            HeaderId::TransferEncoding if r.version < Version::Http11 => {
                fault = Some((400, "client sent HTTP/1.0 request with \"Transfer-Encoding\" header"));
            }
            HeaderId::TransferEncoding if value.eq_ignore_ascii_case(b"chunked") => chunked = true,
            HeaderId::TransferEncoding => {
                fault = Some((501, "client sent unknown \"Transfer-Encoding\""));
            }
            _ => {}
        }
    }
    if chunked && length.is_some() {
        fault = Some((400, "client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time"));
    }
    if let Some((status, text)) = fault {
        r.log(Level::Info, format_args!("{text}"));
        return Err(status);
    }
    r.body.length = length;
    r.body.chunked = chunked;
    r.body.expects_continue =
        r.header(HeaderId::Expect).is_some_and(|v| v.eq_ignore_ascii_case(b"100-continue"));
    if chunked {
        r.body.expect(BodyDecoder::chunked());
    } else if let Some(n) = length.filter(|n| *n > 0) {
        r.body.expect(BodyDecoder::length(n));
    }
    Ok(())
}

/// A number without sign, blanks or overflow.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse::<u64>().ok().filter(|n| *n <= i64::MAX as u64)
}

fn wants_keepalive(r: &Request) -> bool {
    match r.header(HeaderId::Connection) {
        Some(v) if contains(v, b"close") => false,
        Some(v) if contains(v, b"keep-alive") => true,
        _ => r.version >= Version::Http11,
    }
}

fn contains(value: &[u8], word: &[u8]) -> bool {
    value.windows(word.len()).any(|w| w.eq_ignore_ascii_case(word))
}
