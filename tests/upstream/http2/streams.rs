//! Many requests on one connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use rustix::net::sockopt;
use weir_proto::http2::frame::{self, ErrorCode, Setting};
use weir_testkit::PATIENCE;

use super::peer::{Event, Peer, Talk};
use super::{ask, post, start, start_on};

#[test]
fn requests_share_a_connection() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        // The server answers none of them before all have asked.
        let mut heads = Vec::new();
        for _ in 0..20 {
            heads.push(talk.head()?);
        }
        for head in heads.iter().rev() {
            talk.answer(head.id, head.field(":path"));
        }
        Some(())
    });
    let server = start(&peer, "", "");
    let clients: Vec<_> = (0..20).map(|n| ask(&server, &format!("/{n}"))).collect();
    for (n, mut client) in clients.into_iter().enumerate() {
        assert_eq!(client.response().body(), format!("/{n}"));
    }
    assert_eq!(peer.opened(), 1);
}

#[test]
fn frames_are_counted_where_no_body_comes() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        while let Some(head) = talk.head() {
            talk.fields(head.id, &[(":status", "204")], true);
        }
        Some(())
    });
    let bytes = "add_header X-Bytes '$upstream_bytes_received $upstream_bytes_sent' always;";
    let server = start(&peer, "", bytes);
    let answer = ask(&server, "/").response();
    let counted = answer.header("X-Bytes").unwrap().split(' ').map(|n| n.parse().unwrap());
    let counted: Vec<usize> = counted.collect();
    assert!(counted.len() == 2 && counted.iter().all(|n| *n > frame::HEAD), "{counted:?}");
}

#[test]
fn without_keepalive_each_request_has_a_connection() {
    let peer = Peer::answering(str::to_owned);
    let server = start(&peer, "keepalive 0;", "");
    for _ in 0..3 {
        assert_eq!(ask(&server, "/a").response().body(), "/a");
    }
    assert_eq!(peer.opened(), 3);
}

#[test]
fn a_server_has_no_more_streams_than_it_serves() {
    let most = Arc::new(AtomicUsize::new(0));
    let seen = most.clone();
    let (tell, asked) = channel();
    let tell = Mutex::new(tell);
    let go = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
    let gone = go.clone();
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[Setting::MaxConcurrentStreams(2)]);
        let first = talk.head()?;
        tell.lock().unwrap().send(()).ok()?;
        let second = talk.head()?;
        tell.lock().unwrap().send(()).ok()?;
        seen.fetch_max(2, Ordering::SeqCst);
        let (all, changed) = &*gone;
        let mut all = all.lock().unwrap();
        while !*all {
            all = changed.wait(all).unwrap();
        }
        talk.answer(first.id, "first");
        talk.answer(second.id, "second");
        Some(())
    });
    let server = start(&peer, "", "");
    let clients: Vec<_> = (0..6).map(|_| ask(&server, "/")).collect();
    for _ in 0..6 {
        asked.recv().unwrap();
    }
    assert_eq!(peer.opened(), 3);
    *go.0.lock().unwrap() = true;
    go.1.notify_all();
    for mut client in clients {
        assert_eq!(client.response().status, 200);
    }
}

/// What a stream has room for is in the settings: no frame for each.
#[test]
fn the_window_of_streams_is_told_once() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        loop {
            match talk.next()? {
                Event::Head(head) => talk.answer(head.id, "told"),
                Event::Window(stream, _) => assert_eq!(stream, 0),
                _ => {}
            }
        }
    });
    let server = start(&peer, "", "proxy_buffers 32 8k;");
    for _ in 0..3 {
        assert_eq!(ask(&server, "/").response().body(), "told");
    }
    assert_eq!(peer.opened(), 1);
}

#[test]
fn a_client_that_does_not_read_holds_up_no_other() {
    const BIG: usize = 64 << 20;
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        let big = talk.head()?;
        talk.fields(big.id, &[(":status", "200")], false);
        let (mut window, mut sent) = (i64::from(frame::DEFAULT_WINDOW), 0);
        loop {
            while window >= 16_384 {
                talk.data(big.id, &[b'x'; 16_384], false);
                (window, sent) = (window - 16_384, sent + 16_384);
            }
            match talk.next()? {
                Event::Window(id, by) if id == big.id => window += i64::from(by),
                Event::Head(small) => {
                    tell.lock().unwrap().send(sent).ok()?;
                    talk.answer(small.id, "small");
                }
                _ => {}
            }
        }
    });
    let server = start(&peer, "", "proxy_buffering off;");
    let mut slow = ask(&server, "/big");
    // The answer has begun.
    assert!(!slow.is_closed());
    let mut small = ask(&server, "/small");
    assert_eq!(small.response().body(), "small");
    // What sockets hold on this machine, and a window.
    assert!(told.recv().unwrap() < BIG);
    assert_eq!(peer.opened(), 1);
}

