//! Options of a script's socket.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use weir_tls::TlsClient;

use super::Socket;

impl Socket {
    /// Sets the authorities, in DER, that the next handshake trusts.
    pub fn trust(&self, authorities: Option<Vec<Vec<u8>>>) {
        self.trusted.replace(authorities);
    }

    /// The TLS client for this handshake, with the authorities of [`Socket::trust`] if they were
    /// set.
    pub(super) fn trusting(&self, client: &TlsClient) -> TlsClient {
        match self.trusted.take() {
            Some(authorities) => client.trusting(authorities),
            None => client.clone(),
        }
    }

    /// Calls `f` with the descriptor of the connection.
    pub fn with_descriptor<T>(
        &self,
        f: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let connection = self.connection.borrow();
        let connection = connection.as_ref().ok_or(ErrorKind::NotConnected)?;
        f(connection.wire.socket().as_fd())
    }
}
