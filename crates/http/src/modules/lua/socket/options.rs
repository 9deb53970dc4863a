//! Options of a script's connection.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use weir_sys::sockopt::SocketNumber;

use super::Socket;

impl Socket {
    /// An option of the connection.
    pub fn option(&self, option: SocketNumber) -> io::Result<i32> {
        self.with_descriptor(|socket| option.get(socket))
    }

    /// Sets it.
    pub fn set_option(&self, option: SocketNumber, value: i32) -> io::Result<()> {
        self.with_descriptor(|socket| option.set(socket, value))
    }

    fn with_descriptor<T>(&self, f: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        let line = self.line.borrow();
        let line = line.as_ref().ok_or(ErrorKind::NotConnected)?;
        f(line.wire.socket().as_fd())
    }
}