/// Go's server answers, wants no more of the request, and refuses each piece that was on its way.
#[test]
fn an_early_answer_outlives_refusals_of_the_rest_of_the_body() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        loop {
            let asked = talk.head()?;
            talk.wait()?;
            talk.at_once(|talk| {
                talk.fields(asked.id, &[(":status", "401"), ("content-length", "6")], false);
                talk.data(asked.id, b"no way", true);
                talk.reset(asked.id, ErrorCode::NoError);
                talk.reset(asked.id, ErrorCode::StreamClosed);
                talk.reset(asked.id, ErrorCode::StreamClosed);
            });
        }
    });
    for inside in ["", "proxy_request_buffering off; proxy_buffering off;"] {
        let server = start(&peer, "", &format!("client_max_body_size 0; {inside}"));
        for _ in 0..3 {
            let answer = post(&server, "/", &[b'b'; 200_000]).response();
            assert_eq!(
                (answer.status, answer.body()),
                (401, "no way".to_owned()),
                "{}",
                server.log()
            );
        }
        assert_eq!(server.logged("[error]"), 0, "{}", server.log());
    }
}

#[test]
fn a_client_that_leaves_resets_its_stream_only() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        let kept = talk.head()?;
        tell.lock().unwrap().send(None).ok()?;
        let given_up = talk.head()?;
        tell.lock().unwrap().send(None).ok()?;
        let code = talk.reset_of(given_up.id)?;
        tell.lock().unwrap().send(Some(code)).ok()?;
        // Late frames of a stream that was given up are ignored.
        talk.answer(given_up.id, "late");
        talk.answer(kept.id, "kept");
        let next = talk.head()?;
        talk.answer(next.id, "next");
        Some(())
    });
    let server = start(&peer, "", "");
    let mut kept = ask(&server, "/kept");
    assert_eq!(told.recv().unwrap(), None);
    let leaving = ask(&server, "/leaving");
    assert_eq!(told.recv().unwrap(), None);
    drop(leaving);
    assert_eq!(told.recv().unwrap(), Some(ErrorCode::Cancel as u32));
    assert_eq!(kept.response().body(), "kept");
    assert_eq!(ask(&server, "/").response().body(), "next");
    assert_eq!(peer.opened(), 1);
}

#[test]
fn a_connection_serves_as_many_as_the_configuration_says() {
    let peer = Peer::answering(str::to_owned);
    let server = start(&peer, "keepalive 4; keepalive_requests 3;", "");
    for _ in 0..7 {
        assert_eq!(ask(&server, "/").response().status, 200);
    }
    assert_eq!(peer.opened(), 3);
}

#[test]
fn bodies_obey_the_servers_windows() {
    const STEP: u32 = 7000;
    let body: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    let sent = body.clone();
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        assert_eq!((head.field("content-length"), head.ended), ("300000", false));
        let (mut got, mut window) = (Vec::new(), i64::from(frame::DEFAULT_WINDOW));
        while got.len() < sent.len() {
            let Event::Data(_, data, _) = talk.next()? else { continue };
            window -= data.len() as i64;
            assert!(window >= 0);
            got.extend_from_slice(&data);
            if window == 0 {
                window = i64::from(STEP);
                talk.write(|out| {
                    frame::write_window_update(head.id, STEP, out);
                    frame::write_window_update(0, STEP, out);
                });
            }
        }
        talk.answer(head.id, if got == sent { "same" } else { "other" });
        Some(())
    });
    // In memory and in a file.
    for inside in ["client_body_buffer_size 1m;", "client_body_in_file_only clean;"] {
        let server = start(&peer, "", inside);
        assert_eq!(post(&server, "/", &body).response().body(), "same", "{}", server.log());
    }
}

/// A server that sends back what it gets, and takes no more than it could send back.
fn echoing() -> Peer {
    Peer::new(move |_, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        talk.fields(head.id, &[(":status", "200")], false);
        let (mut window, mut held, mut last) = (i64::from(frame::DEFAULT_WINDOW), vec![], false);
        while !(last && held.is_empty()) {
            match talk.next()? {
                Event::Window(id, by) if id == head.id => window += i64::from(by),
                Event::Data(_, data, ended) => {
                    held.extend_from_slice(&data);
                    last |= ended;
                }
                _ => {}
            }
            let now = held.len().min(window.max(0) as usize);
            for piece in held[..now].chunks(frame::MAX_PAYLOAD) {
                talk.data(head.id, piece, false);
            }
            held.drain(..now);
            window -= now as i64;
            if now > 0 {
                talk.write(|out| {
                    frame::write_window_update(head.id, now as u32, out);
                    frame::write_window_update(0, now as u32, out);
                });
            }
        }
        talk.data(head.id, b"", true);
        Some(())
    })
}

#[test]
fn both_directions_go_at_once() {
    let server = start(&echoing(), "", "client_body_buffer_size 2m; client_max_body_size 2m;");
    let body = vec![b'e'; 1 << 20];
    let answer = post(&server, "/", &body).response();
    assert_eq!(answer.body().len(), body.len(), "{}", server.log());
}

