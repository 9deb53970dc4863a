//! The channel between the master and a worker: messages of one byte, some with descriptors of
//! memory or files.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use weir_log::Level;
use weir_values::Command;

/// An order of the master to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Finish the requests, close idle connections, and end: the server ends.
    Quit,
    /// As `Quit`, when another master has the sockets or the workers will come back.
    Yield,
    /// Finish the requests and end; new workers have taken over. Idle clients may still send
    /// requests for a while.
    Retire,
    /// End at once.
    Terminate,
    /// Reopen the log files.
    Reopen,
    /// Set the level of all error logs; none: the configured levels.
    Level(Option<Level>),
    /// Upstream servers have changed. Requests that wait for a server try again.
    Look,
    /// Take another site. The first descriptor has it, the others are its new log files.
    Change,
    /// The result of a request to change the configuration, in the descriptor.
    Outcome,
}

/// A report of a worker to the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerReport {
    /// The worker's loops are running.
    Ready,
    /// A loop is working while the master's health watch sleeps.
    Working,
    /// An operator's command for all processes.
    Asked(Command),
    /// An operator's request for another configuration, in the descriptor.
    AsksChange,
    /// All loops have taken the site of the last [`Order::Change`].
    Changed,
    /// The site of the last [`Order::Change`] could not be taken.
    Unchanged,
    /// After [`Order::Retire`]: no loop accepts new connections any more.
    Retired,
}

/// The most descriptors in a message. unix(7): SCM_MAX_FD.
pub const MOST_FDS: usize = 253;

/// An end of a channel. Orders travel in one direction, reports in the other.
#[derive(Clone, Debug)]
pub struct ChannelEnd(Arc<OwnedFd>);

/// The result of reading from a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<T> {
    /// A message.
    Message(T),
    /// No message at the moment.
    Nothing,
    /// An invalid message.
    Invalid,
    /// The other end is closed.
    Closed,
}

impl Received<u8> {
    fn read<T>(self, of: impl Fn(u8) -> Option<T>) -> Received<T> {
        match self {
            Received::Message(byte) => of(byte).map_or(Received::Invalid, Received::Message),
            Received::Nothing => Received::Nothing,
            Received::Invalid => Received::Invalid,
            Received::Closed => Received::Closed,
        }
    }
}

/// A new channel: the master's end and the worker's.
pub fn pair() -> io::Result<(ChannelEnd, ChannelEnd)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((ChannelEnd(Arc::new(a)), ChannelEnd(Arc::new(b))))
}

impl Order {
    fn to_byte(self) -> u8 {
        match self {
            Order::Quit => b'q',
            Order::Yield => b'y',
            Order::Retire => b'r',
            Order::Terminate => b't',
            Order::Reopen => b'o',
            Order::Level(level) => level_to_byte(level),
            Order::Look => b'l',
            Order::Change => b'c',
            Order::Outcome => b'a',
        }
    }

    fn of(byte: u8) -> Option<Order> {
        Some(match byte {
            b'c' => Order::Change,
            b'a' => Order::Outcome,
            b'q' => Order::Quit,
            b'y' => Order::Yield,
            b'r' => Order::Retire,
            b't' => Order::Terminate,
            b'o' => Order::Reopen,
            b'l' => Order::Look,
            _ => Order::Level(level_of(byte)?),
        })
    }
}

impl WorkerReport {
    fn to_byte(self) -> u8 {
        match self {
            WorkerReport::Ready => b'+',
            WorkerReport::Working => b'w',
            WorkerReport::Asked(Command::Reopen) => b'o',
            WorkerReport::Asked(Command::Level(level)) => level_to_byte(level),
            WorkerReport::Asked(Command::Look) => b'l',
            WorkerReport::AsksChange => b'c',
            WorkerReport::Changed => b'd',
            WorkerReport::Unchanged => b'f',
            WorkerReport::Retired => b'r',
        }
    }

    fn of(byte: u8) -> Option<WorkerReport> {
        Some(match byte {
            b'+' => WorkerReport::Ready,
            b'w' => WorkerReport::Working,
            b'o' => WorkerReport::Asked(Command::Reopen),
            b'l' => WorkerReport::Asked(Command::Look),
            b'c' => WorkerReport::AsksChange,
            b'd' => WorkerReport::Changed,
            b'f' => WorkerReport::Unchanged,
            b'r' => WorkerReport::Retired,
            _ => WorkerReport::Asked(Command::Level(level_of(byte)?)),
        })
    }
}

