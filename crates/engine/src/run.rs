//! The loop: runs one turn after the other.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Events, kind};
use crate::clock::{self, Clock};
use crate::inner::Inner;
use crate::remote::Mailbox;
use crate::seam;
use crate::steal::{GroupMember, Stolen};
use crate::token::{Token, TokenKind};
use crate::waiter::TimerTarget;
use crate::{Arm, BackendKind, Driver, Files, Handle, ListenerKey, Options, Turn, Wake};

/// An event loop. It belongs to the thread that made it.
pub struct Loop {
    handle: Handle,
    events: Events,
    due: Vec<TimerTarget>,
    /// A stolen connection, to be resumed in this turn.
    stolen: Option<Stolen>,
    /// The number of events of the last turn, including a stolen connection.
    handled: usize,
}

/// Totals at the start of a turn. Compared with those at its end, they say what the turn did.
#[derive(Clone, Copy)]
struct Before {
    accepts: u64,
    started: u64,
    ended: u64,
}

impl Loop {
    /// A loop without tasks and sockets.
    pub fn new(options: &Options) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::new(options.notifier.as_ref())?);
        let mut backend = kind::make(options.backend, options.events)?;
        backend.watch(mailbox.notifier(), Token::NOTIFIER, Arm::Shared)?;
        let steal_group =
            options.steal_group.as_ref().zip(backend.instance()).and_then(|(group, instance)| {
                GroupMember::join(group, instance, Arc::clone(&mailbox))
            });
        if let Some(member) = &steal_group {
            backend.watch(member.timer(), Token::STALL_TIMER, Arm::Exclusive)?;
        }
        let clock = Clock::new(options.timer_resolution);
        let files = Files::new(options.files.clone(), options.pools.clone());
        let mut inner = Inner::new(clock, backend, files, mailbox, steal_group);
        inner.misses_ends = options.backend == BackendKind::Select;
        let handle = Handle(Rc::new(inner));
        let events = Events::default();
        Ok(Loop { handle, events, due: Vec::new(), stolen: None, handled: 0 })
    }

    /// A handle of this loop.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs until [`Handle::stop`]. An error means that the wait itself failed.
    pub fn run(&mut self, driver: &mut dyn Driver) -> io::Result<()> {
        self.handle.0.stopping.set(false);
        seam::begin();
        while !self.handle.0.stopping.get() {
            self.turn(driver)?;
        }
        Ok(())
    }

    fn turn(&mut self, driver: &mut dyn Driver) -> io::Result<()> {
        let h = self.handle.clone();
        let before = before(&h.0);
        let allowed = driver.before_wait(&h, h.now());
        self.wait(allowed, driver)?;
        let woke = h.now();
        h.0.laps.begin(h.0.clock.now_nanos());
        h.0.tasks.begin_turn();
        let events = self.events.len();
        self.handled = events + usize::from(self.stolen.is_some());
        if let Some(member) = &h.0.steal_group {
            member.note_ready(self.events.streams.len());
        }
        driver.after_wait(&h, woke);
        self.accept_events(&h, driver);
        driver.after_accepts(&h, woke);
        self.call_watches(&h);
        for (token, ready) in self.events.streams.drain(..) {
            h.0.deliver(&h, token, ready);
        }
        if let Some(stolen) = self.stolen.take() {
            h.0.guard(|| resume_stolen(&h, stolen));
        }
        run_tasks(&h);
        self.expire_timers(&h);
        run_last(&h, woke);
        h.0.laps.end();
        let after = self::before(&h.0);
        let turn = Turn {
            woke,
            events,
            accepts: (after.accepts - before.accepts) as usize,
            started: (after.started - before.started) as usize,
            ended: (after.ended - before.ended) as usize,
        };
        driver.end_of_turn(&h, &turn);
        Ok(())
    }

    fn wait(&mut self, allowed: Option<Duration>, driver: &mut dyn Driver) -> io::Result<()> {
        let inner = Rc::clone(&self.handle.0);
        self.events.clear();
        let now = inner.laps.latest();
        let timeout = sleep_time(&inner, allowed, now);
        if let Some(member) = &inner.steal_group {
            inner.backend.borrow_mut().limit(member.event_limit(self.handled, now));
            let looks = timeout != Some(Duration::ZERO) && member.any_is_late(now);
            if looks && driver.has_room() && self.poll_or_steal(&inner, member, now)? {
                return Ok(());
            }
        }
        self.sleep(&inner, timeout)
    }

    /// Polls once more instead of sleeping. If this loop has no events, steals a connection from a
    /// stalled loop. False if neither found anything.
    fn poll_or_steal(&mut self, inner: &Inner, member: &GroupMember, now: u64) -> io::Result<bool> {
        inner.backend.borrow_mut().wait(Some(Duration::ZERO), &mut self.events)?;
        if self.events.len() == 0 {
            self.stolen = member.steal(now);
        }
        let found = self.events.len() > 0 || self.stolen.is_some();
        if found {
            inner.clock.refresh();
            member.publish_turn(inner.clock.now_nanos());
        }
        Ok(found)
    }

    fn sleep(&mut self, inner: &Inner, mut timeout: Option<Duration>) -> io::Result<()> {
        let sleeps = timeout != Some(Duration::ZERO);
        if sleeps && !inner.mailbox.may_sleep() {
            timeout = Some(Duration::ZERO);
        }
        if let Some(member) = inner.steal_group.as_ref().filter(|_| sleeps) {
            member.clear_turn();
        }
        seam::holds(|| (inner.tasks.live(), inner.sources.borrow().len()));
        let waited = inner.backend.borrow_mut().wait(timeout, &mut self.events);
        if sleeps {
            inner.mailbox.awake();
        }
        inner.clock.refresh();
        if let Some(member) = &inner.steal_group {
            member.publish_turn(inner.clock.now_nanos());
        }
        waited
    }

    /// Handles accept events first. A loop that is awake and has not accepted holds a wake-up that
    /// another loop could have used.
    fn accept_events(&mut self, h: &Handle, driver: &mut dyn Driver) {
        for token in &self.events.watched {
            if token.kind() == TokenKind::Listener {
                h.0.guard(|| driver.acceptable(h, ListenerKey(token.key())));
                h.0.laps.lap();
            }
        }
    }

    /// Calls the watches of foreign descriptors that are readable.
    fn call_watches(&mut self, h: &Handle) {
        for token in &self.events.watched {
            match token.kind() {
                TokenKind::Foreign => {
                    h.0.call_watch(h, token.key());
                    h.0.laps.lap();
                }
                TokenKind::Own if *token == Token::STALL_TIMER => {
                    h.0.steal_group.iter().for_each(GroupMember::timer_fired);
                }
                TokenKind::Own => h.0.mailbox.clear_notifier(),
                TokenKind::Listener | TokenKind::Stream => {}
            }
        }
    }

    fn expire_timers(&mut self, h: &Handle) {
        h.0.wheel.borrow_mut().advance(h.0.clock.tick(), &mut self.due);
        if self.due.is_empty() {
            return;
        }
        for target in self.due.drain(..) {
            h.0.expire(h, target);
        }
        run_tasks(h);
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.handle.0.clear(&self.handle);
    }
}

