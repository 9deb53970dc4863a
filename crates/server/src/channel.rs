//! The channel between the master and one worker: a byte per message, some with descriptors of memory or files.

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

/// What the master tells a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Finish the requests, close idle connections, end: the server ends.
    Quit,
    /// As `Quit`, and another master has the sockets, or the workers come back.
    Yield,
    /// Others took over: finish the requests, let idle clients have their chance, end.
    Retire,
    /// End at once.
    Terminate,
    /// Open the log files anew.
    Reopen,
    /// Error logs take messages of this level, or as the configuration says.
    Level(Option<Level>),
    /// Servers behind were changed: requests that wait for one look again.
    Look,
    /// Serve another site: the first descriptor has it, the others are log files that are new in it.
    Change,
    /// What became of a request to change the configuration; the descriptor has it.
    Outcome,
}

/// What a worker tells the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerReport {
    /// The worker's loops run.
    Ready,
    /// One of them works while the judge of the server's health sleeps.
    Working,
    /// An operator asks for something that all processes must do.
    Asked(Command),
    /// An operator asks for another configuration; the descriptor has its text.
    AsksChange,
    /// All loops have taken the site of the last [`Order::Change`].
    Changed,
    /// They could not.
    Unchanged,
    /// After [`Order::Retire`]: no loop takes a new connection any more.
    Retired,
}

/// The kernel passes no more at a time. unix(7): SCM_MAX_FD.
pub const MOST_FDS: usize = 253;

/// One end of the line; the two ends speak different languages.
#[derive(Clone, Debug)]
pub struct ChannelEnd(Arc<OwnedFd>);

/// What reading from the line gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard<T> {
    /// A message.
    Said(T),
    /// Nothing now.
    Nothing,
    /// What is no message.
    Nonsense,
    /// The other side is gone.
    Gone,
}

impl Heard<u8> {
    fn read<T>(self, of: impl Fn(u8) -> Option<T>) -> Heard<T> {
        match self {
            Heard::Said(byte) => of(byte).map_or(Heard::Nonsense, Heard::Said),
            Heard::Nothing => Heard::Nothing,
            Heard::Nonsense => Heard::Nonsense,
            Heard::Gone => Heard::Gone,
        }
    }
}

/// The master's and the worker's end of a new line.
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

/// Its severity as a digit; what is none is no level.
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

    /// Tells the worker.
    pub fn order(&self, order: Order) -> io::Result<()> {
        self.send(order.to_byte(), &[])
    }

    /// Tells the worker, with descriptors.
    pub fn order_with(&self, order: Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(order.to_byte(), fds)
    }

    /// The next order from the master; its descriptors come into `fds`.
    pub fn next_order(&self, fds: &mut Vec<OwnedFd>) -> Heard<Order> {
        self.receive(fds).read(Order::of)
    }

    /// Tells the master.
    pub fn report(&self, report: WorkerReport) -> io::Result<()> {
        self.send(report.to_byte(), &[])
    }

    /// Tells the master, with a descriptor.
    pub fn report_with(&self, report: WorkerReport, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.send(report.to_byte(), &[fd])
    }

    /// The next report from the worker; its descriptors come into `fds`.
    pub fn next_report(&self, fds: &mut Vec<OwnedFd>) -> Heard<WorkerReport> {
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
    fn receive(&self, fds: &mut Vec<OwnedFd>) -> Heard<u8> {
        // Of a longer message, enough to see that it is longer.
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
            Ok(0) => Heard::Gone,
            Ok(1) => Heard::Said(bytes[0]),
            Ok(_) => Heard::Nonsense,
            Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
            Err(_) => Heard::Gone,
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
        assert_eq!(worker.next_order(&mut fds), Heard::Nothing);
        let file = std::fs::File::open("/dev/null").unwrap();
        master.order_with(Order::Change, &[file.as_fd(), file.as_fd()]).unwrap();
        assert_eq!(worker.next_order(&mut fds), Heard::Said(Order::Change));
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
            assert_eq!(worker.next_order(&mut fds), Heard::Said(order));
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
            assert_eq!(master.next_report(&mut fds), Heard::Said(report));
        }
        for nonsense in [&b"?"[..], b"oo"] {
            #[allow(clippy::disallowed_methods, reason = "a test")]
            rustix::net::send(&worker.0, nonsense, SendFlags::NOSIGNAL).unwrap();
            assert_eq!(master.next_report(&mut fds), Heard::Nonsense);
        }
        drop(worker);
        assert_eq!(master.next_report(&mut fds), Heard::Gone);
        assert!(master.order(Order::Quit).is_err());
    }
}
