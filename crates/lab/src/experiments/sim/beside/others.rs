//! CPU time of other programs during a measurement, which the model does not have.

use std::fs;
use std::time::Instant;

/// CPU time since a start time.
pub(super) struct Others {
    since: Instant,
    all: u64,
    own: u64,
}

impl Others {
    pub(super) fn watch() -> Others {
        let text = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let (all, own) = (all(&text("/proc/stat")), own(&text("/proc/self/stat")));
        Others { since: Instant::now(), all, own }
    }

    /// The share of CPU time that other programs used since the start, from 0 to 1.
    pub(super) fn share(&self) -> f64 {
        let now = Others::watch();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let room = self.since.elapsed().as_secs_f64() * ticks * cpus as f64;
        let others =
            now.all.saturating_sub(self.all).saturating_sub(now.own - self.own.min(now.own));
        (others as f64 / room.max(1.0)).min(1.0)
    }
}

/// Ticks of CPU time of the whole machine, stolen time included, without idle and I/O wait.
fn all(stat: &str) -> u64 {
    let line = stat.lines().next().unwrap_or_default();
    let ticks = line.split_whitespace().skip(1).take(8).enumerate();
    ticks
        .filter(|(n, _)| ![3, 4].contains(n))
        .filter_map(|(_, word)| word.parse::<u64>().ok())
        .sum()
}

/// CPU ticks of this process and of its ended children.
fn own(stat: &str) -> u64 {
    // The name is in parentheses and may have any characters. The state is the first word after it.
    let rest = stat.rsplit(')').next().unwrap_or_default();
    rest.split_whitespace().skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_no_work_and_ended_children_are_own() {
        assert_eq!(all("cpu  10 1 20 1000 500 2 3 4 0 0\ncpu0 1 1 1"), 40);
        assert_eq!(own("7 (a b) c) S 1 7 7 0 -1 4 9 9 9 9 11 22 33 44 20 0"), 110);
        assert!((0.0..=1.0).contains(&Others::watch().share()));
    }
}
