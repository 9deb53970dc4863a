//! The connection of a session's client, lent to a script while it runs.

use std::rc::Rc;
use std::time::Duration;

use weir_engine::{Either, Handle, either};
use weir_tls::Wire;

use super::{Carrying, Pattern, Received, Socket, SocketError};

impl Socket {
    /// A socket for the client's connection, with bytes that were read from it before.
    pub fn of_session(
        wire: Rc<Wire>,
        unread: Vec<u8>,
        times: (Duration, Duration, Duration),
    ) -> Socket {
        Socket::carried(Carrying::Session(wire), unread, times)
    }

    /// Reads the first bytes without removing them.
    pub async fn peek(&self, handle: &Handle, size: usize, limit: Duration) -> Received {
        let pattern = Pattern::Peek(size);
        match either(self.receive(handle, &pattern), handle.sleep(limit)).await {
            Either::Left(received) => received,
            Either::Right(()) => Err((SocketError::Timeout, Vec::new())),
        }
    }

    /// Shuts the sending direction down. False if that was done before.
    pub fn shut_down(&self) -> bool {
        let connection = self
            .connection
            .borrow()
            .clone()
            .filter(|connection| !connection.write_closed.replace(true));
        connection.is_some_and(|connection| connection.wire.shutdown_write().is_ok())
    }

    /// Returns the connection: the unread bytes, and the numbers of bytes received and sent.
    pub fn give_back(&self) -> (Vec<u8>, u64, u64) {
        let connection = self.connection.take();
        let unread = connection.map(|connection| connection.unread.take()).unwrap_or_default();
        (unread, self.received.take(), self.sent.take())
    }
}
