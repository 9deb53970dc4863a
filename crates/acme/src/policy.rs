//! When a certificate is ordered. The functions are pure: the caller passes both clocks.
//!
//! The wall clock says when a certificate is due. It may jump, so it alone never decides how often the authority is asked.
//! Within a process the steady clock limits that. Over restarts the record on disk does, which is written before each attempt.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The wait after the first failure, in seconds. Each further wait is [`FACTOR`] times as long. That makes four attempts in
/// the first quarter of an hour: Let's Encrypt allows five failures an hour.
const FIRST: u64 = 60;
const FACTOR: u64 = 3;
/// The longest wait, in seconds.
const LONGEST: u64 = 24 * 3600;
/// The longest `Retry-After` that is obeyed, in seconds.
const LONGEST_ASKED: u64 = 7 * 24 * 3600;
/// The least time between a certificate and the next attempt, in seconds, whatever the clock says. For certificates with a
/// lifetime of less than four times that it is a quarter of the lifetime.
const AFTER_SUCCESS: u64 = 3600;
/// How often an interrupted attempt is resumed at once. Further interruptions count as failures.
const INTERRUPTIONS: u32 = 3;
/// The most characters of a failure's reason that are kept.
const LONGEST_REASON: usize = 1000;
/// The reason of a failure where a new certificate is already due for renewal.
const CLOCK: &str = "the new certificate is to be renewed already, is the clock right?";
/// The longest wait between two looks at the wall clock, which may have jumped.
const MAX_CLOCK_CHECK: Duration = Duration::from_secs(3600);
/// Certificates with a longer lifetime, in seconds, are renewed after two thirds of it, others after half of it.
const LONG_LIVED: i64 = 10 * 24 * 3600;

/// Two points of the wall clock, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// The first.
    pub start: i64,
    /// The last.
    pub end: i64,
}

impl Interval {
    /// Seconds from the first to the last.
    pub fn length(self) -> i64 {
        self.end.saturating_sub(self.start).max(0)
    }

    /// The point at the fraction `jitter` of the interval, where `u64::MAX` is its end.
    fn at(self, jitter: u64) -> i64 {
        let length = u128::from(self.length().unsigned_abs());
        let offset = (length * u128::from(jitter)) >> 64;
        self.start.saturating_add(i64::try_from(offset).unwrap_or(i64::MAX))
    }
}

/// When a certificate is to be renewed: at a point of the window that the authority suggests, otherwise around two thirds of
/// its lifetime. `jitter` chooses the point, and should be the same for the same certificate.
pub fn due(validity: Interval, suggested: Option<Interval>, jitter: u64) -> i64 {
    if let Some(window) = suggested.filter(|window| window.end <= validity.end) {
        return window.at(jitter);
    }
    let life = validity.length();
    let usual = if life > LONG_LIVED { life / 3 * 2 } else { life / 2 };
    let spread = life / 50;
    let middle = validity.start.saturating_add(usual);
    Interval { start: middle - spread, end: middle.saturating_add(spread) }.at(jitter)
}

/// The attempts for one certificate, as they are kept on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Failures in a row.
    failures: u32,
    /// Attempts in a row that were interrupted.
    interrupted: u32,
    /// When the last attempt began or ended, by the wall clock.
    since: i64,
    /// Seconds from then to the next one.
    wait: u64,
    /// The wait is the authority's `Retry-After`.
    asked: bool,
    /// Attempts in a row that were made before the wait was over, because of a new configuration.
    #[serde(default)]
    early: u32,
    /// When the first of the failures was, by the wall clock.
    #[serde(default)]
    failing: Option<i64>,
    /// Why the last attempt failed.
    #[serde(default)]
    reason: String,
}

