//! Ends a request with a status: the configuration's error page, or weir's own.
//! nginx: ngx_http_special_response.c.

use bytes::Bytes;
use weir_proto::http1::Version;
use weir_proto::uri::Escape;

use crate::phases::Step;
use crate::request::Request;
use crate::request::user_agent::Browser;

/// Ends a request with a status: with an error page of the configuration, weir's own page, or no answer at all.
pub fn finalize(r: &mut Request, status: u16) -> Step {
    if matches!(status, 408 | 444 | 499) || r.response.sent || r.body.is_left() {
        if !r.response.sent {
            r.response.status = status;
        }
        r.keepalive = false;
        if status == 444 {
            r.carrier.shut_out();
            r.timed_out();
        }
        return Step::Abort;
    }
    r.error_status = status;
    if matches!(status, 400 | 413 | 414 | 495..=497 | 500 | 501) {
        r.keepalive = false;
    }
    if r.is_pageless() && status >= 300 {
        return head_alone(r, status);
    }
    r.response.content_type.clear();
    let core = &r.conf().core;
    if !r.error_page && !core.error_pages.is_empty() && r.path_changes_left > 0 {
        r.error_page = !core.recursive_error_pages;
        if let Some(step) = crate::answer::errors::error_page(r, status) {
            return step;
        }
    }
    own_page(r, status)
}

/// Sends the head alone, for a reader that looks at the status and not at the body.
fn head_alone(r: &mut Request, status: u16) -> Step {
    r.response.forget_body();
    r.response.status = status;
    r.set_content_type();
    // Header filters run. The reader sees their result.
    let _ = r.send_head();
    Step::Abort
}

/// weir's own page for a status, or an empty answer for one that has no page.
pub fn own_page(r: &mut Request, status: u16) -> Step {
    let core = &r.conf().core;
    // The rest of the body is read after the answer, without `100 Continue`.
    r.body.expects_continue = false;
    if core.msie_refresh
        && matches!(status, 301 | 302)
        && browser(r).msie
        && let Some(location) = r.response.location.take()
    {
        return refresh(r, &location);
    }
    let location = r.response.location.take();
    r.response.forget_body();
    r.response.location = location;
    r.error_status = if matches!(status, 494..=497) { 400 } else { status };
    r.response.status = r.error_status;
    let Some(page) = Page::of(status) else {
        r.response.content_length = Some(0);
        return Step::Respond(Bytes::new());
    };
    let padded = core.msie_padding && status >= 400 && r.version >= Version::Http10 && {
        let browser = browser(r);
        browser.msie || browser.chrome
    };
    let body = page.write(core.server_tokens.signature(), padded);
    respond_html(r, body)
}

fn browser(r: &Request) -> Browser {
    Browser::of(r.header(weir_proto::http1::HeaderId::UserAgent).unwrap_or_default())
}

fn respond_html(r: &mut Request, body: Vec<u8>) -> Step {
    r.response.set_type(b"text/html");
    r.response.content_length = Some(body.len() as u64);
    Step::Respond(Bytes::from(body))
}

/// Sends a page with a refresh in place of a redirect: old versions of MSIE kept the address of the redirected page.
fn refresh(r: &mut Request, location: &[u8]) -> Step {
    r.response.forget_body();
    (r.error_status, r.response.status) = (200, 200);
    let mut body = b"<html><head><meta http-equiv=\"Refresh\" content=\"0; URL=".to_vec();
    weir_proto::uri::escape(Escape::Refresh, location, &mut body);
    body.extend_from_slice(b"\"></head><body></body></html>\r\n");
    respond_html(r, body)
}

/// The parts of weir's own page for a status.
struct Page {
    title: &'static str,
    heading: &'static str,
    /// A line below the heading.
    text: &'static str,
}

impl Page {
    fn of(status: u16) -> Option<Page> {
        let plain = |title| Some(Page { title, heading: title, text: "" });
        let bad_request = |title, text| Some(Page { title, heading: "400 Bad Request", text });
        match status {
            301 => plain("301 Moved Permanently"),
            302 => plain("302 Found"),
            303 => plain("303 See Other"),
            307 => plain("307 Temporary Redirect"),
            308 => plain("308 Permanent Redirect"),
            400 => plain("400 Bad Request"),
            401 => plain("401 Authorization Required"),
            402 => plain("402 Payment Required"),
            403 => plain("403 Forbidden"),
            404 | 498 => plain("404 Not Found"),
            405 => plain("405 Not Allowed"),
            406 => plain("406 Not Acceptable"),
            407 => plain("407 Proxy Authentication Required"),
            408 => plain("408 Request Time-out"),
            409 => plain("409 Conflict"),
            410 => plain("410 Gone"),
            411 => plain("411 Length Required"),
            412 => plain("412 Precondition Failed"),
            413 => plain("413 Request Entity Too Large"),
            414 => plain("414 Request-URI Too Large"),
            415 => plain("415 Unsupported Media Type"),
            416 => plain("416 Requested Range Not Satisfiable"),
            421 => plain("421 Misdirected Request"),
            429 => plain("429 Too Many Requests"),
            494 => bad_request(
                "400 Request Header Or Cookie Too Large",
                "Request Header Or Cookie Too Large",
            ),
            495 => bad_request("400 The SSL certificate error", "The SSL certificate error"),
            496 => bad_request(
                "400 No required SSL certificate was sent",
                "No required SSL certificate was sent",
            ),
            497 => bad_request(
                "400 The plain HTTP request was sent to HTTPS port",
                "The plain HTTP request was sent to HTTPS port",
            ),
            500 => plain("500 Internal Server Error"),
            501 => plain("501 Not Implemented"),
            502 => plain("502 Bad Gateway"),
            503 => plain("503 Service Temporarily Unavailable"),
            504 => plain("504 Gateway Time-out"),
            505 => plain("505 HTTP Version Not Supported"),
            507 => plain("507 Insufficient Storage"),
            _ => None,
        }
    }

    fn write(&self, signature: &[u8], padded: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(if padded { 768 } else { 256 });
        for part in [
            b"<html>\r\n<head><title>".as_slice(),
            self.title.as_bytes(),
            b"</title></head>\r\n<body>\r\n<center><h1>",
            self.heading.as_bytes(),
            b"</h1></center>\r\n",
        ] {
            out.extend_from_slice(part);
        }
        if !self.text.is_empty() {
            out.extend_from_slice(b"<center>");
            out.extend_from_slice(self.text.as_bytes());
            out.extend_from_slice(b"</center>\r\n");
        }
        out.extend_from_slice(b"<hr><center>");
        out.extend_from_slice(signature);
        out.extend_from_slice(b"</center>\r\n</body>\r\n</html>\r\n");
        if padded {
            // Some browsers replace error pages that are shorter than 512 bytes.
            for _ in 0..6 {
                out.extend_from_slice(PADDING);
            }
        }
        out
    }
}

const PADDING: &[u8] = b"<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n";
