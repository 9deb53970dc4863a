use crate::Renew;
use proptest::prelude::*;

use crate::http1::*;
use crate::uri;

fn parse_with(text: &[u8], limits: &HeadLimits) -> Result<RequestHead, HeadError> {
    let mut parser = RequestParser::new();
    match parser.parse(text, limits)? {
        HeadProgress::Done => Ok(parser.take_head()),
        other => panic!("{other:?} for {:?}", String::from_utf8_lossy(text)),
    }
}

fn parse(text: &str) -> Result<RequestHead, HeadError> {
    parse_with(text.as_bytes(), &HeadLimits::default())
}

/// A request line with the head that makes it complete.
fn line(line: &str) -> Result<(RequestHead, String), HeadError> {
    let text = format!("{line}\r\nHost: a\r\n\r\n");
    parse(&text).map(|head| (head, text))
}

fn error(text: &str) -> HeadError {
    parse(text).expect_err(text)
}

fn of(span: crate::Span, text: &str) -> &str {
    std::str::from_utf8(span.of(text.as_bytes())).unwrap()
}

#[test]
fn a_usual_request() {
    let text = "GET /a/b.html?c=d HTTP/1.1\r\nHost: Example.COM:81\r\nX-A:  b c  \r\n\r\nrest";
    let head = parse(text).unwrap();
    assert_eq!((head.method, head.version), (Method::Get, Version::Http11));
    assert_eq!(of(head.line, text), "GET /a/b.html?c=d HTTP/1.1");
    assert_eq!(of(head.method_name, text), "GET");
    assert_eq!(of(head.target, text), "/a/b.html?c=d");
    assert_eq!(of(head.path, text), "/a/b.html");
    assert_eq!(of(head.args.unwrap(), text), "c=d");
    assert_eq!(of(head.protocol, text), "HTTP/1.1");
    assert_eq!(head.uri(text.as_bytes()), b"/a/b.html");
    assert!(!head.complex && !head.quoted && head.host.is_none() && head.schema.is_none());
    assert_eq!(of(head.server.unwrap(), text), "Example.COM");
    assert_eq!((head.server_upper, head.port), (true, 81));
    let header = &head.headers[1];
    assert_eq!((of(header.name, text), of(header.value, text)), ("X-A", "b c"));
    assert_eq!(header.id, HeaderId::Other);
    assert_eq!(of(head.header(HeaderId::Host).unwrap().value, text), "Example.COM:81");
    assert!(head.header(HeaderId::Cookie).is_none());
    assert_eq!(&text[head.end as usize..], "rest");
    assert_eq!(&text[head.line_end as usize..][..4], "Host");
}

#[test]
fn methods() {
    for name in ["GET", "HEAD", "POST", "MKCOL", "PROPPATCH", "PATCH"] {
        let (head, _) = line(&format!("{name} / HTTP/1.1")).unwrap();
        assert_eq!(head.method.name(), Some(name));
    }
    for name in ["GETX", "GE", "_", "M-SEARCH", "-"] {
        let (head, text) = line(&format!("{name} / HTTP/1.1")).unwrap();
        assert_eq!((head.method, of(head.method_name, &text)), (Method::Other, name));
    }
    for name in ["get", "G3T", " GET", "G\rT", "\u{16}\u{3}\u{1}", "G/"] {
        assert_eq!(line(&format!("{name} / HTTP/1.1")).unwrap_err(), HeadError::InvalidMethod);
    }
    assert_eq!(error("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n"), HeadError::Trace);
}

#[test]
fn blank_lines_before_the_request_are_skipped() {
    let text = "\r\n\n\r\rGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let head = parse(text).unwrap();
    assert_eq!(of(head.line, text), "GET / HTTP/1.1");
}

#[test]
fn any_number_of_blank_lines_is_taken() {
    let mut parser = RequestParser::new();
    let blank = b"\r\n".repeat(50_000);
    assert_eq!(parser.parse(&blank, &HeadLimits::default()), Ok(HeadProgress::More));
    assert!(parser.blank());
}

