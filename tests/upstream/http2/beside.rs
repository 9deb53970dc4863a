//! Requests beside one that is given up, stops, or ends the connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType, Setting};
use weir_testkit::{Dir, PATIENCE, Server};

use super::peer::{Event, Peer, Talk};
use super::{WEIR, ask, post};

/// The peer stands twice in the group, with `options`, so that a server may be taken for failed.
fn twice(peer: &Peer, options: &str, locations: &str) -> Server {
    let server = format!("server 127.0.0.1:{} {options};", peer.port);
    let conf = format!(
        "worker_processes 1; worker_threads 1; events {{ }}
         http {{
             upstream u {{ {server} {server} keepalive 8; }}
             server {{
                 listen 127.0.0.1:%%PORT%%;
                 http2 on; client_max_body_size 1m; client_body_buffer_size 1m;
                 proxy_http_version 2;
                 {locations}
             }}
         }}"
    );
    Server::start_in(Dir::new(), WEIR, &conf)
}

const PASS: &str = "location / { proxy_pass http://u; }";
const CALL: &str = "location / { grpc_pass u; }";

fn blames_no_server(server: &Server) {
    assert_eq!(server.logged("temporarily disabled"), 0, "{}", server.log());
    assert_eq!(server.logged("no live upstreams"), 0, "{}", server.log());
}

/// What a peer's connections tell a test.
fn teller<T: Send>() -> (impl Fn(T) -> Option<()> + Send + Sync, Told<T>) {
    let (tell, told) = channel();
    let tell: Mutex<Sender<T>> = Mutex::new(tell);
    (move |what| tell.lock().unwrap().send(what).ok(), Told(told))
}

struct Told<T>(Receiver<T>);

impl<T> Told<T> {
    fn next(&self, server: &Server) -> T {
        let next = self.0.recv_timeout(PATIENCE);
        next.unwrap_or_else(|_| panic!("the peer tells nothing more\n{}", server.log()))
    }
}

/// The server ends a connection after too many resets, as many servers do.
#[test]
fn cancelled_requests_cost_others_nothing() {
    const GUARD: usize = 20;
    let (tell, told) = teller();
    let most = Arc::new(AtomicUsize::new(0));
    let seen = most.clone();
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        let (mut kept, mut resets, mut last) = (None, 0, 0);
        loop {
            match talk.next()? {
                Event::Head(head) => {
                    last = head.id;
                    match head.field(":path") {
                        "/kept" => kept = Some(head.id),
                        "/leaves" => {}
                        path => talk.answer(head.id, path),
                    }
                    tell("asked")?;
                }
                Event::Reset(..) => {
                    resets += 1;
                    seen.fetch_max(resets, Ordering::SeqCst);
                    if resets > GUARD {
                        talk.goaway(last, ErrorCode::EnhanceYourCalm);
                        return None;
                    }
                    tell("reset")?;
                }
                _ => {}
            }
            if resets == 10
                && let Some(id) = kept.take()
            {
                talk.answer(id, "kept");
            }
        }
    });
    let server = twice(&peer, "", PASS);
    // Most requests end well.
    for _ in 0..20 {
        assert_eq!(ask(&server, "/well").response().body(), "/well");
        told.next(&server);
    }
    let mut kept = ask(&server, "/kept");
    assert_eq!(told.next(&server), "asked");
    for _ in 0..100 {
        let leaving = ask(&server, "/leaves");
        assert_eq!(told.next(&server), "asked");
        drop(leaving);
        assert_eq!(told.next(&server), "reset");
    }
    assert_eq!(kept.response().body(), "kept");
    assert!(most.load(Ordering::SeqCst) <= 16, "{most:?} resets on a connection");
    blames_no_server(&server);
}

