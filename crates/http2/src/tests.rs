//! Tests of streams that wait, and of frames that are sent apart.

use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use weir_engine::{Chain, Handle, Loop, Options};
use weir_proto::http2::frame;

use super::fuzz::FuzzStream;
use super::*;

/// More than the outbox may hold.
const FULL: u64 = 1 << 20;

/// A connection that sends at most `chunk` bytes in a frame, with a stream for each of these windows.
fn connection(
    handle: &Handle,
    chunk: usize,
    windows: &[i64],
) -> (Rc<Link<FuzzStream>>, Vec<Rc<FuzzStream>>) {
    let link = Rc::new(Link::new(handle.clone(), PeerState::default(), chunk));
    let streams = windows.iter().zip((1..).step_by(2)).map(|(window, id)| {
        let send_window = SendWindow::new(*window, false);
        Rc::new(FuzzStream { id, link: link.clone(), send_window })
    });
    let streams: Vec<_> = streams.collect();
    streams.iter().for_each(|stream| link.add(stream.clone()));
    (link, streams)
}

fn has_room(stream: &Rc<FuzzStream>) -> bool {
    poll_room(stream, &Context::from_waker(Waker::noop())) == Poll::Ready(())
}

#[test]
fn a_stream_whose_window_was_taken_leaves_its_turn_to_the_next() {
    let own = Loop::new(&Options::default()).unwrap();
    // The outbox has room for one stream at a time.
    let (link, streams) = connection(&own.handle(), 1 << 16, &[10, 1000]);
    link.set_backlog(FULL);
    assert!(!has_room(&streams[0]) && !has_room(&streams[1]));
    link.set_initial_window(frame::DEFAULT_WINDOW - 50);
    link.set_backlog(0);
    assert!(!has_room(&streams[0]), "it has no window");
    assert!(has_room(&streams[1]), "nothing else is sent, so nothing else would admit it");
    streams.iter().for_each(|stream| _ = link.remove(stream.id));
}

#[test]
fn a_stream_without_a_body_any_more_leaves_its_turn_to_the_next() {
    let own = Loop::new(&Options::default()).unwrap();
    // The outbox has room for one stream at a time.
    let (link, streams) = connection(&own.handle(), 1 << 16, &[1000, 1000, 1000]);
    link.set_backlog(FULL);
    assert!(streams.iter().all(|stream| !has_room(stream)));
    let needs_none = |stream: &Rc<FuzzStream>| {
        let done = send_some(&**stream, &mut Chain::new(), false, 1 << 14).unwrap();
        assert_eq!(done, Pause::Done);
    };
    needs_none(&streams[0]);
    link.set_backlog(0);
    needs_none(&streams[1]);
    assert!(has_room(&streams[2]), "nothing else is sent, so nothing else would admit it");
    streams.iter().for_each(|stream| _ = link.remove(stream.id));
}

#[test]
fn frames_apart_are_sent_also_behind_a_write_of_nothing() {
    let own = Loop::new(&Options::default()).unwrap();
    let (link, _) = connection(&own.handle(), 1 << 14, &[]);
    link.write(|_| {});
    link.write_apart(|out| out.push(b'x'));
    assert_eq!(link.out.take().memory(), Some(&b"x"[..]));
    assert!(link.out.is_empty() && link.out.take().is_empty());
}
