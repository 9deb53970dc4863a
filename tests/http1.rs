//! HTTP/1 on the wire: heads, bodies, keep-alive, and clients that break the rules.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use weir_testkit::{Client, Server};

#[path = "http1/lost.rs"]
mod lost;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const CONF: &str = "
    events { }
    http {
        client_header_timeout 60s;
        server {
            listen 127.0.0.1:%%PORT%%;
            large_client_header_buffers 2 1k;
            location / { return 200 $uri; }
            location /few/ { keepalive_requests 2; return 200 few; }
            location /small/ { client_max_body_size 10; return 200 small; }
            location /slow/ { client_body_timeout 100ms; proxy_pass http://127.0.0.1:%%PORT1%%; }
            location /none { return 444; }
            location /moved { return 301 /there; }
            location /length { return 200 $request_length; }
        }
        server {
            listen 127.0.0.1:%%PORT1%%;
            location / { return 200 $request_body; }
        }
        server {
            listen 127.0.0.1:%%PORT2%%;
            client_header_timeout 100ms;
            keepalive_timeout 100ms;
            reset_timedout_connection on;
            location / { return 200 short; }
        }
        server {
            listen 127.0.0.1:%%PORT3%%;
            client_body_early_read on;
            client_body_buffer_size 1k;
            client_body_temp_path %%DIR%%/bodies 1 2;
            client_max_body_size 1m;
            location / { return 200 $request_body; }
            location /file { return 200 $request_body_file; }
            location /kept { client_body_in_file_only on; return 200 $request_body_file; }
            location = /in-file { return 200 $request_body_file; }
        }
        server {
            listen 127.0.0.1:%%PORT4%%;
            client_body_early_read on;
            client_body_in_file_only clean;
            location / { return 200 $request_body_file; }
        }
        server {
            listen 127.0.0.1:%%PORT5%%;
            client_body_early_read on;
            client_body_buffer_size 8;
            client_max_body_size 100;
            location / { return 200 $request_length-$request_body; }
        }
    }
";

fn server() -> Server {
    Server::start(WEIR, CONF)
}

/// Sends bytes and returns everything that comes back until the server closes.
fn raw(port: u16, bytes: impl AsRef<[u8]>) -> String {
    let mut client = Client::connect(port);
    // A server may refuse before it has read everything.
    let _ = client.try_send(bytes);
    client.rest()
}

fn status(text: &str) -> &str {
    text.split(' ').nth(1).unwrap_or_default()
}

/// Blank lines before a request are not counted. They prolong no time, also if the server never has to wait for more of them.
/// These are more than it reads in a turn, and are there when it begins. Another request holds it up meanwhile.
#[test]
fn a_client_of_blank_lines_has_the_time_of_a_head() {
    let server = Server::start(
        WEIR,
        "worker_processes 1; worker_threads 1; events { }
         http { server {
             listen 127.0.0.1:%%PORT%% rcvbuf=1m;
             client_header_timeout 100ms;
             location / { return 200 late; }
             location /busy {
                 content_by_lua_block {
                     local clock = os.clock
                     local till = clock() + 0.3
                     while clock() < till do end
                 }
             }
         } }",
    );
    let lines = "\r\n".repeat(250_000);
    let asked = format!("{lines}GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let worker = server.workers()[0];
    let is_cut = || {
        server.signal_worker(worker, Signal::STOP);
        let client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        let mut other = server.connect();
        std::thread::scope(|scope| {
            scope.spawn(|| (&client).write_all(asked.as_bytes()));
            other.deliver("GET /busy HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            server.signal_worker(worker, Signal::CONT);
            let mut answer = Vec::new();
            let _ = (&client).read_to_end(&mut answer);
            other.rest();
            answer.is_empty()
        })
    };
    assert!(weir_testkit::ask_until(is_cut), "{}", server.log());
    server.wait_log("Connection timed out) while reading client request line", 1);
}

#[test]
fn requests_may_be_pipelined() {
    let server = server();
    let mut client = server.connect();
    let one = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    client.send(one("/a") + &one("/b") + &one("/c"));
    for path in ["/a", "/b", "/c"] {
        assert_eq!(client.response().body(), path);
    }
}

#[test]
fn a_head_may_come_byte_by_byte() {
    let server = server();
    let mut client = server.connect();
    for byte in b"GET /slowly HTTP/1.1\r\nHost: a\r\n\r\n" {
        client.send([*byte]);
    }
    assert_eq!(client.response().body(), "/slowly");
}

#[test]
fn connections_are_kept_as_both_sides_wish() {
    let server = server();
    let mut client = server.connect();
    assert_eq!(client.get("/few/").header("Connection"), Some("keep-alive"));
    assert_eq!(client.get("/few/").header("Connection"), Some("close"));
    assert!(client.is_closed());

    let old = raw(server.port(), "GET /a HTTP/1.0\r\n\r\n");
    assert!(old.contains("Connection: close\r\n"), "{old}");
    let mut client = server.connect();
    client.send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(client.response().header("Connection"), Some("keep-alive"));
    client.send("GET /b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(client.response().body(), "/b");
    assert!(client.is_closed());
}

/// What the server says of its connections holds for a request that is redirected from within, whatever the location says.
#[test]
fn a_redirect_from_within_ends_connections_that_the_server_does_not_keep() {
    let s = Server::start(
        WEIR,
        "events { } http { keepalive_timeout 0; server { listen 127.0.0.1:%%PORT%%; root %%DIR%%;
             location / { keepalive_timeout 5s; } location = /text { keepalive_timeout 5s; return 200; }
             location = /named { keepalive_timeout 5s; error_page 404 = @named; return 404; }
             location @named { keepalive_timeout 5s; return 200; } } }",
    );
    s.dir().write("index.html", "index");
    let kept = |path: &str| s.connect().get(path).header("Connection").map(str::to_owned);
    for (path, connection) in [
        ("/text", "keep-alive"),
        ("/named", "keep-alive"),
        ("/index.html", "keep-alive"),
        ("/", "close"),
    ] {
        assert_eq!(kept(path).as_deref(), Some(connection), "{path}");
    }
}

#[test]
fn http_09_has_no_head() {
    let server = server();
    assert_eq!(raw(server.port(), "GET /plain\r\n"), "/plain");
}

/// As nginx does.
#[test]
fn a_request_without_a_version_gets_no_head_whatever_its_method() {
    let server = server();
    for line in ["HEAD /plain", "POST /plain", "WHAT /plain ", "GET /%zz", "GET /a/../.."] {
        let answer = raw(server.port(), format!("{line}\r\n"));
        assert!(answer.starts_with("<html>\r\n<head><title>400 Bad Request<"), "{line}: {answer}");
    }
    for line in ["get /plain", "GET", "GET /a b", "GET / HTTP/0.9"] {
        assert_eq!(status(&raw(server.port(), format!("{line}\r\n"))), "400", "{line}");
    }
}

#[test]
fn what_is_no_request_is_refused() {
    let server = server();
    let long = "x".repeat(2000);
    let many = "A: b\r\n".repeat(900);
    for (request, expected) in [
        ("\x16\x03\x01\x02\r\n\r\n".to_owned(), "400"),
        ("get / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".to_owned(), "505"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n".to_owned(), "400"),
        ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "405"),
        (format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), "414"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), "400"),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), "400"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
                .to_owned(),
            "400",
        ),
    ] {
        let answer = raw(server.port(), &request);
        let shown = &request[..request.len().min(60)];
        assert_eq!(status(&answer), expected, "{shown:?}: {answer}");
        assert!(answer.contains("Connection: close\r\n"), "{shown:?}");
    }
    let text = raw(server.port(), format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"));
    assert!(text.contains("<center>Request Header Or Cookie Too Large</center>"), "{text}");
    server.wait_log("client sent too long URI while reading client request line", 1);
    server.wait_log("client sent invalid method while reading client request line", 1);
    server.wait_log("\"Host\" header while reading client request headers", 1);
}

