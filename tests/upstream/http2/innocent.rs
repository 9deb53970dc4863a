//! Innocent requests of all kinds beside clients that misbehave, on connections and in cache fills that they share.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_proto::http2::frame::{self, ErrorCode, Setting};
use weir_testkit::{Client, Dice, Dir, PATIENCE, Server, number, seed};

use super::WEIR;
use super::peer::{Event, Peer, Talk};

/// How the server behind is drawn.
#[derive(Debug, Clone, Copy)]
struct Behind {
    /// It gives credit when half of a window was read, or at once.
    is_lazy: bool,
    /// A reset counts as much as so many requests and pieces: it ends a connection with too many, as Tomcat does, or Netty.
    guard: Guard,
    /// After so many requests it takes its leave, and finishes what it has begun.
    leaves_after: u32,
    /// Streams at once.
    most: u32,
}

#[derive(Debug, Clone, Copy)]
enum Guard {
    /// So many resets.
    Resets(i64),
    /// Requests and bodies make good for resets.
    Balance,
}

/// What a misbehaving client does, again and again.
#[derive(Debug, Clone, Copy)]
enum Wrong {
    Cancels,
    StallsItsUpload,
    BreaksItsUploadOff,
    ReadsNothing,
    LeavesAFill,
    ReadsNothingOfAFill,
}

/// More than sockets hold, and than a connection should be held up for.
const BIG: usize = 4 << 20;
/// More than sockets hold.
const CACHED: usize = 600_000;
const HALF: usize = frame::DEFAULT_WINDOW as usize / 2;

/// A stream as the server behind sees it.
#[derive(Default)]
struct Stream {
    path: String,
    got: usize,
    unread: usize,
    window: i64,
    /// What is left of the answer.
    left: usize,
}

fn behind(how: Behind, talk: &mut Talk) -> Option<()> {
    talk.settings(&[Setting::MaxConcurrentStreams(how.most)]);
    let mut streams: HashMap<u32, Stream> = HashMap::new();
    let (mut unread, mut strain, mut asked, mut last) = (0, 0, 0, 0);
    if let Guard::Balance = how.guard {
        strain = -100;
    }
    loop {
        match talk.next()? {
            Event::Head(head) => {
                asked += 1;
                if how.leaves_after > 0 && asked > how.leaves_after {
                    talk.goaway(last, ErrorCode::NoError);
                    continue;
                }
                last = head.id;
                strain -= weigh(how.guard, 20);
                let path = head.field(":path").rsplit('/').next()?.to_owned();
                let window = i64::from(talk.window);
                if path == "echo" {
                    talk.fields(head.id, &[(":status", "200")], false);
                }
                streams.insert(head.id, Stream { path, window, ..Stream::default() });
                if head.ended {
                    finish(talk, head.id, streams.get_mut(&head.id)?);
                }
            }
            Event::Data(id, data, ended) => {
                strain -= weigh(how.guard, 20);
                let Some(stream) = streams.get_mut(&id).filter(|stream| stream.path != "slow")
                else {
                    continue;
                };
                stream.got += data.len();
                stream.unread += data.len();
                unread += data.len();
                for (id, left) in [(0, &mut unread), (id, &mut stream.unread)] {
                    if *left > 0 && (!how.is_lazy || *left >= HALF) {
                        let by = std::mem::take(left) as u32;
                        talk.write(|out| frame::write_window_update(id, by, out));
                    }
                }
                if stream.path == "echo" && !data.is_empty() {
                    talk.data(id, &data, false);
                }
                if ended {
                    finish(talk, id, stream);
                }
            }
            Event::Window(id, by) => {
                if let Some(stream) = streams.get_mut(&id) {
                    stream.window += i64::from(by);
                    send(talk, id, stream);
                }
            }
            Event::Reset(id, _) => {
                // What was not read of it counts as read.
                if let Some(stream) = streams.remove(&id)
                    && stream.path == "slow"
                {
                    unread += HALF;
                }
                strain += weigh(how.guard, 50).max(1);
                let too_much = match how.guard {
                    Guard::Resets(most) => strain > most,
                    Guard::Balance => strain > 0,
                };
                if too_much {
                    talk.goaway(last, ErrorCode::EnhanceYourCalm);
                    return None;
                }
            }
            _ => {}
        }
    }
}

