//! Bodies, and answers of servers behind, over HTTP/2.

use std::io::{Read, Write};

use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};
use weir_testkit::{Deaf, Server};

use super::{Client, Event, WEIR, start};

#[test]
fn trailers_follow_the_body() {
    let server = start("location / { add_trailer X-Sum $status; return 200 body; }");
    let mut client = Client::connect(&server);
    let id = client.get("/");
    let answer = client.answer(id);
    assert_eq!(answer.text(), "body");
    assert_eq!(answer.heads[1], [("x-sum".to_owned(), "200".to_owned())]);
}

/// RFC 9113, section 8.2.2: a client refuses an answer with such fields.
#[test]
fn fields_of_a_connection_are_no_fields_of_an_answer() {
    let server = start(
        "location / {
             add_header Connection close; add_header Keep-Alive 1; add_header Transfer-Encoding chunked;
             add_header X-Last 1; return 200;
         }",
    );
    let mut client = Client::connect(&server);
    let id = client.get("/");
    let head = client.answer(id).heads.remove(0);
    let names: Vec<_> = head.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"x-last"), "{names:?}");
    for name in ["connection", "keep-alive", "transfer-encoding"] {
        assert!(!names.contains(&name), "{names:?}");
    }
}

#[test]
fn nothing_follows_a_head_alone() {
    let server = start("location / { add_trailer X-Sum $status always; return 304; }");
    let mut client = Client::connect(&server);
    for (method, status) in [("GET", "304"), ("HEAD", "304")] {
        let id = client.ask(method, "/", &[], true);
        let answer = client.answer(id);
        assert_eq!((answer.status(), answer.heads.len()), (status, 1), "{method}");
    }
}

#[test]
fn an_answer_that_breaks_off_is_not_complete() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour");
        }
    });
    let server = start(&format!(
        "access_log %%DIR%%/done done; location / {{ proxy_pass http://127.0.0.1:{port}; }} }}
         log_format done '[$request_completion]'; server {{ listen 127.0.0.1:%%PORT1%%;"
    ));
    let mut client = Client::connect(&server);
    let id = client.get("/");
    assert!(client.answer(id).reset.is_some());
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.try_response().is_err());
    server.wait_file("done", "\n", 2);
    assert_eq!(server.dir().read("done"), "[]\n[]\n");
}

#[test]
fn an_empty_cookie_goes_on() {
    let server = start("location / { return 200 \"[$http_cookie]$http_x\"; }");
    let mut client = Client::connect(&server);
    for (fields, said) in [
        (&[("cookie", "")][..], "[]"),
        (&[("cookie", ""), ("cookie", "a=b")], "[; a=b]"),
        (&[("cookie", "a=b"), ("cookie", "c=d")], "[a=b; c=d]"),
    ] {
        let id = client.ask("GET", "/", fields, true);
        assert_eq!(client.answer(id).text(), said, "{fields:?}");
    }
}

#[test]
fn what_is_of_a_connection_of_http1_stays_behind() {
    let server = start("add_header Upgrade h2c; add_header X-Kept yes; return 200 body;");
    let mut client = Client::connect(&server);
    let id = client.get("/");
    let answer = client.answer(id);
    assert_eq!((answer.field("x-kept"), answer.field("upgrade")), (Some("yes"), None));
}

#[test]
fn a_server_cannot_switch_protocols_of_a_stream() {
    let server = start(
        "location / {
             proxy_http_version 1.1;
             proxy_pass http://127.0.0.1:%%PORT1%%;
         }
         location /ok { add_header X-Line $uri; return 200; }",
    );
    let backend = std::net::TcpListener::bind(("127.0.0.1", server.port_at(1))).unwrap();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = backend.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream
            .write_all(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
            .unwrap();
    });
    let mut client = Client::connect(&server);
    let id = client.get("/");
    assert_eq!(client.answer(id).status(), "502");
    answering.join().unwrap();
    // A field has the value that it was meant to have, or another, but it ends there.
    let id = client.get("/ok%0d%0ax:%20y");
    assert_eq!(client.answer(id).field("x-line"), Some("/ok%0D%0Ax: y"));
}

