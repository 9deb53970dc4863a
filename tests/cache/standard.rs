//! `proxy_cache_rules rfc9111`: the standard says what is stored and sent.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use weir_testkit::{Dir, PATIENCE, Server};

use super::validation::{before, scripted, zone_before};
use super::{get_until, start, wait_stored};

const RULES: &str = "proxy_cache_rules rfc9111;";

/// What the cache says of itself: a field for programs, and one for people.
const TOLD: &str = "proxy_cache_status_field weir; add_header X-Why $upstream_cache_reason always;";

fn ask(server: &Server, method: &str, path: &str, fields: &str) -> String {
    let text = format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n");
    server.connect().send(text).rest()
}

#[test]
fn the_standard_says_what_is_fresh() {
    let server = start(
        "",
        RULES,
        "location / {
             add_header Cache-Control \"max-age=1000, no-cache=\\\"X-Own\\\"\"; add_header Age 30;
             add_header X-Own secret; add_header X-Of-All open; return 200 \"$request_id 0123456789\";
         }
         location /private { add_header Cache-Control \"max-age=1000, private\"; return 200 $request_id; }
         location /moved { add_header Location /a; return 204; }",
    );
    let first = server.get("/a");
    assert_eq!(first.header("X-Own"), Some("secret"));
    wait_stored(&server, 1);
    let hit = get_until(&server, "/a", "HIT");
    assert_eq!(hit.body(), first.body());
    let age: u64 = hit.header("Age").expect("an age").parse().expect("a number");
    assert!((30..1000).contains(&age), "{age}");
    // What is not for everybody is not shown again.
    assert_eq!((hit.header("X-Own"), hit.header("X-Of-All")), (None, Some("open")));
    let part = ask(&server, "GET", "/a", "Range: bytes=-10\r\n");
    assert!(part.starts_with("HTTP/1.1 206") && part.ends_with("\r\n0123456789"), "{part}");

    assert!(
        ask(&server, "GET", "/a", "Cache-Control: max-age=10\r\n").contains("X-Cache: EXPIRED")
    );
    assert!(ask(&server, "GET", "/a", "Cache-Control: no-cache\r\n").contains("X-Cache: EXPIRED"));
    get_until(&server, "/a", "HIT");
    let none = ask(&server, "GET", "/b", "Cache-Control: only-if-cached\r\n");
    assert!(none.starts_with("HTTP/1.1 504"), "{none}");

    for _ in 0..2 {
        assert_eq!(server.get("/private").header("X-Cache"), Some("MISS"));
        let secret = ask(&server, "GET", "/secret", "Authorization: a\r\n");
        assert!(secret.contains("X-Cache: MISS"), "{secret}");
    }

    // What is changed is asked for again, and so is what the answer to that names.
    for changed in ["/a", "/moved"] {
        get_until(&server, "/a", "HIT");
        ask(&server, "POST", changed, "Content-Length: 0\r\n");
        assert_eq!(server.get("/a").header("X-Cache"), Some("MISS"), "{changed}");
    }
}

#[test]
fn an_answer_that_stands_takes_the_new_fields() {
    let server = start(
        "",
        RULES,
        "location / { root %%DIR%%/site; add_header Cache-Control max-age=0; add_header X-Of $request_id; }",
    );
    for (name, length) in [("small", 6), ("large", 3 << 20)] {
        let body = "answer".repeat(length / 6);
        server.dir().write(&format!("site/{name}"), &body);
        let path = format!("/{name}");
        let first = server.get(&path);
        assert_eq!(first.header("X-Cache"), Some("MISS"));
        for _ in 0..2 {
            let again = get_until(&server, &path, "REVALIDATED");
            assert!(again.body() == body && again.header("X-Of").is_some());
            assert_ne!(again.header("X-Of"), first.header("X-Of"));
        }
    }
}

