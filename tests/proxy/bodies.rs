//! Bodies that are refused or lost, and what servers behind are told of them: a length that is not the body's would make
//! them take the next request for it.

use std::sync::mpsc::channel;

use weir_testkit::{Client, free_port};

use super::start;
use super::talk::{Talk, upstream};

/// Answers each request with its line, its length and its body.
fn tell(talk: &mut Talk) {
    loop {
        let head = talk.head();
        let Some(line) = head.lines().next() else { return };
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let body = talk.body(length.map_or(0, |length| length.parse().unwrap()));
        talk.ok(&format!("{line} {} {body}", length.unwrap_or("none")));
    }
}

/// Another client's request that goes to the same server.
fn is_whole(client: &mut Client) {
    client.send("POST /next HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(client.response().body(), "POST /next HTTP/1.1 5 hello");
}

#[test]
fn a_body_that_is_refused_is_none_for_the_page_that_says_so() {
    let port = upstream(tell);
    let server = start(
        &format!("upstream up {{ server 127.0.0.1:{port}; keepalive 4; }}"),
        "error_page 413 500 /page; error_page 405 @named;
         location / { proxy_pass http://up; }
         location @named { proxy_pass http://up; }
         location /upload/ { client_max_body_size 10; proxy_pass http://up; }
         location /inherits/ { client_max_body_size 10; error_page 413 = @small; proxy_pass http://up; }
         location @small { client_max_body_size 10; proxy_pass http://up; }
         location /file/ {
             client_body_in_file_only on; client_body_temp_path %%DIR%%/gone; proxy_pass http://up;
         }",
    );
    let gone = server.dir().path().join("gone");
    std::fs::remove_dir_all(&gone).unwrap();
    std::fs::write(&gone, "").unwrap();
    let large = format!("58\r\n{}\r\n0\r\n\r\n", "A".repeat(88));
    for (path, body, status, page) in [
        ("/upload/", large.clone(), 413, "GET /page HTTP/1.1"),
        ("/upload/", format!("5\r\nhello\r\n{large}"), 413, "GET /page HTTP/1.1"),
        ("/inherits/", large.clone(), 200, "POST /inherits/ HTTP/1.1"),
        ("/file/", "5\r\nhello\r\n0\r\n\r\n".to_owned(), 500, "GET /page HTTP/1.1"),
    ] {
        let mut client = server.connect();
        let head = "HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(format!("POST {path} {head}{body}"));
        let answer = client.response();
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.body(), format!("{page} 0 "), "{path}");
        is_whole(&mut server.connect());
    }
}

#[test]
fn a_body_that_went_to_one_server_is_none_for_another() {
    let (came, part) = channel();
    let fails = upstream(move |talk| {
        talk.head();
        talk.body(100);
        came.send(()).unwrap();
        talk.body(100);
    });
    let port = upstream(tell);
    let server = start(
        &format!("upstream up {{ server 127.0.0.1:{port}; keepalive 4; }}"),
        &format!(
            "location / {{ proxy_pass http://up; }}
             location /fails/ {{
                 proxy_pass http://127.0.0.1:{fails}; proxy_request_buffering off;
                 client_body_buffer_size 64; error_page 502 = @other;
             }}
             location @other {{ proxy_pass http://up; }}"
        ),
    );
    let mut client = server.connect();
    let half = "x".repeat(100);
    client.send(format!("POST /fails/ HTTP/1.1\r\nHost: a\r\nContent-Length: 200\r\n\r\n{half}"));
    part.recv().unwrap();
    client.send(&half);
    assert_eq!(client.response().body(), "POST /fails/ HTTP/1.1 0 ");
    is_whole(&mut server.connect());
}

/// As in nginx: the fault is the client's, whatever the server behind would have said.
#[test]
fn a_body_that_is_wrong_from_the_start_is_refused_before_a_server_is_asked() {
    let dead = free_port();
    let server = start(
        "",
        &format!(
            "proxy_request_buffering off; client_max_body_size 10;
             location / {{ proxy_pass http://127.0.0.1:{dead}; }}
             location /two/ {{ proxy_pass http://127.0.0.1:{dead}; proxy_http_version 2; }}
             location /grpc/ {{ grpc_pass 127.0.0.1:{dead}; }}"
        ),
    );
    for path in ["/", "/two/", "/grpc/"] {
        for (body, status) in [("zz\r\nabc\r\n", 400), ("b\r\nabc", 413), ("3\r\nabc\r\n", 502)] {
            let mut client = server.connect();
            let head = "HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
            client.send(format!("POST {path} {head}{body}"));
            assert_eq!(client.response().status, status, "{path} {body:?}");
        }
    }
}

/// What follows the fault in a head is no body, and does not take the place of the head.
#[test]
fn a_page_for_a_head_that_is_too_long_is_asked_for_without_a_body() {
    let port = upstream(tell);
    for buffering in ["on", "off"] {
        let server = start(
            "",
            &format!(
                "error_page 494 /page; proxy_request_buffering {buffering};
                 location = /page {{ proxy_pass http://127.0.0.1:{port}; }}"
            ),
        );
        for length in [9_000, 90_000] {
            let mut client = server.connect();
            // A server may refuse before it has read everything.
            let _ = client.try_send(format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(length)));
            let answer = client.response();
            assert_eq!((answer.status, answer.body()), (400, "GET /page HTTP/1.1 none ".into()));
        }
    }
}