#[test]
fn hints_and_variables_of_an_upstream_come_along() {
    let server = Server::start(
        WEIR,
        "user root; events { } http { log_format sent '$body_bytes_sent|';
         server { listen 127.0.0.1:%%PORT%%; http2 on; location / {
             early_hints 1;
             add_header X-Cookie $upstream_cookie_a;
             add_header X-Status $upstream_status;
             access_log %%DIR%%/sent sent;
             proxy_pass http://127.0.0.1:%%PORT1%%;
         } } }",
    );
    let backend = std::net::TcpListener::bind(("127.0.0.1", server.port_at(1))).unwrap();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = backend.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).unwrap();
        stream
            .write_all(
                b"HTTP/1.1 100 Continue\r\n\r\n\
                  HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n\
                  HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nok",
            )
            .unwrap();
    });
    let mut client = Client::connect(&server);
    let id = client.get("/");
    let answer = client.answer(id);
    answering.join().unwrap();
    let link = ("link".to_owned(), "</a.css>".to_owned());
    assert_eq!(answer.heads[0], [(":status".to_owned(), "103".to_owned()), link]);
    let cookie = ("x-cookie".to_owned(), "b".to_owned());
    assert!(answer.heads[1].contains(&cookie), "{:?}", answer.heads[1]);
    let status = ("x-status".to_owned(), "200".to_owned());
    assert!(answer.heads[1].contains(&status), "{:?}", answer.heads[1]);
    assert_eq!(answer.text(), "ok");
    server.wait_file("sent", "|", 1);
    assert_eq!(server.dir().read("sent"), "2|\n");
}

