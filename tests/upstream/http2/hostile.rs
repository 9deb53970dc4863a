//! Servers that end streams and connections, or do what the protocol forbids.

use std::sync::mpsc::channel;

use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};
use weir_proto::http2::hpack;
use weir_testkit::{PATIENCE, free_port};

use super::peer::{Event, Peer};
use super::{ask, post, start, start_all};

#[test]
fn what_a_server_has_not_looked_at_is_asked_again() {
    let peer = Peer::new(|number, talk| {
        talk.settings(&[]);
        if number == 1 {
            let first = talk.head()?;
            talk.answer(first.id, "first");
            // It takes its leave while the next request is on its way.
            talk.head()?;
            talk.goaway(first.id, ErrorCode::NoError);
            return Some(());
        }
        loop {
            let head = talk.head()?;
            if number == 2 && head.field(":path") == "/refused" {
                talk.reset(head.id, ErrorCode::RefusedStream);
            } else {
                talk.answer(head.id, head.field(":path"));
            }
        }
    });
    let server = start(&peer, "", "");
    assert_eq!(ask(&server, "/").response().body(), "first");
    // Not even requests that may not be repeated are lost.
    assert_eq!(post(&server, "/again", b"body").response().body(), "/again");
    assert_eq!(peer.opened(), 2);
    assert_eq!(ask(&server, "/refused").response().body(), "/refused");
    assert_eq!(peer.opened(), 3);
    assert_eq!(server.logged("temporarily disabled"), 0, "{}", server.log());
}

#[test]
fn a_server_that_refuses_all_is_not_asked_for_ever() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        loop {
            let head = talk.head()?;
            talk.reset(head.id, ErrorCode::RefusedStream);
        }
    });
    let server = start(&peer, "", "");
    for _ in 0..3 {
        assert_eq!(ask(&server, "/").response().status, 502);
    }
    assert!(peer.opened() <= 3);
    server.wait_log("upstream rejected request with error 7", 3);
}

#[test]
fn another_server_is_asked() {
    let bad = Peer::new(|_, talk| {
        talk.settings(&[]);
        loop {
            let head = talk.head()?;
            talk.reset(head.id, ErrorCode::RefusedStream);
        }
    });
    let good = Peer::answering(|_| "good".to_owned());
    let group = format!("server 127.0.0.1:{}; server 127.0.0.1:{};", good.port, free_port());
    let server = start(&bad, &group, "");
    for _ in 0..6 {
        assert_eq!(ask(&server, "/").response().body(), "good");
    }
}

#[test]
fn what_a_server_said_before_it_closed_is_read() {
    const PIECE: usize = 15_000;
    let peer = Peer::new(|_, talk| {
        let head = talk.head()?;
        talk.settings(&[]);
        // What is left unread makes of the close a reset, and of what weir writes then an error.
        talk.wait()?;
        talk.write(|out| {
            let begin = frame::leave_head(out);
            hpack::field(b":status", b"200", out);
            frame::finish_headers(out, begin, head.id, 0, frame::MAX_PAYLOAD);
            for last in [false, false, true] {
                let flags = if last { frame::END_STREAM } else { 0 };
                let data = FrameHead { len: PIECE, kind: FrameType::Data, flags, stream: head.id };
                data.write(out);
                out.resize(out.len() + PIECE, b'x');
                FrameHead { len: 8, kind: FrameType::Ping, flags: 0, stream: 0 }.write(out);
                out.extend_from_slice(b"weirweir");
            }
            frame::write_goaway(head.id, ErrorCode::NoError, out);
        });
        None
    });
    let server = start(&peer, "", "");
    for _ in 0..5 {
        assert_eq!(ask(&server, "/").response().bytes.len(), 3 * PIECE);
    }
}

#[test]
fn an_answer_that_breaks_off_is_no_answer() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        loop {
            let head = talk.head()?;
            match head.field(":path") {
                "/reset" => talk.reset(head.id, ErrorCode::Internal),
                "/short" => {
                    talk.fields(head.id, &[(":status", "200"), ("content-length", "9")], false);
                    talk.data(head.id, b"short", true);
                }
                "/close" => return None,
                _ => {
                    talk.fields(head.id, &[(":status", "200")], false);
                    talk.data(head.id, b"begun", false);
                    talk.reset(head.id, ErrorCode::Cancel);
                }
            }
        }
    });
    let server = start(&peer, "", "proxy_buffering off;");
    assert_eq!(ask(&server, "/reset").response().status, 502);
    server.wait_log("upstream rejected request with error 2 while reading response header", 1);
    let broken = ask(&server, "/begun").rest();
    assert!(!broken.ends_with("0\r\n\r\n"), "{broken}");
    let short = ask(&server, "/short").rest();
    assert!(short.ends_with("\r\n\r\nshort"), "{short}");
    server.wait_log("upstream prematurely closed stream while reading upstream", 1);
    assert_eq!(peer.opened(), 1);
    assert_eq!(ask(&server, "/close").response().status, 502);
    server.wait_log("upstream prematurely closed connection while reading response header", 1);
    assert_eq!(server.workers().len(), 1);
}

