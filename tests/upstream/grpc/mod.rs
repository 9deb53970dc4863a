//! Calls that weir passes to gRPC servers.

mod ends;
mod foreign;

use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};
use weir_testkit::{Dir, PATIENCE, Server, examples};

use super::WEIR;
use super::http2::peer::{Event, Head, Peer, Talk};

/// A server with one loop that passes all to `peer`, with `inside` in the location and `beside` it.
fn start(peer: &Peer, inside: &str, beside: &str) -> Server {
    start_with(peer, "keepalive 2;", inside, beside)
}

/// The same, with `group` beside the peer.
fn start_with(peer: &Peer, group: &str, inside: &str, beside: &str) -> Server {
    let port = peer.port;
    let conf = format!(
        "worker_processes 1; worker_threads 1; error_log logs/error.log info; events {{ }}
         http {{
             early_hints $http_te;
             upstream u {{ server 127.0.0.1:{port}; {group} }}
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 http2 on;
                 location / {{ grpc_pass grpc://u; {inside} }}
                 {beside}
             }}
         }}"
    );
    Server::start_in(Dir::new(), WEIR, &conf)
}

/// Begins a call.
fn call(client: &mut Talk, id: u32, path: &str, more: &[(&str, &str)]) {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "here"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ];
    client.fields(id, &[&fields, more].concat(), false);
}

/// The next frame of a stream that tells something of its answer.
fn next(client: &mut Talk, id: u32) -> Event {
    loop {
        match client.next().expect("the connection lives") {
            Event::Head(head) if head.id == id => return Event::Head(head),
            Event::Data(stream, data, last) if stream == id => return Event::Data(id, data, last),
            Event::Reset(stream, code) if stream == id => return Event::Reset(id, code),
            _ => {}
        }
    }
}

fn head(client: &mut Talk, id: u32) -> Head {
    match next(client, id) {
        Event::Head(head) => head,
        other => panic!("a head is expected, not {other:?}"),
    }
}

/// What comes of a stream's body until it ends, and the head behind it, if there is one.
fn rest(client: &mut Talk, id: u32) -> (Vec<u8>, Option<Head>) {
    let mut body = Vec::new();
    loop {
        match next(client, id) {
            Event::Data(_, data, last) => {
                body.extend_from_slice(&data);
                if last {
                    return (body, None);
                }
            }
            Event::Head(head) => return (body, Some(head)),
            other => panic!("{other:?} ends the body"),
        }
    }
}

/// What is wrong behind a head breaks the answer off.
fn is_refused(client: &mut Talk, id: u32) -> bool {
    if head(client, id).field(":status") != "200" {
        return false;
    }
    loop {
        match next(client, id) {
            Event::Reset(..) => return true,
            Event::Data(_, data, last) if data == b"begun" && !last => {}
            _ => return false,
        }
    }
}

const OK: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/grpc")];

/// Answers what comes, a message for a message.
pub fn echo(_: usize, talk: &mut Talk) -> Option<()> {
    talk.settings(&[]);
    loop {
        match talk.next()? {
            Event::Head(head) => talk.fields(head.id, &OK, false),
            Event::Data(id, data, last) => {
                if !data.is_empty() {
                    talk.data(id, &data, false);
                }
                if last {
                    talk.fields(id, &[("grpc-status", "0"), ("grpc-message", "")], true);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn a_call_goes_through() {
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        loop {
            let head = talk.head()?;
            tell.lock().unwrap().send((head.fields.clone(), head.ended)).unwrap();
            talk.fields(head.id, &[&OK[..], &[("date", "x"), ("x-own", "1")]].concat(), false);
            talk.data(head.id, b"message", false);
            talk.fields(head.id, &[("grpc-status", "0"), ("x-sum-bin", "AP8")], true);
        }
    });
    let inside = "grpc_set_header X-Set \"<$http_x>\"; grpc_hide_header X-Own;";
    let server = start(&peer, inside, "");
    let mut client = Talk::client(server.port());
    call(&mut client, 1, "/a.B/C?d=%2f", &[("grpc-timeout", "5S"), ("x", "y")]);
    client.data(1, b"asked", true);
    let answer = head(&mut client, 1);
    assert_eq!(answer.field(":status"), "200", "{}", server.log());
    assert_eq!(answer.field("content-type"), "application/grpc");
    assert_ne!(answer.field("date"), "x");
    assert_eq!((answer.field("x-own"), answer.ended), ("", false));
    let (body, trailers) = rest(&mut client, 1);
    assert_eq!(body, b"message");
    let trailers = trailers.expect("trailers");
    assert_eq!((trailers.field("grpc-status"), trailers.field("x-sum-bin")), ("0", "AP8"));
    assert!(trailers.ended);
    let (fields, ended) = told.recv().unwrap();
    let asked = Head { id: 0, fields, ended };
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/a.B/C?d=%2f"),
        (":authority", "u"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", "5S"),
        ("x-set", "<y>"),
    ] {
        assert_eq!(asked.field(name), value, "{:?}", asked.fields);
    }
    assert_eq!(asked.fields.iter().filter(|(name, _)| name == "te").count(), 1);
    // A client that knows of no trailers asks for none.
    let get = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "here")];
    client.fields(3, &get, true);
    head(&mut client, 3);
    let (fields, ended) = told.recv().unwrap();
    assert!(ended && !fields.iter().any(|(name, _)| name == "te"), "{fields:?}");
    assert_eq!(peer.opened(), 1);
}

/// Calls with one message each, as most are.
#[test]
fn calls_share_a_connection() {
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        loop {
            if let Event::Data(id, _, true) = talk.next()? {
                tell.lock().unwrap().send(id).unwrap();
            }
        }
    });
    let server = start(&peer, "", "");
    let mut client = Talk::client(server.port());
    // None is answered.
    for id in (1..80).step_by(2) {
        client.at_once(|client| {
            call(client, id, "/a.B/C", &[]);
            client.data(id, b"message", true);
        });
        assert_eq!(told.recv_timeout(PATIENCE), Ok(id), "{}", server.log());
    }
    assert_eq!(peer.opened(), 1);
}

