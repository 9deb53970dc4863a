//! The load table: a row of words per loop, in shared memory.
//!
//! A row is written by its loop, cleared by its successor, and read by all loops. A row may be
//! stale, since its loop may be stalled, stopped or dead. Three rules keep a stale row from doing
//! harm. A state has the time since which it holds. A loop that does not acknowledge a wake-up
//! counts no more. The row of a dead worker is cleared.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use access::{change, get, get_in, put};

mod access;
mod row;

pub(crate) use row::SILENT;
pub use row::{Load, LoopActivity, Row};

/// The number of words of the head and of each row. It is two cache lines of 64 bytes, which
/// processors fetch in pairs. The loop writes the first line, other loops the second.
pub const ROW: usize = 16;
/// The number of rows that a comparison reads. Each is in the cache of the loop that writes it.
/// With many loops, reading all rows would cost more than most requests.
const COMPARED: usize = 16;
/// The words of the bitmap of sleeping loops above the mean. With it, loops scan no rows when there
/// are none. Loops beyond its size are never woken by others; they decide again by themselves.
const BITMAP_WORDS: usize = 8;

/// A loop that has been awake for longer counts as stuck in a handler, and is not expected to
/// accept.
const STUCK: Duration = Duration::from_millis(50);

/// The table: a head of `ROW` words, then a row per loop.
#[derive(Clone, Copy)]
pub struct LoadTable<'a> {
    head: &'a [AtomicU64; ROW],
    rows: &'a [[AtomicU64; ROW]],
    base: Instant,
}

/// The places of words that eBPF programs read: indexes in the table for the first two, in a row
/// for the others.
pub mod words {
    pub use super::row::{HANDED, INFLIGHT, OPEN, STATE, STATE_BITS, TAKEN, WOKEN};
    pub use super::{BASE, ROW};
}

// Words of the head.
const LOCK: usize = 0;
const ABOVE_MEAN: usize = 1;
const HANDOVER: usize = 9;
/// Connections that all loops together have accepted, including closed ones.
const ACCEPTS: usize = 10;
/// Nanoseconds of the monotonic clock at the table's base, for eBPF programs. The maker of the
/// table writes them.
pub const BASE: usize = 15;

impl<'a> LoadTable<'a> {
    /// The number of words of a table for this many loops.
    #[must_use]
    pub const fn words(loops: usize) -> usize {
        (loops + 1) * ROW
    }

