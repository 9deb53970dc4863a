//! Hostile clients: their cost is bounded.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::Signal;
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType};
use weir_proto::http2::hpack;
use weir_testkit::{Dir, Server, memory_of, wait_delivered};

use super::{Client, Event, WEIR, conf, start, start_in};

/// Opens streams in portions, since more at once would be refused for another reason, and does to each what makes it end. The
/// client is sent away for that.
fn is_taken_for_a_flood(path: &str, ended: bool, end: impl Fn(u32, &mut Vec<u8>)) {
    let server = start(
        "keepalive_requests 100000; location / { proxy_pass http://127.0.0.1:%%PORT1%%; }
         location /own { return 200 text; }",
    );
    // Accepts, and never answers.
    let _silent = std::net::TcpListener::bind(("127.0.0.1", server.port_at(1))).unwrap();
    let mut client = Client::connect(&server);
    for _ in 0..20 {
        let mut out = Vec::new();
        for _ in 0..50 {
            let id = client.request("GET", path, &[], ended, &mut out);
            end(id, &mut out);
        }
        Client::ping(&[0; 8], &mut out);
        client.stream.write_all(&out).unwrap();
        loop {
            match client.event() {
                Event::Pong(_) => break,
                Event::Goaway(code) => {
                    return assert_eq!(code, ErrorCode::EnhanceYourCalm as u32);
                }
                Event::Closed => panic!("closed without GOAWAY"),
                _ => {}
            }
        }
    }
    panic!("a thousand streams that ended at once were taken");
}

#[test]
fn a_flood_of_cancelled_streams_ends_the_connection() {
    for path in ["/", "/own"] {
        is_taken_for_a_flood(path, true, |id, out| frame::write_reset(id, ErrorCode::Cancel, out));
    }
}

/// CVE-2025-8671: frames that the server answers with a reset.
#[test]
fn a_flood_of_streams_that_have_to_be_reset_ends_the_connection() {
    is_taken_for_a_flood("/", true, |id, out| {
        frame::write_window_update(id, frame::MAX_WINDOW, out);
    });
    is_taken_for_a_flood("/", true, |id, out| {
        FrameHead { len: 1, kind: FrameType::Data, flags: 0, stream: id }.write(out);
        out.push(b'x');
    });
    // Trailers with a field that trailers must not have.
    is_taken_for_a_flood("/", false, |id, out| {
        let begin = frame::leave_head(out);
        hpack::field(b":path", b"/", out);
        frame::finish_headers(out, begin, id, frame::END_STREAM, frame::MAX_PAYLOAD);
    });
}

/// A client has to give windows for what it reads, however small they are.
#[test]
fn windows_for_a_large_answer_are_no_flood() {
    let dir = Dir::new();
    dir.write("large", vec![b'x'; 2_000_000]);
    let server = start_in(dir, "root .; location /text { return 200 text; }");
    let mut client = Client::connect(&server);
    let id = client.get("/large");
    assert_eq!(client.answer(id).body.len(), 2_000_000);
    let mut windows = Vec::new();
    while windows.len() < 9_000_000 {
        frame::write_window_update(0, 1, &mut windows);
    }
    client.stream.write_all(&windows).unwrap();
    let id = client.get("/text");
    assert_eq!(client.answer(id).text(), "text");
}

#[test]
fn a_body_between_padding_arrives() {
    let server = start(
        "location /passed { proxy_pass http://127.0.0.1:%%PORT%%/; }
         location / { return 200 \"$http_content_length\"; }",
    );
    let mut client = Client::connect(&server);
    let id = client.ask("POST", "/passed", &[], false);
    for _ in 0..30 {
        let mut out = Vec::new();
        for _ in 0..50 {
            let flags = frame::PADDED;
            FrameHead { len: 256, kind: FrameType::Data, flags, stream: id }.write(&mut out);
            out.push(255);
            out.extend_from_slice(&[0; 255]);
        }
        Client::ping(&[0; 8], &mut out);
        client.stream.write_all(&out).unwrap();
        while !matches!(client.event(), Event::Pong(_)) {
            assert!(!client.ended.contains_key(&id), "{:?}", client.ended);
        }
    }
    client.data(id, b"x", true);
    assert_eq!(client.answer(id).text(), "1");
}

#[test]
fn the_rest_of_a_control_frame_keeps_no_answer_waiting() {
    let server =
        start("client_header_timeout 50ms; limit_rate 60; return 200 'twenty bytes of text';");
    let mut client = Client::connect(&server);
    let id = client.get("/");
    client.write(|out| {
        Client::ping(&[0; 3], out);
    });
    assert_eq!(client.answer(id).text(), "twenty bytes of text");
    // Without a request, the time of the frame is over.
    assert_eq!(client.goaway(), ErrorCode::Protocol as u32);
}

#[test]
fn what_was_asked_before_a_broken_frame_is_answered() {
    let server = start("return 200 text;");
    let mut client = Client::connect(&server);
    let mut out = Vec::new();
    let id = client.request("GET", "/", &[], true, &mut out);
    FrameHead { len: 0, kind: FrameType::Continuation, flags: 0, stream: id }.write(&mut out);
    client.write(|o| o.extend_from_slice(&out));
    assert_eq!(client.answer(id).text(), "text");
    assert_eq!(client.goaway(), ErrorCode::Protocol as u32);
    let mut client = greeted(&server);
    client.gives_windows = false;
    let id = client.get("/");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.answer(id).text(), "text");
}