/// A server may stop to read a connection and leave it open. The first request that it has not answered in time is the last.
#[test]
fn a_connection_without_a_sign_of_life_gets_no_more_requests() {
    let (tell, told) = teller();
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        loop {
            match talk.next()? {
                Event::Head(head) if head.field(":path") == "/" => talk.answer(head.id, "well"),
                Event::Head(_) => tell("asked")?,
                Event::Reset(..) => tell("reset")?,
                _ => {}
            }
        }
    });
    let late = "proxy_read_timeout 1200ms; proxy_http_version 2; proxy_next_upstream off;";
    let locations = format!(
        "location / {{ proxy_pass http://u; }}
         location /late {{ proxy_pass http://u; {late} }}
         location /alone {{ proxy_pass http://127.0.0.1:{}; {late} }}",
        peer.port
    );
    let server = twice(&peer, "", &locations);
    let is_another = |before: usize| {
        assert_eq!(ask(&server, "/").response().body(), "well");
        assert_eq!(peer.opened(), before + 1, "{}", server.log());
    };
    assert_eq!(ask(&server, "/").response().body(), "well");
    assert_eq!(ask(&server, "/late").response().status, 504);
    assert_eq!([told.next(&server), told.next(&server)], ["asked", "reset"]);
    is_another(1);

    // The client of this one leaves once another server was too late.
    let leaving = ask(&server, "/leaves");
    assert_eq!(told.next(&server), "asked");
    assert_eq!(ask(&server, "/alone").response().status, 504);
    assert_eq!([told.next(&server), told.next(&server)], ["asked", "reset"]);
    drop(leaving);
    assert_eq!(told.next(&server), "reset");
    is_another(3);
}

/// Requests that are under way together may be given up together: that must not end the connection for another one.
#[test]
fn resets_beyond_what_a_server_may_bear_wait_for_the_others() {
    let (tell, told) = teller();
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        loop {
            match talk.next()? {
                Event::Head(_) => tell("asked")?,
                Event::Reset(..) => tell("reset")?,
                Event::Goaway(_) => tell("ends")?,
                Event::Data(id, _, true) => talk.answer(id, "kept"),
                _ => {}
            }
        }
    });
    let server =
        twice(&peer, "", "location / { proxy_pass http://u; proxy_request_buffering off; }");
    for stays in [false, true] {
        let mut kept = server.connect();
        kept.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
        assert_eq!(told.next(&server), "asked");
        let leaving: Vec<_> = (0..8).map(|_| (ask(&server, "/"), told.next(&server))).collect();
        drop(leaving);
        server.wait_log("prematurely closed connection", if stays { 16 } else { 8 });
        for _ in 0..4 {
            assert_eq!(told.next(&server), "reset");
        }
        if stays {
            // The others do not wait for ever.
            for _ in 0..4 {
                assert_eq!(told.next(&server), "reset");
            }
        }
        kept.send("b");
        assert_eq!(kept.response().body(), "kept");
        assert_eq!(told.next(&server), "ends");
    }
    assert_eq!(peer.opened(), 2);
}

/// What ends a connection may be the affair of one of its requests: the others are asked again where that is allowed, and
/// cost the server at most one failure.
#[test]
fn the_end_of_a_shared_connection_costs_no_request() {
    type End = fn(&mut Talk, &[u32]) -> Option<()>;
    let ends: [(&str, &str, &str, End); 6] = [
        ("GET", "max_fails=2", "is closed", |_, _| None),
        ("GET", "", "is closed, as was said", |talk, ids| {
            talk.goaway(*ids.last()?, ErrorCode::EnhanceYourCalm);
            None
        }),
        ("POST", "", "has had too many resets", |talk, _| {
            talk.goaway(0, ErrorCode::EnhanceYourCalm);
            None
        }),
        ("GET", "", "has too many requests", |talk, ids| {
            ids.iter().for_each(|id| talk.reset(*id, ErrorCode::EnhanceYourCalm));
            Some(())
        }),
        ("GET", "max_fails=2", "has a frame of no stream", |talk, ids| {
            talk.data(ids.last()? + 2, b"of none", true);
            Some(())
        }),
        ("POST", "", "is to have fewer streams", |talk, ids| {
            talk.settings(&[Setting::MaxConcurrentStreams(1)]);
            ids.iter().for_each(|id| talk.reset(*id, ErrorCode::RefusedStream));
            Some(())
        }),
    ];
    for (method, options, what, end) in ends {
        let (tell, told) = teller();
        let peer = Peer::new(move |number, talk| {
            talk.settings(&[]);
            let mut waiting = Vec::new();
            loop {
                let head = talk.head()?;
                if number > 1 || waiting.len() == 4 {
                    talk.answer(head.id, head.field(":path"));
                    continue;
                }
                waiting.push(head.id);
                tell(())?;
                if waiting.len() == 4 {
                    end(talk, &waiting)?;
                }
            }
        });
        let server = twice(&peer, options, PASS);
        let begin = |n| {
            let client = match method {
                "GET" => ask(&server, &format!("/{n}")),
                _ => post(&server, &format!("/{n}"), b"body"),
            };
            told.next(&server);
            client
        };
        let asked: Vec<_> = (0..4).map(begin).collect();
        for (n, mut client) in asked.into_iter().enumerate() {
            let answer = client.response();
            assert_eq!(answer.body(), format!("/{n}"), "{what}: {}", server.log());
        }
        blames_no_server(&server);
    }
}

/// A head that cannot be read ends the connection, and is the failure of its own request alone.
#[test]
fn a_head_that_cannot_be_read_fails_one_request() {
    let (tell, told) = teller();
    let peer = Peer::new(move |number, talk| {
        talk.settings(&[]);
        let first = talk.head()?;
        if number > 1 {
            talk.answer(first.id, "again");
            return Some(());
        }
        tell(())?;
        talk.head()?;
        talk.write(|out| {
            let (kind, flags) = (FrameType::Headers, frame::END_HEADERS);
            FrameHead { len: 2, kind, flags, stream: first.id }.write(out);
            out.extend_from_slice(b"\x88\xbe");
        });
        Some(())
    });
    let server = twice(&peer, "max_fails=2", PASS);
    let mut spoiled = ask(&server, "/");
    told.next(&server);
    assert_eq!(ask(&server, "/").response().body(), "again", "{}", server.log());
    assert_eq!(spoiled.response().status, 502);
    blames_no_server(&server);
}

/// Servers ask for a sign of life, or measure, as long as a call lasts.
#[test]
fn a_server_may_ping_as_long_as_it_is_answered() {
    let peer = Peer::new(|_, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        for _ in 0..3000 {
            talk.write(|out| {
                FrameHead { len: 8, kind: FrameType::Ping, flags: 0, stream: 0 }.write(out);
                out.extend_from_slice(&[0; 8]);
            });
            while talk.next()? != Event::Pong {}
        }
        talk.answer(head.id, "alive");
        Some(())
    });
    let server = twice(&peer, "", PASS);
    assert_eq!(ask(&server, "/").response().body(), "alive", "{}", server.log());
}

