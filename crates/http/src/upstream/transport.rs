//! What a request goes over to its server, and its answer back.

use std::io;
use std::time::Instant;

use rustix::io::Errno;
use weir_upstream::Connection;
use weir_upstream::reply::Incoming;

use super::http2::{Sender, Stream};
use crate::answer::headers::Headers;
use crate::request::Request;
use crate::request::passed::Attempt;

/// What a request has of a connection.
pub enum Transport {
    /// All of it, until the answer is complete.
    Own(Box<Connection>),
    /// A stream, beside those of others.
    Stream(Stream),
}

/// Bytes of a stream so far, in their frames.
#[derive(Debug)]
pub struct StreamCounts {
    received: u64,
    sent: u64,
}

impl StreamCounts {
    /// Tells the attempt.
    pub fn tell(&self, attempt: &mut Attempt) {
        (attempt.received, attempt.sent) = (self.received, self.sent);
    }
}

impl Transport {
    /// When waiting fails.
    pub fn set_deadline(&self, at: Option<Instant>) {
        match self {
            Transport::Own(connection) => connection.stream.set_deadline(at),
            Transport::Stream(stream) => stream.set_deadline(at),
        }
    }

    /// It is known that nothing follows the head of the answer.
    pub fn is_bare(&self) -> bool {
        match self {
            Transport::Own(_) => false,
            Transport::Stream(stream) => stream.is_bare(),
        }
    }

    /// A stream knows what came and went in its frames, which is counted nowhere else.
    pub fn count(&self, r: &mut Request) {
        if let (Some(counts), Some(attempt)) = (self.counted(), r.contexts.upstream.attempt()) {
            counts.tell(attempt);
        }
    }

    /// What a stream has counted.
    pub fn counted(&self) -> Option<StreamCounts> {
        match self {
            Transport::Own(_) => None,
            Transport::Stream(stream) => {
                Some(StreamCounts { received: stream.received(), sent: stream.sent() })
            }
        }
    }

    /// Waits until there is something to receive, the end included.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Transport::Own(connection) => connection.stream.readable().await,
            Transport::Stream(stream) => stream.readable().await,
        }
    }

    /// Receives what is there; 0 is the end.
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

    /// Waits until the server begins to answer. Over HTTP/1 the answer is looked at before more is sent, since a server
    /// that has not read all of the request may close. It waits without a deadline: as long as the client sends, the
    /// client's times count.
    pub async fn answered(&self) {
        match self {
            Transport::Own(connection) => {
                let _ = connection.stream.arrived().await;
            }
            Transport::Stream(stream) => stream.answered().await,
        }
    }

    /// For a task that sends the rest of a request beside its answer.
    pub fn sender(&self) -> Option<Sender> {
        match self {
            Transport::Own(_) => None,
            Transport::Stream(stream) => Some(stream.sender()),
        }
    }

    /// Trailers that came beside the body.
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