#[test]
fn the_example_of_the_docs_serves() {
    let page = include_str!("../../../docs/grpc.md");
    let peer = Peer::new(echo);
    let (port, http) = (peer.port.to_string(), examples(page).next().expect("an example"));
    let http = http.replace("8080", "%%PORT%%").replace("50051", &port);
    // The other one is down from the start.
    let http = http.replace("50052", "%%PORT1%%");
    let server = Server::start_in(Dir::new(), WEIR, &format!("events {{ }} http {{ {http} }}"));
    let mut client = Talk::client(server.port());
    call(&mut client, 1, "/", &[]);
    client.data(1, b"message", true);
    assert_eq!(head(&mut client, 1).field(":status"), "200");
    let (body, trailers) = rest(&mut client, 1);
    assert_eq!((body.as_slice(), trailers.is_some()), (b"message".as_slice(), true));
    client.fields(
        3,
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/unavailable"),
            (":authority", "here"),
        ],
        true,
    );
    assert_eq!(head(&mut client, 3).field(":status"), "404");
}

#[test]
fn both_directions_go_on_at_once() {
    let peer = Peer::new(echo);
    let server = start(&peer, "", "");
    let mut client = Talk::client(server.port());
    call(&mut client, 1, "/", &[]);
    assert_eq!(head(&mut client, 1).field(":status"), "200");
    for message in [b"first".as_slice(), b"second", b"third"] {
        client.data(1, message, false);
        assert_eq!(next(&mut client, 1), Event::Data(1, message.to_vec(), false));
    }
    client.data(1, b"", true);
    let (_, trailers) = rest(&mut client, 1);
    assert_eq!(trailers.map(|head| head.field("grpc-status").to_owned()).as_deref(), Some("0"));
}

#[test]
fn an_answer_may_be_nothing_but_trailers() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        loop {
            let head = talk.head()?;
            talk.fields(head.id, &[&OK[..], &[("grpc-status", "12")]].concat(), true);
        }
    });
    let server = start(&peer, "grpc_pass_header Server;", "");
    let mut client = Talk::client(server.port());
    for id in [1, 3] {
        call(&mut client, id, "/", &[]);
        client.data(id, b"asked", true);
        let answer = head(&mut client, id);
        assert_eq!(answer.field("content-length"), "0");
        assert!(answer.field("server").starts_with("weir/"));
        // grpc-go and others take an empty frame behind such a head for a broken call.
        assert_eq!((answer.field("grpc-status"), answer.ended), ("12", true));
    }
}

#[test]
fn trailers_behind_a_head_are_passed_on_though_no_message_came() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        loop {
            let head = talk.head()?;
            let length = [("content-length", "0")];
            let length = if head.field(":path") == "/empty" { &length[..] } else { &[] };
            talk.at_once(|talk| {
                talk.fields(head.id, &[&OK[..], length].concat(), false);
                talk.fields(head.id, &[("grpc-status", "5")], true);
            });
        }
    });
    let server = start(&peer, "", "");
    let mut client = Talk::client(server.port());
    for (id, path, length) in [(1, "/", ""), (3, "/empty", "0")] {
        call(&mut client, id, path, &[]);
        client.data(id, b"asked", true);
        let answer = head(&mut client, id);
        assert_eq!((answer.field("content-length"), answer.ended), (length, false));
        let (body, trailers) = rest(&mut client, id);
        assert!(body.is_empty());
        assert_eq!(trailers.expect("trailers").field("grpc-status"), "5");
    }
}