/// Takes the bodies of all requests but those to `/slow`, of which it tells how much has come.
fn reading_all_but_slow() -> (Peer, Told<usize>) {
    let (tell, told) = teller();
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        let mut slow = HashMap::new();
        loop {
            match talk.next()? {
                Event::Head(head) if head.field(":path") == "/slow" => {
                    slow.insert(head.id, 0);
                }
                Event::Head(head) if head.ended => talk.answer(head.id, "read"),
                Event::Data(id, data, ended) => match slow.get_mut(&id) {
                    Some(len) => {
                        *len += data.len();
                        tell(*len)?;
                    }
                    None => {
                        talk.write(|out| {
                            let by = data.len() as u32;
                            [0, id].into_iter().filter(|_| by > 0).for_each(|id| {
                                frame::write_window_update(id, by, out);
                            });
                        });
                        if ended {
                            talk.answer(id, "read");
                        }
                    }
                },
                _ => {}
            }
        }
    });
    (peer, told)
}

#[test]
fn an_upload_that_stands_still_holds_up_no_other() {
    for locations in [PASS, CALL] {
        let (peer, told) = reading_all_but_slow();
        let server = twice(&peer, "", locations);
        assert_eq!(post(&server, "/", b"first").response().body(), "read");
        assert_eq!(peer.opened(), 1);
        let mut slow = Vec::new();
        for _ in 0..3 {
            slow.push(post(&server, "/slow", &[b's'; 200_000]));
            while told.next(&server) < frame::DEFAULT_WINDOW as usize {}
            for len in [1, 1000, 60_000, 200_000] {
                let answer = post(&server, "/", &vec![b'b'; len]).response();
                assert_eq!(answer.body(), "read", "{len}: {}", server.log());
            }
            // Without a body a request needs no window.
            assert_eq!(ask(&server, "/").response().body(), "read");
        }
        // Each that stands still has one, and the others have one.
        assert!(peer.opened() <= 5, "{}", peer.opened());
        blames_no_server(&server);
    }
}

