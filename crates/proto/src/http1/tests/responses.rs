use proptest::prelude::*;

use crate::http1::*;

fn parse(text: &str) -> Result<ResponseHead, ResponseError> {
    let mut parser = ResponseParser::new();
    match parser.parse(text.as_bytes())? {
        HeadProgress::Done => Ok(parser.take_head()),
        other => panic!("{other:?} for {text:?}"),
    }
}

fn of(span: crate::Span, text: &str) -> &str {
    std::str::from_utf8(span.of(text.as_bytes())).unwrap()
}

#[test]
fn a_usual_response() {
    let text = "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nX_y: z\r\n\r\nhello";
    let head = parse(text).unwrap();
    assert_eq!((head.version, head.status), (Version::Http11, 404));
    assert_eq!(of(head.status_line, text), "404 Not Found");
    assert_eq!(of(head.reason, text), "Not Found");
    assert_eq!(head.headers.len(), 2);
    assert_eq!(head.content_length(text.as_bytes()), Some(Some(5)));
    assert_eq!(&text[head.end as usize..], "hello");
}

#[test]
fn status_lines() {
    let line = |line: &str| {
        let text = format!("{line}\r\n\r\n");
        parse(&text).map(|head| (head.version, head.status, of(head.status_line, &text).to_owned()))
    };
    let ok = |version, status, text: &str| Ok((version, status, text.to_owned()));
    assert_eq!(line("HTTP/1.0 200 OK"), ok(Version::Http10, 200, "200 OK"));
    assert_eq!(line("HTTP/1.1 200"), ok(Version::Http11, 200, "200"));
    assert_eq!(line("HTTP/1.1 200 "), ok(Version::Http11, 200, "200 "));
    assert_eq!(line("HTTP/1.1   403.1 x"), ok(Version::Http11, 403, "403.1 x"));
    assert_eq!(line("HTTP/2.0 200"), ok(Version::Http11, 200, "200"));
    assert_eq!(line("HTTP/1.10 000"), ok(Version::Http11, 0, "000"));
    for broken in [
        "",
        "hello",
        "http/1.1 200",
        "HTTP/0.9 200",
        "HTTP/1.1  20x",
        "HTTP/1.1 2000",
        "HTTP/1.1\t200",
        "HTTP/1 200",
        "HTTP/1.1 200 OK\rx",
        "ICY 200 OK",
    ] {
        assert_eq!(line(broken), Err(ResponseError::NoStatusLine), "{broken}");
    }
    assert_eq!(ResponseError::NoStatusLine.reason(b""), "upstream sent no valid HTTP/1.0 header");
}

#[test]
fn a_second_status_line_is_skipped() {
    let text = "HTTP/1.1 200 OK\r\nHTTP/1.1 200 OK\r\nA: b\r\n\r\n";
    assert_eq!(parse(text).unwrap().headers.len(), 1);
}

#[test]
fn odd_names_are_kept_and_broken_lines_refused() {
    assert_eq!(parse("HTTP/1.1 200 OK\r\nA@b: c\r\nHTTPx/y: 1\r\n\r\n").unwrap().headers.len(), 2);
    let text = "HTTP/1.1 200 OK\r\nA b: c\r\n\r\n";
    assert_eq!(
        parse(text).unwrap_err().reason(text.as_bytes()),
        "upstream sent invalid header: \"A\\x20...\""
    );
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\n";
    assert_eq!(parse(text).unwrap().content_length(text.as_bytes()), Some(None));
}

#[test]
fn a_parser_is_reused() {
    let mut parser = ResponseParser::new();
    parser.parse(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n").unwrap();
    parser.reset();
    parser.parse(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    assert_eq!((parser.head().status, parser.head().headers.len()), (200, 0));
    assert!(parser.head().header(HeaderId::Link).is_none());
}

proptest! {
    #[test]
    fn pieces_make_no_difference(
        tail in "( |200|OK|\r\n|\n|A: b|HTTP/1.1|\\.){0,12}",
        at: prop::sample::Index,
    ) {
        let text = format!("HTTP/1.1 {tail}");
        let all = text.as_bytes();
        let mut parser = ResponseParser::new();
        let whole = parser.parse(all);
        let mut pieces = ResponseParser::new();
        let mut result = pieces.parse(&all[..at.index(all.len() + 1)]);
        if result == Ok(HeadProgress::More) {
            result = pieces.parse(all);
        }
        prop_assert_eq!(&result, &whole);
        if whole.is_ok() {
            prop_assert_eq!(format!("{:?}", parser.head()), format!("{:?}", pieces.head()));
        }
    }

    #[test]
    fn any_bytes_are_decided(bytes: Vec<u8>) {
        if let Err(error) = ResponseParser::new().parse(&bytes) {
            prop_assert!(!error.reason(&bytes).is_empty());
        }
    }
}
