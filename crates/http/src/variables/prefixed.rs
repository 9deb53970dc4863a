//! Variables with a prefix, followed by the name to read: `$arg_x`, `$http_x`, `$cookie_x`,
//! `$sent_http_x`.

use std::sync::Arc;

use weir_proto::http1::HeaderId;
use weir_proto::uri;

use crate::request::Request;
use crate::request::passed::UpstreamContext;
use crate::variables::value::{joined, put_some, same_name};
use weir_values::Get;

/// Reads the value for the name behind the prefix.
type ReadPrefixed = fn(&mut Request, &[u8], &mut Vec<u8>) -> bool;

/// The reader of a variable with this name, if it has one of the prefixes.
pub fn getter(name: &[u8]) -> Option<Get<Request>> {
    let families: [(&[u8], ReadPrefixed); 9] = [
        (b"arg_", argument),
        (b"http_", request_header),
        (b"sent_http_", response_header),
        (b"sent_trailer_", trailer),
        (b"cookie_", cookie),
        (b"upstream_http_", upstream_http),
        (b"upstream_trailer_", upstream_trailer),
        (b"upstream_cookie_", upstream_cookie),
        (b"proxy_protocol_tlv_", tlv),
    ];
    let (rest, get) =
        families.into_iter().find_map(|(prefix, get)| Some((name.strip_prefix(prefix)?, get)))?;
    let rest = rest.to_vec();
    Some(Arc::new(move |r, out| get(r, &rest, out)))
}

fn argument(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let value = if name.is_empty() { None } else { uri::arg(&r.args, name) };
    put_some(out, value)
}

/// `$http_x`: the values of all lines of a request header, joined.
fn request_header(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    joined(r.headers().filter(|(n, _)| same_name(n, name)).map(|(_, v)| v), b", ", out)
}

/// `$sent_http_x`: the values of all lines of a response header, joined.
pub fn response_header(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    if r.response.special_header(name, out) {
        return true;
    }
    joined(
        r.response.headers.iter().filter(|(n, _)| same_name(n, name)).map(|(_, v)| v),
        b", ",
        out,
    )
}

/// `$proxy_protocol_tlv_x`
fn tlv(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    weir_values::builtin::tlv(r, name, out)
}

fn trailer(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let trailers = r.response.trailers.iter();
    joined(trailers.filter(|(n, _)| same_name(n, name)).map(|(_, v)| v), b", ", out)
}

fn upstream_http(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    joined(upstream_header(&r.contexts.upstream, name), b", ", out)
}

fn upstream_trailer(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let trailers = r.contexts.upstream.trailers.iter();
    joined(trailers.filter(|(n, _)| same_name(n, name)).map(|(_, v)| v), b", ", out)
}

fn upstream_cookie(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let mut lines = upstream_header(&r.contexts.upstream, b"set_cookie");
    put_some(out, lines.find_map(|line| uri::set_cookie_value(line, name)))
}

/// The values of a header in the last upstream server's response. `name` is spelled as in a
/// variable.
pub fn upstream_header<'a>(
    context: &'a UpstreamContext,
    name: &[u8],
) -> impl Iterator<Item = &'a [u8]> {
    let named = context.headers.iter().filter(move |h| same_name(h.name.of(&context.head), name));
    named.map(|h| h.value.of(&context.head))
}

fn cookie(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let mut lines = r.head().all(HeaderId::Cookie).map(|h| h.value.of(&r.buf));
    put_some(out, lines.find_map(|line| uri::list_value(line, name, b';')))
}
