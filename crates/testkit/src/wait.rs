//! Waiting for a file to say something, without sleeping between looks.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Timespec, inotify};

/// How long a test waits for something before it fails. Reached only when something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `done`, looking again each time something in `dir` changes; false when it did not
/// come within [`PATIENCE`].
pub fn until(dir: &Path, mut done: impl FnMut() -> bool) -> bool {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
        .expect("inotify");
    let changes = inotify::WatchFlags::CREATE
        | inotify::WatchFlags::MODIFY
        | inotify::WatchFlags::MOVED_TO
        | inotify::WatchFlags::MOVED_FROM
        | inotify::WatchFlags::DELETE;
    inotify::add_watch(&watch, dir, changes).expect("a watch of the test's directory");
    let end = Instant::now() + PATIENCE;
    loop {
        if done() {
            return true;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let mut fds = [PollFd::new(&watch, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&timespec(left)));
        let mut events = [0; 4096];
        while rustix::io::read(&watch, &mut events).is_ok_and(|n| n > 0) {}
    }
}

pub(crate) fn timespec(d: Duration) -> Timespec {
    Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() }
}

/// As [`until`], for what no file tells: asks on and on.
pub fn ask_until(mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::yield_now();
    }
    true
}
