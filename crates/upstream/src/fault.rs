//! The culprit of a failure.
//!
//! Every place where a failure may count against a server asks [`blame`] or [`blame_handshake`].
//! Resources that this process or its system lacks, and names that a client chose, never count
//! against a server.

use std::{fmt, io};

use rustix::io::Errno;
use weir_engine::{NoSlot, Unbound};
use weir_log::{Cause, Level};
use weir_tls::{HandshakeError, failed_call};

use crate::{Failure, Peer, PeerAddress};

/// The culprit when a server cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// This process, its system or the client. Another server would fail as well.
    Us,
    /// The server, if [`Failure::counts`]. Another server may be tried.
    Peer(Failure),
}

impl Blame {
    /// Whether the failure counts against the server.
    pub fn counts(self) -> bool {
        matches!(self, Blame::Peer(failure) if failure.counts())
    }
}

/// The culprit of an operation's error.
pub fn blame(error: &io::Error) -> Blame {
    match () {
        () if is_late(error) => Blame::Peer(Failure::Timeout),
        () if is_ours(error) => Blame::Us,
        () if has_no_route(error) => Blame::Peer(Failure::Unreachable),
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

/// Whether the failure would be the same with any server: descriptors, memory, watches or the local
/// address are lacking, or the client's datagram is too long.
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

/// Whether there is no local port, local address or address family for this server. There may be
/// one for another server.
fn has_no_route(error: &io::Error) -> bool {
    let ways = [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL, Errno::AFNOSUPPORT];
    Errno::from_io_error(error).is_some_and(|errno| ways.contains(&errno))
}

/// A failed operation: its line in the log, and the culprit.
#[derive(Debug)]
pub struct FailedOperation {
    /// The level of the log line.
    pub level: Level,
    /// The log line.
    pub text: String,
    /// The culprit.
    pub blame: Blame,
    /// The system's error number, if a system call failed.
    pub errno: Option<i32>,
}

const CONNECTING: &str = "while connecting to upstream";
const SECURING: &str = "while SSL handshaking to upstream";

/// The log text for a system call that failed on a connection, or a TLS record that could not be
/// read or written.
pub fn failed(call: &str, error: &io::Error) -> String {
    format!("{} failed {}", failed_call(call, error), Cause(error))
}

/// Describes a system call that failed or timed out. `doing` is its purpose, in words of the log.
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

/// Describes a failed connection to `peer`.
pub fn connecting(peer: &Peer, error: &io::Error) -> FailedOperation {
    // A lack of local resources fails socket(), not connect().
    let call = if blame(error) == Blame::Us { "socket()" } else { "connect()" };
    let failed = operation(call, error, CONNECTING);
    if error.raw_os_error().is_none() || failed.blame == Blame::Us {
        return failed;
    }
    // As in nginx, the line names the peer if connect() itself failed. Most TCP connections fail
    // later.
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

/// Whether connect() itself failed, so that nothing was sent: a route is missing or forbidden.
fn is_at_once(endpoint: &PeerAddress, error: &io::Error) -> bool {
    let of_call = [Errno::NETUNREACH, Errno::ACCESS, Errno::PERM, Errno::INVAL];
    let by_call = || Errno::from_io_error(error).is_some_and(|errno| of_call.contains(&errno));
    matches!(endpoint, PeerAddress::Unix(_)) || by_call()
}

/// Describes a handshake that could not begin, for example without the certificate that a variable
/// names.
pub fn unsecured(why: impl fmt::Display) -> FailedOperation {
    let text = format!("{why} {CONNECTING}");
    FailedOperation { level: Level::Error, text, blame: Blame::Us, errno: None }
}

/// Describes a failed handshake; `chosen` as in [`blame_handshake`].
pub fn securing(error: &HandshakeError, chosen: bool) -> FailedOperation {
    let what = match error {
        HandshakeError::TimedOut => format!("upstream timed out {}", Cause(&late())),
        HandshakeError::Io(error) => format!("{} {}", HandshakeError::Closed, Cause(error)),
        error => error.to_string(),
    };
    let blame = blame_handshake(error, chosen);
    FailedOperation { level: Level::Error, text: format!("{what} {SECURING}"), blame, errno: None }
}

/// The local address, if the socket could not be bound to it.
fn unbound(error: &io::Error) -> Option<&Unbound> {
    error.get_ref()?.downcast_ref()
}

/// The error if `worker_connections` leaves no slot for the connection.
fn no_slot(error: &io::Error) -> Option<&NoSlot> {
    error.get_ref()?.downcast_ref()
}

/// Whether the error says only that the peer is away. nginx: ngx_connection_error. EAGAIN comes
/// from a Unix socket with a full queue.
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

/// Whether a deadline of weir passed, not one of the kernel.
pub fn is_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
}

/// ETIMEDOUT, which nginx logs for its own timeouts, too.
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
