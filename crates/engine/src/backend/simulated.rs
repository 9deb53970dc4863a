//! The backend of a loop in the simulated world.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::{Backend, Events};
use crate::Arm;
use crate::ready::Ready;
use crate::seam::sim::{Rest, SimulatedWorld, nanos, world};
use crate::source::Source;
use crate::token::{Token, TokenKind};

/// Wraps `real` if there is a simulated world.
pub(super) fn stand_in(real: Box<dyn Backend>) -> Box<dyn Backend> {
    match world() {
        Some(world) => {
            let (held, listeners, found) = (Vec::new(), Vec::new(), Events::default());
            Box::new(Simulated { world, real, held, listeners, found })
        }
        None => real,
    }
}

/// A backend that never sleeps in the kernel: the world decides when the loop goes on. It reports
/// the kernel's events in random order, and some of them late. The world reports listening sockets.
/// The kernel would choose a loop among those that sleep, and here none does.
struct Simulated {
    world: &'static dyn SimulatedWorld,
    real: Box<dyn Backend>,
    /// Events that are held back, each with the time at which it is reported.
    held: Vec<(u64, Token, Ready)>,
    /// The armed listening sockets, each with its place in the world's wait list.
    listeners: Vec<(Token, usize)>,
    found: Events,
}

impl Simulated {
    /// Adds the kernel's events, and held events that are due.
    fn look(&mut self, events: &mut Events) -> io::Result<()> {
        self.found.clear();
        self.real.wait(Some(Duration::ZERO), &mut self.found)?;
        let now = self.world.nanos();
        for (token, ready) in self.found.streams.drain(..) {
            match self.world.hold_back() {
                Some(time) => self.held.push((now + time, token, ready)),
                None => events.streams.push((token, ready)),
            }
        }
        events.watched.append(&mut self.found.watched);
        let told = self.listeners.iter().filter(|(_, list)| self.world.reports(*list));
        events.watched.extend(told.map(|(token, _)| *token));
        self.held.retain(|(until, token, ready)| {
            let due = *until <= now;
            if due {
                events.streams.push((*token, *ready));
            }
            !due
        });
        Ok(())
    }

    fn shuffle<T>(&self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.world.below(i + 1));
        }
    }
}

impl Backend for Simulated {
    fn add(&mut self, source: &Rc<Source>) -> io::Result<()> {
        self.real.add(source)
    }

    fn report_room(&mut self, source: &Source) -> io::Result<()> {
        self.real.report_room(source)
    }

    fn remove(&mut self, source: &Source) {
        self.real.remove(source);
    }

    fn detach(&mut self, source: &Source) {
        self.real.detach(source);
    }

    fn watch(&mut self, fd: &Arc<OwnedFd>, token: Token, arm: Arm) -> io::Result<()> {
        let list = match token.kind() {
            TokenKind::Listener => self.world.enlist(fd.as_fd(), arm),
            _ => None,
        };
        let Some(list) = list else { return self.real.watch(fd, token, arm) };
        self.listeners.push((token, list));
        Ok(())
    }

    fn unwatch(&mut self, fd: &OwnedFd, token: Token) {
        match self.listeners.iter().position(|(listener, _)| *listener == token) {
            Some(at) => self.world.leave(self.listeners.remove(at).1),
            None => self.real.unwatch(fd, token),
        }
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        self.real.news()
    }

    fn limit(&mut self, events: usize) {
        self.real.limit(events);
    }

    fn instance(&self) -> Option<Arc<OwnedFd>> {
        self.real.instance()
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<()> {
        let until = timeout.map(|time| self.world.nanos().saturating_add(nanos(time)));
        for looked in [false].into_iter().chain(std::iter::repeat(true)) {
            let held = self.held.iter().map(|(until, ..)| *until).min();
            let (until, news) = (until.into_iter().chain(held).min(), self.real.news());
            self.world.rest(Rest { until, looked, news });
            self.look(events)?;
            if events.len() > 0 || until.is_some_and(|until| until <= self.world.nanos()) {
                break;
            }
        }
        self.shuffle(&mut events.streams);
        self.shuffle(&mut events.watched);
        Ok(())
    }
}
