//! FastCGI, spoken with a server of the tests' own.

use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

use weir_testkit::fastcgi::{END, FastcgiRequest, STDERR, STDOUT, answer, record, request, say};
use weir_testkit::{PATIENCE, listen};

use crate::start;

/// A server that answers each request of a connection with what `serve` says; its port.
fn server(serve: impl Fn(&FastcgiRequest) -> Vec<u8> + Send + Sync + 'static) -> u16 {
    listen(move |mut stream: TcpStream| {
        while let Some(asked) = request(&mut stream) {
            if !say(&mut stream, &serve(&asked)) || !asked.keep {
                return;
            }
        }
    })
}

/// A server that tells what it was asked.
fn echo() -> u16 {
    server(|asked| {
        let mut text = format!("Content-Type: text/plain\r\n\r\nkeep={}\n", asked.keep);
        for (name, value) in &asked.params {
            text += &format!("{name}={value}\n");
        }
        let body = String::from_utf8_lossy(&asked.body).into_owned();
        answer(&format!("{text}body={body}\n"))
    })
}

#[test]
fn parameters_are_those_of_the_configuration_and_the_clients_headers() {
    let server = start(
        "fastcgi_param A $uri; fastcgi_param EMPTY ''; fastcgi_param LEFT $arg_x if_not_empty;",
        &format!(
            "location / {{ fastcgi_pass 127.0.0.1:{port}; }}
             location /own {{ fastcgi_pass 127.0.0.1:{port}; fastcgi_pass_request_headers off;
                 fastcgi_pass_request_body off; fastcgi_param B b; fastcgi_param HTTP_HOST h; }}
             location /less {{ fastcgi_pass 127.0.0.1:{port}; fastcgi_param HTTP_X_GONE '';
                 fastcgi_param HTTP_X_SET set; }}",
            port = echo()
        ),
    );
    let headers = "X-One: 1\r\nX-Many: a\r\nx-many: b\r\nCookie: c=1\r\nCookie: d=2\r\n\
                   X-Gone: 1\r\nX-Set: 1\r\nContent-Length: 4\r\n";
    let said = server.ask("POST /a%20b", headers, "body");
    assert_eq!(said.header("Content-Type"), Some("text/plain"));
    assert!(said.header("Server").is_some_and(|name| name.starts_with("weir")), "{said:?}");
    let expected = "keep=false\nA=/a b\nEMPTY=\nHTTP_CONTENT_LENGTH=4\nHTTP_COOKIE=c=1; d=2\n\
                    HTTP_HOST=localhost\nHTTP_X_GONE=1\nHTTP_X_MANY=a, b\nHTTP_X_ONE=1\n\
                    HTTP_X_SET=1\nbody=body\n";
    assert_eq!(said.body(), expected);
    let said = server.ask("POST /own?x=1", headers, "body");
    assert_eq!(said.body(), "keep=false\nB=b\nHTTP_HOST=h\nbody=\n");
    let said = server.ask("GET /less", "X-Gone: 1\r\nX-Set: 1\r\n", "");
    assert_eq!(said.body(), "keep=false\nHTTP_HOST=localhost\nHTTP_X_SET=set\nbody=\n");
}

#[test]
fn a_path_is_a_scripts_name_and_the_rest() {
    let server = start(
        "fastcgi_param N $fastcgi_script_name; fastcgi_param P $fastcgi_path_info;
         fastcgi_index index.php;",
        &format!(
            "location / {{ fastcgi_pass 127.0.0.1:{port}; }}
             location /split {{ fastcgi_pass 127.0.0.1:{port};
                 fastcgi_split_path_info ^(.+?\\.php)(/.*)$; }}",
            port = echo()
        ),
    );
    let names = |path: &str| {
        let body = server.get(path).body();
        let lines: Vec<_> = body.lines().filter(|l| l.starts_with(['N', 'P'])).collect();
        lines.join(" ")
    };
    assert_eq!(names("/x.php/y"), "N=/x.php/y P=");
    assert_eq!(names("/dir/"), "N=/dir/index.php P=");
    assert_eq!(names("/split/x.php/y/z.php"), "N=/split/x.php P=/y/z.php");
    assert_eq!(names("/split/x"), "N=/split/x P=");
}

