//! headers-more.

use weir_testkit::{Server, examples};

use crate::{WEIR, all, refused, server};

#[test]
fn headers_of_answers_are_set_block_after_block() {
    let s = server(
        "more_set_headers 'X-Out: http';",
        "more_set_headers 'X-Path: $uri' 'Server: mine';
         location /a { more_set_headers 'X-Out: loc' 'X-Own:l'; add_header X-Out added; return 200 a; }
         location /twice { more_set_headers 'X-A: 1' 'X-A: 2'; return 200 a; }
         location /both { more_set_headers 'X-A: 1'; more_set_headers -a 'X-A: 2'; return 200 a; }
         location /empty { more_set_headers 'X-Out:' 'X-Path: ' 'Server:'; return 200 a; }
         location /if { more_set_headers 'X-If: out'; if ($arg_a) { more_set_headers 'X-If: in'; } return 200 a; }",
    );
    let a = s.get("/a");
    assert_eq!(all(&a, "X-Out"), ["loc", "added"]);
    assert_eq!((all(&a, "X-Path"), all(&a, "Server")), (vec!["/a"], vec!["mine"]));
    assert_eq!(all(&a, "X-Own"), ["l"]);
    let missing = s.get("/missing");
    assert_eq!((missing.status, all(&missing, "X-Out")), (404, vec!["http"]));
    assert_eq!(all(&s.get("/twice"), "X-A"), ["2"]);
    assert_eq!(all(&s.get("/both"), "X-A"), ["1", "2"]);
    let empty = s.get("/empty");
    for name in ["X-Out", "X-Path", "Server"] {
        assert!(all(&empty, name).is_empty(), "{empty:?}");
    }
    assert_eq!(all(&s.get("/if?a=1"), "X-If"), ["in"]);
    assert_eq!(all(&s.get("/if"), "X-If"), ["out"]);
}

#[test]
fn headers_of_requests_are_set_in_an_if() {
    let s = server(
        "",
        "location /own { if ($arg_a) { more_set_input_headers 'X-In: own'; } proxy_pass http://127.0.0.1:%%PORT%%/told; }
         location /out { more_set_input_headers 'X-In: out'; if ($arg_a) { add_header A b; } proxy_pass http://127.0.0.1:%%PORT%%/told; }
         location = /told { return 200 $http_x_in; }",
    );
    assert_eq!((s.get("/own?a=1").body(), s.get("/own").body()), ("own".into(), "".into()));
    assert_eq!((s.get("/out?a=1").body(), s.get("/out").body()), ("out".into(), "out".into()));
}

#[test]
fn headers_are_set_for_some_statuses_and_types() {
    let s = server(
        "",
        "location / { more_set_headers -s '404 403' -t 'text/html text/x' 'X-Not: y';
                      more_set_headers -t text/html 'X-Html: y'; }",
    );
    s.dir().write("a.html", "a");
    s.dir().write("a.txt", "a");
    for (path, not, html) in [("/a.html", 0, 1), ("/a.txt", 0, 0), ("/none", 1, 1)] {
        let answer = s.get(path);
        assert_eq!(
            (all(&answer, "X-Not").len(), all(&answer, "X-Html").len()),
            (not, html),
            "{path}"
        );
    }
}

#[test]
fn headers_with_a_meaning_keep_it() {
    let s = server(
        "",
        "location /type { more_set_headers 'Content-Type: text/html; charset=utf-8'; return 200 a; }
         location /dates { more_set_headers 'Last-Modified: Sat, 01 Jan 2000 00:00:00 GMT' 'ETag: \"x\"'; return 200 a; }
         location /odd { more_set_headers 'Last-Modified: foo' 'Location: /x'; return 200 a; }
         location /gone { more_clear_headers 'A-*' Content-Type Server Date 'X-One: any';
                          more_clear_headers Last-Modified ETag; }",
    );
    s.dir().write("gone/a", "a");
    assert_eq!(all(&s.get("/type"), "Content-Type"), ["text/html; charset=utf-8"]);
    let dates = s.get("/dates");
    assert_eq!(all(&dates, "Last-Modified"), ["Sat, 01 Jan 2000 00:00:00 GMT"]);
    assert_eq!(all(&dates, "ETag"), ["\"x\""]);
    let odd = s.get("/odd");
    assert_eq!(all(&odd, "Last-Modified"), ["foo"]);
    assert!(all(&odd, "Location")[0].ends_with("/x"), "{odd:?}");
    let gone = s.get("/gone/a");
    for name in ["Content-Type", "Server", "Date", "Last-Modified", "ETag"] {
        assert!(all(&gone, name).is_empty(), "{name}: {gone:?}");
    }
    assert_eq!((all(&gone, "Accept-Ranges"), gone.body()), (vec!["bytes"], "a".to_owned()));
}

