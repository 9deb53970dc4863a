//! Facts about the measured machine, and its noise.

use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::program::{Family, Program};

/// How long to measure the noise.
const MEASURE_TIME: Duration = Duration::from_millis(300);
/// The shortest gap between two clock reads that counts as a pause.
const MIN_PAUSE: Duration = Duration::from_micros(100);

/// The machine, and the servers under test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MachineFacts {
    day: String,
    cpus: usize,
    model: String,
    kernel: String,
    pub(crate) servers: Vec<ServerFacts>,
    pub(crate) brief: bool,
    /// Whether this program is a debug build. It is the client, and usually the weir under test.
    unoptimized: bool,
}

/// A server under test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerFacts {
    pub(crate) name: String,
    pub(crate) version: String,
    /// How its handler blocks a worker.
    pub(crate) way_of_work: String,
    pub(crate) is_weir: bool,
}

impl MachineFacts {
    /// Reads the facts of this machine.
    pub(crate) fn look(programs: &[Program], brief: bool) -> MachineFacts {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let model = read("/proc/cpuinfo");
        let model = model.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.map_or("CPU unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
        let server = |program: &Program| ServerFacts {
            name: program.name.clone(),
            version: program.version.clone(),
            way_of_work: program.way_of_work().to_owned(),
            is_weir: program.family == Family::Weir,
        };
        MachineFacts {
            day: day(seconds.map_or(0, |d| d.as_secs() / 86_400)),
            cpus,
            model: model.to_owned(),
            kernel,
            servers: programs.iter().map(server).collect(),
            brief,
            unoptimized: cfg!(debug_assertions),
        }
    }

    /// Facts with only the servers: name, version, and whether it is weir.
    #[cfg(test)]
    pub(crate) fn of_servers(servers: &[(&str, &str, bool)]) -> MachineFacts {
        let server = |(name, version, is_weir): &(&str, &str, bool)| ServerFacts {
            name: (*name).to_owned(),
            version: (*version).to_owned(),
            way_of_work: "it sleeps".to_owned(),
            is_weir: *is_weir,
        };
        let servers = servers.iter().map(server).collect();
        let [day, model, kernel] = ["2026-01-31", "CPU", "6.0"].map(str::to_owned);
        MachineFacts { day, cpus: 2, model, kernel, servers, brief: false, unoptimized: false }
    }

    /// The facts as a few sentences.
    pub(crate) fn text(&self) -> String {
        let MachineFacts { day, cpus, model, kernel, .. } = self;
        let servers = self.servers.iter().map(|s| format!("{} {}", s.name, s.version));
        let servers = servers.collect::<Vec<_>>().join(", ");
        let servers = match servers.is_empty() {
            true => servers,
            false => format!("; {servers}. Servers and client share the machine"),
        };
        let brief = if self.brief { " Short runs (--brief): the figures mean little." } else { "" };
        let slow = if self.unoptimized {
            " The client, and this weir as a server, are built without optimization."
        } else {
            ""
        };
        format!("{day}, {cpus} CPUs ({model}), Linux {kernel}{servers}.{brief}{slow}",)
    }
}

/// CPU time that other programs took from a computing task.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Noise {
    /// The share of the time, from 0 to 1.
    pub(crate) share: f64,
    /// The longest pause, in ms.
    pub(crate) longest: f64,
    /// The load average of the last minute.
    pub(crate) load: f64,
}

impl Noise {
    /// Measures the noise: computes for a while.
    pub(crate) fn look() -> Noise {
        let (share, longest) = lost_time();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
        Noise { share, longest, load }
    }

    /// The greater noise of two measurements.
    #[must_use]
    pub(crate) fn or(self, other: Noise) -> Noise {
        let (share, longest) = (self.share.max(other.share), self.longest.max(other.longest));
        Noise { share, longest, load: self.load.max(other.load) }
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "Noise: other programs took {:.1} % of the time from a task that computed, {:.1} ms at most; the load was {:.1}.",
            100.0 * self.share,
            self.longest,
            self.load
        )
    }
}

/// Computes for a while. Returns the share of the time in which this thread did not run, and the
/// longest pause in ms.
fn lost_time() -> (f64, f64) {
    let begin = Instant::now();
    let (mut last, mut lost, mut longest) = (begin, Duration::ZERO, Duration::ZERO);
    while last.duration_since(begin) < MEASURE_TIME {
        let now = Instant::now();
        let pause = now.duration_since(last);
        if pause > MIN_PAUSE {
            lost += pause;
            longest = longest.max(pause);
        }
        last = now;
    }
    (lost.as_secs_f64() / MEASURE_TIME.as_secs_f64(), longest.as_secs_f64() * 1e3)
}

/// Formats a number of days since 1970 as `2026-01-31`.
fn day(since_1970: u64) -> String {
    // Years begin in March, so that a leap day is the last day of a year. An era has 400 years.
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
