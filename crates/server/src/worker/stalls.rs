//! Names what a loop is at in a turn that does not end, while it does not end.
//!
//! A thread beside the loops sleeps until the master rings its [`Bell`], once a second while a loop is in a long turn. The
//! thread says so in the log after a second and then every ten, and in the loop's row, where the pages of all processes find
//! it. It also hears that the worker is to end, which a loop that is stuck does not, and changes the name in ps(1).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use weir_engine::coarse_nanos;
use weir_log::{Log, log};
use weir_metrics::{Culprit, LoopTally, Registry};
use weir_sys::title::Title;
use weir_values::doing;

/// A turn that lasts longer is told.
pub const LONG: Duration = Duration::from_secs(1);
/// A turn that goes on is told again after this time.
const AGAIN: Duration = Duration::from_secs(10);
/// What the bell's counter has grown by if the worker is to end.
const ENDS: u64 = 1 << 32;

/// Wakes the thread of a worker that names what its loops are at: an eventfd(2).
#[derive(Clone, Debug)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// One that nothing has rung.
    pub fn new() -> io::Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Bell(Arc::new(eventfd(0, flags)?)))
    }

    /// A loop is in a long turn.
    pub fn ring(&self) {
        self.add(1);
    }

    /// The worker is told to end.
    pub fn ends(&self) {
        self.add(ENDS);
    }

    fn add(&self, n: u64) {
        // One that is full has been rung.
        let _ = rustix::io::write(&self.0, &n.to_ne_bytes());
    }

    /// Waits until it is rung; whether the worker is to end.
    fn wait(&self) -> bool {
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None);
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.0, &mut counter);
        u64::from_ne_bytes(counter) >= ENDS
    }
}

/// A worker's watch over its loops.
pub struct StallWatch {
    /// All rows.
    pub registry: Registry,
    /// Where stalls are told.
    pub log: Arc<Log>,
    /// The name in ps.
    pub title: Arc<Mutex<Option<Title>>>,
    /// None without a master: then the thread looks once a second.
    pub bell: Option<Bell>,
}

/// A turn that was told.
#[derive(Clone, Copy)]
struct Told {
    tid: u32,
    since: u64,
    at: Duration,
}

impl StallWatch {
    /// Starts the thread, which lasts as long as the process.
    #[expect(clippy::disallowed_methods, reason = "the thread is none of a loop")]
    pub fn start(self) -> io::Result<()> {
        let watch = move || {
            let mut told = Vec::new();
            loop {
                match &self.bell {
                    Some(bell) if bell.wait() => retitle(&self.title),
                    Some(_) => {}
                    None => thread::sleep(LONG),
                }
                self.look(&mut told);
            }
        };
        thread::Builder::new().name("weir: stalls".to_owned()).spawn(watch).map(drop)
    }

    fn look(&self, told: &mut Vec<Told>) {
        let (all, own) = (self.registry.loops(), std::process::id());
        let now = coarse_nanos();
        let before = std::mem::take(told);
        for tally in all.iter().filter(|tally| tally.owner.pid == own) {
            let Some(since) = tally.awake_since() else { continue };
            let took = Duration::from_nanos(now.saturating_sub(since));
            if took < LONG {
                continue;
            }
            let tid = tally.owner.tid;
            let last = before.iter().find(|told| (told.tid, told.since) == (tid, since));
            let what = show(tally, since, took);
            let at = match last {
                Some(last) if took < last.at + AGAIN => last.at,
                _ => {
                    let (index, seconds) = (tally.owner.index, took.as_secs());
                    log!(
                        self.log,
                        Error,
                        None,
                        "loop {index} of process {own} has been in one turn for {seconds} s: {what}"
                    );
                    took
                }
            };
            told.push(Told { tid, since, at });
        }
    }
}

/// Puts into the loop's row what it is at.
fn show(tally: &LoopTally, since: u64, took: Duration) -> String {
    let what = doing::current(tally);
    let waited = Duration::ZERO;
    tally.stalls(&Culprit { at: since, took, waited, preempted: false, what: what.clone() });
    what
}

/// Says in ps(1) that the worker retires.
pub fn retitle(title: &Mutex<Option<Title>>) {
    if let Some(mut title) = title.lock().ok().and_then(|mut title| title.take()) {
        title.set("weir: worker process is shutting down");
    }
}
