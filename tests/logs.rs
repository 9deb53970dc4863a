//! Access logs: no line is lost or torn, whatever happens to the server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use rustix::process::Signal;
use weir_testkit::{Dir, Server, until};

#[path = "logs/errors.rs"]
mod errors;

fn server(main: &str, http: &str) -> Server {
    let conf = format!(
        "{main} events {{ }} http {{ log_format line '$uri $arg_n $status';
         server {{ listen 127.0.0.1:%%PORT%%; root %%DIR%%; {http} }} }}"
    );
    Server::start(env!("CARGO_BIN_EXE_weir"), &conf)
}

/// Waits until a log has so many lines.
fn wait_lines(s: &Server, name: &str, lines: usize) -> String {
    let path = s.dir().file(name);
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    let dir = path.parent().unwrap_or(Path::new("/"));
    assert!(until(dir, || read().lines().count() >= lines), "{name}: {}", read());
    read()
}

#[test]
fn a_line_follows_its_answer() {
    let s = server(
        "",
        "location / { access_log %%DIR%%/a.log line; access_log %%DIR%%/j.log format=json;
             return 200 ok; }
         location /some { access_log %%DIR%%/some.log line if=$arg_log; return 200 ok; }
         location /off { access_log off; return 200 ok; }",
    );
    s.get("/off");
    s.get("/x?n=1");
    assert_eq!(wait_lines(&s, "a.log", 1), "/x 1 200\n");
    let json = wait_lines(&s, "j.log", 1);
    assert!(json.starts_with('{') && json.contains("\"uri\":\"/x?n=1\"") && json.ends_with("}\n"));
    s.get("/some");
    s.get("/some?log=0");
    s.get("/some?log=1");
    assert_eq!(wait_lines(&s, "some.log", 1), "/some - 200\n");
}

/// As in nginx: the main log says why, and a request's log that its line is lost.
#[test]
fn a_line_that_a_syslog_server_does_not_take_is_told_of() {
    let conf = "error_log %%DIR%%/error.log info; events { }
         http { access_log syslog:server=unix:%%DIR%%/http,tag=x;
             server { listen 127.0.0.1:%%PORT%%; location / { return 200 ok; } } }
         stream { log_format l $status; access_log syslog:server=unix:%%DIR%%/stream,tag=x l;
             server { listen 127.0.0.1:%%PORT1%%; return ok; } }";
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), conf);
    let why = "connect() failed (2: No such file or directory) while logging to syslog, server: ";
    let dir = s.dir().path().display().to_string();
    let before = s.log().matches("send() to syslog").count();
    s.get("/");
    s.wait_log("send() to syslog failed while logging request, client: 127.0.0.1", before + 1);
    s.wait_log(&format!("{why}unix:{dir}/http"), 1);
    let mut client = TcpStream::connect(("127.0.0.1", s.port_at(1))).unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    s.wait_log(&format!("{why}unix:{dir}/stream"), 1);
}

/// What a client took before it left is what the log says, however it was sent.
#[test]
fn of_a_download_that_breaks_off_the_part_that_went_counts() {
    const SIZE: u64 = 1 << 30;
    let conf =
        "events { } http { log_format sent '$server_port $status $bytes_sent $body_bytes_sent';
         access_log %%DIR%%/sent.log sent; root %%DIR%%; proxy_buffering off;
         server { listen 127.0.0.1:%%PORT%%;
             location /on { sendfile on; alias %%DIR%%/large; }
             location /off { sendfile off; alias %%DIR%%/large; }
             location /limited { limit_rate 4m; alias %%DIR%%/large; }
             location /proxied { proxy_pass http://127.0.0.1:%%PORT1%%/large; }
             location /over_http2 { proxy_pass http://127.0.0.1:%%PORT1%%/large;
                 proxy_http_version 2; }
             location /limited_http2 { proxy_pass http://127.0.0.1:%%PORT2%%/large;
                 proxy_http_version 2; } }
         server { listen 127.0.0.1:%%PORT1%%; http2 on; }
         server { listen 127.0.0.1:%%PORT2%%; http2 on; limit_rate 4m; } }";
    let dir = Dir::new();
    std::fs::File::create(dir.file("large")).unwrap().set_len(SIZE).unwrap();
    let s = Server::start_in(dir, env!("CARGO_BIN_EXE_weir"), conf);
    let mut seen = 0;
    for (path, lines) in [
        ("on", 1),
        ("off", 1),
        ("limited", 1),
        ("proxied", 2),
        ("over_http2", 2),
        ("limited_http2", 2),
    ] {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", s.port())).unwrap();
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        // More than there is room for between the two: the server waits for its client meanwhile.
        let took = 2 << 20;
        let mut taken = stream.take(took);
        std::io::copy(&mut taken, &mut std::io::sink()).unwrap();
        drop(taken);
        let log = wait_lines(&s, "sent.log", seen + lines);
        for line in log.lines().skip(seen) {
            let figures: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            let (sent, body) = (figures[2], figures[3]);
            assert_eq!(figures[1], 200, "{path}: {line}");
            assert!(sent >= took && sent < SIZE, "{path}: {line}");
            assert!(body < sent && body + 1024 * 1024 > sent, "{path}: {line}");
        }
        seen += lines;
    }
}