/// Each answer says what the cache did and why, under both sets of rules, to clients of HTTP/1.1 and HTTP/2.
#[test]
fn answers_say_what_the_cache_did_and_why() {
    let origin = "location / { add_header Cache-Control s-maxage=300; add_header Age 12; return 200 a; }
         location /private { add_header Cache-Control private; return 200 a; }
         location /old { root %%DIR%%/site; add_header Cache-Control max-age=0; add_header Cache-Status origin; }
         location /own { add_header Cache-Control no-store; add_header X-Here max-age=50; return 200 a; }";
    let told = |rules: &str| {
        format!("{rules} {TOLD} proxy_cache_control_field X-Here; proxy_cache_bypass $arg_no;")
    };
    for (rules, served) in
        [(RULES, "served: fresh 300 s by s-maxage, age 12"), ("", "served: fresh 300 s, age 0")]
    {
        let server = start("", &told(rules), origin);
        let said = |r: &weir_testkit::Response| {
            [r.header("Cache-Status"), r.header("X-Why")].map(|v| v.unwrap_or_default().to_owned())
        };
        let first = said(&server.get("/a"));
        let age = if rules.is_empty() { 0 } else { 12 };
        assert_eq!(first[0], format!("weir; fwd=uri-miss; ttl={}; stored", 300 - age));
        assert_eq!(
            first[1],
            format!("nothing is stored; stored: fresh 300 s by s-maxage, age {age}")
        );
        let hit = said(&get_until(&server, "/a", "HIT"));
        // A second may have passed.
        let late = served.replace("age 12", "age 13").replace("age 0", "age 1");
        assert!(hit[1] == served || hit[1] == late, "{hit:?}");
        let left = hit[0].strip_prefix("weir; hit; ttl=").and_then(|ttl| ttl.parse::<u32>().ok());
        assert!(left.is_some_and(|left| (200..=300 - age).contains(&left)), "{hit:?}");
        let private = said(&server.get("/private"));
        let why =
            if rules.is_empty() { "no-cache, no-store, private or max-age=0" } else { "private" };
        assert_eq!(
            private,
            ["weir; fwd=uri-miss".to_owned(), format!("nothing is stored; not stored: {why}")]
        );
        let bypass = server.get("/b?no=1");
        let expected = format!("weir; fwd=bypass; ttl={}; stored", 300 - age);
        assert_eq!(bypass.header("Cache-Status"), Some(expected.as_str()));
        let post = ask(&server, "POST", "/a", "Content-Length: 0\r\n");
        assert!(post.contains("Cache-Status: weir; fwd=method"), "{post}");
        if rules.is_empty() {
            continue;
        }
        server.dir().write("site/old", "b");
        server.get("/old");
        let again = get_until(&server, "/old", "REVALIDATED");
        let named = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("Cache-Status");
        let status: Vec<&str> =
            again.headers.iter().filter(named).map(|(_, v)| v.as_str()).collect();
        assert!(
            status[0] == "origin" && status[1].starts_with("weir; fwd=stale; fwd-status=304; ttl="),
            "{status:?}"
        );
        // The field for this cache alone stands for the one for all.
        server.get("/own");
        assert!(
            said(&get_until(&server, "/own", "HIT"))[1]
                .starts_with("served: fresh 50 s by max-age")
        );
    }
}

/// A part that nobody asked for is not taken for the whole, whatever rules it was stored by.
#[test]
fn a_part_is_not_sent_for_the_whole() {
    let part = "add_header Content-Range 'bytes 0-4/10'; add_header Cache-Control max-age=100; return 206 01234;";
    let server = start("", &format!("{RULES} {TOLD}"), &format!("location / {{ {part} }}"));
    for _ in 0..2 {
        let r = server.get("/a");
        assert_eq!((r.status, r.header("X-Cache")), (206, Some("MISS")));
        assert_eq!(
            r.header("X-Why"),
            Some("nothing is stored; not stored: it is a part that was not asked for")
        );
    }
}

