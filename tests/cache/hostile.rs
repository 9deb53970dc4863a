//! Answers that are wrong, or larger than any sound one: what they cost is bounded, what becomes of them is clear, others are
//! served, and no secret is stored.

use std::sync::atomic::Ordering;

use weir_testkit::{Dir, Response, Server};

use super::get_until;
use super::validation::{scripted, zone_before};

/// The fields of an answer, and whether it is stored by nginx's rules and by those of the standard.
struct Case {
    name: &'static str,
    fields: String,
    stored: [bool; 2],
}

/// Before a server that gives these answers by number, at `/nginx/N` and `/standard/N`; and beside them one at `/ok`.
fn start(buffer: &str, answers: Vec<String>) -> Server {
    let (port, _) = scripted(move |_, head| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        let n = path.rsplit('/').next().and_then(|n| n.parse::<usize>().ok());
        let fields = match n {
            Some(n) => &answers[n],
            None => "Cache-Control: max-age=1000\r\n",
        };
        format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 1\r\nConnection: close\r\n\r\na")
    });
    let cached = format!("proxy_cache_key $uri; {buffer}");
    let paths = [("/ok", ""), ("/nginx", ""), ("/standard", "proxy_cache_rules rfc9111;")];
    zone_before(Dir::new(), port, &cached, &paths)
}

/// The largest head that is asked for here fits into this.
const LARGE: &str = "proxy_buffer_size 2m; proxy_buffers 4 2m; proxy_busy_buffers_size 4m;";

/// Each answer reaches its client, is stored or not, and a client of something else is served after it.
fn judge(cases: &[Case]) {
    let answers = cases.iter().map(|case| format!("{}\r\n", case.fields)).collect();
    let server = start(LARGE, answers);
    get_until(&server, "/ok", "HIT");
    for (n, case) in cases.iter().enumerate() {
        for (rules, stored) in ["nginx", "standard"].into_iter().zip(case.stored) {
            let (path, name) = (format!("/{rules}/{n}"), case.name);
            let first = server.get(&path);
            assert_eq!((first.status, first.body().as_str()), (200, "a"), "{name} {rules}");
            let again = server.get(&path);
            let is_hit = again.header("X-Cache") == Some("HIT");
            assert_eq!((again.status, again.body().as_str()), (200, "a"), "{name} {rules}");
            let begin = &case.fields[..case.fields.len().min(100)];
            let why = [&first, &again].map(|r| r.header("X-Why").unwrap_or_default());
            assert_eq!(is_hit, stored, "{name}, {rules}: {begin}\n{why:?}\n{}", server.log());
        }
        assert_eq!(server.get("/ok").header("X-Cache"), Some("HIT"), "{}", case.name);
    }
}

fn case(name: &'static str, fields: impl Into<String>, stored: [bool; 2]) -> Case {
    Case { name, fields: fields.into(), stored }
}

const KIB64: usize = 64 * 1024;
const BOTH: [bool; 2] = [true, true];
const NONE: [bool; 2] = [false, false];
const NGINX: [bool; 2] = [true, false];
const STANDARD: [bool; 2] = [false, true];

#[test]
fn fields_of_64_kib_and_of_10_000_lines_are_read_to_their_ends() {
    let fresh = "Cache-Control: max-age=1000";
    judge(&[
        case("a long field", format!("{fresh}\r\nX-Long: {}", "a".repeat(KIB64)), BOTH),
        case("a long directive", format!("{fresh}, x=\"{}\"", "a".repeat(KIB64)), BOTH),
        case("no-store at the end", format!("{fresh}{}, no-store", ", x".repeat(KIB64 / 3)), NONE),
        case(
            "no-store behind an open quote",
            format!("{fresh}, x=\"{}, no-store", "a".repeat(KIB64)),
            NONE,
        ),
        case(
            "lines of directives",
            format!("{fresh}{}", "\r\nCache-Control: x".repeat(10_000)),
            BOTH,
        ),
        case(
            "the last line forbids",
            format!("{fresh}{}\r\nCache-Control: private", "\r\nCache-Control: x".repeat(10_000)),
            NONE,
        ),
        case(
            "a long private",
            format!("{fresh}, private=\"{}\"", "a, ".repeat(KIB64 / 3)),
            STANDARD,
        ),
        case(
            "a long Connection",
            format!("{fresh}\r\nConnection: {}", "a, ".repeat(KIB64 / 3)),
            BOTH,
        ),
        case("10,000 lines of Vary", format!("{fresh}{}", "\r\nVary: x".repeat(10_000)), NONE),
        case("10,000 names in Vary", format!("{fresh}\r\nVary: {}", "x, ".repeat(10_000)), NONE),
        case("a name of 64 KiB in Vary", format!("{fresh}\r\nVary: {}", "x".repeat(KIB64)), NONE),
        case("a long ETag", format!("{fresh}\r\nETag: \"{}\"", "x".repeat(KIB64)), BOTH),
        case("a long Expires", format!("Expires: {}", "x".repeat(KIB64)), NONE),
    ]);
}

