//! Error logs: what a line says, and that no client or flood of messages spoils it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::ffi::OsStrExt;

use rustix::process::Signal;
use weir_testkit::{Server, until};

use super::{server, wait_lines};

#[test]
fn a_connection_without_a_request_is_logged_with_the_listening_address() {
    let conf = "events { } http { error_log error.log info;
        server { listen *:%%PORT%%; return 200 ok; } }";
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), conf);
    drop(TcpStream::connect(("127.0.0.1", s.port())).unwrap());
    let server = format!("server: 0.0.0.0:{}", s.port());
    s.wait_log(&format!("while waiting for request, client: 127.0.0.1, {server}"), 1);
}

#[test]
fn a_client_begins_no_line_of_an_error_log() {
    let s = server("", "location / { }");
    s.get("/a%0a2026/11/21%2000:00:00%20[alert]%20forged%1b[2J");
    s.ask("GET /next", "Referer: http://before.example/\r\n", "");
    s.wait_log("GET /next", 1);
    let log = s.log();
    assert!(log.contains("\", referrer: \"http://before.example/\"\n"), "{log}");
    assert!(log.contains("/a\\x0A2026/11/21 00:00:00 [alert] forged\\x1B[2J"), "{log}");
    assert!(
        !log.lines().any(|line| line.contains("forged") && line.starts_with("2026/11/21 00:00:00"))
    );
    assert!(!log.bytes().any(|b| b < b' ' && b != b'\n'), "{log}");
}

