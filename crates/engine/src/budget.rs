//! Limits how much a task does in one turn.
//!
//! A loop looks for events only between turns, so a task that does not wait stalls all others. Each
//! task therefore has a budget of points for a turn. Operations on sockets and files spend points
//! by themselves. Code that works on received data spends them with [`spend`].
//!
//! A task without points waits for a later turn at its next operation, even if that could go on at
//! once. So a loop over operations needs no other bound. A loop over data that is already in memory
//! asks [`is_spent`] or awaits [`breathe`].
//!
//! A task that has used up its budget is resumed as heavy work is: last in a turn, one task at a
//! time. Tokio: coop budget.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Points for one turn. A point is worth about 50 ns.
pub(crate) const TURN: u32 = 2048;
/// The points that a system call costs, in addition to its bytes.
const CALL_POINTS: u32 = 16;
/// Copied bytes per point.
const COPY_BYTES_PER_POINT: u64 = 128;
/// Bytes of a file that are sent without a copy, per point.
const FILE_BYTES_PER_POINT: u64 = 1024;

/// The budget of code outside of tasks. The loop's own callbacks are short.
const UNBOUNDED: u32 = u32::MAX;

thread_local! {
    /// The points left to the task that this thread runs.
    static LEFT: Cell<u32> = const { Cell::new(UNBOUNDED) };
}

/// Runs a task with `left` points. Returns the points that it has left afterwards.
#[inline]
pub(crate) fn run<T>(left: u32, task: impl FnOnce() -> T) -> (T, u32) {
    let outer = LEFT.replace(left);
    let out = task();
    (out, LEFT.replace(outer))
}

/// Takes points from the running task's budget, for work that no operation counts.
#[inline]
pub fn spend(points: u32) {
    LEFT.set(LEFT.get().saturating_sub(points));
}

/// Spends the points of a system call that copied so many bytes.
#[inline]
pub(crate) fn spend_call(bytes: usize) {
    spend(CALL_POINTS + u32::try_from(bytes as u64 / COPY_BYTES_PER_POINT).unwrap_or(TURN));
}

/// Spends the points of a system call that sent so many bytes of a file.
#[inline]
pub(crate) fn spend_file(bytes: u64) {
    spend(CALL_POINTS + u32::try_from(bytes / FILE_BYTES_PER_POINT).unwrap_or(TURN));
}

/// Whether the running task has used up its budget for this turn.
#[inline]
pub fn is_spent() -> bool {
    LEFT.get() == 0
}

/// Runs `look` without a budget, for what must not wait for another turn, such as checking whether
/// a connection is silent.
#[inline]
pub fn unbounded<T>(look: impl FnOnce() -> T) -> T {
    run(UNBOUNDED, look).0
}

/// See [`breathe`] and [`yield_now`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Breathe {
    /// Gives up the rest of the budget, too.
    gives_up: bool,
}

/// Ready at once while the running task has points left, otherwise once it has a new budget.
pub fn breathe() -> Breathe {
    Breathe { gives_up: false }
}

/// Lets all other tasks run first: those that are ready now, and those of the next wait's events.
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
