//! A connection that is parked in one loop is resumed in another one.

#![expect(clippy::disallowed_methods, reason = "a test is its own transport")]

use std::future::poll_fn;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::task::Poll;
use std::time::{Duration, Instant};

use weir_engine::{Driver, Handle, ListenerKey, Loop, Options, Patience, Turn};
use weir_metrics::Registry;
use weir_metrics::subjects::Cells;
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, FrameType};
use weir_proto::http2::hpack::Decoder;

use super::*;
use crate::address::Address;
use crate::{Identity, Retire, trial};

const PATIENCE: Duration = Duration::from_secs(20);
const SITE: &str = "http2 on; server {
    listen 127.0.0.1:80;
    return 200 '$connection_requests $http_x_kept';
}";
/// A head whose last field is added to the dynamic table, and a head that refers to it there.
const FIRST: &[u8] = b"\x82\x86\x84\x01\x01a\x40\x06x-kept\x04kept";
const SECOND: &[u8] = b"\x82\x86\x84\x01\x01a\xbe";

fn request(stream: u32, block: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let begin = frame::leave_head(&mut out);
    out.extend_from_slice(block);
    frame::finish_headers(&mut out, begin, stream, frame::END_STREAM, frame::MAX_PAYLOAD);
    out
}

/// The body of the next answer.
fn body(client: &mut impl Read) -> String {
    loop {
        let mut head = [0; frame::HEAD];
        client.read_exact(&mut head).unwrap();
        let head = FrameHead::read(&head).unwrap();
        let mut payload = vec![0; head.len];
        client.read_exact(&mut payload).unwrap();
        assert!(!matches!(head.kind, FrameType::Goaway | FrameType::RstStream), "{head:?}");
        if head.kind == FrameType::Data && head.has(frame::END_STREAM) {
            return String::from_utf8(payload).unwrap();
        }
    }
}

/// The code of the next GOAWAY.
fn goodbye(client: &mut impl Read) -> u32 {
    let mut goaway = [0; frame::HEAD + 8];
    client.read_exact(&mut goaway).unwrap();
    assert_eq!(FrameHead::read(&goaway).unwrap().kind, FrameType::Goaway);
    frame::word(&goaway[frame::HEAD + 4..]).unwrap()
}

/// A loop that serves [`SITE`], in this thread.
fn make() -> (Loop, Rc<LoopState>) {
    let own = Loop::new(&Options::default()).unwrap();
    let site = weir_sys::lent::Lent::new(std::sync::Arc::new(trial::site(SITE).unwrap()));
    let words = (0..Registry::words_for(1)).map(|_| AtomicU64::new(0));
    let registry = Registry::new(Vec::leak(words.collect()));
    let (has_master, agent) = (true, false);
    let identity = Identity { pid: 1, worker: 0, workers: 1, index: 1, has_master, agent };
    let tally = Rc::new(registry.tally(0).unwrap());
    let cells = Rc::new(Cells::new(registry, 0));
    let event_loop = LoopState::new(own.handle(), site, identity, tally, cells);
    (own, event_loop)
}

/// Runs a loop until it is told to stop, or until only so many parked connections are left.
struct UntilLeft {
    parked: usize,
    begun: bool,
    by: Instant,
}

impl Driver for UntilLeft {
    fn before_wait(&mut self, _: &Handle, _: Instant) -> Option<Duration> {
        Some(PATIENCE)
    }

    fn acceptable(&mut self, _: &Handle, _: ListenerKey) {}

    fn end_of_turn(&mut self, h: &Handle, turn: &Turn) {
        self.begun |= turn.started > 0;
        if (self.begun && (h.tasks(), h.parked()) == (0, self.parked)) || turn.woke > self.by {
            h.stop();
        }
    }
}

fn run(own: &mut Loop, parked: usize) {
    let by = Instant::now() + PATIENCE;
    own.run(&mut UntilLeft { parked, begun: own.handle().tasks() > 0, by }).unwrap();
}

/// Serves one request, and returns the parked connection.
fn begin(server: OwnedFd, request: Vec<u8>) -> (OwnedFd, ParkedHttp2) {
    let (mut own, event_loop) = make();
    let (send, parted) = mpsc::channel();
    let h = own.handle();
    let stream = h.stream(server).unwrap();
    let conn = Resting::new(Address::Unknown, 0, 1, h.now()).on(stream);
    let presence = Presence::begin(&event_loop);
    presence.quiet(&event_loop);
    h.clone().spawn(async move {
        let link = Link::new(
            Rc::new(conn),
            event_loop,
            weir_http2::PeerState::default(),
            Ledger::default(),
        );
        let reader = Reader::new(link.clone(), History::default());
        let mut frames = Frames::new(reader, ReaderHistory::nothing(Decoder::default()));
        frames.read(&request).unwrap();
        while link.streams() > 0 {
            poll_fn(|cx| if link.out.take_signal(cx) { Poll::Ready(()) } else { Poll::Pending })
                .await;
        }
        let mut out = weir_engine::Chain::new();
        out.push(link.out.take());
        link.conn.wire().send(&mut out, Patience::Watched).await.unwrap();
        let (stream, parked) = part(link, presence, frames).unwrap();
        send.send((stream.into_fd().unwrap(), parked)).unwrap();
        h.stop();
    });
    run(&mut own, 0);
    parted.recv().unwrap()
}

/// Serves requests until the connection is parked again.
fn go_on(server: OwnedFd, mut parked: ParkedHttp2) {
    let (mut own, event_loop) = make();
    // The connection counts for this worker from its arrival on.
    parked.presence.arrive(&mut parked.conn, &event_loop);
    parked.presence.wait(&event_loop);
    let h = own.handle();
    h.park(h.stream(server).unwrap(), Box::new(parked), None);
    run(&mut own, 1);
    assert_eq!(
        (h.tasks(), h.parked(), event_loop.connections(), event_loop.inflight()),
        (0, 1, 1, 0)
    );
    event_loop.retire(Retire::Reload);
    run(&mut own, 0);
    assert_eq!(
        (h.tasks(), h.parked(), event_loop.connections(), event_loop.inflight()),
        (0, 0, 0, 0)
    );
}

#[test]
fn it_moves_to_another_loop_and_is_parked_there() {
    let (mut client, server) = UnixStream::pair().unwrap();
    server.set_nonblocking(true).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut greeting = frame::PREFACE.to_vec();
    frame::write_settings(&[], &mut greeting);
    greeting.extend(request(1, FIRST));
    let moved = std::thread::spawn(move || begin(server.into(), greeting));
    assert_eq!(body(&mut client), "1 kept");
    let (server, parked) = moved.join().unwrap();
    let there = std::thread::spawn(move || go_on(server, parked));
    client.write_all(&request(3, SECOND)).unwrap();
    assert_eq!(body(&mut client), "2 kept");
    assert_eq!(goodbye(&mut client), ErrorCode::NoError as u32);
    drop(client);
    there.join().unwrap();
}

#[test]
fn it_is_small() {
    assert!(size_of::<ParkedHttp2>() <= 400, "{}", size_of::<ParkedHttp2>());
}