#[test]
fn a_field_is_as_long_as_it_is_written() {
    let server = start("return 200 text;");
    let mut client = Client::connect(&server);
    for (length, fits) in [(8192, true), (10_000, true), (13_000, true), (13_200, false)] {
        let cookie = "a".repeat(length);
        let id = client.ask("GET", "/", &[("cookie", &cookie)], true);
        match fits {
            true => assert_eq!(client.answer(id).text(), "text", "{length}"),
            false => assert_eq!(client.goaway(), ErrorCode::EnhanceYourCalm as u32),
        }
    }
}

#[test]
fn endless_heads_end_the_connection() {
    let server = start("return 200;");
    let mut client = Client::connect(&server);
    let mut out = Vec::new();
    FrameHead { len: 1, kind: FrameType::Headers, flags: 0, stream: 1 }.write(&mut out);
    out.push(0x82);
    for _ in 0..20_000 {
        FrameHead { len: 0, kind: FrameType::Continuation, flags: 0, stream: 1 }.write(&mut out);
    }
    let _ = client.stream.write_all(&out);
    assert_eq!(client.goaway(), ErrorCode::EnhanceYourCalm as u32);
}

#[test]
fn a_head_that_unfolds_to_more_than_the_limit_ends_the_connection() {
    let server = start("access_log %%DIR%%/seen.log; return 200;");
    let mut client = Client::connect(&server);
    let value = "v".repeat(4000);
    let mut block = Vec::new();
    // One field goes into the table, and is named again and again.
    block.extend_from_slice(&[0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
    block.extend_from_slice(value.as_bytes());
    block.extend_from_slice(&[0xbe; 1000]);
    client.write(|out| {
        let begin = frame::leave_head(out);
        out.extend_from_slice(&block);
        frame::finish_headers(out, begin, 1, frame::END_STREAM, frame::MAX_PAYLOAD);
    });
    assert_eq!(client.goaway(), ErrorCode::EnhanceYourCalm as u32);
    server.wait_file("seen.log", "\"-\" 000 0", 1);
}

/// A client that writes nothing more by itself.
pub fn greeted(server: &Server) -> Client {
    let mut client = Client::connect(server);
    while client.settings.is_empty() {
        assert_eq!(client.event(), Event::Other);
    }
    client
}

/// So many bytes of the same frame.
fn repeated(kind: FrameType, payload: &[u8], stream: u32, bytes: usize) -> Vec<u8> {
    let mut frames = Vec::new();
    while frames.len() < bytes {
        FrameHead { len: payload.len(), kind, flags: 0, stream }.write(&mut frames);
        frames.extend_from_slice(payload);
    }
    frames
}

const FLOOD: &str = "http2 flood detected";

/// Frames of one kind, nothing else, from a client that reads what it is told; how it ends, as the log tells.
fn flood(kind: FrameType, payload: &[u8], stream: u32, end: &str) {
    let server = start("return 200;");
    let mut client = greeted(&server);
    let frames = repeated(kind, payload, stream, 64 * 1024);
    let mut writing = client.stream.try_clone().unwrap();
    // It goes on until it is told to go, or has sent more than is ever taken.
    let flooding = std::thread::spawn(move || {
        let mut sent = 0;
        while sent < 32 << 20 && writing.write_all(&frames).is_ok() {
            sent += frames.len();
        }
        let _ = writing.shutdown(std::net::Shutdown::Write);
    });
    // A client that reads too slowly does not see the GOAWAY behind all that it has not read.
    while !matches!(client.event(), Event::Goaway(_) | Event::Closed) {}
    let _ = client.stream.shutdown(std::net::Shutdown::Both);
    flooding.join().unwrap();
    server.wait_log(end, 1);
}

#[test]
fn a_flood_of_pings_ends_the_connection() {
    flood(FrameType::Ping, &[0; 8], 0, FLOOD);
}

#[test]
fn a_flood_of_settings_ends_the_connection() {
    // INITIAL_WINDOW_SIZE, which changes the window of every stream.
    flood(FrameType::Settings, &[0, 4, 0, 0, 255, 255], 0, FLOOD);
}

#[test]
fn a_flood_of_unknown_frames_ends_the_connection() {
    flood(FrameType::Unknown(0xee), &[0; 1000], 0, FLOOD);
}

/// The log has nginx's words for frames that are ignored or refused, so that searches of its log find them.
#[test]
fn odd_frames_are_logged_in_the_words_of_nginx() {
    // The answer is not over when the window grows.
    let server = start("limit_rate 1; return 200 'an answer that takes its time';");
    let mut client = greeted(&server);
    let id = client.get("/");
    while client.event() != Event::Stream(id) {}
    let unknown = repeated(FrameType::Unknown(0xee), &[0; 3], 0, 1);
    client.write(|out| {
        out.extend_from_slice(&unknown);
        frame::write_window_update(id, frame::MAX_WINDOW, out);
    });
    assert_eq!(client.answer(id).reset, Some(ErrorCode::FlowControl as u32));
    server.wait_log("client sent frame with unknown type 238 while processing", 1);
    let text = "window increment 2147483647 not allowed for window ";
    server.wait_log(text, 1);

    let text = "client sent HEADERS frame with incorrect length 0";
    for (flags, payload, text) in [
        (frame::PADDED, &[][..], text),
        (frame::END_HEADERS, &[0xbe], "client sent out of bound hpack table index: 0"),
        (frame::END_HEADERS, &[0x80], "client sent invalid hpack table index 0"),
    ] {
        let mut client = greeted(&server);
        let mut frames = repeated(FrameType::Headers, payload, 1, 1);
        frames[4] = flags;
        client.stream.write_all(&frames).unwrap();
        client.goaway();
        server.wait_log(text, 1);
    }
}

#[test]
fn a_flood_of_priorities_ends_the_connection() {
    flood(FrameType::Priority, &[0, 0, 0, 3, 16], 1, "client sent too many PRIORITY frames");
}

/// Frames that end with a stream's cancellation, and a request on another connection, all while the loop was away: the
/// request is looked at before the last of the frames.
#[test]
fn others_get_their_turn_during_a_flood() {
    let server = start(
        "location = /denied { deny all; } location / { proxy_pass http://127.0.0.1:%%PORT1%%; }",
    );
    // Accepts, and never answers.
    let _silent = std::net::TcpListener::bind(("127.0.0.1", server.port_at(1))).unwrap();
    let mut client = greeted(&server);
    let id = client.get("/");
    let mut other = server.connect();
    assert_eq!(other.get("/denied").status, 403);

    // More than is read at once, and no more than fits into a socket that is not read.
    let mut frames = repeated(FrameType::Ping, &[0; 8], 0, 60 * 1000);
    frame::write_reset(id, ErrorCode::Cancel, &mut frames);
    let worker = server.workers()[0];
    // A loop amidst a turn would not hear of the other one before the next.
    server.wait_asleep(worker);
    server.signal_worker(worker, Signal::STOP);
    client.stream.write_all(&frames).unwrap();
    wait_delivered(&client.stream);
    other.deliver("GET /denied HTTP/1.1\r\nHost: a\r\n\r\n");
    server.signal_worker(worker, Signal::CONT);
    assert_eq!(other.response().status, 403);
    let (cancelled, denied) = ("client canceled stream", "access forbidden by rule");
    server.wait_log(cancelled, 1);
    let log = server.log();
    assert!(log.rfind(denied) < log.find(cancelled), "the whole flood went first");
}

/// An upload that its client gives up is no fault of the request's form.
#[test]
fn an_upload_that_is_given_up_is_logged_as_one_whose_client_left() {
    let server = start(
        "access_log %%DIR%%/status.log; location / { proxy_pass http://127.0.0.1:%%PORT1%%; }",
    );
    let mut client = greeted(&server);
    let mut frames = Vec::new();
    let id = client.request("POST", "/", &[("content-length", "10")], false, &mut frames);
    frame::FrameHead { len: 5, kind: FrameType::Data, flags: 0, stream: id }.write(&mut frames);
    frames.extend_from_slice(b"hello");
    frame::write_reset(id, ErrorCode::Cancel, &mut frames);
    client.stream.write_all(&frames).unwrap();
    server.wait_file("status.log", "\"POST / HTTP/2.0\" 499 0", 1);
    server.wait_log("client prematurely closed stream", 1);
    // The same where the server behind has been asked, and the connection lives on.
    let _silent = std::net::TcpListener::bind(("127.0.0.1", server.port_at(1))).unwrap();
    let asked = client.get("/");
    client.write(|out| frame::write_reset(asked, ErrorCode::Cancel, out));
    server.wait_file("status.log", "\"GET / HTTP/2.0\" 499 0", 1);
    assert_eq!(server.logged("upstream connection is closed too"), 0, "{}", server.log());
    // The log says which request that was.
    let line = server.wait_line(&format!("client canceled stream {asked}"));
    assert!(line.contains("request: \"GET / HTTP/2.0\", upstream: "), "{line}");
}

#[test]
fn the_log_names_the_answers_that_a_lost_connection_cuts_off() {
    let dir = Dir::new();
    dir.write("html/big", vec![b'x'; 200_000]);
    let server = start_in(dir, "root html;");
    let mut client = greeted(&server);
    client.gives_windows = false;
    let id = client.get("/big");
    while client.ended.get(&id).is_none_or(|answer| answer.body.is_empty()) {
        client.event();
    }
    drop(client);
    let text = "client prematurely closed connection while sending response to client";
    let line = server.wait_line(text);
    assert!(line.contains("request: \"GET /big HTTP/2.0\""), "{line}");
}

#[test]
fn what_is_not_sent_to_a_client_that_left_does_not_count() {
    let server = start(
        "access_log %%DIR%%/sent.log sent; location / { add_trailer X-Sum $status; return 200 ok; } }
         log_format sent '$bytes_sent $body_bytes_sent|'; server { listen 127.0.0.1:%%PORT1%%;",
    );
    let mut client = greeted(&server);
    let mut frames = Vec::new();
    let id = client.request("GET", "/", &[], true, &mut frames);
    frame::write_reset(id, ErrorCode::Cancel, &mut frames);
    client.stream.write_all(&frames).unwrap();
    server.wait_file("sent.log", "0 0|", 1);
}

/// A request that is given up while another location is asked about it.
#[test]
fn a_request_that_is_given_up_during_its_auth_request_is_logged_so() {
    let server = start(
        "access_log %%DIR%%/status.log; location / { auth_request /asked; root %%DIR%%; }
         location /asked { proxy_pass http://127.0.0.1:%%PORT%%/waits; }
         location /waits { content_by_lua_block { ngx.sleep(60) } }",
    );
    let mut client = greeted(&server);
    let mut frames = Vec::new();
    let id = client.request("GET", "/", &[], true, &mut frames);
    frame::write_reset(id, ErrorCode::Cancel, &mut frames);
    client.stream.write_all(&frames).unwrap();
    server.wait_file("status.log", "\"GET / HTTP/2.0\" 499 0", 1);
}

/// It asks on and on, and each answer is longer than what it asks.
#[test]
fn a_client_that_does_not_read_is_not_read_from_and_ends() {
    let long = "x".repeat(1000);
    let server = start(&format!(
        "send_timeout 1s; keepalive_requests 10000000; http2_max_concurrent_streams 1000;
         add_header X-Long {long}; return 204;"
    ));
    let mut client = Client::connect(&server);
    client.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let (mut taken, mut frames) = (0, Vec::new());
    let end = loop {
        while frames.len() < 64 * 1024 {
            client.request("GET", "/", &[], true, &mut frames);
        }
        match client.stream.write(&frames) {
            Ok(n) => {
                taken += n;
                frames.drain(..n);
            }
            Err(error) => break error,
        }
        assert!(taken < 16 << 20, "{taken} bytes were taken of a client that does not read");
    };
    if end.kind() == ErrorKind::WouldBlock {
        server.wait_log("client timed out (110: Connection timed out)", 1);
    }
}

/// Of fifty large answers the server holds no more than a client would have to read soon.
#[test]
fn unread_answers_are_not_held_in_memory() {
    let dir = Dir::new();
    dir.write("html/big", vec![b'x'; 4 << 20]);
    let server = start_in(dir, "root html; send_timeout 1s;");
    // The worker is complete when it has greeted.
    let mut client = greeted(&server);
    client.write(|out| {
        frame::write_settings(&[frame::Setting::InitialWindowSize(1 << 30)], out);
        frame::write_window_update(0, 1 << 30, out);
    });
    let memory = || memory_of(server.workers()[0], "Rss") * 1024;
    let before = memory();
    for _ in 0..50 {
        client.get("/big");
    }
    server.wait_log("client timed out (110: Connection timed out)", 1);
    let grown = memory().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes of answers were held");
}

#[test]
fn unread_bodies_are_received_up_to_the_window() {
    // The answer takes its time, and what the client sends is none of its business.
    let server = start("limit_rate 1; return 200 'an answer that takes its time';");
    let mut client = Client::connect(&server);
    let id = client.ask("POST", "/", &[], false);
    let piece = [0; 10_000];
    // More than any window that was given.
    for _ in 0..200 {
        client.data(id, &piece, false);
    }
    let answer = client.answer(id);
    assert_eq!(answer.reset, Some(ErrorCode::FlowControl as u32));
}

#[test]
fn a_client_that_erred_and_reads_late_gets_what_was_sent() {
    let dir = Dir::new();
    dir.write("html/big", vec![b'x'; 1 << 20]);
    // Sockets that hold less than waits for them.
    let conf = conf("root html;").replace("%%PORT%%;", "%%PORT%% sndbuf=16k;");
    let server = Server::start_in(dir, WEIR, &conf);
    let mut client = greeted(&server);
    client.gives_windows = false;
    sockopt::set_socket_recv_buffer_size(&client.stream, 64 * 1024).unwrap();
    client.write(|out| {
        frame::write_settings(&[frame::Setting::InitialWindowSize(1 << 30)], out);
        frame::write_window_update(0, 1 << 30, out);
    });
    let id = client.get("/big");
    while client.event() != Event::Stream(id) {}
    // It sleeps since the client takes no more.
    server.wait_asleep(server.workers()[0]);
    let mut frames = Vec::new();
    frame::write_window_update(0, 0, &mut frames);
    // More than is read at once.
    frames.extend(repeated(FrameType::Ping, &[0; 8], 0, 60 * 1000));
    client.stream.write_all(&frames).unwrap();
    assert_eq!(client.goaway(), ErrorCode::Protocol as u32);
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    assert!(client.ended[&id].body.len() < 1 << 20, "the answer was over before");
}

/// A block of fields that are in order, and behind them an index that no table has.
fn broken_block(path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("cookie", "a=b"),
        ("x-mine", "1"),
    ] {
        hpack::field(name.as_bytes(), value.as_bytes(), &mut block);
    }
    block.push(0x80);
    block
}

#[test]
fn a_head_that_breaks_off_leaves_nothing_to_the_next_request() {
    let echo = "$request_method $request_uri $uri $args [$http_x_mine$http_cookie] $request_length";
    let server = start(&format!("location / {{ return 200 '{echo}'; }}"));
    let http1 = || server.get("/mine").body().to_owned();
    let http2 = || {
        let mut client = Client::connect(&server);
        let id = client.get("/mine");
        client.answer(id).text()
    };
    let (fresh1, fresh2) = (http1(), http2());
    assert!(fresh1.starts_with("GET /mine /mine  [] "), "{fresh1}");
    assert!(fresh2.starts_with("GET /mine /mine  [] "), "{fresh2}");
    let break_off = |path: &str| {
        let mut client = greeted(&server);
        let block = broken_block(path);
        client.write(|out| {
            let begin = frame::leave_head(out);
            out.extend_from_slice(&block);
            frame::finish_headers(out, begin, 1, frame::END_STREAM, frame::MAX_PAYLOAD);
        });
        assert_eq!(client.goaway(), ErrorCode::Compression as u32);
    };
    for path in ["/theirs", "/a/../../theirs?x=1", "/%2e%2e/theirs"] {
        break_off(path);
        assert_eq!(http2(), fresh2);
        break_off(path);
        assert_eq!(http1(), fresh1);
    }
}
