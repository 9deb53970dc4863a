//! The machine that was measured, and its figures.

use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::program::Program;

/// How long the load of other programs is watched.
const WATCHED: Duration = Duration::from_millis(300);
/// The pause between two looks at the clock.
const PAUSE: Duration = Duration::from_micros(100);

/// The machine, and the servers that were asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MachineFacts {
    day: String,
    cpus: usize,
    model: String,
    kernel: String,
    /// Tasks that wanted a CPU in the last minute.
    load: String,
    /// The share of time that other programs took from a computing task, and the longest pause in
    /// ms.
    taken: (f64, f64),
    /// Name, version, and how a handler of it holds up its worker.
    pub(crate) servers: Vec<[String; 3]>,
    pub(crate) brief: bool,
}

impl MachineFacts {
    /// Looks at this machine for a moment.
    pub(crate) fn look(programs: &[Program], brief: bool) -> MachineFacts {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let model = read("/proc/cpuinfo");
        let model = model.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.map_or("CPU unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
        let load = read("/proc/loadavg");
        let server = |program: &Program| {
            [program.name.clone(), program.version.clone(), program.way_of_work().to_owned()]
        };
        MachineFacts {
            day: day(seconds.map_or(0, |d| d.as_secs() / 86_400)),
            cpus,
            model: model.to_owned(),
            kernel,
            load: load.split(' ').next().unwrap_or("-").to_owned(),
            taken: taken(),
            servers: programs.iter().map(server).collect(),
            brief,
        }
    }

    /// The facts as text, in a few sentences.
    pub(crate) fn text(&self) -> String {
        let MachineFacts { day, cpus, model, kernel, load, taken: (share, longest), .. } = self;
        let servers = self.servers.iter().map(|[name, version, _]| format!("{name} {version}"));
        let servers: Vec<String> = servers.collect();
        let brief = if self.brief { " Short runs (--brief): the figures mean little." } else { "" };
        format!(
            "{day}, {cpus} CPUs ({model}), Linux {kernel}; {}. Servers and client share the machine. Before the run its load was \
             {load}, and others took {:.1} % of the time from a task that computed, {longest:.1} ms at most.{brief}",
            servers.join(", "),
            100.0 * share,
        )
    }
}

/// Computes for a while: the share of the time that this thread did not get, and the longest pause in ms.
fn taken() -> (f64, f64) {
    let begin = Instant::now();
    let (mut last, mut lost, mut longest) = (begin, Duration::ZERO, Duration::ZERO);
    while last.duration_since(begin) < WATCHED {
        let now = Instant::now();
        let pause = now.duration_since(last);
        if pause > PAUSE {
            lost += pause;
            longest = longest.max(pause);
        }
        last = now;
    }
    (lost.as_secs_f64() / WATCHED.as_secs_f64(), longest.as_secs_f64() * 1e3)
}

/// A day by its number since 1970 in the calendar, as `2026-01-31`.
fn day(since_1970: u64) -> String {
    // Years begin in March here, so that the leap day is the last of one; an era has 400 of them.
    let days = since_1970 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn days_have_dates() {
        for (number, text) in [
            (0, "1970-01-01"),
            (19_782, "2024-02-29"),
            (19_783, "2024-03-01"),
            (20_818, "2026-12-31"),
        ] {
            assert_eq!(super::day(number), text);
        }
    }
}