/// What is wrong behind a head is no reason to ask another server, nor, where the connection just ends, to lose what came before.
#[test]
fn what_came_before_an_answer_broke_off_is_passed_on() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        let path = head.field(":path").to_owned();
        talk.at_once(|talk| {
            talk.fields(head.id, &[(":status", "103"), ("link", "early")], false);
            if path == "/hints" {
                return talk.data(head.id, b"no head", true);
            }
            talk.fields(head.id, &[(":status", "200")], false);
            talk.data(head.id, b"begun", false);
            match path.as_str() {
                "/reset" => talk.reset(head.id, ErrorCode::Cancel),
                "/goaway" => talk.goaway(0, ErrorCode::NoError),
                "/trailers" => talk.fields(head.id, &[(":status", "200")], true),
                "/stream" => talk.data(head.id + 2, b"nobody's", true),
                _ => {}
            }
        });
        None
    });
    for inside in ["", "grpc_pass u;"] {
        let server = start(&peer, "keepalive 0;", &format!("early_hints 1; {inside}"));
        for path in ["/close", "/reset", "/goaway", "/trailers", "/stream"] {
            let asked = peer.opened();
            let broken = ask(&server, path).rest();
            assert!(broken.starts_with("HTTP/1.1 103 Early Hints\r\nlink: early"), "{broken}");
            let (_, answer) = broken.split_once("\r\n\r\n").unwrap();
            let begun = answer.ends_with("\r\n\r\n5\r\nbegun\r\n");
            assert_eq!(
                (begun, answer.contains("begun")),
                (path == "/close", path == "/close"),
                "{path}: {broken}"
            );
            assert!(
                answer.is_empty() || answer.starts_with("HTTP/1.1 200 OK\r\n"),
                "{path}: {broken}"
            );
            assert_eq!(peer.opened(), asked + 1, "{path}");
        }
        let mut hinted = ask(&server, "/hints");
        assert_eq!([(); 2].map(|()| hinted.response().status), [103, 502]);
    }
}

/// The head is an answer, also for a request whose body waits for the server's window.
#[test]
fn a_head_that_comes_with_the_failure_of_its_stream_is_passed_on() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        let (mut received, whole) = (0, head.field(":path").ends_with("/whole"));
        while !head.ended && received < frame::DEFAULT_WINDOW as usize {
            if let Event::Data(_, data, _) = talk.next()? {
                received += data.len();
            }
        }
        talk.at_once(|talk| {
            talk.fields(head.id, &[(":status", "200")], false);
            talk.data(head.id, b"begun", whole);
            talk.reset(head.id, ErrorCode::Internal);
        });
        Some(())
    });
    for inside in ["", "proxy_buffering off;", "proxy_request_buffering off;", "grpc_pass u;"] {
        let server = start(&peer, "keepalive 0;", inside);
        for path in ["/begun", "/whole"] {
            for body in [0, 100_000] {
                let answer = post(&server, path, &vec![b'x'; body]).rest();
                let case = format!("{inside} {path} {body}: {answer}");
                assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{case}");
                assert!(!answer.ends_with("0\r\n\r\n"), "{case}");
            }
        }
        server.wait_log("upstream rejected request with error 2 while reading upstream", 4);
    }
}

fn frame(kind: FrameType, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    FrameHead { len: payload.len(), kind, flags, stream }.write(&mut out);
    out.extend_from_slice(payload);
    out
}

