//! The client's body as a socket: `ngx.req.socket`.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::{Pattern, Received, SocketError};
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

    /// How long it waits for more.
    pub fn timeout(&self) -> Duration {
        self.timeout.get()
    }

    /// A client may wait for the word to send its body.
    pub async fn begin(&self, r: &mut Request) -> Result<(), SocketError> {
        r.send_continue().await.map_err(|error| failure(&error))
    }

    /// Receives what the pattern wants of what has come. `None` where more is to come first.
    pub fn received(&self, r: &mut Request, pattern: &Pattern) -> Option<Received> {
        let failed = loop {
            let found = pattern.take(&mut self.unread.borrow_mut());
            if let Some(found) = found {
                return Some(Ok(found));
            }
            match r.body_piece_now() {
                Ok(Some(piece)) => self.unread.borrow_mut().extend_from_slice(&piece),
                Ok(None) if !r.body.is_read() => return None,
                Ok(None) if *pattern == Pattern::All => {
                    return Some(Ok((self.unread.take(), true)));
                }
                Ok(None) => break SocketError::Closed,
                Err(error) => break failure(&error),
            }
        };
        Some(Err(self.give_up(failed)))
    }

    /// Why a receive ends before its time, with what came.
    pub fn give_up(&self, failed: SocketError) -> (SocketError, Vec<u8>) {
        self.closed.set(failed != SocketError::Timeout);
        (failed, self.unread.take())
    }

    /// Reads what has come.
    pub async fn more(&self, r: &mut Request) -> Result<(), SocketError> {
        r.more_body().await.map_err(|error| failure(&error))
    }
}

/// The request answers 408 where its own time is over, and other statuses where the body is broken.
fn failure(error: &RequestBodyError) -> SocketError {
    match error.status() {
        408 => SocketError::Timeout,
        _ if error.is_left() => SocketError::Other("client aborted".to_owned()),
        _ => SocketError::Closed,
    }
}
