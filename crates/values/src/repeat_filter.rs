//! Recent log messages, so that a repeated one is logged once, and then with the number of
//! repetitions.

use std::time::Duration;

/// So long is nothing told of again.
pub(crate) const PAUSE: Duration = Duration::from_secs(10);

/// Of no more is it told within that time.
const MOST: usize = 32;

/// By the monotonic clock in nanoseconds, as all times here.
const PAUSE_NANOS: u64 = PAUSE.as_nanos() as u64;

/// What was told of, each for the length of the pause.
#[derive(Debug)]
pub(crate) struct RepeatFilter<T> {
    list: Vec<RepeatEntry<T>>,
    /// How often something came that had no place, and since when.
    others: u64,
    others_since: u64,
}

#[derive(Debug)]
struct RepeatEntry<T> {
    since: u64,
    again: Again<T>,
}

/// What came again, how often, and how long it took at worst.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Again<T> {
    pub(crate) what: T,
    pub(crate) times: u64,
    pub(crate) worst: Duration,
}

impl<T> Default for RepeatFilter<T> {
    fn default() -> Self {
        RepeatFilter { list: Vec::new(), others: 0, others_since: 0 }
    }
}

impl<T: PartialEq + Clone> RepeatFilter<T> {
    /// Whether it is to be told of; else it is noted.
    pub(crate) fn is_news(&mut self, what: T, took: Duration, now: u64) -> bool {
        let again = |entry: &&mut RepeatEntry<T>| entry.again.what == what;
        if let Some(entry) = self.list.iter_mut().find(again) {
            entry.again.times += 1;
            entry.again.worst = entry.again.worst.max(took);
            return false;
        }
        if self.list.len() >= MOST {
            self.others += 1;
            if self.others == 1 {
                self.others_since = now;
            }
            return false;
        }
        let again = Again { what, times: 0, worst: Duration::ZERO };
        self.list.push(RepeatEntry { since: now, again });
        true
    }

    /// Messages that came again after their pause: they begin another one. The others are
    /// forgotten.
    pub(crate) fn over(&mut self, now: u64) -> Vec<Again<T>> {
        let is_over = |since: u64| now.saturating_sub(since) >= PAUSE_NANOS;
        self.list.retain(|entry| entry.again.times > 0 || !is_over(entry.since));
        let mut found = Vec::new();
        for entry in self.list.iter_mut().filter(|entry| is_over(entry.since)) {
            found.push(entry.again.clone());
            (entry.again.times, entry.again.worst) = (0, Duration::ZERO);
            entry.since = now;
        }
        found
    }

    /// How often something came that had no place, once their pause is over.
    pub(crate) fn take_others(&mut self, now: u64) -> u64 {
        let is_over = now.saturating_sub(self.others_since) >= PAUSE_NANOS;
        if is_over { std::mem::take(&mut self.others) } else { 0 }
    }

    /// When something is over next.
    pub(crate) fn next(&self) -> u64 {
        let others = (self.others > 0).then_some(self.others_since);
        let since = self.list.iter().map(|entry| entry.since).chain(others).min();
        since.map_or(u64::MAX, |since| since.saturating_add(PAUSE_NANOS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn each_is_told_of_once_and_then_how_often() {
        let (mut told, start) = (RepeatFilter::default(), 9);
        assert_eq!(told.next(), u64::MAX);
        assert!(told.is_news("lua", MS, start));
        assert!(!told.is_news("lua", 7 * MS, start + 1));
        assert!(!told.is_news("lua", 2 * MS, start + 2));
        assert!(told.is_news("gzip", MS, start + 3), "another one");
        assert_eq!(told.next(), start + PAUSE_NANOS);
        assert!(told.over(start + PAUSE_NANOS - 1).is_empty());
        let again = Again { what: "lua", times: 2, worst: 7 * MS };
        assert_eq!(told.over(start + PAUSE_NANOS), [again]);
        assert!(!told.is_news("lua", MS, start + PAUSE_NANOS + 5), "its pause began anew");
        assert!(told.over(start + PAUSE_NANOS + 3).is_empty());
        assert!(told.is_news("gzip", MS, start + PAUSE_NANOS + 4), "it was quiet meanwhile");
    }

    #[test]
    fn of_many_only_some_are_told_of_and_the_rest_is_counted() {
        let mut told = RepeatFilter::default();
        let news = (0..100).filter(|n| told.is_news(*n, MS, 1)).count();
        assert_eq!(news, MOST);
        assert_eq!(told.take_others(2), 0);
        assert_eq!(told.take_others(1 + PAUSE_NANOS), 100 - MOST as u64);
        assert_eq!(told.take_others(1 + PAUSE_NANOS), 0);
        assert!(told.over(1 + PAUSE_NANOS).is_empty());
        assert_eq!(told.next(), u64::MAX);
    }
}