#[test]
fn spaces_between_the_parts() {
    let (head, text) = line("GET   /a   HTTP/1.1  ").unwrap();
    assert_eq!((of(head.path, &text), head.version), ("/a", Version::Http11));
    assert_eq!(of(head.line, &text), "GET   /a   HTTP/1.1  ");
    assert_eq!(line("GET\t/ HTTP/1.1").unwrap_err(), HeadError::InvalidMethod);
    assert_eq!(line("GET / HTTP/1.1 x").unwrap_err(), HeadError::InvalidRequest);
    assert_eq!(line("GET /a b HTTP/1.1").unwrap_err(), HeadError::InvalidRequest);
    assert_eq!(line("GET /\t HTTP/1.1").unwrap_err(), HeadError::InvalidRequest);
}

#[test]
fn line_ends() {
    assert!(parse("GET / HTTP/1.1\nHost: a\n\n").is_ok());
    assert!(parse("GET / HTTP/1.1\r\nHost: a\n\r\n").is_ok());
    assert_eq!(error("GET / HTTP/1.1\rHost: a\r\n\r\n"), HeadError::InvalidRequest);
    assert_eq!(error("GET / HTTP/1.1\r\r\nHost: a\r\n\r\n"), HeadError::InvalidRequest);
}

#[test]
fn versions() {
    let version = |v: &str| line(&format!("GET / {v}")).map(|(head, _)| (head.version, head.minor));
    assert_eq!(version("HTTP/1.0"), Ok((Version::Http10, 0)));
    assert_eq!(version("HTTP/1.1"), Ok((Version::Http11, 1)));
    assert_eq!(version("HTTP/1.01"), Ok((Version::Http11, 1)));
    assert_eq!(version("HTTP/1.999"), Ok((Version::Http11, 999)));
    assert_eq!(version("HTTP/1.1000"), Err(HeadError::InvalidRequest));
    for v in ["HTTP/2.0", "HTTP/9", "HTTP/11.0", "HTTP/10"] {
        assert_eq!(version(v), Err(HeadError::InvalidVersion), "{v}");
    }
    for v in ["http/1.1", "HTTP/0.9", "HTTP/1", "HTTP/1.", "HTTP 1.1", "HTT/1.1", "HTTP/1.x", "x"] {
        assert_eq!(version(v), Err(HeadError::InvalidRequest), "{v}");
    }
    assert_eq!(HeadError::InvalidVersion.status(), 505);
}

#[test]
fn requests_without_a_version() {
    for text in ["GET /\r\n", "GET /\n", "GET / \r\n", "GET /a%20b?c\n"] {
        let head = parse(text).unwrap();
        assert_eq!((head.version, head.end as usize), (Version::Http09, text.len()));
        assert!(head.protocol.is_empty());
    }
    assert_eq!(error("POST /\r\n"), HeadError::InvalidMethod09);
    assert_eq!(error("CONNECT a:1 \r\n"), HeadError::InvalidMethod09);
}

#[test]
fn targets() {
    let parts = |target: &str| {
        let (head, text) = line(&format!("GET {target} HTTP/1.1")).unwrap();
        let args = head.args.map(|args| of(args, &text).to_owned());
        let uri = String::from_utf8(head.uri(text.as_bytes()).to_vec()).unwrap();
        assert_eq!(of(head.target, &text), target);
        (uri, args)
    };
    let args = |a: &str| Some(a.to_owned());
    assert_eq!(parts("/a?"), ("/a".into(), args("")));
    assert_eq!(parts("/a?b?c"), ("/a".into(), args("b?c")));
    assert_eq!(parts("/a#b?c"), ("/a".into(), None));
    assert_eq!(parts("/a?b#c"), ("/a".into(), args("b")));
    assert_eq!(parts("/%61?%62"), ("/a".into(), args("%62")));
    assert_eq!(parts("/a%3Fb?c"), ("/a?b".into(), args("c")));
    assert_eq!(parts("/a//b/../c/./d"), ("/a/c/d".into(), None));
    assert_eq!(parts("/a?/../b//"), ("/a".into(), args("/../b//")));
    assert_eq!(parts("/\u{e4}\"<>|"), ("/\u{e4}\"<>|".into(), None));
    for target in ["a", "*", "?a", "/\u{1}", "/\u{7f}", "/a?\u{1}", "/..", "/%zz", "/%00"] {
        let result = line(&format!("GET {target} HTTP/1.1"));
        assert_eq!(result.unwrap_err(), HeadError::InvalidRequest, "{target}");
    }
    assert_eq!(line("OPTIONS * HTTP/1.1").unwrap_err(), HeadError::InvalidRequest);
}