    /// A table over shared words, with as many rows as fit. All processes that share the words must
    /// pass the same `base` (inherited across fork). It is an instant before all instants that they
    /// pass later.
    ///
    /// # Panics
    ///
    /// If there are too few words for the head.
    #[must_use]
    pub fn over(words: &'a [AtomicU64], base: Instant) -> LoadTable<'a> {
        let (chunks, _) = words.as_chunks::<ROW>();
        let (head, rows) = chunks.split_first().expect("LoadTable::words tells the size");
        LoadTable { head, rows, base }
    }

    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row of loop `i`.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, i: usize) -> Row<'a> {
        Row(&self.rows[i])
    }

    /// All rows, by loop.
    pub fn rows(&self) -> impl Iterator<Item = (usize, Row<'a>)> + use<'a> {
        self.rows.iter().map(Row).enumerate()
    }

    /// The rows of one comparison: all, or at most [`COMPARED`], so that a comparison costs the
    /// same with hundreds of loops. The next `window` selects others.
    pub(crate) fn compared(
        &self,
        window: usize,
    ) -> impl Iterator<Item = (usize, Row<'a>)> + use<'a> {
        let (rows, n) = (self.rows, self.len());
        let first = if n > COMPARED { window * COMPARED % n } else { 0 };
        (first..first + n.min(COMPARED)).map(move |i| (i % n, Row(&rows[i % n])))
    }

    /// Connections that all loops together have accepted.
    pub(crate) fn accepts(&self) -> u64 {
        get_in(&self.head[ACCEPTS], Relaxed)
    }

    /// Counts `n` connections that loop `i` has accepted.
    pub(crate) fn count_accepted(&self, i: usize, n: u32) {
        self.row(i).count_accepted(n);
        change(|| self.head[ACCEPTS].fetch_add(u64::from(n), Relaxed));
    }

    /// Clears a row and releases what its loop held. Called for a worker that died, and by a loop
    /// that takes the row over.
    pub fn clear(&self, i: usize) {
        for word in &self.rows[i] {
            put(word, 0, SeqCst);
        }
        self.unmark_above_mean(i);
        self.unlock(i);
        if get(&self.head[HANDOVER]) >> 32 == i as u64 + 1 {
            put(&self.head[HANDOVER], 0, SeqCst);
        }
    }

    /// The connection that [`Policy::place`](crate::Policy::place) assigned to loop `i` was handed
    /// over, or could not be if not `done`.
    pub fn end_handover(&self, i: usize, done: bool) {
        if !done {
            self.row(i).count_taken();
        }
        put(&self.head[HANDOVER], 0, SeqCst);
    }

    /// Whether an acceptor is handing a connection to loop `i`, or died while it did and its row is
    /// not cleared yet.
    #[must_use]
    pub fn hands_to(&self, i: usize) -> bool {
        get(&self.head[HANDOVER]) & u64::from(u32::MAX) == i as u64 + 1
    }

    /// The acceptor of loop `me` is about to hand a connection to loop `i`, which is counted before
    /// it is sent. An acceptor that dies in between leaves a count too many. The loop corrects it
    /// when no acceptor hands over.
    pub(crate) fn begin_handover(&self, me: usize, i: usize) {
        put(&self.head[HANDOVER], (me as u64 + 1) << 32 | (i as u64 + 1), SeqCst);
        self.row(i).count_handed();
    }

    /// The kernel woke only the loops of `from` for a connection that they may not be able to
    /// accept.
    ///
    /// Gives the recheck token to a sleeping loop that has none yet; the caller notifies it. That
    /// loop tries every shared socket in each turn until all queues are empty. It passes the token
    /// on if it cannot accept. If no loop sleeps, all others get a token, since any of them may be
    /// free first.
    pub fn pass_recheck(
        &self,
        now: Instant,
        from: std::ops::Range<usize>,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let (table, stamp) = (*self, self.stamp(now));
        let comes = |i: &usize| {
            let row = table.row(*i);
            row.state() != LoopActivity::Awake && table.counts(row, stamp)
        };
        let order = |i: &usize| {
            let row = table.row(*i);
            let (state, since) = row.state_since();
            (row.has_recheck(), state != LoopActivity::Armed, since, *i)
        };
        let one = self.takers(from.clone()).filter(comes).min_by_key(order);
        let all = one.is_none().then(|| self.takers(from)).into_iter().flatten();
        one.into_iter().chain(all).inspect(move |i| table.row(*i).give_recheck(stamp))
    }

    /// As [`pass_recheck`](LoadTable::pass_recheck), but gives the token to all loops, since any
    /// single loop may be stopped, too.
    pub fn pass_recheck_to_all(
        &self,
        now: Instant,
        from: std::ops::Range<usize>,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let (table, stamp) = (*self, self.stamp(now));
        self.takers(from).inspect(move |i| table.row(*i).give_recheck(stamp))
    }

    /// These loops may be stopped. They no longer count unless they acknowledge a wake-up. The
    /// caller notifies them.
    pub fn suspect(&self, now: Instant, of: std::ops::Range<usize>) {
        of.filter_map(|i| self.rows.get(i)).for_each(|row| _ = Row(row).wake(self.stamp(now)));
    }

    fn takers(&self, but: std::ops::Range<usize>) -> impl Iterator<Item = usize> + use<'a> {
        let takes = |row: Row<'_>| {
            matches!(
                row.state(),
                LoopActivity::Armed | LoopActivity::Disarmed | LoopActivity::Awake
            )
        };
        self.rows().filter(move |(i, row)| !but.contains(i) && takes(*row)).map(|(i, _)| i)
    }

    /// Microseconds since the base, at least 1.
    pub(crate) fn stamp(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.base);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(1)
    }

    /// Whether this loop can be expected to accept soon.
    pub(crate) fn counts(&self, row: Row<'_>, stamp: u64) -> bool {
        let (state, since) = row.state_since();
        match state {
            LoopActivity::Awake => stamp.saturating_sub(since) < micros(STUCK),
            LoopActivity::Armed | LoopActivity::Disarmed => !row.is_silent(stamp),
            LoopActivity::Vacant | LoopActivity::Full | LoopActivity::Retired => false,
        }
    }

    /// Marks loop `me`, which sleeps or is about to, as above the mean.
    pub(crate) fn mark_above_mean(&self, me: usize) {
        if let Some((word, bit)) = self.above_mean_bit(me) {
            change(|| word.fetch_or(bit, SeqCst));
        }
    }

    /// Removes the mark. Writes nothing if there is none.
    pub(crate) fn unmark_above_mean(&self, me: usize) {
        if let Some((word, bit)) = self.above_mean_bit(me)
            && get(word) & bit != 0
        {
            change(|| word.fetch_and(!bit, SeqCst));
        }
    }

    /// Whether loop `i` is marked.
    pub(crate) fn is_above_mean(&self, i: usize) -> bool {
        self.above_mean_bit(i).is_some_and(|(word, bit)| get(word) & bit != 0)
    }

    /// The marked loops.
    pub(crate) fn above_mean(&self) -> impl Iterator<Item = usize> + use<'a> {
        let len = self.len();
        let words = self.head.iter().skip(ABOVE_MEAN).take(BITMAP_WORDS).enumerate();
        words
            .flat_map(|(w, word)| Bits(get(word)).map(move |bit| w * 64 + bit))
            .filter(move |&i| i < len)
    }

    /// Tries to take the accept lock for loop `me`. True if the loop holds it now. A lock whose
    /// word names no loop of the table is free.
    pub(crate) fn try_lock(&self, me: usize) -> bool {
        let mine = me as u64 + 1;
        let take = |from| change(|| self.head[LOCK].compare_exchange(from, mine, SeqCst, SeqCst));
        match take(0) {
            Some(Err(holder)) if holder > self.len() as u64 => {
                take(holder).is_some_and(|t| t.is_ok())
            }
            Some(Err(holder)) => holder == mine,
            taken => taken.is_some(),
        }
    }

    /// Releases the accept lock, if loop `me` holds it.
    pub(crate) fn unlock(&self, me: usize) {
        let mine = me as u64 + 1;
        if get(&self.head[LOCK]) == mine {
            put(&self.head[LOCK], 0, SeqCst);
        }
    }

    fn above_mean_bit(&self, i: usize) -> Option<(&'a AtomicU64, u64)> {
        (i < BITMAP_WORDS * 64).then(|| (&self.head[ABOVE_MEAN + i / 64], 1 << (i % 64)))
    }
}

