//! `io_uring(7)`. One multishot poll request for each socket makes the kernel post each change of
//! its readiness into memory that the loop reads.
//!
//! Listening sockets, foreign descriptors and the ring itself are in an epoll instance, and the
//! loop sleeps in `epoll_wait`. With EPOLLEXCLUSIVE a connection wakes one sleeping loop and passes
//! over busy ones. A ring with a request for a listening socket would take the wake-up although its
//! loop is busy (io_uring/poll.c). Rings with a request for a shared epoll instance would all be
//! woken.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use weir_sys::ring::Ring;

use super::epoll::Epoll;
use super::table::Table;
use super::{Backend, Events};
use crate::Arm;
use crate::ready::Ready;
use crate::slots::Key;
use crate::source::Source;
use crate::token::{Token, TokenKind};

/// The user data of a request is its source's token, with this bit set if the request is for room
/// to write.
const ROOM: u64 = 1 << 63;

const INCOMING: Ready = Ready::READ.and(Ready::RDHUP);

/// The result of a request that was cancelled.
const CANCELED: i32 = -Errno::CANCELED.raw_os_error();

/// How long to wait before the requests are submitted again, if the kernel could not take them.
const RETRY: Duration = Duration::from_millis(1);

pub(crate) struct Uring {
    ring: Ring,
    listening: Epoll,
    table: Table,
    /// The most completions that one wait takes.
    most: usize,
    /// The user data of requests that ended without being cancelled.
    ended: Vec<u64>,
}

impl Uring {
    pub(crate) fn new(events: usize) -> io::Result<Self> {
        let completions = u32::try_from(events.saturating_mul(4)).unwrap_or(u32::MAX);
        let (ring, listening) = (Ring::new(completions)?, Epoll::new(events)?);
        // The token names no source, so its events are dropped: see `wait`.
        let all = Token::new(TokenKind::Stream, Key { index: u32::MAX, generation: 0 });
        listening.watch_fd(ring.as_fd(), all, Arm::Shared)?;
        let (table, ended) = (Table::default(), Vec::new());
        Ok(Uring { ring, listening, table, most: events.max(1), ended })
    }

    fn request(&mut self, source: &Source, what: Ready, bit: u64) {
        self.ring.watch(source.fd.as_fd(), what.bits().into(), source.token.0 | bit);
    }

    fn cancel(&mut self, source: &Source) {
        self.table.remove(source);
        self.ring.forget(source.token.0);
        if source.reports_room.get() {
            self.ring.forget(source.token.0 | ROOM);
        }
    }

    /// Submits requests again that have ended although their source is still here. The kernel ends
    /// a multishot request if the completion queue is full.
    fn request_again(&mut self) {
        while let Some(number) = self.ended.pop() {
            let index = Token(number & !ROOM).key().index as usize;
            let Some(Some(source)) = self.table.sources.get(index) else { continue };
            let source = Rc::clone(source);
            if source.token.0 == number & !ROOM {
                let what = if number & ROOM == 0 { INCOMING } else { Ready::WRITE };
                self.request(&source, what, number & ROOM);
            }
        }
    }

    fn collect(&mut self, events: &mut Events) {
        for completion in self.ring.completions(self.most) {
            let token = Token(completion.number & !ROOM);
            match u16::try_from(completion.result) {
                Ok(bits) => {
                    events.push(token, Ready::from_bits(bits));
                    if !completion.more {
                        self.ended.push(completion.number);
                    }
                }
                Err(_) if completion.result == CANCELED => {}
                // The request has failed, and nothing more will be reported. The next operation
                // finds out about the socket itself.
                Err(_) => events.push(token, Ready::READABLE.and(Ready::WRITABLE)),
            }
        }
        self.request_again();
    }
}

impl Backend for Uring {
    fn add(&mut self, source: &Rc<Source>) -> io::Result<()> {
        self.table.add(source);
        self.request(source, INCOMING, 0);
        if source.reports_room.get() {
            self.request(source, Ready::WRITE, ROOM);
        }
        Ok(())
    }

    fn report_room(&mut self, source: &Source) -> io::Result<()> {
        self.request(source, Ready::WRITE, ROOM);
        Ok(())
    }

    /// The ring holds a reference to the socket, which closes when the loop waits next.
    fn remove(&mut self, source: &Source) {
        self.cancel(source);
    }

    fn detach(&mut self, source: &Source) {
        self.cancel(source);
    }

    fn watch(&mut self, fd: &Arc<OwnedFd>, token: Token, arm: Arm) -> io::Result<()> {
        self.listening.watch(fd, token, arm)
    }

    fn unwatch(&mut self, fd: &OwnedFd, token: Token) {
        self.listening.unwatch(fd, token);
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<()> {
        let taken = self.ring.submit()?;
        let timeout = match (self.ring.is_ready(), taken) {
            (true, _) => Some(Duration::ZERO),
            (false, true) => timeout,
            (false, false) => Some(timeout.map_or(RETRY, |t| t.min(RETRY))),
        };
        self.listening.wait(timeout, events)?;
        // An event of the ring itself only says that there are completions.
        events.streams.clear();
        self.collect(events);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Fd;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// More completions than the ring has entries for.
    const MANY: usize = 5000;

    /// The kernel ends a multishot request if the completion queue is full.
    #[test]
    fn news_that_were_not_taken_do_not_end_the_news() {
        let Ok(mut uring) = Uring::new(1) else { return };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let token = Token::new(TokenKind::Stream, Key { index: 0, generation: 0 });
        let source = Rc::new(Source::new(Fd::Own(ours.into()), token, Ready::WRITE));
        uring.add(&source).unwrap();
        let mut told = |timeout| {
            let mut events = Events::default();
            uring.wait(Some(timeout), &mut events).unwrap();
            events.streams.iter().filter(|(t, ready)| *t == token && ready.any(Ready::READ)).count()
        };
        assert_eq!(told(Duration::ZERO), 0);
        for _ in 0..MANY {
            theirs.write_all(b"x").unwrap();
            rustix::io::read(&source.fd, &mut [0; 1]).unwrap();
        }
        let mut taken = 0;
        while told(Duration::ZERO) > 0 {
            taken += 1;
        }
        assert!((1..MANY).contains(&taken), "{taken}: all of them found room");
        theirs.write_all(b"x").unwrap();
        assert_eq!(told(Duration::from_secs(20)), 1);
    }

    /// As with epoll: an operation on the socket fails at once with the error.
    #[test]
    fn a_reset_connection_is_ready_for_everything() {
        let Ok(mut uring) = Uring::new(1) else { return };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let token = Token::new(TokenKind::Stream, Key { index: 0, generation: 0 });
        let source = Rc::new(Source::new(Fd::Own(ours.into()), token, Ready::WRITE));
        uring.add(&source).unwrap();
        uring.wait(Some(Duration::ZERO), &mut Events::default()).unwrap();
        rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
        drop(theirs);
        let mut events = Events::default();
        while events.streams.is_empty() {
            uring.wait(Some(Duration::from_secs(20)), &mut events).unwrap();
        }
        for (_, ready) in &events.streams {
            source.mark(*ready);
        }
        assert!(source.is(Ready::READ) && source.is(Ready::WRITE) && source.is(Ready::ERR));
    }
}
