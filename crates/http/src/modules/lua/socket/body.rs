//! The client's body as a socket: `ngx.req.socket`.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use super::{Pattern, Received, Searched, SocketError};
use crate::body::RequestBodyError;
use crate::carrier::Conn;
use crate::request::Request;

/// The socket from which a script reads the request's body.
pub struct BodySocket {
    /// Bytes of the body that were not received yet.
    unread: RefCell<Vec<u8>>,
    timeout: Cell<Duration>,
    /// The client's connection, if the request does not share it.
    conn: RefCell<Option<Rc<Conn>>>,
    /// Whether the script got the end of the body, or an error.
    closed: Cell<bool>,
}

impl BodySocket {
    /// A socket with this timeout for more of the body, on a connection unless that is shared.
    pub fn new(timeout: Duration, conn: Option<Rc<Conn>>) -> BodySocket {
        BodySocket {
            unread: RefCell::default(),
            timeout: Cell::new(timeout),
            conn: RefCell::new(conn),
            closed: Cell::default(),
        }
    }

    /// Replaces the configuration's timeout.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    /// The request has ended.
    pub fn end(&self) {
        self.closed.set(true);
        self.unread.take();
        self.conn.take();
    }

    /// Calls `f` with the descriptor of the client's connection.
    #[expect(clippy::disallowed_methods, reason = "options of the socket alone")]
    pub fn with_descriptor<T>(
        &self,
        f: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let conn = self.conn.borrow();
        let conn = conn.as_ref().ok_or(ErrorKind::NotConnected)?;
        f(conn.wire().socket().as_fd())
    }

    /// Whether more may be received.
    pub fn is_open(&self) -> bool {
        !self.closed.get()
    }

    /// The timeout for more of the body.
    pub fn timeout(&self) -> Duration {
        self.timeout.get()
    }

    /// Sends `100 Continue` if the client waits for it.
    pub async fn begin(&self, r: &mut Request) -> Result<(), SocketError> {
        r.send_continue().await.map_err(|error| failure(&error))
    }

    /// Receives what the pattern asks for. `None` if more of the body must arrive first.
    pub fn received(
        &self,
        r: &mut Request,
        pattern: &Pattern,
        searched: &mut Searched,
    ) -> Option<Received> {
        let failed = loop {
            let found = pattern.take(&mut self.unread.borrow_mut(), searched);
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
        Some(Err(self.give_up(pattern, failed)))
    }

    /// The failure of a receive, with the bytes received before it.
    pub fn give_up(&self, pattern: &Pattern, failed: SocketError) -> (SocketError, Vec<u8>) {
        self.closed.set(failed != SocketError::Timeout);
        (failed, pattern.shown(self.unread.take()))
    }

    /// Reads the next part of the body that has arrived.
    pub async fn more(&self, r: &mut Request) -> Result<(), SocketError> {
        r.more_body().await.map_err(|error| failure(&error))
    }
}

/// The socket error for an error of the body. A timeout of the request has status 408.
fn failure(error: &RequestBodyError) -> SocketError {
    match error.status() {
        408 => SocketError::Timeout,
        _ if error.is_left() => SocketError::Aborted,
        _ => SocketError::Closed,
    }
}