#[test]
fn properties_of_paths() {
    let flags = |target: &str| {
        let (head, _) = line(&format!("GET {target} HTTP/1.1")).unwrap();
        (head.complex, head.quoted, head.plus)
    };
    assert_eq!(flags("/a.b/c?d"), (false, false, false));
    assert_eq!(flags("/a/.b"), (true, false, false));
    assert_eq!(flags("/a+b"), (false, false, true));
    assert_eq!(flags("/+/"), (true, false, true));
    assert_eq!(flags("/%20+"), (true, true, true));
    assert_eq!(flags("/?+%20//"), (false, false, false));
    assert_eq!(flags("//"), (true, false, false));
    assert_eq!(flags("/#"), (true, false, false));
}

#[test]
fn absolute_targets() {
    let (head, text) = line("GET http://Example.com:81/a?b HTTP/1.1").unwrap();
    assert_eq!(of(head.schema.unwrap(), &text), "http");
    assert_eq!(of(head.host.unwrap(), &text), "Example.com:81");
    assert_eq!(of(head.server.unwrap(), &text), "Example.com");
    assert_eq!((head.port, of(head.target, &text)), (81, "/a?b"));

    let (head, text) = line("GET a+b://[::1] HTTP/1.1").unwrap();
    assert_eq!((of(head.target, &text), of(head.path, &text)), ("/", "/"));
    assert_eq!(of(head.server.unwrap(), &text), "[::1]");

    let (head, text) = line("GET http://a?b HTTP/1.1").unwrap();
    assert_eq!((of(head.target, &text), head.uri(text.as_bytes())), ("?b", &b"/"[..]));
    assert_eq!((head.empty_path, of(head.args.unwrap(), &text)), (true, "b"));

    for target in ["http:/a", "http//a", "ht_tp://a/", "http://a_b/", "http://a#b", "http://[a/"] {
        let result = line(&format!("GET {target} HTTP/1.1"));
        assert_eq!(result.unwrap_err(), HeadError::InvalidRequest, "{target}");
    }
    for target in ["http:///a", "http://a..b/", "http://a:65536/"] {
        let result = line(&format!("GET {target} HTTP/1.1"));
        assert_eq!(result.unwrap_err(), HeadError::InvalidHostInLine, "{target}");
    }
    // the target's host counts, yet the header must hold one, too
    let text = "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n";
    assert_eq!(of(parse(text).unwrap().server.unwrap(), text), "a");
    assert_eq!(error("GET http://a/ HTTP/1.1\r\nHost: b c\r\n\r\n"), HeadError::InvalidHost);
}

#[test]
fn connect() {
    let allowed = HeadLimits { allow_connect: true, ..HeadLimits::default() };
    let text = "CONNECT a.b:443 HTTP/1.1\r\nHost: a.b\r\n\r\n";
    let head = parse_with(text.as_bytes(), &allowed).unwrap();
    assert_eq!(of(head.host.unwrap(), text), "a.b:443");
    assert_eq!((head.port, of(head.target, text)), (443, "/"));
    assert_eq!(error(text), HeadError::Connect);
    assert_eq!(HeadError::Connect.status(), 405);
    for line in ["CONNECT a", "CONNECT a:", "CONNECT /a", "CONNECT a:1/", "CONNECT http://a/"] {
        let text = format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
        let result = parse_with(text.as_bytes(), &allowed);
        assert_eq!(result.unwrap_err(), HeadError::InvalidRequest, "{line}");
    }
    let old = text.replace("1.1", "1.0");
    assert_eq!(parse_with(old.as_bytes(), &allowed).unwrap_err(), HeadError::Connect);
    let body = text.replace("\r\n\r\n", "\r\nContent-Length: 1\r\n\r\n");
    assert_eq!(parse_with(body.as_bytes(), &allowed).unwrap_err(), HeadError::ConnectWithBody);
}