/// The severity as a digit; 9 for no level.
fn level_to_byte(level: Option<Level>) -> u8 {
    b'0' + level.map_or(9, Level::severity)
}

fn level_of(byte: u8) -> Option<Option<Level>> {
    match byte {
        b'9' => Some(None),
        _ => Level::of_severity(byte.checked_sub(b'0')?).map(Some),
    }
}

impl ChannelEnd {
    /// The descriptor, for a loop that watches it.
    pub fn shared(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }

    /// Sends an order to the worker.
    pub fn order(&self, order: Order) -> io::Result<()> {
        self.send(order.to_byte(), &[])
    }

    /// Sends an order with descriptors to the worker.
    pub fn order_with(&self, order: Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(order.to_byte(), fds)
    }

    /// Receives the next order from the master. Its descriptors are appended to `fds`.
    pub fn next_order(&self, fds: &mut Vec<OwnedFd>) -> Received<Order> {
        self.receive(fds).read(Order::of)
    }

    /// Sends a report to the master.
    pub fn report(&self, report: WorkerReport) -> io::Result<()> {
        self.send(report.to_byte(), &[])
    }

    /// Sends a report with a descriptor to the master.
    pub fn report_with(&self, report: WorkerReport, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.send(report.to_byte(), &[fd])
    }

    /// Receives the next report from the worker. Its descriptors are appended to `fds`.
    pub fn next_report(&self, fds: &mut Vec<OwnedFd>) -> Received<WorkerReport> {
        self.receive(fds).read(WorkerReport::of)
    }

    #[allow(clippy::disallowed_methods, reason = "one byte, without waiting")]
    fn send(&self, byte: u8, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if fds.is_empty() {
            rustix::net::send(&self.0, &[byte], SendFlags::NOSIGNAL)?;
            return Ok(());
        }
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if fds.len() > MOST_FDS || !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::net::sendmsg(
            &self.0,
            &[IoSlice::new(&[byte])],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    #[allow(clippy::disallowed_methods, reason = "one byte, without waiting")]
    fn receive(&self, fds: &mut Vec<OwnedFd>) -> Received<u8> {
        // Two bytes are enough to detect a message that is too long.
        let mut bytes = [0; 2];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        );
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(got) = message {
                fds.extend(got);
            }
        }
        match received.map(|message| message.bytes) {
            Ok(0) => Received::Closed,
            Ok(1) => Received::Message(bytes[0]),
            Ok(_) => Received::Invalid,
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(_) => Received::Closed,
        }
    }
}

impl AsFd for ChannelEnd {
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
        let mut fds = Vec::new();
        assert_eq!(worker.next_order(&mut fds), Received::Nothing);
        let file = std::fs::File::open("/dev/null").unwrap();
        master.order_with(Order::Change, &[file.as_fd(), file.as_fd()]).unwrap();
        assert_eq!(worker.next_order(&mut fds), Received::Message(Order::Change));
        assert_eq!(fds.len(), 2);
        let levels = (0..8).map(Level::of_severity).chain([None]);
        let orders = [
            Order::Quit,
            Order::Yield,
            Order::Retire,
            Order::Terminate,
            Order::Reopen,
            Order::Look,
            Order::Change,
            Order::Outcome,
        ];
        let orders: Vec<_> = orders.into_iter().chain(levels.clone().map(Order::Level)).collect();
        for order in &orders {
            master.order(*order).unwrap();
        }
        for order in orders {
            assert_eq!(worker.next_order(&mut fds), Received::Message(order));
        }
        let asked = levels
            .map(Command::Level)
            .chain([Command::Reopen, Command::Look])
            .map(WorkerReport::Asked);
        for report in asked
            .chain([WorkerReport::Ready, WorkerReport::Working, WorkerReport::AsksChange])
            .chain([WorkerReport::Changed, WorkerReport::Unchanged, WorkerReport::Retired])
        {
            worker.report(report).unwrap();
            assert_eq!(master.next_report(&mut fds), Received::Message(report));
        }
        for nonsense in [&b"?"[..], b"oo"] {
            #[allow(clippy::disallowed_methods, reason = "a test")]
            rustix::net::send(&worker.0, nonsense, SendFlags::NOSIGNAL).unwrap();
            assert_eq!(master.next_report(&mut fds), Received::Invalid);
        }
        drop(worker);
        assert_eq!(master.next_report(&mut fds), Received::Closed);
        assert!(master.order(Order::Quit).is_err());
    }
}