impl AttemptRecord {
    /// Seconds from the last attempt to the next one.
    pub fn wait(&self) -> u64 {
        self.wait
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// When the first of them was, in seconds since 1970.
    pub fn failing(&self) -> Option<i64> {
        self.failing
    }

    /// Why the last attempt failed.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// The pace of the attempts for one certificate.
#[derive(Debug, Default)]
pub struct Pace {
    record: AttemptRecord,
    /// When this process last wrote the record, by the steady clock.
    written: Option<Duration>,
}

/// The time on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Seconds since 1970. May jump.
    pub wall: i64,
    /// The time since a fixed point of this process' life. Never jumps.
    pub steady: Duration,
}

impl Pace {
    /// Goes on after the attempts that an earlier process has recorded.
    pub fn after(record: AttemptRecord) -> Pace {
        Pace { record, written: None }
    }

    /// What is to be kept on disk.
    pub fn record(&self) -> &AttemptRecord {
        &self.record
    }

    /// How long to wait before the next attempt. Zero: it is due. `due` is when the certificate is to be renewed, and none if
    /// there is no certificate. `read_at` is when the configuration was read, which may have put earlier errors right.
    pub fn wait(&self, now: Now, due: Option<i64>, read_at: i64) -> Duration {
        if let Some(left) = due.map(|due| due.saturating_sub(now.wall)).filter(|left| *left > 0) {
            return Duration::from_secs(left.unsigned_abs()).min(MAX_CLOCK_CHECK);
        }
        let wait = Duration::from_secs(self.whole_wait(read_at));
        let left = match self.written {
            Some(written) => wait.saturating_sub(now.steady.saturating_sub(written)),
            None => {
                // If the clock was set back, the wait is not longer than the record says.
                let gone = now.wall.saturating_sub(self.record.since);
                wait.saturating_sub(Duration::from_secs(u64::try_from(gone).unwrap_or(0)))
            }
        };
        left.min(MAX_CLOCK_CHECK)
    }

    /// The time of the next attempt if the wall clock does not jump. `due` and `read_at` are those of [`Pace::wait`].
    pub fn next(&self, due: Option<i64>, read_at: i64) -> i64 {
        let wait = i64::try_from(self.whole_wait(read_at)).unwrap_or(i64::MAX);
        self.record.since.saturating_add(wait).max(due.unwrap_or(i64::MIN))
    }

    /// Seconds from the last attempt to the next one. A configuration that is newer than the attempt shortens them, unless
    /// they are the authority's `Retry-After`. It shortens them by less each time, so that reloads do not get around them.
    fn whole_wait(&self, read_at: i64) -> u64 {
        let record = &self.record;
        let is_old = self.written.is_none() && read_at > record.since && !record.asked;
        if is_old {
            record.wait.min(back_off(record.early.saturating_add(1), 0))
        } else {
            record.wait
        }
    }

    /// Records the beginning of an attempt. The caller writes the record before it sends anything.
    pub fn begin(&mut self, now: Now, jitter: u64) {
        let interrupted = self.record.interrupted.saturating_add(1);
        let gone = now.wall.saturating_sub(self.record.since);
        let is_early =
            self.written.is_none() && u64::try_from(gone).is_ok_and(|gone| gone < self.record.wait);
        let is_recent = gone < 2 * LONGEST.cast_signed();
        let early = if is_recent { self.record.early.saturating_add(is_early.into()) } else { 0 };
        let over = interrupted.saturating_sub(INTERRUPTIONS);
        let wait =
            if over == 0 { 0 } else { back_off(self.record.failures.saturating_add(over), jitter) };
        let record = self.record.clone();
        self.note(
            now,
            AttemptRecord { interrupted, since: now.wall, wait, asked: false, early, ..record },
        );
    }

    /// Records that the worker retires during an attempt. Another worker goes on with it.
    pub fn leave(&mut self, now: Now) {
        let interrupted = self.record.interrupted.saturating_sub(1);
        let record = AttemptRecord { interrupted, since: now.wall, wait: 0, ..self.record.clone() };
        self.note(now, record);
    }

