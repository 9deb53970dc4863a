//! The environment of experiments: programs, sizes, load and progress.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use indicatif::ProgressBar;
use weir_bench::{Closing, LoadPlan, Pace, RunOutcome, RunProgress, RunWatcher, Url};

use crate::comparison::{Better, Comparison};
use crate::program::{Family, Program, Subject};
use crate::running::RunningServer;

/// The programs under test, and the options of the run.
pub(crate) struct Lab {
    pub(crate) programs: Vec<Program>,
    /// Whether the run is short, to check only that everything works.
    pub(crate) brief: bool,
    pub(crate) bar: ProgressBar,
    /// Requests by way to accept, and those of them without a good answer.
    served: RefCell<BTreeMap<String, Served>>,
}

/// The number of requests, and of those that had no answer or one with another status than 200.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) requests: u64,
    pub(crate) failed: u64,
}

impl Served {
    fn of(run: &RunOutcome) -> Served {
        let (answered, errors) = (run.tally.requests(), run.tally.errors());
        let good = run.tally.statuses.get(&200).copied().unwrap_or(0);
        Served { requests: answered + errors, failed: errors + (answered - good) }
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} requests had no answer with 200", self.failed, self.requests)
    }
}

/// The load of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) connections: usize,
    pub(crate) closing: Closing,
    pub(crate) pace: Pace,
    pub(crate) requests: Option<u64>,
    pub(crate) time: Duration,
    /// All connections are opened before the first request, at this interval.
    pub(crate) connect_first: Option<Duration>,
    /// A request without an answer within this time is lost.
    pub(crate) timeout: Duration,
}

impl Traffic {
    /// A closed loop for this duration.
    pub(crate) fn closed(connections: usize, closing: Closing, time: Duration) -> Traffic {
        Traffic {
            connections,
            closing,
            pace: Pace::Closed,
            requests: None,
            time,
            connect_first: None,
            timeout: Duration::from_secs(10),
        }
    }
}

impl Lab {
    pub(crate) fn new(programs: Vec<Program>, brief: bool, bar: ProgressBar) -> Lab {
        Lab { programs, brief, bar, served: RefCell::default() }
    }

    /// `full`, or `brief` in a short run.
    pub(crate) fn size<T>(&self, full: T, brief: T) -> T {
        if self.brief { brief } else { full }
    }

    /// The first program that is weir.
    pub(crate) fn weir(&self) -> Result<&Program, String> {
        let found = self.programs.iter().find(|p| p.family == Family::Weir);
        found.ok_or_else(|| "there is no weir among the servers".to_owned())
    }

    /// The subjects: weir's policies by label and name, then the ways of each nginx, then those of
    /// HAProxy. With `working`, only servers with handlers that can block.
    pub(crate) fn subjects(
        &self,
        policies: &[(&str, &str)],
        nginx: &[fn(&Program) -> Subject],
        working: bool,
    ) -> Vec<Subject> {
        let mut all = Vec::new();
        if let Ok(weir) = self.weir() {
            all.extend(policies.iter().map(|(label, policy)| weir.policy(label, policy)));
        }
        for program in self.programs.iter().filter(|p| p.can_work() || !working) {
            match program.family {
                Family::Weir => {}
                Family::Nginx => all.extend(nginx.iter().map(|way| way(program))),
                Family::Haproxy => all.extend(program.haproxy()),
            }
        }
        all
    }