/// As in nginx, they may be as long as a head.
#[test]
fn trailers_that_are_longer_than_a_buffer_are_refused() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        loop {
            let head = talk.head()?;
            let len = head.field(":path").trim_start_matches('/').parse().ok()?;
            talk.fields(head.id, &OK, false);
            talk.fields(head.id, &[("grpc-status", "5"), ("x-sum", &"x".repeat(len))], true);
        }
    });
    for (size, len, whole) in [(4, 4000, true), (4, 5000, false), (8, 8000, true), (8, 9000, false)]
    {
        let server = start(&peer, &format!("grpc_buffer_size {size}k;"), "");
        let mut client = Talk::client(server.port());
        call(&mut client, 1, &format!("/{len}"), &[]);
        client.data(1, b"", true);
        head(&mut client, 1);
        let next = next(&mut client, 1);
        assert_eq!(matches!(next, Event::Head(_)), whole, "{size} {len}: {next:?}");
    }
}

#[test]
fn a_failure_becomes_a_status_that_clients_know() {
    let peer = Peer::new(|number, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        match number {
            1 => return None,
            _ => talk.fields(head.id, &[(":status", "503")], true),
        }
        Some(())
    });
    let beside = "
        location = /unavailable {
            internal;
            default_type application/grpc;
            add_header grpc-status 14;
            add_header grpc-message unavailable;
            return 204;
        }";
    let inside = "error_page 502 503 = /unavailable; grpc_intercept_errors on;";
    let server = start(&peer, inside, beside);
    for (id, log) in [(1, 1), (3, 0)] {
        let mut client = Talk::client(server.port());
        call(&mut client, id, "/", &[]);
        client.data(id, b"asked", true);
        let answer = head(&mut client, id);
        assert_eq!(answer.field("grpc-status"), "14", "{:?} {}", answer, server.log());
        assert_eq!((answer.field("grpc-message"), answer.ended), ("unavailable", true));
        if log > 0 {
            server.wait_log("while reading response header from upstream", log);
            // A stream's request is told by its connection.
            server.wait_log(&format!("upstream: \"grpc://127.0.0.1:{}\", host", peer.port), log);
        }
    }
}

#[test]
fn hints_come_first() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        talk.fields(head.id, &[(":status", "103"), ("x-hint", "soon")], false);
        talk.fields(head.id, &[&OK[..], &[("grpc-status", "0")]].concat(), true);
        Some(())
    });
    let server = start(&peer, "", "");
    let mut client = Talk::client(server.port());
    call(&mut client, 1, "/", &[]);
    let hint = head(&mut client, 1);
    assert_eq!((hint.field(":status"), hint.field("x-hint")), ("103", "soon"));
    let answer = head(&mut client, 1);
    assert_eq!((answer.field(":status"), answer.ended), ("200", true));
}

#[test]
fn a_side_that_gives_up_resets_the_other() {
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        let given_up = talk.head()?;
        talk.fields(given_up.id, &OK, false);
        assert_eq!(talk.reset_of(given_up.id), Some(ErrorCode::Cancel as u32));
        tell.lock().unwrap().send(()).unwrap();
        let begun = talk.head()?;
        talk.fields(begun.id, &OK, false);
        talk.data(begun.id, b"begun", false);
        talk.reset(begun.id, ErrorCode::Internal);
        let last = talk.head()?;
        talk.fields(last.id, &[&OK[..], &[("grpc-status", "0")]].concat(), true);
        Some(())
    });
    let server = start(&peer, "", "");
    let mut client = Talk::client(server.port());
    call(&mut client, 1, "/", &[]);
    client.data(1, b"asked", false);
    assert_eq!(head(&mut client, 1).field(":status"), "200");
    client.reset(1, ErrorCode::Cancel);
    // Another call may overtake the word.
    told.recv_timeout(PATIENCE).unwrap();
    call(&mut client, 3, "/", &[]);
    client.data(3, b"asked", true);
    assert!(is_refused(&mut client, 3), "{}", server.log());
    server.wait_log("upstream rejected request with error 2 while reading", 1);
    call(&mut client, 5, "/", &[]);
    client.data(5, b"asked", true);
    assert_eq!(head(&mut client, 5).field("grpc-status"), "0");
    assert_eq!(peer.opened(), 1);
}