    /// Records that the record could not be written, so that no attempt was made. The next one is soon.
    pub fn stall(&mut self, now: Now, reason: &str) {
        let record = AttemptRecord {
            interrupted: self.record.interrupted.saturating_sub(1),
            since: now.wall,
            wait: self.record.wait.max(FIRST),
            failing: self.record.failing.or(Some(now.wall)),
            reason: reason.chars().take(LONGEST_REASON).collect(),
            ..self.record.clone()
        };
        self.note(now, record);
    }

    /// Records the failure of an attempt, with its reason and the authority's `Retry-After`, if any.
    pub fn fail(&mut self, now: Now, (reason, asked): (&str, Option<Duration>), jitter: u64) {
        let failures = self.record.failures.saturating_add(1);
        let own = back_off(failures, jitter);
        let asked = asked.map(|asked| asked.as_secs().min(LONGEST_ASKED)).filter(|a| *a > own);
        let wait = asked.unwrap_or(own);
        let asked = asked.is_some();
        let failing = self.record.failing.or(Some(now.wall));
        let reason = reason.chars().take(LONGEST_REASON).collect();
        let since = now.wall;
        let early = self.record.early;
        let record =
            AttemptRecord { failures, interrupted: 0, since, wait, asked, early, failing, reason };
        self.note(now, record);
    }

    /// Records a certificate with a lifetime of `life`, which is to be renewed at `due`. Returns false if `due` has passed
    /// already: this clock or the authority's is wrong. That counts as a failure, so that waits grow.
    pub fn succeed(&mut self, now: Now, (due, life): (i64, i64), jitter: u64) -> bool {
        let makes_sense = due > now.wall;
        // The lifetime does not depend on any clock.
        let least = (u64::try_from(life).unwrap_or(0) / 4).clamp(FIRST, AFTER_SUCCESS);
        let record = AttemptRecord { since: now.wall, ..AttemptRecord::default() };
        let record = match makes_sense {
            true => AttemptRecord { wait: least, ..record },
            false => {
                let failures = self.record.failures.saturating_add(1);
                let wait = back_off(failures, jitter).max(AFTER_SUCCESS);
                let failing = self.record.failing.or(Some(now.wall));
                AttemptRecord { failures, wait, failing, reason: CLOCK.to_owned(), ..record }
            }
        };
        self.note(now, record);
        makes_sense
    }

    fn note(&mut self, now: Now, record: AttemptRecord) {
        (self.record, self.written) = (record, Some(now.steady));
    }
}

/// Delays all certificates of an issuer after a failure that concerns all of them.
#[derive(Debug, Default)]
pub struct Pause {
    refusals: u32,
    /// Until when, by the steady clock.
    until: Duration,
}

impl Pause {
    /// Whether no certificate may be ordered now.
    pub fn holds(&self, now: Now) -> bool {
        now.steady < self.until
    }

    /// Records a failure that concerns all certificates, with the authority's `Retry-After`, if any.
    pub fn refused(&mut self, now: Now, asked: Option<Duration>) {
        self.refusals = self.refusals.saturating_add(1);
        // At most the wait of a single certificate.
        let wait = Duration::from_secs(back_off(self.refusals, 0));
        // A longer `Retry-After` may be meant for one name only.
        self.until = now.steady + asked.map_or(wait, |asked| asked.min(wait));
    }

    /// Records that the authority has served a request.
    pub fn served(&mut self) {
        *self = Pause::default();
    }
}

/// The wait after so many failures, in seconds, with up to a quarter more as jitter.
fn back_off(failures: u32, jitter: u64) -> u64 {
    let times = FACTOR.saturating_pow(failures.saturating_sub(1));
    let wait = FIRST.saturating_mul(times).min(LONGEST);
    let more = (u128::from(wait / 4) * u128::from(jitter)) >> 64;
    wait + u64::try_from(more).unwrap_or(0)
}

/// The time until the next poll of an order. It doubles each time, unless the authority sends `Retry-After`.
pub fn poll_after(polls: u32, asked: Option<Duration>) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(250);
    const USUAL: Duration = Duration::from_secs(8);
    const MOST: Duration = Duration::from_secs(60);
    match asked {
        Some(asked) => asked.clamp(SHORTEST, MOST),
        None => SHORTEST.saturating_mul(1 << polls.min(10)).min(USUAL),
    }
}

