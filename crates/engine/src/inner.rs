//! What a loop's handles share, and how events reach their waiters.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use rustix::net::RecvFlags;

use crate::backend::{self, Backend, BackendKind, Token, TokenKind};
use crate::buffers::Buffers;
use crate::clock::Clock;
use crate::executor::Executor;
use crate::heavy;
use crate::lap::Laps;
use crate::limit::SocketLimit;
use crate::outside::{Listener, Watch};
use crate::park::Parked;
use crate::remote::{Mail, Mailbox, News};
use crate::run::Options;
use crate::slots::{Key, Slots};
use crate::source::{Fd, Ready, Registered, Rest, Source};
use crate::steal::GroupMember;
use crate::timers::Wheel;
use crate::waiter::{Waiter, Waiters};
use crate::{Arm, Files, Handle, Wake};

/// What a timer wakes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Source(Token),
    Waiter(Waiter),
}

/// Hears of panics; the text is the panic's message.
pub(crate) type PanicHook = Rc<dyn Fn(&str)>;

pub(crate) struct Inner {
    pub(crate) clock: Clock,
    pub(crate) backend: RefCell<Box<dyn Backend>>,
    kind: BackendKind,
    pub(crate) tasks: Executor,
    pub(crate) waiters: Waiters,
    pub(crate) wheel: RefCell<Wheel<Target>>,
    pub(crate) sources: RefCell<Slots<Rc<Source>>>,
    pub(crate) parked: Cell<Parked>,
    /// Sources that were parked while they were known readable.
    pub(crate) resumable: RefCell<Vec<Token>>,
    pub(crate) listeners: RefCell<Slots<Listener>>,
    pub(crate) watches: RefCell<Slots<Watch>>,
    pub(crate) buffers: RefCell<Buffers>,
    pub(crate) files: Files,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Emptied lists of mail, kept for their memory.
    read: Cell<Mail>,
    pub(crate) accepts: Cell<u64>,
    pub(crate) panics: Cell<u64>,
    pub(crate) panic_hook: RefCell<Option<PanicHook>>,
    pub(crate) stopping: Cell<bool>,
    pub(crate) laps: Laps,
    pub(crate) heavy: heavy::Queue,
    pub(crate) limit: RefCell<SocketLimit>,
    /// Among the loops that relieve each other; none if there are no others.
    pub(crate) steal_group: Option<GroupMember>,
}

