//! The leaky bucket, in thousandths of a request and milliseconds, as nginx counts.
//!
//! A key's state is when it was last seen, and how far it was above its rate then. The state is pinned while
//! a request that met it waits for the other limits of its location.

use weir_zone::{Locked, LockedEntry};

/// Words of value for each key.
pub const VALUES: usize = 2;
/// Jumps of the clock: a state so far in the future is one of the past.
const FUTURE: i64 = -60_000;
/// A state that was not used for so long may go if its bucket is empty.
const OLD: u64 = 60_000;

/// What a limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Thousandths of a request a second.
    pub rate: u64,
    /// How far above the rate a key may be, in thousandths of a request.
    pub burst: u64,
    /// From where on requests are delayed.
    pub delay: u64,
}

/// What a key's bucket says to one more request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketVerdict {
    /// It is counted; the excess.
    Counted(u64),
    /// It may, and waits to be counted with [`count`]; the state is pinned.
    Pinned,
    /// Too much; the excess.
    Refused(u64),
    /// There is no room for the key's state.
    NoRoom,
}

/// Asks a key's bucket; `last`: no other limit follows, so that the request is counted at once.
pub fn ask(
    t: &mut Locked<'_>,
    key: &[u8],
    allow: &Allowance,
    now: u64,
    last: bool,
) -> BucketVerdict {
    let Some(entry) = t.find(key) else { return first(t, key, allow, now, last) };
    t.touch(entry);
    let state = BucketState::of(t, entry);
    let (excess, elapsed) = state.excess(allow.rate, now);
    if excess > allow.burst {
        return BucketVerdict::Refused(excess);
    }
    if last {
        state.counted(excess, elapsed, now).put(t, entry);
        return BucketVerdict::Counted(excess);
    }
    BucketState { pins: state.pins + 1, ..state }.put(t, entry);
    BucketVerdict::Pinned
}

fn first(t: &mut Locked<'_>, key: &[u8], allow: &Allowance, now: u64, last: bool) -> BucketVerdict {
    expire(t, allow.rate, now, false);
    let mut added = t.add(key);
    if added.is_none() {
        expire(t, allow.rate, now, true);
        added = t.add(key);
    }
    let Some(entry) = added else { return BucketVerdict::NoRoom };
    if last {
        BucketState { last: now, excess: 0, pins: 0 }.put(t, entry);
        return BucketVerdict::Counted(0);
    }
    BucketState { last: 0, excess: 0, pins: 1 }.put(t, entry);
    BucketVerdict::Pinned
}

/// Counts the request at a key's pinned state; the excess. None is left where the zone was emptied meanwhile.
pub fn count(t: &mut Locked<'_>, key: &[u8], rate: u64, now: u64) -> u64 {
    let Some(entry) = t.find(key) else { return 0 };
    let state = BucketState::of(t, entry);
    let (excess, elapsed) = state.excess(rate, now);
    BucketState { pins: state.pins.saturating_sub(1), ..state.counted(excess, elapsed, now) }
        .put(t, entry);
    excess
}

/// Lets go of a key's pinned state without counting.
pub fn unpin(t: &mut Locked<'_>, key: &[u8]) {
    let Some(entry) = t.find(key) else { return };
    let state = BucketState::of(t, entry);
    BucketState { pins: state.pins.saturating_sub(1), ..state }.put(t, entry);
}

/// How long a request with this excess waits, in milliseconds.
pub fn delay(allow: &Allowance, excess: u64) -> u64 {
    excess.saturating_sub(allow.delay).saturating_mul(1000) / allow.rate.max(1)
}

/// Removes one or two states that nothing is left of; before, the oldest by force.
fn expire(t: &mut Locked<'_>, rate: u64, now: u64, mut force: bool) {
    for _ in 0..if force { 3 } else { 2 } {
        let Some(entry) = t.oldest() else { return };
        let state = BucketState::of(t, entry);
        // Each lookup makes its state the newest: what is pinned has only pinned ones before it.
        if state.pins > 0 {
            return;
        }
        if !std::mem::take(&mut force) {
            let elapsed = now.abs_diff(state.last);
            let leaked = rate.saturating_mul(elapsed) / 1000;
            if elapsed < OLD || state.excess > leaked {
                return;
            }
        }
        t.remove(entry);
    }
}

/// A key's state, as the table's two words hold it.
#[derive(Debug, Clone, Copy)]
struct BucketState {
    last: u64,
    excess: u64,
    pins: u32,
}

impl BucketState {
    fn of(t: &Locked<'_>, entry: LockedEntry) -> BucketState {
        let packed = t.value(entry, 1);
        BucketState {
            last: t.value(entry, 0),
            excess: packed >> 16,
            pins: (packed & 0xffff) as u32,
        }
    }

    fn put(self, t: &mut Locked<'_>, entry: LockedEntry) {
        let excess = self.excess.min(u64::MAX >> 16);
        t.set_values(entry, [self.last, excess << 16 | u64::from(self.pins.min(0xffff))]);
    }