#[test]
fn lines_with_odd_names_are_left_out_and_told_of() {
    let server = server();
    let said = server.ask("GET /", "X_Under: 1\r\nX-Well: 2\r\n", "");
    assert_eq!(said.status, 200);
    let text =
        "client sent invalid header line: \"X_Under: 1\" while reading client request headers";
    server.wait_log(text, 1);
}

#[test]
fn some_statuses_have_no_answer_or_no_page() {
    let server = server();
    assert_eq!(raw(server.port(), "GET /none HTTP/1.1\r\nHost: a\r\n\r\n"), "");
    let moved = server.get("/moved");
    let location = format!("http://localhost:{}/there", server.port());
    assert_eq!((moved.status, moved.header("Location")), (301, Some(location.as_str())));
    assert!(moved.body().contains("<center><h1>301 Moved Permanently</h1></center>"));
}

#[test]
fn bodies_are_read_and_the_next_request_is_found() {
    let server = server();
    let mut client = server.connect();
    client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(client.response().body(), "/a");
    client.send(
        "POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    assert_eq!(client.response().body(), "/b");
    let large = "y".repeat(100_000);
    client.send(format!("POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{large}"));
    assert_eq!(client.response().body(), "/c");
    assert_eq!(client.get("/d").body(), "/d");
}

/// As in nginx: what is wrong further on hides nothing.
#[test]
fn lines_with_odd_names_are_logged_of_refused_requests_too() {
    let conf = "error_log %%DIR%%/error.log info; events { }
        http { server { listen 127.0.0.1:%%PORT%%; return 204; } }";
    let server = Server::start(WEIR, conf);
    for (at, (line, rest, answer)) in [
        ("GET / HTTP/1.1", "Host: a", "204"),
        ("TRACE / HTTP/1.1", "Host: a", "405"),
        ("GET / HTTP/1.1", "Connection: close", "400"),
        ("GET / HTTP/1.1", "Host: a/b", "400"),
    ]
    .into_iter()
    .enumerate()
    {
        let head = format!("{line}\r\nX_{at}: 1\r\n{rest}\r\nConnection: close\r\n\r\n");
        assert_eq!(status(&raw(server.port(), head)), answer);
        let text = format!("client sent invalid header line: \"X_{at}: 1\" while reading client");
        server.wait_file("error.log", &text, 1);
    }
}

#[test]
fn the_log_shows_what_came_of_a_body_that_breaks_off() {
    let conf = "events { } http { log_format b '$status $request_body'; access_log %%DIR%%/b.log b;
        server { listen 127.0.0.1:%%PORT%%; client_body_timeout 100ms;
            location = /passed { proxy_pass http://127.0.0.1:%%PORT%%; } } }";
    let server = Server::start(WEIR, conf);
    let head = "POST /passed HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n";
    raw(server.port(), format!("{head}late"));
    server.wait_file("b.log", "408 late\n", 1);
    server.connect().send(format!("{head}left"));
    server.wait_file("b.log", "400 left\n", 1);
    let chunks = "POST /passed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    raw(server.port(), format!("{chunks}3\r\nabc\r\nX"));
    server.wait_file("b.log", "400 -\n", 1);
}

#[test]
fn a_broken_body_ends_the_connection() {
    let server = server();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let broken = format!("{head}4\r\ntoo much\r\n0\r\n\r\n");
    assert_eq!(status(&raw(server.port(), broken.clone())), "400");
    // A redirect is no excuse.
    assert_eq!(status(&raw(server.port(), broken.replace("POST /", "POST /moved"))), "400");
    server.wait_log("client sent invalid chunked body", 2);
}

#[test]
fn too_large_bodies_are_refused_at_once_and_on_the_way() {
    let server = server();
    let known = "POST /small/ HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n";
    assert_eq!(status(&raw(server.port(), known.to_owned() + "01234567890")), "413");
    server.wait_log("client intended to send too large body: 11 bytes", 1);
    let mut body = String::new();
    for _ in 0..17 {
        body += "10000\r\n";
        body += &"z".repeat(65_536);
        body += "\r\n";
    }
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = raw(server.port_at(3), format!("{head}{body}0\r\n\r\n"));
    assert_eq!(status(&answer), "413");
    server.wait_log("client intended to send too large chunked body", 1);
}

#[test]
fn a_chunk_that_is_too_large_is_refused_before_it_comes() {
    let server = server();
    let mut client = Client::connect(server.port_at(5));
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send("3\r\nabc\r\n62\r\n");
    assert_eq!(client.response().status, 413);
    server.wait_log("client intended to send too large chunked body: 3+98 bytes", 1);
}

#[test]
fn what_comes_with_the_head_is_counted_and_stays_beside_it() {
    let server = server();
    let body = "0123456789abcdef";
    for (more, body) in [
        ("Content-Length: 16", body.to_owned()),
        ("Transfer-Encoding: chunked", format!("10;x=y\r\n{body}\r\n0\r\n\r\n")),
    ] {
        let request =
            format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{more}\r\n\r\n{body}");
        let answer = raw(server.port_at(5), &request);
        let expected = format!("{}-0123456789abcdef", request.len());
        assert!(answer.ends_with(&expected), "{expected} is not the end of {answer}");
    }
    // What is thrown away does not count, nor does the next request.
    let pipelined = "POST /length HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    let next = "GET /length HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = raw(server.port(), format!("{pipelined}{next}"));
    assert!(answer.contains(&format!("\r\n\r\n{}HTTP", pipelined.len() - 3)), "{answer}");
    assert!(answer.ends_with(&format!("\r\n\r\n{}", next.len())), "{answer}");
}

#[test]
fn the_log_says_where_in_a_connection_a_client_failed() {
    let server = server();
    raw(server.port(), "G:T / HTTP/1.1\r\n\r\n");
    server.wait_log("client sent invalid method while reading client request line", 1);
    raw(server.port(), "GET / HTTP/1.1\r\nHost: a\r\n\r\nG:T / HTTP/1.1\r\n\r\n");
    server.wait_log("client sent invalid method while reading client pipelined request line", 1);
}

#[test]
fn a_body_is_kept_in_memory_or_in_a_file() {
    let server = server();
    let post = |port: u16, path: &str, body: &str| {
        let mut client = Client::connect(port);
        let length = body.len();
        client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
        client.send(body);
        client.response().body()
    };
    let port = server.port_at(3);
    assert_eq!(post(port, "/", "in memory"), "in memory");
    assert_eq!(post(port, "/file", "in memory"), "");
    let large = "0123456789".repeat(500);
    // It has a name, although the file was removed when it was made.
    let name = post(port, "/file", &large);
    let directory = server.dir().file("bodies").display().to_string();
    assert!(name.starts_with(&directory) && !std::path::Path::new(&name).exists(), "{name}");
    server.wait_log("a client request body is buffered to a temporary file", 1);
    let name = post(server.port_at(4), "/", "to be cleaned");
    assert!(name.contains("client_body_temp/"), "{name}");
    let path = std::path::Path::new(&name);
    let directory = path.parent().unwrap();
    assert!(weir_testkit::until(directory, || !path.exists()));
}

#[test]
fn a_client_that_asks_is_told_to_send() {
    let server = server();
    let mut client = Client::connect(server.port_at(3));
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    assert_eq!(client.response().status, 100);
    client.send("yes");
    assert_eq!(client.response().body(), "yes");
    let refused =
        "POST /small/ HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 99\r\n\r\n";
    let mut client = server.connect();
    client.send(refused);
    assert_eq!(client.response().status, 413);
}

#[test]
fn a_client_gets_100_before_a_server_or_name_is_asked() {
    let conf = "events { } http { access_log off; server { listen 127.0.0.1:%%PORT%%; root %%DIR%%;
        location /flv { flv; } location /mp4 { mp4; } location /none { }
        location /now { proxy_pass http://127.0.0.1:1; proxy_request_buffering off; } } }";
    let server = Server::start(env!("CARGO_BIN_EXE_weir"), conf);
    let statuses = |method: &str, path: &str| {
        let head = "Host: a\r\nExpect: 100-continue\r\nConnection: close\r\n";
        let said = server.connect().send(format!("{method} {path} HTTP/1.1\r\n{head}\r\n")).rest();
        let lines = said.lines().filter_map(|line| line.strip_prefix("HTTP/1.1 "));
        lines.map(|line| line[..3].to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(statuses("GET", "/flv"), "100 404");
    assert_eq!(statuses("GET", "/mp4"), "100 404");
    assert_eq!(statuses("POST", "/mp4"), "405");
    assert_eq!(statuses("GET", "/now"), "100 502");
    assert_eq!(statuses("GET", "/none"), "404");
}

#[test]
fn clients_that_take_too_long_are_left() {
    let server = server();
    let mut client = Client::connect(server.port_at(2));
    client.send("GET / HTTP/1.1\r\n");
    assert!(client.is_closed());
    server.wait_log("client timed out (110: Connection timed out)", 1);
    let mut client = Client::connect(server.port_at(2));
    assert_eq!(client.get("/").body(), "short");
    assert!(client.is_closed());
    let mut client = server.connect();
    client.send("POST /slow/ HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab");
    assert!(client.is_closed());
}

#[test]
fn a_request_that_was_begun_is_counted() {
    let conf = "events { } http {
        log_format l '$status $connection_requests.'; access_log %%DIR%%/seen l;
        server { listen 127.0.0.1:%%PORT%%; location / { stub_status; } }
    }";
    let server = Server::start(WEIR, conf);
    let begun = |bytes: &str| {
        let mut client = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        std::io::Write::write_all(&mut client, bytes.as_bytes()).unwrap();
    };
    begun("GET / HT");
    server.wait_file("seen", "400 1.", 1);
    begun("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n");
    server.wait_file("seen", "400 2.", 1);
    let page = server.get("/").body();
    let counts = page.lines().nth(2).unwrap().split_whitespace().last();
    assert_eq!(counts, Some("4"), "{page}");
}

#[test]
fn what_one_client_left_unread_is_not_read_of_the_next() {
    let server = server();
    for _ in 0..20 {
        let rest = "GET /left HTTP/1.1\r\nHost: a\r\n\r\n";
        let close = "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let mut client = server.connect();
        client.send(format!("{close}{rest}"));
        assert_eq!(client.response().body(), "/a");
        assert_eq!(server.get("/mine").body(), "/mine");
    }
}

#[test]
fn what_is_refused_of_head_has_no_page() {
    let server = server();
    let long = "x".repeat(2000);
    for (target, expected) in [("/a%00b", "400"), ("/a b", "400"), (&long, "414"), ("/..", "400")] {
        let request = format!("HEAD {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = raw(server.port(), &request);
        assert_eq!(status(&answer), expected, "{answer}");
        assert!(answer.contains("Content-Length: 1"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
    }
}
