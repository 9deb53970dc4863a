//! Parked connections: without streams, task or buffers. Another loop may take one.

use std::any::Any;
use std::rc::Rc;
use std::time::Duration;

use weir_engine::{Handle, Idle, Stream, Wake};
use weir_http2::{Frames, PeerState, ReaderHistory};

use super::link::{Ledger, Link};
use super::reader::{History, Reader};
use super::serve;
use crate::carrier::Resting;
use crate::connection::presence::Presence;
use crate::connection::rest;
use crate::event_loop::LoopState;

/// A parked connection.
struct ParkedHttp2 {
    conn: Resting,
    presence: Presence,
    peer: PeerState,
    ledger: Ledger,
    seen: ReaderHistory,
    history: History,
}

/// Parks a connection, for `left` at most.
pub fn park(link: Rc<Link>, presence: Presence, frames: Frames<Reader>, left: Duration) {
    let event_loop = link.event_loop();
    // If another task holds the connection, it is not parked, and closes when that task ends.
    if let Some((stream, parked)) = part(link, presence, frames) {
        parked.presence.wait(&event_loop);
        rest(&event_loop, stream, parked, event_loop.handle.now() + left);
    }
}

fn part(
    link: Rc<Link>,
    presence: Presence,
    frames: Frames<Reader>,
) -> Option<(Stream, ParkedHttp2)> {
    let (reader, seen) = frames.into_parts();
    let history = reader.into_history();
    let (conn, peer, ledger) = link.part()?;
    let (stream, conn) = conn.part();
    Some((stream, ParkedHttp2 { conn, presence, peer, ledger, seen, history }))
}

impl Idle for ParkedHttp2 {
    fn stays(&self) -> bool {
        self.conn.stays()
    }

    fn resume(self: Box<Self>, handle: &Handle, stream: Stream, why: Wake) {
        let Some(event_loop) = LoopState::current() else { return };
        let ParkedHttp2 { mut conn, mut presence, peer, ledger, seen, history } = *self;
        presence.arrive(&mut conn, &event_loop);
        presence.wake(&event_loop);
        let link = Link::new(Rc::new(conn.on(stream)), event_loop, peer, ledger);
        handle.spawn_large(|| serve::resume(link, presence, seen, history, why));
    }
}

/// Whether a parked connection is one of HTTP/2. Its client can be sent GOAWAY.
pub fn is_parked(idle: &dyn Idle) -> bool {
    let idle: &dyn Any = idle;
    idle.is::<ParkedHttp2>()
}

#[cfg(test)]
mod tests;
