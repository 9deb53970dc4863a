//! `queue`: requests that wait until a server of their group is free.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use weir_engine::{Either, either};
use weir_metrics::subjects::{Cell, GAUGE};
use weir_upstream::{Choice, Group, Picked, Queue};

use super::client::{self, Waited};
use super::counts::{COUNTS, ENTERED, LATE, REFUSED};
use super::fault::Fault;
use super::groups::QueueSettings;
use super::passing::UpstreamConf;
use crate::request::Request;

/// How often the first request in the queue checks by itself. It is not woken if another worker
/// returns a server, or if a failed server becomes available again.
const LOOK: Duration = Duration::from_millis(20);

/// A place in the queue. Dropping it leaves the queue.
struct QueuePlace<'q> {
    queue: &'q Queue,
    ticket: u64,
    cell: Option<Cell>,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.queue.leave(self.ticket);
        self.cell.iter().for_each(|cell| cell.sub(1));
    }
}

/// Waits for a server. `None` if the queue is full or the wait timed out.
pub async fn wait(
    r: &Request,
    passing: &UpstreamConf,
    group: &Group,
    choice: &mut Choice,
    conf: &QueueSettings,
) -> Result<Option<Picked>, Fault> {
    let (queue, cell) = (&group.queue, COUNTS.of(&r.event_loop).queue(group));
    let count = |at: usize| cell.iter().for_each(|cell| cell.add(at, 1));
    let Some(ticket) = queue.enter(conf.most) else {
        count(REFUSED);
        return Ok(None);
    };
    count(ENTERED);
    count(GAUGE);
    let place = QueuePlace { queue, ticket, cell };
    let begun = r.event_loop.handle.now();
    let turn = turn(r, group, choice, &place, conf.timeout);
    match client::wait(r, passing, pin!(turn), None).await {
        Waited::Gone => Err(Fault::ClientLeft),
        Waited::For(picked) => {
            if picked.is_none() {
                count(LATE);
            }
            let took = r.event_loop.handle.now().saturating_duration_since(begun);
            cell.iter().for_each(|cell| cell.record(took));
            Ok(picked)
        }
    }
}

async fn turn(
    r: &Request,
    group: &Group,
    choice: &mut Choice,
    place: &QueuePlace<'_>,
    timeout: Duration,
) -> Option<Picked> {
    let handle = &r.event_loop.handle;
    let until = handle.now() + timeout;
    // Only the first request looks for a server. The others have nothing to do until it leaves.
    let is_first = poll_fn(|cx| match place.queue.is_first(place.ticket, cx.waker()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    });
    if let Either::Right(()) = either(is_first, handle.sleep_until(until)).await {
        return None;
    }
    loop {
        let picked = poll_fn(|cx| {
            // The waker is registered before the check, so that a server that is returned in
            // between is not missed.
            place.queue.is_first(place.ticket, cx.waker());
            let mut now = choice.clone();
            match group.pick(&mut now, handle.now()) {
                Some(picked) => {
                    *choice = now;
                    Poll::Ready(picked)
                }
                None => Poll::Pending,
            }
        });
        let left = until.saturating_duration_since(handle.now());
        if left.is_zero() {
            return None;
        }
        match either(picked, handle.sleep(left.min(LOOK))).await {
            Either::Left(picked) => return Some(picked),
            Either::Right(()) => {}
        }
    }
}
