//! Variables of the response.

use weir_conf::values;
use weir_log::Level;
use weir_proto::http1::Version;

use crate::request::Request;
use crate::variables::prefixed;
use crate::variables::value::{ReadVariable, put, put_number};

pub const TABLE: &[(&str, ReadVariable)] = &[
    ("status", |r, out| {
        out.extend_from_slice(format!("{:03}", status(r)).as_bytes());
        true
    }),
    ("bytes_sent", |r, out| put_number(out, r.output.sent)),
    ("body_bytes_sent", |r, out| put_number(out, body_bytes(r))),
    ("request_completion", |r, out| put(out, if r.output.complete { b"OK" } else { b"" })),
    ("pipe", |r, out| put(out, if r.pipelined { b"p" } else { b"." })),
    ("limit_rate", |r, out| put_number(out, r.limit_rate.unwrap_or(0))),
    ("sent_http_content_type", |r, out| prefixed::response_header(r, b"content_type", out)),
    ("sent_http_content_length", |r, out| prefixed::response_header(r, b"content_length", out)),
    ("sent_http_location", |r, out| {
        r.sent_location(out) || prefixed::response_header(r, b"location", out)
    }),
    ("sent_http_last_modified", |r, out| prefixed::response_header(r, b"last_modified", out)),
    // Answers in frames have no headers about the connection.
    ("sent_http_connection", |r, out| match (r.response.status, r.keepalive) {
        _ if r.carrier.has_frames() => false,
        (101, _) => put(out, b"upgrade"),
        (_, true) => put(out, b"keep-alive"),
        (_, false) => put(out, b"close"),
    }),
    ("sent_http_keep_alive", |r, out| match r.conf().core.keepalive_header {
        Some(seconds) if r.keepalive && !r.carrier.has_frames() => {
            put(out, b"timeout=") && put_number(out, seconds)
        }
        _ => false,
    }),
    ("sent_http_transfer_encoding", |r, out| r.response.chunked && put(out, b"chunked")),
    ("sent_http_cache_control", |r, out| prefixed::response_header(r, b"cache_control", out)),
    ("sent_http_link", |r, out| prefixed::response_header(r, b"link", out)),
];

/// The sent bytes without interim answers, the head, and framing.
pub fn body_bytes(r: &Request) -> u64 {
    let aside = r.response.head_bytes + r.output.interim + r.carrier.framing();
    r.output.sent.saturating_sub(aside)
}

/// `$status`
pub fn status(r: &Request) -> u16 {
    match (r.response.status, r.error_status) {
        (0, 0) if r.version == Version::Http09 => 9,
        // The status of an error is sent, whatever status its error page has.
        (_, error) if error != 0 && r.response.head_bytes == 0 => error,
        (status, _) => status,
    }
}

/// `set $limit_rate ...`
pub fn set_limit_rate(r: &mut Request, value: &[u8]) {
    match values::size(value) {
        Some(rate) => r.limit_rate = Some(rate),
        None => {
            let value = weir_log::Bytes(value);
            r.log(Level::Error, format_args!("invalid $limit_rate \"{value}\""));
        }
    }
}
