//! Runs against servers of the `h2` crate on tokio's loop, whose behaviour each test sets.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, server};
use http::{Request, Response};

use crate::tests::{OK, answers, failures, outcome, plan};
use crate::{Closing, LoadPlan, Pace, Protocol, RequestFailure, Url, text};

type Respond = server::SendResponse<Bytes>;

/// What a server does with a request.
enum Action {
    Answer(&'static [u8]),
    Reset(Reason),
    /// Answers, then announces the end of the connection (GOAWAY).
    LastAnswer,
    /// Never answers.
    Keep,
}

/// Serves HTTP/2. `action` receives the number of the request on its connection, from 1.
fn serve(
    action: impl Fn(u64, &Request<h2::RecvStream>) -> Action + Copy + Send + 'static,
) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let rt = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        rt.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let tasks = tokio::task::LocalSet::new();
            tasks
                .run_until(async {
                    while let Ok((socket, _)) = listener.accept().await {
                        tokio::task::spawn_local(connection(socket, action));
                    }
                })
                .await;
        });
    });
    address
}

async fn connection(
    socket: tokio::net::TcpStream,
    action: impl Fn(u64, &Request<h2::RecvStream>) -> Action,
) {
    let Ok(mut connection) = server::handshake(socket).await else { return };
    let (mut number, mut kept) = (0, Vec::new());
    while let Some(Ok((request, respond))) = connection.accept().await {
        number += 1;
        match action(number, &request) {
            Action::Answer(body) => answer(respond, body),
            Action::Reset(reason) => {
                let mut respond: Respond = respond;
                respond.send_reset(reason);
            }
            Action::LastAnswer => {
                answer(respond, b"bye");
                connection.graceful_shutdown();
            }
            Action::Keep => kept.push(respond),
        }
    }
}

fn answer(mut respond: Respond, body: &'static [u8]) {
    if let Ok(mut stream) = respond.send_response(Response::new(()), body.is_empty())
        && !body.is_empty()
    {
        let _ = stream.send_data(Bytes::from_static(body), true);
    }
}

fn h2(address: SocketAddr, requests: u64, connections: usize, streams: usize) -> LoadPlan {
    LoadPlan { protocol: Protocol::Http2(streams), ..plan(address, requests, connections) }
}

#[test]
fn every_request_is_made_once_over_few_connections() {
    let address = serve(|_, _| Action::Answer(b"hello"));
    let run = outcome(&h2(address, 500, 4, 10));
    assert_eq!((run.tally.requests(), run.tally.errors()), (500, 0), "{}", text(&run));
    assert_eq!(run.tally.connect.len(), 4);
    assert_eq!(run.tally.statuses.get(&200), Some(&500));
    assert!(run.tally.bytes > 500 * 14);

    let closing = LoadPlan { closing: Closing::OneIn(10), ..h2(address, 500, 4, 10) };
    let run = outcome(&closing);
    assert_eq!((run.tally.requests(), run.tally.errors()), (500, 0), "{}", text(&run));
    assert!((10..200).contains(&run.tally.connect.len()), "{}", run.tally.connect.len());
}

#[test]
fn long_bodies_pass_every_window() {
    static LONG: &[u8] = &[7; 300_000];
    let run = outcome(&h2(serve(|_, _| Action::Answer(LONG)), 20, 1, 4));
    assert_eq!((run.tally.requests(), run.tally.errors()), (20, 0));
    assert!(run.tally.bytes > 6_000_000);
}

#[test]
fn a_graceful_goaway_costs_no_request() {
    let address = serve(|n, _| if n == 10 { Action::LastAnswer } else { Action::Answer(b"") });
    let run = outcome(&h2(address, 200, 2, 3));
    assert_eq!((run.tally.requests(), run.tally.errors()), (200, 0), "{}", text(&run));
    assert!(run.tally.connect.len() >= 15, "{}", run.tally.connect.len());
}

#[test]
fn failures_of_streams_are_told_apart() {
    for (reason, kind) in [
        (Reason::REFUSED_STREAM, RequestFailure::StreamRefused),
        (Reason::INTERNAL_ERROR, RequestFailure::StreamReset),
    ] {
        let address = match kind {
            RequestFailure::StreamRefused => serve(|_, _| Action::Reset(Reason::REFUSED_STREAM)),
            _ => serve(|_, _| Action::Reset(Reason::INTERNAL_ERROR)),
        };
        let run = outcome(&h2(address, 6, 1, 2));
        assert_eq!(failures(&run, kind), 6, "{reason}: {}", text(&run));
    }
    let mut slow = h2(serve(|_, _| Action::Keep), 2, 1, 2);
    slow.timeout = Duration::from_millis(50);
    assert_eq!(failures(&outcome(&slow), RequestFailure::Timeout), 2);
    // A server of HTTP/1 answers the preface with a bad request.
    let run = outcome(&h2(answers(OK), 3, 1, 1));
    assert_eq!((run.tally.requests(), run.tally.errors()), (0, 3), "{}", text(&run));
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(failures(&outcome(&h2(gone, 4, 1, 4)), RequestFailure::Refused), 4);
}

#[test]
fn http2_heads_carry_the_requested_fields() {
    let address = serve(|_, request| {
        let is_right = request.method() == "PUT"
            && request.uri().path() == "/x"
            && request.uri().authority().is_some_and(|a| a == "named")
            && request.headers()["a"] == "1"
            && !request.headers().contains_key("connection");
        if is_right { Action::Answer(b"right") } else { Action::Reset(Reason::CANCEL) }
    });
    let shape = crate::RequestShape {
        method: "PUT".to_owned(),
        headers: ["Host: named", "A: 1", "Connection: close"].map(str::to_owned).to_vec(),
        body: b"body".to_vec(),
    };
    let to = address.into();
    let url = Url::parse("http://b/x").unwrap();
    let mut plan = LoadPlan::new(&[url], &shape, Some(&to), None).unwrap();
    (plan.requests, plan.protocol) = (Some(3), Protocol::Http2(1));
    assert_eq!(outcome(&plan).tally.requests(), 3);
}

#[test]
fn an_open_loop_uses_free_streams() {
    let mut plan = h2(serve(|_, _| Action::Answer(b"x")), u64::MAX, 1, 8);
    (plan.requests, plan.duration) = (None, Some(Duration::from_millis(200)));
    plan.pace = Pace::Open { rate: 500.0 };
    let run = outcome(&plan);
    assert_eq!((run.tally.requests(), run.tally.errors()), (100, 0));
    assert_eq!(run.tally.connect.len(), 1);
}
