//! Resolves names while requests are served, without blocking the loop. nginx: ngx_resolver.c.
//!
//! Each loop caches answers, for their TTL or for `valid=`. It asks once for all requests that wait
//! for a name. Clients may choose the names, so everything is bounded: cached names, pending
//! queries, sockets and connections.
//!
//! - In: a name, and the `resolver` lines of a block.
//! - Out: addresses or services with their expiry, or the reason why there are none.
//! - Callers: `http`, `stream`, `upstream` and `ssl`, on a loop.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
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

/// The most names that are asked for at a time. Another one replaces the oldest.
const ASKED: usize = 1024;

/// Why a name has no addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unresolved {
    /// The error code (RCODE) of a name server.
    Code(u8),
    /// No name server answered in time.
    TimedOut,
    /// Too many other names are being asked for.
    Crowded,
}

impl Unresolved {
    /// The name does not exist (NXDOMAIN).
    pub const NO_SUCH_NAME: Unresolved = Unresolved::Code(3);
}

impl fmt::Display for Unresolved {
    /// `3: Host not found`, as in nginx's log lines.
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

/// The addresses of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The addresses. Answers from the cache are rotated.
    pub addresses: Vec<IpAddr>,
    /// When they expire.
    pub until: Instant,
}

/// One server of a service: an SRV record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The priority; lower is better.
    pub priority: u16,
    /// Its share among servers of the same priority.
    pub weight: u16,
    /// Its port.
    pub port: u16,
    /// Its name.
    pub target: String,
}

/// The servers of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Services {
    /// The servers.
    pub list: Vec<Service>,
    /// When the list expires.
    pub until: Instant,
}

type Resolution = Result<Resolved, Unresolved>;

/// The resolvers of a loop, one for each distinct `resolver` line of the sites that there are.
#[derive(Default)]
pub struct Resolvers {
    list: RefCell<Vec<Rc<Resolver>>>,
    log: OnceCell<Arc<Log>>,
}

thread_local! {
    static CURRENT: Rc<Resolvers> = Rc::default();
}

impl Resolvers {
    /// The resolvers of this thread's loop. All that the loop serves shares their caches.
    pub fn of_loop() -> Rc<Resolvers> {
        CURRENT.with(Rc::clone)
    }

    /// As [`Resolvers::of_loop`]. Errors of name servers go to this log, unless another one was set
    /// before.
    pub fn telling(log: &Arc<Log>) -> Rc<Resolvers> {
        let all = Resolvers::of_loop();
        all.log.get_or_init(|| log.clone());
        all
    }

    /// The loop's resolver for a `resolver` line.
    pub fn of(&self, conf: &Arc<ResolverConf>) -> Rc<Resolver> {
        let mut list = self.list.borrow_mut();
        if let Some(known) = list.iter().find(|resolver| resolver.is_of(conf)) {
            return known.clone();
        }
        list.retain(|resolver| resolver.is_used());
        let new = Rc::new(Resolver::new(conf));
        list.push(new.clone());
        new
    }
}

/// The state of one `resolver` line.
pub struct Resolver {
    conf: ResolverConf,
    /// The line as a site has it. Sites come and go with changes of the configuration.
    line: RefCell<Weak<ResolverConf>>,
    known: RefCell<NameCache>,
    /// The names that are being asked for.
    asked: RefCell<HashMap<String, Rc<PendingName>>>,
    /// The number of queries so far.
    questions: Cell<u64>,
    sockets: RefCell<HashMap<SocketAddr, Sockets>>,
    /// Open TCP connections to name servers.
    connections: Cell<u32>,
    /// The server that the next query begins with, so that all take turns.
    next: Cell<usize>,
    rotation: Cell<usize>,
}

