//! Ends a request with a status: the configuration's error page, or weir's own.

use bytes::Bytes;

use crate::phases::Step;
use crate::request::Request;
use crate::response::reason;

/// What a status leads to: an error page of the configuration, a page of weir's own, or no answer at all.
pub fn finalize(r: &mut Request, status: u16) -> Step {
    if matches!(status, 408 | 444 | 499) || r.response.sent {
        if !r.response.sent {
            r.response.status = status;
        }
        r.keepalive = false;
        return Step::Abort;
    }
    if r.error_status == 0 || r.conf().core.recursive_error_pages {
        r.error_status = status;
        if let Some(step) = crate::modules::core::error_page(r, status) {
            return step;
        }
    }
    own_page(r, status)
}

/// weir's own page for a status.
pub fn own_page(r: &mut Request, status: u16) -> Step {
    let shown = visible(status);
    if matches!(status, 400 | 413 | 414 | 494..=497 | 500 | 501) {
        r.keepalive = false;
    }
    let location = r.response.location.take();
    r.response.forget_body();
    r.response.location = location;
    r.response.status = shown;
    if shown < 300 || shown == 304 {
        r.response.header_only = true;
        return Step::Respond(Bytes::new());
    }
    let body = page(status, r.conf().core.server_tokens.signature());
    r.response.content_type.extend_from_slice(b"text/html");
    r.response.content_length = Some(body.len() as u64);
    Step::Respond(Bytes::from(body))
}

/// nginx's own codes stand for variants of 400 that clients see as 400.
fn visible(status: u16) -> u16 {
    if matches!(status, 494..=497) { 400 } else { status }
}

fn page(status: u16, signature: &[u8]) -> Vec<u8> {
    let (title, heading, text) = match status {
        494 => (
            "400 Request Header Or Cookie Too Large",
            "400 Bad Request",
            "Request Header Or Cookie Too Large",
        ),
        495 => ("400 The SSL certificate error", "400 Bad Request", "The SSL certificate error"),
        496 => (
            "400 No required SSL certificate was sent",
            "400 Bad Request",
            "No required SSL certificate was sent",
        ),
        497 => (
            "400 The plain HTTP request was sent to HTTPS port",
            "400 Bad Request",
            "The plain HTTP request was sent to HTTPS port",
        ),
        _ => ("", "", ""),
    };
    // The page's word for 302 is younger than the status line's.
    let name = if status == 302 { "Found" } else { reason(status) };
    let plain = format!("{status} {name}");
    let plain = plain.trim_end();
    let (title, heading) = if title.is_empty() { (plain, plain) } else { (title, heading) };
    let mut out = Vec::with_capacity(256);
    for part in [
        b"<html>\r\n<head><title>".as_slice(),
        title.as_bytes(),
        b"</title></head>\r\n<body>\r\n<center><h1>",
        heading.as_bytes(),
        b"</h1></center>\r\n",
    ] {
        out.extend_from_slice(part);
    }
    if !text.is_empty() {
        out.extend_from_slice(b"<center>");
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(b"</center>\r\n");
    }
    out.extend_from_slice(b"<hr><center>");
    out.extend_from_slice(signature);
    out.extend_from_slice(b"</center>\r\n</body>\r\n</html>\r\n");
    out
}