impl Inner {
    pub(crate) fn new(options: &Options) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::new(options.notifier.as_ref())?);
        let mut backend = backend::make(options.backend, options.events)?;
        backend.watch(mailbox.notifier(), Token::NOTIFIER, Arm::Shared)?;
        let steal_group =
            options.steal_group.as_ref().zip(backend.instance()).and_then(|(group, instance)| {
                GroupMember::join(group, instance, Arc::clone(&mailbox))
            });
        if let Some(member) = &steal_group {
            backend.watch(member.timer(), Token::STALL_TIMER, Arm::Exclusive)?;
        }
        let clock = Clock::new(options.timer_resolution);
        Ok(Inner {
            laps: Laps::new(),
            clock,
            backend: RefCell::new(backend),
            kind: options.backend,
            tasks: Executor::new(mailbox.clone()),
            waiters: Waiters::new(),
            wheel: RefCell::new(Wheel::new()),
            sources: RefCell::new(Slots::new()),
            parked: Cell::new(Parked::new()),
            resumable: RefCell::default(),
            listeners: RefCell::new(Slots::new()),
            watches: RefCell::new(Slots::new()),
            buffers: RefCell::new(Buffers::new()),
            files: Files::new(options.files.clone(), options.pools.clone()),
            mailbox,
            read: Cell::default(),
            accepts: Cell::new(0),
            panics: Cell::new(0),
            panic_hook: RefCell::new(None),
            stopping: Cell::new(false),
            heavy: heavy::Queue::default(),
            limit: RefCell::default(),
            steal_group,
        })
    }

    /// Brings a socket into the loop. The backend does not report it yet.
    pub(crate) fn enter(
        &self,
        h: &Handle,
        fd: impl Into<Fd>,
        ready: Ready,
    ) -> io::Result<Registered> {
        let (fd, mut made) = (fd.into(), None);
        self.sources.borrow_mut().insert_with(|key| {
            let source = Rc::new(Source::new(fd, Token::new(TokenKind::Stream, key), ready));
            made = Some(Rc::clone(&source));
            source
        });
        let Some(source) = made else { return Err(io::ErrorKind::OutOfMemory.into()) };
        Ok(Registered { h: h.clone(), source })
    }

    /// Brings a socket into the loop; the backend reports it from now on.
    pub(crate) fn register(
        &self,
        h: &Handle,
        fd: impl Into<Fd>,
        ready: Ready,
    ) -> io::Result<Registered> {
        let registered = self.enter(h, fd, ready)?;
        registered.report()?;
        Ok(registered)
    }

    /// Brings an event to its waiters; an event for a socket that is gone is dropped.
    #[inline]
    pub(crate) fn deliver(&self, h: &Handle, token: Token, ready: Ready) {
        let source = self.sources.borrow().get(token.key()).cloned();
        let Some(source) = source else { return };
        source.mark(ready);
        if source.parked.get() {
            if ready.any(Ready::READABLE) {
                h.resume(source, Wake::Ready);
            }
            return;
        }
        if ready.any(Ready::READABLE) {
            self.waiters.wake(&source.reader, &self.tasks);
            if self.kind == BackendKind::Select && source.closer.get().is_set() {
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

    /// A foreign descriptor is readable.
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

    /// A timer has come.
    pub(crate) fn expire(&self, h: &Handle, target: Target) {
        let token = match target {
            Target::Waiter(waiter) => return self.waiters.wake_one(waiter, &self.tasks),
            Target::Source(token) => token,
        };
        let source = self.sources.borrow().get(token.key()).cloned();
        let Some(source) = source else { return };
        if !source.deadline_came(h) {
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

    /// Resumes what was parked although it was readable.
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

    /// Work and wake-ups from other threads, and from wakers.
    pub(crate) fn read_mail(&self, h: &Handle) {
        if !self.mailbox.has_mail() {
            return;
        }
        let mut mail = self.read.take();
        self.mailbox.collect(&mut mail);
        for task in mail.woken.drain(..) {
            self.tasks.wake(task);
        }
        for news in mail.news.drain(..) {
            self.hear(h, news);
        }
        for post in mail.posts.drain(..) {
            self.guard(|| post(h));
        }
        self.read.set(mail);
    }

    /// What another loop found ready for this one.
    fn hear(&self, h: &Handle, news: News) {
        let (News::Ready(token, _) | News::Stolen(token)) = news;
        let Some(source) = self.sources.borrow().get(token.key()).cloned() else { return };
        let rests = source.parked.get() || source.rest.get() == Rest::Yes;
        match news {
            News::Stolen(_) if rests => h.resume(source, Wake::Ready),
            News::Stolen(_) => self.waiters.wake(&source.reader, &self.tasks),
            // What was read meanwhile would be taken for the next request.
            News::Ready(_, ready) if rests && source.is_silent(ready) => {
                self.deliver(h, token, ready.without(Ready::READ));
            }
            News::Ready(_, ready) => self.deliver(h, token, ready),
        }
    }

    /// Runs foreign code; a panic in it is counted and reported, and goes no further.
    pub(crate) fn guard(&self, run: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            self.panicked(panic);
        }
    }

    pub(crate) fn panicked(&self, panic: Box<dyn Any + Send>) {
        self.panics.set(self.panics.get() + 1);
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("a panic without a text");
        let hook = self.panic_hook.borrow().clone();
        if let Some(hook) = hook {
            // A panic in the hook itself is not reported.
            let _ = catch_unwind(AssertUnwindSafe(|| hook(text)));
        }
    }

    /// Ends every task and connection, for the end of the loop: they hold its handles.
    pub(crate) fn clear(&self, h: &Handle) {
        self.mailbox.close();
        while self.tasks.live() > 0 || self.parked.get().count > 0 {
            self.tasks.clear();
            let oldest = self.parked.get().oldest;
            let Some(source) = self.sources.borrow().at(oldest).cloned() else { continue };
            let idle = h.take_idle(&source);
            h.forget_parked(&source);
            drop(Registered { h: h.clone(), source });
            drop(idle);
        }
        let watches = self.watches.borrow_mut().drain();
        drop(watches);
        let listeners = self.listeners.borrow_mut().drain();
        drop(listeners);
        if let Some(member) = &self.steal_group {
            member.leave();
        }
        self.panic_hook.borrow_mut().take();
        self.laps.set_keeper(None);
    }
}

/// `select` reports the end of a stream as readable only: asks the socket.
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