fn weigh(guard: Guard, points: i64) -> i64 {
    if let Guard::Balance = guard { points } else { 0 }
}

/// All of a request has come.
fn finish(talk: &mut Talk, id: u32, stream: &mut Stream) {
    match stream.path.as_str() {
        "hang" | "slow" => {}
        "echo" => talk.data(id, b"", true),
        path if path == "big" || path.starts_with("cached") => {
            stream.left = if path == "big" { BIG } else { CACHED };
            talk.fields(id, &[(":status", "200")], false);
            send(talk, id, stream);
        }
        path => talk.answer(id, &format!("{path} {}", stream.got)),
    }
}

/// Sends what the window takes of an answer.
fn send(talk: &mut Talk, id: u32, stream: &mut Stream) {
    while stream.window > 0 && stream.left > 0 {
        let now = stream.left.min(frame::MAX_PAYLOAD).min(stream.window as usize);
        stream.window -= now as i64;
        stream.left -= now;
        talk.data(id, &vec![b'c'; now], stream.left == 0);
    }
}

fn serve(peer: &Peer) -> Server {
    let server = format!("server 127.0.0.1:{};", peer.port);
    let conf = format!(
        "worker_processes 1; worker_threads 1; events {{ }}
         http {{
             upstream u {{ {server} {server} keepalive 8; }}
             proxy_cache_path %%DIR%%/cache keys_zone=z:1m;
             server {{
                 listen 127.0.0.1:%%PORT%% sndbuf=16k;
                 client_max_body_size 1m; client_body_buffer_size 128k;
                 proxy_http_version 2;
                 add_header X-Tried $upstream_addr always;
                 location /proxy/ {{ proxy_pass http://u; }}
                 location /raw/ {{
                     proxy_pass http://u; proxy_request_buffering off; proxy_buffering off;
                 }}
                 location /call/ {{ grpc_pass u; }}
                 location /fill/ {{
                     proxy_pass http://u; proxy_cache z; proxy_cache_valid 1s; proxy_cache_lock on;
                 }}
             }}
         }}"
    );
    Server::start_in(Dir::new(), WEIR, &conf)
}

fn begin(server: &Server, dice: &mut Dice, path: &str, body: usize) -> Client {
    let mut client = server.connect();
    let method = if body > 0 { "POST" } else { "GET" };
    let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\n");
    let _ = if body == 0 {
        client.try_send(format!("{head}\r\n"))
    } else if dice.one_in(2) {
        client.try_send(format!("{head}Content-Length: {body}\r\n\r\n{}", "b".repeat(body)))
    } else {
        let chunk = format!("{body:x}\r\n{}\r\n0\r\n\r\n", "b".repeat(body));
        client.try_send(format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}"))
    };
    client
}

/// Makes a request that is drawn, and says what is wrong with its answer.
fn ask(server: &Server, dice: &mut Dice, may_try_again: bool) -> Result<(), String> {
    let way = dice.pick(&["proxy", "raw", "call"]);
    let (path, body, wanted) = match dice.below(5) {
        0 => ("get", 0, "get 0".to_owned()),
        1 | 2 => {
            let body = dice.pick(&[1, 1000, 20_000, 60_000, 100_000]);
            ("post", body, format!("post {body}"))
        }
        3 => {
            let n = dice.below(3);
            let path = format!("/fill/cached{n}");
            let answer = begin(server, dice, &path, 0).try_response();
            let answer = answer.map_err(|error| format!("{path}: {error}"))?;
            let whole = answer.status == 200 && answer.bytes == [b'c'; CACHED];
            return if whole { Ok(()) } else { Err(format!("{path}: {}", answer.status)) };
        }
        _ => {
            let way = dice.pick(&["raw", "call"]);
            return echo(server, &format!("/{way}/echo"), 1 + dice.below(5));
        }
    };
    let path = format!("/{way}/{path}");
    let answer = begin(server, dice, &path, body).try_response();
    let answer = answer.map_err(|error| format!("{path} {body}: {error}"))?;
    let tried = answer.header("X-Tried").unwrap_or_default();
    if answer.status != 200 || answer.body() != wanted {
        return Err(format!("{path} {body}: {} {:?}", answer.status, answer.body()));
    }
    if tried.contains(',') && !may_try_again {
        return Err(format!("{path} {body}: tried {tried}"));
    }
    Ok(())
}

/// Messages that wait for each other's echo.
fn echo(server: &Server, path: &str, messages: usize) -> Result<(), String> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut read = String::new();
    let mut say = |bytes: String, until: &str| {
        let _ = stream.write_all(bytes.as_bytes());
        while !read.contains(until) {
            let mut buf = [0; 1000];
            let n = stream.read(&mut buf).unwrap_or_default();
            if n == 0 {
                return Err(format!("{path}: no {until:?} in {read:?}"));
            }
            read.push_str(&String::from_utf8_lossy(&buf[..n]));
        }
        Ok(())
    };
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for n in 0..messages {
        let before = if n == 0 { head.as_str() } else { "" };
        say(format!("{before}8\r\nmessage{n}\r\n"), &format!("message{n}"))?;
    }
    say("0\r\n\r\n".to_owned(), "\r\n0\r\n\r\n")
}

#[expect(clippy::disallowed_methods, reason = "a client that leaves some time later")]
fn misbehave(server: &Server, wrong: Wrong, dice: &mut Dice, over: &AtomicBool) {
    let mut held = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let way = dice.pick(&["proxy", "raw", "call"]);
        let n = dice.below(3);
        let client = match wrong {
            Wrong::Cancels => begin(server, dice, &format!("/{way}/hang"), 0),
            Wrong::BreaksItsUploadOff => {
                let mut client = server.connect();
                let head = format!("POST /{way}/hang HTTP/1.1\r\nHost: a\r\nContent-Length: 90000");
                let _ = client.try_send(format!("{head}\r\n\r\n{}", "b".repeat(30_000)));
                client
            }
            Wrong::StallsItsUpload => {
                let body = dice.pick(&[1000, 20_000, 200_000]);
                begin(server, dice, &format!("/{way}/slow"), body)
            }
            Wrong::ReadsNothing => begin(server, dice, &format!("/{way}/big"), 0),
            Wrong::LeavesAFill | Wrong::ReadsNothingOfAFill => {
                begin(server, dice, &format!("/fill/cached{n}"), 0)
            }
        };
        thread::sleep(Duration::from_millis(dice.below(10) as u64));
        let leaves =
            matches!(wrong, Wrong::Cancels | Wrong::BreaksItsUploadOff | Wrong::LeavesAFill);
        if held.len() < 8 && !leaves {
            held.push(client);
        } else if !leaves {
            let at = dice.below(held.len());
            held[at] = client;
        }
    }
}