/// A server that answers early ends the call with a reset, which may come in the same read as the whole answer.
#[test]
fn an_answer_that_is_complete_outlives_the_reset_behind_it() {
    const CODES: [ErrorCode; 5] = [
        ErrorCode::NoError,
        ErrorCode::Internal,
        ErrorCode::StreamClosed,
        ErrorCode::RefusedStream,
        ErrorCode::Cancel,
    ];
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        for code in CODES.into_iter().flat_map(|code| [code; 2]) {
            let asked = talk.head()?;
            let status = [("grpc-status", "5"), ("grpc-message", "no")];
            talk.at_once(|talk| {
                if asked.field(":path") == "/bare" {
                    talk.fields(asked.id, &[&OK[..], &status].concat(), true);
                } else {
                    talk.fields(asked.id, &OK, false);
                    talk.data(asked.id, b"said", false);
                    talk.fields(asked.id, &status, true);
                }
                talk.reset(asked.id, code);
            });
        }
        Some(())
    });
    let server = start(&peer, "", "");
    let mut client = Talk::client(server.port());
    for (n, code) in (0u32..).zip(CODES) {
        call(&mut client, 4 * n + 1, "/bare", &[]);
        let answer = head(&mut client, 4 * n + 1);
        assert_eq!(answer.field(":status"), "200", "{code:?}: {}", server.log());
        assert_eq!((answer.field("grpc-status"), answer.ended), ("5", true), "{code:?}");
        call(&mut client, 4 * n + 3, "/full", &[]);
        assert_eq!(head(&mut client, 4 * n + 3).field(":status"), "200", "{code:?}");
        if !matches!(code, ErrorCode::NoError | ErrorCode::StreamClosed) {
            // The answer has begun, and breaks off.
            assert!(client.reset_of(4 * n + 3).is_some(), "{code:?}");
            continue;
        }
        let (body, trailers) = rest(&mut client, 4 * n + 3);
        assert_eq!(body, b"said", "{code:?}");
        assert_eq!(trailers.unwrap().field("grpc-status"), "5", "{code:?}");
    }
    assert_eq!(peer.opened(), 1);
}

#[test]
fn a_server_that_sends_too_much_is_stopped() {
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[Setting::InitialWindowSize(1 << 20)]);
        let head = talk.head()?;
        talk.fields(head.id, &OK, false);
        // The other side reads nothing, and this side sends all the same.
        let piece = vec![b'p'; frame::MAX_PAYLOAD];
        for _ in 0..2000 {
            talk.data(head.id, &piece, false);
        }
        tell.lock().unwrap().send(()).unwrap();
        assert_eq!(talk.reset_of(head.id), Some(ErrorCode::Cancel as u32));
        Some(())
    });
    let server = start(&peer, "", "");
    let mut client = Talk::client(server.port());
    call(&mut client, 1, "/", &[]);
    told.recv().unwrap();
    for id in [0, 1] {
        client.write(|out| frame::write_window_update(id, 1 << 24, out));
    }
    let mut came = 0;
    let code = loop {
        match next(&mut client, 1) {
            Event::Data(_, data, _) => came += data.len(),
            Event::Reset(_, code) => break code,
            _ => {}
        }
    };
    assert!(came <= 1 << 20, "{came}");
    assert_eq!(code, ErrorCode::Internal as u32);
    server.wait_log("upstream violated stream flow control, received 16384 data frame", 1);
}

#[test]
fn what_is_no_call_is_refused() {
    // Behind a head that came in order.
    let cases: [(Vec<u8>, &str); 4] = [
        (
            bytes(FrameType::Headers, frame::END_HEADERS, b"\x00\x01a\x01b"),
            "trailer without end stream",
        ),
        (bytes(FrameType::Headers, 5, b"\x88"), "upstream sent invalid trailer \":status: 200\""),
        (bytes(FrameType::Continuation, 4, b""), "upstream sent unexpected http2 frame: 9"),
        (bytes(FrameType::Data, 8, b"\x09"), "too long padding: 9 in frame 0"),
    ];
    let texts: Vec<&str> = cases.iter().map(|(_, text)| *text).collect();
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        let (bytes, _) = &cases[head.field(":path")[1..].parse::<usize>().unwrap()];
        talk.fields(head.id, &OK, false);
        talk.data(head.id, b"begun", false);
        talk.write(|out| out.extend_from_slice(bytes));
        Some(())
    });
    let server = start_with(&peer, "keepalive 0;", "", "");
    for (n, text) in texts.iter().enumerate() {
        let mut client = Talk::client(server.port());
        call(&mut client, 1, &format!("/{n}"), &[]);
        client.data(1, b"asked", true);
        assert!(is_refused(&mut client, 1), "{text}: {}", server.log());
        server.wait_log(text, 1);
    }
    // A busy machine may hold the loop up.
    let held_up = server.logged("the event loop was held up");
    assert_eq!(server.logged("[error]") - held_up, texts.len(), "{}", server.log());
    assert_eq!(server.logged("panicked"), 0);
}

fn bytes(kind: FrameType, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    FrameHead { len: payload.len(), kind, flags, stream: 1 }.write(&mut out);
    out.extend_from_slice(payload);
    out
}
