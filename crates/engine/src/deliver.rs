//! Dispatches events, timers and mail to waiting tasks.

use rustix::net::RecvFlags;
use weir_sys::prefetch::prefetch;

use crate::inner::Inner;
use crate::ready::Ready;
use crate::remote::StealNotice;
use crate::slots::Key;
use crate::source::{Rest, Source};
use crate::token::Token;
use crate::waiter::TimerTarget;
use crate::{Handle, Wake};

impl Inner {
    /// Wakes the tasks that wait for an event. An event for a socket that is gone is dropped.
    #[inline]
    pub(crate) fn deliver(&self, h: &Handle, token: Token, ready: Ready) {
        let source = self.sources.borrow().get(token.key()).cloned();
        let Some(source) = source else { return };
        if self.tasks.is_crowded() {
            // The task that is woken uses all of the source soon.
            prefetch(&*source, size_of::<Source>());
        }
        source.mark(ready);
        if source.parked.get() {
            if ready.any(Ready::READABLE) {
                h.resume(source, Wake::Ready);
            }
            return;
        }
        if ready.any(Ready::READABLE) {
            self.waiters.wake(&source.reader, &self.tasks);
            if self.misses_ends && source.closer.get().is_set() {
                look_for_end(&source);
            }
        }
        if ready.any(Ready::WRITABLE) {
            self.waiters.wake(&source.writer, &self.tasks);
        }
        if source.is(Ready::GONE) {
            self.waiters.wake(&source.closer, &self.tasks);
        }
    }

    /// Calls the callback of a watch whose descriptor is readable.
    pub(crate) fn call_watch(&self, h: &Handle, key: Key) {
        let call = self.watches.borrow_mut().get_mut(key).and_then(|watch| watch.call.take());
        let Some(mut call) = call else { return };
        self.guard(|| call(h));
        // The call may have removed its own watch.
        let mut call = Some(call);
        if let Some(watch) = self.watches.borrow_mut().get_mut(key) {
            watch.call = call.take();
        }
        drop(call);
    }

    /// Handles a timer that has expired.
    pub(crate) fn expire(&self, h: &Handle, target: TimerTarget) {
        let token = match target {
            TimerTarget::Waiter(waiter) => return self.waiters.wake_one(waiter, &self.tasks),
            TimerTarget::Source(token) => token,
        };
        let source = self.sources.borrow().get(token.key()).cloned();
        let Some(source) = source else { return };
        if !source.deadline_passed(h) {
            return;
        }
        if source.parked.get() {
            h.resume(source, Wake::Deadline);
            return;
        }
        for place in [&source.reader, &source.writer, &source.closer] {
            self.waiters.wake(place, &self.tasks);
        }
    }

    /// Resumes connections that were readable when they were parked.
    pub(crate) fn resume_readable(&self, h: &Handle) {
        let tokens = std::mem::take(&mut *self.resumable.borrow_mut());
        for token in tokens {
            let source = self.sources.borrow().get(token.key()).cloned();
            if let Some(source) = source
                && source.parked.get()
                && source.is(Ready::READABLE)
            {
                h.resume(source, Wake::Ready);
            }
        }
    }

    /// Handles work and wake-ups from other threads, and from wakers.
    pub(crate) fn read_mail(&self, h: &Handle) {
        if !self.mailbox.has_mail() {
            return;
        }
        let mut mail = self.read.take();
        self.mailbox.collect(&mut mail);
        for task in mail.woken.drain(..) {
            self.tasks.wake(task);
        }
        for notice in mail.notices.drain(..) {
            self.handle_notice(h, notice);
        }
        for post in mail.posts.drain(..) {
            self.guard(|| post(h));
        }
        self.read.set(mail);
    }

    /// Handles what another loop found in this loop's ready list.
    fn handle_notice(&self, h: &Handle, notice: StealNotice) {
        let (StealNotice::Ready(token, _) | StealNotice::Stolen(token)) = notice;
        let Some(source) = self.sources.borrow().get(token.key()).cloned() else { return };
        let rests = source.parked.get() || source.rest.get() == Rest::Yes;
        match notice {
            StealNotice::Stolen(_) if rests => h.resume(source, Wake::Ready),
            StealNotice::Stolen(_) => self.waiters.wake(&source.reader, &self.tasks),
            // Another read may have emptied the socket since. The event must not count as the next
            // request.
            StealNotice::Ready(_, ready) if rests && source.is_silent(ready) => {
                self.deliver(h, token, ready.without(Ready::READ));
            }
            StealNotice::Ready(_, ready) => self.deliver(h, token, ready),
        }
    }
}

/// `select` reports the end of a stream as readable only, so this peeks at the socket.
#[allow(clippy::disallowed_methods, reason = "one byte, and only a look at it")]
fn look_for_end(source: &Source) {
    let mut byte = [0u8; 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(&source.fd, &mut byte[..], flags) {
        Ok((0, _)) => source.mark(Ready::RDHUP),
        Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
        Err(_) => source.mark(Ready::ERR),
    }
}
