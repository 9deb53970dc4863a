//! Work and wake-ups for a loop from other threads.

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

/// Why others call the loop.
const MAIL: u64 = 1;

/// What another loop of the group found in this one's list of what is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News {
    /// It was for this loop alone, and is not reported again.
    Ready(Token, Ready),
    /// A connection was at a boundary, and is the other loop's now.
    Stolen(Token),
}

/// Sends work to a loop from any thread.
#[derive(Clone)]
pub struct Remote(pub(crate) Arc<Mailbox>);

impl Remote {
    /// Runs `work` on the loop, soon. Work posted by one thread runs in its order. After the
    /// loop's end it is dropped.
    pub fn post(&self, work: Box<dyn FnOnce(&Handle) + Send>) {
        self.0.put(|mail| mail.posts.push(work));
    }
}

#[derive(Default)]
struct Letters {
    /// The loop is gone and reads no more.
    closed: bool,
    mail: Mail,
}

/// What has come.
#[derive(Default)]
pub(crate) struct Mail {
    pub(crate) posts: Vec<Post>,
    pub(crate) woken: Vec<u32>,
    pub(crate) news: Vec<News>,
}

/// The loop's mailbox. The event descriptor is written only when the loop may sleep: see
/// [`Slumber`].
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    slumber: Slumber<AtomicU64>,
    notifier: Arc<OwnedFd>,
}

impl Mailbox {
    /// With this notifier, which others may ring as well, or one of its own.
    pub(crate) fn new(notifier: Option<&Arc<OwnedFd>>) -> std::io::Result<Self> {
        let notifier = match notifier {
            Some(notifier) => Arc::clone(notifier),
            None => Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        };
        Ok(Mailbox { letters: Mutex::default(), slumber: Slumber::default(), notifier })
    }

    pub(crate) fn notifier(&self) -> &Arc<OwnedFd> {
        &self.notifier
    }

    pub(crate) fn tell(&self, news: News) {
        self.put(|mail| mail.news.push(news));
    }

    fn put(&self, write: impl FnOnce(&mut Mail)) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        if letters.closed {
            return;
        }
        write(&mut letters.mail);
        drop(letters);
        if self.slumber.call(MAIL) {
            // It fails only when the counter is full, and then the loop is woken all the same.
            let _ = rustix::io::write(&self.notifier, &1u64.to_ne_bytes());
        }
    }

    /// The loop is about to sleep; false when it must not.
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

    /// The loop ends: what has come and what comes yet is dropped.
    pub(crate) fn close(&self) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.closed = true;
        let unread = std::mem::take(&mut letters.mail);
        drop(letters);
        drop(unread);
    }

    /// Everything that has come; the emptied lists go back to the senders.
    pub(crate) fn collect(&self, mail: &mut Mail) {
        self.slumber.take(MAIL);
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut letters.mail, mail);
    }
}

impl WakeTask for Mailbox {
    fn wake_task(&self, task: u32) {
        self.put(|mail| mail.woken.push(task));
    }
}
