//! Limits of a connection and its streams, and how a connection ends.

use std::io::Write;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use rustix::process::Signal;
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};
use weir_proto::http2::hpack;
use weir_testkit::{Deaf, Dir, Server};

use super::{Client, Event, WEIR, conf, hostile, start, start_in};

/// The server that a request names may allow more than that of the connection, or less.
#[test]
fn a_head_is_held_to_the_limits_of_the_server_that_it_names() {
    let both = |default: &str, named: &str| {
        let conf = format!(
            "user root; events {{ }} http {{ http2 on;
             server {{ listen 127.0.0.1:%%PORT%%; {default} return 200 default; }}
             server {{ listen 127.0.0.1:%%PORT%%; server_name localhost; {named}
                 return 200 \"named $http_a_b\"; }} }}"
        );
        let server = Server::start_in(Dir::new(), WEIR, &conf);
        let mut client = Client::connect(&server);
        let id = client.ask("GET", "/", &[("a_b", "1"), ("c", "2"), ("d", "3")], true);
        let answer = client.answer(id);
        match answer.status() {
            "200" => answer.text(),
            status => status.to_owned(),
        }
    };
    assert_eq!(both("max_headers 1;", "underscores_in_headers on;"), "named 1");
    assert_eq!(both("underscores_in_headers on;", ""), "named ");
    assert_eq!(both("", "max_headers 1;"), "400");
}

#[test]
fn heads_that_are_wrong_are_refused_one_by_one() {
    let server = start("return 200;");
    let mut client = Client::connect(&server);
    for field in [("X-Upper", "x"), ("connection", "close"), (":path", "/late"), ("te", "gzip")] {
        // The encoder folds names: an upper-case one is written by hand.
        let mut out = Vec::new();
        let id = client.request("GET", "/", &[], true, &mut out);
        let mut block = out.split_off(frame::HEAD);
        block.extend_from_slice(&[0, field.0.len() as u8]);
        block.extend_from_slice(field.0.as_bytes());
        block.push(field.1.len() as u8);
        block.extend_from_slice(field.1.as_bytes());
        client.write(|out| {
            let begin = frame::leave_head(out);
            out.extend_from_slice(&block);
            frame::finish_headers(out, begin, id, frame::END_STREAM, frame::MAX_PAYLOAD);
        });
        assert_eq!(client.answer(id).status(), "400", "{field:?}");
    }
    let id = client.get("/");
    assert_eq!(client.answer(id).status(), "200");
    for method in ["TRACE", "CONNECT"] {
        let id = client.ask(method, "/", &[], true);
        assert_eq!(client.answer(id).status(), "405", "{method}");
        let next = client.get("/");
        assert_eq!(client.answer(next).status(), "200");
        // A reset behind the answer would be for an error of the protocol.
        assert!(!client.ended.contains_key(&id), "{method}");
    }
}

/// What the log says of a head without a request line, or with one that leads nowhere.
#[test]
fn of_a_head_that_is_wrong_the_log_says_what_is_known() {
    let server = Server::start(
        env!("CARGO_BIN_EXE_weir"),
        "events { } http { http2 on; root %%DIR%%;
             log_format known '$request_method|$request_uri|$uri|$server_protocol|$status';
             access_log %%DIR%%/known known; server { listen 127.0.0.1:%%PORT%%; } }",
    );
    let mut client = Client::connect(&server);
    let (method, scheme, path) = ((":method", "GET"), (":scheme", "http"), (":path", "/x"));
    for fields in [[scheme, path], [method, path], [method, scheme]] {
        let id = if client.last == 0 { 1 } else { client.last + 2 };
        client.last = id;
        client.write(|out| {
            let begin = frame::leave_head(out);
            for (name, value) in fields {
                hpack::field(name.as_bytes(), value.as_bytes(), out);
            }
            frame::finish_headers(out, begin, id, frame::END_STREAM, frame::MAX_PAYLOAD);
        });
        assert_eq!(client.answer(id).status(), "400", "{fields:?}");
    }
    let id = client.get("/../x");
    assert_eq!(client.answer(id).status(), "400");
    let all =
        "-|/x||HTTP/2.0|400\nGET|/x||HTTP/2.0|400\nGET|-|-|HTTP/2.0|400\nGET|/../x||HTTP/2.0|400\n";
    server.wait_file("known", all, 1);
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let server =
        start("http2_max_concurrent_streams 2; location / { limit_rate 1; return 200 xy; }");
    let mut client = Client::connect(&server);
    let _held: Vec<u32> = (0..2).map(|_| client.ask("POST", "/", &[], false)).collect();
    while !client.settings.contains(&Setting::MaxConcurrentStreams(2)) {
        client.event();
    }
    let more = client.ask("POST", "/", &[], false);
    let refused = client.answer(more);
    assert_eq!(refused.reset, Some(ErrorCode::RefusedStream as u32));
}

/// One write gives a stream up and opens another: in nginx, too, the first has ended by then.
#[test]
fn the_place_of_a_stream_that_was_given_up_is_free_at_once() {
    let deaf = Deaf::new();
    for limit in ["http2_max_concurrent_streams 1;", "limit_conn one 1;"] {
        let server = start(&format!(
            "{limit} location / {{ proxy_pass http://127.0.0.1:%%PORT1%%; }}
             location /held {{ proxy_pass http://127.0.0.1:{}; }} }}
             limit_conn_zone $server_name zone=one:64k;
             server {{ listen 127.0.0.1:%%PORT1%%; return 200 ok;",
            deaf.port()
        ));
        let mut client = Client::connect(&server);
        let held = client.get("/held");
        client.write(|out| Client::ping(&[1; 8], out));
        while client.event() != Event::Pong(vec![1; 8]) {}
        let mut out = Vec::new();
        frame::write_reset(held, ErrorCode::Cancel, &mut out);
        let next = client.request("GET", "/", &[], true, &mut out);
        client.stream.write_all(&out).unwrap();
        assert_eq!(client.answer(next).text(), "ok", "{limit}");
    }
}

#[test]
fn streams_that_are_answered_at_once_make_room_for_others_of_the_same_write() {
    let server = start("http2_max_concurrent_streams 2; return 200 ok;");
    let mut client = Client::connect(&server);
    let mut out = Vec::new();
    let all = [(); 4].map(|()| client.request("GET", "/", &[], true, &mut out));
    client.stream.write_all(&out).unwrap();
    for stream in all {
        assert_eq!(client.answer(stream).text(), "ok");
    }
}

#[test]
fn requests_are_counted_and_the_last_one_is_answered() {
    let server =
        start("lingering_timeout 10ms; keepalive_requests 3; return 200 $connection_requests;");
    let mut client = Client::connect(&server);
    for n in 1..=3 {
        let id = client.get("/");
        if n == 3 {
            // As with nginx, the client is told so before it has the last answer.
            assert_eq!(client.goaway(), ErrorCode::NoError as u32);
            assert!(!client.ended.contains_key(&id));
        }
        assert_eq!(client.answer(id).text(), n.to_string());
    }
    client.closed();
}

#[test]
fn streams_at_once_have_their_own_numbers() {
    let dir = Dir::new();
    dir.write("html/big", vec![b'x'; 100_000]);
    let server = start_in(
        dir,
        "root html; access_log %%DIR%%/numbers number; }
         log_format number '$arg_n $connection_requests'; server { listen 127.0.0.1:%%PORT1%%;",
    );
    let mut client = Client::connect(&server);
    client.gives_windows = false;
    let streams = [1, 2, 3].map(|n| client.get(&format!("/big?n={n}")));
    // Until now none has ended.
    client.write(|out| frame::write_window_update(0, 300_000, out));
    for stream in streams {
        client.write(|out| frame::write_window_update(stream, 100_000, out));
        assert_eq!(client.answer(stream).body.len(), 100_000);
    }
    server.wait_file("numbers", "\n", 3);
    assert_eq!(server.dir().read("numbers"), "1 1\n2 2\n3 3\n");
}

/// The client may have sent them before GOAWAY reached it.
#[test]
fn streams_behind_goaway_are_ignored_and_the_others_are_answered() {
    let dir = Dir::new();
    dir.write("html/big", vec![b'x'; 100_000]);
    let server = start_in(dir, "lingering_timeout 10ms; root html; keepalive_requests 1;");
    let mut client = Client::connect(&server);
    client.gives_windows = false;
    let asked = client.get("/big");
    assert_eq!(client.goaway(), ErrorCode::NoError as u32);
    let late = client.ask("POST", "/", &[], false);
    client.data(late, b"body", false);
    client.write(|out| frame::write_window_update(late, 1, out));
    // The fields behind its body.
    let mut trailers = Vec::new();
    let begin = frame::leave_head(&mut trailers);
    hpack::field(b"x-sum", b"1", &mut trailers);
    let ends = frame::END_STREAM;
    frame::finish_headers(&mut trailers, begin, late, ends, frame::MAX_PAYLOAD);
    client.write(|out| out.extend_from_slice(&trailers));
    let cancelled = client.ask("POST", "/", &[], false);
    client.write(|out| frame::write_reset(cancelled, ErrorCode::Cancel, out));
    // Until now the answer was held up by its window.
    for stream in [0, asked] {
        client.write(|out| frame::write_window_update(stream, 100_000, out));
    }
    assert_eq!(client.answer(asked).body.len(), 100_000);
    client.closed();
    assert!(client.ended.is_empty(), "{:?}", client.ended);
}

#[test]
fn a_reload_says_goodbye_and_answers_what_was_asked() {
    let server = start(
        "lingering_timeout 10ms;
         location / { return 200 old; }
         location = /slow { limit_rate 60; return 200 'twenty bytes of text'; }",
    );
    let mut idle = Client::connect(&server);
    let id = idle.get("/");
    assert_eq!(idle.answer(id).text(), "old");
    let mut new = Client::connect(&server);
    let mut busy = Client::connect(&server);
    let slow = busy.get("/slow");
    while !busy.ended.contains_key(&slow) {
        busy.event();
    }
    server.configure(&conf("return 200 new;"));
    assert!(server.command(&["-s", "reload"]).status.success());
    assert_eq!(idle.goaway(), ErrorCode::NoError as u32);
    idle.closed();
    // A client that has come and not asked yet is not sent away.
    let id = new.get("/");
    assert_eq!(new.answer(id).text(), "old");
    new.closed();
    assert_eq!(busy.answer(slow).text(), "twenty bytes of text");
    busy.closed();
}

/// Its next request would be lost otherwise, and the client could not know that no server has seen it.
#[test]
fn a_client_that_has_not_asked_is_told_when_the_time_to_end_is_over() {
    let conf = conf("return 200;").replace("events", "worker_shutdown_timeout 100ms; events");
    let server = Server::start_in(Dir::new(), WEIR, &conf);
    let mut new = Client::connect(&server);
    while new.settings.is_empty() {
        new.event();
    }
    server.reload();
    assert_eq!(new.goaway(), ErrorCode::NoError as u32);
    new.closed();
}

/// GOAWAY would refuse them, and gRPC in Go cannot send a large message again.
#[test]
fn requests_that_came_before_the_end_of_the_worker_are_answered() {
    let server = start(
        "lingering_timeout 10ms; location / { return 200 answer; }
         location = /up { proxy_pass http://127.0.0.1:1; }",
    );
    let worker = server.workers()[0];
    server.signal_worker(worker, Signal::STOP);
    let mut client = Client::connect(&server);
    let mut written = Vec::new();
    let upload = client.request("POST", "/up", &[], false, &mut written);
    for _ in 0..3 {
        let len = frame::MAX_PAYLOAD;
        FrameHead { len, kind: FrameType::Data, flags: 0, stream: upload }.write(&mut written);
        written.resize(written.len() + len, b'x');
    }
    let asked = client.request("GET", "/", &[], true, &mut written);
    client.write(|out| out.append(&mut written));
    server.signal(Signal::QUIT);
    server.wait_log("SIGQUIT", 1);
    server.signal_worker(worker, Signal::CONT);
    assert_eq!(client.answer(asked).text(), "answer");
}

/// Some take the server's end of a connection for that of answers that they have received and not yet passed on.
#[test]
fn a_client_that_is_told_of_the_end_closes_the_connection() {
    let server = start("return 200 answer;");
    let mut client = Client::connect(&server);
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "answer");
    let old = server.workers()[0];
    server.reload();
    assert_eq!(client.goaway(), ErrorCode::NoError as u32);
    client.write(|out| Client::ping(b"are you?", out));
    assert_eq!(client.event(), Event::Pong(b"are you?".to_vec()));
    drop(client);
    server.wait_gone(old);
}

#[test]
fn a_client_that_is_told_of_the_end_and_stays_is_closed() {
    let server = start("lingering_timeout 100ms; return 200 answer;");
    let mut client = Client::connect(&server);
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "answer");
    server.reload();
    assert_eq!(client.goaway(), ErrorCode::NoError as u32);
    client.closed();
}

#[test]
fn pings_are_answered_and_bad_greetings_are_not() {
    let server = start("return 200;");
    let mut client = Client::connect(&server);
    client.write(|out| {
        Client::ping(b"are you?", out);
    });
    loop {
        match client.event() {
            Event::Pong(payload) => break assert_eq!(payload, b"are you?"),
            Event::Closed => panic!("closed"),
            _ => {}
        }
    }
    let mut client = Client::bare(&server);
    client.write(|out| {
        out.extend_from_slice(frame::PREFACE);
        FrameHead { len: 0, kind: FrameType::Data, flags: 0, stream: 0 }.write(out);
    });
    assert_eq!(client.goaway(), ErrorCode::Protocol as u32);
}

#[test]
fn a_client_that_is_not_kept_gets_one_answer() {
    let server = start("lingering_timeout 10ms; keepalive_timeout 0; return 200 once;");
    let mut client = hostile::greeted(&server);
    // Whenever the request comes.
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "once");
    client.closed();
    let server = start("keepalive_timeout 0; client_header_timeout 1s; return 200;");
    hostile::greeted(&server).closed();
}

/// Frames that begin no request do not keep a connection, neither before the first request nor after one.
#[test]
fn frames_without_a_request_do_not_prolong_an_idle_connection() {
    let timeouts = [
        ("keepalive_timeout 800ms; client_header_timeout 1h;", true),
        ("keepalive_timeout 1h; client_header_timeout 800ms;", false),
    ];
    let frames: [fn(&mut Vec<u8>); 4] = [
        |out| {
            Client::ping(&[0; 8], out);
        },
        |out| frame::write_settings(&[], out),
        |out| frame::write_window_update(0, 1, out),
        |out| FrameHead { len: 0, kind: FrameType::Unknown(0xee), flags: 0, stream: 0 }.write(out),
    ];
    let all: Vec<_> = frames.into_iter().flat_map(|f| timeouts.map(|t| (f, t))).collect();
    std::thread::scope(|scope| {
        for (write, (timeouts, asks)) in all {
            scope.spawn(move || {
                let server = start(&format!("{timeouts} return 200;"));
                let mut client = hostile::greeted(&server);
                if asks {
                    let id = client.get("/");
                    client.answer(id);
                }
                let mut writing = client.stream.try_clone().unwrap();
                let ended = std::sync::mpsc::channel::<()>();
                // Much more often than the time-out, until the server closes, for a quarter of a minute at most.
                let talking = std::thread::spawn(move || {
                    let mut out = Vec::new();
                    write(&mut out);
                    (0..150).all(|_| {
                        let goes_on = ended.1.recv_timeout(Duration::from_millis(100));
                        goes_on == Err(RecvTimeoutError::Timeout) && writing.write_all(&out).is_ok()
                    })
                });
                assert_eq!(client.goaway(), ErrorCode::NoError as u32);
                drop(ended.0);
                assert!(!talking.join().unwrap(), "{timeouts}: frames kept the connection");
            });
        }
    });
}