/// One that has begun, too: whatever comes beside it leaves it a window.
#[test]
fn a_body_that_comes_in_pieces_goes_on_beside_uploads_that_stand_still() {
    for (kind, locations) in [
        ("proxy", "location / { proxy_pass http://u; proxy_request_buffering off; }"),
        ("grpc", CALL),
    ] {
        let (peer, told) = reading_all_but_slow();
        let server = twice(&peer, "", locations);
        let mut going = server.connect();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        going.deliver(format!("{head}3\r\none\r\n"));
        let large = post(&server, "/slow", &[b's'; 200_000]);
        while told.next(&server) < frame::DEFAULT_WINDOW as usize {}
        // Small ones leave half of the window.
        let small: Vec<_> = (0..80)
            .map(|_| {
                let client = post(&server, "/slow", &[b's'; 1000]);
                while told.next(&server) < 1000 {}
                client
            })
            .collect();
        going.send(format!("{:x}\r\n{}\r\n", 200_000, "g".repeat(200_000)));
        going.send("0\r\n\r\n");
        assert_eq!(going.response().body(), "read", "{kind}: {}", server.log());
        drop((large, small));
        blames_no_server(&server);
    }
}

/// Connections are shared as far as their windows go.
#[test]
fn small_bodies_share_a_connection() {
    let (tell, told) = teller();
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        loop {
            match talk.next()? {
                Event::Head(head) if head.field(":path") == "/first" => talk.answer(head.id, ""),
                Event::Data(id, _, true) => tell(id)?,
                _ => {}
            }
        }
    });
    let server = twice(&peer, "", PASS);
    assert_eq!(ask(&server, "/first").response().status, 200);
    // With so many half of the window is unread.
    let fits = frame::DEFAULT_WINDOW as usize / 2 / 1000 + 1;
    let mut waiting = Vec::new();
    for (more, connections) in [(fits, 1), (1, 2), (fits - 1, 2)] {
        for _ in 0..more {
            waiting.push(post(&server, "/", &[b'b'; 1000]));
            told.next(&server);
        }
        assert_eq!(peer.opened(), connections);
    }
}

/// The server takes its leave before it has looked at a call, while the call's first message is on
/// its way.
#[test]
fn a_call_that_was_not_looked_at_is_asked_again_with_its_messages() {
    let (tell, told) = teller();
    let peer = Peer::new(move |number, talk| {
        talk.settings(&[]);
        let head = talk.head()?;
        let mut got = Vec::new();
        loop {
            let Event::Data(_, data, ended) = talk.next()? else { continue };
            got.extend_from_slice(&data);
            tell(got.clone())?;
            if number == 1 {
                talk.goaway(0, ErrorCode::NoError);
                return Some(());
            }
            if ended {
                talk.fields(head.id, &[(":status", "200")], false);
                talk.data(head.id, &got, true);
                return Some(());
            }
        }
    });
    let server = twice(&peer, "", CALL);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send("3\r\none\r\n");
    assert_eq!(told.next(&server), b"one");
    assert_eq!(told.next(&server), b"one", "{}", server.log());
    client.send("3\r\ntwo\r\n0\r\n\r\n");
    assert_eq!(client.response().body(), "onetwo", "{}", server.log());
    blames_no_server(&server);
}
