//! Requests and answers that break off, or are malformed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quinn::{Connection, ReadError, RecvStream, SendStream, WriteError};
use weir_testkit::listen;

use super::hq::{client, request, run_client};
use super::*;

/// RFC 9114, section 8.1: H3_INTERNAL_ERROR.
const INTERNAL: u32 = 0x102;

/// The name of the server's certificate.
pub const HOST: &str = "www.example.org";

/// A frame of this kind.
pub fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap() | 0x8000_0000;
    [&[kind][..], &len.to_be_bytes(), payload].concat()
}

/// A HEADERS frame with these fields, literally.
pub fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in fields {
        // A name's length may go beyond three bits.
        match name.len() as u8 {
            short @ 0..7 => section.push(0x20 + short),
            long => section.extend_from_slice(&[0x27, long - 7]),
        }
        section.extend_from_slice(name.as_bytes());
        match value.len() {
            short @ 0..127 => section.push(short as u8),
            long => {
                let rest = long - 127;
                section.extend_from_slice(&[
                    127,
                    rest as u8 | 0x80,
                    u8::try_from(rest >> 7).unwrap(),
                ]);
            }
        }
        section.extend_from_slice(value.as_bytes());
    }
    frame(1, &section)
}

/// The head of a request for this path, with more fields.
pub fn get(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let first = [(":method", "GET"), (":scheme", "https"), (":path", path), (":authority", HOST)];
    headers(&[&first[..], more].concat())
}

/// A connection that has begun, and its control stream, which must not end.
pub async fn connect(endpoint: &quinn::Endpoint, server: &Server) -> (Connection, SendStream) {
    connect_to(endpoint, server.port()).await
}

async fn connect_to(endpoint: &quinn::Endpoint, port: u16) -> (Connection, SendStream) {
    let address: SocketAddr = ([127, 0, 0, 1], port).into();
    let connection = endpoint.connect(address, HOST).unwrap().await.unwrap();
    let mut settings = connection.open_uni().await.unwrap();
    settings.write_all(&[0, 4, 0]).await.unwrap();
    (connection, settings)
}

/// All that comes of an answer, and how it ends: with this code, or whole.
async fn rest(mut answer: RecvStream) -> (Vec<u8>, Option<u32>) {
    let (mut all, mut room) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match answer.read(&mut room).await {
            Ok(Some(n)) => all.extend_from_slice(&room[..n]),
            Ok(None) => return (all, None),
            Err(ReadError::Reset(code)) => return (all, Some(code.into_inner() as u32)),
            Err(e) => panic!("{e}"),
        }
    }
}

/// A server that sends half of the body that it has announced: the number in the path.
fn half() -> u16 {
    listen(|mut stream: TcpStream| {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let n: usize = head.split(['/', ' ']).find_map(|word| word.parse().ok()).unwrap();
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 2 * n);
        let _ = stream.write_all(&b"d".repeat(n));
    })
}

#[test]
fn what_came_of_an_answer_that_breaks_off_is_sent() {
    let port = half();
    let locations = format!(
        "location / {{ proxy_pass http://127.0.0.1:{port}; }}
         location /direct/ {{ proxy_buffering off; proxy_pass http://127.0.0.1:{port}/; }}"
    );
    let server = start("", &locations);
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _settings) = connect(&endpoint, &server).await;
        for n in [5, 5_000, 300_000] {
            for path in [format!("/{n}"), format!("/direct/{n}")] {
                let answer = request(&connection, &get(&path, &[])).await;
                let (all, code) = rest(answer).await;
                assert_eq!(code, Some(INTERNAL), "{path}");
                let body = all.iter().rev().filter(|byte| **byte == b'd').count();
                assert!(body >= n, "{path}: {body} of {} bytes", all.len());
            }
        }
    });
    server.wait_file("seen.log", " h3 200 /5 ", 1);
}

/// Chromium looks at an answer only when it has sent all, and not at all when it was told to stop.
#[test]
fn the_rest_of_a_body_that_is_refused_is_thrown_away() {
    let server = start(
        "",
        "location / { client_max_body_size 1k; return 200; }
         location /down { proxy_pass http://127.0.0.1:1; proxy_request_buffering off; }
         location /off { client_max_body_size 1k; lingering_close off; return 200; }",
    );
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _settings) = connect(&endpoint, &server).await;
        let body = vec![b'x'; 1_000_000];
        for (path, lingers) in [("/", true), ("/down", true), ("/off", false)] {
            let (mut send, answer) = connection.open_bi().await.unwrap();
            send.write_all(&get(path, &[("content-length", "1000000")])).await.unwrap();
            let (answer, code) = rest(answer).await;
            assert!(!answer.is_empty() && code.is_none(), "{path}");
            let sent = async {
                send.write_all(&frame(0, &body)).await?;
                send.finish().map_err(|_| WriteError::ClosedStream)?;
                Ok(send.stopped().await.unwrap())
            };
            // H3_NO_ERROR
            let expected =
                if lingers { Ok(None) } else { Err(WriteError::Stopped(0x100u32.into())) };
            assert_eq!(sent.await, expected, "{path}");
        }
    });
    server.wait_file("seen.log", " h3 413 / ", 1);
}

