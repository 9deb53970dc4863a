//! Writes that fail. The API server may deny one object, by a quota or a webhook: it waits, and all others are written.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::Error;

/// The wait after the first denial of an object; each further one is twice as long.
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);

/// Why something was not written.
#[derive(Debug, PartialEq, Eq)]
pub enum Failed {
    /// This object was denied, which says nothing about others.
    Denied(String),
    /// All others would fail as well.
    Away(String),
}

impl Failed {
    pub fn of(error: &Error) -> Failed {
        let why = super::watch::whole(error);
        match error {
            // A webhook that does not answer is 500.
            Error::Api(status)
                if matches!(status.code, 400..=500) && !matches!(status.code, 401 | 429) =>
            {
                Failed::Denied(why)
            }
            _ => Failed::Away(why),
        }
    }

    /// No answer came in time.
    pub fn silent() -> Failed {
        Failed::Away("the API server does not answer".to_owned())
    }
}

/// Objects that were denied.
#[derive(Debug)]
pub struct Denials<K>(BTreeMap<K, (Instant, Duration)>);

impl<K> Default for Denials<K> {
    fn default() -> Denials<K> {
        Denials(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Denials<K> {
    /// Whether an object has to wait.
    pub fn holds(&self, key: &K, now: Instant) -> bool {
        self.0.get(key).is_some_and(|(until, _)| now < *until)
    }

    /// An object was denied; whether for the first time in a row.
    pub fn denied(&mut self, key: &K, now: Instant) -> bool {
        let before = self.0.get(key).map(|(_, wait)| *wait);
        let wait = before.map_or(FIRST, |wait| (wait * 2).min(LONGEST));
        // Those that were not tried again for so long have gone.
        self.0.retain(|_, (until, _)| now < *until + LONGEST);
        self.0.insert(key.clone(), (now + wait, wait));
        before.is_none()
    }

    /// An object was written.
    pub fn passed(&mut self, key: &K) {
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
            assert!(denials.holds(&"a", now) && !denials.holds(&"b", now));
            let until = denials.0["a"].0;
            waits.push((until - now).as_secs());
            now = until;
            assert!(!denials.holds(&"a", now));
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
        denials.passed(&"a");
        assert!(denials.denied(&"a", now));
        denials.denied(&"b", now + LONGEST * 2);
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
            assert!(matches!(answer(code), Failed::Away(_)), "{code}");
        }
    }
}