/// Fields, tags and dates without end cost little, and nothing secret is stored for them.
#[test]
fn bad_input_is_bounded_and_never_stored() {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let behind = listener.local_addr().unwrap();
    let heads: Vec<(String, bool)> = vec![
        (format!("Cache-Control: max-age=100, {}no-store", "x=\"\\\"\", ".repeat(4000)), false),
        (format!("Cache-Control: max-age=100, private=\"{}\"", "a, ".repeat(15_000)), true),
        ("Vary: x\r\n".repeat(10_000) + "Cache-Control: max-age=100", false),
        ("Cache-Control: max-age=100\r\nAge: 9223372036854775808".into(), false),
        ("Cache-Control: max-age=9223372036854775808".into(), true),
        (format!("Cache-Control: max-age=100\r\nSurrogate-Key: {}", "a b ".repeat(15_000)), false),
        (format!("Cache-Control: max-age=100\r\nxkey: {}", "k".repeat(60_000)), true),
        ("Expires: Thu, 99 Foo 2050 99:99:99 GMT\r\nDate: nonsense".into(), false),
        ("Expires: Thursday, 18-Aug-50 02:01:18 GMT".into(), true),
        ("Expires: Thu Aug 18 02:01:18 2050".into(), true),
        ("Expires: 0".into(), false),
        ("Cache-Control: max-age=100\r\nCDN-Cache-Control: no-store".into(), false),
    ];
    let conf = format!(
        "{RULES} proxy_buffer_size 256k; proxy_buffers 8 256k; proxy_busy_buffers_size 512k; proxy_pass http://{behind};"
    );
    let answers = heads.clone();
    let origin = std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let n = line.split('/').nth(2).and_then(|n| n.split(' ').next()?.parse::<usize>().ok());
            let Some((head, _)) = n.and_then(|n| answers.get(n)) else { return };
            while reader.read_line(&mut line).unwrap_or(0) > 2 {}
            let _ = write!(
                &stream,
                "HTTP/1.1 200 OK\r\n{head}\r\nContent-Length: 1\r\nConnection: close\r\n\r\na"
            );
        }
    });
    let inner = Server::with_locations(
        weir_testkit::Dir::new(),
        super::WEIR,
        "proxy_cache_path cache keys_zone=one:1m;",
        &format!(
            "location / {{ {conf} proxy_cache one; add_header X-Cache $upstream_cache_status; }}"
        ),
    );
    for (n, (head, stored)) in heads.iter().enumerate() {
        let path = format!("/in/{n}");
        let r = inner.get(&path);
        assert_eq!(
            (r.status, r.body().as_str()),
            (200, "a"),
            "{}: {}",
            &head[..head.len().min(80)],
            inner.log()
        );
        match stored {
            true => drop(get_until(&inner, &path, "HIT")),
            false => assert_ne!(
                inner.get(&path).header("X-Cache"),
                Some("HIT"),
                "{}",
                &head[..head.len().min(80)]
            ),
        }
    }
    let _ = std::net::TcpStream::connect(behind)
        .and_then(|mut s| s.write_all(b"GET /in/end HTTP/1.1\r\n\r\n"));
    origin.join().unwrap();
}