/// Some clients send no body before that.
#[test]
fn a_client_that_waits_to_be_asked_for_its_body_is_asked() {
    let server = start(
        "location / { proxy_pass http://127.0.0.1:%%PORT%%/echo; }
         location = /echo { return 200 $content_length; } location = /none { return 404; }
         location = /small { client_max_body_size 1; proxy_pass http://127.0.0.1:%%PORT%%/echo; }",
    );
    let mut client = Client::connect(&server);
    let asks = [("expect", "100-continue"), ("content-length", "3")];
    let id = client.ask("POST", "/", &asks, false);
    while client.event() != Event::Stream(id) {}
    assert_eq!(client.ended[&id].status(), "100");
    client.data(id, b"yes", true);
    let answer = client.answer(id);
    assert_eq!((answer.heads[1][0].1.as_str(), answer.text().as_str()), ("200", "3"));
    // An answer that needs no body takes its place.
    for (path, status) in [("/none", "404"), ("/small", "413")] {
        let id = client.ask("POST", path, &asks, false);
        assert_eq!(client.answer(id).status(), status);
    }
}

/// `100 Continue` is sent with the head, or before the body is read.
#[test]
fn interim_answers_are_bytes_that_were_sent_and_no_body() {
    let server = Server::start(
        WEIR,
        "events { } http { log_format sent '$body_bytes_sent $bytes_sent|';
         access_log %%DIR%%/sent sent; server { listen 127.0.0.1:%%PORT%%; http2 on;
         location / { proxy_pass http://127.0.0.1:%%PORT1%%; }
         location /unread { return 200 unread; } }
         server { listen 127.0.0.1:%%PORT1%%; access_log off; return 200 $content_length; } }",
    );
    let mut client = Client::connect(&server);
    let id = client.ask("POST", "/", &[("expect", "100-continue"), ("content-length", "3")], false);
    while client.event() != Event::Stream(id) {}
    client.data(id, b"yes", true);
    assert_eq!(client.answer(id).text(), "3");
    server.wait_file("sent", "1 ", 1);
    for (path, body) in [("/", "3"), ("/unread", "unread")] {
        let head = "Host: a\r\nConnection: close\r\nContent-Length: 3\r\nExpect: 100-continue";
        let mut client = server.connect();
        client.send(format!("POST {path} HTTP/1.1\r\n{head}\r\n\r\nyes"));
        let answer = client.rest();
        assert!(answer.starts_with("HTTP/1.1 100 ") && answer.ends_with(body), "{answer}");
        server.wait_file("sent", &format!("{} {}|\n", body.len(), answer.len()), 1);
    }
}

#[test]
fn a_body_that_misses_its_buffer_goes_into_a_file() {
    let server = Server::start(
        WEIR,
        "user root; events { } http { log_format body '$content_length $request_body_file|';
         server { listen 127.0.0.1:%%PORT%%; http2 on; client_body_buffer_size 1000;
         location / { proxy_pass http://127.0.0.1:%%PORT%%/end; access_log %%DIR%%/body body; }
         location /end { return 200; } } }",
    );
    let mut client = Client::connect(&server);
    for len in [1000, 1001, 1250] {
        let id = client.ask("PUT", "/", &[("content-length", &len.to_string())], false);
        client.data(id, &vec![b'b'; len], true);
        assert_eq!(client.answer(id).status(), "200");
    }
    server.wait_file("body", "|", 3);
    let files: Vec<bool> = server.dir().read("body").lines().map(|l| l.contains('/')).collect();
    assert_eq!(files, [false, true, true], "{}", server.dir().read("body"));
}

/// The socket takes all of each answer at once, though the client does not read any of it yet.
#[test]
fn an_answer_that_the_socket_takes_is_not_written_to_a_file() {
    const LEN: usize = 120_000;
    let to = weir_testkit::listen(|mut stream| {
        while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LEN}\r\n\r\n");
            let _ = stream.write_all(&[head.as_bytes(), &[b'x'; LEN]].concat());
        }
    });
    let server = Server::start(
        WEIR,
        &format!(
            "user root; events {{ }}
             http {{ upstream to {{ server 127.0.0.1:{to}; keepalive 1; }}
             server {{ listen 127.0.0.1:%%PORT%% sndbuf=200k; http2 on;
             location / {{ proxy_pass http://to; }} }} }}"
        ),
    );
    let mut client = Client::connect(&server);
    client.write(|out| {
        frame::write_settings(&[Setting::InitialWindowSize(1 << 20)], out);
        frame::write_window_update(0, 1 << 20, out);
    });
    for _ in 0..20 {
        let id = client.get("/");
        assert_eq!(client.answer(id).body.len(), LEN);
    }
    let log = server.log();
    assert!(!log.contains("buffered to a temporary file"), "{log}");
}

#[test]
fn a_body_that_came_with_its_head_has_a_length() {
    let server = Server::start(
        WEIR,
        "events { } http { log_format length '$content_length|';
         server { listen 127.0.0.1:%%PORT%%; http2 on; proxy_http_version 1.1; proxy_request_buffering off;
         location / { proxy_pass http://127.0.0.1:%%PORT%%/end; access_log %%DIR%%/length length; }
         location /end { return 200; } } }",
    );
    let mut client = Client::connect(&server);
    let mut out = Vec::new();
    let id = client.request("PUT", "/", &[], false, &mut out);
    FrameHead { len: 4, kind: FrameType::Data, flags: 1, stream: id }.write(&mut out);
    out.extend_from_slice(b"body");
    client.stream.write_all(&out).unwrap();
    assert_eq!(client.answer(id).status(), "200");
    server.wait_file("length", "4|", 1);
}

#[test]
fn what_a_server_was_sent_counts_though_the_client_gave_up() {
    let deaf = Deaf::new();
    let server = Server::start(
        WEIR,
        &format!(
            "events {{ }} http {{ log_format sent '$upstream_bytes_sent|'; http2 on;
             server {{ listen 127.0.0.1:%%PORT%%; access_log %%DIR%%/sent sent;
                 location / {{ grpc_pass 127.0.0.1:%%PORT1%%; }} }}
             server {{ listen 127.0.0.1:%%PORT1%%; access_log %%DIR%%/behind;
                 location / {{ proxy_request_buffering off; proxy_pass http://127.0.0.1:{}; }} }} }}",
            deaf.port()
        ),
    );
    let mut client = Client::connect(&server);
    let id = client.ask("POST", "/", &[], false);
    client.data(id, b"part", false);
    client.write(|out| Client::ping(&[1; 8], out));
    while client.event() != Event::Pong(vec![1; 8]) {}
    client.write(|out| frame::write_reset(id, ErrorCode::Cancel, out));
    server.wait_file("sent", "|", 1);
    assert_ne!(server.dir().read("sent"), "0|\n");
}

#[test]
fn unread_bodies_are_skipped() {
    let server = start("return 200;");
    let mut client = Client::connect(&server);
    // Answered, and given up, before the body has come.
    let id = client.ask("POST", "/", &[("content-length", "4")], false);
    let answer = client.answer(id);
    assert_eq!(answer.status(), "200");
    client.data(id, b"abcd", true);
    // More than was announced, of a stream that is no more.
    let id = client.ask("POST", "/", &[("content-length", "4")], false);
    assert_eq!(client.answer(id).status(), "200");
    while client.ended.get(&id).and_then(|answer| answer.reset).is_none() {
        assert_ne!(client.event(), Event::Closed);
    }
    client.data(id, b"abcdef", true);
    let wrong = ErrorCode::Protocol as u32;
    while client.ended[&id].reset != Some(wrong) {
        assert_ne!(client.event(), Event::Closed);
    }
    let id = client.get("/");
    assert_eq!(client.answer(id).status(), "200");
}

#[test]
fn frames_are_no_bytes_of_the_body() {
    let server = start(
        "access_log %%DIR%%/sent said;
         location / { add_trailer X-Sum $status; return 200 four; } }
         log_format said '$body_bytes_sent'; server { listen 127.0.0.1:%%PORT1%%;",
    );
    let mut client = Client::connect(&server);
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "four");
    server.wait_file("sent", "\n", 1);
    assert_eq!(server.dir().read("sent"), "4\n");
}

#[test]
fn a_head_goes_ahead_of_a_body_that_does_not_come_yet() {
    let (seen, was_seen) = std::sync::mpsc::channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
        was_seen.recv().unwrap();
        let _ = stream.write_all(b"four");
    });
    let server = start(&format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"));
    let mut client = Client::connect(&server);
    let id = client.get("/");
    while client.ended.get(&id).is_none_or(|answer| answer.heads.is_empty()) {
        assert_ne!(client.event(), Event::Closed);
    }
    seen.send(()).unwrap();
    assert_eq!(client.answer(id).text(), "four");
}