/// As in nginx, and there is no limit, or it holds from the beginning.
#[test]
fn a_rate_that_is_no_size_is_logged() {
    let conf = "events { } http { server { listen 127.0.0.1:%%PORT%%;
         location /limited { limit_rate $arg_rate; return 200 text; }
         location /late { limit_rate 1m; limit_rate_after $arg_rate; return 200 text; }
         location /proxied { proxy_limit_rate $arg_rate; proxy_pass http://127.0.0.1:%%PORT%%/plain; }
         location /plain { return 200 text; } } }";
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), conf);
    for (path, rate) in [
        ("limited", "bad"),
        ("proxied", "worse"),
        ("late", "poor"),
        ("late", "1"),
        ("limited", "1m"),
    ] {
        assert_eq!(s.get(&format!("/{path}?rate={rate}")).body(), "text");
    }
    s.wait_log("invalid size \"bad\", client: 127.0.0.1", 1);
    s.wait_log("invalid size \"worse\", client: 127.0.0.1", 1);
    s.wait_log("invalid size \"poor\", client: 127.0.0.1", 1);
    assert_eq!(s.log().matches("invalid size").count(), 3);
}

#[test]
fn a_line_that_is_cut_names_the_error_of_the_system() {
    let conf = "events { } http { access_log off; large_client_header_buffers 4 16k;
         server { listen 127.0.0.1:%%PORT%%; root %%DIR%%; } }";
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), conf);
    let path = format!("/{}", "long/".repeat(600));
    assert_eq!(s.get(&path).status, 404);
    s.wait_log("...(2: No such file or directory), client: 127.0.0.1", 1);
}

#[test]
fn what_is_not_there_is_a_dash_and_a_location_is_as_it_was_sent() {
    let conf = "events { } http { log_format line '$uri|$args|$query_string|$sent_http_location';
         server { listen 127.0.0.1:%%PORT%%; server_name s; access_log %%DIR%%/a.log line;
             location / { return 204; } location /to { return 301 /there; } } }";
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), conf);
    for path in ["/x", "/x?", "/x?a", "/to"] {
        s.get(path);
    }
    let lines = wait_lines(&s, "a.log", 4);
    let to = format!("/to|-|-|http://localhost:{}/there\n", s.port());
    assert_eq!(lines, format!("/x|-|-|-\n/x|-|-|-\n/x|a|a|-\n{to}"));
}

#[test]
fn arguments_that_a_change_of_the_path_makes_empty_are_no_dash() {
    let s = server(
        "",
        "access_log %%DIR%%/a.log args;
         location / { return 200 ok; }
         location /try { try_files /none /to; }
         location /rewrite { rewrite ^ /to? last; }
         location /page { error_page 404 /to?; return 404; }
         location /plain { error_page 404 /to; return 404; } }
         log_format args '$request_uri $uri $args';
         server { listen 127.0.0.1:%%PORT1%%;",
    );
    for path in ["/try", "/rewrite", "/rewrite?a", "/page", "/plain?a"] {
        s.get(path);
    }
    let lines = wait_lines(&s, "a.log", 5);
    assert_eq!(lines, "/try /to \n/rewrite /to -\n/rewrite?a /to \n/page /to \n/plain?a /to -\n");
}

#[test]
fn a_line_is_there_when_its_connection_ends() {
    let s = server("", "access_log %%DIR%%/a.log line; location / { return 200 ok; }");
    for n in 1..=100 {
        let mut client = s.connect();
        client.send(format!("GET /{n} HTTP/1.{}\r\nHost: a\r\nConnection: close\r\n\r\n", n % 2));
        assert!(client.rest().ends_with("ok"));
        assert_eq!(s.dir().read("a.log").lines().count(), n);
    }
}