/// A name that is being asked for. Its task runs as long as requests wait for the answer.
struct PendingName {
    /// Numbers grow with time.
    number: u64,
    outcome: RefCell<Option<Resolution>>,
    waiting: RefCell<HashMap<u64, Waker>>,
    /// How many requests wait, and how many have joined so far.
    waiters: Cell<u32>,
    joined: Cell<u64>,
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
            joined: Cell::new(0),
            task: Cell::default(),
        }
    }

    fn join(self: Rc<Self>) -> PendingRequest {
        let number = self.joined.get();
        self.joined.set(number + 1);
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

    /// For the task: waits until no request waits any more, or the query was given up.
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
    fn new(conf: &Arc<ResolverConf>) -> Resolver {
        Resolver {
            conf: (**conf).clone(),
            line: RefCell::new(Arc::downgrade(conf)),
            known: RefCell::default(),
            asked: RefCell::default(),
            questions: Cell::new(0),
            sockets: RefCell::default(),
            connections: Cell::new(0),
            next: Cell::new(0),
            rotation: Cell::new(1),
        }
    }

    /// Whether this is the resolver for a line.
    fn is_of(&self, conf: &Arc<ResolverConf>) -> bool {
        let is_known = std::ptr::eq(self.line.borrow().as_ptr(), Arc::as_ptr(conf));
        if !is_known && self.conf == **conf {
            self.line.replace(Arc::downgrade(conf));
            return true;
        }
        is_known
    }

    /// Whether a site has the line, or a request uses the resolver.
    fn is_used(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) > 1 || self.line.borrow().strong_count() > 0
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
        match either(waiter.answer(), expiry(handle, timeout)).await {
            // As in nginx, a fresh answer keeps the order of the name server.
            Either::Left(outcome) => outcome,
            Either::Right(()) => Err(timed_out()),
        }
    }

    /// The servers of a service. The answer is not cached, since only the caller needs it.
    pub async fn services(
        &self,
        handle: &Handle,
        name: &str,
        timeout: Duration,
    ) -> Result<Services, Unresolved> {
        match either(ask::services(self, handle, name), expiry(handle, timeout)).await {
            Either::Left(outcome) => outcome,
            Either::Right(()) => Err(timed_out()),
        }
    }

    /// The name of an address. The answer is not cached, since only the caller needs it.
    pub async fn pointer(
        &self,
        handle: &Handle,
        ip: IpAddr,
        timeout: Duration,
    ) -> Result<String, Unresolved> {
        match either(ask::pointer(self, handle, ip), expiry(handle, timeout)).await {
            Either::Left(outcome) => outcome,
            Either::Right(()) => Err(timed_out()),
        }
    }

    /// Rotates the addresses, so that connections are spread over them.
    fn rotated(&self, mut found: Resolved) -> Resolved {
        let n = self.rotation.get();
        self.rotation.set(n.wrapping_add(1));
        let len = found.addresses.len().max(1);
        found.addresses.rotate_left(n % len);
        found
    }

    /// The pending query for a name. Starts one, with its task, if there is none. The caller must
    /// join it at once.
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
                // Failures are not cached: the next request asks again.
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

    /// Gives up the oldest query, if there are too many. A server that works would have answered it
    /// long ago.
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

/// Logs an error of a name server to the loop's log.
fn tell(text: fmt::Arguments<'_>) {
    if let Some(log) = Resolvers::of_loop().log.get() {
        log.write(Level::Error, None, text);
    }
}

/// Waits for `resolver_timeout`; for ever if it is 0.
async fn expiry(handle: &Handle, timeout: Duration) {
    if timeout.is_zero() {
        return std::future::pending().await;
    }
    handle.sleep(timeout).await;
}

/// Counts of this process's queries and their outcomes, until a loop takes them.
static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// Whether a count is not 0.
static COUNTED: AtomicBool = AtomicBool::new(false);

/// Events that are counted. Their numbers are indices into `COUNTS`.
#[derive(Clone, Copy)]
enum LookupEvent {
    Asked,
    Failed,
    NotFound,
    TimedOut,
}

/// Counts of a process's queries to name servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LookupCounts {
    /// Queries that were sent.
    pub asked: u64,
    /// Queries that a name server refused or could not answer, or whose name server cannot be
    /// reached.
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

/// Counts and returns the error of a name server's answer.
fn answered(code: u8) -> Unresolved {
    let error = Unresolved::Code(code);
    let is_unknown = error == Unresolved::NO_SUCH_NAME;
    count(if is_unknown { LookupEvent::NotFound } else { LookupEvent::Failed });
    error
}

/// Takes the counts since the last call, if there are any.
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
