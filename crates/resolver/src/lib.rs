//! Finds the addresses of names while requests are served, without blocking the loop. nginx: ngx_resolver.c.
//!
//! Each loop keeps what it was told, for as long as the answers say or `valid=` does, and asks once for all
//! requests that wait for a name.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use weir_engine::{Either, Handle, either};
use weir_log::Log;

mod ask;
mod conf;

pub use conf::Conf;

/// Names kept at most; beyond that, those whose time is over make room.
const NAMES: usize = 4096;

/// Why a name has no addresses: a code of DNS, or that nobody answered in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unresolved {
    /// A name server's answer.
    Code(u8),
    /// No answer in time.
    TimedOut,
}

impl Unresolved {
    /// There is no such name.
    pub const NO_SUCH_NAME: Unresolved = Unresolved::Code(3);
}

impl fmt::Display for Unresolved {
    /// `3: Host not found`, as log lines of nginx have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (code, text) = match self {
            Unresolved::TimedOut => (110, "Operation timed out"),
            Unresolved::Code(1) => (1, "Format error"),
            Unresolved::Code(2) => (2, "Server failure"),
            Unresolved::Code(3) => (3, "Host not found"),
            Unresolved::Code(4) => (4, "Unimplemented"),
            Unresolved::Code(5) => (5, "Operation refused"),
            Unresolved::Code(code) => (u16::from(*code), "Unknown error"),
        };
        write!(f, "{code}: {text}")
    }
}

/// Addresses, and how long they hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The addresses, in an order that changes from answer to answer.
    pub addresses: Vec<IpAddr>,
    /// Until when.
    pub until: Instant,
}

/// One server of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Lower ones come first.
    pub priority: u16,
    /// Its share.
    pub weight: u16,
    /// Its port.
    pub port: u16,
    /// Its name.
    pub target: String,
}

/// The servers of a service, and how long that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Services {
    /// The servers.
    pub list: Vec<Service>,
    /// Until when.
    pub until: Instant,
}

type Outcome = Result<Found, Unresolved>;

/// The resolvers of a loop, one for each `resolver` line in use.
#[derive(Default)]
pub struct Resolvers {
    list: RefCell<Vec<Rc<Resolver>>>,
    log: OnceCell<Arc<Log>>,
}

thread_local! {
    static CURRENT: Rc<Resolvers> = Rc::default();
}

impl Resolvers {
    /// Those of this thread's loop: whoever serves on it shares what name servers have told.
    pub fn of_loop() -> Rc<Resolvers> {
        CURRENT.with(Rc::clone)
    }

    /// The same; of name servers that cannot be asked, this log tells, unless another one does.
    pub fn telling(log: &Arc<Log>) -> Rc<Resolvers> {
        let all = Resolvers::of_loop();
        all.log.get_or_init(|| log.clone());
        all
    }

    /// The loop's state for a `resolver` line.
    pub fn of(&self, conf: &Arc<Conf>) -> Rc<Resolver> {
        let mut list = self.list.borrow_mut();
        if let Some(known) = list.iter().find(|r| Arc::ptr_eq(&r.conf, conf) || r.conf == *conf) {
            return known.clone();
        }
        let new = Rc::new(Resolver::new(conf.clone()));
        list.push(new.clone());
        new
    }
}

/// What one `resolver` line knows.
pub struct Resolver {
    conf: Arc<Conf>,
    names: RefCell<HashMap<String, Name>>,
    /// Which server is asked next, so that all of them are in turn.
    next: Cell<usize>,
    rotation: Cell<usize>,
}

enum Name {
    Known(Found),
    Asked(Rc<Question>),
}

/// A name that is being asked for, and who waits for the answer.
#[derive(Default)]
struct Question {
    outcome: RefCell<Option<Outcome>>,
    waiting: RefCell<Vec<Waker>>,
    /// How many wait.
    waiters: Cell<u32>,
    /// How often somebody came to it after all others had left.
    revived: Cell<u32>,
    asker: RefCell<Option<Waker>>,
}

/// One who waits for an answer.
struct Waiter<'q>(&'q Question);

