//! The culprit of a failure: what an error says of the server.
//!
//! Every place where a failure may count against a server asks [`blame`] or [`blame_handshake`]. A
//! lack of this process or its system, and a choice of a client, never count as a server's failure.

use std::{fmt, io};

use rustix::io::Errno;
use weir_engine::{NoSlot, Unbound};
use weir_log::{Cause, Level};
use weir_tls::{HandshakeError, failed_call};

use crate::{Failure, Peer, PeerAddress};

/// The culprit when a server cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// Ours, or the client's. Asking another server would fail as well.
    Us,
    /// The server's, if [`Failure::counts`]; another server may be tried.
    Peer(Failure),
}

impl Blame {
    /// It is a failure of the server.
    pub fn counts(self) -> bool {
        matches!(self, Blame::Peer(failure) if failure.counts())
    }
}

/// The culprit of an operation's error.
pub fn blame(error: &io::Error) -> Blame {
    match () {
        () if is_late(error) => Blame::Peer(Failure::Timeout),
        () if is_ours(error) => Blame::Us,
        () if is_without_way(error) => Blame::Peer(Failure::Unreachable),
        () => Blame::Peer(Failure::Error),
    }
}

/// The culprit of a failed handshake. `chosen`: the request or session itself chose the server's
/// name, so the server may rightly refuse it.
pub fn blame_handshake(error: &HandshakeError, chosen: bool) -> Blame {
    match error {
        HandshakeError::Io(error) => blame(error),
        HandshakeError::TimedOut => Blame::Peer(Failure::Timeout),
        error if error.is_ours() => Blame::Us,
        error if chosen && error.is_refusal() => Blame::Peer(Failure::Unreachable),
        HandshakeError::Silent | HandshakeError::Closed | HandshakeError::Tls(_) => {
            Blame::Peer(Failure::Error)
        }
    }
}

/// This process or its system lacks something, descriptors, memory or watches, or the address that it is to speak from; or
/// what the client sent is too long for a datagram. Asking another server takes the same.
fn is_ours(error: &io::Error) -> bool {
    if unbound(error).is_some() || no_slot(error).is_some() {
        return true;
    }
    let lacking = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::NOBUFS,
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::MSGSIZE,
    ];
    Errno::from_io_error(error).is_some_and(|errno| lacking.contains(&errno))
}

/// There is no free port, no address of our own, or no such kind of address for this server; there may be one for another.
fn is_without_way(error: &io::Error) -> bool {
    let ways = [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL, Errno::AFNOSUPPORT];
    Errno::from_io_error(error).is_some_and(|errno| ways.contains(&errno))
}

/// A failed operation: its line in the log, and the culprit.
#[derive(Debug)]
pub struct FailedOperation {
    /// The line's level.
    pub level: Level,
    /// The line.
    pub text: String,
    /// The culprit.
    pub blame: Blame,
    /// The system's error number, if a system call failed.
    pub errno: Option<i32>,
}

const CONNECTING: &str = "while connecting to upstream";
const SECURING: &str = "while SSL handshaking to upstream";

/// What the log says of a call that failed on a connection, or of a record of TLS there.
pub fn failed(call: &str, error: &io::Error) -> String {
    format!("{} failed {}", failed_call(call, error), Cause(error))
}

/// The system call `call` failed, or took too long; `doing` is what it was for.
pub fn operation(call: &str, error: &io::Error, doing: &str) -> FailedOperation {
    let blame = blame(error);
    let (level, what) = if is_late(error) {
        (Level::Error, format!("upstream timed out {}", Cause(&late())))
    } else if let Some(Unbound { local, errno }) = unbound(error) {
        (Level::Crit, format!("bind({local}) failed {}", Cause(&(*errno).into())))
    } else if let Some(no_slot) = no_slot(error) {
        (Level::Alert, no_slot.to_string())
    } else {
        let level = if blame == Blame::Us { Level::Alert } else { Level::Error };
        (level, failed(call, error))
    };
    let errno = error.raw_os_error();
    FailedOperation { level, text: format!("{what} {doing}"), blame, errno }
}

/// There is no connection to `peer`.
pub fn connecting(peer: &Peer, error: &io::Error) -> FailedOperation {
    // What is lacking here is lacking for the socket.
    let call = if blame(error) == Blame::Us { "socket()" } else { "connect()" };
    let failed = operation(call, error, CONNECTING);
    if error.raw_os_error().is_none() || failed.blame == Blame::Us {
        return failed;
    }
    // What fails at once nginx names; most of TCP fails later, where it does not.
    let to = if is_at_once(&peer.endpoint, error) {
        format!(" to {}", peer.name)
    } else {
        String::new()
    };
    let level = if is_usual(error) { Level::Error } else { Level::Crit };
    FailedOperation {
        level,
        text: format!("connect(){to} failed {} {CONNECTING}", Cause(error)),
        ..failed
    }
}

