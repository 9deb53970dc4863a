//! What clients and logs get of the heads that servers send, whatever protocol they speak.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use weir_testkit::fastcgi::answer;
use weir_testkit::listen;

use crate::start;

/// A server that answers whatever it is asked with this, and closes.
fn says(text: impl Into<Vec<u8>>) -> u16 {
    let text = text.into();
    listen(move |mut stream: TcpStream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(&text);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    })
}

/// A location for each protocol of scripts, with servers that say this.
fn scripts(output: &str) -> String {
    format!(
        "location /fastcgi {{ fastcgi_pass 127.0.0.1:{}; }}
         location /scgi {{ scgi_pass 127.0.0.1:{}; }}
         location /uwsgi {{ uwsgi_pass 127.0.0.1:{}; }}",
        says(answer(output)),
        says(output),
        says(output)
    )
}

const SCRIPTS: [&str; 3] = ["/fastcgi", "/scgi", "/uwsgi"];

#[test]
fn of_lines_that_stand_there_once_the_first_counts() {
    let output = "Status: 201 Made\r\nContent-Type: a/b\r\nX-A: 1\r\ncontent-type: c/d\r\nX-A: 2\r\n\
                  X-Accel-Limit-Rate: 0\r\nX-Accel-Limit-Rate: 1\r\nStatus: 500 No\r\n\r\nbody";
    let server = start("add_header X-Type $upstream_http_content_type;", &scripts(output));
    for (n, path) in SCRIPTS.into_iter().enumerate() {
        let said = server.get(path);
        assert_eq!((said.status, said.body()), (201, "body".to_owned()), "{path}");
        for name in ["Content-Type", "X-Type"] {
            assert_eq!(said.header(name), Some("a/b"), "{path}");
        }
        let of_a = said.headers.iter().filter(|(name, _)| name == "X-A");
        assert_eq!(of_a.count(), 2, "{path}: {:?}", said.headers);
        for (line, before) in [
            ("content-type: c/d", "Content-Type: a/b"),
            ("X-Accel-Limit-Rate: 1", "X-Accel-Limit-Rate: 0"),
            ("Status: 500 No", "Status: 201 Made"),
        ] {
            let text = format!(
                "upstream sent duplicate header line: \"{line}\", previous value: \"{before}\", ignored"
            );
            server.wait_log(&text, n + 1);
        }
    }
}