/// Header lines behind `Host`.
fn headers(lines: &str) -> Result<Vec<(String, String)>, HeadError> {
    let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
    let head = parse(&text)?;
    let pair = |h: &HeaderLine| (of(h.name, &text).to_owned(), of(h.value, &text).to_owned());
    Ok(head.headers.iter().skip(1).map(pair).collect())
}

#[test]
fn header_lines() {
    let one = |name: &str, value: &str| Ok(vec![(name.to_owned(), value.to_owned())]);
    assert_eq!(headers("A:b"), one("A", "b"));
    assert_eq!(headers("A:   b  c   "), one("A", "b  c"));
    assert_eq!(headers("A:\tb\t"), one("A", "\tb\t"));
    assert_eq!(headers("A:"), one("A", ""));
    assert_eq!(headers("A:    "), one("A", ""));
    assert_eq!(headers("A"), one("A", ""));
    assert_eq!(headers("A: b:c"), one("A", "b:c"));
    assert_eq!(headers("A: \u{e4}\u{1}\u{7f}"), one("A", "\u{e4}\u{1}\u{7f}"));
    assert_eq!(headers("A: b\r\r"), one("A", "b"));
    assert_eq!(headers("A: a value that is longer than one word"), {
        one("A", "a value that is longer than one word")
    });
}

#[test]
fn header_lines_that_end_the_request() {
    for (lines, shown) in [
        ("A : b", "A\\x20"),
        (" A: b", "\\x20"),
        ("A: b\r\n c", "\\x20"),
        (": b", "\\x3a"),
        ("A\u{1}: b", "A\\x01"),
        ("A\u{7f}: b", "A\\x7f"),
        ("A: b\0", "A: b\\x00"),
        ("A:\0", "A:\\x00"),
        ("A: b\rc", "A: b\\x0d"),
        ("A: b \rc", "A: b\\x20"),
        ("\rA: b", "\\x0d"),
    ] {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
        let error = error(&text);
        assert_eq!(error.status(), 400);
        assert_eq!(
            error.reason(text.as_bytes()),
            format!("client sent invalid header line: \"{shown}...\"")
        );
    }
}

#[test]
fn odd_names_are_dropped_or_kept() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nA_B: 1\r\nC@D: 2 \r\n_: 3\r\n\u{e4}: 4\r\n\r\n";
    let count = |limits: &HeadLimits| {
        let head = parse_with(text.as_bytes(), limits).unwrap();
        (head.headers.len() - 1, head.dropped.len())
    };
    let limits = HeadLimits::default();
    assert_eq!(count(&limits), (0, 4));
    assert_eq!(count(&HeadLimits { underscores: true, ..limits }), (2, 2));
    assert_eq!(count(&HeadLimits { ignore_invalid: false, ..limits }), (4, 0));
    let head = parse(text).unwrap();
    assert_eq!(of(head.dropped[1], text), "C@D: 2");
}

#[test]
fn names_are_known_in_any_case() {
    for (name, id) in [
        ("hOST", HeaderId::Host),
        ("content-length", HeaderId::ContentLength),
        ("IF-MODIFIED-SINCE", HeaderId::IfModifiedSince),
        ("te", HeaderId::Te),
        ("X-Real-IP", HeaderId::XRealIp),
        ("Hosts", HeaderId::Other),
        ("Content_Length", HeaderId::Other),
        ("", HeaderId::Other),
    ] {
        assert_eq!(HeaderId::from_name(name.as_bytes()), id, "{name}");
        if id != HeaderId::Other {
            assert!(id.name().eq_ignore_ascii_case(name));
        }
    }
    assert_eq!(HeaderId::Other.name(), "");
}

