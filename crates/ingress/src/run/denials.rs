//! Failed writes. If the API server denies the write of one object, by a quota or a webhook, that
//! object waits, and the others are written.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::Error;

/// The wait after the first denial of an object; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Why a write failed.
#[derive(Debug, PartialEq, Eq)]
pub enum Failed {
    /// The API server denied this write. Those of other objects may succeed.
    Denied(String),
    /// The API server is unavailable. Writes of other objects would fail, too.
    Unavailable(String),
}

impl Failed {
    pub fn of(error: &Error) -> Failed {
        let why = super::watch::error_chain(error);
        match error {
            // The API server answers 500 for a webhook that does not answer.
            Error::Api(status)
                if matches!(status.code, 400..=500) && !matches!(status.code, 401 | 429) =>
            {
                Failed::Denied(why)
            }
            _ => Failed::Unavailable(why),
        }
    }

    /// The failure of a call that timed out.
    pub fn timed_out() -> Failed {
        Failed::Unavailable("the API server does not answer".to_owned())
    }
}

/// Denied objects, each with the end and the length of its wait.
#[derive(Debug)]
pub struct Denials<K>(BTreeMap<K, (Instant, Duration)>);

impl<K> Default for Denials<K> {
    fn default() -> Denials<K> {
        Denials(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Denials<K> {
    /// Whether an object still waits.
    pub fn must_wait(&self, key: &K, now: Instant) -> bool {
        self.0.get(key).is_some_and(|(until, _)| now < *until)
    }

    /// Lets a denied object wait. Returns whether this is its first denial in a row.
    pub fn denied(&mut self, key: &K, now: Instant) -> bool {
        let before = self.0.get(key).map(|(_, wait)| *wait);
        let wait = before.map_or(FIRST_WAIT, |wait| (wait * 2).min(LONGEST_WAIT));
        // Objects that were not tried again long after their wait are gone.
        self.0.retain(|_, (until, _)| now < *until + LONGEST_WAIT);
        self.0.insert(key.clone(), (now + wait, wait));
        before.is_none()
    }

    /// Forgets the denials of an object that was written.
    pub fn remove(&mut self, key: &K) {
        self.0.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_denied_object_waits_longer_each_time_and_no_other_does() {
        let (mut denials, mut now) = (Denials::default(), Instant::now());
        let mut waits = Vec::new();
        for turn in 0..7 {
            assert_eq!(denials.denied(&"a", now), turn == 0);
            assert!(denials.must_wait(&"a", now) && !denials.must_wait(&"b", now));
            let until = denials.0["a"].0;
            waits.push((until - now).as_secs());
            now = until;
            assert!(!denials.must_wait(&"a", now));
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
        denials.remove(&"a");
        assert!(denials.denied(&"a", now));
        denials.denied(&"b", now + LONGEST_WAIT * 2);
        assert_eq!(denials.0.len(), 1, "one that has gone is forgotten");
    }

    #[test]
    fn a_denial_is_told_from_a_server_that_is_away() {
        let answer =
            |code| Failed::of(&Error::Api(Box::new(Status::failure("why", "x").with_code(code))));
        for code in [400, 403, 409, 413, 422, 500] {
            assert!(matches!(answer(code), Failed::Denied(_)), "{code}");
        }
        for code in [401, 429, 502, 503, 504] {
            assert!(matches!(answer(code), Failed::Unavailable(_)), "{code}");
        }
    }
}
