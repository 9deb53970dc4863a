//! A loop's row of the load table: its words, and what their values mean.
//!
//! The loop writes its load and its state. Other loops count the connections that they hand over,
//! and call the loop.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use weir_slumber::{Slumber, Word};

use super::access::{change, get, get_in, put};
use super::{ROW, micros};

/// A sleeping loop that has not acknowledged a wake-up for this long counts as stopped, and is not
/// expected to accept.
pub(crate) const SILENT: Duration = Duration::from_millis(10);

// Words of a row's first line.
/// A state and, above its bits, the time in microseconds since which it holds.
pub const STATE: usize = 0;
/// Requests in process.
pub const INFLIGHT: usize = 1;
/// Open connections.
pub const OPEN: usize = 2;
const ACCEPTED: usize = 4;
/// Connections that the loop has taken of those that it was assigned.
pub const TAKEN: usize = 5;
// Words of its second line.
/// The time of a wake-up that the loop has not acknowledged, or 0.
pub const WOKEN: usize = 8;
/// Connections that the loop was assigned.
pub const HANDED: usize = 9;
/// The reasons why the loop was called, and whether it sleeps: see [`Slumber`].
const CALLS: usize = 10;

// Reasons to call a loop.
/// The loop has to compare again.
const WAKE: u64 = 1;
/// The loop has to try all sockets: the recheck token.
const RECHECK: u64 = 2;

/// The number of bits of a state.
pub const STATE_BITS: u32 = 3;

/// One loop's row.
#[derive(Clone, Copy)]
pub struct Row<'a>(pub(super) &'a [AtomicU64; ROW]);

/// The load of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in process, including accepted connections that wait for the answer to their first
    /// request.
    pub inflight: u64,
    /// Open connections, including idle ones.
    pub open: u64,
}

/// What a loop is doing, as it last published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopActivity {
    /// The row has no loop, or its worker died.
    Vacant,
    /// The loop is in a turn.
    Awake,
    /// The loop sleeps, and new connections may wake it.
    Armed,
    /// The loop sleeps, and other loops accept new connections.
    Disarmed,
    /// The loop has no free slot for a connection.
    Full,
    /// The loop finishes its connections and accepts no more.
    Retired,
}

