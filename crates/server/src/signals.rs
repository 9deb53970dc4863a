//! The signals that the server handles, and the log lines about them.

use std::io;

use weir_log::{Log, log};
use weir_sys::signal::{Arrived, SignalSet, ignore, restore};

/// The number and name of each signal.
const NAMES: [(i32, &str); 11] = [
    (libc::SIGHUP, "SIGHUP"),
    (libc::SIGUSR1, "SIGUSR1"),
    (libc::SIGWINCH, "SIGWINCH"),
    (libc::SIGTERM, "SIGTERM"),
    (libc::SIGQUIT, "SIGQUIT"),
    (libc::SIGUSR2, "SIGUSR2"),
    (libc::SIGINT, "SIGINT"),
    (libc::SIGCHLD, "SIGCHLD"),
    (libc::SIGALRM, "SIGALRM"),
    (libc::SIGIO, "SIGIO"),
    (libc::SIGSYS, "SIGSYS"),
];

/// What a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// HUP: read the configuration again.
    Reconfigure,
    /// USR1: reopen the log files.
    Reopen,
    /// WINCH: finish the workers, keep the master.
    StopAccepting,
    /// TERM, INT: end at once.
    Terminate,
    /// QUIT: finish the requests and end.
    Quit,
    /// USR2: start the new program on the same sockets.
    ChangeBinary,
    /// CHLD: a child has ended or stopped.
    Reap,
    /// ALRM, IO, SYS: ignored. Their default action would end the process.
    Nothing,
}

/// All of these signals.
pub fn set() -> SignalSet {
    SignalSet::new(&NAMES.map(|(number, _)| number))
}

/// Blocks all signals, so that they stay pending until they are read. Restores the default action
/// of SIGCHLD, in case the parent process ignores it. With SIGXFSZ ignored, a file at its size
/// limit (RLIMIT_FSIZE) makes a write fail instead of ending the process.
pub fn prepare() -> io::Result<()> {
    set().block()?;
    ignore(libc::SIGXFSZ)?;
    restore(libc::SIGCHLD)
}

/// What the signal requests.
pub fn request(number: i32) -> Option<SignalRequest> {
    Some(match number {
        libc::SIGHUP => SignalRequest::Reconfigure,
        libc::SIGUSR1 => SignalRequest::Reopen,
        libc::SIGWINCH => SignalRequest::StopAccepting,
        libc::SIGTERM | libc::SIGINT => SignalRequest::Terminate,
        libc::SIGQUIT => SignalRequest::Quit,
        libc::SIGUSR2 => SignalRequest::ChangeBinary,
        libc::SIGCHLD => SignalRequest::Reap,
        libc::SIGALRM | libc::SIGIO | libc::SIGSYS => SignalRequest::Nothing,
        _ => return None,
    })
}

/// Logs that USR2 has no effect, in nginx's words.
pub fn refuse_change(log: &Log) {
    log!(
        log,
        Crit,
        None,
        "the changing binary signal is ignored: you should shutdown or terminate before either old or \
         new binary's process"
    );
}

/// Logs an arrived signal in nginx's words. `action` is empty or begins with a comma.
pub fn log_arrival(arrived: Arrived, action: &str, log: &Log) {
    let Arrived { number, sender } = arrived;
    let name = NAMES.iter().find(|(n, _)| *n == number).map_or("unknown", |(_, name)| name);
    if sender == 0 {
        log!(log, Notice, None, "signal {number} ({name}) received{action}");
    } else {
        log!(log, Notice, None, "signal {number} ({name}) received from {sender}{action}");
    }
}
