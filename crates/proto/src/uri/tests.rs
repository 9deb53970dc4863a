use proptest::prelude::*;

use super::*;

fn path(raw: &str) -> Option<String> {
    let mut out = Vec::new();
    normalise(raw.as_bytes(), true, &mut out).ok()?;
    Some(String::from_utf8(out).unwrap())
}

#[test]
fn paths_are_decoded_and_resolved() {
    for (raw, meant) in [
        ("/", "/"),
        ("", "/"),
        ("/a/./b/", "/a/b/"),
        ("/a/.", "/a/"),
        ("/a/../b", "/b"),
        ("/a/b/..", "/a/"),
        ("/a/..", "/"),
        ("/a//b///c", "/a/b/c"),
        ("/a//../b", "/b"),
        ("/...", "/..."),
        ("/..a/.b", "/..a/.b"),
        ("/%41%2f%62", "/A/b"),
        ("/a/%2e%2e/b", "/b"),
        ("/a/.%2E/b", "/b"),
        ("/a%3fb%23c%25d", "/a?b#c%d"),
        ("/a/.%3f", "/a/.?"),
        ("/a#b", "/a"),
        ("/a/..?b", "/"),
        ("/a+b", "/a+b"),
    ] {
        assert_eq!(path(raw).as_deref(), Some(meant), "{raw}");
    }
}

#[test]
fn paths_that_leave_the_root_or_cannot_be_decoded_are_refused() {
    for raw in ["/..", "/../a", "/a/../../b", "/%2e%2e", "/%", "/%4", "/%4g", "/%00", "/a%?"] {
        assert_eq!(path(raw), None, "{raw}");
    }
}

#[test]
fn slashes_stay_when_asked() {
    let mut out = Vec::new();
    normalise(b"/a//b/..//c", false, &mut out).unwrap();
    assert_eq!(out, b"/a///c");
}

#[test]
fn extensions() {
    let ext = |p: &str| extension(p.as_bytes()).map(|range| p[range].to_owned());
    assert_eq!(ext("/a.html").as_deref(), Some("html"));
    assert_eq!(ext("/a.tar.gz").as_deref(), Some("gz"));
    assert_eq!(ext("/a.").as_deref(), Some(""));
    assert_eq!(ext("/.htaccess"), None);
    assert_eq!(ext("/a.b/c"), None);
    assert_eq!(ext("/"), None);
}

#[test]
fn hosts_lose_port_and_trailing_dot() {
    let host = |h: &str| host_valid(h.as_bytes()).map(|host| (h[..host.len].to_owned(), host.port));
    let ok = |name: &str, port| Ok((name.to_owned(), port));
    assert_eq!(host("example.com"), ok("example.com", 0));
    assert_eq!(host("example.com."), ok("example.com", 0));
    assert_eq!(host("example.com:8080"), ok("example.com", 8080));
    assert_eq!(host("example.com.:80"), ok("example.com", 80));
    assert_eq!(host("example.com:"), ok("example.com", 0));
    assert_eq!(host("example.com:65535"), ok("example.com", 65535));
    assert_eq!(host("[::1]:80"), ok("[::1]", 80));
    assert_eq!(host("[::1]"), ok("[::1]", 0));
    assert_eq!(host("a%20b_c~!*"), ok("a%20b_c~!*", 0));
    assert_eq!(host("a."), ok("a", 0));
    assert!(host_valid(b"Example").unwrap().upper && !host_valid(b"example").unwrap().upper);
}

#[test]
fn what_is_no_host_is_refused() {
    for host in [
        "",
        ".",
        ":80",
        "a..b",
        "a/b",
        "a b",
        "a:b",
        "a:65536",
        "a:99999999",
        "[::1",
        "[::1]x",
        "[::1]:x",
        "[%]",
        "a[",
        "a]",
        "a\u{7f}",
        "a@b",
        "[a..b]",
        "a:1:2",
    ] {
        assert_eq!(host_valid(host.as_bytes()), Err(BadHost), "{host}");
    }
    assert_eq!(host_valid(b"a\xff"), Err(BadHost));
    assert_eq!(host_valid(b"a\0"), Err(BadHost));
}