#[test]
fn innocent_requests_are_answered_beside_clients_that_misbehave() {
    let seed = seed();
    for case in 0..number("WEIR_CASES").unwrap_or(6) {
        let mut dice = Dice::salted(seed, &format!("innocent {case}"));
        let how = Behind {
            is_lazy: dice.one_in(2),
            guard: if dice.one_in(2) { Guard::Balance } else { Guard::Resets(20) },
            leaves_after: dice.pick(&[0, 0, 20]),
            most: dice.pick(&[2, 100, 1000]),
        };
        let wrong = [
            Wrong::Cancels,
            Wrong::StallsItsUpload,
            Wrong::BreaksItsUploadOff,
            Wrong::ReadsNothing,
            Wrong::LeavesAFill,
            Wrong::ReadsNothingOfAFill,
        ];
        let wrong = dice.pick(&wrong);
        let peer = Peer::new(move |_, talk| behind(how, talk));
        let server = serve(&peer);
        let over = AtomicBool::new(false);
        let faults: Vec<String> = thread::scope(|scope| {
            let mut own = Dice::new(dice.any());
            let (server, over) = (&server, &over);
            scope.spawn(move || misbehave(server, wrong, &mut own, over));
            let clients: Vec<_> = (0..4)
                .map(|_| {
                    let mut own = Dice::new(dice.any());
                    scope.spawn(move || {
                        let asked = (0..12).map(|_| ask(server, &mut own, how.leaves_after > 0));
                        asked.filter_map(Result::err).collect::<Vec<_>>()
                    })
                })
                .collect();
            let faults = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
            over.store(true, Ordering::Relaxed);
            faults
        });
        let log = || format!("case {case}: {how:?} {wrong:?}\n{}", server.log());
        assert!(faults.is_empty(), "{faults:#?}\n{}", log());
        assert_eq!(server.logged("temporarily disabled"), 0, "{}", log());
        assert_eq!(server.logged("no live upstreams"), 0, "{}", log());
    }
}