#[test]
fn a_field_without_a_name_ends_its_request_alone() {
    let server = start("", "return 200 here;");
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _settings) = connect(&endpoint, &server).await;
        let nameless = [("", "value")];
        let answer = request(&connection, &get("/nameless", &nameless)).await;
        assert_eq!(rest(answer).await.1, None);
        let trailers = [get("/trailers", &[]), headers(&nameless)].concat();
        rest(request(&connection, &trailers).await).await;
        let (answer, code) = rest(request(&connection, &get("/whole", &[])).await).await;
        assert!(answer.ends_with(b"here") && code.is_none());
    });
    server.wait_file("seen.log", " h3 400 /nameless ", 1);
    server.wait_file("seen.log", " h3 200 /whole ", 1);
}

#[test]
fn a_path_that_is_too_long_is_not_taken_for_a_missing_one() {
    let server = start("", "return 200 here;");
    let long = format!("/{}", "a".repeat(9000));
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _settings) = connect(&endpoint, &server).await;
        let (answer, code) = rest(request(&connection, &get(&long, &[])).await).await;
        let page = String::from_utf8_lossy(&answer).into_owned();
        assert!(page.contains("400 Request Header Or Cookie Too Large"), "{page}");
        assert_eq!(code, None);
    });
    server.wait_log("client sent too large header while reading client request", 1);
}

/// As over HTTP/1, the first bytes count, not the last.
#[test]
fn the_time_of_a_request_begins_with_its_head() {
    let http = "log_format times '$status $request_time'; access_log times times;";
    let server = start(
        http,
        "client_header_timeout 1s; location / { return 200 $request_time; }
         location = /clock { access_log off; return 200 $msec; }",
    );
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _settings) = connect(&endpoint, &server).await;
        let clock = async || -> f64 {
            let (answer, _) = rest(request(&connection, &get("/clock", &[])).await).await;
            let text = String::from_utf8_lossy(&answer[answer.len() - 14..]).into_owned();
            text.parse().unwrap()
        };
        let bytes = get("/", &[]);
        let (first, last) = bytes.split_at(bytes.len() - 1);
        let (mut send, answer) = connection.open_bi().await.unwrap();
        send.write_all(first).await.unwrap();
        // What was sent before it was received before it.
        let begun = clock().await;
        while clock().await < begun + 0.02 {}
        send.write_all(last).await.unwrap();
        send.finish().unwrap();
        let (answer, _) = rest(answer).await;
        let time = String::from_utf8_lossy(&answer[answer.len() - 5..]).into_owned();
        assert!(time.parse::<f64>().unwrap() > 0.01, "{time}");
        // One that stays a part has its line, too.
        let (mut send, answer) = connection.open_bi().await.unwrap();
        send.write_all(first).await.unwrap();
        assert!(rest(answer).await.1.is_some());
    });
    server.wait_file("times", "408 ", 1);
    let times = server.dir().read("times");
    assert!(!times.contains("408 0.000"), "{times}");
}

/// How a client ends a request whose head is not whole.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Waits,
    Resets,
    Stops,
    Ends,
    Closes,
}

