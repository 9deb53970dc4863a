//! Where a client ends its request: with the head, in an empty frame at once or later, with a message or behind it. The server
//! has its end in the same place. `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use weir_proto::http2::frame::{FrameHead, FrameType};
use weir_testkit::{Dice, Oracle, PATIENCE, Server, certified, number, seed};

use super::super::WEIR;
use super::super::http2::peer::{Event, Peer, Talk};
use super::{OK, head, rest};

/// Where a client ends its request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    WithHead,
    EmptyAtOnce,
    EmptyLater,
    WithMessage,
    BehindMessage,
    LateBehindMessage,
}

impl End {
    const ALL: [End; 6] = [
        End::WithHead,
        End::EmptyAtOnce,
        End::EmptyLater,
        End::WithMessage,
        End::BehindMessage,
        End::LateBehindMessage,
    ];

    fn message(self) -> &'static [u8] {
        match self {
            End::WithHead | End::EmptyAtOnce | End::EmptyLater => b"",
            _ => b"message",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    /// The location, and so how the request is passed on.
    to: &'static str,
    end: End,
    /// When the server answers.
    answers: &'static str,
    /// The client tells how long its body is.
    announced: bool,
    /// The client speaks TLS.
    secure: bool,
    /// Another request of the connection has been answered.
    again: bool,
}

const TO: [&str; 3] = ["call", "streamed", "buffered"];
/// All of it behind the request's head; its head there and the rest at the request's end; all at the end.
const ANSWERS: [&str; 3] = ["early", "begun", "late"];

impl Case {
    /// Each place and end, with all else as it falls.
    fn draw(dice: &mut Dice, n: usize) -> Case {
        Case {
            to: TO[n % 3],
            end: End::ALL[n / 3 % 6],
            answers: dice.pick(&ANSWERS),
            announced: dice.one_in(3),
            secure: dice.one_in(2),
            again: dice.one_in(2),
        }
    }
}

/// What the server had of a request, by its path: whether its head was the end, and the body.
type Had = (String, bool, Vec<u8>);

/// A server that tells of each head, and of each request that has ended.
fn origin() -> (Peer, Receiver<()>, Receiver<Had>) {
    let ((begin, begun), (end, ended)) = (channel(), channel());
    let (begin, end) = (Mutex::new(begin), Mutex::new(end));
    let peer = Peer::new(move |_, talk| {
        talk.settings(&[]);
        let mut open = HashMap::new();
        loop {
            let (id, last) = match talk.next()? {
                Event::Head(head) => {
                    let path = head.field(":path").to_owned();
                    match answers(&path) {
                        "early" => {
                            talk.fields(head.id, &[&OK[..], &[("grpc-status", "0")]].concat(), true)
                        }
                        "begun" => talk.fields(head.id, &OK, false),
                        _ => {}
                    }
                    begin.lock().unwrap().send(()).ok()?;
                    open.insert(head.id, (path, head.ended, Vec::new()));
                    (head.id, head.ended)
                }
                Event::Data(id, data, last) => {
                    if let Some((_, _, body)) = open.get_mut(&id) {
                        body.extend_from_slice(&data);
                    }
                    (id, last)
                }
                _ => continue,
            };
            if let Some(had) = last.then(|| open.remove(&id)).flatten() {
                match answers(&had.0) {
                    "early" => {}
                    "begun" => talk.fields(id, &[("grpc-status", "0")], true),
                    _ => talk.fields(id, &[&OK[..], &[("grpc-status", "0")]].concat(), true),
                }
                end.lock().unwrap().send(had).ok()?;
            }
        }
    });
    (peer, begun, ended)
}

/// When a request of this path is answered.
fn answers(path: &str) -> &str {
    path.split('/').nth(2).expect("a path of this test")
}

const CONF: &str = "
    user root; worker_processes 1; error_log %%DIR%%/error.log info; events { }
    http {
        access_log off;
        proxy_http_version 2;
        server {
            listen 127.0.0.1:%%PORT%%;
            listen 127.0.0.1:%%PORT1%% ssl;
            http2 on;
            ssl_certificate chain.pem; ssl_certificate_key leaf.key;
            location /call/ { grpc_pass grpc://127.0.0.1:PEER; }
            location /streamed/ { proxy_pass http://127.0.0.1:PEER; proxy_request_buffering off; }
            location /buffered/ { proxy_pass http://127.0.0.1:PEER; }
        }
    }
    stream {
        server {
            listen 127.0.0.1:%%PORT2%%;
            proxy_pass 127.0.0.1:%%PORT1%%; proxy_ssl on; proxy_ssl_alpn h2;
        }
    }";

/// Waits until the server has read all that it was sent on this connection.
fn wait_read(client: &mut Talk) {
    client.write(|out| {
        FrameHead { len: 8, kind: FrameType::Ping, flags: 0, stream: 0 }.write(out);
        out.extend_from_slice(&[0; 8]);
    });
    while client.next().expect("the connection lives") != Event::Pong {}
}

/// Asks as a case wants it, with a path of its own. What the server had: whether the head was the end, and the body; none of a
/// request that was answered before, which may end in any way.
fn run(
    client: &mut Talk,
    (id, name): (u32, &str),
    case: Case,
    begun: &Receiver<()>,
    ended: &Receiver<Had>,
) -> Option<(bool, Vec<u8>)> {
    let Case { to, end, answers, .. } = case;
    let (path, message) = (format!("/{to}/{answers}/{name}"), end.message());
    let length = message.len().to_string();
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path.as_str()),
        (":authority", "here"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("content-length", &length),
    ];
    let fields = &fields[..if case.announced { 7 } else { 6 }];
    let later = matches!(end, End::EmptyLater | End::LateBehindMessage);
    client.at_once(|client| {
        client.fields(id, fields, end == End::WithHead);
        match end {
            End::WithHead | End::EmptyLater => {}
            End::EmptyAtOnce => client.data(id, b"", true),
            End::WithMessage => client.data(id, message, true),
            End::BehindMessage => {
                client.data(id, message, false);
                client.data(id, b"", true);
            }
            End::LateBehindMessage => client.data(id, message, false),
        }
    });
    if later {
        match to {
            "buffered" => wait_read(client),
            _ => begun.recv_timeout(PATIENCE).expect("a request that has begun"),
        }
        if to == "buffered" || answers != "early" {
            client.data(id, b"", true);
        }
    }
    let head = head(client, id);
    assert_eq!(head.field(":status"), "200");
    if !head.ended {
        rest(client, id);
    }
    if !later || to == "buffered" {
        begun.recv_timeout(PATIENCE).expect("a request that has begun");
    }
    if answers == "early" {
        return None;
    }
    loop {
        // One that was answered before may end later.
        let had = ended.recv_timeout(PATIENCE).expect("a request that has ended");
        if had.0 == path {
            return Some((had.1, had.2));
        }
    }
}

#[test]
fn a_request_ends_at_the_server_where_its_client_ended_it() {
    let mut dice = Dice::new(seed());
    let more = number("WEIR_CASES").unwrap_or(0) as usize;
    let cases: Vec<Case> = (0..36 + more).map(|n| Case::draw(&mut dice, n)).collect();
    let mut programs = vec![WEIR.to_owned()];
    programs.extend(Oracle::find().filter(|nginx| !nginx.is_old()).map(|nginx| nginx.path));
    for program in programs {
        let (peer, begun, ended) = origin();
        let conf = CONF.replace("PEER", &peer.port.to_string());
        let server = Server::start_in(certified(), &program, &conf);
        for (n, &case) in cases.iter().enumerate() {
            println!("{program}: {case:?}");
            let mut client = Talk::client(server.port_at(if case.secure { 2 } else { 0 }));
            if case.again {
                let first = Case { end: End::WithMessage, answers: "late", ..case };
                run(&mut client, (1, &format!("{n}first")), first, &begun, &ended);
            }
            let had = run(&mut client, (3, &n.to_string()), case, &begun, &ended);
            let Some((with_head, body)) = had else { continue };
            assert_eq!(body, case.end.message());
            // nginx sends the end of a body with a length in a frame of its own, though the length be 0.
            if program == WEIR || !case.announced {
                assert_eq!(with_head, case.end == End::WithHead);
            }
        }
    }
}