    /// Reports progress.
    pub(crate) fn step(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    /// Loads a server. `during` is called repeatedly with the elapsed time.
    pub(crate) fn load(
        &self,
        server: &RunningServer,
        load: &Traffic,
        during: &mut dyn FnMut(Duration),
    ) -> Result<RunOutcome, String> {
        self.load_at("/", server, load, during)
    }

    /// As [`Lab::load`], with requests for `path`.
    pub(crate) fn load_at(
        &self,
        path: &str,
        server: &RunningServer,
        load: &Traffic,
        during: &mut dyn FnMut(Duration),
    ) -> Result<RunOutcome, String> {
        let url = Url::parse(&format!("http://a.a{path}")).map_err(|e| e.to_string())?;
        let mut plan =
            LoadPlan::get(&[url], Some(&server.address().into())).map_err(|e| e.to_string())?;
        (plan.connections, plan.closing, plan.pace) = (load.connections, load.closing, load.pace);
        (plan.requests, plan.duration) = (load.requests, Some(load.time));
        plan.connect_first = load.connect_first;
        plan.timeout = load.timeout;
        let run = self.run(&plan, during)?;
        let Served { requests, failed } = Served::of(&run);
        let mut all = self.served.borrow_mut();
        let served = all.entry(server.label().to_owned()).or_default();
        (served.requests, served.failed) = (served.requests + requests, served.failed + failed);
        drop(all);
        Ok(run)
    }

    /// A sentence about requests that failed since the last call. Tables of times do not show them.
    pub(crate) fn failures(&self) -> Option<String> {
        let all = self.served.take();
        let failed: Vec<String> = all
            .iter()
            .filter(|(_, served)| served.failed > 0)
            .map(|(label, served)| format!("{label}: {served}"))
            .collect();
        (!failed.is_empty())
            .then(|| format!("{}. Their times are in no figure.", failed.join("; ")))
    }

    /// Runs a plan. `during` is called repeatedly with the elapsed time.
    pub(crate) fn run(
        &self,
        plan: &LoadPlan,
        during: &mut dyn FnMut(Duration),
    ) -> Result<RunOutcome, String> {
        weir_bench::run(plan, &mut ProgressWatcher { bar: &self.bar, during })
            .map_err(|e| e.to_string())
    }
}

struct ProgressWatcher<'a> {
    bar: &'a ProgressBar,
    during: &'a mut dyn FnMut(Duration),
}

impl RunWatcher for ProgressWatcher<'_> {
    fn progress(&mut self, progress: &RunProgress) {
        self.bar.tick();
        (self.during)(progress.elapsed);
    }
}

/// The time in ms within which 99 of 100 requests were answered. Those that failed count as later
/// than all others: if they are more than one of 100, it is infinite.
pub(crate) fn p99(run: &RunOutcome) -> f64 {
    let served = Served::of(run);
    let all = served.requests as f64;
    // The share of the answers that 99 % of all requests are.
    let share = 99.0 * all / (all - served.failed as f64).max(0.0);
    if share <= 100.0 { run.tally.percentile(share) } else { f64::INFINITY }
}

/// The coefficient of variation: the standard deviation divided by the mean. 0 is even.
pub(crate) fn variation(values: &[f64]) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    if mean > 0.0 { (squares / n).sqrt() / mean } else { 0.0 }
}

/// A value per worker, in descending order. A worker without a value has 0.
pub(crate) fn padded(counts: impl IntoIterator<Item = u64>, workers: usize) -> Vec<u64> {
    let mut all: Vec<u64> = counts.into_iter().collect();
    all.resize(all.len().max(workers), 0);
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}

/// Formats counts as `6 / 0 / 0`.
pub(crate) fn slashed(counts: &[u64]) -> String {
    counts.iter().map(u64::to_string).collect::<Vec<_>>().join(" / ")
}

/// Compares the row whose label ends with `own` with the best match of each group in `others`.
pub(crate) fn compared<T>(
    (what, unit, better): (&str, &str, Better),
    rows: &[(String, T)],
    own: &str,
    others: &[&[&str]],
    figure: impl Fn(&T) -> f64,
) -> Option<Comparison> {
    let (label, value) = nearest(rows, &[own])?;
    let own = Comparison::new(what, unit, better, (label, figure(value)));
    let others = others.iter().filter_map(|ends| nearest(rows, ends));
    Some(others.fold(own, |all, (label, value)| all.beside((label, figure(value)))))
}

/// The first row whose label ends with one of `ends`. Earlier entries of `ends` are preferred.
pub(crate) fn nearest<'a, T>(rows: &'a [(String, T)], ends: &[&str]) -> Option<(&'a str, &'a T)> {
    let find = |end: &&str| rows.iter().find(|(label, _)| label.ends_with(end));
    ends.iter().find_map(find).map(|(label, value)| (label.as_str(), value))
}
