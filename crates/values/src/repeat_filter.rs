//! Recent log messages, so that a repeated one is logged once, and then with the number of
//! repetitions.

use std::time::Duration;

/// A message is not logged again for this long.
pub(crate) const PAUSE: Duration = Duration::from_secs(10);

/// The most different messages within that time.
const MOST: usize = 32;

/// In nanoseconds of the monotonic clock, as all times here.
const PAUSE_NANOS: u64 = PAUSE.as_nanos() as u64;

/// The messages that were logged recently.
#[derive(Debug)]
pub(crate) struct RepeatFilter<T> {
    list: Vec<RepeatEntry<T>>,
    /// How many messages had no place in the list, and since when.
    others: u64,
    others_since: u64,
}

#[derive(Debug)]
struct RepeatEntry<T> {
    since: u64,
    again: Repeated<T>,
}

/// A message that was repeated: how often, and the longest time it reported.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Repeated<T> {
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
    /// Whether a message should be logged. Otherwise it is counted.
    pub(crate) fn should_log(&mut self, what: T, took: Duration, now: u64) -> bool {
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
        let again = Repeated { what, times: 0, worst: Duration::ZERO };
        self.list.push(RepeatEntry { since: now, again });
        true
    }

    /// The messages that were repeated and whose pause is over. They begin another pause. Messages
    /// that were not repeated are dropped.
    pub(crate) fn take_repeated(&mut self, now: u64) -> Vec<Repeated<T>> {
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

    /// The number of messages that had no place in the list, once their pause is over.
    pub(crate) fn take_others(&mut self, now: u64) -> u64 {
        let is_over = now.saturating_sub(self.others_since) >= PAUSE_NANOS;
        if is_over { std::mem::take(&mut self.others) } else { 0 }
    }

    /// When the next pause is over.
    pub(crate) fn next_due(&self) -> u64 {
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
    fn a_message_is_logged_once_and_then_with_its_repetitions() {
        let (mut filter, start) = (RepeatFilter::default(), 9);
        assert_eq!(filter.next_due(), u64::MAX);
        assert!(filter.should_log("lua", MS, start));
        assert!(!filter.should_log("lua", 7 * MS, start + 1));
        assert!(!filter.should_log("lua", 2 * MS, start + 2));
        assert!(filter.should_log("gzip", MS, start + 3), "another one");
        assert_eq!(filter.next_due(), start + PAUSE_NANOS);
        assert!(filter.take_repeated(start + PAUSE_NANOS - 1).is_empty());
        let again = Repeated { what: "lua", times: 2, worst: 7 * MS };
        assert_eq!(filter.take_repeated(start + PAUSE_NANOS), [again]);
        assert!(!filter.should_log("lua", MS, start + PAUSE_NANOS + 5), "its pause began anew");
        assert!(filter.take_repeated(start + PAUSE_NANOS + 3).is_empty());
        assert!(filter.should_log("gzip", MS, start + PAUSE_NANOS + 4), "it was quiet meanwhile");
    }

    #[test]
    fn messages_beyond_the_limit_are_counted() {
        let mut filter = RepeatFilter::default();
        let news = (0..100).filter(|n| filter.should_log(*n, MS, 1)).count();
        assert_eq!(news, MOST);
        assert_eq!(filter.take_others(2), 0);
        assert_eq!(filter.take_others(1 + PAUSE_NANOS), 100 - MOST as u64);
        assert_eq!(filter.take_others(1 + PAUSE_NANOS), 0);
        assert!(filter.take_repeated(1 + PAUSE_NANOS).is_empty());
        assert_eq!(filter.next_due(), u64::MAX);
    }
}
