//! How much a task does before others get their turn.
//!
//! A loop looks for events between two turns, so a task that does not end stalls all others.
//! Therefore each task has a budget of points for a turn. Operations on sockets and files take
//! points by themselves, and code that works on received data takes them with [`spend`]. When
//! nothing is left, each operation that could go on at once waits for another turn instead. A loop
//! over operations needs no other bound; one over what was read before asks [`is_spent`], or awaits
//! [`breathe`].
//!
//! A task that used up its budget goes on as heavy work does: last, after all that is ready now, and one at a time.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Points for one turn. A point is a twentieth of a microsecond, more or less.
pub(crate) const TURN: u32 = 2048;
/// What a system call costs, beside its bytes.
const CALL: u32 = 16;
/// So many bytes that are copied cost a point.
const COPIED: u64 = 128;
/// So many bytes of a file that are sent without a copy do.
const SENT: u64 = 1024;

/// What does not run in a task has no bound: the loop's own callbacks are short.
const UNBOUNDED: u32 = u32::MAX;

thread_local! {
    /// What is left to the task that this thread runs.
    static LEFT: Cell<u32> = const { Cell::new(UNBOUNDED) };
}

/// Runs a task that has `left`: what it has then.
#[inline]
pub(crate) fn run<T>(left: u32, task: impl FnOnce() -> T) -> (T, u32) {
    let outer = LEFT.replace(left);
    let out = task();
    (out, LEFT.replace(outer))
}

/// Takes points from the running task's budget, for work that no operation counts. A point is worth about 50 ns.
#[inline]
pub fn spend(points: u32) {
    LEFT.set(LEFT.get().saturating_sub(points));
}

/// An operation copied so many bytes.
#[inline]
pub(crate) fn spend_call(bytes: usize) {
    spend(CALL + u32::try_from(bytes as u64 / COPIED).unwrap_or(TURN));
}

/// An operation sent so many bytes of a file.
#[inline]
pub(crate) fn spend_file(bytes: u64) {
    spend(CALL + u32::try_from(bytes / SENT).unwrap_or(TURN));
}

/// The running task has done enough for this turn.
#[inline]
pub fn is_spent() -> bool {
    LEFT.get() == 0
}

/// Does what must not wait for another turn, such as a look whether a connection is silent.
#[inline]
pub fn unbounded<T>(look: impl FnOnce() -> T) -> T {
    run(UNBOUNDED, look).0
}

/// See [`breathe`] and [`yield_now`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Breathe {
    /// Whatever is left is given up.
    gives_up: bool,
}

/// Ready while something is left of the running task's budget, and otherwise when it has another.
pub fn breathe() -> Breathe {
    Breathe { gives_up: false }
}

/// Lets all other tasks go first: what is ready now, and what the next look for events brings.
pub fn yield_now() -> Breathe {
    Breathe { gives_up: true }
}

impl Future for Breathe {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::take(&mut self.gives_up) {
            spend(UNBOUNDED);
        }
        if !is_spent() {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
