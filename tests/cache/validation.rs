//! `proxy_cache_rules rfc9111` before servers whose answers are written out byte by byte: what a 304 changes, and what of an
//! answer reaches clients that wait for it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use weir_testkit::{Dir, PATIENCE, Server, listen};

use super::WEIR;

/// A server that answers each request by its number, from 0, and its head, and then closes the connection. Its port, and how
/// many requests it has had.
pub fn scripted(
    answer: impl Fn(usize, &str) -> String + Send + Sync + 'static,
) -> (u16, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let port = listen(move |mut stream: TcpStream| {
        let Some(head) = read_head(&mut stream) else { return };
        let answer = answer(count.fetch_add(1, Ordering::SeqCst), &head);
        let _ = stream.write_all(answer.as_bytes());
    });
    (port, asked)
}

/// Reads a head, and no byte more; `None` where the connection ends before.
pub fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// A cache before the server at this port, with `cached` in its block, and a location for each path, which has more lines
/// for it. Answers show what the cache has done, and why.
pub fn zone_before(dir: Dir, port: u16, cached: &str, paths: &[(&str, &str)]) -> Server {
    let location = |(path, own): &(&str, &str)| {
        format!("location {path} {{ proxy_pass http://127.0.0.1:{port}; {own} }}")
    };
    let locations: String = paths.iter().map(location).collect();
    let conf = format!(
        "events {{ }} http {{
             access_log off;
             proxy_cache_path %%DIR%%/cache keys_zone=one:1m;
             proxy_cache one; {cached}
             add_header X-Cache $upstream_cache_status always;
             add_header X-Why $upstream_cache_reason always;
             server {{ listen 127.0.0.1:%%PORT%%; {locations} }} }}"
    );
    Server::start_in(dir, WEIR, &conf)
}

/// A cache before the server at this port.
pub fn before(port: u16, cached: &str) -> Server {
    before_in(Dir::new(), port, cached)
}

pub fn before_in(dir: Dir, port: u16, cached: &str) -> Server {
    let own = format!("proxy_cache_rules rfc9111; {cached}");
    zone_before(dir, port, "proxy_cache_key $uri;", &[("/", &own)])
}

/// An answer 304 may come from a cache that had it for a while: its age counts, whether it has a date or not.
#[test]
fn the_age_of_an_answer_304_counts() {
    for date in ["", "Date: Thu, 01 Jan 2037 00:00:00 GMT\r\n"] {
        let (port, asked) = scripted(move |_, head| {
            let fields = "ETag: \"a\"\r\nCache-Control: max-age=100\r\nConnection: close";
            match head.contains("If-None-Match") {
                true => format!("HTTP/1.1 304 Not Modified\r\n{date}Age: 150\r\n{fields}\r\n\r\n"),
                false => {
                    format!("HTTP/1.1 200 OK\r\nAge: 200\r\n{fields}\r\nContent-Length: 1\r\n\r\na")
                }
            }
        });
        let server = before(port, "");
        assert_eq!(server.get("/a").header("X-Cache"), Some("MISS"));
        for n in 2..5 {
            let again = server.get("/a");
            assert_eq!(again.header("X-Cache"), Some("REVALIDATED"), "{n} {date}");
            let age = again.header("Age").and_then(|age| age.parse::<u64>().ok());
            assert!(age.is_some_and(|age| age >= 150), "{age:?} {date}");
            assert_eq!(asked.load(Ordering::SeqCst), n);
        }
    }
}