const fn micros(d: Duration) -> u64 {
    d.as_micros() as u64
}

/// Iterates over the positions of set bits.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.checked_sub(1)?;
        Some(bit as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::row::STATE_BITS;
    use super::*;

    fn words(loops: usize) -> Vec<AtomicU64> {
        (0..LoadTable::words(loops)).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn a_cleared_row_is_vacant_and_gives_back_lock_and_mark() {
        let (words, base) = (words(3), Instant::now());
        let table = LoadTable::over(&words, base);
        table.row(1).set_state(LoopActivity::Awake, 5);
        table.row(1).set_load(Load { inflight: 2, open: 3 });
        table.mark_above_mean(1);
        assert!(table.try_lock(1) && !table.try_lock(2));
        table.clear(1);
        assert_eq!(table.row(1).state(), LoopActivity::Vacant);
        assert_eq!(table.row(1).load(), Load::default());
        assert_eq!(table.above_mean().count(), 0);
        assert!(table.try_lock(2));
    }

    #[test]
    fn the_state_keeps_its_time() {
        let (words, base) = (words(1), Instant::now());
        let table = LoadTable::over(&words, base);
        for state in [
            LoopActivity::Awake,
            LoopActivity::Armed,
            LoopActivity::Disarmed,
            LoopActivity::Full,
            LoopActivity::Retired,
        ] {
            table.row(0).set_state(state, 1 << 50);
            assert_eq!(table.row(0).state_since(), (state, 1 << 50));
        }
    }

    #[test]
    fn stuck_and_silent_loops_stop_counting() {
        let (words, base) = (words(1), Instant::now());
        let table = LoadTable::over(&words, base);
        let row = table.row(0);
        row.set_state(LoopActivity::Awake, 1000);
        assert!(table.counts(row, 1000) && !table.counts(row, 1000 + micros(STUCK)));
        row.set_state(LoopActivity::Armed, 1000);
        assert!(table.counts(row, u64::MAX >> STATE_BITS), "a loop may sleep for days");
        assert!(row.sleep() && row.wake(2000) && !row.wake(3000));
        assert!(table.counts(row, 2001) && !table.counts(row, 2000 + micros(SILENT)));
        row.acknowledge_wake();
        assert!(table.counts(row, 2000 + micros(SILENT)));
    }

    #[test]
    fn a_recheck_token_goes_to_the_longest_armed_sleeper_then_to_others_then_to_all_awake() {
        let (words, base) = (words(6), Instant::now());
        let table = LoadTable::over(&words, base);
        let (awake, armed) = (LoopActivity::Awake, LoopActivity::Armed);
        let states = [awake, armed, armed, LoopActivity::Disarmed, LoopActivity::Full, awake];
        for (i, state) in states.into_iter().enumerate() {
            table.row(i).set_state(state, 10 - i as u64);
        }
        let pass = |now, from| table.pass_recheck(now, from).collect::<Vec<_>>();
        assert_eq!(pass(base, 0..1), [2]);
        assert!(
            table.row(2).acknowledge_wake()
                && table.row(2).take_recheck()
                && !table.row(2).take_recheck()
        );
        assert_eq!(pass(base, 2..3), [1]);
        assert_eq!(pass(base, 0..1), [2], "one without a recheck token comes first");
        assert!(table.row(2).acknowledge_wake() && table.row(2).take_recheck());
        assert_eq!(pass(base, 1..3), [3]);
        // No loop sleeps. All awake loops get the token, since any of them may be free first.
        assert_eq!(pass(base, 1..5), [0, 5]);
        assert!(
            [0, 5].iter().all(|i| table.row(*i).acknowledge_wake() && table.row(*i).take_recheck())
        );
        assert_eq!(pass(base + 2 * STUCK, 1..5), [0, 5], "though they work for long");
        // A sleeping loop that does not acknowledge may be stopped.
        assert_eq!(pass(base, 0..1), [2]);
        assert_eq!(pass(base + 2 * STUCK, 0..1), [1, 2, 3, 5]);
        assert_eq!(pass(base, 0..6), [], "only full loops are left");
    }

    #[test]
    fn a_comparison_reads_few_rows_and_the_next_ones_the_others() {
        for n in [1, 5, COMPARED, COMPARED + 1, 100, 512] {
            let (words, base) = (words(n), Instant::now());
            let table = LoadTable::over(&words, base);
            let rows = |window| table.compared(window).map(|(i, _)| i).collect::<Vec<_>>();
            let windows: Vec<_> = (0..n.div_ceil(COMPARED)).map(rows).collect();
            assert!(windows.iter().all(|rows| rows.len() == n.min(COMPARED)));
            let mut all = windows.concat();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), n, "{n} loops");
        }
    }

    #[test]
    fn marks_of_many_loops() {
        let (words, base) = (words(130), Instant::now());
        let table = LoadTable::over(&words, base);
        for i in [0, 63, 64, 129] {
            table.mark_above_mean(i);
        }
        table.unmark_above_mean(64);
        assert_eq!(table.above_mean().collect::<Vec<_>>(), [0, 63, 129]);
    }
}