#[test]
fn ages_and_lifetimes_may_be_any_numbers() {
    let aged = |age: &str| format!("Cache-Control: max-age=1000\r\nAge: {age}");
    let lives = |seconds: &str| format!("Cache-Control: max-age={seconds}");
    judge(&[
        case("Age of 2^63", aged("9223372036854775808"), NGINX),
        case("Age of 2^64", aged("18446744073709551616"), NGINX),
        case("Age of 1,000 digits", aged(&"9".repeat(1000)), NGINX),
        case("Age of 2^31", aged("2147483648"), NGINX),
        case("Age below 0", aged("-1"), BOTH),
        case("Age with a sign", aged("+2000"), BOTH),
        case("Age with a point", aged("2000.5"), BOTH),
        case("Age that is none", aged("old"), BOTH),
        case("no Age", aged(""), BOTH),
        case("Age twice", format!("{}\r\nAge: 0", aged("2000")), NGINX),
        case("an old Age first in a list", aged("2000, 0"), NGINX),
        case("a life of 2^63", lives("9223372036854775808"), BOTH),
        case(
            "a life and an age of 2^63",
            format!("{}\r\nAge: 9223372036854775808", lives("9223372036854775808")),
            NGINX,
        ),
        case("a life of 1,000 digits", lives(&"9".repeat(1000)), BOTH),
        case("a life below 0", lives("-1"), NONE),
        case("a life that is none", lives("long"), NONE),
        case("an empty life", lives(""), NONE),
        case("two lives", lives("0, max-age=1000"), NONE),
    ]);
}

#[test]
fn dates_come_in_three_forms_and_all_else_is_none() {
    let mut cases = Vec::new();
    for (name, future, past) in [
        ("IMF-fixdate", "Thu, 18 Aug 2050 02:01:18 GMT", "Thu, 18 Aug 2005 02:01:18 GMT"),
        ("RFC 850", "Thursday, 18-Aug-50 02:01:18 GMT", "Thursday, 18-Aug-05 02:01:18 GMT"),
        ("asctime", "Thu Aug 18 02:01:18 2050", "Thu Aug 18 02:01:18 2005"),
    ] {
        cases.push(case(name, format!("Expires: {future}"), BOTH));
        cases.push(case(name, format!("Expires: {past}"), NONE));
        // It has been unchanged for so long that the standard lets it be taken for fresh.
        cases.push(case(name, format!("Last-Modified: {past}"), STANDARD));
        cases.push(case(name, format!("Last-Modified: {future}"), NONE));
        let dated = |date: &str| format!("Cache-Control: max-age=1000\r\nDate: {date}");
        cases.push(case(name, dated(past), NGINX));
        cases.push(case(name, dated(future), BOTH));
    }
    let long = "x".repeat(KIB64);
    for junk in [
        "",
        "0",
        "-1",
        "now",
        "Thu, 99 Aug 2050 02:01:18 GMT",
        "Thu, 18 Foo 2050 02:01:18 GMT",
        "Thu, 18 Aug 2050 99:99:99 GMT",
        "Thu, 18 Aug 99999999999 02:01:18 GMT",
        "2050-08-18T02:01:18Z",
        "Thu, 18 Aug 2050",
        "Thu",
        ",",
        &long,
    ] {
        // As in nginx, the letters of a month's name that tell it from others are enough.
        let stored = if junk.contains("Foo") { NGINX } else { NONE };
        cases.push(case("no date", format!("Expires: {junk}"), stored));
        cases.push(case("no date", format!("Last-Modified: {junk}"), NONE));
        // One that is none is that of the arrival.
        cases.push(case("no date", format!("Cache-Control: max-age=1000\r\nDate: {junk}"), BOTH));
    }
    judge(&cases);
}