/// Whether several Unix-domain sockets may listen at one address, as TCP sockets may with
/// SO_REUSEPORT. The kernel forbids it. In the simulated world, which has Unix-domain sockets in
/// place of TCP's, it is possible.
#[must_use]
pub fn unix_sockets_share_addresses() -> bool {
    seam::unix_sockets_share_addresses()
}

/// Tells the simulated world that this thread becomes loop `number`, counted over the whole life of
/// the server. Without a simulated world it does nothing.
pub fn born(number: usize) {
    seam::born(number);
}

fn before(inner: &Inner) -> Before {
    let (started, ended) = inner.tasks.totals();
    Before { accepts: inner.accepts.get(), started, ended }
}

/// Resumes a stolen connection on this loop. The connection is closed if the loop cannot take the
/// socket.
fn resume_stolen(h: &Handle, stolen: Stolen) {
    match stolen {
        Stolen::Idle(fd, idle) => {
            if let Ok(stream) = h.stream(fd) {
                idle.resume(h, stream, Wake::Ready);
            }
        }
        Stolen::Joined([first, second], joined) => {
            if let (Ok(first), Ok(second)) = (h.stream(first), h.stream(second)) {
                joined.go_on(h, [first, second]);
            }
        }
    }
}

fn run_tasks(h: &Handle) {
    let inner = &h.0;
    if let Some(member) = &inner.steal_group
        && (inner.tasks.runnable()
            || inner.mailbox.has_mail()
            || !inner.resumable.borrow().is_empty())
    {
        member.set_timer();
    }
    inner.tasks.run(
        || {
            inner.read_mail(h);
            inner.resume_readable(h);
        },
        || inner.laps.lap(),
        |panic| inner.panicked(panic),
    );
}

/// Runs heavy work and tasks that have used up their budgets, one piece at a time. It stops when
/// they have taken as long as the rest of the turn. So they at most double a turn, or prolong it by
/// one piece.
fn run_last(h: &Handle, woke: Instant) {
    if h.0.heavy.is_empty() && !h.0.tasks.any_spent() {
        return;
    }
    let began = clock::read();
    let share = began.saturating_duration_since(woke);
    while h.0.call_heavy() | h.0.tasks.resume_spent() {
        run_tasks(h);
        if clock::read().saturating_duration_since(began) >= share {
            return;
        }
    }
}

/// How long the wait may last. Measured from `now`, since the turn's time is older and timers would
/// fire late.
fn sleep_time(inner: &Inner, allowed: Option<Duration>, now: u64) -> Option<Duration> {
    let work =
        inner.tasks.runnable() || !inner.resumable.borrow().is_empty() || !inner.heavy.is_empty();
    if work || inner.stopping.get() {
        return Some(Duration::ZERO);
    }
    let timer = inner.wheel.borrow().next().map(|tick| inner.clock.until(tick, now));
    match (timer, allowed) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
