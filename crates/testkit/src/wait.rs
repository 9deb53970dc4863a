//! Waits for texts in files by inotify, without sleeping.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Timespec, inotify};

/// How long a test waits before it fails. Only a fault makes it wait this long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `done`, which is checked at each change in `dir`. False after [`PATIENCE`].
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

/// Waits until the peer's socket has received all bytes sent on a connection over 127.0.0.1. On a
/// busy machine, the kernel may delay the delivery.
pub fn wait_delivered(stream: &TcpStream) {
    let own = stream.local_addr().expect("a connection has an address");
    assert!(ask_until(|| !is_under_way(own)), "what {own} sent was not taken");
}

/// The number of connections in the accept queues of a port of 127.0.0.1.
pub fn waiting(port: u16) -> usize {
    const LISTEN: &str = "0A";
    let listening = queues(port).into_iter().filter(|(state, ..)| state == LISTEN);
    listening.map(|(.., received)| received).sum()
}

fn is_under_way(own: SocketAddr) -> bool {
    queues(own.port()).first().is_some_and(|(_, sending, _)| *sending > 0)
}

/// The sockets at a port of 127.0.0.1: state, bytes to send and bytes received. proc(5), `net/tcp`.
fn queues(port: u16) -> Vec<(String, usize, usize)> {
    let own = format!("0100007F:{port:04X}");
    let table = fs::read_to_string("/proc/self/net/tcp").expect("proc(5) is mounted");
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let queued = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (sending, received) = fields.get(4)?.split_once(':')?;
        let row = (fields.get(3)?.to_string(), number(sending)?, number(received)?);
        (*fields.get(1)? == own).then_some(row)
    };
    table.lines().filter_map(queued).collect()
}

pub(crate) fn timespec(d: Duration) -> Timespec {
    Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() }
}

/// As [`until`], for conditions without a file. It polls.
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

/// The state of the server's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerSide {
    /// The handshake is not complete, or the kernel waits for the first bytes (TCP_DEFER_ACCEPT).
    Handshake,
    /// In the accept queue.
    Queued,
    /// Accepted by a process.
    Accepted,
}

/// Finds the server's end of an IPv4 connection in `/proc/net/tcp`. `None` if it is closed.
pub fn server_side(client: &TcpStream) -> Option<ServerSide> {
    const SYN_RECV: &str = "03";
    let [here, there] = [client.local_addr(), client.peer_addr()].map(|a| a.unwrap().port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| {
        row[1].ends_with(&format!(":{there:04X}")) && row[2].ends_with(&format!(":{here:04X}"))
    })?;
    Some(match (row[3], row[9]) {
        (SYN_RECV, _) => ServerSide::Handshake,
        // A socket that is not accepted yet has no inode.
        (_, "0") => ServerSide::Queued,
        _ => ServerSide::Accepted,
    })
}