#[test]
fn what_a_server_sent_is_replaced_and_removed() {
    let s = server(
        "",
        "location /from { add_header X-One 1; add_header X-Two 2; add_header X-Two 3; expires 1d; return 200 a; }
         location /via { proxy_pass http://127.0.0.1:%%PORT%%/from;
                         more_set_headers 'x-one: new' 'Cache-Control: no-store'; more_clear_headers 'X-T*' Expires; }",
    );
    let via = s.get("/via");
    assert_eq!((all(&via, "X-One"), all(&via, "Cache-Control")), (vec!["new"], vec!["no-store"]));
    assert!(all(&via, "X-Two").is_empty() && all(&via, "Expires").is_empty(), "{via:?}");
}

#[test]
fn headers_of_requests_are_changed_behind_rewrite() {
    let s = server(
        "",
        "location /seen { return 200 \"$http_x_i|$http_x_j|$http_x_k1|$http_user_agent|$http_host\"; }
         location /set { more_set_input_headers 'X-I: in $arg_a' 'Host: other' 'User-Agent:';
                         proxy_set_header Host $http_host; proxy_pass http://127.0.0.1:%%PORT%%/seen; }
         location /replace { more_set_input_headers -r 'X-I: new' 'X-J: new'; more_clear_input_headers 'X-K*';
                             proxy_pass http://127.0.0.1:%%PORT%%/seen; proxy_set_header Host h; }
         location /typed { more_set_input_headers -t 'text/plain' 'X-I: plain'; proxy_set_header Host h;
                           proxy_pass http://127.0.0.1:%%PORT%%/seen; }
         location /if { proxy_set_header Host h;
                        if ($arg_a) { more_set_input_headers 'X-I: in if'; rewrite ^ /seen break; proxy_pass http://127.0.0.1:%%PORT%%; } }
         location /early { more_set_input_headers 'X-I: late'; return 200 \"$http_x_i\"; }",
    );
    let ask = |path: &str, headers: &str| s.ask(&format!("GET {path}"), headers, "").body();
    assert_eq!(ask("/set?a=b", "User-Agent: me\r\n"), "in b||||other");
    assert_eq!(ask("/replace", "X-I: 1\r\nX-I: 2\r\nX-K1: k\r\n"), "new||||h");
    assert_eq!(ask("/typed", "Content-Type: text/plain; charset=x\r\n"), "plain||||h");
    assert_eq!(ask("/typed", "Content-Type: text/plai\r\n"), "||||h");
    assert_eq!(ask("/if?a=b", ""), "in if||||h");
    // `return` has answered before.
    assert_eq!(ask("/early", ""), "");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (line, why) in [
        ("more_set_headers -x 'A: b';", "invalid option name \"-x\""),
        ("more_set_headers -t;", "option -t takes an argument"),
        ("more_set_headers -s abc 'A: b';", "invalid status \"abc\""),
        ("more_set_input_headers -s 404 'A: b';", "invalid option name \"-s\""),
        ("more_clear_headers -r A;", "invalid option name \"-r\""),
        ("more_set_headers ': b';", "invalid header name in \": b\""),
        ("more_set_headers 'a b: c';", "invalid header name in \"a b: c\""),
        ("more_set_headers 'A: $';", "invalid variable name"),
    ] {
        let said = refused(line);
        assert!(said.contains(why), "{line}: {said}");
    }
}

#[test]
fn the_example_of_the_page_works() {
    let page = include_str!("../../docs/modules.md");
    let example = examples(page).next().unwrap();
    let http = example.replace("8080", "%%PORT%%").replace("8081", "%%PORT1%%");
    let origin = "server { listen 127.0.0.1:%%PORT1%%; add_header X-Powered-By it;
        location / { default_type text/html; return 200 \"$http_x_seen_by|$http_accept_encoding\"; }
        location /gone { return 410; } }";
    let at = http.rfind('}').unwrap();
    let s = Server::start(WEIR, &format!("{}{origin} }}", &http[..at]));
    let answer = s.ask("GET /?robots=noindex", "Accept-Encoding: gzip\r\n", "");
    assert_eq!(answer.body(), "weir|");
    assert_eq!(all(&answer, "X-Robots-Tag"), ["noindex"]);
    assert_eq!(all(&answer, "X-Frame-Options"), ["DENY"]);
    assert!(all(&answer, "Server").is_empty() && all(&answer, "X-Powered-By").is_empty());
    assert_eq!(all(&s.get("/gone"), "Cache-Control"), ["no-store"]);
}