    /// What is in the bucket with one more request, and the time since the last.
    fn excess(&self, rate: u64, now: u64) -> (u64, u64) {
        let elapsed = match (now as i64).saturating_sub(self.last as i64) {
            ms if ms < FUTURE => 1,
            ms => ms.max(0) as u64,
        };
        let leaked = rate.saturating_mul(elapsed) / 1000;
        (self.excess.saturating_add(1000).saturating_sub(leaked), elapsed)
    }

    fn counted(self, excess: u64, elapsed: u64, now: u64) -> BucketState {
        BucketState { excess, last: if elapsed > 0 { now } else { self.last }, ..self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_zone::{Use, Zone};

    use super::*;

    fn zone() -> Zone {
        let purpose = Use::of("limit_req", VALUES);
        Zone::new("one", 32768, purpose).unwrap()
    }

    fn allow(rate: u64, burst: u64) -> Allowance {
        Allowance { rate: rate * 1000, burst: burst * 1000, delay: 0 }
    }

    #[test]
    fn a_bucket_leaks_to_the_millisecond() {
        let zone = zone();
        let mut t = zone.lock();
        let limit = allow(2, 1);
        let mut ask = |now| ask(&mut t, b"k", &limit, now, true);
        assert_eq!(ask(1_000_000), BucketVerdict::Counted(0));
        assert_eq!(ask(1_000_000), BucketVerdict::Counted(1000));
        assert_eq!(ask(1_000_000), BucketVerdict::Refused(2000));
        // 2 requests a second: 499 ms leak 0.998 of one.
        assert_eq!(ask(1_000_499), BucketVerdict::Refused(1002));
        assert_eq!(ask(1_000_500), BucketVerdict::Counted(1000));
        assert_eq!(ask(2_000_000), BucketVerdict::Counted(0));
    }

    #[test]
    fn delays_are_what_is_above_the_free_part() {
        let limit = Allowance { rate: 2000, burst: 5000, delay: 1000 };
        assert_eq!(delay(&limit, 1000), 0);
        assert_eq!(delay(&limit, 2500), 750);
    }

    #[test]
    fn pinned_states_stay_and_are_counted_later() {
        let zone = zone();
        let mut t = zone.lock();
        let limit = allow(1, 0);
        assert_eq!(ask(&mut t, b"k", &limit, 90_000_000, false), BucketVerdict::Pinned);
        while t.add(&t.len().to_be_bytes()).is_some() {}
        // The oldest is pinned: nothing makes room.
        assert_eq!(ask(&mut t, b"other", &limit, 99_000_000, true), BucketVerdict::NoRoom);
        assert_eq!(count(&mut t, b"k", limit.rate, 99_000_000), 0);
        assert_eq!(ask(&mut t, b"other", &limit, 99_000_000, true), BucketVerdict::Counted(0));
        assert_eq!(t.find(b"k"), None);
    }

    /// The zone may have been emptied since, and other keys have come.
    #[test]
    fn a_request_that_waits_is_counted_at_no_other_key() {
        let zone = zone();
        let mut t = zone.lock();
        let limit = allow(1, 5);
        assert_eq!(ask(&mut t, b"k", &limit, 90_000_000, false), BucketVerdict::Pinned);
        let entry = t.find(b"k");
        entry.into_iter().for_each(|entry| t.remove(entry));
        assert_eq!(ask(&mut t, b"other", &limit, 90_000_000, true), BucketVerdict::Counted(0));
        assert_eq!(t.find(b"other"), entry);
        unpin(&mut t, b"k");
        assert_eq!(count(&mut t, b"k", limit.rate, 90_000_000), 0);
        assert_eq!(ask(&mut t, b"other", &limit, 90_000_000, true), BucketVerdict::Counted(1000));
    }

    #[test]
    fn old_empty_states_make_room_and_others_stay() {
        let zone = zone();
        let mut t = zone.lock();
        let limit = allow(1, 5);
        ask(&mut t, b"a", &limit, 1_000_000, true);
        ask(&mut t, b"b", &limit, 1_030_000, true);
        ask(&mut t, b"c", &limit, 1_060_000, true);
        assert_eq!(t.find(b"a"), None);
        assert!(t.find(b"b").is_some());
    }

    proptest! {
        #[test]
        fn never_more_than_rate_and_burst(
            rate in 1u64..50, burst in 0u64..10, gaps in proptest::collection::vec(0u64..400, 1..80),
        ) {
            let zone = zone();
            let mut t = zone.lock();
            let limit = allow(rate, burst);
            let (mut now, mut passed) = (1_000_000u64, 0u64);
            for gap in &gaps {
                now += gap;
                passed += u64::from(matches!(ask(&mut t, b"k", &limit, now, true), BucketVerdict::Counted(_)));
                let elapsed = now - 1_000_000 - gaps[0];
                prop_assert!(passed * 1000 <= 1000 + burst * 1000 + rate * elapsed);
            }
        }
    }
}