#[test]
fn some_headers_come_once() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n";
    assert_eq!(
        error(text).reason(text.as_bytes()),
        "client sent duplicate host header: \"host: b\", previous value: \"Host: a\""
    );
    let text = "GET / HTTP/1.1\r\nHost: a\r\nExpect: 1\r\nExpect: 2\r\n\r\n";
    assert_eq!(
        error(text).reason(text.as_bytes()),
        "client sent duplicate header line: \"Expect: 2\", previous value: \"Expect: 1\""
    );
    let text = "GET / HTTP/1.1\r\nHost: a\r\nCookie: 1\r\nCookie: 2\r\n\r\n";
    let head = parse(text).unwrap();
    let values: Vec<_> = head.all(HeaderId::Cookie).map(|h| of(h.value, text)).collect();
    assert_eq!(values, ["1", "2"]);
    assert_eq!(head.all(HeaderId::Via).count(), 0);
}

#[test]
fn a_host_is_needed_from_1_1_on() {
    assert_eq!(error("GET / HTTP/1.1\r\n\r\n"), HeadError::MissingHost);
    assert_eq!(error("GET http://a/ HTTP/1.1\r\n\r\n"), HeadError::MissingHost);
    assert!(parse("GET / HTTP/1.0\r\n\r\n").unwrap().server.is_none());
    assert_eq!(error("GET / HTTP/1.0\r\nHost:\r\n\r\n"), HeadError::InvalidHost);
}

#[test]
fn framing() {
    let of_headers = |version: &str, lines: &str| {
        parse(&format!("POST / HTTP/{version}\r\nHost: a\r\n{lines}\r\n\r\n"))
            .map(|head| (head.content_length, head.chunked))
    };
    let framing = |lines: &str| of_headers("1.1", lines);
    assert_eq!(framing("A: b"), Ok((None, false)));
    assert_eq!(framing("Content-Length: 0"), Ok((Some(0), false)));
    assert_eq!(framing("Content-Length: 007"), Ok((Some(7), false)));
    assert_eq!(framing("Transfer-Encoding: Chunked"), Ok((None, true)));
    for length in ["", "-1", "+1", "1 2", "0x1", "1,1", "9223372036854775808"] {
        let error = framing(&format!("Content-Length: {length}"));
        assert_eq!(error, Err(HeadError::InvalidContentLength), "{length}");
    }
    let both = "Transfer-Encoding: chunked\r\nContent-Length: 1";
    assert_eq!(framing(both), Err(HeadError::LengthAndEncoding));
    let error = framing("Transfer-Encoding: gzip, chunked").unwrap_err();
    assert!(matches!(error, HeadError::UnknownTransferEncoding { .. }));
    assert_eq!(error.status(), 501);
    let old = of_headers("1.0", "Transfer-Encoding: chunked");
    assert_eq!(old, Err(HeadError::TransferEncodingInHttp10));
}

