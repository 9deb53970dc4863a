//! Why a stream, or a whole connection, ended early.

use std::io;

use weir_log::Cause;
use weir_upstream::Failure;
use weir_upstream::fault::{failed, late};

use crate::upstream::fault::Complaint;

/// Why a stream ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// An error number of the system.
    Code(i32),
    /// The server did not accept data in time.
    TimedOut,
    /// The text for the log, and how the attempt failed.
    Said(String, Failure),
}

impl Ending {
    /// The server broke the protocol.
    pub fn invalid(text: impl Into<String>) -> Ending {
        Ending::Said(text.into(), Failure::InvalidHeader)
    }

    /// Whether the connection ended, without an error on the stream itself.
    pub fn is_of_connection(&self) -> bool {
        !matches!(self, Ending::Said(_, Failure::InvalidHeader | Failure::Refused))
    }

    /// The ending for another stream of the connection, which did not cause it.
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

    /// The ending as the error of a read.
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