#[test]
fn what_the_protocol_forbids_ends_the_attempt() {
    use FrameType::*;
    const WHOLE: u8 = frame::END_HEADERS | frame::END_STREAM;
    let mut cases: Vec<(Vec<u8>, &str)> = vec![
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "too large http2 frame: 4740180"),
        (frame(Data, 1, 1, b"body"), "unexpected http2 frame: 0"),
        (frame(Data, 1, 3, b"body"), "data frame for unknown stream 3"),
        (frame(Headers, WHOLE, 2, b"\x88"), "frame for unknown stream 2"),
        (frame(Headers, WHOLE, 1, b""), "upstream sent no :status header"),
        (frame(Headers, WHOLE, 1, b"\x88\x88"), "duplicate :status header"),
        (frame(Headers, WHOLE, 1, b"\x08\x03abc"), "invalid :status \"abc\""),
        (frame(Headers, WHOLE, 1, b"\x08\x03101"), "unexpected :status \"101\""),
        (frame(Headers, WHOLE, 1, b"\x08\x03103"), "prematurely closed stream"),
        (frame(Headers, WHOLE, 1, b"\x88\xbe"), "invalid http2 table index: 62"),
        (frame(Headers, WHOLE, 1, b"\x21\x88"), "invalid http2 dynamic table size update: 1"),
        (frame(Headers, WHOLE, 1, b"\x88\x00\x01A\x01b"), "invalid header: \"A: b\""),
        (frame(Headers, WHOLE, 1, b"\x88\x00\x01\xe9\x01b"), "invalid header: \"\\xE9: b\""),
        (frame(Headers, WHOLE, 1, b"\x88\x00\x01a\x02\r\n"), "invalid header: \"a: \\x0D\\x0A\""),
        (frame(Headers, WHOLE, 1, b"\x88\x00\x00\x00"), "zero http2 header name length"),
        (frame(Headers, WHOLE, 1, b"\x88\x00\x05a"), "truncated http2 header"),
        (frame(Headers, WHOLE | 8, 1, b"\x09\x88"), "too long padding: 9 in frame 1"),
        (frame(Continuation, WHOLE, 1, b"\x88"), "unexpected http2 frame: 9"),
        ([frame(Headers, 0, 1, b"\x88"), frame(Ping, 0, 0, &[0; 8])].concat(), "frame: 6"),
        (frame(PushPromise, WHOLE, 1, b"\0\0\0\x02\x82"), "unexpected push promise frame"),
        (frame(Settings, 0, 0, b"abc"), "settings frame with invalid length: 3"),
        (frame(Settings, 0, 1, b""), "settings frame with non-zero stream id: 1"),
        (frame(Settings, 0, 0, b"\0\x04\x80\0\0\0"), "initial window size: 2147483648"),
        (frame(Ping, 0, 0, b"abc"), "ping frame with invalid length: 3"),
        (frame(Ping, 1, 0, &[0; 8]), "ping frame with ack flag"),
        (frame(WindowUpdate, 0, 0, &[0; 4]), "zero window update"),
        (frame(WindowUpdate, 0, 1, &[0x7f, 0xff, 0xff, 0xff]), "too large window update"),
        (frame(RstStream, 0, 1, b"abc"), "rst stream frame with invalid length: 3"),
        (frame(Goaway, 0, 0, &[0; 7]), "goaway frame with invalid length: 7"),
    ];
    // What follows in the same segment makes no answer of it.
    let and_answers = |wrong: Vec<u8>| {
        let head = frame(Headers, frame::END_HEADERS, 1, b"\x88");
        [wrong, head, frame(Data, frame::END_STREAM, 1, b"body")].concat()
    };
    cases.push((and_answers(frame(Data, 0, 1, b"body")), "unexpected http2 frame: 0"));
    cases.push((and_answers(frame(WindowUpdate, 0, 1, &[0; 4])), "zero window update"));
    let texts: Vec<&str> = cases.iter().map(|(_, text)| *text).collect();
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        let n: usize = head.field(":path")[1..].parse().unwrap();
        let bytes = cases[n].0.clone();
        talk.write(|out| out.extend_from_slice(&bytes));
        Some(())
    });
    // Of two modules that pass requests on, the last one does.
    for inside in ["", "grpc_pass u;"] {
        let server = start(&peer, "keepalive 0;", inside);
        for (n, text) in texts.iter().enumerate() {
            let status = ask(&server, &format!("/{n}")).response().status;
            assert_eq!(status, 502, "{text}: {}", server.log());
            server.wait_log(text, 1);
        }
        // A busy machine may hold the loop up.
        let held_up = server.logged("the event loop was held up");
        assert_eq!(server.logged("[error]") - held_up, texts.len(), "{}", server.log());
        assert_eq!(server.logged("panicked"), 0);
    }
}

