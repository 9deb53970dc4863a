//! Options of a script's connection.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use weir_sys::sockopt::SocketNumber;
use weir_tls::TlsClient;

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

    /// The next handshake trusts these authorities, in DER.
    pub fn trust(&self, authorities: Option<Vec<Vec<u8>>>) {
        self.trusted.replace(authorities);
    }

    /// How TLS is spoken in this handshake.
    pub(super) fn trusting(&self, client: &TlsClient) -> TlsClient {
        match self.trusted.take() {
            Some(authorities) => client.trusting(authorities),
            None => client.clone(),
        }
    }

    fn with_descriptor<T>(&self, f: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        let line = self.line.borrow();
        let line = line.as_ref().ok_or(ErrorKind::NotConnected)?;
        f(line.wire.socket().as_fd())
    }
}
