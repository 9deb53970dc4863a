//! Requests passed to other servers: what they are asked, what clients get, and what happens when a server or
//! a client fails in the middle.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use weir_testkit::{Dir, Server};

use talk::{echo, name_server, upstream};

mod answers;
mod behind;
mod bodies;
mod failures;
mod redirects;
mod talk;
mod tunnels;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A server with `http` in its `http` block and `locations` in its one server.
fn start(http: &str, locations: &str) -> Server {
    Server::with_locations(Dir::new(), WEIR, http, locations)
}

/// A loop that has all connections it may have would wait for its own answer, as long as `proxy_read_timeout`.
#[test]
fn a_proxy_to_itself_ends_at_worker_connections() {
    let server = Server::start(
        WEIR,
        "events { worker_connections 32; } http {
             upstream itself { server 127.0.0.1:%%PORT%% max_fails=1; }
             server { listen 127.0.0.1:%%PORT%%; location = /ok { return 200; }
                 location / { proxy_pass http://itself; } location = /via { proxy_pass http://itself/ok; } } }",
    );
    for _ in 0..3 {
        // As in nginx: what this process lacks is its own failure, and is passed on from hop to hop.
        assert_eq!(server.get("/round").status, 500);
        assert_eq!(server.get("/via").status, 200, "the server is not to blame");
    }
    let text = "32 worker_connections are not enough while connecting to upstream, client: ";
    server.wait_log(text, 3);
}

/// In absolute form a path may be missing (RFC 9112, section 3.2.2); in origin form it may not.
#[test]
fn a_target_without_a_path_is_passed_on_with_one() {
    let locations = format!(
        "location / {{ proxy_pass http://127.0.0.1:{0}; }}
         location /from/ {{ proxy_pass http://127.0.0.1:{0}/to/; }}",
        echo()
    );
    let server = start("", &locations);
    for (target, asked) in [
        ("http://a?b=/c", "/?b=/c"),
        ("http://a", "/"),
        ("http://a/?b", "/?b"),
        ("http://a/from/?b", "/to/?b"),
    ] {
        let answer = server.ask(&format!("GET {target}"), "", "").body();
        assert!(answer.contains(&format!("\nGET {asked} HTTP/1.")), "{target}: {answer}");
    }
}

#[test]
fn idle_connections_to_servers_give_their_places_to_clients() {
    let ports = [echo(), echo(), echo()];
    let group = |(n, port)| format!("upstream back{n} {{ server 127.0.0.1:{port}; keepalive 8; }}");
    let groups: String = ports.iter().enumerate().map(group).collect();
    let server = Server::start(
        WEIR,
        &format!(
            "events {{ worker_connections 8; }} http {{ {groups}
                 server {{ listen 127.0.0.1:%%PORT%%; location = /ok {{ return 200; }}
                     location / {{ proxy_pass http://back$arg_n; }} }} }}"
        ),
    );
    for n in 0..ports.len() {
        assert_eq!(server.get(&format!("/?n={n}")).status, 200);
    }
    // None of them is idle: it has begun to ask.
    let clients: Vec<_> = (0..7)
        .map(|_| {
            let mut client = server.connect();
            client.send("GET /ok HTTP/1.1\r\nHost: ");
            client
        })
        .collect();
    assert_eq!(server.get("/ok").status, 200);
    for mut client in clients {
        assert_eq!(client.send("a\r\n\r\n").response().status, 200);
    }
    server.wait_log("8 worker_connections are not enough, reusing connections", 1);
}

#[test]
fn servers_are_asked_what_the_configuration_says() {
    let port = echo();
    let server = start(
        "",
        &format!(
            "location /as-is/ {{ proxy_pass http://127.0.0.1:{port}; }}
             location /name/ {{ proxy_pass http://127.0.0.1:{port}/other/; }}
             location ~ ^/re/(.*) {{ proxy_pass http://127.0.0.1:{port}/$1?x; }}
             location /set/ {{
                 proxy_pass http://127.0.0.1:{port};
                 proxy_method PUT;
                 proxy_set_body body;
                 proxy_set_header Host $http_x_host;
                 proxy_set_header X-New \"new $uri\";
                 proxy_set_header Accept \"\";
                 proxy_http_version 1.0;
             }}"
        ),
    );
    let asked = |path: &str| server.get(path).body().lines().nth(1).unwrap_or("").to_owned();
    assert_eq!(asked("/as-is/%61?q=1"), "GET /as-is/%61?q=1 HTTP/1.1");
    assert_eq!(asked("/name/a%20b?q"), "GET /other/a%20b?q HTTP/1.1");
    assert_eq!(asked("/re/tail"), "GET /tail?x HTTP/1.1");

    let mut client = server.connect();
    client.send("GET /set/ HTTP/1.1\r\nHost: a\r\nX-Host: b\r\nAccept: x\r\nTE: y\r\n\r\n");
    let body = client.response().body();
    assert!(body.contains("PUT /set/ HTTP/1.0\r\nHost: b\r\nX-New: new /set/\r\n"), "{body}");
    assert!(body.contains("Content-Length: 4\r\n") && body.contains("X-Host: b\r\n"), "{body}");
    assert!(!body.contains("Accept:") && !body.contains("TE:"), "{body}");
}

#[test]
fn connections_to_servers_are_kept() {
    let port = echo();
    let server = start(
        &format!("upstream u {{ server 127.0.0.1:{port}; keepalive 4; }}"),
        "location / { proxy_pass http://u; }",
    );
    for _ in 0..3 {
        assert!(server.get("/").body().starts_with("connection 0\r\n"));
    }
}

#[test]
fn a_kept_connection_that_was_closed_costs_nothing() {
    // Each connection serves one request and closes when the next one arrives.
    let port = upstream(|talk| {
        talk.head();
        let text = format!("{}", talk.number);
        talk.ok(&text);
        talk.head();
    });
    let server = start(
        &format!("upstream u {{ server 127.0.0.1:{port}; keepalive 4; }}"),
        "location / { proxy_pass http://u; }",
    );
    for n in 0..4 {
        let answer = server.get("/");
        assert_eq!((answer.status, answer.body()), (200, n.to_string()));
    }
}

#[test]
fn an_answer_is_read_ahead_of_a_slow_client() {
    const LEN: usize = 24 << 20;
    let (sender, sent): (Sender<()>, Receiver<()>) = channel();
    let sender = std::sync::Mutex::new(sender);
    let port = upstream(move |talk| {
        talk.head();
        talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {LEN}\r\n\r\n"));
        let piece: Vec<u8> = (0..65536u32).map(|i| (i % 251) as u8).collect();
        for _ in 0..LEN / piece.len() {
            talk.say(&piece);
        }
        sender.lock().unwrap().send(()).unwrap();
        talk.head();
    });
    let server = start("", &format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"));
    let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    // The server is done although the client has read nothing: most of it is in a file.
    sent.recv_timeout(weir_testkit::PATIENCE).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    let at = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(answer.len() - at, LEN);
    let right = |(i, b): (usize, &u8)| *b == (i % 65536 % 251) as u8;
    assert!(answer[at..].iter().enumerate().all(right));
}

#[test]
fn a_slow_answer_in_gzip_is_not_held_back_until_its_end() {
    let (seen, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let mut state = 1u64;
    let mut letter = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'a' + (state >> 60) as u8)
    };
    let text: String = std::iter::repeat_with(&mut letter).take(100_000).collect();
    let body = text.clone();
    let port = upstream(move |talk| {
        talk.head();
        talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
        let (first, second) = body.split_at(70_000);
        talk.say(first);
        // Nothing more before the client has seen something.
        if wait.lock().unwrap().recv().is_ok() {
            talk.say(second);
        }
    });
    let server = start(
        "gzip on; gzip_types *;",
        &format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"),
    );
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    assert!(!client.is_closed(), "nothing comes before the end");
    seen.send(()).unwrap();
    let answer = client.response();
    let mut back = String::new();
    flate2::read::GzDecoder::new(answer.bytes.as_slice()).read_to_string(&mut back).unwrap();
    assert_eq!(back, text);
}

#[test]
fn chunks_and_trailers_pass() {
    let port = upstream(|talk| {
        talk.head();
        talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n");
        talk.say("3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Sum: 5\r\n\r\n");
        talk.head();
    });
    let location =
        format!("location / {{ proxy_pass http://127.0.0.1:{port}; proxy_pass_trailers on; }}");
    let server = start("", &location);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let rest = client.rest();
    let (_, body) = rest.split_once("\r\n\r\n").unwrap();
    assert!(body.contains("abc") && body.contains("de"), "{body}");
    assert!(body.ends_with("\r\n0\r\nX-Sum: 5\r\n\r\n"), "{body}");
}

#[test]
fn bodies_go_out_whole_or_as_they_come() {
    let port = upstream(|talk| {
        let head = talk.head();
        let body = match head.contains("Transfer-Encoding: chunked") {
            true => talk.body("5\r\nhello\r\n0\r\n\r\n".len()),
            false => talk.body(5),
        };
        talk.ok(&body);
        talk.head();
    });
    let server = start(
        "",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{port}; }}
             location /now {{ proxy_pass http://127.0.0.1:{port}; proxy_request_buffering off; }}"
        ),
    );
    let ask = |path: &str| {
        let mut client = server.connect();
        client
            .send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"));
        client.send("5\r\nhello\r\n0\r\n\r\n");
        client.response().body()
    };
    assert_eq!(ask("/"), "hello");
    assert!(ask("/now").contains("hello"));
}

#[test]
fn a_body_in_chunks_that_is_there_with_its_head_goes_out_with_its_length() {
    let port = upstream(|talk| {
        let head = talk.head();
        let length = head.contains("Content-Length: 5\r\n") && !head.contains("chunked");
        let body = if length { talk.body(5) } else { head };
        talk.ok(&body);
    });
    let pass = format!("proxy_pass http://127.0.0.1:{port}; proxy_request_buffering off;");
    let server = start("", &format!("location / {{ {pass} }}"));
    let mut client = server.connect();
    client.send(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
         2\r\nhe\r\n3;x\r\nllo\r\n0\r\n\r\n",
    );
    assert_eq!(client.response().body(), "hello");
}

#[test]
fn a_status_line_without_words_is_passed_on_as_it_is() {
    let port = upstream(|talk| {
        talk.head();
        talk.say("HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n");
    });
    let server = start("", &format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"));
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(client.rest().starts_with("HTTP/1.1 404\r\n"));
}

#[test]
fn codings_in_several_lines_are_all_named() {
    let port = upstream(|talk| {
        talk.head();
        let codings = "Content-Encoding:\r\nContent-Encoding: br\r\nContent-Encoding: gzip\r\n";
        talk.say(format!("HTTP/1.1 200 OK\r\n{codings}Content-Length: 2\r\n\r\nxx"));
    });
    let location = format!("location / {{ gunzip on; proxy_pass http://127.0.0.1:{port}; }}");
    let r = start("", &location).get("/");
    let codings = r.headers.iter().filter(|(name, _)| name == "Content-Encoding");
    let codings: Vec<&str> = codings.map(|(_, value)| value.as_str()).collect();
    assert_eq!((codings, r.body().as_str()), (vec!["br, gzip"], "xx"));
}

#[test]
fn a_body_on_its_way_takes_the_time_that_its_client_takes() {
    let port = upstream(|talk| {
        talk.head();
        let body = talk.body(5);
        talk.ok(&body);
    });
    let silent = upstream(|talk| {
        talk.head();
        talk.head();
    });
    let server = start(
        "proxy_connect_timeout 50ms; proxy_send_timeout 50ms; proxy_read_timeout 200ms;",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{port}; proxy_request_buffering off; }}
             location /later {{ proxy_pass http://127.0.0.1:{silent}; }}"
        ),
    );
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe");
    // The times of connecting, sending and reading pass, and only the client is waited for.
    for _ in 0..2 {
        assert_eq!(server.get("/later").status, 504);
    }
    client.send("llo");
    assert_eq!(client.response().body(), "hello");
}

#[test]
fn what_a_slow_client_does_not_take_goes_into_a_file() {
    const LEN: usize = 16 << 20;
    let (sent, all_sent) = std::sync::mpsc::channel();
    let port = upstream(move |talk| {
        talk.head();
        talk.ok(&"x".repeat(LEN));
        let _ = sent.send(());
        talk.head();
    });
    let server = start("", &format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"));
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    // The client takes nothing before the file has what sockets do not hold.
    all_sent.recv().unwrap();
    assert_eq!(client.response().bytes.len(), LEN);
    server.wait_log("[warn]", 1);
    let log = server.log();
    assert_eq!(log.matches("an upstream response is buffered to a temporary file ").count(), 1);
    assert!(log.contains("/proxy_temp/") && log.contains(" while reading upstream, "), "{log}");
}

#[test]
fn servers_behind_unix_sockets() {
    let dir = Dir::new();
    let path = dir.file("up.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut buf = [0; 1024];
            let n = stream.read(&mut buf).unwrap();
            let host = String::from_utf8_lossy(&buf[..n]).contains("Host: localhost\r\n");
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{host:5}");
        }
    });
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&path, mode).unwrap();
    let location = format!("location / {{ proxy_pass http://unix:{}:/; }}", path.display());
    let server = Server::with_locations(dir, WEIR, "", &location);
    assert_eq!(server.get("/").body(), "true ");
}

#[test]
fn names_are_resolved_while_requests_are_served() {
    let (port, dns) = (echo(), name_server());
    let server = start(
        &format!("resolver 127.0.0.1:{dns}; resolver_timeout 5s;"),
        &format!("location / {{ proxy_pass http://$arg_h:{port}; }}"),
    );
    for _ in 0..2 {
        let answer = server.get("/?h=up.test");
        assert_eq!(answer.status, 200);
        assert!(answer.body().contains(&format!("Host: up.test:{port}\r\n")));
    }
    assert_eq!(server.get("/?h=other.test").status, 502);
    server.wait_log("other.test could not be resolved (3: Host not found)", 1);
}

#[test]
fn a_line_without_a_value_is_passed_on_as_one() {
    let port = upstream(|talk| {
        talk.head();
        talk.say("HTTP/1.1 200 OK\r\nServer:\r\nDate:\r\nContent-Length: 0\r\n\r\n");
    });
    let pass = format!("proxy_pass http://127.0.0.1:{port};");
    let server = start(
        "",
        &format!(
            "location / {{ {pass} }}
             location /passed {{ {pass} proxy_pass_header Server; proxy_pass_header Date; }}"
        ),
    );
    let answer = server.get("/passed");
    assert_eq!((answer.header("Server"), answer.header("Date")), (Some(""), Some("")));
    let answer = server.get("/");
    assert!(answer.header("Server").is_some_and(|name| name.starts_with("weir")));
    assert!(answer.header("Date").is_some_and(|date| !date.is_empty()));
}

#[test]
fn no_content_keeps_the_length_that_the_server_said() {
    let port = upstream(|talk| {
        let length = if talk.head().contains("/said") { "Content-Length: 0\r\n" } else { "" };
        talk.say(format!("HTTP/1.1 204 No\r\nCache-Control: max-age=60\r\n{length}\r\n"));
    });
    let server = start(
        "proxy_cache_path %%DIR%%/cache keys_zone=c:1m;",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{port}; }}
             location /kept/ {{ proxy_cache c; proxy_pass http://127.0.0.1:{port}; }}
             location /own {{ return 204; }}"
        ),
    );
    for (path, length) in [("/said", Some("0")), ("/", None), ("/own", None)] {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.header("Content-Length")), (204, length), "{path}");
    }
    for (path, length) in [("/kept/said", Some("0")), ("/kept/not", None)] {
        for _ in 0..2 {
            let answer = server.get(path);
            assert_eq!((answer.status, answer.header("Content-Length")), (204, length), "{path}");
        }
    }
}
