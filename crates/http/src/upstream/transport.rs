//! The transport of a request and its answer: a connection or a stream.

use std::io;
use std::time::Instant;

use rustix::io::Errno;
use weir_upstream::Connection;
use weir_upstream::reply::Incoming;

use super::http2::{Sender, Stream};
use crate::answer::headers::Headers;
use crate::request::Request;
use crate::request::passed::Attempt;

/// A connection, or a stream of one.
pub enum Transport {
    /// A connection that the request has alone until the answer is complete.
    Own(Box<Connection>),
    /// A stream of a multiplexed connection.
    Stream(Stream),
}

/// Bytes of a stream so far, with their frames.
#[derive(Debug)]
pub struct StreamCounts {
    received: u64,
    sent: u64,
}

impl StreamCounts {
    /// Sets the numbers of the attempt.
    pub fn tell(&self, attempt: &mut Attempt) {
        (attempt.received, attempt.sent) = (self.received, self.sent);
    }
}

impl Transport {
    /// Sets the time at which waiting fails.
    pub fn set_deadline(&self, at: Option<Instant>) {
        match self {
            Transport::Own(connection) => connection.stream.set_deadline(at),
            Transport::Stream(stream) => stream.set_deadline(at),
        }
    }

    /// Whether nothing follows the head of the answer, as far as is known.
    pub fn is_bare(&self) -> bool {
        match self {
            Transport::Own(_) => false,
            Transport::Stream(stream) => stream.is_bare(),
        }
    }

    /// Sets the attempt's byte counts from a stream's frames. A connection's bytes are counted
    /// elsewhere.
    pub fn count(&self, r: &mut Request) {
        if let (Some(counts), Some(attempt)) = (self.counted(), r.contexts.upstream.attempt()) {
            counts.tell(attempt);
        }
    }

    /// The byte counts of a stream.
    pub fn counted(&self) -> Option<StreamCounts> {
        match self {
            Transport::Own(_) => None,
            Transport::Stream(stream) => {
                Some(StreamCounts { received: stream.received(), sent: stream.sent() })
            }
        }
    }

    /// Waits until there are data or the end of them.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Transport::Own(connection) => connection.stream.readable().await,
            Transport::Stream(stream) => stream.readable().await,
        }
    }

    /// Receives available data; 0 at the end, `None` if there are none yet.
    #[expect(clippy::disallowed_methods, reason = "a server's bytes")]
    pub fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        match self {
            Transport::Own(connection) => match connection.stream.try_recv(buf) {
                Ok(Some(0)) if connection.is_broken.get() => Err(Errno::CONNRESET.into()),
                received => received,
            },
            Transport::Stream(stream) => stream.try_recv(buf),
        }
    }

    /// Waits until the server begins to answer. Over HTTP/1, the answer is read before more is
    /// sent, since a server that has not read the whole request may close. There is no deadline:
    /// the client's timeouts apply while it sends.
    pub async fn answered(&self) {
        match self {
            Transport::Own(connection) => {
                let _ = connection.stream.arrived().await;
            }
            Transport::Stream(stream) => stream.answered().await,
        }
    }

    /// The sender for the rest of a request during its answer.
    pub fn sender(&self) -> Option<Sender> {
        match self {
            Transport::Own(_) => None,
            Transport::Stream(stream) => Some(stream.sender()),
        }
    }

    /// Adds the trailers of a stream.
    pub fn trailers(&self, out: &mut Headers) {
        if let Transport::Stream(stream) = self {
            stream.trailers(out);
        }
    }

    /// The connection, if it is the request's own.
    pub fn into_own(self) -> Option<Box<Connection>> {
        match self {
            Transport::Own(connection) => Some(connection),
            Transport::Stream(_) => None,
        }
    }
}

impl Incoming for Transport {
    async fn readable(&self) -> io::Result<()> {
        Transport::readable(self).await
    }

    fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        Transport::try_recv(self, buf)
    }
}