#[test]
fn what_was_read_of_a_head_that_fails_is_seen_in_variables() {
    let seen = "add_header X-Seen $upstream_http_x_a always;";
    for wrong in ["b ad\x01: 1\r\n\r\n", "Content-Length: x\r\n\r\n", "Status: 1\r\n\r\n", "b: "] {
        let output = format!("X-A: 1\r\n{wrong}");
        let server = start(seen, &scripts(&output));
        for path in SCRIPTS {
            let said = server.get(path);
            assert_eq!((said.status, said.header("X-Seen")), (502, Some("1")), "{path} {wrong:?}");
        }
    }
    // The next server's answer begins anew.
    let first = says("HTTP/1.1 500 No\r\nX-A: 1\r\nContent-Length: 0\r\n\r\n");
    let (second, third) = (says("HTTP/1.1 200 OK\r\n"), weir_testkit::free_port());
    let group = |name: &str, port: u16| {
        format!("upstream {name} {{ server 127.0.0.1:{first}; server 127.0.0.1:{port} backup; }}")
    };
    let server = start(
        &format!("{seen} {} {}", group("closes", second), group("refuses", third)),
        "proxy_next_upstream http_500; location /closes { proxy_pass http://closes; }
         location /refuses { proxy_pass http://refuses; }",
    );
    for path in ["/closes", "/refuses"] {
        let said = server.get(path);
        assert_eq!((said.status, said.header("X-Seen")), (502, None), "{path}");
    }
}

#[test]
fn uwsgi_shows_the_line_that_says_the_status() {
    let server = start("", &scripts("Status: 404 Gone away\r\n\r\n"));
    for (path, shown) in SCRIPTS.into_iter().zip([None, None, Some("404 Gone away")]) {
        let said = server.get(path);
        assert_eq!((said.status, said.header("Status")), (404, shown), "{path}");
    }
}

#[test]
fn what_a_server_says_of_its_answer_is_passed_on_with_any_status() {
    let fields = "Content-Type: a/b\r\nLast-Modified: Mon, 28 Sep 1970 06:00:00 GMT\r\n\r\n";
    for status in ["200 OK", "201 Made", "204 None", "404 No", "500 Oh"] {
        let output = format!("Status: {status}\r\n{fields}");
        let http = says(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n{fields}"));
        let locations = scripts(&output);
        let server = start(
            "",
            &format!("{locations} location /http {{ proxy_pass http://127.0.0.1:{http}; }}"),
        );
        for path in SCRIPTS.into_iter().chain(["/http"]) {
            let said = server.get(path);
            let seen = (said.header("Content-Type"), said.header("Last-Modified"));
            assert_eq!(
                seen,
                (Some("a/b"), Some("Mon, 28 Sep 1970 06:00:00 GMT")),
                "{status} {path}"
            );
        }
    }
}

/// A trailer of this server tells what the log tells later: the server behind has sent all when the trailer goes.
#[test]
fn trailers_know_the_figures_of_the_server() {
    let output = "Content-Type: text/plain\r\n\r\nhello";
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let http =
        |answer| format!("proxy_http_version 1.1; proxy_pass http://127.0.0.1:{}; ", says(answer));
    let known = http("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let (chunked, empty) = (http(chunks), http("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
    let figures = "$upstream_response_length $upstream_bytes_received $upstream_response_time";
    let server = start(
        &format!(
            "log_format figures '$uri {figures}'; access_log %%DIR%%/figures figures;
             proxy_cache_path cache keys_zone=c:1m; add_trailer X-Figures '{figures}';"
        ),
        &format!(
            "{} location /known {{ {known} }} location /chunked {{ {chunked} }}
             location /flushed/known {{ proxy_buffering off; {known} }}
             location /flushed/chunked {{ proxy_buffering off; {chunked} }}
             location /cached {{ proxy_cache c; proxy_cache_valid 1h; {chunked} }}
             location /stored {{ proxy_store files$uri; {chunked} }}
             location /empty {{ {empty} }}
             location /memcached {{ set $memcached_key k; memcached_pass 127.0.0.1:{}; }}",
            scripts(output),
            says("VALUE k 0 5\r\nhello\r\nEND\r\n")
        ),
    );
    let lengths = [
        ("/fastcgi", 29),
        ("/scgi", 5),
        ("/uwsgi", 5),
        ("/known", 5),
        ("/chunked", 15),
        ("/flushed/known", 5),
        ("/flushed/chunked", 15),
        ("/cached", 15),
        ("/stored", 15),
        ("/empty", 0),
        ("/memcached", 12),
    ];
    for (path, length) in lengths {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        let rest = client.rest();
        let (_, figures) = rest.split_once("\r\n0\r\nX-Figures: ").expect(&rest);
        let figures = figures.trim_end();
        assert!(figures.starts_with(&format!("{length} ")), "{path}: {figures}");
        assert!(!figures.ends_with('-'), "{path}: {figures}");
        server.wait_file("figures", &format!("{path} {figures}\n"), 1);
    }
}

#[test]
fn lengths_of_answers_are_those_of_what_came() {
    let output = "Content-Type: text/plain\r\n\r\nhello";
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let http = format!(
        "location /http {{ proxy_pass http://127.0.0.1:{}; proxy_http_version 1.1; }}
         location /memcached {{ set $memcached_key k; memcached_pass 127.0.0.1:{}; }}",
        says(chunks),
        says("VALUE k 0 5\r\nhello\r\nEND\r\n")
    );
    let server = start(
        "log_format length '$uri $upstream_response_length'; access_log %%DIR%%/length length;",
        &format!("{} {http}", scripts(output)),
    );
    // Behind the body of FastCGI: an empty record, and one of 8 bytes that ends the request.
    for (path, length) in
        [("/fastcgi", 5 + 8 + 16), ("/scgi", 5), ("/uwsgi", 5), ("/http", 15), ("/memcached", 12)]
    {
        assert_eq!(server.get(path).body(), "hello", "{path}");
        server.wait_file("length", &format!("{path} {length}\n"), 1);
    }
}