/// A name that is no UTF-8 can be read from each line about it.
#[test]
fn bytes_that_are_no_text_are_escaped_in_an_error_log() {
    let s = server(
        "user root;",
        "client_body_temp_path %%DIR%%/bodies;
         location /dav/ { dav_methods PUT DELETE MKCOL COPY MOVE; }
         location /written/ { rewrite_log on; rewrite ^/written(.*)$ /after$1; }
         location /films/ { mp4; }
         location ~ ^/gone(/.*)$ { proxy_pass http://127.0.0.1:1$1; }
         location ~ ^/text/(?<to>.*)$ {
             default_type text/plain; source_charset utf-8; charset $to; return 200 x;
         }
         location /lua/ { content_by_lua_block { ngx.log(ngx.ERR, 'lua \\255') } }",
    );
    std::fs::create_dir_all(s.dir().file("dav")).unwrap();
    let list = s.dir().file("list").join(std::ffi::OsStr::from_bytes(b"\xff"));
    std::fs::create_dir_all(list).unwrap();
    s.dir().write("films/x.mp4", "no film at all, though it is called one");
    let film = std::ffi::OsStr::from_bytes(b"x\xff.mp4");
    std::fs::rename(s.dir().file("films/x.mp4"), s.dir().file("films").join(film)).unwrap();
    for (line, headers, logged) in [
        ("GET /%ff", "", "open() \"%%DIR%%/\\xFF\" failed (2: No such file or directory)"),
        ("GET /%ff/", "", "\"%%DIR%%/\\xFF/index.html\" is not found"),
        ("GET /list/%ff/", "", "directory index of \"%%DIR%%/list/\\xFF/\" is forbidden"),
        ("GET /written/%ff", "", "rewritten data: \"/after/\\xFF\""),
        ("GET /films/x%ff.mp4?start=1", "", "/films/x\\xFF.mp4\""),
        ("GET /gone/%ff", "", "upstream: \"http://127.0.0.1:1/\\xFF\""),
        ("GET /text/%ff", "", "between the charsets \"utf-8\" and \"\\xFF\""),
        ("GET /lua/", "", "lua \\xFF"),
        ("DELETE /dav/%ff", "", "lstat() \"%%DIR%%/dav/\\xFF\" failed"),
        ("MKCOL /dav/%ff/x/", "", "mkdir() \"%%DIR%%/dav/\\xFF/x\" failed"),
        ("COPY /dav/%ff", "Destination: /dav/%ff\r\n", "both URI \"/dav/\\xFF\" and"),
        ("COPY /dav/%ff", "Destination: /dav/%fe\r\n", "lstat() \"%%DIR%%/dav/\\xFF\" failed"),
    ] {
        s.ask(line, headers, "");
        let dir = s.dir().path().display().to_string();
        s.wait_log(&logged.replace("%%DIR%%", &dir), 1);
    }
    assert!(!s.log().contains(char::REPLACEMENT_CHARACTER), "{}", s.log());
}

#[test]
fn stderr_is_stderr_wherever_it_is_said() {
    for (http, server) in [
        ("error_log stderr;", ""),
        ("error_log '';", ""),
        ("", "error_log stderr;"),
        ("", "location / { error_log stderr; }"),
    ] {
        let dir = weir_testkit::Dir::new();
        let port = weir_testkit::free_port();
        let conf = format!(
            "daemon off; error_log main.log; pid nginx.pid; events {{ }}
             http {{ access_log off; {http} server {{ listen 127.0.0.1:{port}; {server} }} }}"
        );
        let conf = dir.write("nginx.conf", conf);
        let file = std::fs::File::create(dir.file("stderr")).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .arg("-p")
            .arg(dir.path())
            .arg("-c")
            .arg(conf)
            .arg("-e")
            .arg("main.log")
            .stderr(file);
        let mut process = weir_testkit::Process::start(&mut command);
        let up = || weir_testkit::Client::try_connect(port).is_ok();
        assert!(weir_testkit::ask_until(up), "{}", dir.read("main.log"));
        assert_eq!(weir_testkit::Client::connect(port).get("/nothing").status, 404);
        let said = || dir.read("stderr").contains("nothing\" failed");
        assert!(until(dir.path(), said), "{http} {server}: {}", dir.read("main.log"));
        assert!(!dir.read("main.log").contains("nothing\" failed"), "{http} {server}");
        process.signal(Signal::QUIT);
        process.wait();
    }
}

/// What clients send stands in it, too.
#[test]
fn the_error_log_may_be_json() {
    let s = server("error_log %%DIR%%/errors.json info format=json;", "location / { root /none; }");
    assert_eq!(s.get("/a%22%5cb").status, 404);
    s.wait_file("errors.json", "No such file", 1);
    let log = s.dir().read("errors.json");
    let line = log.lines().find(|line| line.contains("No such file")).unwrap();
    assert!(line.starts_with("{\"time\":\"20") && line.ends_with("\"}"), "{line}");
    assert!(line.contains("\"level\":\"error\",\"pid\":"), "{line}");
    let message =
        r#","message":"open() \"/none/a\"\\b\" failed (2: No such file or directory), client: "#;
    assert!(line.contains(message), "{line}");
    for wrong in ["format=xml", "format=json format=json"] {
        let conf = s.configure(&format!("error_log %%DIR%%/x {wrong}; events {{ }}"));
        let out = s.command(&["-t", "-c", conf.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains("invalid parameter \"format="), "{said}");
    }
}

#[test]
fn the_error_log_in_memory_is_shown_for_all_workers() {
    let s = server(
        "worker_processes 2; error_log memory:64k info;",
        "location /log { weir_status log; } location /own { error_log memory:8k; root /none; }
         location /own/log { error_log memory:8k; weir_status log; }",
    );
    let paths = ["/missing/1", "/missing/2", "/missing/3", "/missing/4"];
    paths.iter().for_each(|path| assert_eq!(s.get(path).status, 404));
    assert_eq!(s.get("/own/missing").status, 404);
    let r = s.get("/log");
    assert_eq!(r.header("Content-Type"), Some("text/plain"));
    let text = String::from_utf8(r.bytes).unwrap();
    for path in paths {
        assert!(text.lines().any(|line| line.contains("[error]") && line.contains(path)), "{text}");
    }
    assert!(!text.contains("/own/missing"), "{text}");
    // A ring of its own, to which nothing was said.
    assert_eq!(s.get("/own/log").bytes, b"");
}

#[test]
fn messages_that_repeat_are_bounded_and_counted() {
    let s = server("", "keepalive_requests 5000; location /status { weir_status; } location / { }");
    let mut client = s.connect();
    for n in 0..3000 {
        assert_eq!(client.get(&format!("/missing/{n}")).status, 404);
    }
    let status = client.get("/status").body();
    let counted = status.lines().find_map(|line| line.strip_prefix("weir_log_left_out"));
    let counted = counted.and_then(|line| line.split_whitespace().last()).unwrap_or("0");
    let rest = 3000 - counted.parse::<usize>().unwrap();
    // Kinds share places, so what was said at the start may count too.
    assert!((50..3000).contains(&rest), "{rest}");
    let written = || s.log().lines().filter(|line| line.contains("/missing/")).count();
    assert!(until(s.dir().path(), || written() == rest), "{} of {rest}", written());
}

#[test]
fn of_a_head_that_is_refused_the_lines_that_came_whole_count_and_the_host_is_known() {
    let conf = "events { } http {
         log_format counted '$status $request_length $uri $host'; large_client_header_buffers 2 512;
         server {
             listen 127.0.0.1:%%PORT%%; access_log %%DIR%%/a.log counted;
             location / { return 200 ok; }
         } }";
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), conf);
    let long = "x".repeat(2000);
    let line = "\r\nGET / HTTP/1.1\r\nA: b\r\n";
    let mut lines = 0;
    for (request, logged) in [
        // The request line has 16 bytes, the header line 6.
        (format!("{line}\r\n"), "400 24 / "),
        (format!("{line}B: {long}\r\n\r\n"), "400 22 / "),
        (format!("{line}B\0: c\r\n\r\n"), "400 22 / "),
        (format!("{line}Host: c\r\nHost: d\r\n\r\n"), "400 40 / c"),
        (format!("{line}B: c"), "400 22 / "),
        ("GET /a%00b HTTP/1.1\r\nA: b\r\n\r\n".to_owned(), "400 21  "),
        ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "405 29 / a"),
        // A path that is not valid is empty, and a line that is refused before it is looked at has none.
        ("GET /a b HTTP/1.1\r\n\r\n".to_owned(), "400 0 - "),
        ("GET /a HTTP/2.0\r\n\r\n".to_owned(), "505 0 - "),
        ("GET /a HT".to_owned(), "400 0 - "),
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), "414 0 - "),
    ] {
        let mut client = TcpStream::connect(("127.0.0.1", s.port())).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        // Nothing more comes.
        client.shutdown(Shutdown::Write).unwrap();
        lines += 1;
        let log = wait_lines(&s, "a.log", lines);
        assert_eq!(log.lines().last(), Some(logged), "{request:?}");
    }
}

