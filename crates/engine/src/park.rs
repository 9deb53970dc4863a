//! Parked connections. Between requests, a connection is a small value without a task.

use std::rc::Rc;
use std::time::Instant;

use crate::ready::Ready;
use crate::source::{NIL, Registered, Rest, Source};
use crate::{Handle, Idle, Stream, Wake};

impl Handle {
    /// Parks a connection: the loop owns it, without a task, until it is readable or `deadline`
    /// passes. A connection that is readable already, or that the backend refuses, is resumed
    /// before the loop waits again.
    pub fn park(&self, stream: Stream, idle: Box<dyn Idle>, deadline: Option<Instant>) {
        stream.0.report_or_break();
        stream.set_deadline(deadline);
        let source = Rc::clone(&stream.0.source);
        let own = if idle.stays() { Some(idle) } else { stream.0.offer(idle) };
        if let Some(idle) = own {
            source.idle.set(Some(idle));
        }
        source.parked.set(true);
        self.link(&source);
        if source.is(Ready::READABLE) {
            self.0.resumable.borrow_mut().push(source.token);
        }
        // A parked source stays in the loop when its `Registered` is dropped.
        drop(stream);
    }

    /// The number of connections that are parked or rest (see [`Stream::rest`]).
    pub fn parked(&self) -> usize {
        self.0.parked.get().count
    }

    /// Resumes the `n` connections that have been parked longest. A connection that rests is woken
    /// instead. Returns how many there were.
    pub fn unpark_oldest(&self, n: usize, why: Wake) -> usize {
        let mut resumed = 0;
        while resumed < n {
            let oldest = self.0.parked.get().oldest;
            let Some(source) = self.0.sources.borrow().at(oldest).cloned() else { break };
            self.resume(source, why);
            resumed += 1;
        }
        resumed
    }

    /// Resumes all connections that are parked or rest now. Returns how many there were.
    pub fn unpark_all(&self, why: Wake) -> usize {
        self.unpark_oldest(self.parked(), why)
    }

    /// Resumes the parked connections that `which` selects, but none that rests. Returns how many
    /// there were.
    pub fn unpark_where(&self, why: Wake, which: impl Fn(&dyn Idle) -> bool) -> usize {
        let (mut chosen, mut resumed) = (Vec::new(), 0);
        let mut next = self.0.parked.get().oldest;
        while let Some(source) = self.0.sources.borrow().at(next) {
            if self.is_idle(source, &which) {
                chosen.push(source.token);
            }
            next = source.next.get();
        }
        for token in chosen {
            let source = self.0.sources.borrow().get(token.key()).cloned();
            // A connection that was resumed may have ended others.
            if let Some(source) = source.filter(|source| source.parked.get()) {
                self.resume(source, why);
                resumed += 1;
            }
        }
        resumed
    }

    pub(crate) fn resume(&self, source: Rc<Source>, why: Wake) {
        self.forget_parked(&source);
        if source.rest.get() == Rest::Yes {
            source.rest.set(Rest::Over(why));
            return self.0.waiters.wake(&source.reader, &self.0.tasks);
        }
        let idle = self.take_idle(&source);
        source.deadline.set(crate::clock::NEVER);
        let stream = Stream(Registered { h: self.clone(), source });
        // None if another loop has stolen the connection. The stream is dropped then.
        if let Some(idle) = idle {
            self.0.guard(|| idle.resume(self, stream, why));
        }
    }

    /// Takes the state of a parked connection, from its source or out of the stealable connections.
    /// None if another loop has stolen it.
    pub(crate) fn take_idle(&self, source: &Source) -> Option<Box<dyn Idle>> {
        source.idle.take().or_else(|| self.withdraw(source))
    }

    fn is_idle(&self, source: &Source, which: impl Fn(&dyn Idle) -> bool) -> bool {
        match source.idle.take() {
            Some(idle) => {
                let is = which(&*idle);
                source.idle.set(Some(idle));
                is
            }
            None => self
                .0
                .steal_group
                .as_ref()
                .is_some_and(|member| member.stealable().any(source.token, which)),
        }
    }

    /// Removes a source from the list without resuming it.
    pub(crate) fn forget_parked(&self, source: &Source) {
        self.unlink(source);
        source.parked.set(false);
    }

    pub(crate) fn link(&self, source: &Rc<Source>) {
        let mut list = self.0.parked.get();
        let index = source.token.key().index;
        source.prev.set(list.newest);
        source.next.set(NIL);
        match self.0.sources.borrow().at(list.newest) {
            Some(newest) => newest.next.set(index),
            None => list.oldest = index,
        }
        list.newest = index;
        list.count += 1;
        self.0.parked.set(list);
    }

    fn unlink(&self, source: &Source) {
        let mut list = self.0.parked.get();
        let (prev, next) = (source.prev.replace(NIL), source.next.replace(NIL));
        let sources = self.0.sources.borrow();
        match sources.at(prev) {
            Some(neighbour) => neighbour.next.set(next),
            None => list.oldest = next,
        }
        match sources.at(next) {
            Some(neighbour) => neighbour.prev.set(prev),
            None => list.newest = prev,
        }
        list.count -= 1;
        self.0.parked.set(list);
    }
}
