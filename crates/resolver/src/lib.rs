//! Finds the addresses of names while requests are served, without blocking the loop. nginx: ngx_resolver.c.
//!
//! Each loop caches answers, for their time to live or for `valid=`, and asks once for all requests
//! that wait for a name. Clients may choose the names, so all of it is bounded: cached names,
//! waiting questions, sockets and connections.
//!
//! - In: a name, and the `resolver` lines of a block.
//! - Out: addresses or services with their time to live, or why there are none.
//! - Callers: `http`, `stream`, `upstream` and `ssl`, on a loop.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use weir_engine::{Either, Handle, either};
use weir_log::{Level, Log};

mod ask;
mod conf;
mod known;
mod socket;
#[cfg(test)]
mod tests;

pub use conf::ResolverConf;

use known::NameCache;
use socket::Sockets;

/// So many names are asked for at once. Another one takes the place of the oldest.
const ASKED: usize = 1024;

/// Why a name has no addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unresolved {
    /// A name server's answer.
    Code(u8),
    /// No answer in time.
    TimedOut,
    /// Too many other names were asked for.
    Crowded,
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
            Unresolved::Crowded => (11, "Too many names are asked for"),
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
pub struct Resolved {
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

type Resolution = Result<Resolved, Unresolved>;

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
    /// Those of this thread's loop: all that it serves shares what name servers have told.
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
    pub fn of(&self, conf: &Arc<ResolverConf>) -> Rc<Resolver> {
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
    conf: Arc<ResolverConf>,
    known: RefCell<NameCache>,
    /// The names that are being asked for.
    asked: RefCell<HashMap<String, Rc<PendingName>>>,
    /// How many questions there have been.
    questions: Cell<u64>,
    sockets: RefCell<HashMap<SocketAddr, Sockets>>,
    /// Connections of TCP to name servers.
    connections: Cell<u32>,
    /// Which server is asked next, so that all of them are in turn.
    next: Cell<usize>,
    rotation: Cell<usize>,
}

/// A name that is being asked for. Its task asks as long as requests wait for the answer.
struct PendingName {
    /// Older ones have lower numbers.
    number: u64,
    outcome: RefCell<Option<Resolution>>,
    waiting: RefCell<HashMap<u64, Waker>>,
    /// How many requests wait, and how many have come.
    waiters: Cell<u32>,
    came: Cell<u64>,
    task: Cell<Option<Waker>>,
}

/// A request that waits for an answer.
struct PendingRequest {
    question: Rc<PendingName>,
    number: u64,
}

impl PendingName {
    fn new(number: u64) -> PendingName {
        PendingName {
            number,
            outcome: RefCell::default(),
            waiting: RefCell::default(),
            waiters: Cell::new(0),
            came: Cell::new(0),
            task: Cell::default(),
        }
    }

    fn join(self: Rc<Self>) -> PendingRequest {
        let number = self.came.get();
        self.came.set(number + 1);
        self.waiters.set(self.waiters.get() + 1);
        PendingRequest { question: self, number }
    }

    fn answer(&self, outcome: Resolution) {
        *self.outcome.borrow_mut() = Some(outcome);
        for (_, waker) in self.waiting.take() {
            waker.wake();
        }
        self.wake_task();
    }

