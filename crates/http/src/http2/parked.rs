//! A connection without streams that has given up its task: a small value, and free to move to another thread.

use std::any::Any;
use std::rc::Rc;
use std::time::Duration;

use weir_engine::{Handle, Idle, Stream, Wake};
use weir_http2::{Frames, Peer, Seen};

use super::link::{Ledger, Link};
use super::reader::{History, Reader};
use super::serve;
use crate::connection::presence::Presence;
use crate::connection::{self, Resting};
use crate::worker::Worker;

/// All that is remembered of it.
struct Parked {
    conn: Resting,
    presence: Presence,
    peer: Peer,
    ledger: Ledger,
    seen: Seen,
    history: History,
}

/// Parks a connection, which may be silent for `left`.
pub fn park(link: Rc<Link>, presence: Presence, frames: Frames<Reader>, left: Duration) {
    let worker = link.worker.clone();
    // If somebody else holds the connection, it closes when that ends.
    if let Some((stream, parked)) = part(link, presence, frames) {
        parked.presence.wait(&worker);
        connection::rest(&worker, stream, parked, worker.handle.now() + left);
    }
}

fn part(link: Rc<Link>, presence: Presence, frames: Frames<Reader>) -> Option<(Stream, Parked)> {
    let (reader, seen) = frames.into_parts();
    let history = reader.into_history();
    let (conn, peer, ledger) = link.part()?;
    let (stream, conn) = conn.part();
    Some((stream, Parked { conn, presence, peer, ledger, seen, history }))
}

impl Idle for Parked {
    fn resume(self: Box<Self>, handle: &Handle, stream: Stream, why: Wake) {
        let Some(worker) = Worker::current() else { return };
        let Parked { conn, presence, peer, ledger, seen, history } = *self;
        presence.wake(&worker);
        let link = Link::new(Rc::new(conn.on(stream)), worker, peer, ledger);
        handle.spawn(serve::resume(link, presence, seen, history, why));
    }
}

/// Whether a parked connection is one of HTTP/2, whose client can be told to go elsewhere.
pub fn is_parked(idle: &dyn Idle) -> bool {
    let idle: &dyn Any = idle;
    idle.is::<Parked>()
}

#[cfg(test)]
mod tests;