/// The time until `at` for messages, in the largest unit of which it has at least two.
pub fn span(at: i64, now: Now) -> String {
    let left = at.saturating_sub(now.wall);
    let units = [("days", 24 * 3600), ("hours", 3600), ("minutes", 60)];
    match units.into_iter().find(|(_, unit)| left / unit >= 2) {
        Some((name, unit)) => format!("{} {name}", left / unit),
        None => format!("{left} seconds"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: i64 = 24 * 3600;
    const NOW: i64 = 1_800_000_000;

    fn now(wall: i64, steady: u64) -> Now {
        Now { wall, steady: Duration::from_secs(steady) }
    }

    #[test]
    fn a_certificate_is_due_after_two_thirds_of_its_life() {
        let long = Interval { start: NOW, end: NOW + 90 * DAY };
        let short = Interval { start: NOW, end: NOW + 6 * DAY };
        for jitter in [0, u64::MAX / 2, u64::MAX] {
            let (long, short) = (due(long, None, jitter), due(short, None, jitter));
            assert!((58 * DAY..62 * DAY).contains(&(long - NOW)), "{}", (long - NOW) / DAY);
            assert!((2 * DAY..4 * DAY).contains(&(short - NOW)), "{}", (short - NOW) / DAY);
        }
    }

    #[test]
    fn a_certificate_of_an_hour_is_renewed_before_it_ends() {
        for (life, wait) in [(360, 90), (3600, 900), (4 * 3600, 3600), (90 * DAY, 3600)] {
            let due = due(Interval { start: NOW, end: NOW + life }, None, 0);
            let mut pace = Pace::default();
            assert!(pace.succeed(now(NOW, 0), (due, life), 0));
            assert_eq!(pace.next(Some(due), NOW), due, "{life}");
            // A clock that is ahead causes no second attempt at once.
            assert_eq!(pace.wait(now(NOW + DAY * 400, 0), Some(due), NOW).as_secs(), wait);
        }
    }

    #[test]
    fn a_suggested_window_within_the_validity_is_used() {
        let life = Interval { start: NOW, end: NOW + 90 * DAY };
        let window = Interval { start: NOW + 10 * DAY, end: NOW + 12 * DAY };
        let at = due(life, Some(window), u64::MAX / 3);
        assert!((window.start..=window.end).contains(&at));
        let late = Interval { start: NOW, end: NOW + 91 * DAY };
        assert_eq!(due(life, Some(late), 7), due(life, None, 7));
    }

    #[test]
    fn waits_after_failures_grow_up_to_a_day() {
        let (mut pace, mut steady, mut waits) = (Pace::default(), 0, Vec::new());
        for _ in 0..9 {
            assert_eq!(pace.wait(now(NOW, steady), None, NOW), Duration::ZERO);
            pace.begin(now(NOW, steady), 0);
            pace.fail(now(NOW, steady), ("", None), 0);
            waits.push(pace.record.wait);
            steady += pace.record.wait;
        }
        assert_eq!(waits, [60, 180, 540, 1620, 4860, 14580, 43740, 86400, 86400]);
    }

    #[test]
    fn retry_after_delays_the_next_attempt() {
        let mut pace = Pace::default();
        pace.begin(now(NOW, 0), 0);
        pace.fail(now(NOW, 0), ("", Some(Duration::from_secs(7200))), 0);
        let reloaded = Pace::after(pace.record.clone());
        assert_eq!(reloaded.wait(now(NOW + 7000, 0), None, NOW + 6999), Duration::from_secs(200));
        pace.fail(now(NOW, 0), ("", Some(Duration::from_secs(1))), 0);
        assert_eq!(pace.record.wait, 180, "its own wait is longer");
        pace.fail(now(NOW, 0), ("", Some(Duration::from_secs(u64::MAX))), 0);
        assert_eq!(pace.record.wait, LONGEST_ASKED);
    }

    #[test]
    fn refusals_of_all_certificates_pause_the_issuer() {
        let (mut pause, mut steady, mut asked) = (Pause::default(), 0, 0);
        // A certificate per check, each of which would send a request.
        while steady < 24 * 3600 {
            if !pause.holds(now(NOW, steady)) {
                asked += 1;
                pause.refused(now(NOW, steady), Some(Duration::from_secs(7 * 86400)));
            }
            steady += 1;
        }
        assert_eq!(asked, 8);
        pause.served();
        assert!(!pause.holds(now(NOW, 0)));
        pause.refused(now(NOW, 0), Some(Duration::from_secs(5)));
        assert!(pause.holds(now(NOW, 4)) && !pause.holds(now(NOW, 5)));
    }

    #[test]
    fn a_new_configuration_may_try_again_after_a_minute() {
        let mut pace = Pace::default();
        for _ in 0..6 {
            pace.begin(now(NOW, 0), 0);
            pace.fail(now(NOW, 0), ("", None), 0);
        }
        let other = Pace::after(pace.record.clone());
        assert_eq!(other.wait(now(NOW + 100, 0), None, NOW - 5), MAX_CLOCK_CHECK);
        assert_eq!(other.wait(now(NOW + 20, 0), None, NOW + 20), Duration::from_secs(40));
        assert_eq!(other.wait(now(NOW + 60, 0), None, NOW + 60), Duration::ZERO);
    }

    #[test]
    fn an_attempt_whose_process_ends_is_resumed_at_once_but_not_forever() {
        let mut record = AttemptRecord::default();
        let mut waits = Vec::new();
        for _ in 0..5 {
            let mut pace = Pace::after(record);
            pace.begin(now(NOW, 0), 0);
            record = pace.record.clone();
            waits.push(Pace::after(record.clone()).wait(now(NOW, 0), None, 0).as_secs());
        }
        assert_eq!(waits, [0, 0, 0, 60, 180]);
    }

    #[test]
    fn reloads_do_not_bypass_the_waits() {
        let (mut record, mut attempts) = (AttemptRecord::default(), Vec::new());
        for minute in 0..3 * 24 * 60 {
            let at = NOW + minute * 60;
            let mut pace = Pace::after(record);
            if pace.wait(now(at, 0), None, at).is_zero() {
                attempts.push(minute);
                pace.begin(now(at, 0), 0);
                pace.fail(now(at, 0), ("", None), 0);
            }
            record = pace.record.clone();
        }
        let first_hour = attempts.iter().filter(|minute| **minute < 60).count();
        assert!(first_hour <= 6 && attempts.len() <= 12, "{attempts:?}");
    }

    #[test]
    fn a_failure_keeps_reason_and_start_until_success() {
        let mut pace = Pace::default();
        for (at, reason) in [(0, "first"), (60, "second")] {
            pace.begin(now(NOW + at, at as u64), 0);
            pace.fail(now(NOW + at, at as u64), (reason, None), 0);
        }
        let next = NOW + 60 + 180;
        let after = Pace::after(pace.record.clone());
        for pace in [&pace, &after] {
            let record = pace.record();
            assert_eq!((record.failing(), record.reason()), (Some(NOW), "second"));
            assert_eq!((record.failures(), pace.next(None, NOW)), (2, next));
        }
        assert_eq!(after.next(None, NOW + 100), NOW + 60 + 60, "a new configuration");
        assert_eq!(after.next(Some(next + DAY), NOW), next + DAY);
        pace.begin(now(NOW + 240, 240), 0);
        assert_eq!(pace.record().reason(), "second", "while the next attempt goes on");
        pace.succeed(now(NOW + 240, 240), (NOW + DAY, 2 * DAY), 0);
        assert_eq!((pace.record().failing(), pace.record().reason()), (None, ""));
        // A record of an earlier version has neither.
        let old = r#"{"failures":2,"interrupted":0,"since":5,"wait":180,"asked":false}"#;
        let old: AttemptRecord = serde_json::from_str(old).unwrap();
        assert_eq!((old.failures(), old.failing(), old.reason()), (2, None, ""));
    }

    /// What may happen between two checks.
    #[derive(Debug, Clone)]
    enum Event {
        /// The wall clock is set forward or back.
        Jump(i64),
        /// The process ends, and another one reads the same record.
        Restart,
        /// A restart with a newly read configuration.
        Reload,
        /// The result of the attempt, if one is due.
        Succeeds,
        Fails,
        Hangs,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            8 => (-400 * DAY..400 * DAY).prop_map(Event::Jump),
            1 => Just(Event::Restart),
            1 => Just(Event::Reload),
            3 => Just(Event::Succeeds),
            10 => Just(Event::Fails),
            1 => Just(Event::Hangs),
        ]
    }

    proptest! {
        /// Attempts are rare whatever the clock and the authority do. Each restart may add one
        /// attempt, since then only the wall clock is known.
        #[test]
        fn clock_jumps_cause_no_burst_of_attempts(events in prop::collection::vec(event(), 1..400), jitter: u64) {
            let (mut offset, mut steady) = (0i64, 0u64);
            let (mut pace, mut read_at, mut due_at) = (Pace::default(), NOW, None);
            let mut attempts = Vec::new();
            let mut restarts = Vec::new();
            for event in events {
                let wall = NOW + offset + steady as i64;
                let clock = now(wall, steady);
                match event {
                    Event::Jump(by) => { offset += by; continue; }
                    Event::Restart | Event::Reload => {
                        if matches!(event, Event::Reload) { read_at = wall; }
                        pace = Pace::after(pace.record.clone());
                        restarts.push(steady);
                        continue;
                    }
                    _ => {}
                }
                let wait = pace.wait(clock, due_at, read_at);
                prop_assert!(wait <= MAX_CLOCK_CHECK);
                if !wait.is_zero() {
                    // Checks are more frequent than necessary.
                    steady += wait.as_secs().clamp(1, 60);
                    continue;
                }
                attempts.push(steady);
                pace.begin(clock, jitter);
                match event {
                    Event::Succeeds => {
                        // The authority's clock is right.
                        let real = NOW + steady as i64;
                        let life = Interval { start: real, end: real + 90 * DAY };
                        due_at = Some(due(life, None, jitter));
                        pace.succeed(clock, (due_at.unwrap(), life.length()), jitter);
                    }
                    Event::Fails => pace.fail(clock, ("", None), jitter),
                    _ => {}
                }
            }
            let within = |list: &[u64], from: u64, length: u64| {
                list.iter().filter(|at| (from..from + length).contains(*at)).count()
            };
            for &from in &attempts {
                let hour = within(&attempts, from, 3600);
                let more = within(&restarts, from, 3600);
                // Without a restart: five that fail, and some that hang.
                prop_assert!(hour <= 5 + INTERRUPTIONS as usize + 2 + more, "{hour} attempts, {more} restarts");
            }
        }

        #[test]
        fn the_next_check_is_within_an_hour(wall: i64, due: i64, since: i64, wait: u64, read_at: i64) {
            let record = AttemptRecord { failures: 3, interrupted: 1, since, wait, ..AttemptRecord::default() };
            let pace = Pace::after(record);
            prop_assert!(pace.wait(now(wall, 0), Some(due), read_at) <= MAX_CLOCK_CHECK);
            prop_assert!(pace.wait(now(wall, 0), None, read_at) <= MAX_CLOCK_CHECK);
        }

        #[test]
        fn a_certificate_is_due_within_its_life(start in 0..NOW, life in 0..4000 * DAY, jitter: u64) {
            let validity = Interval { start, end: start + life };
            let at = due(validity, None, jitter);
            prop_assert!((validity.start - 1..=validity.end).contains(&at));
        }
    }
}