    fn wake_task(&self) {
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    /// For its task: waits until no request waits any more, or it was answered otherwise.
    async fn over(&self) {
        poll_fn(|cx| {
            if self.waiters.get() == 0 || self.outcome.borrow().is_some() {
                return Poll::Ready(());
            }
            self.task.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

impl PendingRequest {
    async fn answer(&self) -> Resolution {
        let question = &self.question;
        poll_fn(|cx| {
            if let Some(outcome) = &*question.outcome.borrow() {
                return Poll::Ready(outcome.clone());
            }
            question.waiting.borrow_mut().insert(self.number, cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let question = &self.question;
        question.waiting.borrow_mut().remove(&self.number);
        question.waiters.set(question.waiters.get().saturating_sub(1));
        if question.waiters.get() == 0 {
            question.wake_task();
        }
    }
}

impl Resolver {
    fn new(conf: Arc<ResolverConf>) -> Resolver {
        Resolver {
            conf,
            known: RefCell::default(),
            asked: RefCell::default(),
            questions: Cell::new(0),
            sockets: RefCell::default(),
            connections: Cell::new(0),
            next: Cell::new(0),
            rotation: Cell::new(1),
        }
    }

    /// The addresses of a name.
    pub async fn resolve(
        self: &Rc<Self>,
        handle: &Handle,
        name: &str,
        timeout: Duration,
    ) -> Resolution {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let known = self.known.borrow_mut().find(&name, handle.now());
        if let Some(found) = known {
            return Ok(self.rotated(found));
        }
        let waiter = self.question(handle, name).join();
        match either(waiter.answer(), up(handle, timeout)).await {
            // What was just told has the order of the answer, as in nginx.
            Either::Left(outcome) => outcome,
            Either::Right(()) => Err(timed_out()),
        }
    }

    /// The servers of a service. Only the caller waits for it, so nothing is kept.
    pub async fn services(
        &self,
        handle: &Handle,
        name: &str,
        timeout: Duration,
    ) -> Result<Services, Unresolved> {
        match either(ask::services(self, handle, name), up(handle, timeout)).await {
            Either::Left(outcome) => outcome,
            Either::Right(()) => Err(timed_out()),
        }
    }

    /// The name of an address. Only the caller waits for it, so nothing is kept.
    pub async fn pointer(
        &self,
        handle: &Handle,
        ip: IpAddr,
        timeout: Duration,
    ) -> Result<String, Unresolved> {
        match either(ask::pointer(self, handle, ip), up(handle, timeout)).await {
            Either::Left(outcome) => outcome,
            Either::Right(()) => Err(timed_out()),
        }
    }

    /// Connections spread over the addresses of a name.
    fn rotated(&self, mut found: Resolved) -> Resolved {
        let n = self.rotation.get();
        self.rotation.set(n.wrapping_add(1));
        let len = found.addresses.len().max(1);
        found.addresses.rotate_left(n % len);
        found
    }

    /// The question for a name; starts its task if there was none. The caller joins it at once.
    fn question(self: &Rc<Self>, handle: &Handle, name: String) -> Rc<PendingName> {
        if let Some(question) = self.asked.borrow().get(&name) {
            return question.clone();
        }
        self.make_room();
        let number = self.questions.get();
        self.questions.set(number + 1);
        let question = Rc::new(PendingName::new(number));
        self.asked.borrow_mut().insert(name.clone(), question.clone());
        let (this, asked, loop_handle) = (self.clone(), question.clone(), handle.clone());
        handle.spawn(async move {
            let answer = either(ask::ask(&this, &loop_handle, &name), asked.over()).await;
            this.forget(&name, &asked);
            if let Either::Left(outcome) = answer {
                // Failures are not kept: the next request asks again.
                if let Ok(found) = &outcome {
                    this.known.borrow_mut().keep(name, found.clone());
                }
                asked.answer(outcome);
            }
        });
        question
    }

    fn forget(&self, name: &str, question: &Rc<PendingName>) {
        let mut asked = self.asked.borrow_mut();
        if asked.get(name).is_some_and(|other| Rc::ptr_eq(other, question)) {
            asked.remove(name);
        }
    }

    /// Gives up the oldest question, where there are too many. A server that answers has answered it long ago.
    fn make_room(&self) {
        let mut asked = self.asked.borrow_mut();
        if asked.len() < ASKED {
            return;
        }
        let oldest = asked.iter().min_by_key(|(_, question)| question.number);
        let Some(name) = oldest.map(|(name, _)| name.clone()) else { return };
        let question = asked.remove(&name);
        drop(asked);
        if let Some(question) = question {
            question.answer(Err(Unresolved::Crowded));
        }
    }
}

/// The loop's log hears of what name servers do wrong.
fn tell(text: fmt::Arguments<'_>) {
    if let Some(log) = Resolvers::of_loop().log.get() {
        log.write(Level::Error, None, text);
    }
}

/// When `resolver_timeout` is up: never, if it is 0.
async fn up(handle: &Handle, timeout: Duration) {
    if timeout.is_zero() {
        return std::future::pending().await;
    }
    handle.sleep(timeout).await;
}

/// What this process has asked name servers, and what became of it, until a loop takes it.
static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// There is something to be taken.
static COUNTED: AtomicBool = AtomicBool::new(false);

/// What is counted; the numbers are places among the counts.
#[derive(Clone, Copy)]
enum LookupEvent {
    Asked,
    Failed,
    NotFound,
    TimedOut,
}

/// What a process has asked name servers, and what became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LookupCounts {
    /// Questions.
    pub asked: u64,
    /// Questions that a name server refused or could not answer, or whose name server cannot be reached.
    pub failed: u64,
    /// Names that do not exist.
    pub not_found: u64,
    /// Times that a name server did not answer in time.
    pub timed_out: u64,
}

fn count(event: LookupEvent) {
    if let Some(word) = COUNTS.get(event as usize) {
        word.fetch_add(1, Ordering::Relaxed);
        COUNTED.store(true, Ordering::Release);
    }
}

fn timed_out() -> Unresolved {
    count(LookupEvent::TimedOut);
    Unresolved::TimedOut
}

/// A name server's answer is an error.
fn answered(code: u8) -> Unresolved {
    let error = Unresolved::Code(code);
    let is_unknown = error == Unresolved::NO_SUCH_NAME;
    count(if is_unknown { LookupEvent::NotFound } else { LookupEvent::Failed });
    error
}

/// What this process has asked since the last call, if anything.
#[inline]
pub fn take_counts() -> Option<LookupCounts> {
    if !COUNTED.load(Ordering::Relaxed) {
        return None;
    }
    COUNTED.swap(false, Ordering::Acquire);
    let [asked, failed, not_found, timed_out] =
        [0, 1, 2, 3].map(|at: usize| COUNTS[at].swap(0, Ordering::Relaxed));
    Some(LookupCounts { asked, failed, not_found, timed_out })
}