#[test]
fn of_tags_without_end_some_are_known_or_none_is_stored() {
    let words: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let fresh = "Cache-Control: max-age=1000";
    judge(&[
        case("Surrogate-Key", format!("{fresh}\r\nSurrogate-Key: {}", words.join(" ")), NGINX),
        case("xkey", format!("{fresh}\r\nxkey: {}", words.join(" ")), NGINX),
        case("Cache-Tag", format!("{fresh}\r\nCache-Tag: {}", words.join(",")), NGINX),
        case(
            "Cache-Groups",
            format!("{fresh}\r\nCache-Groups: \"{}\"", words.join("\", \"")),
            NGINX,
        ),
        // Their head is longer than that of a cache file may be.
        case("100,000 lines", format!("{fresh}\r\nxkey: {}", words.join("\r\nxkey: ")), NONE),
        case(
            "10,000 lines",
            format!("{fresh}\r\nxkey: {}", words[..10_000].join("\r\nxkey: ")),
            NGINX,
        ),
        case("a tag of 64 KiB", format!("{fresh}\r\nxkey: {}", "x".repeat(KIB64)), BOTH),
        case("commas alone", format!("{fresh}\r\nCache-Tag: {}", ",".repeat(KIB64)), BOTH),
    ]);
}

/// A head that no buffer takes is an error, and the next one is served.
#[test]
fn heads_that_are_too_large_are_errors() {
    let long = format!("Cache-Control: max-age=1000\r\nX-Long: {}\r\n", "a".repeat(KIB64));
    let server = start("", vec![long]);
    for rules in ["nginx", "standard"] {
        for _ in 0..2 {
            let answer = server.get(&format!("/{rules}/0"));
            assert_eq!((answer.status, answer.header("X-Cache")), (502, Some("MISS")), "{rules}");
            assert_eq!(server.get("/ok").status, 200);
        }
    }
    server.wait_log("upstream sent too big header", 4);
}

/// A field that is for one user is in no stored answer that another one gets, however its name is written.
#[test]
fn what_is_for_one_user_is_never_sent_to_another() {
    let secret = "Set-Cookie: id=secret\r\nX-Own: secret";
    let many = "a, ".repeat(KIB64 / 3);
    let long = format!("private=\"{many}Set-Cookie, X-Own\"");
    let mut cases = Vec::new();
    for control in [
        "private",
        "PRIVATE",
        "private=\"Set-Cookie, X-Own\"",
        "private=\"set-cookie,x-own\"",
        "no-cache=\"Set-Cookie, X-Own\"",
        "private=\"Set-Cookie\", no-cache=\"X-Own\"",
        // Not as they should be.
        "private=\"Set-Cookie, X-Own",
        "private=Set-Cookie, private=X-Own",
        "private=\"Set-Cookie; X-Own\"",
        "private=\"Set-Cookie X-Own\"",
        "private=\"Set-Cookie\\\", X-Own\"",
        "private='Set-Cookie, X-Own'",
        "private=\"\"",
        "private=",
        "private =\"Set-Cookie, X-Own\"",
        "private= \"Set-Cookie, X-Own\"",
        &long,
    ] {
        for field in ["Cache-Control", "CDN-Cache-Control"] {
            cases.push(format!("{field}: max-age=1000, {control}\r\n{secret}\r\n"));
            cases.push(format!("{field}: {control}\r\n{field}: max-age=1000\r\n{secret}\r\n"));
        }
    }
    cases.push(format!(
        "Cache-Control: max-age=1000\r\nConnection: Set-Cookie, X-Own\r\n{secret}\r\n"
    ));
    let server = start(LARGE, cases.clone());
    let shows = |r: &Response| r.headers.iter().any(|(_, value)| value.contains("secret"));
    for (n, fields) in cases.iter().enumerate() {
        let name = &fields[..fields.len().min(100)];
        // nginx's rules store no answer with cookies, and know nothing of CDN-Cache-Control.
        for rules in ["nginx", "standard"] {
            let path = format!("/{rules}/{n}");
            assert!(shows(&server.get(&path)), "{name}");
            let again = server.get(&path);
            let is_hit = again.header("X-Cache") == Some("HIT");
            assert!(!(is_hit && shows(&again)), "{rules}, {name}: {again:?}");
        }
    }
}