/// A request that finds an answer on its way judges it as if it were stored: by what the answer says, and by its own wishes.
#[test]
fn a_request_that_waits_has_its_own_verdict() {
    const LENGTH: usize = 1 << 20;
    for (control, asks, expected) in [
        ("max-age=100", "", ("200", "HIT", 1)),
        ("max-age=100", "only-if-cached", ("200", "HIT", 1)),
        ("max-age=100", "min-fresh=70", ("200", "HIT", 1)),
        ("max-age=100", "min-fresh=200", ("200", "REVALIDATED", 2)),
        ("max-age=100", "max-age=5", ("200", "REVALIDATED", 2)),
        ("max-age=10", "", ("200", "REVALIDATED", 2)),
        ("max-age=10", "max-stale=1000", ("200", "STALE", 1)),
        ("max-age=10", "max-stale=5", ("200", "REVALIDATED", 2)),
        ("max-age=10", "only-if-cached", ("504", "EXPIRED", 1)),
        ("max-age=10", "only-if-cached, max-stale", ("200", "STALE", 1)),
        ("max-age=10, must-revalidate", "max-stale", ("200", "REVALIDATED", 2)),
        ("no-cache, max-age=100", "only-if-cached, max-stale", ("504", "EXPIRED", 1)),
    ] {
        let (asked, (go_on, may)) = (Arc::new(AtomicUsize::new(0)), channel::<()>());
        let (count, may) = (asked.clone(), Mutex::new(may));
        let port = listen(move |mut stream: TcpStream| {
            let Some(head) = read_head(&mut stream) else { return };
            count.fetch_add(1, Ordering::SeqCst);
            if head.contains("If-None-Match") {
                let _ = stream.write_all(b"HTTP/1.1 304 Not Modified\r\nConnection: close\r\n\r\n");
                return;
            }
            let fields = format!("ETag: \"a\"\r\nCache-Control: {control}\r\nAge: 20");
            let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {LENGTH}\r\n\r\n");
            let half = vec![b'a'; LENGTH / 2];
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&half));
            let _ = may.lock().unwrap().recv();
            let _ = stream.write_all(&half);
        });
        let server = before(port, "proxy_cache_lock on; proxy_cache_lock_timeout 20s;");
        let ask = |fields: &str| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let text = format!("GET /a HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n");
            stream.write_all(text.as_bytes()).unwrap();
            let head = read_head(&mut stream).unwrap();
            (head, stream)
        };
        let (_, mut first) = ask("");
        let (head, mut second) = ask(&format!("Cache-Control: {asks}\r\n"));
        go_on.send(()).unwrap();
        let (mut one, mut two) = (Vec::new(), Vec::new());
        second.read_to_end(&mut two).unwrap();
        first.read_to_end(&mut one).unwrap();
        let (status, cached, times) = expected;
        let is = head.starts_with(&format!("HTTP/1.1 {status} "))
            && head.contains(&format!("X-Cache: {cached}\r\n"));
        assert!(is, "{control}, {asks}: {head}");
        assert_eq!(one.len(), LENGTH);
        assert_eq!(two.len() == LENGTH, status == "200", "{control}, {asks}");
        assert_eq!(asked.load(Ordering::SeqCst), times, "{control}, {asks}");
    }
}

/// An answer 304 with another `Vary` makes it unknown which requests the stored answer is for.
/// A client that gets no part of an answer does not wait for the rest of it, which is stored.
#[test]
fn a_refusal_does_not_wait_for_what_is_stored() {
    let (go, may) = channel::<()>();
    let may = Mutex::new(may);
    let port = listen(move |mut stream: TcpStream| {
        let Some(_) = read_head(&mut stream) else { return };
        let fields =
            "ETag: \"a\"\r\nLast-Modified: Wed, 01 Jul 2026 10:00:00 GMT\r\nAccept-Ranges: bytes";
        let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: 4\r\n\r\nbo");
        let _ = stream.write_all(head.as_bytes());
        if may.lock().unwrap().recv_timeout(PATIENCE).is_ok() {
            let _ = stream.write_all(b"dy");
        }
    });
    let paged = "error_page 412 416 /page;";
    let paths = [("/", ""), ("/paged/", paged), ("= /page", "return 200 page;")];
    let server = zone_before(Dir::new(), port, "proxy_cache_valid any 1m;", &paths);
    let early = "Wed, 01 Jul 2020 10:00:00 GMT";
    for (n, (header, status)) in [
        ("Range: bytes=50-".to_owned(), 416),
        ("If-Match: \"other\"".to_owned(), 412),
        (format!("If-Unmodified-Since: {early}"), 412),
    ]
    .into_iter()
    .enumerate()
    {
        for path in [format!("/{n}"), format!("/paged/{n}")] {
            let mut client = server.connect();
            let refused = client.ask(&format!("GET {path}"), &format!("{header}\r\n"), "");
            assert_eq!(refused.status, status, "{path} {header}");
            assert_eq!(refused.body() == "page", path.starts_with("/paged/"), "{path} {header}");
            go.send(()).unwrap();
            // The connection goes on.
            let answer = client.get(&path);
            assert_eq!((answer.body().as_str(), answer.header("X-Cache")), ("body", Some("HIT")));
        }
    }
}

