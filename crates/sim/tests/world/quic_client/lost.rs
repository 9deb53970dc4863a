//! The end of a QUIC connection: which of its requests are sent again, may fail, or are faults.

use quinn_proto::{ConnectionError, TransportErrorCode};

use super::{ClientAction, NO_ERROR, QuicClient};
use crate::client_request::RequestKind;
use crate::records::Records;

impl QuicClient {
    /// Handles the end of the connection.
    pub(super) fn lost(&mut self, reason: ConnectionError, records: &mut Records) {
        let streams = std::mem::take(&mut self.streams);
        self.readable.clear();
        self.actions
            .retain(|(_, act)| !matches!(act, ClientAction::Read | ClientAction::Finish(_)));
        let (mut kind, mut again) = ("lost", false);
        let excused = self.worker_maybe_killed || self.path.is_lossy();
        match &reason {
            ConnectionError::ApplicationClosed(close) => {
                kind = "closed";
                again = close.error_code.into_inner() == NO_ERROR;
                if !again {
                    records.report(format!("a server closed with {close}"));
                }
            }
            ConnectionError::TimedOut => {
                kind = "timed out";
                again = excused;
            }
            ConnectionError::LocallyClosed => {}
            // The close was lost on the network, or another worker that does not know the
            // connection answered with a reset.
            ConnectionError::Reset if excused => again = true,
            // The server closed after its answer, but parts of the answer and of the handshake were
            // lost.
            ConnectionError::ConnectionClosed(close)
                if excused && close.error_code == TransportErrorCode::APPLICATION_ERROR =>
            {
                again = true;
            }
            reason => {
                let (attempt, path) = (self.attempts, self.path);
                records
                    .report(format!("connection {attempt} of a client ended: {reason}; {path:?}"));
            }
        }
        for (id, stream) in streams {
            let refused = self.goaway.is_some_and(|from| u64::from(id) >= from);
            let upload = matches!(stream.request.kind, RequestKind::Upload(_));
            let unserved = again && stream.head.is_none() && !upload;
            if refused || unserved {
                self.unsent.push(stream.request);
            } else if again && upload {
                records.excused += 1;
            } else {
                stream.judge(false, records);
                match again && excused {
                    true => records.excused += 1,
                    false => stream.fails(format!("connection {kind}, {:?}", self.path), records),
                }
            }
        }
    }
}
