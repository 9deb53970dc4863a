//! Prefaces, heads and frames that are large, come in pieces or late, or stay incomplete.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};
use weir_proto::http2::hpack;
use weir_testkit::{PATIENCE, wait_delivered};

use super::{Client, Event, hostile, start};

#[test]
fn what_is_no_version_of_http_gets_no_answer() {
    let server = start("return 200;");
    for (line, answered) in [("NO SUCH THING", false), ("NO SUCH HTTP/1.1", true)] {
        let mut client = Client::bare(&server);
        client.stream.write_all(format!("{line}\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        client.stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.starts_with("HTTP/1.1 400 "), answered, "{answer:?}");
    }
}

/// A greeting that breaks off is no request of HTTP/1.
#[test]
fn half_a_greeting_gets_no_answer() {
    let server = start("return 200;");
    for half in [3, 14, 16, 18, 22] {
        let mut client = Client::bare(&server);
        client.stream.write_all(&frame::PREFACE[..half]).unwrap();
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "", "{half}");
    }
    server.wait_log("client closed connection while waiting for request", 5);
}

#[test]
fn a_frame_may_be_as_large_as_a_field() {
    let server = start("large_client_header_buffers 2 64k; return 200 $http_long;");
    let mut client = Client::connect(&server);
    let long = "l".repeat(40_000);
    let mut out = Vec::new();
    let id = client.request("GET", "/", &[("long", &long)], true, &mut out);
    // The same block in one frame.
    let mut block = Vec::new();
    let mut rest = &out[..];
    while let Some(head) = FrameHead::read(rest) {
        block.extend_from_slice(&rest[frame::HEAD..frame::HEAD + head.len]);
        rest = &rest[frame::HEAD + head.len..];
    }
    client.write(|out| {
        let flags = frame::END_HEADERS | frame::END_STREAM;
        FrameHead { len: block.len(), kind: FrameType::Headers, flags, stream: id }.write(out);
        out.extend_from_slice(&block);
    });
    assert_eq!(client.answer(id).text(), long);
    assert!(client.settings.contains(&Setting::MaxFrameSize(1 << 20)));
}

#[test]
fn a_frame_of_a_body_is_taken_as_it_comes() {
    let behind = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = start(&format!(
        "http2_body_preread_size 1m; client_max_body_size 0; proxy_request_buffering off;
         proxy_http_version 1.1; location / {{ proxy_pass http://{}; }}",
        behind.local_addr().unwrap()
    ));
    let mut client = hostile::greeted(&server);
    let body: Vec<u8> = (0..500_000u32).flat_map(|n| n.to_be_bytes()).take(500_000).collect();
    let long = body.len().to_string();
    let id = client.ask("POST", "/", &[("content-length", &long)], false);
    let (first, rest) = body.split_at(100_000);
    client.write(|out| {
        let flags = frame::END_STREAM | frame::PADDED;
        FrameHead { len: body.len() + 256, kind: FrameType::Data, flags, stream: id }.write(out);
        out.push(255);
        out.extend_from_slice(first);
    });
    let (mut at_server, _) = behind.accept().unwrap();
    at_server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = Vec::new();
    let mut read_to = |said: &mut Vec<u8>, len: usize| loop {
        let head = said.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4);
        if head.is_some_and(|head| said.len() >= head + len) {
            return said[head.unwrap()..].to_vec();
        }
        let mut piece = [0; 65536];
        let n = at_server.read(&mut piece).unwrap();
        assert!(n > 0, "closed after {} bytes", said.len());
        said.extend_from_slice(&piece[..n]);
    };
    // So much of the frame has gone on before the rest of it is there.
    read_to(&mut said, first.len());
    client.write(|out| {
        out.extend_from_slice(rest);
        out.extend_from_slice(&[0; 255]);
        // What follows the padding is a frame again.
        Client::ping(b"followed", out);
    });
    assert!(read_to(&mut said, body.len()) == body);
    at_server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").unwrap();
    let mut followed = false;
    while !client.ended.get(&id).is_some_and(|answer| answer.ended) || !followed {
        match client.event() {
            Event::Pong(said) => followed = said == b"followed",
            event => assert_ne!(event, Event::Closed),
        }
    }
    assert_eq!(client.answer(id).text(), "done");
}

#[test]
fn a_stream_may_end_within_a_frame_of_its_body() {
    let server = start("http2_body_preread_size 1m; location / { return 200; }");
    let mut client = hostile::greeted(&server);
    let id = client.ask("POST", "/", &[("content-length", "300000")], false);
    client.write(|out| {
        FrameHead { len: 60_000, kind: FrameType::Data, flags: 0, stream: id }.write(out);
        out.extend_from_slice(&[b'b'; 1000]);
    });
    assert_eq!(client.answer(id).status(), "200");
    while client.ended.get(&id).and_then(|answer| answer.reset).is_none() {
        assert_ne!(client.event(), Event::Closed);
    }
    // The rest is passed over, and counts for the length that was announced.
    client.write(|out| out.extend_from_slice(&[b'b'; 59_000]));
    let next = client.get("/");
    assert_eq!(client.answer(next).status(), "200");
    client.data(id, &[b'b'; 10_000], false);
    client.data(id, &[b'b'; 230_001], true);
    let wrong = ErrorCode::Protocol as u32;
    while client.ended[&id].reset != Some(wrong) {
        assert_ne!(client.event(), Event::Closed);
    }
}

#[test]
fn a_head_without_hope_is_refused_before_it_is_whole() {
    let server = start("return 200;");
    let mut client = Client::connect(&server);
    client.write(|out| {
        let flags = frame::END_HEADERS | frame::END_STREAM;
        FrameHead { len: 100, kind: FrameType::Headers, flags, stream: 1 }.write(out);
        // An index that takes more bytes than any number needs.
        out.extend_from_slice(b"\x82\xff\xff\xff\xff");
    });
    assert_eq!(client.goaway(), ErrorCode::Compression as u32);
}

#[test]
fn trailers_end_a_body_unless_they_have_what_is_of_a_head() {
    let server = start(
        "location / { proxy_pass http://127.0.0.1:%%PORT%%/taken; } location = /taken { return 200 taken; }",
    );
    let mut client = Client::connect(&server);
    for (name, reset) in [("x-sum", None), (":path", Some(ErrorCode::Protocol as u32))] {
        let id = client.ask("POST", "/", &[], false);
        client.data(id, b"body", false);
        let mut block = Vec::new();
        hpack::field(name.as_bytes(), b"/other", &mut block);
        client.write(|out| {
            let (len, flags) = (block.len(), frame::END_HEADERS | frame::END_STREAM);
            FrameHead { len, kind: FrameType::Headers, flags, stream: id }.write(out);
            out.extend_from_slice(&block);
        });
        let answer = client.answer(id);
        assert_eq!(answer.reset, reset, "{name}");
        assert!(reset.is_some() || answer.text() == "taken", "{name}");
    }
}

#[test]
fn a_head_that_comes_too_late_ends_its_stream_alone() {
    let server = start("client_header_timeout 1s; access_log %%DIR%%/seen.log; return 200 once;");
    let mut client = hostile::greeted(&server);
    let mut bytes = Vec::new();
    let late = client.request("GET", "/", &[], true, &mut bytes);
    let (first, rest) = bytes.split_at(12);
    client.write(|out| out.extend_from_slice(first));
    assert_eq!(client.answer(late).reset, Some(ErrorCode::Protocol as u32));
    client.write(|out| out.extend_from_slice(rest));
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "once");
    server.wait_file("seen.log", "\"-\" 408 0", 1);
    server.wait_file("seen.log", "\"GET / HTTP/2.0\" 200 4", 1);
}

/// As over HTTP/1, the first bytes count, not the last.
#[test]
fn the_time_of_a_request_begins_with_its_head() {
    let server =
        start("location / { return 200 $request_time; } location = /clock { return 200 $msec; }");
    let clock = || server.get("/clock").body().parse::<f64>().unwrap();
    for flags in [frame::END_STREAM | frame::END_HEADERS, frame::END_STREAM] {
        let mut client = hostile::greeted(&server);
        let mut bytes = Vec::new();
        let slow = client.request("GET", "/", &[], true, &mut bytes);
        bytes[4] = flags;
        let rest = FrameHead { len: 0, kind: FrameType::Continuation, flags: 4, stream: slow };
        if flags & frame::END_HEADERS == 0 {
            rest.write(&mut bytes);
        }
        let (first, rest) = bytes.split_at(bytes.len() - 1);
        client.write(|out| out.extend_from_slice(first));
        wait_delivered(&client.stream);
        let begun = clock();
        while clock() < begun + 0.02 {}
        client.write(|out| out.extend_from_slice(rest));
        let time = client.answer(slow).text();
        assert!(time.parse::<f64>().unwrap() > 0.01, "{time}");
    }
}

#[test]
fn a_head_that_stays_a_part_has_a_line_with_its_length_and_time() {
    let server = start(
        "client_header_timeout 1s; access_log %%DIR%%/times times; }
         log_format times '$status $request_length $request_time';
         server { listen 127.0.0.1:%%PORT1%%;",
    );
    let mut client = hostile::greeted(&server);
    let mut bytes = Vec::new();
    let never = client.request("GET", "/", &[], true, &mut bytes);
    bytes.pop();
    client.write(|out| out.extend_from_slice(&bytes));
    assert_eq!(client.answer(never).reset, Some(ErrorCode::Protocol as u32));
    server.wait_file("times", "408 ", 1);
    let times = server.dir().read("times");
    let fields: Vec<_> = times.lines().last().unwrap_or_default().split(' ').collect();
    let whole = (bytes.len() + 1 - frame::HEAD).to_string();
    assert!(fields[1] == whole && fields[2] != "0.000", "{times}");
}

#[test]
fn the_last_request_of_a_connection_may_come_in_pieces() {
    let server = start("keepalive_timeout 0; return 200 last;");
    let mut client = hostile::greeted(&server);
    let mut bytes = Vec::new();
    let last = client.request("GET", "/", &[], true, &mut bytes);
    bytes[4] = frame::END_STREAM;
    client.write(|out| out.extend_from_slice(&bytes));
    assert_eq!(client.goaway(), ErrorCode::NoError as u32);
    let rest = FrameHead {
        len: 0,
        kind: FrameType::Continuation,
        flags: frame::END_HEADERS,
        stream: last,
    };
    client.write(|out| rest.write(out));
    assert_eq!(client.answer(last).text(), "last");
}

#[test]
fn a_head_that_does_not_come_at_all_ends_the_connection() {
    let server = start("client_header_timeout 1s; keepalive_timeout 1s; return 200 once;");
    // In the middle of a frame, and between two.
    for (len, flags) in
        [(12, frame::END_STREAM | frame::END_HEADERS), (usize::MAX, frame::END_STREAM)]
    {
        let mut client = hostile::greeted(&server);
        let mut bytes = Vec::new();
        let late = client.request("GET", "/", &[], true, &mut bytes);
        bytes[4] = flags;
        bytes.truncate(len);
        client.write(|out| out.extend_from_slice(&bytes));
        assert_eq!(client.answer(late).reset, Some(ErrorCode::Protocol as u32));
        assert_eq!(client.goaway(), ErrorCode::Protocol as u32);
    }
}

/// Some clients look at nothing but their window while they send.
#[test]
fn a_client_that_sends_all_before_it_reads_hears_that_it_is_too_much() {
    let server = start(
        "client_max_body_size 100k; client_body_buffer_size 1k;
         add_header X-Length $content_length always;
         location / { proxy_pass http://127.0.0.1:1; }",
    );
    let mut client = Client::connect(&server);
    let id = client.ask("POST", "/", &[], false);
    // Of the connection, and of the stream.
    let (mut all, mut own) = (frame::DEFAULT_WINDOW as usize, frame::DEFAULT_WINDOW as usize);
    let mut left = 2_000_000;
    while left > 0 {
        let most = frame::MAX_PAYLOAD.min(left).min(all).min(own);
        if most > 0 {
            client.data(id, &vec![0; most], most == left);
            (all, own, left) = (all - most, own - most, left - most);
            continue;
        }
        match client.event() {
            Event::Window(0, more) => all += more,
            Event::Window(_, more) => own += more,
            event => assert_ne!(event, Event::Closed),
        }
        assert!(client.ended.get(&id).is_none_or(|answer| answer.reset.is_none()), "{left} left");
    }
    let answer = client.answer(id);
    assert_eq!((answer.status(), answer.field("x-length")), ("413", None));
}

#[test]
fn each_head_has_its_own_time() {
    let server = start("client_header_timeout 1s; keepalive_requests 1000000; return 204;");
    let mut client = Client::connect(&server);
    // What the client says to the server's settings would come within a head.
    let first = client.get("/");
    client.answer(first);
    let (begun, mut rest, mut last) = (Instant::now(), Vec::new(), None);
    // Each write has the end of a head and the beginning of the next.
    while begun.elapsed() < Duration::from_millis(1500) {
        let mut out = std::mem::take(&mut rest);
        let mut head = Vec::new();
        let id = client.request("GET", "/", &[], true, &mut head);
        out.extend(head.drain(..head.len() / 2));
        rest = head;
        client.stream.write_all(&out).unwrap();
        if let Some((before, at)) = last.replace((id, Instant::now())) {
            let answer = client.answer(before);
            let was_late = at.elapsed() > Duration::from_secs(1);
            assert!(was_late || (answer.reset, answer.status()) == (None, "204"));
        }
    }
}

/// A decoder may insist on the update in the first block, whichever that is: RFC 7541, section 4.2.
#[test]
fn each_field_block_tells_a_client_with_a_small_table_that_it_is_empty() {
    let server = start(
        "location / { proxy_pass http://127.0.0.1:%%PORT%%/text; }
         location /text { return 200 text; }",
    );
    let mut client = Client::bare(&server);
    client.write(|out| {
        out.extend_from_slice(frame::PREFACE);
        frame::write_settings(&[Setting::HeaderTableSize(100)], out);
    });
    let fields = [("expect", "100-continue"), ("content-length", "1")];
    let id = client.ask("POST", "/", &fields, false);
    let mut first_bytes = Vec::new();
    loop {
        let mut head = [0; frame::HEAD];
        client.stream.read_exact(&mut head).unwrap();
        let head = FrameHead::read(&head).unwrap();
        let mut payload = vec![0; head.len];
        client.stream.read_exact(&mut payload).unwrap();
        if head.kind == FrameType::Headers {
            first_bytes.push(payload[0]);
            if first_bytes.len() == 1 {
                client.data(id, b"x", true);
            }
        }
        if head.stream == id && head.has(frame::END_STREAM) {
            break;
        }
    }
    // 100 and 200.
    assert_eq!(first_bytes, [0x20, 0x20]);
}