/// Tools look for the words behind "while".
#[test]
fn messages_say_what_was_being_done() {
    let says = |text: String| {
        let port = weir_testkit::listen(move |mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(text.as_bytes());
        });
        format!("127.0.0.1:{port}")
    };
    let http = |lines: &str| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1";
        says(format!("{head}\r\n{lines}\r\n\r\nx"))
    };
    let locations = format!(
        "location /charset {{ proxy_pass http://{}; }}
         location /named {{ proxy_pass http://{}; }}
         location /refused {{ proxy_pass http://127.0.0.1:1; error_page 502 = @none; }}
         location /packed {{ gunzip on; proxy_pass http://{}; }}
         location /missing {{ set $memcached_key k; memcached_pass {}; }}
         location /slices {{ slice 1; proxy_set_header Range $slice_range; proxy_pass http://{}; }}
         location /unset {{ access_log %%DIR%%/logs/x$unset line; return 200; }}
         location /set {{ set $unset 1; }}
         location /cycle {{ ssi on; ssi_types *; return 200 '<!--#include virtual=\"/cycle\" -->'; }}",
        http("X-Accel-Charset: odd"),
        http("X-Accel-Redirect: @none"),
        http("Content-Encoding: gzip"),
        says("END\r\n".to_owned()),
        says("HTTP/1.1 206 P\r\nContent-Length: 1\r\n\r\nx".to_owned()),
    );
    let server = server("error_log %%DIR%%/logs/info info;", &locations);
    let head = "while reading response header from upstream";
    for (path, text, doing) in [
        ("/charset", "unknown charset \"odd\" to override", head),
        ("/named", "could not find named location \"@none\"", head),
        ("/refused", "could not find named location \"@none\"", "while sending to client"),
        ("/packed", "inflate() returned -5 on response end", "while sending to client"),
        ("/missing", "key: \"k\" was not found by memcached", head),
        ("/slices", "invalid range in slice response", head),
        ("/unset", "using uninitialized \"unset\" variable", "while logging request"),
        (
            "/cycle",
            "subrequests cycle while processing \"/cycle\"",
            "while sending response to client",
        ),
    ] {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        client.rest();
        server.wait_file("logs/info", &format!("{text} {doing}, client: "), 1);
    }
}
