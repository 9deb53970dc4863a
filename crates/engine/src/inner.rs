//! The state of a loop, which its handles share.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use crate::backend::Backend;
use crate::buffers::Buffers;
use crate::callbacks::{MakeRoom, Watch};
use crate::clock::Clock;
use crate::executor::Executor;
use crate::file_ways::FileWays;
use crate::heavy::HeavyQueue;
use crate::lap::Laps;
use crate::outside::Listener;
use crate::ready::Ready;
use crate::remote::{Mail, Mailbox};
use crate::slots::Slots;
use crate::source::{Fd, Parked, Registered, Source};
use crate::steal::GroupMember;
use crate::timers::Wheel;
use crate::token::{Token, TokenKind};
use crate::waiter::{TimerTarget, Waiters};
use crate::warm::WarmPart;
use crate::{Files, Handle};

/// Called with the message of each panic that is caught.
pub(crate) type PanicHook = Rc<dyn Fn(&str)>;

/// See [`Handle::limit_sockets`].
pub(crate) struct SocketLimit {
    pub(crate) most: usize,
    pub(crate) make_room: Option<MakeRoom>,
}

impl Default for SocketLimit {
    fn default() -> Self {
        SocketLimit { most: usize::MAX, make_room: None }
    }
}

pub(crate) struct Inner {
    pub(crate) clock: Clock,
    pub(crate) backend: RefCell<Box<dyn Backend>>,
    /// The backend does not report that a peer has closed its side while data wait.
    pub(crate) misses_ends: bool,
    pub(crate) tasks: Executor,
    pub(crate) waiters: Waiters,
    pub(crate) wheel: RefCell<Wheel<TimerTarget>>,
    pub(crate) sources: RefCell<Slots<Rc<Source>>>,
    pub(crate) parked: Cell<Parked>,
    /// Sources that were parked while they were readable.
    pub(crate) resumable: RefCell<Vec<Token>>,
    pub(crate) listeners: RefCell<Slots<Listener>>,
    pub(crate) watches: RefCell<Slots<Watch>>,
    pub(crate) buffers: RefCell<Buffers>,
    pub(crate) files: Files,
    pub(crate) file_ways: FileWays,
    pub(crate) warm: Cell<WarmPart>,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Empty lists of mail, kept for their allocations.
    pub(crate) read: Cell<Mail>,
    pub(crate) accepts: Cell<u64>,
    pub(crate) panics: Cell<u64>,
    pub(crate) panic_hook: RefCell<Option<PanicHook>>,
    pub(crate) stopping: Cell<bool>,
    pub(crate) laps: Laps,
    pub(crate) heavy: HeavyQueue,
    pub(crate) limit: RefCell<SocketLimit>,
    /// This loop's membership in its steal group. None without a group.
    pub(crate) steal_group: Option<GroupMember>,
}

impl Inner {
    pub(crate) fn new(
        clock: Clock,
        backend: Box<dyn Backend>,
        files: Files,
        mailbox: Arc<Mailbox>,
        steal_group: Option<GroupMember>,
    ) -> Self {
        Inner {
            laps: Laps::new(),
            clock,
            backend: RefCell::new(backend),
            misses_ends: false,
            tasks: Executor::new(mailbox.clone()),
            waiters: Waiters::new(),
            wheel: RefCell::new(Wheel::new()),
            sources: RefCell::new(Slots::new()),
            parked: Cell::new(Parked::new()),
            resumable: RefCell::default(),
            listeners: RefCell::new(Slots::new()),
            watches: RefCell::new(Slots::new()),
            buffers: RefCell::new(Buffers::new()),
            files,
            file_ways: FileWays::default(),
            warm: Cell::default(),
            mailbox,
            read: Cell::default(),
            accepts: Cell::new(0),
            panics: Cell::new(0),
            panic_hook: RefCell::new(None),
            stopping: Cell::new(false),
            heavy: HeavyQueue::default(),
            limit: RefCell::default(),
            steal_group,
        }
    }

    /// Adds a socket to the loop. The backend does not report it yet.
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

    /// Adds a socket to the loop and to its backend.
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

    /// Runs foreign code. A panic in it is caught, counted and reported.
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

    /// Drops all tasks and connections when the loop ends. They hold handles of the loop, which
    /// would otherwise never be freed.
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
