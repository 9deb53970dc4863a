//! Waiting for a file to say something, without sleeping between looks.

use std::fs;
use std::net::{SocketAddr, TcpStream};
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

/// Waits until all that was written to a connection over 127.0.0.1 is in the peer's socket. It is there at once, but on
/// a busy machine, where the kernel may put the delivery off.
pub fn wait_delivered(stream: &TcpStream) {
    let own = stream.local_addr().expect("a connection has an address");
    assert!(ask_until(|| !is_under_way(own)), "what {own} sent was not taken");
}

/// proc(5), `net/tcp`: the own address, the peer's, the state, and what is queued, in hexadecimal digits.
fn is_under_way(own: SocketAddr) -> bool {
    let own = format!("0100007F:{:04X}", own.port());
    let table = fs::read_to_string("/proc/self/net/tcp").expect("proc(5) is mounted");
    let lines = table.lines().map(|line| line.split_whitespace().skip(1));
    let mut mine = lines.filter_map(|mut fields| (fields.next()? == own).then_some(fields));
    let queued = mine.next().and_then(|mut fields| fields.nth(2)?.split_once(':'));
    queued.is_some_and(|(sending, _)| sending.bytes().any(|digit| digit != b'0'))
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
