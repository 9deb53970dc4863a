//! Heads of HTTP/1 messages.

use std::fmt::Debug;

use crate::Span;
use crate::http1::{
    HeadLimits, HeadProgress, HeaderLine, RequestHead, RequestParser, ResponseHead, ResponseParser,
};

/// Limits that are reached by short inputs, so that running into them is tried, too.
const TIGHT: HeadLimits = HeadLimits {
    first: 64,
    line: 128,
    total: 512,
    underscores: false,
    ignore_invalid: true,
    max_headers: 8,
    merge_slashes: true,
    allow_connect: true,
    pause_at_server: true,
};

/// Hands over `input` byte by byte, or at once, until `parse` has come to an end.
fn feed<T>(input: &[u8], whole: bool, mut parse: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
    let start = if whole { input.len() } else { 0 };
    (start..=input.len()).find_map(|end| parse(&input[..end]))
}

/// Reads a request head; what it came to as one text.
fn request(input: &[u8], whole: bool, limits: HeadLimits) -> Option<String> {
    let mut parser = RequestParser::new();
    feed(input, whole, |seen| {
        loop {
            match parser.parse(seen, &limits) {
                Ok(HeadProgress::More) => return None,
                Ok(HeadProgress::Server) => continue,
                Ok(HeadProgress::Done) => {
                    sound_request(parser.head(), seen);
                    return Some(shown(parser.head()));
                }
                Err(e) => {
                    let line = parser.logged_line(input);
                    return Some(format!("{e:?} {} {} {line:?}", e.status(), e.reason(seen)));
                }
            }
        }
    })
}

fn shown(what: &dyn Debug) -> String {
    format!("{what:?}")
}

fn sound_request(head: &RequestHead, buf: &[u8]) {
    assert!(head.end as usize <= buf.len() && head.line_end <= head.end);
    let spans = [head.method_name, head.line, head.target, head.path, head.protocol];
    let more = [head.args, head.host, head.schema, head.server].into_iter().flatten();
    spans.into_iter().chain(more).for_each(|span| inside(span, buf));
    sound_headers(&head.headers, buf);
    let segments = head.uri(buf).split(|&ch| ch == b'/');
    assert!(segments.clone().all(|segment| segment != b".."), "the path climbs");
}

fn sound_response(head: &ResponseHead, buf: &[u8]) {
    assert!(head.end as usize <= buf.len());
    inside(head.status_line, buf);
    inside(head.reason, buf);
    sound_headers(&head.headers, buf);
    let _ = head.content_length(buf);
}

fn sound_headers(headers: &[HeaderLine], buf: &[u8]) {
    for header in headers {
        inside(header.name, buf);
        inside(header.value, buf);
        let name = header.name.of(buf);
        assert!(!name.contains(&b'\n') && !name.contains(&b':'), "{name:?}");
        assert!(!header.value.of(buf).contains(&b'\n'));
    }
}

fn inside(span: Span, buf: &[u8]) {
    assert!(span.start <= span.end && span.end as usize <= buf.len(), "{span:?}");
}

#[test]
fn request_head() {
    bolero::check!().for_each(|input: &[u8]| {
        for limits in [HeadLimits::default(), TIGHT] {
            assert_eq!(request(input, true, limits), request(input, false, limits));
        }
    });
}

#[test]
fn response_head() {
    bolero::check!().for_each(|input: &[u8]| {
        let run = |whole, mut parser: ResponseParser| {
            feed(input, whole, |seen| match parser.parse(seen) {
                Ok(HeadProgress::More | HeadProgress::Server) => None,
                Ok(HeadProgress::Done) => {
                    sound_response(parser.head(), seen);
                    Some(shown(parser.head()))
                }
                Err(e) => Some(format!("{e:?} {}", e.reason(seen))),
            })
        };
        assert_eq!(run(true, ResponseParser::new()), run(false, ResponseParser::new()));
        assert_eq!(run(true, ResponseParser::of_script()), run(false, ResponseParser::of_script()));
    });
}