fn escaped(kind: Escape, text: &str) -> String {
    let mut out = Vec::new();
    escape(kind, text.as_bytes(), &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn each_kind_escapes_its_own() {
    assert_eq!(escaped(Escape::Uri, "/a b?c#d%&+;\u{e4}"), "/a%20b%3Fc%23d%25&+;%C3%A4");
    assert_eq!(escaped(Escape::Args, "a b&c+d;e=f/"), "a%20b%26c%2Bd%3Be=f/");
    assert_eq!(escaped(Escape::UriComponent, "a/b:c@d-._~"), "a%2Fb%3Ac%40d-._~");
    assert_eq!(escaped(Escape::Html, "a?'b\"#%"), "a?%27b%22%23%25");
    assert_eq!(escaped(Escape::Refresh, "a'b%#? |}~"), "a%27b%#?%20%7C}%7E");
    assert_eq!(escaped(Escape::Memcached, "a b%\n\u{e4}\""), "a%20b%25%0A\u{e4}\"");
    assert_eq!(escaped(Escape::MailXtext, "a+b=c d"), "a+2Bb+3Dc+20d");
    let mut out = Vec::new();
    escape_html(b"<a href=\"x\">&'", &mut out);
    assert_eq!(out, b"&lt;a href=&quot;x&quot;&gt;&amp;'");
}

fn unescaped(kind: Unescape, text: &str) -> (String, usize) {
    let mut out = Vec::new();
    let read = unescape(kind, text.as_bytes(), &mut out);
    (String::from_utf8(out).unwrap(), read)
}

#[test]
fn each_kind_unescapes_its_own() {
    assert_eq!(unescaped(Unescape::All, "a%20b%3Fc?d"), ("a b?c?d".into(), 11));
    assert_eq!(unescaped(Unescape::Uri, "a%20b?c%20"), ("a b?".into(), 6));
    assert_eq!(unescaped(Unescape::Uri, "a%3Fb"), ("a?".into(), 4));
    assert_eq!(unescaped(Unescape::Redirect, "%41%20%25%7e"), ("A%20%25~".into(), 12));
    assert_eq!(unescaped(Unescape::All, "%g%4g%").0, "g");
}

#[test]
fn unsafe_uris_are_found_plain_and_escaped() {
    let safe = is_unsafe(b"/a%20b/..c?d=/../").unwrap();
    assert_eq!((safe.path, safe.args), (b"/a b/..c".to_vec(), Some(b"d=/../".to_vec())));
    assert_eq!(is_unsafe(b"/a").unwrap().args, None);
    for uri in ["", "?a", "..", "../a", "/..", "/a/../b", "/a/..", "/%2e%2e/a", "%2e%2e", "/a%00"] {
        assert_eq!(is_unsafe(uri.as_bytes()), Err(UnsafeUri), "{uri}");
    }
    assert_eq!(is_unsafe(b"/a\0"), Err(UnsafeUri));
}

#[test]
fn values_are_found_by_name() {
    assert_eq!(arg(b"a=1&B=2&c", b"b"), Some(&b"2"[..]));
    assert_eq!(arg(b"ab=1&b=", b"b"), Some(&b""[..]));
    assert_eq!(arg(b"ab=1", b"b"), None);
    assert_eq!(arg(b"b", b"b"), None);
    assert_eq!(list_value(b"a=1; b = 2;c=3", b"b", b';'), Some(&b"2"[..]));
    assert_eq!(list_value(b"a=1, xb=2", b"b", b','), None);
    assert_eq!(list_value(b"b; a; b=1 ;c", b"b", b';'), Some(&b"1 "[..]));
    assert_eq!(list_value(b"b; b=1", b"b", b';'), None);
    assert_eq!(set_cookie_value(b"a=1; path=/", b"A"), Some(&b"1"[..]));
    assert_eq!(set_cookie_value(b"a=1; path=/", b"path"), None);
}

proptest! {
    /// A result that needs no escaping is its own meaning.
    #[test]
    fn normalise_is_idempotent(raw in "/[a./%2eE+-]{0,30}", merge: bool) {
        let mut once = Vec::new();
        if normalise(raw.as_bytes(), merge, &mut once).is_ok() && !once.contains(&b'%') {
            let mut twice = Vec::new();
            prop_assert_eq!(normalise(&once, merge, &mut twice), Ok(()));
            prop_assert_eq!(once, twice);
        }
    }

    #[test]
    fn no_dot_segment_survives(raw in "(/(\\.|\\.\\.|%2e|a|%2F)?(\\.|%2E)?){0,12}", merge: bool) {
        let mut out = Vec::new();
        if normalise(raw.as_bytes(), merge, &mut out).is_ok() {
            prop_assert!(out.starts_with(b"/"));
            prop_assert!(!out.split(|&ch| ch == b'/').any(|part| part == b"." || part == b".."));
        }
    }

    #[test]
    fn escaping_is_undone(text: Vec<u8>) {
        for kind in [Escape::Uri, Escape::Args, Escape::UriComponent, Escape::Html] {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            escape(kind, &text, &mut there);
            prop_assert!(there.is_ascii());
            unescape(Unescape::All, &there, &mut back);
            prop_assert_eq!(&back, &text);
        }
    }

    #[test]
    fn any_bytes_are_decided(bytes: Vec<u8>) {
        let _ = normalise(&bytes, true, &mut Vec::new());
        let _ = is_unsafe(&bytes);
        let _ = arg(&bytes, b"a");
        let _ = list_value(&bytes, b"a", b',');
        unescape(Unescape::Redirect, &bytes, &mut Vec::new());
        if let Ok(host) = host_valid(&bytes) {
            prop_assert!(host.len > 0 && host.len <= bytes.len());
        }
    }
}
