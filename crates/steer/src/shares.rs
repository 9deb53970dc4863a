//! Computes each worker's share of the new connections. Pure.
//!
//! A worker with waiting connections gets nothing if it has accepted none since the last sample.
//! When it accepts again, its share grows back in less than a second. The other workers' shares
//! follow their idle CPU time, and shrink with the number of connections that already wait.

/// A sample of a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WorkerSample {
    /// Connections that wait to be accepted.
    pub waiting: u32,
    /// Connections that it has been assigned so far.
    pub given: u64,
    /// Its recent CPU use, from 0 to 1.
    pub busy: f64,
}

/// The share of a worker that is busy all the time, relative to an idle one.
const MIN_SHARE: f64 = 0.1;
/// The trust in a worker that has just been stuck, relative to the others.
const FIRST_TRUST: f64 = 1.0 / 256.0;
/// The seconds in which the trust in a worker that was stuck doubles.
const TRUST_DOUBLES: f64 = 0.1;

/// Added to the time for which a worker is stuck, so that it is never zero. In seconds.
const MIN_STUCK: f64 = 0.001;

/// Computes the shares at each sample.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    before: Vec<WorkerSample>,
    trust: Vec<f64>,
    /// How long each worker has been stuck, in seconds.
    stuck: Vec<f64>,
}

impl Judge {
    /// The share of each worker; all add up to 1. `seconds` is the time since the last sample.
    pub(crate) fn shares(&mut self, now: &[WorkerSample], seconds: f64) -> Vec<f64> {
        self.trust.resize(now.len(), 1.0);
        self.stuck.resize(now.len(), 0.0);
        let wants = |seen: &WorkerSample| {
            (1.0 - seen.busy).clamp(MIN_SHARE, 1.0) / f64::from(1 + seen.waiting)
        };
        let mut shares = Vec::with_capacity(now.len());
        let states = self.trust.iter_mut().zip(&mut self.stuck);
        for (at, (seen, (trust, stuck))) in now.iter().zip(states).enumerate() {
            if self.before.get(at).is_some_and(|before| is_stuck(before, seen)) {
                *trust = (*trust / 2.0).max(FIRST_TRUST);
                *stuck += seconds;
                shares.push(0.0);
            } else {
                *stuck = 0.0;
                *trust = (*trust * (seconds / TRUST_DOUBLES).exp2()).min(1.0);
                shares.push(wants(seen) * *trust);
            }
        }
        if shares.iter().all(|share| *share == 0.0) {
            // All workers are stuck, but one of them has to get the connections. A worker that has
            // been stuck for a moment is better than one that has stopped.
            let by_time =
                |(seen, stuck): (&WorkerSample, &f64)| wants(seen) / (stuck + MIN_STUCK).powi(2);
            shares = now.iter().zip(&self.stuck).map(by_time).collect();
        }
        self.before = now.to_vec();
        let sum: f64 = shares.iter().sum();
        shares.iter().map(|share| share / sum).collect()
    }
}

/// Whether connections have waited all the time, and the worker has accepted none.
fn is_stuck(before: &WorkerSample, now: &WorkerSample) -> bool {
    let arrived = now.given.saturating_sub(before.given);
    let waits = |seen: &WorkerSample| u64::from(seen.waiting);
    before.waiting > 0 && now.waiting > 0 && waits(now) >= waits(before) + arrived
}