/// Slices are joined if all have one strong validator. Where they have none, one slice can be had, and more cannot.
#[test]
fn slices_are_joined_by_a_strong_validator() {
    const LENGTH: usize = 30;
    let server_of = |fields: fn(usize) -> String| {
        let (port, _) = scripted(move |n, head| {
            let line = head.lines().find_map(|line| line.strip_prefix("Range: bytes="));
            let (from, to) = line.and_then(|line| line.split_once('-')).expect("a range");
            let [from, to]: [usize; 2] = [from, to].map(|n| n.parse().expect("a number"));
            let (end, body) = (LENGTH.min(to + 1), "a".repeat(LENGTH.min(to + 1) - from));
            format!(
                "HTTP/1.1 206 Partial Content\r\nCache-Control: max-age=100\r\nContent-Range: bytes {from}-{}/{LENGTH}\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                end - 1,
                fields(n),
                body.len()
            )
        });
        let cached =
            "proxy_cache_key $uri$slice_range; slice 10; proxy_set_header Range $slice_range;";
        let strict = format!("{RULES} {cached}");
        zone_before(Dir::new(), port, "", &[("/standard", &strict), ("/nginx", cached)])
    };
    const OLD: &str = "Last-Modified: Thu, 01 Jan 2015 00:00:00 GMT\r\n";
    let joined: [fn(usize) -> String; 2] = [|_| "ETag: \"a\"\r\n".to_owned(), |_| OLD.to_owned()];
    for fields in joined {
        let server = server_of(fields);
        for _ in 0..2 {
            assert_eq!(server.get("/standard").body(), "a".repeat(LENGTH));
        }
    }
    let apart: [fn(usize) -> String; 3] = [
        |_| "ETag: W/\"a\"\r\n".to_owned(),
        |_| String::new(),
        |_| "Last-Modified: Thu, 01 Jan 2099 00:00:00 GMT\r\n".to_owned(),
    ];
    for fields in apart {
        let server = server_of(fields);
        for _ in 0..2 {
            assert_eq!(server.get("/standard").status, 502);
            let one = ask(&server, "GET", "/standard", "Range: bytes=10-19\r\n");
            assert!(
                one.starts_with("HTTP/1.1 206") && one.ends_with("\r\n\r\naaaaaaaaaa"),
                "{one}"
            );
        }
        server.wait_log("slices without a strong ETag or Last-Modified cannot be joined", 2);
        assert_eq!(server.get("/nginx").body(), "a".repeat(LENGTH));
    }
    // The second slice is of another version.
    let server = server_of(|n| OLD.replace("2015", if n == 1 { "2016" } else { "2015" }));
    let mut client = server.connect();
    client.send("GET /standard HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.try_response().is_err());
    server.wait_log("Last-Modified mismatch in slice response", 1);
}

/// A server has been asked for an object and has not answered when the object changes: the answer is for those who have asked
/// before, and is not stored.
#[test]
fn an_answer_that_was_asked_for_before_a_change_is_not_kept() {
    for lock in ["off", "on"] {
        let ((go_on, may), (begun, asked)) = (channel::<()>(), channel::<()>());
        let (may, begun) = (Mutex::new(may), Mutex::new(begun));
        let (port, _) = scripted(move |n, head| {
            if n == 0 {
                begun.lock().unwrap().send(()).unwrap();
                let _ = may.lock().unwrap().recv_timeout(PATIENCE);
            }
            let kind = if head.starts_with("GET") { "Cache-Control: max-age=1000\r\n" } else { "" };
            format!("HTTP/1.1 200 OK\r\n{kind}Content-Length: 1\r\nConnection: close\r\n\r\n{n}")
        });
        let server = before(port, &format!("proxy_cache_lock {lock};"));
        let mut early = server.connect();
        early.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        asked.recv_timeout(PATIENCE).unwrap();
        let changed = ask(&server, "PUT", "/a", "Content-Length: 0\r\n");
        assert!(changed.starts_with("HTTP/1.1 200") && changed.ends_with('1'), "{changed}");
        // It waits for nobody, and does not share what was asked for before.
        let late = server.get("/a");
        assert_eq!((late.header("X-Cache"), late.body().as_str()), (Some("MISS"), "2"), "{lock}");
        go_on.send(()).unwrap();
        assert_eq!(early.response().body(), "0");
        for _ in 0..2 {
            let hit = server.get("/a");
            assert_eq!((hit.header("X-Cache"), hit.body().as_str()), (Some("HIT"), "2"), "{lock}");
        }
    }
}

/// A cache asks servers for whole answers. One that it must not keep is for the client's conditions and range as well.
#[test]
fn conditions_and_ranges_hold_for_answers_that_are_not_kept() {
    let origin = "location / { root %%DIR%%/site; add_header Cache-Control private; }";
    for (rules, unchanged, part) in [(RULES, 304, 206), ("", 200, 200)] {
        let server = start("", rules, origin);
        server.dir().write("site/a", "0123456789");
        let tag = server.get("/a").header("ETag").expect("a tag").to_owned();
        let with = |fields: &str| server.ask("GET /a", fields, "");
        assert_eq!(with(&format!("If-None-Match: {tag}\r\n")).status, unchanged);
        assert_eq!(with("If-None-Match: \"b\"\r\n").status, 200);
        let answer = with("Range: bytes=2-4\r\n");
        let body = if part == 206 { "234" } else { "0123456789" };
        assert_eq!((answer.status, answer.body().as_str()), (part, body));
        assert_eq!(answer.header("X-Cache"), Some("MISS"));
    }
}
