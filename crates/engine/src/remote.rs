//! Sends work and wake-ups to a loop from other threads.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use weir_slumber::Slumber;

use crate::Handle;
use crate::callbacks::Post;
use crate::executor::WakeTask;
use crate::ready::Ready;
use crate::token::Token;

/// The reason of a wake-up: there is mail.
const MAIL: u64 = 1;

/// A message of another loop of the group, which fetched an event of this loop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StealNotice {
    /// An event for this loop. The kernel does not report the edge again.
    Ready(Token, Ready),
    /// The other loop has stolen this connection at a request boundary.
    Stolen(Token),
}

/// Sends work to a loop from any thread.
#[derive(Clone)]
pub struct Remote(pub(crate) Arc<Mailbox>);

impl Remote {
    /// Runs `work` on the loop, soon. Work posted by one thread runs in the order in which it was
    /// posted. If the loop has ended, `work` is dropped.
    pub fn post(&self, work: Box<dyn FnOnce(&Handle) + Send>) {
        self.0.put(|mail| mail.posts.push(work));
    }
}

#[derive(Default)]
struct MailState {
    /// The loop has ended and reads no more mail.
    closed: bool,
    mail: Mail,
}

/// Unread mail.
#[derive(Default)]
pub(crate) struct Mail {
    pub(crate) posts: Vec<Post>,
    pub(crate) woken: Vec<u32>,
    pub(crate) notices: Vec<StealNotice>,
}

/// The loop's mailbox. Senders write to the notifier only if the loop may sleep: see [`Slumber`].
pub(crate) struct Mailbox {
    state: Mutex<MailState>,
    slumber: Slumber<AtomicU64>,
    notifier: Arc<OwnedFd>,
}

impl Mailbox {
    /// A mailbox with this notifier, which other processes may write to as well, or with its own.
    pub(crate) fn new(notifier: Option<&Arc<OwnedFd>>) -> std::io::Result<Self> {
        let notifier = match notifier {
            Some(notifier) => Arc::clone(notifier),
            None => Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        };
        Ok(Mailbox { state: Mutex::default(), slumber: Slumber::default(), notifier })
    }

    pub(crate) fn notifier(&self) -> &Arc<OwnedFd> {
        &self.notifier
    }

    pub(crate) fn notify(&self, notice: StealNotice) {
        self.put(|mail| mail.notices.push(notice));
    }

    fn put(&self, write: impl FnOnce(&mut Mail)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return;
        }
        write(&mut state.mail);
        drop(state);
        if self.slumber.call(MAIL) {
            // A write fails only if the counter is full. The loop is woken then, too.
            let _ = rustix::io::write(&self.notifier, &1u64.to_ne_bytes());
        }
    }

    /// The loop is about to sleep. False if it must not, since there is mail.
    pub(crate) fn may_sleep(&self) -> bool {
        self.slumber.sleep()
    }

    pub(crate) fn awake(&self) {
        self.slumber.wake();
    }

    pub(crate) fn clear_notifier(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.notifier, &mut count);
    }

    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.slumber.has(MAIL)
    }

    /// The loop ends. Unread and future mail is dropped.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        let unread = std::mem::take(&mut state.mail);
        drop(state);
        drop(unread);
    }

    /// Swaps all unread mail with `mail`, whose lists are empty and keep their allocations.
    pub(crate) fn collect(&self, mail: &mut Mail) {
        self.slumber.take(MAIL);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.mail, mail);
    }
}

impl WakeTask for Mailbox {
    fn wake_task(&self, task: u32) {
        self.put(|mail| mail.woken.push(task));
    }
}
