//! Tests of frames that are sent apart.

use std::rc::Rc;

use weir_engine::{Handle, Loop, Options};

use super::fuzz::FuzzStream;
use super::*;

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

#[test]
fn frames_apart_are_sent_also_behind_a_write_of_nothing() {
    let own = Loop::new(&Options::default()).unwrap();
    let (link, _) = connection(&own.handle(), 1 << 14, &[]);
    link.write(|_| {});
    link.write_apart(|out| out.push(b'x'));
    assert_eq!(link.out.take().memory(), Some(&b"x"[..]));
    assert!(link.out.is_empty() && link.out.take().is_empty());
}
