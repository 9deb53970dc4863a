//! The line between the master and one worker: a byte per message.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// What the master tells a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Finish the requests, close idle connections, end: the server ends.
    Quit,
    /// Others took over: finish the requests, let idle clients have their chance, end.
    Retire,
    /// End at once.
    Terminate,
    /// Open the log files anew.
    Reopen,
}

/// What a worker tells the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The worker's loops run.
    Ready,
}

/// One end of the line; the two ends speak different languages.
#[derive(Clone, Debug)]
pub struct End(Arc<OwnedFd>);

/// What reading from the line gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard<T> {
    /// A message.
    Said(T),
    /// Nothing now.
    Nothing,
    /// The other side is gone.
    Gone,
}

/// The master's and the worker's end of a new line.
pub fn pair() -> io::Result<(End, End)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((End(Arc::new(a)), End(Arc::new(b))))
}

impl Order {
    const ALL: [(u8, Order); 4] = [
        (b'q', Order::Quit),
        (b'r', Order::Retire),
        (b't', Order::Terminate),
        (b'o', Order::Reopen),
    ];
}

impl End {
    /// The descriptor, for a loop that watches it.
    pub fn shared(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }

    /// Tells the worker.
    pub fn order(&self, order: Order) -> io::Result<()> {
        let byte = Order::ALL.iter().find(|(_, o)| *o == order).map_or(b't', |(byte, _)| *byte);
        self.send(byte)
    }

    /// The next order from the master.
    pub fn next_order(&self) -> Heard<Order> {
        match self.receive() {
            Heard::Said(byte) => match Order::ALL.iter().find(|(b, _)| *b == byte) {
                Some((_, order)) => Heard::Said(*order),
                None => Heard::Nothing,
            },
            Heard::Nothing => Heard::Nothing,
            Heard::Gone => Heard::Gone,
        }
    }

    /// Tells the master.
    pub fn report(&self, report: Report) -> io::Result<()> {
        match report {
            Report::Ready => self.send(b'+'),
        }
    }

    /// The next report from the worker.
    pub fn next_report(&self) -> Heard<Report> {
        match self.receive() {
            Heard::Said(b'+') => Heard::Said(Report::Ready),
            Heard::Said(_) | Heard::Nothing => Heard::Nothing,
            Heard::Gone => Heard::Gone,
        }
    }

    #[allow(clippy::disallowed_methods, reason = "one byte, without waiting")]
    fn send(&self, byte: u8) -> io::Result<()> {
        rustix::net::send(&self.0, &[byte], SendFlags::NOSIGNAL)?;
        Ok(())
    }

    #[allow(clippy::disallowed_methods, reason = "one byte, without waiting")]
    fn receive(&self) -> Heard<u8> {
        let mut byte = [0];
        match rustix::net::recv(&self.0, &mut byte, RecvFlags::empty()) {
            Ok((_, 0)) => Heard::Gone,
            Ok(_) => Heard::Said(byte[0]),
            Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
            Err(_) => Heard::Gone,
        }
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_heard() {
        let (master, worker) = pair().unwrap();
        assert_eq!(worker.next_order(), Heard::Nothing);
        for (_, order) in Order::ALL {
            master.order(order).unwrap();
        }
        for (_, order) in Order::ALL {
            assert_eq!(worker.next_order(), Heard::Said(order));
        }
        worker.report(Report::Ready).unwrap();
        assert_eq!(master.next_report(), Heard::Said(Report::Ready));
        drop(worker);
        assert_eq!(master.next_report(), Heard::Gone);
        assert!(master.order(Order::Quit).is_err());
    }
}