#[test]
fn requests_without_a_whole_head_have_a_line() {
    let http = "log_format heads '$status $request_length $request $request_uri';
        server {
            listen 127.0.0.1:%%PORT1%% quic reuseport; client_header_timeout 300ms;
            access_log heads.log heads;
        }";
    let server = start(http, "access_log heads.log heads; return 200 here;");
    let whole = get("/whole", &[]);
    let ways = [Leaves::Waits, Leaves::Resets, Leaves::Stops, Leaves::Ends, Leaves::Closes];
    run_client(async {
        let endpoint = client(&server, "h3");
        for (n, way) in (10..).zip(ways) {
            // Only the client that waits is to meet the end of its time.
            let port = if matches!(way, Leaves::Waits) { server.port_at(1) } else { server.port() };
            let (connection, _settings) = connect_to(&endpoint, port).await;
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            let before = connection.stats().frame_rx.acks;
            send.write_all(&whole[..n]).await.unwrap();
            while connection.stats().frame_rx.acks == before {
                tokio::task::yield_now().await;
            }
            match way {
                Leaves::Waits => {}
                Leaves::Resets => send.reset(7u32.into()).unwrap(),
                Leaves::Stops => receive.stop(7u32.into()).unwrap(),
                Leaves::Ends => send.finish().unwrap(),
                Leaves::Closes => connection.close(0u32.into(), b""),
            }
            let status = if matches!(way, Leaves::Waits) { 408 } else { 400 };
            let line = format!("{status} {n} - -\n");
            let logged = || server.dir().read("heads.log").contains(&line);
            while !logged() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        // Only the beginning of a head that is too large.
        let (connection, _settings) = connect(&endpoint, &server).await;
        let large = frame(1, &[0; 1 << 17]);
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        send.write_all(&large[..5]).await.unwrap();
        while !server.dir().read("heads.log").contains("400 5 - -\n") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Nothing has come of this one.
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        send.finish().unwrap();
        let answer = request(&connection, &whole).await;
        assert!(rest(answer).await.0.ends_with(b"here"));
    });
    server.wait_file("heads.log", "200 ", 1);
    assert_eq!(server.dir().read("heads.log").lines().count(), ways.len() + 2);
}

#[test]
fn handshakes_that_are_refused_have_a_line() {
    let inside = "return 200 here; }
        server { listen 127.0.0.1:%%PORT%% quic; server_name refused.test; ssl_reject_handshake on;";
    let server = start("", inside);
    let address: SocketAddr = ([127, 0, 0, 1], server.port()).into();
    run_client(async {
        for (protocol, name) in [("nonsense", HOST), ("h3", "refused.test")] {
            let connecting = client(&server, protocol).connect(address, name).unwrap();
            assert!(connecting.await.is_err(), "{protocol} {name}");
        }
    });
    server.wait_log("SSL_do_handshake() failed (SSL: no application protocol) while", 1);
    server.wait_log("handshake rejected while SSL handshaking, client: 127.0.0.1, server: 127", 1);
}

#[test]
fn the_length_of_a_request_counts_all_that_came() {
    let http = "log_format lengths '$status $request_length';
                server { listen 127.0.0.1:%%PORT1%%; return 200 here; }";
    let inside =
        "access_log lengths.log lengths; location / { proxy_pass http://127.0.0.1:%%PORT1%%; }";
    let server = start(http, inside);
    let unknown = frame(0x21, b"unknown");
    let body = [unknown.clone(), get("/body", &[]), frame(0, b"a body"), unknown].concat();
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _settings) = connect(&endpoint, &server).await;
        for asked in [get("/none", &[]), body.clone()] {
            let answer = request(&connection, &asked).await;
            assert!(rest(answer).await.0.ends_with(b"here"));
            let line = format!("200 {}\n", asked.len());
            while !server.dir().read("lengths.log").contains(&line) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
}

#[test]
fn a_body_is_complete_with_its_trailers() {
    let http = "server { listen 127.0.0.1:%%PORT1%%; return 200 $content_length; }";
    let inside = "location / { proxy_pass http://127.0.0.1:%%PORT1%%; }
                  location /direct/ { proxy_request_buffering off; proxy_pass http://127.0.0.1:%%PORT1%%; }";
    let server = start(http, inside);
    let trailers = [frame(0, b"a body"), headers(&[("a", "b")])].concat();
    run_client(async {
        let endpoint = client(&server, "h3");
        let (connection, _settings) = connect(&endpoint, &server).await;
        let announced = ("content-length", "6");
        for (path, more) in [("/", &[][..]), ("/", &[announced]), ("/direct/", &[announced])] {
            // The end stays away.
            let (mut send, answer) = connection.open_bi().await.unwrap();
            send.write_all(&[&get(path, more)[..], &trailers].concat()).await.unwrap();
            assert!(rest(answer).await.0.ends_with(b"6"), "{path} {more:?}");
        }
        let (mut send, answer) = connection.open_bi().await.unwrap();
        let more = [("content-length", "7")];
        send.write_all(&[get("/less", &more), trailers.clone()].concat()).await.unwrap();
        assert!(!rest(answer).await.0.is_empty());
        // Nothing of a body may come behind them.
        let (mut send, _answer) = connection.open_bi().await.unwrap();
        send.write_all(&[get("/", &[]), trailers, frame(0, b"more")].concat()).await.unwrap();
        connection.closed().await;
    });
    server.wait_file("seen.log", " h3 400 /less ", 1);
}