/// Bodies go out as they come in, and no socket on their way holds much.
const STREAMED: &str = "proxy_request_buffering off; client_max_body_size 0;";
const SMALL: &str = "sndbuf=16k rcvbuf=16k";
const SPILLED: &str = "an upstream response is buffered to a temporary file";

/// The client reads nothing before all of its body is written: what does not fit into memory waits in a file.
#[test]
fn a_client_may_write_all_before_it_reads() {
    let server = start_on(&echoing(), SMALL, "", STREAMED);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    sockopt::set_socket_send_buffer_size(&stream, 16 * 1024).unwrap();
    sockopt::set_socket_recv_buffer_size(&stream, 16 * 1024).unwrap();
    let body: Vec<u8> = (0..2_000_000u32).map(|n| (n % 251) as u8).collect();
    let head = format!("POST / HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let written = stream.write_all(&[head.as_bytes(), &body].concat());
    assert!(written.is_ok(), "{written:?}\n{}", server.log());
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    assert!(answer[head + 4..] == body, "{} bytes\n{}", answer.len(), server.log());
    server.wait_log(SPILLED, 1);
}

/// The same over HTTP/2: it takes a first window of the answer, and the rest when its body is written.
#[test]
fn a_stream_may_write_all_before_it_reads() {
    let server = start_on(&echoing(), &format!("{SMALL}; http2 on"), "", STREAMED);
    let mut client = Talk::client(server.port());
    let head = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    client.fields(1, &head, false);
    let body: Vec<u8> = (0..2_000_000u32).map(|n| (n % 251) as u8).collect();
    let (mut own, mut shared) =
        (i64::from(frame::DEFAULT_WINDOW), i64::from(frame::DEFAULT_WINDOW));
    let (mut rest, mut answer, mut over) = (&body[..], Vec::new(), false);
    while !over {
        let window = own.min(shared).min(frame::MAX_PAYLOAD as i64).max(0) as usize;
        let (now, later) = rest.split_at(window.min(rest.len()));
        if !now.is_empty() {
            client.data(1, now, later.is_empty());
            (own, shared, rest) = (own - now.len() as i64, shared - now.len() as i64, later);
            if rest.is_empty() {
                client.write(|out| {
                    frame::write_window_update(0, 1 << 30, out);
                    frame::write_window_update(1, 1 << 30, out);
                });
            }
            continue;
        }
        match client.next() {
            Some(Event::Window(0, by)) => shared += i64::from(by),
            Some(Event::Window(1, by)) => own += i64::from(by),
            Some(Event::Data(1, data, last)) => {
                answer.extend_from_slice(&data);
                over = last;
            }
            Some(_) => {}
            None => panic!("{} bytes are left\n{}", rest.len(), server.log()),
        }
    }
    assert!(answer == body, "{} bytes\n{}", answer.len(), server.log());
    server.wait_log(SPILLED, 1);
}

#[test]
fn a_body_goes_out_as_it_comes_in() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        assert_eq!(head.field("transfer-encoding"), "");
        loop {
            if let Event::Data(_, data, ended) = talk.next()? {
                tell.lock().unwrap().send(String::from_utf8(data).unwrap()).ok()?;
                if ended {
                    talk.answer(head.id, "done");
                    return Some(());
                }
            }
        }
    });
    let server = start(&peer, "", "proxy_request_buffering off;");
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
    assert_eq!(told.recv().unwrap(), "one");
    client.send("3\r\ntwo\r\n");
    assert_eq!(told.recv().unwrap(), "two");
    client.send("0\r\n\r\n");
    assert_eq!(client.response().body(), "done");
}

/// The server answers each piece of a body before the next one is sent, and the client waits for that.
#[test]
fn an_answer_and_the_body_that_it_is_for_go_at_the_same_time() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        loop {
            match talk.next()? {
                Event::Head(head) => talk.fields(head.id, &[(":status", "200")], false),
                Event::Data(id, data, ended) => {
                    talk.data(id, &data, ended);
                }
                _ => {}
            }
        }
    });
    let server = start(&peer, "", "proxy_request_buffering off; proxy_buffering off;");
    let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut read = String::new();
    let mut say = |bytes: &str, until: &str| {
        client.write_all(bytes.as_bytes()).unwrap();
        let mut buf = [0; 1000];
        while !read.contains(until) {
            let n = client.read(&mut buf).unwrap_or_default();
            assert!(n > 0, "no {until:?}: {read}\n{}", server.log());
            read.push_str(&String::from_utf8_lossy(&buf[..n]));
        }
        std::mem::take(&mut read)
    };
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    say(&format!("{head}3\r\none\r\n"), "one");
    say("3\r\ntwo\r\n", "two");
    let large = format!("{:x}\r\n{}\r\n", 40_000, "x".repeat(40_000));
    say(&large, &"x".repeat(1000));
    say("0\r\n\r\n", "\r\n0\r\n\r\n");
    // The connection is at the next request.
    say(&format!("{head}4\r\nfive\r\n0\r\n\r\n"), "five");
}
