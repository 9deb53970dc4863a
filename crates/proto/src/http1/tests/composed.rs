//! Heads that arrive as fields.

use proptest::prelude::*;

use crate::http1::{
    ComposeError, Composer, HeadDraft, HeadError, HeadLimits, HeaderId, Method, RequestParser,
    Version,
};

const USUAL: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/a?b=c"),
    (":authority", "Example.org:81"),
];

struct Composed {
    parser: RequestParser,
    buf: Vec<u8>,
    result: Result<(), ComposeError>,
}

fn compose<N: AsRef<[u8]>, V: AsRef<[u8]>>(
    composer: &mut Composer,
    fields: &[(N, V)],
    ended: bool,
) -> Composed {
    let (mut parser, mut buf) = (RequestParser::new(), Vec::new());
    let limits = &HeadLimits::default();
    let strict = HeadLimits { max_headers: 2, underscores: true, ..HeadLimits::default() };
    let limits_of = |host: &[u8]| (host == b"strict").then_some(&strict);
    let mut draft = HeadDraft { limits, limits_of: &limits_of, parser: &mut parser, buf: &mut buf };
    for (name, value) in fields {
        composer.field(name.as_ref(), value.as_ref(), &mut draft);
    }
    let result = composer.finish(ended, &mut draft);
    Composed { parser, buf, result }
}

fn with(more: &[(&str, &str)], ended: bool) -> Composed {
    let fields: Vec<_> = USUAL.iter().chain(more).copied().collect();
    compose(&mut Composer::default(), &fields, ended)
}

fn error(more: &[(&str, &str)]) -> ComposeError {
    with(more, true).result.unwrap_err()
}

fn without(name: &str) -> ComposeError {
    let fields: Vec<_> = USUAL.iter().filter(|(n, _)| *n != name).copied().collect();
    compose(&mut Composer::default(), &fields, true).result.unwrap_err()
}