/// The call to connect failed itself: nothing was sent. A route may be missing, or forbidden.
fn is_at_once(endpoint: &PeerAddress, error: &io::Error) -> bool {
    let of_call = [Errno::NETUNREACH, Errno::ACCESS, Errno::PERM, Errno::INVAL];
    let by_call = || Errno::from_io_error(error).is_some_and(|errno| of_call.contains(&errno));
    matches!(endpoint, PeerAddress::Unix(_)) || by_call()
}

/// The means of a handshake could not be had, such as a certificate with variables.
pub fn unsecured(why: impl fmt::Display) -> FailedOperation {
    let text = format!("{why} {CONNECTING}");
    FailedOperation { level: Level::Error, text, blame: Blame::Us, errno: None }
}

/// The handshake failed; `chosen` as in [`blame_handshake`].
pub fn securing(error: &HandshakeError, chosen: bool) -> FailedOperation {
    let what = match error {
        HandshakeError::TimedOut => format!("upstream timed out {}", Cause(&late())),
        HandshakeError::Io(error) => format!("{} {}", HandshakeError::Closed, Cause(error)),
        error => error.to_string(),
    };
    let blame = blame_handshake(error, chosen);
    FailedOperation { level: Level::Error, text: format!("{what} {SECURING}"), blame, errno: None }
}

/// The address that was to be spoken from, where that cannot be had.
fn unbound(error: &io::Error) -> Option<&Unbound> {
    error.get_ref()?.downcast_ref()
}

/// `worker_connections`, where they are not enough for a connection to a server.
fn no_slot(error: &io::Error) -> Option<&NoSlot> {
    error.get_ref()?.downcast_ref()
}

/// The kernel reports no more than a missing peer. EAGAIN comes from a Unix socket with a full
/// queue.
pub fn is_usual(error: &io::Error) -> bool {
    let usual = [
        Errno::CONNRESET,
        Errno::NOTCONN,
        Errno::TIMEDOUT,
        Errno::CONNREFUSED,
        Errno::NETDOWN,
        Errno::NETUNREACH,
        Errno::HOSTDOWN,
        Errno::HOSTUNREACH,
        Errno::AGAIN,
    ];
    Errno::from_io_error(error).is_some_and(|errno| usual.contains(&errno))
}

/// A deadline of weir's own passed, not one of the kernel's.
pub fn is_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
}

/// ETIMEDOUT: nginx shows it with time-outs of its own.
pub fn late() -> io::Error {
    Errno::TIMEDOUT.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_not_the_kernels() {
        assert!(is_late(&io::ErrorKind::TimedOut.into()));
        assert!(!is_late(&late()) && !is_late(&io::ErrorKind::InvalidData.into()));
    }

    #[test]
    fn what_is_lacking_here_is_never_the_servers() {
        let of = |errno: Errno| blame(&errno.into());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::NOSPC] {
            assert_eq!(of(errno), Blame::Us, "{errno:?}");
        }
        assert_eq!(of(Errno::MSGSIZE), Blame::Us);
        for errno in [Errno::ADDRNOTAVAIL, Errno::ADDRINUSE, Errno::AFNOSUPPORT] {
            assert_eq!(of(errno), Blame::Peer(Failure::Unreachable), "{errno:?}");
        }
        assert!(!Blame::Us.counts() && !Blame::Peer(Failure::Unreachable).counts());
        for errno in [Errno::CONNREFUSED, Errno::CONNRESET, Errno::TIMEDOUT, Errno::PIPE] {
            assert_eq!(of(errno), Blame::Peer(Failure::Error), "{errno:?}");
        }
        assert_eq!(blame(&io::ErrorKind::InvalidData.into()), Blame::Peer(Failure::Error));
        assert_eq!(blame(&io::ErrorKind::TimedOut.into()), Blame::Peer(Failure::Timeout));
        assert!(is_usual(&Errno::CONNREFUSED.into()) && !is_usual(&Errno::NOENT.into()));
    }

    #[test]
    fn a_connection_that_fails_at_once_is_named() {
        let endpoint = PeerAddress::Inet(([192, 0, 2, 1], 80).into());
        let peer = Peer::new(endpoint, "192.0.2.1:80".to_owned(), crate::PeerOptions::default());
        let text = |errno: Errno| connecting(&peer, &errno.into()).text;
        let begins = "connect() to 192.0.2.1:80 failed (101: Network is unreachable)";
        assert!(text(Errno::NETUNREACH).starts_with(begins));
        assert!(text(Errno::CONNREFUSED).starts_with("connect() failed (111: "));
    }
}
