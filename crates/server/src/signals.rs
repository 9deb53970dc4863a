//! The signals that the server understands, and what it says of them.

use std::io;

use weir_log::{Log, log};
use weir_sys::signal::{Arrived, SignalSet, ignore, restore};

/// Number and name of each.
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

/// What a signal asks of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// HUP: take the configuration anew.
    Reconfigure,
    /// USR1: open the log files anew.
    Reopen,
    /// WINCH: finish the workers, keep the master.
    StopAccepting,
    /// TERM, INT: end at once.
    Terminate,
    /// QUIT: finish the requests and end.
    Quit,
    /// USR2: start a new program on the same sockets.
    ChangeBinary,
    /// CHLD: a child has ended.
    Reap,
    /// ALRM, IO, SYS: nothing. By default they would end the process.
    Nothing,
}

/// All of them as a set.
pub fn set() -> SignalSet {
    SignalSet::new(&NAMES.map(|(number, _)| number))
}

/// Makes all of them wait until they are asked for, and children stay until they are buried,
/// even if the parent process ignores the end of its own. A file at its limit of size (RLIMIT_FSIZE) is an error of the
/// write, not the end of the process.
pub fn prepare() -> io::Result<()> {
    set().block()?;
    ignore(libc::SIGXFSZ)?;
    restore(libc::SIGCHLD)
}

/// What the signal asks for.
pub fn wish(number: i32) -> Option<SignalRequest> {
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

/// Says that USR2 has no effect, in nginx's words.
pub fn refuse_change(log: &Log) {
    log!(
        log,
        Crit,
        None,
        "the changing binary signal is ignored: you should shutdown or terminate before either old or \
         new binary's process"
    );
}

/// Logs nginx's line about an arrived signal; `action` is empty or begins with a comma.
pub fn tell(arrived: Arrived, action: &str, log: &Log) {
    let Arrived { number, sender } = arrived;
    let name = NAMES.iter().find(|(n, _)| *n == number).map_or("unknown", |(_, name)| name);
    if sender == 0 {
        log!(log, Notice, None, "signal {number} ({name}) received{action}");
    } else {
        log!(log, Notice, None, "signal {number} ({name}) received from {sender}{action}");
    }
}