#[test]
fn an_answer_may_come_in_any_pieces() {
    let port = listen(|mut stream| {
        let _ = stream.set_nodelay(true);
        while request(&mut stream).is_some() {
            let all = [
                record(STDERR, b"PHP Notice: first\n", 3),
                record(STDOUT, b"Status: 404 No such", 7),
                record(STDOUT, b" script\r\nX-A: b\r", 0),
                record(STDOUT, b"\n\r\nhel", 1),
                record(STDERR, b"PHP Notice: second", 0),
                record(STDOUT, b"lo", 255),
                record(STDOUT, b"", 8),
                record(END, &[0; 8], 8),
            ];
            for byte in all.concat() {
                if !say(&mut stream, &[byte]) {
                    return;
                }
            }
        }
    });
    let locations = format!(
        "location / {{ fastcgi_pass 127.0.0.1:{port}; }}
         location /kept {{ fastcgi_pass u; fastcgi_keep_conn on; fastcgi_buffering off; }}"
    );
    let group = format!("upstream u {{ server 127.0.0.1:{port}; keepalive 1; }}");
    let server = start(&group, &locations);
    for path in ["/", "/kept", "/kept"] {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.0\r\n\r\n"));
        let said = client.rest();
        assert!(said.starts_with("HTTP/1.1 404 No such script\r\n"), "{said}");
        assert!(said.contains("\r\nX-A: b\r\n") && !said.contains("Status:"), "{said}");
        assert!(said.ends_with("\r\n\r\nhello"), "{said}");
    }
    server
        .wait_log("FastCGI sent in stderr: \"PHP Notice: first\" while reading response header", 3);
    server.wait_log("FastCGI sent in stderr: \"PHP Notice: second\" while reading", 3);
}

#[test]
fn a_connection_is_kept_for_the_next_request() {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    let port = listen(|mut stream| {
        let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        while let Some(asked) = request(&mut stream) {
            let length = if asked.params["URI"] == "/empty" { "Content-Length: 0\r\n" } else { "" };
            say(&mut stream, &answer(&format!("{length}X-Number: {number}\r\n\r\n")));
        }
    });
    let server = start(
        &format!("upstream u {{ server 127.0.0.1:{port}; keepalive 4; }}"),
        "fastcgi_param URI $uri; fastcgi_keep_conn on; location / { fastcgi_pass u; }",
    );
    for path in ["/", "/empty", "/", "/other", "/empty", "/"] {
        assert_eq!(server.get(path).header("X-Number"), Some("0"), "{path}");
    }
}