#[test]
fn an_answer_304_with_another_vary_is_not_stored() {
    let (port, asked) = scripted(|n, head| {
        match head.contains("If-None-Match") {
        true => "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nVary: X-Other\r\nCache-Control: max-age=1000\r\nConnection: close\r\n\r\n".to_owned(),
        false => format!("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nVary: X-Kind\r\nCache-Control: max-age=0\r\nContent-Length: 1\r\nConnection: close\r\n\r\n{n}"),
    }
    });
    let server = before(port, "");
    let ask =
        |other: &str| server.ask("GET /a", &format!("X-Kind: one\r\nX-Other: {other}\r\n"), "");
    assert_eq!(ask("one").header("X-Cache"), Some("MISS"));
    for (n, other) in ["one", "two", "one"].into_iter().enumerate() {
        assert_eq!(ask(other).header("X-Cache"), Some("REVALIDATED"), "{other}");
        assert_eq!(asked.load(Ordering::SeqCst), n + 2);
    }
}

/// Fields of an answer 304 that are for one connection, or for one user, are in no stored answer.
#[test]
fn what_an_answer_304_has_for_one_client_is_not_sent_to_others() {
    let (port, _) = scripted(|_, head| {
        let own =
            "ETag: \"a\"\r\nConnection: close, X-Own\r\nX-Own: secret\r\nSet-Cookie: id=secret";
        let control = "max-age=1000, private=\"Set-Cookie\"";
        match head.contains("If-None-Match") {
            true => format!("HTTP/1.1 304 Not Modified\r\n{own}\r\nX-Of-All: new\r\nCache-Control: {control}\r\n\r\n"),
            false => "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nX-Of-All: old\r\nCache-Control: max-age=0\r\nContent-Length: 1\r\nConnection: close\r\n\r\na".to_owned(),
        }
    });
    let server = before(port, "");
    assert_eq!(server.get("/a").header("X-Cache"), Some("MISS"));
    for status in ["REVALIDATED", "HIT"] {
        let again = server.get("/a");
        assert_eq!(
            (again.header("X-Cache"), again.header("X-Of-All")),
            (Some(status), Some("new"))
        );
        assert!(!again.headers.iter().any(|(_, value)| value.contains("secret")), "{again:?}");
    }
}

/// Two heads of 10,000 fields become one.
#[test]
fn answers_304_with_many_fields_are_taken() {
    const MANY: usize = 10_000;
    let (port, _) = scripted(|n, head| {
        let fields: String =
            (0..MANY).map(|i| format!("X-{i}: {n}\r\nConnection: y{i}\r\n")).collect();
        let fields = format!("{fields}ETag: \"a\"\r\nConnection: close");
        match head.contains("If-None-Match") {
            true => format!(
                "HTTP/1.1 304 Not Modified\r\n{fields}\r\nCache-Control: max-age=1000\r\n\r\n"
            ),
            false => format!(
                "HTTP/1.1 200 OK\r\n{fields}\r\nCache-Control: max-age=0\r\nContent-Length: 1\r\n\r\na"
            ),
        }
    });
    let large = "proxy_buffer_size 1m; proxy_buffers 4 1m; proxy_busy_buffers_size 2m;";
    let server = before(port, large);
    assert_eq!(server.get("/a").header("X-Cache"), Some("MISS"));
    for status in ["REVALIDATED", "HIT"] {
        let again = server.get("/a");
        assert_eq!(again.header("X-Cache"), Some(status));
        let new = (0..MANY).filter(|i| again.header(&format!("X-{i}")) == Some("1")).count();
        assert_eq!(new, MANY);
    }
}

