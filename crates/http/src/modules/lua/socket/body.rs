//! The client's body as a socket: `ngx.req.socket`.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use weir_engine::{Either, either};

use super::{Pattern, SocketError};
use crate::body::RequestBodyError;
use crate::request::Request;

/// What a script reads the client's body from.
pub struct BodySocket {
    /// What came and was not received yet.
    unread: RefCell<Vec<u8>>,
    timeout: Cell<Duration>,
    /// The script got the end of the body, or an error.
    closed: Cell<bool>,
}

impl BodySocket {
    /// One that waits so long for more of the body.
    pub fn new(timeout: Duration) -> BodySocket {
        BodySocket {
            unread: RefCell::default(),
            timeout: Cell::new(timeout),
            closed: Cell::default(),
        }
    }

    /// Another time than the configuration's.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    /// The request has ended, and its body with it.
    pub fn end(&self) {
        self.closed.set(true);
        self.unread.take();
    }

    /// Whether there may be more to receive.
    pub fn is_open(&self) -> bool {
        !self.closed.get()
    }

    /// Receives what the pattern wants, and whether its mark was reached; or why not, with what came.
    pub async fn receive(
        &self,
        r: &mut Request,
        pattern: &Pattern,
    ) -> Result<(Vec<u8>, bool), (SocketError, Vec<u8>)> {
        let failed = loop {
            let found = pattern.take(&mut self.unread.borrow_mut());
            if let Some(found) = found {
                return Ok(found);
            }
            match self.more(r).await {
                Ok(true) => {}
                Ok(false) if *pattern == Pattern::All => return Ok((self.unread.take(), true)),
                Ok(false) => break SocketError::Closed,
                Err(failed) => break failed,
            }
        };
        self.closed.set(failed != SocketError::Timeout);
        Err((failed, self.unread.take()))
    }

    /// Reads the next piece of the body; false at its end.
    async fn more(&self, r: &mut Request) -> Result<bool, SocketError> {
        // The request answers 408 where its own time is over, and other statuses where the body is broken.
        let failure = |error: RequestBodyError| match error.status() {
            408 => SocketError::Timeout,
            _ if error.is_left() => SocketError::Other("client aborted".to_owned()),
            _ => SocketError::Closed,
        };
        r.send_continue().await.map_err(failure)?;
        loop {
            if let Some(piece) = r.body_piece_now().map_err(failure)? {
                self.unread.borrow_mut().extend_from_slice(&piece);
                return Ok(true);
            }
            if r.body.is_read() {
                return Ok(false);
            }
            let limit = r.event_loop.handle.sleep(self.timeout.get());
            match either(r.body_readable(), limit).await {
                Either::Left(()) => r.more_body().await.map_err(failure)?,
                Either::Right(()) => return Err(SocketError::Timeout),
            }
        }
    }
}