/// What a server that lies says, whether it closes then, the status that the client gets, and the line of the log.
const LIES: &[(&str, Lie, bool, u16, &str)] = &[
    (
        "/http",
        || b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
        true,
        502,
        "unsupported FastCGI protocol version: 72",
    ),
    ("/type", || record(9, b"x", 0), true, 502, "invalid FastCGI record type: 9"),
    (
        "/id",
        || vec![1, 6, 0, 7, 0, 0, 0, 0],
        true,
        502,
        "unexpected FastCGI request id low byte: 7",
    ),
    (
        "/id2",
        || vec![1, 6, 7, 1, 0, 0, 0, 0],
        true,
        502,
        "unexpected FastCGI request id high byte: 7",
    ),
    (
        "/nothing",
        Vec::new,
        true,
        502,
        "upstream prematurely closed connection while reading response header",
    ),
    (
        "/closed",
        || record(STDOUT, b"", 0),
        false,
        502,
        "upstream prematurely closed FastCGI stdout",
    ),
    (
        "/ended",
        || record(END, &[0; 8], 0),
        false,
        502,
        "upstream sent unexpected FastCGI record: 3",
    ),
    (
        "/half",
        || record(STDOUT, b"Status: 200\r\nX-", 0),
        true,
        502,
        "upstream prematurely closed connection",
    ),
    (
        "/status",
        || answer("Status: many\r\n\r\n"),
        true,
        502,
        "upstream sent invalid status \"many\"",
    ),
    (
        "/101",
        || answer("Status: 101 Switch\r\n\r\n"),
        true,
        502,
        "upstream sent invalid status \"101\"",
    ),
    ("/header", || answer("Sta\0tus: 200\r\n\r\n"), true, 502, "upstream sent invalid header"),
    (
        "/twice",
        || answer("Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        true,
        502,
        "upstream sent duplicate header line",
    ),
    ("/endless", || record(STDOUT, &[b'a'; 60000], 0), false, 502, "upstream sent too big header"),
    (
        "/chatter",
        || record(STDERR, &[b'e'; 60000], 255).repeat(20),
        false,
        502,
        "upstream sent too much before its header",
    ),
    (
        "/after",
        || [record(STDOUT, b"", 0), record(STDOUT, b"X: y\r\n\r\n", 0)].concat(),
        false,
        502,
        "upstream sent FastCGI stdout after its end",
    ),
    // Behind a head nothing but the end of the connection can tell the client.
    (
        "/short",
        || answer("Content-Length: 9\r\n\r\nshort"),
        false,
        200,
        "upstream prematurely closed FastCGI stdout",
    ),
    (
        "/cut",
        || record(STDOUT, b"A: b\r\n\r\nbody that goes on", 0)[..30].to_vec(),
        true,
        200,
        "upstream prematurely closed connection while reading upstream",
    ),
    (
        "/garbage",
        || [record(STDOUT, b"A: b\r\n\r\nbody", 0), b"more".to_vec()].concat(),
        true,
        200,
        "unsupported FastCGI protocol version: 109",
    ),
];

type Lie = fn() -> Vec<u8>;

#[test]
fn a_server_that_lies_costs_one_request() {
    let port = listen(|mut stream| {
        let Some(asked) = request(&mut stream) else { return };
        let lie = LIES.iter().find(|(path, ..)| *path == asked.params["URI"]);
        let (_, lie, closes, ..) = lie.expect("a lie of this name");
        if say(&mut stream, &lie()) && !closes {
            // Until the other side has had enough.
            let _ = request(&mut stream);
        }
    });
    let pass = format!("fastcgi_param URI $uri; fastcgi_pass 127.0.0.1:{port};");
    let server = start("", &format!("location / {{ {pass} fastcgi_keep_conn on; }}"));
    for (path, _, _, status, line) in LIES {
        let before = server.logged(line);
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let said = client.try_response();
        match status {
            200 => assert!(said.is_err(), "{path}: a whole answer"),
            status => assert_eq!(said.expect("an answer").status, *status, "{path}"),
        }
        server.wait_log(line, before + 1);
    }
}

#[test]
fn a_server_that_is_to_keep_its_connection_says_that_the_request_is_over() {
    let port = listen(|mut stream| {
        if request(&mut stream).is_some() {
            let head = b"Cache-Control: max-age=60\r\n\r\nall of it";
            say(&mut stream, &[record(STDOUT, head, 0), record(STDOUT, b"", 0)].concat());
        }
    });
    let half = listen(|mut stream| {
        if request(&mut stream).is_some() {
            say(&mut stream, &record(STDOUT, b"\r\nhalf of it", 0));
        }
    });
    let server = start(
        "fastcgi_cache_path c keys_zone=c:1m; fastcgi_cache_key $uri;",
        &format!(
            "location / {{ fastcgi_pass 127.0.0.1:{port}; }}
             location /kept {{ fastcgi_keep_conn on; fastcgi_pass 127.0.0.1:{port}; }}
             location /cached {{ fastcgi_cache c; fastcgi_keep_conn on; fastcgi_pass 127.0.0.1:{port}; }}
             location /passed {{ fastcgi_buffering off; fastcgi_keep_conn on; fastcgi_pass 127.0.0.1:{port}; }}
             location /half {{ fastcgi_buffering off; fastcgi_keep_conn on; fastcgi_pass 127.0.0.1:{half}; }}"
        ),
    );
    const CUT: &str = "upstream prematurely closed connection while reading upstream";
    for path in ["/", "/passed"] {
        assert_eq!(server.get(path).body(), "all of it", "{path}");
    }
    assert_eq!(server.logged(CUT), 0);
    for (times, path) in (1..).zip(["/kept", "/cached", "/cached", "/half"]) {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(client.try_response().is_err(), "{path}: a whole answer");
        server.wait_log(CUT, times);
    }
}

#[test]
fn more_than_was_announced_is_left_out() {
    let port = server(|_| answer("Content-Length: 3\r\n\r\nand more"));
    let server = start("", &format!("location / {{ fastcgi_pass 127.0.0.1:{port}; }}"));
    let mut client = server.connect();
    assert_eq!((client.get("/").body(), client.get("/").body()), ("and".into(), "and".into()));
    server.wait_log("upstream sent more data than specified in \"Content-Length\" header", 2);
}

#[test]
fn what_a_server_says_in_stderr_may_fail_its_answer() {
    let bad = server(|_| {
        let said = record(STDERR, b"PHP Fatal error: Out of everything.\n", 0);
        [said, answer("Status: 200\r\n\r\nhalf a page")].concat()
    });
    let good = echo();
    let server = start(
        &format!("upstream u {{ server 127.0.0.1:{bad}; server 127.0.0.1:{good} backup; }}"),
        "location / { fastcgi_pass u; fastcgi_catch_stderr 'PHP Fatal'; fastcgi_next_upstream invalid_header; }
         location /as-it-is { fastcgi_pass u; }",
    );
    assert_eq!(server.get("/as-it-is").body(), "half a page");
    assert!(server.get("/").body().starts_with("keep=false"));
    server.wait_log("FastCGI sent in stderr: \"PHP Fatal error: Out of everything\"", 2);
}

#[test]
fn bodies_come_as_they_were_sent() {
    let port = server(|asked| {
        let sum = asked.body.iter().fold(7u64, |sum, b| sum.wrapping_mul(31) + u64::from(*b));
        answer(&format!("X-Length: {}\r\nX-Sum: {sum}\r\n\r\n", asked.body.len()))
    });
    let server = start(
        "client_max_body_size 0; client_body_buffer_size 16k;",
        &format!(
            "location / {{ fastcgi_pass 127.0.0.1:{port}; }}
             location /streamed {{ fastcgi_pass 127.0.0.1:{port}; fastcgi_request_buffering off; }}"
        ),
    );
    for length in [0usize, 1, 8, 4000, 65528, 65529, 300_001] {
        let body: String = (0..length).map(|i| char::from(b'a' + (i * i % 26) as u8)).collect();
        let sum = body.bytes().fold(7u64, |sum, b| sum.wrapping_mul(31) + u64::from(b));
        let headers = format!("Content-Length: {length}\r\n");
        let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
        let chunked = if length == 0 { "0\r\n\r\n".to_owned() } else { chunked };
        for path in ["/", "/streamed"] {
            let whole = server.ask(&format!("POST {path}"), &headers, &body);
            let pieces =
                server.ask(&format!("POST {path}"), "Transfer-Encoding: chunked\r\n", &chunked);
            for said in [whole, pieces] {
                let (got, of) = (said.header("X-Length"), said.header("X-Sum"));
                assert_eq!(got, Some(length.to_string().as_str()), "{path}");
                assert_eq!(of, Some(sum.to_string().as_str()), "{path} {length}");
            }
        }
    }
}

/// A body that came with its head has a length, although it was sent in chunks and need not be waited for.
#[test]
fn the_length_of_a_body_that_is_there_is_told() {
    let port = server(|asked| {
        let length = asked.params.get("CONTENT_LENGTH").cloned().unwrap_or_default();
        answer(&format!("X-Length: {length}\r\n\r\n"))
    });
    let server = start(
        "fastcgi_param CONTENT_LENGTH $content_length;",
        &format!("location / {{ fastcgi_pass 127.0.0.1:{port}; fastcgi_request_buffering off; }}"),
    );
    let mut client = server.connect();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send(format!("{head}4\r\nbody\r\n1\r\n!\r\n0\r\n\r\n"));
    assert_eq!(client.response().header("X-Length"), Some("5"));
}

/// The log tells of a client that leaves within its body. No page is made for it, since it asked
/// for none.
#[test]
fn a_client_that_leaves_within_its_body_gets_no_page() {
    let server = start(
        "log_format l '$uri $status $body_bytes_sent|'; access_log %%DIR%%/log l;",
        "location / { fastcgi_pass 127.0.0.1:1; error_page 400 502 /page; }
         location = /page { return 200 page; }",
    );
    let mut client = server.connect();
    client.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nbody");
    drop(client);
    server.wait_file("log", "/x 400 0|", 1);
}

#[test]
fn answers_are_kept_and_asked_for_again() {
    let port = server(|asked| {
        if asked.params.get("HTTP_IF_NONE_MATCH").is_some_and(|tag| tag == "\"1\"") {
            return answer("Status: 304 Not Modified\r\nETag: \"1\"\r\n\r\n");
        }
        let range = asked.params.contains_key("HTTP_RANGE");
        let said = record(STDERR, b"noise before the head", 5);
        let page = format!("ETag: \"1\"\r\nX-Range: {range}\r\n\r\na page");
        [said, answer(&page)].concat()
    });
    let server = start(
        "fastcgi_cache_path %%DIR%%/cache keys_zone=c:1m; fastcgi_cache_key $uri;
         add_header X-Cache $upstream_cache_status;",
        &format!(
            "location / {{ fastcgi_pass 127.0.0.1:{port}; fastcgi_cache c; fastcgi_cache_valid 1h; }}
             location /old {{ fastcgi_pass 127.0.0.1:{port}; fastcgi_cache c; fastcgi_cache_valid 1s;
                 fastcgi_cache_revalidate on; }}"
        ),
    );
    let of = |path: &str, headers: &str| {
        let said = server.ask(&format!("GET {path}"), headers, "");
        let head = |name| said.header(name).unwrap_or("-").to_owned();
        (said.status, head("X-Cache"), head("X-Range"), said.body())
    };
    let page = |cache: &str| (200, cache.to_owned(), "false".to_owned(), "a page".to_owned());
    assert_eq!(of("/", "Range: bytes=0-0\r\n"), page("MISS"));
    assert_eq!(of("/", ""), page("HIT"));
    assert_eq!(of("/old", ""), page("MISS"));
    let again = weir_testkit::ask_until(|| of("/old", "").1 == "REVALIDATED");
    assert!(again, "it is never asked for again");
    assert_eq!(of("/old", "").3, "a page");
}

#[test]
fn what_an_answer_asks_for_is_done() {
    let port = server(|asked| match asked.params["URI"].as_str() {
        "/inside" => answer("X-Accel-Redirect: /page\r\nSet-Cookie: a=b\r\n\r\n"),
        "/away" => answer("Location: https://example.org/\r\n\r\n"),
        _ => answer("Status: 503\r\n\r\nout of order"),
    });
    let server = start(
        "fastcgi_param URI $uri;",
        &format!(
            "location / {{ fastcgi_pass 127.0.0.1:{port}; }}
             location /page {{ return 200 'the page'; }}
             location /broken {{ fastcgi_pass 127.0.0.1:{port}; fastcgi_intercept_errors on;
                 error_page 503 =200 /page; }}"
        ),
    );
    let inside = server.get("/inside");
    assert_eq!((inside.body(), inside.header("Set-Cookie")), ("the page".into(), Some("a=b")));
    let away = server.get("/away");
    assert_eq!((away.status, away.header("Location")), (302, Some("https://example.org/")));
    assert_eq!(server.get("/broken").body(), "the page");
    assert_eq!(server.get("/other").status, 503);
}

/// A script that works on behind its output keeps no client waiting: neither its records nor an announced length wait for
/// the end of its request.
#[test]
fn records_of_a_kept_connection_go_out_as_they_come() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let port = listen(move |mut stream| {
        let wait = wait.lock().unwrap_or_else(PoisonError::into_inner);
        while request(&mut stream).is_some() {
            say(&mut stream, &record(STDOUT, b"Content-Length: 13\r\n\r\nfirst\n", 0));
            let _ = wait.recv_timeout(PATIENCE);
            say(&mut stream, &record(STDOUT, b"second\n", 0));
            let _ = wait.recv_timeout(PATIENCE);
            say(&mut stream, &answer(""));
        }
    });
    let server = start(
        "fastcgi_keep_conn on; fastcgi_cache_path %%DIR%%/cache keys_zone=c:1m;",
        &format!(
            "location / {{ fastcgi_pass 127.0.0.1:{port}; }}
             location /cached {{ fastcgi_pass 127.0.0.1:{port}; fastcgi_cache c; fastcgi_cache_key $uri;
                 fastcgi_cache_valid any 1m; }}"
        ),
    );
    for path in ["/", "/cached"] {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        for line in ["first", "second"] {
            while client.try_line().unwrap() != line {}
            go.send(()).unwrap();
        }
    }
}