/// An answer to HEAD tells whether the stored answer to GET still is the newest one: it gets the new fields, or goes.
#[test]
fn an_answer_to_head_freshens_or_removes_the_stored_one() {
    let same = "ETag: \"a\"\r\nContent-Length: 3\r\n";
    for (fields, stands) in [
        (same, true),
        ("ETag: W/\"a\"\r\n", true),
        ("Content-Length: 3\r\n", true),
        ("ETag: \"b\"\r\nContent-Length: 3\r\n", false),
        ("ETag: \"a\"\r\nContent-Length: 4\r\n", false),
        ("Last-Modified: Thu, 18 Aug 2005 02:01:18 GMT\r\nContent-Length: 3\r\n", false),
        ("", false),
    ] {
        let (port, asked) = scripted(move |n, head| {
            let (fields, body) = match (head.starts_with("HEAD"), n) {
                (true, _) => (fields, ""),
                (false, n) => (same, ["abc", "abd", "abd"][n.min(2)]),
            };
            format!(
                "HTTP/1.1 200 OK\r\nX-Of: {n}\r\nCache-Control: max-age=1000\r\nConnection: close\r\n{fields}\r\n{body}"
            )
        });
        let server = before(port, "proxy_cache_convert_head off; proxy_cache_status_field weir;");
        let get = |status: &str| {
            let r = server.get("/a");
            assert_eq!((r.status, r.header("X-Cache")), (200, Some(status)), "{fields}");
            (r.header("X-Of").unwrap_or_default().to_owned(), r.body())
        };
        assert_eq!(get("MISS"), ("0".into(), "abc".into()));
        let text =
            "HEAD /a HTTP/1.1\r\nHost: a\r\nCache-Control: no-cache\r\nConnection: close\r\n\r\n";
        let head = server.connect().send(text).rest();
        assert!(head.contains("X-Of: 1\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        if stands {
            assert!(head.contains("X-Cache: REVALIDATED\r\n"), "{fields} {head}");
            assert!(head.contains("; fwd-status=200; "), "{fields} {head}");
            assert_eq!(get("HIT"), ("1".into(), "abc".into()), "{fields}");
            continue;
        }
        // What came for HEAD is not sent for GET.
        assert_eq!(get("MISS"), ("2".into(), "abd".into()), "{fields}");
        assert_eq!(get("HIT"), ("2".into(), "abd".into()), "{fields}");
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }
}

/// Fields that belong to a connection or to a proxy are in no stored answer, whether `Connection` lists them or not.
#[test]
fn fields_of_a_connection_are_not_sent_again() {
    let (port, _) = scripted(|_, _| {
        let own = "Proxy-Authenticate: Basic\r\nProxy-Authentication-Info: x\r\nUpgrade: h2c\r\nTE: x\r\nProxy-Connection: x";
        format!(
            "HTTP/1.1 200 OK\r\n{own}\r\nCache-Control: max-age=1000\r\nContent-Length: 1\r\n\r\na"
        )
    });
    let server = before(port, "");
    assert_eq!(server.get("/a").header("X-Cache"), Some("MISS"));
    let hit = server.get("/a");
    assert_eq!(hit.header("X-Cache"), Some("HIT"));
    for name in
        ["Proxy-Authenticate", "Proxy-Authentication-Info", "Upgrade", "TE", "Proxy-Connection"]
    {
        assert_eq!(hit.header(name), None, "{name}");
    }
}
