//! `epoll(7)`. A socket is registered once, edge-triggered, for incoming events only. It is
//! modified to report room to write as well once its send buffer has been full. Listening sockets
//! and foreign descriptors are level-triggered.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::{Backend, Events};
use crate::Arm;
use crate::ready::Ready;
use crate::source::Source;
use crate::token::Token;

/// `epoll_wait` takes its timeout as an `int` of milliseconds. A longer sleep returns early and
/// begins anew.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The events that every socket is registered for.
const INCOMING: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

pub(crate) struct Epoll {
    fd: Arc<OwnedFd>,
    reported: Vec<Event>,
    /// The most events that one wait takes.
    limit: usize,
}

impl Epoll {
    pub(crate) fn new(events: usize) -> io::Result<Self> {
        let fd = epoll::create(CreateFlags::CLOEXEC)?;
        let (fd, reported) = (Arc::new(fd), Vec::with_capacity(events.max(1)));
        Ok(Epoll { fd, reported, limit: usize::MAX })
    }

    /// As [`Backend::watch`], for a descriptor that stays open as long as this instance.
    pub(super) fn watch_fd(&self, fd: BorrowedFd<'_>, token: Token, arm: Arm) -> io::Result<()> {
        let flags = match arm {
            Arm::Shared => EventFlags::IN,
            Arm::Exclusive => EventFlags::IN | EventFlags::EXCLUSIVE,
        };
        Ok(epoll::add(&self.fd, fd, EventData::new_u64(token.0), flags)?)
    }
}

impl Backend for Epoll {
    fn add(&mut self, source: &Rc<Source>) -> io::Result<()> {
        let room = if source.reports_room.get() { EventFlags::OUT } else { EventFlags::empty() };
        let data = EventData::new_u64(source.token.0);
        Ok(epoll::add(&self.fd, &source.fd, data, INCOMING | room)?)
    }

    /// EPOLL_CTL_MOD makes the kernel check the socket again. So room that appeared before this
    /// call is reported, too.
    fn report_room(&mut self, source: &Source) -> io::Result<()> {
        let data = EventData::new_u64(source.token.0);
        Ok(epoll::modify(&self.fd, &source.fd, data, INCOMING | EventFlags::OUT)?)
    }

    /// The kernel removes a descriptor from the instance when it closes.
    fn remove(&mut self, _: &Source) {}

    fn detach(&mut self, source: &Source) {
        let _ = epoll::delete(&self.fd, &source.fd);
    }

    fn watch(&mut self, fd: &Arc<OwnedFd>, token: Token, arm: Arm) -> io::Result<()> {
        self.watch_fd(fd.as_fd(), token, arm)
    }

    fn unwatch(&mut self, fd: &OwnedFd, _: Token) {
        let _ = epoll::delete(&self.fd, fd);
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<()> {
        let timeout = timeout.map(|t| {
            let t = t.min(LONGEST);
            Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() }
        });
        self.reported.clear();
        let spare = self.reported.spare_capacity_mut();
        let most = spare.len().min(self.limit);
        let reported = match epoll::wait(&self.fd, &mut spare[..most], timeout.as_ref()) {
            Ok((reported, _)) => reported,
            // The process was stopped and continued. Events that arrived meanwhile are handled
            // before deadlines that have passed.
            Err(Errno::INTR) => return self.wait(Some(Duration::ZERO), events),
            Err(e) => return Err(e.into()),
        };
        for &mut Event { flags, data } in reported {
            events.push(Token(data.u64()), Ready::from_bits(flags.bits() as u16));
        }
        Ok(())
    }

    fn limit(&mut self, events: usize) {
        self.limit = events;
    }

    fn instance(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.fd))
    }

    #[cfg(feature = "sim")]
    fn news(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}