#[test]
fn each_request_that_began_has_one_line_when_the_server_ends() {
    // Takes connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let http = format!(
        "access_log %%DIR%%/a.log line; access_log %%DIR%%/heads.log head;
         location /stuck {{ proxy_pass http://127.0.0.1:{port}; }}
         location /body {{ proxy_pass http://127.0.0.1:{port}; }}
         location /answered {{ return 200 ok; }} }}
         log_format head '$request_method $request_uri \"$request\" $http_host';
         server {{ listen 127.0.0.1:%%PORT1%%;"
    );
    for end in [Signal::QUIT, Signal::TERM] {
        let mut s = server("worker_shutdown_timeout 10ms;", &http);
        let ask = |head: &str| {
            let mut client = s.connect();
            client.send(format!("{head}\r\nHost: a\r\n\r\n"));
            client
        };
        let of = |_| ["GET /stuck HTTP/1.1", "POST /body HTTP/1.1\r\nContent-Length: 9"].map(ask);
        let clients: Vec<_> = (0..4).map(of).collect();
        // What came before is in progress when a later one is answered.
        assert_eq!(s.get("/answered").status, 200);
        s.signal(end);
        s.wait();
        drop(clients);
        let log = s.dir().read("a.log");
        let mut lines: Vec<_> = log.lines().collect();
        lines.sort();
        let cut = ["/body - 000"; 4].into_iter().chain(["/stuck - 000"; 4]);
        let expected: Vec<_> = ["/answered - 200"].into_iter().chain(cut).collect();
        assert_eq!(lines, expected);
        let heads = s.dir().read("heads.log");
        assert_eq!(heads.matches("POST /body \"POST /body HTTP/1.1\" a\n").count(), 4, "{heads}");
    }
}

#[test]
fn lines_of_a_connection_keep_their_order_and_survive_a_quit() {
    let mut s = Server::start(
        env!("CARGO_BIN_EXE_weir"),
        "worker_processes 2; worker_threads 2; events { }
         http { log_format line '$uri $arg_n $status';
         server { listen 127.0.0.1:%%PORT%%; access_log %%DIR%%/a.log line buffer=64k;
         location / { return 200 ok; } } }",
    );
    let mut clients: Vec<_> = (0..8).map(|_| s.connect()).collect();
    for n in 0..50 {
        for (c, client) in clients.iter_mut().enumerate() {
            client.send(format!("GET /c{c}?n={n} HTTP/1.1\r\nHost: a\r\n\r\n"));
        }
        for client in &mut clients {
            assert_eq!(client.response().status, 200);
        }
    }
    let path = s.dir().file("a.log");
    s.stop();
    let log = std::fs::read_to_string(&path).unwrap();
    assert_eq!(log.lines().count(), 8 * 50);
    for c in 0..8 {
        let start = format!("/c{c} ");
        let lines: Vec<_> = log.lines().filter(|line| line.starts_with(&start)).collect();
        let expected: Vec<_> = (0..50).map(|n| format!("{start}{n} 200")).collect();
        assert_eq!(lines, expected);
    }
}

/// A loop is held up again and again, so that the others take its connections over.
#[test]
fn lines_keep_their_order_when_other_loops_take_connections_over() {
    for buffer in ["", "buffer=64k", "buffer=64k flush=1ms"] {
        let mut s = Server::start(
            env!("CARGO_BIN_EXE_weir"),
            &format!(
                "worker_processes 1; worker_threads 4; events {{ }}
                 http {{
                     log_format line '$uri $arg_n'; keepalive_requests 10000;
                     server {{
                         listen 127.0.0.1:%%PORT%%; access_log %%DIR%%/a.log line {buffer};
                         location / {{ return 200 ok; }}
                         location /hold {{ work sleep 5ms; return 200 ok; }}
                         location = /status {{ access_log off; weir_status; }}
                     }}
                 }}"
            ),
        );
        let mut clients: Vec<_> = (0..12).map(|_| s.connect()).collect();
        let mut holds: Vec<_> = (0..4).map(|_| s.connect()).collect();
        let taken = || {
            let page = s.get("/status").body();
            let line =
                page.lines().find(|line| line.starts_with("weir_taken_over_connections_total"));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or_default()
        };
        let mut rounds = 0;
        while rounds < 60 || taken() < 20 && rounds < 2000 {
            let held = &mut holds[rounds % 4];
            held.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
            for (c, client) in clients.iter_mut().enumerate() {
                client.send(format!("GET /c{c}?n={rounds} HTTP/1.1\r\nHost: a\r\n\r\n"));
            }
            for client in clients.iter_mut().chain([held]) {
                assert_eq!(client.response().status, 200);
            }
            rounds += 1;
        }
        assert!(taken() >= 20);
        let path = s.dir().file("a.log");
        s.stop();
        let log = std::fs::read_to_string(&path).unwrap();
        for c in 0..12 {
            let start = format!("/c{c} ");
            let lines: Vec<_> = log.lines().filter(|line| line.starts_with(&start)).collect();
            let expected: Vec<_> = (0..rounds).map(|n| format!("{start}{n}")).collect();
            assert_eq!(lines, expected, "{buffer}");
        }
    }
}

#[test]
fn a_reload_loses_no_line_and_usr1_opens_the_file_anew() {
    let s = server("", "access_log %%DIR%%/a.log line; location / { return 200 ok; }");
    s.get("/before");
    s.reload();
    s.get("/after");
    wait_lines(&s, "a.log", 2);
    std::fs::rename(s.dir().file("a.log"), s.dir().file("a.log.1")).unwrap();
    s.signal(Signal::USR1);
    let (dir, fresh) = (s.dir().path(), s.dir().file("a.log"));
    assert!(until(dir, || fresh.exists()));
    s.get("/new");
    let mut all = String::new();
    assert!(until(dir, || {
        all = s.dir().read("a.log.1") + &s.dir().read("a.log");
        all.lines().count() == 3
    }));
    assert_eq!(all, "/before - 200\n/after - 200\n/new - 200\n");
}

#[test]
fn usr1_writes_gathered_lines_to_the_file_that_they_were_gathered_for() {
    let http = "access_log %%DIR%%/a.log line buffer=64k flush=1h; location / { return 200 ok; }";
    let mut s = server("worker_threads 2;", http);
    for n in 0..10 {
        s.get(&format!("/before?n={n}"));
    }
    std::fs::rename(s.dir().file("a.log"), s.dir().file("a.log.1")).unwrap();
    s.signal(Signal::USR1);
    let before = wait_lines(&s, "a.log.1", 10);
    assert_eq!(before.matches("/before").count(), 10);
    s.get("/after");
    s.stop();
    let all = s.dir().read("a.log.1") + &s.dir().read("a.log");
    assert_eq!((all.lines().count(), all.matches("/after").count()), (11, 1), "{all}");
}

#[test]
fn names_may_have_variables() {
    let s = server("", "access_log %%DIR%%/v/of-$arg_f.log line; error_log %%DIR%%/e; return 200;");
    // The worker's user opens these files.
    std::fs::create_dir(s.dir().file("v")).unwrap();
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(s.dir().file("v"), all).unwrap();
    s.get("/?f=one&n=1");
    s.get("/?f=two&n=2");
    s.get("/?f=one&n=3");
    assert_eq!(wait_lines(&s, "v/of-one.log", 2), "/ 1 200\n/ 3 200\n");
    assert_eq!(wait_lines(&s, "v/of-two.log", 1), "/ 2 200\n");
    s.get("/?f=no/where");
    let request = "client: 127.0.0.1, server: , request: \"GET /?f=no/where HTTP/1.1\"";
    s.wait_file("e", &format!("directory) while logging request, {request}"), 1);
}

#[test]
fn the_json_format_is_json_whatever_a_client_sends() {
    let s = server("", "access_log %%DIR%%/j.log format=json; location / { return 200 ok; }");
    let mut client = s.connect();
    client.send("GET /%22%5c?a=\"b\\ HTTP/1.1\r\nHost: a\r\nUser-Agent: \"x\\\t\x7f\r\n\r\n");
    assert_eq!(client.response().status, 200);
    let line = wait_lines(&s, "j.log", 1);
    assert!(line.contains(r#""uri":"/%22%5c?a=\"b\\""#), "{line}");
    assert!(line.contains(r#""user_agent":"\"x\\\t"#), "{line}");
    // Quotes that are not escaped come in pairs, two for each name and each text.
    let bare = line.replace("\\\\", "").replace("\\\"", "");
    assert_eq!(bare.matches('"').count() % 2, 0);
    assert_eq!(bare.matches("\":").count(), 28, "{line}");
    assert!(line.contains(r#""upstream_addr":"","upstream_status":"","#), "{line}");
}