impl Row<'_> {
    /// What the loop was doing, as it last published.
    #[inline]
    #[must_use]
    pub fn state(&self) -> LoopActivity {
        self.state_since().0
    }

    /// The loop's load, as it last published.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Load {
        Load { inflight: get_in(&self.0[INFLIGHT], Relaxed), open: get_in(&self.0[OPEN], Relaxed) }
    }

    /// Connections that this loop has accepted since it started.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        get_in(&self.0[ACCEPTED], Relaxed)
    }

    /// Connections that were handed to this loop and that it has taken or given up.
    #[inline]
    pub(crate) fn taken(&self) -> u64 {
        get(&self.0[TAKEN])
    }

    pub(crate) fn handed(&self) -> u64 {
        get(&self.0[HANDED])
    }

    /// None of the first `handed` connections that the loop was assigned waits any more.
    pub(crate) fn take_all(&self, handed: u64) {
        if self.taken() < handed {
            put(&self.0[TAKEN], handed, SeqCst);
        }
    }

    /// Connections that this loop was assigned and has not taken yet.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> u64 {
        get(&self.0[HANDED]).saturating_sub(get(&self.0[TAKEN]))
    }

    #[inline]
    pub(crate) fn state_since(&self) -> (LoopActivity, u64) {
        let word = get(&self.0[STATE]);
        let state = match word & ((1 << STATE_BITS) - 1) {
            1 => LoopActivity::Awake,
            2 => LoopActivity::Armed,
            3 => LoopActivity::Disarmed,
            4 => LoopActivity::Full,
            5 => LoopActivity::Retired,
            _ => LoopActivity::Vacant,
        };
        (state, word >> STATE_BITS)
    }

    #[inline]
    pub(crate) fn set_state(&self, state: LoopActivity, stamp: u64) {
        put(&self.0[STATE], stamp << STATE_BITS | state as u64, SeqCst);
    }

    #[inline]
    pub(crate) fn set_load(&self, load: Load) {
        put(&self.0[INFLIGHT], load.inflight, Relaxed);
        put(&self.0[OPEN], load.open, Relaxed);
    }

    #[inline]
    pub(super) fn count_accepted(&self, n: u32) {
        change(|| self.0[ACCEPTED].fetch_add(u64::from(n), Relaxed));
    }

    #[inline]
    pub(crate) fn count_handed(&self) {
        change(|| self.0[HANDED].fetch_add(1, SeqCst));
    }

    /// How many connections were counted as assigned and as taken.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (get(&self.0[HANDED]), get(&self.0[TAKEN]))
    }

    /// All connections that were assigned by then have been taken, or never arrived.
    pub(crate) fn settle(&self, (handed, taken): (u64, u64)) {
        if handed > taken {
            change(|| self.0[TAKEN].compare_exchange(taken, handed, SeqCst, SeqCst));
        }
    }

    /// A connection that was handed to a loop before it died was counted in a row that has been
    /// cleared since.
    #[inline]
    pub(crate) fn count_taken(&self) {
        if self.pending() > 0 {
            change(|| self.0[TAKEN].fetch_add(1, SeqCst));
        }
    }

    /// Wakes the loop, so that it compares again. True if the caller has to write to its notifier.
    #[inline]
    pub(crate) fn wake(&self, stamp: u64) -> bool {
        self.call(WAKE, stamp)
    }

    /// Acknowledges the loop's wake-ups. False if there was none.
    pub(crate) fn acknowledge_wake(&self) -> bool {
        if get(&self.0[WOKEN]) != 0 {
            put(&self.0[WOKEN], 0, SeqCst);
        }
        self.calls().take(WAKE)
    }

    /// The caller notifies the loop in any case, since an earlier caller may have been killed
    /// before it did.
    #[inline]
    pub(super) fn give_recheck(&self, stamp: u64) {
        self.call(WAKE | RECHECK, stamp);
    }

    /// Takes the recheck token. False if this loop has none.
    pub(crate) fn take_recheck(&self) -> bool {
        self.calls().take(RECHECK)
    }

    /// Whether this loop has been given a recheck token.
    #[inline]
    pub(crate) fn has_recheck(&self) -> bool {
        self.calls().has(RECHECK)
    }

    /// Publishes that the loop sleeps. False if it must not sleep, since it was called.
    pub(crate) fn sleep(&self) -> bool {
        let sleeps = self.calls().sleep();
        if !sleeps {
            self.calls().keep_only(WAKE | RECHECK);
        }
        sleeps
    }

    /// Publishes that the loop is awake.
    pub(crate) fn awake(&self) {
        self.calls().wake();
    }

    /// Whether the loop was called and has not acted yet.
    #[cfg(test)]
    pub(crate) fn is_called(&self) -> bool {
        self.calls().has(WAKE | RECHECK)
    }

    fn call(&self, reasons: u64, stamp: u64) -> bool {
        if get(&self.0[WOKEN]) == 0 {
            change(|| self.0[WOKEN].compare_exchange(0, stamp, SeqCst, SeqCst));
        }
        self.calls().call(reasons)
    }

    fn calls(&self) -> Slumber<RowWord<'_>> {
        Slumber::over(RowWord(&self.0[CALLS]))
    }

    #[inline]
    pub(crate) fn is_silent(&self, stamp: u64) -> bool {
        let woken = get(&self.0[WOKEN]);
        woken != 0 && stamp.saturating_sub(woken) >= micros(SILENT)
    }
}

/// A word of a row, for [`Slumber`]. A dead process changes nothing.
struct RowWord<'a>(&'a AtomicU64);

impl Word for RowWord<'_> {
    fn get(&self) -> u64 {
        get(self.0)
    }

    fn raise(&self, bits: u64) -> u64 {
        change(|| self.0.fetch_or(bits, SeqCst)).unwrap_or(0)
    }

    fn lower(&self, bits: u64) -> u64 {
        change(|| self.0.fetch_and(!bits, SeqCst)).unwrap_or(0)
    }

    fn change(&self, from: u64, to: u64) -> bool {
        let changed = change(|| self.0.compare_exchange(from, to, SeqCst, SeqCst));
        changed.is_none_or(|changed| changed.is_ok())
    }
}
