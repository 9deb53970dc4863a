//! The commands `weir bench` and `weir histogram`.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use rustix::process::Signal;
use weir_print::{PrintError, print};
use weir_sys::signal::SignalSet;

use crate::options::{HistogramOptions, Options, PlanError};
use crate::plot::DrawingError;
use crate::{LoadPlan, RunOutcome, RunProgress, RunWatcher, Sample, report, run};

/// Why a run failed, or its results could not be written.
#[derive(Debug)]
enum BenchError {
    /// The options are not a valid plan.
    Plan(PlanError),
    /// A thread of the client, or its event loop, failed.
    Run(io::Error),
    /// The file could not be written.
    Write(PathBuf, io::Error),
    /// Standard output could not be written.
    Print(PrintError),
    /// The chart could not be drawn.
    Picture(DrawingError),
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Plan(e) => e.fmt(f),
            BenchError::Run(e) => e.fmt(f),
            BenchError::Write(path, e) => write!(f, "cannot write {}: {e}", path.display()),
            BenchError::Print(e) => e.fmt(f),
            BenchError::Picture(e) => e.fmt(f),
        }
    }
}

/// Runs `weir bench`. Returns the exit status.
///
/// 0: every request was answered; 1: some were not; 2: the run failed; 130: Ctrl-C ended it.
pub fn bench(options: Options) -> i32 {
    let done = options.plan().map_err(BenchError::Plan).and_then(|plan| measure(&options, &plan));
    match done {
        // The status that shells report for a program that SIGINT ended.
        Ok(outcome) if outcome.interrupted => 128 + Signal::INT.as_raw(),
        Ok(outcome) => i32::from(outcome.tally.errors() > 0),
        Err(e) => {
            eprintln!("weir bench: {e}");
            2
        }
    }
}

/// Runs `weir histogram`. Returns the exit status: 1 if a line of standard input has no number, 2
/// if reading fails.
pub fn histogram(options: HistogramOptions) -> i32 {
    let numbers = match crate::histogram::read(io::stdin().lock(), &options.title) {
        Ok(numbers) => numbers,
        Err(e) => {
            eprintln!("weir histogram: {e}");
            return 2;
        }
    };
    if let Some(first) = numbers.invalid_lines.first() {
        let count = numbers.invalid_lines.len();
        eprintln!("weir histogram: {count} lines are no numbers, the first is line {first}");
    }
    weir_print::ending("weir histogram", numbers.text, i32::from(!numbers.invalid_lines.is_empty()))
}

fn measure(options: &Options, plan: &LoadPlan) -> Result<RunOutcome, BenchError> {
    let mut screen = Screen::new(plan, options.raw);
    // Threads inherit the blocked signal, so that it stays pending until the run asks for it.
    screen.interrupt.block().map_err(BenchError::Run)?;
    let outcome = run(plan, &mut screen).map_err(BenchError::Run);
    screen.interrupt.unblock().map_err(BenchError::Run)?;
    screen.bar.finish_and_clear();
    let outcome = outcome?;
    screen.written?;
    weir_print::read(screen.out.flush()).map_err(BenchError::Print)?;
    let summary = if options.json { report::json(&outcome) } else { report::text(&outcome) };
    if options.raw {
        eprint!("{summary}");
    } else {
        print(summary).map_err(BenchError::Print)?;
    }
    if options.histogram {
        let text = outcome.tally.log2.render(&options.title, outcome.tally.percentile(50.0));
        if options.raw || options.json {
            eprint!("{text}");
        } else {
            print(format!("\n{text}")).map_err(BenchError::Print)?;
        }
    }
    if let Some(path) = &options.hdr {
        write(path, &report::hdr(&outcome))?;
    }
    if let Some(path) = &options.svg {
        let picture = report::svg(&[(options.title.as_str(), &outcome)]);
        write(path, &picture.map_err(BenchError::Picture)?)?;
    }
    Ok(outcome)
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(|e| BenchError::Write(path.to_owned(), e))
}

/// Shows progress on standard error and raw samples on standard output.
struct Screen {
    bar: ProgressBar,
    by_count: bool,
    last: RunProgress,
    out: BufWriter<io::Stdout>,
    /// The last error of writing raw samples.
    written: Result<(), BenchError>,
    /// SIGINT. It ends the run, and the results so far are shown.
    interrupt: SignalSet,
}

impl Screen {
    fn new(plan: &LoadPlan, raw: bool) -> Screen {
        let by_count = plan.requests.is_some();
        let whole = plan.requests.unwrap_or(plan.duration.unwrap_or_default().as_millis() as u64);
        let bar = if raw { ProgressBar::hidden() } else { ProgressBar::new(whole) };
        let style = ProgressStyle::with_template("{bar:40} {percent:>3}% {elapsed} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let last = RunProgress { elapsed: Duration::ZERO, done: 0 };
        let out = BufWriter::new(io::stdout());
        let interrupt = SignalSet::new(&[Signal::INT.as_raw()]);
        Screen { bar, by_count, last, out, written: Ok(()), interrupt }
    }
}

impl RunWatcher for Screen {
    fn progress(&mut self, progress: &RunProgress) {
        let time = progress.elapsed.saturating_sub(self.last.elapsed).as_secs_f64();
        let rate = (progress.done - self.last.done.min(progress.done)) as f64 / time.max(1e-3);
        let at = if self.by_count { progress.done } else { progress.elapsed.as_millis() as u64 };
        self.bar.set_position(at);
        self.bar.set_message(format!("{} requests, {rate:.0}/s", progress.done));
        self.last = *progress;
    }

    fn interrupts(&mut self) -> bool {
        matches!(self.interrupt.wait(Some(Duration::ZERO)), Ok(Some(_)))
    }

    fn samples(&mut self, samples: &[Sample]) {
        for sample in samples {
            let line = writeln!(self.out, "{:.3} {}", sample.latency_ms, sample.status);
            if let Err(e) = weir_print::read(line) {
                self.written = Err(BenchError::Print(e));
            }
        }
    }
}
