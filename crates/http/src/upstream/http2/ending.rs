//! Why a stream, or all of a connection, ended before its time.

use std::io;

use weir_log::Cause;
use weir_upstream::Failure;
use weir_upstream::fault::{failed, late};

use crate::upstream::fault::Complaint;

/// Why a stream is of no more use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The system's code.
    Code(i32),
    /// The server took too long to take what it was sent.
    TimedOut,
    /// The words for the log, and how the attempt failed.
    Said(String, Failure),
}

impl Ending {
    /// What the server did is no answer.
    pub fn invalid(text: impl Into<String>) -> Ending {
        Ending::Said(text.into(), Failure::InvalidHeader)
    }

    /// The connection came to its end, and nothing was wrong before.
    pub fn is_of_connection(&self) -> bool {
        !matches!(self, Ending::Said(_, Failure::InvalidHeader | Failure::Refused))
    }

    /// As it is for a stream that only shares the connection with what went wrong.
    pub fn shared(&self, counts: bool) -> Ending {
        let text = match self {
            Ending::Said(text, _) => text.clone(),
            Ending::Code(code) => {
                format!("recv() failed {}", Cause(&io::Error::from_raw_os_error(*code)))
            }
            Ending::TimedOut => format!("upstream timed out {}", Cause(&late())),
        };
        Ending::Said(text, Failure::Lost { counts })
    }

    /// As a read from a socket returns it.
    pub fn error(&self) -> io::Error {
        match self {
            Ending::Code(code) => io::Error::from_raw_os_error(*code),
            Ending::TimedOut => io::ErrorKind::TimedOut.into(),
            Ending::Said(text, failure) => {
                io::Error::other(Complaint { text: text.clone(), failure: *failure })
            }
        }
    }
}

impl From<io::Error> for Ending {
    fn from(error: io::Error) -> Ending {
        match error.raw_os_error() {
            Some(code) => Ending::Code(code),
            None if error.kind() == io::ErrorKind::TimedOut => Ending::TimedOut,
            None => Ending::Said(failed("recv()", &error), Failure::Error),
        }
    }
}
