//! A connection without streams that has given up its task: a small value, and free to move to another thread.

use std::any::Any;
use std::rc::Rc;
use std::time::Duration;

use weir_engine::{Handle, Idle, Stream, Wake};
use weir_metrics::Metric;

use super::link::{Ledger, Link};
use super::reader::{History, Reader};
use super::serve;
use crate::connection::{self, Resting};
use crate::worker::Worker;

/// All that is remembered of it.
struct Parked {
    conn: Resting,
    ledger: Ledger,
    history: History,
}

/// Parks a connection, which may be silent for `left`.
pub fn park(link: Rc<Link>, reader: Reader, left: Duration) {
    let worker = link.worker.clone();
    match part(link, reader) {
        Some((stream, parked)) => {
            connection::rest(&worker, stream, parked, worker.handle.now() + left);
        }
        // Somebody else holds the connection, which closes when that ends.
        None => worker.ended(false),
    }
}

fn part(link: Rc<Link>, reader: Reader) -> Option<(Stream, Parked)> {
    let history = reader.part();
    let (conn, ledger) = link.part()?;
    let (stream, conn) = conn.part();
    Some((stream, Parked { conn, ledger, history }))
}

impl Idle for Parked {
    fn resume(self: Box<Self>, handle: &Handle, stream: Stream, why: Wake) {
        let Some(worker) = Worker::current() else { return };
        worker.metrics.sub(Metric::Waiting, 1);
        let Parked { conn, ledger, history } = *self;
        let link = Link::new(Rc::new(conn.on(stream)), worker, ledger);
        handle.spawn(serve::resume(link, history, why));
    }
}

/// Whether a parked connection is one of HTTP/2, whose client can be told to go elsewhere.
pub fn is_parked(idle: &dyn Idle) -> bool {
    let idle: &dyn Any = idle;
    idle.is::<Parked>()
}

#[cfg(test)]
mod tests;