/// Divides `places` places by the shares. A share of less than half a place may get none.
pub(crate) fn places(shares: &[f64], places: usize) -> Vec<u32> {
    let (mut out, mut upto) = (Vec::with_capacity(places), 0.0);
    for (worker, share) in (0u32..).zip(shares) {
        upto += share;
        let end = ((upto * places as f64).round() as usize).min(places);
        out.resize(end.max(out.len()), worker);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen(waiting: u32, given: u64, busy: f64) -> WorkerSample {
        WorkerSample { waiting, given, busy }
    }

    #[test]
    fn alike_workers_share_alike() {
        let all = [seen(0, 9, 0.5); 4];
        let mut judge = Judge::default();
        assert_eq!(judge.shares(&all, 0.0), [0.25; 4]);
        assert_eq!(judge.shares(&all, 0.01), [0.25; 4]);
    }

    #[test]
    fn a_worker_that_takes_none_gets_none() {
        let fine = seen(0, 10, 0.1);
        for (later, stuck) in [
            (seen(3, 10, 0.1), true),
            // Two more connections arrived, and all wait.
            (seen(5, 12, 0.1), true),
            // Two connections arrived, and the worker accepted two.
            (seen(3, 12, 0.1), false),
            (seen(2, 10, 0.1), false),
        ] {
            let mut judge = Judge::default();
            judge.shares(&[fine, seen(3, 10, 0.1)], 0.0);
            assert_eq!(judge.shares(&[fine, later], 0.01)[1] == 0.0, stuck, "{later:?}");
        }
    }

    #[test]
    fn a_stuck_worker_comes_back_within_a_second() {
        let (fine, stuck) = (seen(0, 10, 0.0), seen(1, 10, 0.0));
        let mut judge = Judge::default();
        for _ in 0..10 {
            judge.shares(&[fine, stuck], 0.002);
        }
        let after = |judge: &mut Judge, seconds| judge.shares(&[fine, fine], seconds)[1];
        let at_once = after(&mut judge, 0.002);
        assert!(at_once > 0.0 && at_once < 0.01, "{at_once}");
        let later = after(&mut judge, 0.4);
        assert!(later > 0.01 && later < 0.1, "{later}");
        assert_eq!(after(&mut judge, 0.4), 0.5);
    }

    #[test]
    fn a_worker_with_more_time_gets_more() {
        let shares = Judge::default().shares(&[seen(0, 0, 0.9), seen(0, 0, 0.1)], 0.0);
        assert!(shares[1] > 8.0 * shares[0], "{shares:?}");
    }

    #[test]
    fn where_all_are_stuck_the_shortest_queue_gets_most() {
        let (mut judge, now) = (Judge::default(), [seen(9, 9, 1.0), seen(1, 9, 1.0)]);
        judge.shares(&now, 0.0);
        let shares = judge.shares(&now, 0.01);
        assert!(shares[1] > shares[0] && shares[0] > 0.0, "{shares:?}");
    }

    #[test]
    fn where_all_are_stuck_a_stopped_worker_gets_least() {
        let (mut judge, stopped) = (Judge::default(), seen(1, 9, 0.0));
        for _ in 0..500 {
            judge.shares(&[stopped, seen(0, 9, 0.0)], 0.002);
        }
        judge.shares(&[stopped, seen(7, 9, 1.0)], 0.002);
        let shares = judge.shares(&[stopped, seen(7, 9, 1.0)], 0.002);
        assert!(shares[0] < 0.001, "{shares:?}");
    }

    fn any_seen() -> impl Strategy<Value = Vec<WorkerSample>> {
        let one = (0u32..5000, 0u64..5000, 0.0f64..2.0);
        prop::collection::vec(
            one.prop_map(|(waiting, given, busy)| seen(waiting, given, busy)),
            1..100,
        )
    }

    proptest! {
        #[test]
        fn shares_add_up_and_each_has_its_places(before in any_seen(), now in any_seen()) {
            let mut judge = Judge::default();
            judge.shares(&before, 0.0);
            let shares = judge.shares(&now, 0.01);
            prop_assert_eq!(shares.len(), now.len());
            prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            let places = places(&shares, 256);
            prop_assert_eq!(places.len(), 256);
            for (worker, share) in shares.iter().enumerate() {
                let own = places.iter().filter(|place| **place == worker as u32).count();
                prop_assert!((own as f64 - share * 256.0).abs() <= 1.0, "{} {}", own, share);
            }
        }
    }
}
