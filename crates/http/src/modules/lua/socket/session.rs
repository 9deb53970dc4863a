//! The connection of a session's client, which a script has for as long as it runs.

use std::rc::Rc;
use std::time::Duration;

use weir_engine::{Either, Handle, either};
use weir_tls::Wire;

use super::{Carrying, Pattern, Received, Socket, SocketError};

impl Socket {
    /// The connection, from which these bytes have come already.
    pub fn of_session(
        wire: Rc<Wire>,
        unread: Vec<u8>,
        times: (Duration, Duration, Duration),
    ) -> Socket {
        Socket::carried(Carrying::Session(wire), unread, times)
    }

    /// Looks at the first bytes without taking them.
    pub async fn peek(&self, handle: &Handle, size: usize, limit: Duration) -> Received {
        let pattern = Pattern::Peek(size);
        match either(self.receive(handle, &pattern), handle.sleep(limit)).await {
            Either::Left(received) => received,
            Either::Right(()) => Err((SocketError::Timeout, Vec::new())),
        }
    }

    /// Ends the direction to the client; false if it has ended before.
    pub fn shut_down(&self) -> bool {
        let line = self.line.borrow().clone().filter(|line| !line.write_closed.replace(true));
        line.is_some_and(|line| line.wire.shutdown_write().is_ok())
    }

    /// The script gives the connection back: what came and was not received, and how many bytes came and were sent.
    pub fn give_back(&self) -> (Vec<u8>, u64, u64) {
        let line = self.line.take();
        let unread = line.map(|line| line.unread.take()).unwrap_or_default();
        (unread, self.came.take(), self.sent.take())
    }
}
