//! Errors of sockets, in the words of scripts and of the log.

use std::fmt;
use std::io::{self, ErrorKind};

use weir_engine::Unbound;
use weir_log::Cause;

/// The beginnings of TLS errors about an untrusted certificate, and about one for another server.
const VERIFY: &str = "upstream SSL certificate verify error: ";
const MISMATCH: &str = "upstream SSL certificate does not match ";

/// Changes `(18:self-signed certificate)` to `18: self-signed certificate`.
fn spaced(fault: &str) -> String {
    fault.trim_start_matches('(').trim_end_matches(')').replacen(':', ": ", 1)
}

/// An error of a socket, in the words that scripts look for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketError {
    /// The timeout passed.
    Timeout,
    /// There is no connection, or the peer has closed it.
    Closed,
    /// The client has left a request that `lua_check_client_abort` watches.
    Aborted,
    /// Another coroutine uses the socket.
    Busy(&'static str),
    /// The backlog of the pool is full.
    PoolFull,
    /// An error number of the kernel.
    Kernel(i32),
    /// The error of a failed TLS handshake.
    Handshake(String),
    /// Another error.
    Other(String),
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketError::Timeout => f.write_str("timeout"),
            SocketError::Closed => f.write_str("closed"),
            SocketError::Aborted => f.write_str("client aborted"),
            SocketError::PoolFull => f.write_str("too many waiting connect operations"),
            SocketError::Busy("") => f.write_str("socket busy"),
            SocketError::Busy(doing) => write!(f, "socket busy {doing}"),
            SocketError::Handshake(text) => match text.strip_prefix(VERIFY) {
                Some(fault) => f.write_str(&spaced(fault)),
                None if text.starts_with(MISMATCH) => f.write_str("certificate host mismatch"),
                None => f.write_str("handshake failed"),
            },
            SocketError::Kernel(code) => {
                // The kernel's text in lower case, as in lua-nginx-module.
                let error = io::Error::from_raw_os_error(*code);
                f.write_str(&Cause(&error).words().to_ascii_lowercase())
            }
            SocketError::Other(text) => f.write_str(text),
        }
    }
}

impl SocketError {
    /// The log line of a failed operation (`read`, `write`) on a socket of this kind (`tcp`,
    /// `udp`). `None` for errors that scripts cause themselves.
    pub fn in_log(&self, kind: &str, doing: &str) -> Option<String> {
        match self {
            SocketError::Timeout => Some(format!("lua {kind} socket {doing} timed out")),
            SocketError::Kernel(code) => {
                let error = io::Error::from_raw_os_error(*code);
                let call = if doing == "read" { "recv" } else { "send" };
                Some(format!("lua {kind} socket: {call}() failed {}", weir_log::Cause(&error)))
            }
            SocketError::Handshake(text) => Some(match text.strip_prefix(VERIFY) {
                Some(fault) => format!("lua ssl certificate verify error: ({})", spaced(fault)),
                None => match text.strip_prefix(MISMATCH) {
                    Some(name) => format!("lua ssl certificate does not match host {name}"),
                    None => format!("lua ssl handshake: {text}"),
                },
            }),
            _ => None,
        }
    }
}

impl From<io::Error> for SocketError {
    fn from(error: io::Error) -> SocketError {
        let unbound = error.get_ref().and_then(|inner| inner.downcast_ref::<Unbound>());
        if let Some(Unbound { errno, .. }) = unbound {
            return SocketError::Kernel(errno.raw_os_error());
        }
        match (error.kind(), error.raw_os_error()) {
            (ErrorKind::TimedOut, _) => SocketError::Timeout,
            (_, Some(code)) => SocketError::Kernel(code),
            (ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof, None) => SocketError::Closed,
            (_, None) => SocketError::Other(error.to_string()),
        }
    }
}
