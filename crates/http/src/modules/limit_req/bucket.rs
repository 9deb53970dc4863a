//! The leaky bucket. As in nginx, it counts thousandths of a request, and milliseconds.
//!
//! The state of a key is the time of its last request and the excess over its rate at that time. A
//! request that must pass several limits is checked against all of them, and then counted in each.
//! In between, its states may be removed like others: a mark that keeps them would outlive a killed
//! worker.

use weir_zone::{Locked, LockedEntry};

/// The number of words of a key's state.
pub const VALUES: usize = 2;
/// The clock may jump. A state that is further in the future than this is treated as an old one.
const FUTURE: i64 = -60_000;
/// A state that was unused for this long, in milliseconds, may be removed if its bucket is empty.
const OLD: u64 = 60_000;

/// What a limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// The rate, in thousandths of a request per second.
    pub rate: u64,
    /// How far above the rate a key may be, in thousandths of a request.
    pub burst: u64,
    /// The excess from which requests are delayed.
    pub delay: u64,
}

/// The result of checking a request against a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketVerdict {
    /// The request is allowed and counted, with this excess.
    Counted(u64),
    /// The request is allowed and not counted yet: see [`count`].
    Allowed,
    /// The request is refused, with this excess.
    Refused(u64),
    /// The zone is full.
    NoRoom,
}

/// Checks a request against the bucket of its key. `last`: no limit follows, so an allowed request
/// is counted at once.
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
    BucketVerdict::Allowed
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
        BucketState { last: now, excess: 0 }.put(t, entry);
        return BucketVerdict::Counted(0);
    }
    BucketState { last: 0, excess: 0 }.put(t, entry);
    BucketVerdict::Allowed
}

/// Counts a request that was allowed. Returns the excess, or 0 if its state has been removed since.
pub fn count(t: &mut Locked<'_>, key: &[u8], rate: u64, now: u64) -> u64 {
    let Some(entry) = t.find(key) else { return 0 };
    let state = BucketState::of(t, entry);
    let (excess, elapsed) = state.excess(rate, now);
    state.counted(excess, elapsed, now).put(t, entry);
    excess
}

/// The delay of a request with this excess, in milliseconds.
pub fn delay(allow: &Allowance, excess: u64) -> u64 {
    excess.saturating_sub(allow.delay).saturating_mul(1000) / allow.rate.max(1)
}

/// Removes up to two expired states, oldest first. With `force`, the oldest state is removed
/// before, even if it has not expired. nginx: ngx_http_limit_req_expire.
fn expire(t: &mut Locked<'_>, rate: u64, now: u64, mut force: bool) {
    for _ in 0..if force { 3 } else { 2 } {
        let Some(entry) = t.oldest() else { return };
        let state = BucketState::of(t, entry);
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

/// The state of a key, which the zone stores as two words. The low 16 bits of the second are unused.
#[derive(Debug, Clone, Copy)]
struct BucketState {
    last: u64,
    excess: u64,
}

impl BucketState {
    fn of(t: &Locked<'_>, entry: LockedEntry) -> BucketState {
        BucketState { last: t.value(entry, 0), excess: t.value(entry, 1) >> 16 }
    }

    fn put(self, t: &mut Locked<'_>, entry: LockedEntry) {
        let excess = self.excess.min(u64::MAX >> 16);
        t.set_values(entry, [self.last, excess << 16]);
    }

    /// The excess including one more request, and the time since the last one.
    fn excess(&self, rate: u64, now: u64) -> (u64, u64) {
        let elapsed = match (now as i64).saturating_sub(self.last as i64) {
            ms if ms < FUTURE => 1,
            ms => ms.max(0) as u64,
        };
        let leaked = rate.saturating_mul(elapsed) / 1000;
        (self.excess.saturating_add(1000).saturating_sub(leaked), elapsed)
    }

    fn counted(self, excess: u64, elapsed: u64, now: u64) -> BucketState {
        BucketState { excess, last: if elapsed > 0 { now } else { self.last } }
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
        // At 2 requests per second, 499 ms leak 0.998 of a request.
        assert_eq!(ask(1_000_499), BucketVerdict::Refused(1002));
        assert_eq!(ask(1_000_500), BucketVerdict::Counted(1000));
        assert_eq!(ask(2_000_000), BucketVerdict::Counted(0));
    }

    #[test]
    fn delays_follow_from_the_excess_above_the_free_part() {
        let limit = Allowance { rate: 2000, burst: 5000, delay: 1000 };
        assert_eq!(delay(&limit, 1000), 0);
        assert_eq!(delay(&limit, 2500), 750);
    }

    /// A worker may be killed before it counts a request that it has allowed.
    #[test]
    fn states_of_requests_that_are_never_counted_make_room() {
        let zone = zone();
        let mut t = zone.lock();
        let limit = allow(1, 0);
        assert_eq!(ask(&mut t, b"k", &limit, 90_000_000, false), BucketVerdict::Allowed);
        while t.add(&t.len().to_be_bytes()).is_some() {}
        assert_eq!(ask(&mut t, b"other", &limit, 90_000_000, true), BucketVerdict::Counted(0));
        assert_eq!(t.find(b"k"), None);
        assert_eq!(count(&mut t, b"k", limit.rate, 90_000_000), 0);
        assert_eq!(t.find(b"k"), None);
    }

    /// The zone may have been emptied in between, and other keys added.
    #[test]
    fn a_delayed_request_is_not_counted_under_another_key() {
        let zone = zone();
        let mut t = zone.lock();
        let limit = allow(1, 5);
        assert_eq!(ask(&mut t, b"k", &limit, 90_000_000, false), BucketVerdict::Allowed);
        let entry = t.find(b"k");
        entry.into_iter().for_each(|entry| t.remove(entry));
        assert_eq!(ask(&mut t, b"other", &limit, 90_000_000, true), BucketVerdict::Counted(0));
        assert_eq!(t.find(b"other"), entry);
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