impl Question {
    /// Whoever comes when nobody waits any more has it asked again at once: the server may be back.
    fn join(&self) -> Waiter<'_> {
        if self.waiters.replace(self.waiters.get() + 1) == 0 {
            self.revived.set(self.revived.get() + 1);
            if let Some(asker) = self.asker.take() {
                asker.wake();
            }
        }
        Waiter(self)
    }

    /// Waits until it has been revived more often than so.
    async fn revived(&self, seen: u32) {
        std::future::poll_fn(|cx| {
            if self.revived.get() != seen {
                return Poll::Ready(());
            }
            *self.asker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiters.set(self.0.waiters.get().saturating_sub(1));
    }
}

impl Resolver {
    fn new(conf: Arc<Conf>) -> Resolver {
        Resolver { conf, names: RefCell::default(), next: Cell::new(0), rotation: Cell::new(1) }
    }

    /// The addresses of a name.
    pub async fn resolve(
        self: &Rc<Self>,
        handle: &Handle,
        name: &str,
        timeout: Duration,
    ) -> Outcome {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if let Some(found) = self.known(&name, handle.now()) {
            return Ok(self.rotated(found));
        }
        let question = self.question(handle, name);
        let _waiter = question.join();
        let answered = std::future::poll_fn(|cx| {
            if let Some(outcome) = &*question.outcome.borrow() {
                return Poll::Ready(outcome.clone());
            }
            let mut waiting = question.waiting.borrow_mut();
            if !waiting.iter().any(|w| w.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        });
        match either(answered, up(handle, timeout)).await {
            // What was just told has the order of the answer, as in nginx.
            Either::Left(outcome) => outcome,
            Either::Right(()) => Err(Unresolved::TimedOut),
        }
    }

    /// The servers of a service. Nobody else waits for it, so nothing is kept.
    pub async fn services(
        &self,
        handle: &Handle,
        name: &str,
        timeout: Duration,
    ) -> Result<Services, Unresolved> {
        match either(ask::services(self, handle, name), up(handle, timeout)).await {
            Either::Left(outcome) => outcome,
            Either::Right(()) => Err(Unresolved::TimedOut),
        }
    }

    fn known(&self, name: &str, now: Instant) -> Option<Found> {
        match self.names.borrow().get(name)? {
            Name::Known(found) if found.until > now => Some(found.clone()),
            _ => None,
        }
    }

    /// Connections spread over the addresses of a name.
    fn rotated(&self, mut found: Found) -> Found {
        let n = self.rotation.get();
        self.rotation.set(n.wrapping_add(1));
        let len = found.addresses.len().max(1);
        found.addresses.rotate_left(n % len);
        found
    }

    fn question(self: &Rc<Self>, handle: &Handle, name: String) -> Rc<Question> {
        if let Some(Name::Asked(question)) = self.names.borrow().get(&name) {
            return question.clone();
        }
        self.make_room(handle.now());
        let question = Rc::new(Question::default());
        self.names.borrow_mut().insert(name.clone(), Name::Asked(question.clone()));
        let (this, asked, loop_handle) = (self.clone(), question.clone(), handle.clone());
        handle.spawn(async move {
            let outcome = ask::ask(&this, &loop_handle, &name, &asked).await;
            this.answered(name, outcome, &asked);
        });
        question
    }

    fn answered(&self, name: String, outcome: Outcome, question: &Question) {
        let mut names = self.names.borrow_mut();
        match &outcome {
            Ok(found) => drop(names.insert(name, Name::Known(found.clone()))),
            // Failures are not kept: the next request asks again.
            Err(_) => drop(names.remove(&name)),
        }
        drop(names);
        *question.outcome.borrow_mut() = Some(outcome);
        for waker in question.waiting.take() {
            waker.wake();
        }
    }

    fn make_room(&self, now: Instant) {
        let mut names = self.names.borrow_mut();
        if names.len() >= NAMES {
            names.retain(|_, name| match name {
                Name::Known(found) => found.until > now,
                Name::Asked(_) => true,
            });
        }
        if names.len() >= NAMES {
            names.retain(|_, name| matches!(name, Name::Asked(_)));
        }
    }
}

/// When `resolver_timeout` is up: never, if it is 0.
async fn up(handle: &Handle, timeout: Duration) {
    if timeout.is_zero() {
        return std::future::pending().await;
    }
    handle.sleep(timeout).await;
}
