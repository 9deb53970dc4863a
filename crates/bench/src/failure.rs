//! Every way in which a request can fail, counted apart.

use std::io;

/// Why a request has no complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nobody listens there.
    Refused,
    /// No connection within the time.
    ConnectTimeout,
    /// This machine has no more ports or descriptors: the client is in the way.
    Exhausted,
    /// Any other error while connecting.
    Connect,
    /// The server's certificate leads to no authority, or is for another name.
    Certificate,
    /// The TLS handshake failed otherwise.
    Handshake,
    /// HTTP/2 was asked for, and the server does not speak it.
    NoHttp2,
    /// Sending failed.
    Send,
    /// The connection was reset while the answer was awaited.
    Reset,
    /// The server closed a connection that had served before, without a byte of an answer. That may be a
    /// race that HTTP allows.
    ClosedKept,
    /// The server closed before the answer was complete.
    Closed,
    /// No complete answer within the time.
    Timeout,
    /// What came is not HTTP.
    Malformed,
    /// HTTP/2: the server refused the request before it began with it.
    StreamRefused,
    /// HTTP/2: the server broke one request off.
    StreamReset,
    /// HTTP/2: the server ended the connection with an error.
    GoneAway,
    /// Any other error while receiving.
    Receive,
}

impl Failure {
    /// All of them, in the order of their counters.
    pub const ALL: [Failure; 17] = [
        Failure::Refused,
        Failure::ConnectTimeout,
        Failure::Exhausted,
        Failure::Connect,
        Failure::Certificate,
        Failure::Handshake,
        Failure::NoHttp2,
        Failure::Send,
        Failure::Reset,
        Failure::ClosedKept,
        Failure::Closed,
        Failure::Timeout,
        Failure::Malformed,
        Failure::StreamRefused,
        Failure::StreamReset,
        Failure::GoneAway,
        Failure::Receive,
    ];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Failure::Refused => "refused",
            Failure::ConnectTimeout => "connect_timeout",
            Failure::Exhausted => "local_resources",
            Failure::Connect => "connect",
            Failure::Certificate => "certificate",
            Failure::Handshake => "tls_handshake",
            Failure::NoHttp2 => "no_http2",
            Failure::Send => "send",
            Failure::Reset => "reset",
            Failure::ClosedKept => "closed_kept_connection",
            Failure::Closed => "closed_early",
            Failure::Timeout => "timeout",
            Failure::Malformed => "malformed",
            Failure::StreamRefused => "stream_refused",
            Failure::StreamReset => "stream_reset",
            Failure::GoneAway => "goaway",
            Failure::Receive => "receive",
        }
    }

    /// What it is, for people.
    pub fn text(self) -> &'static str {
        match self {
            Failure::Refused => "connection refused",
            Failure::ConnectTimeout => "no connection in time",
            Failure::Exhausted => "this machine has no more ports or descriptors",
            Failure::Connect => "cannot connect",
            Failure::Certificate => "the server's certificate was not accepted",
            Failure::Handshake => "no TLS handshake",
            Failure::NoHttp2 => "the server does not speak HTTP/2",
            Failure::Send => "cannot send",
            Failure::Reset => "connection reset",
            Failure::ClosedKept => "kept connection closed before an answer",
            Failure::Closed => "closed before the answer was complete",
            Failure::Timeout => "no complete answer in time",
            Failure::Malformed => "the answer is not HTTP",
            Failure::StreamRefused => "request refused (HTTP/2 stream)",
            Failure::StreamReset => "request broken off (HTTP/2 stream)",
            Failure::GoneAway => "connection ended by GOAWAY with an error",
            Failure::Receive => "cannot receive",
        }
    }

    /// There is no connection: whoever tries again at once would spin.
    pub(crate) fn is_of_connecting(self) -> bool {
        use Failure::*;
        matches!(self, Refused | Exhausted | Connect | Certificate | Handshake | NoHttp2)
    }

    /// Of an error while connecting.
    pub(crate) fn of_connect(error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Failure::Refused,
            io::ErrorKind::TimedOut => Failure::ConnectTimeout,
            io::ErrorKind::AddrNotAvailable => Failure::Exhausted,
            _ if is_shortage(error) => Failure::Exhausted,
            _ => Failure::Connect,
        }
    }

    /// Of an error while receiving.
    pub(crate) fn of_receive(error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::ConnectionReset => Failure::Reset,
            io::ErrorKind::TimedOut => Failure::Timeout,
            _ => Failure::Receive,
        }
    }

    /// Of an error while sending.
    pub(crate) fn of_send(error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Failure::Reset,
            io::ErrorKind::TimedOut => Failure::Timeout,
            _ => Failure::Send,
        }
    }
}

fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    error.raw_os_error().is_some_and(|raw| shortages.iter().any(|e| e.raw_os_error() == raw))
}
