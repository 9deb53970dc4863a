//! eBPF programs that choose among the sockets of an SO_REUSEPORT group, by tables that are written
//! with plain stores. bpf(2), BPF_PROG_TYPE_SK_REUSEPORT. They need CAP_BPF and CAP_NET_ADMIN.
//!
//! [`Steering`] follows a table of places that its owner renews, for sockets of other servers.
//! [`Choice`] follows the rows that the sockets' loops write.

mod bpf;
mod places;
mod rows;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub use places::{PLACES, Steering};
pub use rows::{Choice, Layout, table};

/// The most sockets of a program.
pub const SOCKETS: usize = 256;

/// The listening sockets of a group, by number, for programs to choose among. A socket is in at
/// most one list.
#[derive(Debug)]
pub struct SocketArray(OwnedFd);

impl SocketArray {
    /// A list of these sockets. [`SocketArray::put`] may replace them later.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` without the privilege. EBUSY if a socket is in another list.
    /// `InvalidInput` if a socket does not listen with SO_REUSEPORT, or for more than [`SOCKETS`]
    /// sockets.
    pub fn new(sockets: &[BorrowedFd<'_>]) -> io::Result<SocketArray> {
        let list = SocketArray(bpf::sockets(SOCKETS as u32)?);
        (0u32..).zip(sockets).try_for_each(|(number, socket)| list.put(number, *socket))?;
        Ok(list)
    }

    /// Sets the socket with this number.
    pub fn put(&self, number: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        bpf::put(self.0.as_fd(), number, socket)
    }

    fn address(&self, to: u8) -> [bpf::Instruction; 2] {
        bpf::map(to, self.0.as_fd())
    }
}

/// The clock that eBPF programs read.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};

    /// `n` listening sockets of one group.
    pub(super) fn group(n: usize) -> Vec<TcpListener> {
        let mut at = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let mut all: Vec<TcpListener> = Vec::new();
        for _ in 0..n {
            let own = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            sockopt::set_socket_reuseport(&own, true).unwrap();
            bind(&own, &at).unwrap();
            listen(&own, 128).unwrap();
            let own = TcpListener::from(own);
            at = own.local_addr().unwrap();
            own.set_nonblocking(true).unwrap();
            all.push(own);
        }
        all
    }

    /// How many of forty new connections each socket gets.
    pub(super) fn spread(group: &[TcpListener]) -> Vec<usize> {
        let at = group[0].local_addr().unwrap();
        let _clients: Vec<_> = (0..40).map(|_| TcpStream::connect(at).unwrap()).collect();
        let waiting = |own: &TcpListener| std::iter::from_fn(|| own.accept().ok()).count();
        group.iter().map(waiting).collect()
    }
}