/// Requests may be as large as the configuration lets them be: each gets the answer of its kind.
#[test]
fn requests_with_fields_of_64_kib_get_what_is_theirs() {
    let answers = [
        "Cache-Control: max-age=1000\r\nETag: \"last\"\r\n",
        "Cache-Control: max-age=1000\r\nVary: X-Long\r\n",
        "Cache-Control: max-age=1000\r\nVary: Accept-Language\r\n",
    ];
    let buffers = "large_client_header_buffers 4 128k;";
    let server = start(buffers, answers.map(str::to_owned).to_vec());
    let ask = |path: &str, fields: &str| {
        let r = server.ask(&format!("GET {path}"), &format!("{fields}\r\n"), "");
        (r.status, r.header("X-Cache").unwrap_or_default().to_owned())
    };
    let hit = (200, "HIT".to_owned());
    let missed = (200, "MISS".to_owned());
    for rules in ["nginx", "standard"] {
        let whole = format!("/{rules}/0");
        get_until(&server, &whole, "HIT");
        let tags: String = (0..10_000).map(|n| format!("\"{n}\", ")).collect();
        assert_eq!(ask(&whole, &format!("If-None-Match: {tags}\"last\"")).0, 304, "{rules}");
        assert_eq!(ask(&whole, &format!("If-None-Match: {tags}\"none\"")), hit, "{rules}");
        let control = format!("Cache-Control: {}no-cache", "x, ".repeat(KIB64 / 3));
        let expected = if rules == "nginx" { "HIT" } else { "EXPIRED" };
        assert_eq!(ask(&whole, &control), (200, expected.to_owned()), "{rules}");

        let varies = format!("/{rules}/1");
        let (one, two) = ("a".repeat(KIB64), format!("{}b", "a".repeat(KIB64 - 1)));
        for value in [&one, &two] {
            let field = format!("X-Long: {value}");
            assert_eq!(ask(&varies, &field), missed, "{rules}");
            assert_eq!(ask(&varies, &field), hit, "{rules}");
        }

        let languages: Vec<String> = (0..10_000).map(|n| format!("l{n}")).collect();
        let reversed: Vec<String> = languages.iter().rev().cloned().collect();
        let varies = format!("/{rules}/2");
        assert_eq!(ask(&varies, &format!("Accept-Language: {}", languages.join(","))), missed);
        assert_eq!(ask(&varies, &format!("Accept-Language: {}", languages.join(", "))), hit);
        let other = ask(&varies, &format!("Accept-Language: {}", reversed.join(", ")));
        assert_eq!(other, if rules == "nginx" { missed.clone() } else { hit.clone() }, "{rules}");
        assert_eq!(server.get("/ok").status, 200);
    }
}

/// An error is kept in place of a head that breaks off, unless a line before forbade to store anything.
#[test]
fn a_head_that_breaks_off_behind_a_line_that_forbids_it_leaves_no_error() {
    let cases = [
        ("X: y", true),
        ("Cache-Control: max-age=60", true),
        ("Cache-Control: no-cache", true),
        ("Cache-Control: max-age=x", false),
        ("Set-Cookie: a=b", false),
        ("Vary: *", false),
        ("X-Accel-Expires: 0", false),
    ];
    let (port, asked) = scripted(move |_, head| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        let n: usize = path.rsplit('/').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        format!("HTTP/1.1 200 OK\r\n{}\r\n", cases[n].0)
    });
    let paths = [("/", ""), ("/ignored/", "proxy_ignore_headers Set-Cookie;")];
    let server = zone_before(Dir::new(), port, "proxy_cache_valid any 1m;", &paths);
    let is_kept = |path: String| {
        let before = asked.load(Ordering::SeqCst);
        for _ in 0..2 {
            assert_eq!(server.get(&path).status, 502, "{path}");
        }
        asked.load(Ordering::SeqCst) == before + 1
    };
    for (n, (line, kept)) in cases.into_iter().enumerate() {
        assert_eq!(is_kept(format!("/{n}")), kept, "{line}");
    }
    assert!(is_kept("/ignored/4".to_owned()));
}