#[test]
fn a_composed_head_reads_like_one_of_http1() {
    let composed = with(&[("accept", "*/*"), ("cookie", "a=1"), ("cookie", "b=2")], true);
    assert_eq!(composed.result, Ok(()));
    let head = composed.parser.head();
    let text = |span: crate::Span| String::from_utf8(span.of(&composed.buf).to_vec()).unwrap();
    assert_eq!(text(head.line), "GET /a?b=c HTTP/2.0");
    assert_eq!(text(head.target), "/a?b=c");
    assert_eq!(head.args.map(text).as_deref(), Some("b=c"));
    assert_eq!(text(head.protocol), "HTTP/2.0");
    assert_eq!((head.method, head.version), (Method::Get, Version::Http20));
    assert_eq!(head.server.map(text).as_deref(), Some("Example.org"));
    assert_eq!((head.port, head.server_upper), (81, true));
    let lines: Vec<_> = head.headers.iter().map(|h| (text(h.name), text(h.value))).collect();
    let expected = [("host", "Example.org:81"), ("accept", "*/*"), ("cookie", "a=1; b=2")];
    assert_eq!(lines, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
    assert!(head.header(HeaderId::Cookie).is_some());
    assert_eq!(head.end as usize, composed.buf.len());
    assert!(composed.buf.ends_with(b"\r\n\r\n"));
}

#[test]
fn bodies_are_framed_by_their_stream() {
    let unknown = with(&[], false);
    assert!(unknown.parser.head().chunked);
    let known = with(&[("content-length", "5")], false);
    assert_eq!(known.parser.head().content_length, Some(5));
    assert!(!known.parser.head().chunked);
    assert_eq!(error(&[("content-length", "5")]), ComposeError::NoBody);
    assert!(matches!(
        error(&[("content-length", "five")]),
        ComposeError::Head(HeadError::InvalidContentLength)
    ));
}

#[test]
fn names_are_in_quotes_over_http3() {
    let reasons = |error: ComposeError| {
        [Version::Http20, Version::Http30].map(|version| error.reason(b"", version))
    };
    assert_eq!(
        reasons(ComposeError::Missing(":path")),
        ["client sent no :path header", "client sent no \":path\" header"]
    );
    // Over HTTP/2 nginx quotes this one.
    let duplicate = "client sent duplicate \":authority\" header";
    let twice = [(":authority", "a"), (":authority", "b")];
    assert_eq!(reasons(error(&twice)), [duplicate; 2]);
    assert_eq!(
        reasons(ComposeError::InvalidPath((*b"x").into())),
        ["client sent invalid :path header: \"x\"", "client sent invalid \":path\" header: \"x\""]
    );
}

#[test]
fn errors_of_a_head() {
    assert_eq!(without(":method"), ComposeError::Missing(":method"));
    assert_eq!(without(":scheme"), ComposeError::Missing(":scheme"));
    assert_eq!(without(":path"), ComposeError::Missing(":path"));
    assert_eq!(without(":authority"), ComposeError::NoHost);
    assert_eq!(error(&[(":path", "/b")]), ComposeError::Duplicate(":path"));
    assert_eq!(error(&[("a", "b"), (":path", "/b")]), ComposeError::LatePseudo);
    assert_eq!(error(&[("connection", "close")]), ComposeError::OfHttp1("Connection"));
    assert_eq!(error(&[("proxy-connection", "x")]), ComposeError::OfHttp1("Proxy-Connection"));
    assert_eq!(error(&[("te", "gzip")]), ComposeError::InvalidTe);
    assert_eq!(error(&[("host", "other")]), ComposeError::HostDiffers);
    assert!(with(&[("te", "trailers"), ("host", "Example.org:81")], true).result.is_ok());
    let same_twice = [("host", "Example.org:81"), ("host", "Example.org:81")];
    assert!(matches!(error(&same_twice), ComposeError::Head(HeadError::DuplicateHost { .. })));
    assert!(matches!(error(&[("A", "b")]), ComposeError::InvalidName(_)));
    assert!(matches!(error(&[("a", "b\r\nc: d")]), ComposeError::InvalidValue(..)));
    for path in ["x", "*", "/a b", "/\u{1}"] {
        let mut fields = USUAL;
        fields[2].1 = path;
        let composed = compose(&mut Composer::default(), &fields, true);
        assert!(matches!(composed.result, Err(ComposeError::InvalidPath(_))), "{path:?}");
    }
    // As over HTTP/1.1.
    for path in ["/../b", "/a/%2e%2e/..", "/%00"] {
        let mut fields = USUAL;
        fields[2].1 = path;
        let composed = compose(&mut Composer::default(), &fields, true);
        let invalid = Err(ComposeError::Head(HeadError::InvalidRequest));
        assert_eq!(composed.result, invalid, "{path:?}");
    }
}

#[test]
fn odd_names_are_dropped_and_an_error_ends_with_its_head() {
    let composed = with(&[("a_b", "c")], true);
    assert_eq!(composed.result, Ok(()));
    assert_eq!(composed.parser.head().dropped.len(), 1);
    let mut composer = Composer::default();
    assert!(compose(&mut composer, &[("x", "y")], true).result.is_err());
    assert!(compose(&mut composer, &USUAL, true).result.is_ok());
}

proptest! {
    /// The text of an accepted head has exactly the lines that were sent.
    #[test]
    fn no_field_becomes_two_lines(
        path in "/[ -~]{0,12}",
        fields in prop::collection::vec(("[!-~]{1,8}", prop::collection::vec(any::<u8>(), 0..12)), 0..6),
        ended: bool,
    ) {
        let mut all: Vec<(Vec<u8>, Vec<u8>)> =
            USUAL.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
        all[2].1 = path.into_bytes();
        all.extend(fields.into_iter().map(|(n, v)| (n.into_bytes(), v)));
        let composed = compose(&mut Composer::default(), &all, ended);
        if composed.result.is_ok() {
            let ends = composed.buf.windows(2).filter(|w| *w == b"\r\n").count();
            let head = composed.parser.head();
            prop_assert_eq!(ends, head.headers.len() + head.dropped.len() + 2);
            let bare = composed.buf.iter().filter(|b| matches!(b, b'\r' | b'\n' | 0)).count();
            prop_assert_eq!(bare, 2 * ends);
        }
    }

    #[test]
    fn any_fields_are_taken_or_refused(
        fields in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..10), prop::collection::vec(any::<u8>(), 0..10)),
            0..8,
        ),
        ended: bool,
    ) {
        let composed = compose(&mut Composer::default(), &fields, ended);
        if let Err(error) = composed.result {
            prop_assert!(matches!(error.status(), 400 | 405));
            prop_assert!(!error.reason(&composed.buf, Version::Http20).is_empty());
        }
    }
}

#[test]
fn fields_after_the_servers_name_are_held_to_its_limits() {
    let named = |authority: Option<&str>, more: &[(&str, &str)]| {
        let fields = USUAL.iter().copied().filter(|(name, _)| *name != ":authority");
        let fields: Vec<_> = fields
            .chain(authority.map(|a| (":authority", a)))
            .chain(more.iter().copied())
            .collect();
        let composed = compose(&mut Composer::default(), &fields, true);
        composed.result.map(|()| composed.parser.head().dropped.len())
    };
    let many = Err(ComposeError::Head(HeadError::TooManyHeaders));
    let three = [("a_b", "1"), ("c", "2"), ("d", "3")];
    assert_eq!(named(Some("other"), &three), Ok(1));
    assert_eq!(named(Some("Strict:8080"), &three), many);
    assert_eq!(named(Some("strict"), &three[..2]), Ok(0));
    assert_eq!(named(None, &[("host", "strict"), ("c", "1")]), Ok(0));
    assert_eq!(named(None, &[("host", "strict"), ("c", "1"), ("d", "2")]), many);
}
