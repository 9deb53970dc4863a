//! The command line of `weir top`.

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use rustix::process::Signal;
use weir_print::PrintError;
use weir_sys::signal::SignalSet;
use weir_tls::CertificateTrust;

use crate::fetch::{FetchError, SnapshotSource};
use crate::plain;
use crate::screen::{KeyAction, Screen};
use crate::snapshot::Snapshot;
use crate::values::ShownValues;

/// Shows a running weir, live: how even its loops work, which would be woken next, what held loops
/// up, latency, upstream servers, caches. It reads what a location with weir_dashboard or
/// weir_status json tells
#[derive(Debug, Parser)]
#[command(name = "weir top", bin_name = "weir top")]
pub struct Options {
    /// A port of this machine, a URL (http[s]://host:port/path), or unix:/path/of/socket[:/path]
    #[arg(value_name = "URL|PORT", default_value = "8080")]
    place: String,
    /// Plain text of one interval, and leave
    #[arg(long)]
    once: bool,
    /// Accept certificates that these authorities vouch for (PEM) [default: this machine's]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    cacert: Option<PathBuf>,
    /// Accept any certificate
    #[arg(short = 'k', long)]
    insecure: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
}

/// Why `weir top` fails.
#[derive(Debug)]
enum TopError {
    /// Not a valid interval.
    Interval,
    /// A snapshot could not be fetched.
    Fetch(FetchError),
    /// Standard output is not a terminal.
    NoTerminal,
    /// The terminal has no escape sequences.
    Dumb,
    /// Signals cannot be blocked, or the thread for them cannot be started.
    Signals(io::Error),
    /// Standard output cannot be written.
    Print(PrintError),
    /// The terminal cannot be used.
    Terminal(io::Error),
}

impl fmt::Display for TopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopError::Interval => f.write_str("a number of seconds from 0.1 to 3600"),
            TopError::Fetch(e) => e.fmt(f),
            TopError::NoTerminal => f.write_str("this is no terminal; --once writes plain text"),
            TopError::Dumb => f.write_str(
                "a terminal with escape sequences is needed, and TERM is dumb; --once writes plain text",
            ),
            TopError::Signals(e) => write!(f, "signals: {e}"),
            TopError::Print(e) => e.fmt(f),
            TopError::Terminal(e) => write!(f, "terminal: {e}"),
        }
    }
}

impl std::error::Error for TopError {}

impl From<FetchError> for TopError {
    fn from(e: FetchError) -> TopError {
        TopError::Fetch(e)
    }
}

fn seconds(text: &str) -> Result<f64, TopError> {
    let parsed = text.parse::<f64>().ok().filter(|s| (0.1..=3600.0).contains(s));
    parsed.ok_or(TopError::Interval)
}

/// Runs `weir top`. Returns the exit status.
pub fn top(options: Options) -> i32 {
    match run(&options) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("weir top: {e}");
            1
        }
    }
}

fn run(options: &Options) -> Result<(), TopError> {
    let trust = CertificateTrust::of(options.cacert.as_deref(), options.insecure);
    let mut place = SnapshotSource::read(&options.place, &trust)?;
    let first = place.snapshot()?;
    let interval = Duration::from_secs_f64(options.interval);
    if options.once {
        #[expect(clippy::disallowed_methods, reason = "there is no loop here")]
        std::thread::sleep(interval);
        let text = plain::text(&ShownValues::of(&place.snapshot()?, &first));
        return weir_print::print(text).map(drop).map_err(TopError::Print);
    }
    if !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return Err(TopError::Dumb);
    }
    restore_on_signals().map_err(TopError::Signals)?;
    // The terminal is restored at the end, also after a panic or a signal.
    let mut terminal = ratatui::try_init().map_err(TopError::Terminal)?;
    let ended = watch(&mut terminal, &mut place, first, interval);
    ratatui::restore();
    ended.map_err(TopError::Terminal)
}

/// Restores the terminal before a signal ends this process.
fn restore_on_signals() -> io::Result<()> {
    let ends = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT].map(Signal::as_raw);
    let signals = SignalSet::new(&ends);
    // Threads inherit the mask, so only this thread receives the signals.
    signals.block()?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        loop {
            if let Ok(Some(arrived)) = signals.wait(None) {
                // Holding the lock of stdout keeps the other thread from drawing.
                let mut out = io::stdout().lock();
                ratatui::restore();
                // If the terminal is gone, showing the cursor fails.
                let _ = execute!(out, Show);
                std::process::exit(128 + arrived.number);
            }
        }
    })?;
    Ok(())
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    place: &mut SnapshotSource,
    first: Snapshot,
    interval: Duration,
) -> io::Result<()> {
    let mut screen = Screen::default();
    screen.take(ShownValues::first(&first));
    let mut last = first;
    let mut due = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        if event::poll(due.saturating_duration_since(Instant::now()))? {
            match key_action(&event::read()?) {
                Some(KeyAction::Leave) => return Ok(()),
                Some(key_action) => screen.apply(key_action),
                None => {}
            }
        }
        if Instant::now() < due {
            continue;
        }
        due = Instant::now() + interval;
        if screen.paused {
            continue;
        }
        match place.snapshot() {
            Ok(now) => {
                screen.take(ShownValues::of(&now, &last));
                last = now;
            }
            Err(trouble) => screen.trouble = Some(trouble),
        }
    }
}

fn key_action(event: &Event) -> Option<KeyAction> {
    let Event::Key(key) = event else { return None };
    if key.kind != KeyEventKind::Press {
        return None;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            Some(KeyAction::Leave)
        }
        KeyCode::Char('q') | KeyCode::Esc => Some(KeyAction::Leave),
        KeyCode::Char('p' | ' ') => Some(KeyAction::Pause),
        KeyCode::Char('s') => Some(KeyAction::Sort),
        KeyCode::Up | KeyCode::Char('k') => Some(KeyAction::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(KeyAction::Down),
        _ => None,
    }
}