#[test]
fn the_connection_header() {
    let connection = |lines: &str| {
        parse(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n")).unwrap().connection
    };
    assert_eq!(connection("A: b"), ConnectionHeader::Unspecified);
    assert_eq!(connection("Connection: Close"), ConnectionHeader::Close);
    assert_eq!(connection("Connection: a, Keep-Alive"), ConnectionHeader::KeepAlive);
    assert_eq!(connection("Connection: keep-alive, close"), ConnectionHeader::Close);
    assert_eq!(
        connection("Connection: close\r\nConnection: keep-alive"),
        ConnectionHeader::KeepAlive
    );
    assert_eq!(connection("Connection: close\r\nConnection: upgrade"), ConnectionHeader::Close);
}

const SMALL: HeadLimits = HeadLimits {
    first: 32,
    line: 64,
    total: 128,
    underscores: false,
    ignore_invalid: true,
    max_headers: 3,
    merge_slashes: true,
    allow_connect: false,
    pause_at_server: false,
};

/// Parses a request whose line has `line` bytes and whose header lines have `headers` bytes, all
/// with their line ends.
fn sized(line: usize, headers: &[usize]) -> Result<HeadProgress, HeadError> {
    let mut text = format!("GET /{} HTTP/1.0\r\n", "a".repeat(line - 16));
    assert_eq!(text.len(), line);
    for &size in headers {
        text += &format!("X: {}\r\n", "b".repeat(size - 5));
    }
    text += "\r\n";
    RequestParser::new().parse(text.as_bytes(), &SMALL)
}

#[test]
fn lines_must_fit_a_buffer() {
    assert_eq!(sized(20, &[]), Ok(HeadProgress::Done));
    assert_eq!(sized(64, &[]), Ok(HeadProgress::Done));
    assert_eq!(sized(65, &[]), Err(HeadError::TooLongUri));
    assert_eq!(sized(20, &[64, 40]), Ok(HeadProgress::Done));
    let error = sized(20, &[65]).unwrap_err();
    assert!(matches!(error, HeadError::TooLongHeader { line } if line.len() == 64));
    assert_eq!((error.status(), error.lingers()), (494, true));
    assert_eq!(HeadError::TooLongUri.status(), 414);
}

#[test]
fn heads_must_fit_all_buffers() {
    // 32 bytes are filled by the line, two buffers of 64 by headers, and the empty line is left
    assert_eq!(sized(32, &[64, 62]), Ok(HeadProgress::Done));
    assert!(matches!(sized(32, &[64, 64]), Err(HeadError::TooLongHeader { .. })));
    assert_eq!(sized(20, &[20, 20, 20]), Ok(HeadProgress::Done));
    assert_eq!(sized(20, &[20, 20, 20, 20]), Err(HeadError::TooManyHeaders));
}

#[test]
fn a_full_buffer_is_refused_without_another_byte() {
    let mut parser = RequestParser::new();
    let text = format!("GET /{}", "a".repeat(59));
    assert_eq!(parser.parse(&text.as_bytes()[..63], &SMALL), Ok(HeadProgress::More));
    assert_eq!(parser.parse(text.as_bytes(), &SMALL), Err(HeadError::TooLongUri));
    assert_eq!(parser.logged_line(text.as_bytes()), text.as_bytes());
}

#[test]
fn the_line_is_known_before_the_head() {
    let text = b"GET /a HTTP/1.1\r\nHo";
    let mut parser = RequestParser::new();
    assert_eq!(parser.parse(&text[..10], &HeadLimits::default()), Ok(HeadProgress::More));
    assert!(!parser.line_parsed());
    assert_eq!(parser.logged_line(&text[..10]), b"GET /a HTT");
    assert_eq!(parser.parse(text, &HeadLimits::default()), Ok(HeadProgress::More));
    assert!(parser.line_parsed() && !parser.blank());
    assert_eq!(parser.logged_line(text), b"GET /a HTTP/1.1");
}

#[test]
fn another_server_may_have_other_limits() {
    let text = b"GET / HTTP/1.1\r\nA_B: 1\r\nHost: a\r\nA_C: 2\r\n\r\n";
    let pausing = HeadLimits { pause_at_server: true, ..HeadLimits::default() };
    let mut parser = RequestParser::new();
    assert_eq!(parser.parse(text, &pausing), Ok(HeadProgress::Server));
    assert_eq!(parser.head().server.unwrap().of(text), b"a");
    let other = HeadLimits { underscores: true, ..HeadLimits::default() };
    assert_eq!(parser.parse(text, &other), Ok(HeadProgress::Done));
    assert_eq!(parser.head().headers.len(), 2);
}

#[test]
fn a_parser_is_reused() {
    let mut parser = RequestParser::new();
    let first = b"POST /%20?a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nB_: 1\r\n\r\n";
    parser.parse(first, &HeadLimits::default()).unwrap();
    parser.renew();
    let second = b"GET / HTTP/1.0\r\n\r\n";
    assert_eq!(parser.parse(second, &HeadLimits::default()), Ok(HeadProgress::Done));
    let head = parser.head();
    assert!(head.headers.is_empty() && head.dropped.is_empty() && head.args.is_none());
    assert!(head.content_length.is_none() && head.server.is_none() && !head.quoted);
    assert_eq!(head.uri(second), b"/");
}

/// The whole result of a parser for a request in pieces.
fn outcome(text: &[u8], pieces: impl Iterator<Item = usize>, limits: &HeadLimits) -> String {
    let mut parser = RequestParser::new();
    let mut result = Ok(HeadProgress::More);
    for end in pieces.chain([text.len()]) {
        result = parser.parse(&text[..end], limits);
        if result != Ok(HeadProgress::More) {
            break;
        }
    }
    format!("{result:?} {:?}", if result.is_ok() { Some(parser.head()) } else { None })
}

/// Requests that are nearly right.
fn near_requests() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just("GET "),
        Just("POST "),
        Just("CONNECT "),
        Just("/"),
        Just("/a.b/%20"),
        Just("/../"),
        Just("?a#"),
        Just("http://a:80"),
        Just(" "),
        Just(" HTTP/1.1\r\n"),
        Just(" HTTP/1.0\n"),
        Just("Host: a\r\n"),
        Just("Content-Length: 1 \r\n"),
        Just("Connection: close\r\n"),
        Just("A_B: c d  \r\n"),
        Just("A"),
        Just(":"),
        Just("\r"),
        Just("\n"),
        Just("\r\n\r\n"),
        Just("\0"),
        Just("\u{e4}"),
    ];
    let start = prop_oneof![Just("GET / HTTP/1.1\r\nHost: a\r\n"), Just("")];
    (start, prop::collection::vec(piece, 0..12))
        .prop_map(|(start, pieces)| (start.to_owned() + &pieces.concat()).into_bytes())
}