#[test]
fn a_path_does_not_climb() {
    let peer = Peer::answering(str::to_owned);
    let server = start_all(&peer, "", "", "location /api { proxy_pass http://u/v1/; }");
    assert_eq!(ask(&server, "/api/x").response().body(), "/v1//x");
    assert_eq!(ask(&server, "/api../x").response().status, 403);
}

#[test]
fn heads_have_their_limit() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        match head.field(":path") {
            "/large" => {
                let large = "x".repeat(5000);
                talk.fields(head.id, &[(":status", "200"), ("x", &large)], true);
                // The connection stays good.
                let next = talk.head()?;
                talk.answer(next.id, "next");
            }
            "/hints" => loop {
                // As long as the peer reads.
                talk.fields(head.id, &[(":status", "103"), ("link", &"x".repeat(1000))], false);
                talk.write(|out| {
                    FrameHead { len: 8, kind: FrameType::Ping, flags: 0, stream: 0 }.write(out);
                    out.extend_from_slice(&[0; 8]);
                });
                loop {
                    match talk.next()? {
                        Event::Pong => break,
                        Event::Reset(..) => return Some(()),
                        _ => {}
                    }
                }
            },
            _ => {
                let mut bytes = Vec::new();
                FrameHead { len: 1, kind: FrameType::Headers, flags: 0, stream: head.id }
                    .write(&mut bytes);
                bytes.push(0x88);
                let field = [b"\x00\x01a\x7f\x00".as_slice(), &[b'x'; 127]].concat();
                for _ in 0..100 {
                    FrameHead {
                        len: field.len() * 100,
                        kind: FrameType::Continuation,
                        flags: 0,
                        stream: head.id,
                    }
                    .write(&mut bytes);
                    bytes.extend_from_slice(&field.repeat(100));
                }
                talk.write(|out| out.extend_from_slice(&bytes));
                while !matches!(talk.next()?, Event::Goaway(11)) {}
            }
        }
        Some(())
    });
    let server = start(&peer, "", "proxy_read_timeout 2s;");
    assert_eq!(ask(&server, "/large").response().status, 502);
    assert_eq!(ask(&server, "/").response().body(), "next");
    assert_eq!(peer.opened(), 1);
    drop(peer);
    let endless = Peer::new(|_, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        loop {
            talk.write(|out| {
                let mut block = vec![0x88];
                block.resize(16_000, 0x8f);
                let kind = FrameType::Headers;
                FrameHead { len: 0, kind, flags: 0, stream: head.id }.write(out);
                for _ in 0..8 {
                    FrameHead {
                        len: 16_000,
                        kind: FrameType::Continuation,
                        flags: 0,
                        stream: head.id,
                    }
                    .write(out);
                    out.extend_from_slice(&block);
                }
            });
            while !matches!(talk.next()?, Event::Goaway(11)) {}
        }
    });
    let server = start(&endless, "", "");
    assert_eq!(ask(&server, "/").response().status, 502);
    server.wait_log("upstream sent too big header while reading response header", 1);
}

#[test]
fn a_server_that_takes_no_body_has_its_time() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[Setting::InitialWindowSize(0)]);
        talk.head()?;
        while talk.next().is_some() {}
        Some(())
    });
    let server = start(&peer, "", "proxy_send_timeout 100ms; proxy_next_upstream off;");
    assert_eq!(post(&server, "/", &[b'b'; 100_000]).response().status, 504);
    server.wait_log("upstream timed out (110: Connection timed out)", 1);
}

#[test]
fn a_server_whose_frames_would_hold_too_little_is_refused() {
    const PROTOCOL_ERROR: u32 = 1;
    let (tell, told) = channel();
    let peer = Peer::new(move |number, talk| {
        let size = if number == 1 { 1 } else { 1 << 24 };
        talk.settings(&[Setting::MaxFrameSize(size)]);
        loop {
            match talk.next()? {
                Event::Goaway(code) => tell.send(code).ok()?,
                Event::Head(head) => talk.answer(head.id, ""),
                _ => {}
            }
        }
    });
    let server = start(&peer, "", "proxy_next_upstream off;");
    for size in [1, 1 << 24] {
        assert_eq!(ask(&server, "/").response().status, 502);
        server.wait_log(
            &format!("upstream sent settings frame with incorrect max frame size: {size}"),
            1,
        );
        assert_eq!(told.recv_timeout(PATIENCE), Ok(PROTOCOL_ERROR));
    }
}
