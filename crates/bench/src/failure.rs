//! The ways in which a request can fail. Each is counted.

use std::io;

/// Why a request has no complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFailure {
    /// The connection was refused: no server listens there.
    Refused,
    /// No connection within the timeout.
    ConnectTimeout,
    /// This machine has no more ports, descriptors or memory. The client is the bottleneck.
    Exhausted,
    /// Any other error of connecting.
    Connect,
    /// The server's certificate is not trusted, or is for another name.
    Certificate,
    /// Any other failure of the TLS handshake.
    Handshake,
    /// HTTP/2 was requested, and the server does not support it.
    NoHttp2,
    /// HTTP/3 was requested, and the server does not support it.
    NoHttp3,
    /// Sending failed.
    Send,
    /// The connection was reset before the response was complete.
    Reset,
    /// The server closed a reused connection before the first byte of a response. HTTP allows this
    /// race.
    ClosedKept,
    /// The server closed the connection before the response was complete.
    Closed,
    /// No complete response within the timeout.
    Timeout,
    /// The response is not valid HTTP.
    Malformed,
    /// HTTP/2 and HTTP/3: the server refused the request before processing it.
    StreamRefused,
    /// HTTP/2 and HTTP/3: the server reset the stream of the request.
    StreamReset,
    /// HTTP/2 and HTTP/3: the server ended the connection with an error.
    GoneAway,
    /// Any other error of receiving.
    Receive,
}

impl RequestFailure {
    /// All failures, in the order of their counters.
    pub const ALL: [RequestFailure; 18] = [
        RequestFailure::Refused,
        RequestFailure::ConnectTimeout,
        RequestFailure::Exhausted,
        RequestFailure::Connect,
        RequestFailure::Certificate,
        RequestFailure::Handshake,
        RequestFailure::NoHttp2,
        RequestFailure::NoHttp3,
        RequestFailure::Send,
        RequestFailure::Reset,
        RequestFailure::ClosedKept,
        RequestFailure::Closed,
        RequestFailure::Timeout,
        RequestFailure::Malformed,
        RequestFailure::StreamRefused,
        RequestFailure::StreamReset,
        RequestFailure::GoneAway,
        RequestFailure::Receive,
    ];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            RequestFailure::Refused => "refused",
            RequestFailure::ConnectTimeout => "connect_timeout",
            RequestFailure::Exhausted => "local_resources",
            RequestFailure::Connect => "connect",
            RequestFailure::Certificate => "certificate",
            RequestFailure::Handshake => "tls_handshake",
            RequestFailure::NoHttp2 => "no_http2",
            RequestFailure::NoHttp3 => "no_http3",
            RequestFailure::Send => "send",
            RequestFailure::Reset => "reset",
            RequestFailure::ClosedKept => "closed_kept_connection",
            RequestFailure::Closed => "closed_early",
            RequestFailure::Timeout => "timeout",
            RequestFailure::Malformed => "malformed",
            RequestFailure::StreamRefused => "stream_refused",
            RequestFailure::StreamReset => "stream_reset",
            RequestFailure::GoneAway => "goaway",
            RequestFailure::Receive => "receive",
        }
    }

    /// The text of the report.
    pub fn text(self) -> &'static str {
        match self {
            RequestFailure::Refused => "connection refused",
            RequestFailure::ConnectTimeout => "no connection in time",
            RequestFailure::Exhausted => "this machine has no more ports or descriptors",
            RequestFailure::Connect => "cannot connect",
            RequestFailure::Certificate => "the server's certificate was not accepted",
            RequestFailure::Handshake => "no TLS handshake",
            RequestFailure::NoHttp2 => "the server does not speak HTTP/2",
            RequestFailure::NoHttp3 => "the server does not speak HTTP/3",
            RequestFailure::Send => "cannot send",
            RequestFailure::Reset => "connection reset",
            RequestFailure::ClosedKept => "kept connection closed before an answer",
            RequestFailure::Closed => "closed before the answer was complete",
            RequestFailure::Timeout => "no complete answer in time",
            RequestFailure::Malformed => "the answer is not HTTP",
            RequestFailure::StreamRefused => "request refused (stream)",
            RequestFailure::StreamReset => "request broken off (stream)",
            RequestFailure::GoneAway => "connection ended by GOAWAY with an error",
            RequestFailure::Receive => "cannot receive",
        }
    }

    /// Whether no connection was made. A client that retries at once would spin.
    pub(crate) fn is_of_connecting(self) -> bool {
        use RequestFailure::*;
        matches!(self, Refused | Exhausted | Connect | Certificate | Handshake | NoHttp2 | NoHttp3)
    }

    /// The failure for an error of connecting.
    pub(crate) fn of_connect(error: &io::Error) -> RequestFailure {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => RequestFailure::Refused,
            io::ErrorKind::TimedOut => RequestFailure::ConnectTimeout,
            io::ErrorKind::AddrNotAvailable => RequestFailure::Exhausted,
            _ if is_shortage(error) => RequestFailure::Exhausted,
            _ => RequestFailure::Connect,
        }
    }

    /// The failure for an error of receiving.
    pub(crate) fn of_receive(error: &io::Error) -> RequestFailure {
        match error.kind() {
            io::ErrorKind::ConnectionReset => RequestFailure::Reset,
            io::ErrorKind::TimedOut => RequestFailure::Timeout,
            _ => RequestFailure::Receive,
        }
    }

    /// The failure for an error of sending.
    pub(crate) fn of_send(error: &io::Error) -> RequestFailure {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => RequestFailure::Reset,
            io::ErrorKind::TimedOut => RequestFailure::Timeout,
            _ => RequestFailure::Send,
        }
    }
}

fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    error.raw_os_error().is_some_and(|raw| shortages.iter().any(|e| e.raw_os_error() == raw))
}