proptest! {
    #[test]
    fn pieces_make_no_difference(
        text in near_requests(),
        splits in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        small: bool,
    ) {
        let limits = if small { SMALL } else { HeadLimits::default() };
        let whole = outcome(&text, std::iter::empty(), &limits);
        let mut ends: Vec<_> = splits.iter().map(|at| at.index(text.len() + 1)).collect();
        ends.sort_unstable();
        prop_assert_eq!(&outcome(&text, ends.into_iter(), &limits), &whole);
        prop_assert_eq!(&outcome(&text, 0..text.len(), &limits), &whole);
    }

    #[test]
    fn any_bytes_are_decided(bytes: Vec<u8>, text in near_requests()) {
        let mut parser = RequestParser::new();
        for input in [&bytes, &text] {
            parser.renew();
            if let Err(error) = parser.parse(input, &SMALL) {
                prop_assert!(!error.reason(input).is_empty());
                prop_assert!((400..=505).contains(&error.status()));
                parser.logged_line(input);
            }
        }
    }

    /// A path that the parser takes as normalised equals its normalised form.
    #[test]
    fn simple_paths_are_normal(path in "/[a-c./%2+?#]{0,12}") {
        let text = format!("GET {path} HTTP/1.0\r\n\r\n");
        if let Ok(head) = parse(&text) {
            let mut normal = Vec::new();
            uri::normalise(head.path.of(text.as_bytes()), true, &mut normal).unwrap();
            prop_assert_eq!(head.uri(text.as_bytes()), &normal);
        }
    }

    #[test]
    fn values_are_found_whatever_their_length(value in "[a-z\t][a-z \t]{0,40}", lf: bool) {
        let end = if lf { "\n" } else { "\r\n" };
        let text = format!("GET / HTTP/1.0{end}A: {value}{end}{end}");
        let head = parse(&text).unwrap();
        prop_assert_eq!(of(head.headers[0].value, &text), value.trim_end_matches(' '));
    }
}
