//! The state of one loop that its connections share.

mod connections;
mod first_bytes;
mod gone;
mod ids;
mod lines;
mod parts;
mod rush;

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_engine::{Handle, Rank, Wake};
use weir_metrics::subjects::Cells;
use weir_metrics::{AllCounted, Metric, MetricsPage, Tally};
use weir_sys::lent::{Graveyard, Lent};
use weir_values::log::Writers;
use weir_values::status::StatusZone;
use weir_values::{ChangeAnswer, ChangeRequest, Command, Identity, Offset, Retire, doing};

use crate::counts::cells::Counts;
use crate::files::{Caches, TurnFiles};
use crate::request::Scratch;
use crate::site::Site;
use weir_resolver::Resolvers;
use weir_ssl::CertificateCache;
use weir_upstream::Group;

pub use first_bytes::FirstBytesGuess;
pub use gone::Gone;
use ids::Ids;
pub use parts::LoopKey;
use rush::Rush;

thread_local! {
    static CURRENT: RefCell<Option<Rc<LoopState>>> = const { RefCell::new(None) };
    /// Sites that this loop does not use any more. They are removed between two turns.
    static GONE: Graveyard<Site> = const { Graveyard::new() };
}

/// Adds counters to a status page. The flag: each server of large groups, too.
pub type Show = Box<dyn Fn(&AllCounted, bool, &mut MetricsPage)>;

/// Passes a command to the master, which has all processes execute it.
pub type Tell = Rc<dyn Fn(Command) -> std::io::Result<()>>;

/// Requests another configuration from the master.
pub type AskChange = Rc<dyn Fn(&ChangeRequest) -> ChangeAnswer>;

/// A connection that is notified when its worker retires or ends, and when another site takes over.
pub trait OnRetire {
    /// The loop retires.
    fn retiring(&self);
    /// The loop ends now. True if it must wait for a moment, since the client is notified.
    fn shut_down(&self) -> bool {
        false
    }
    /// Later requests belong to the site of this state.
    fn replaced(&self, next: &Rc<LoopState>);
}

/// The state that a loop's connections share, whichever site serves them. It outlives the sites.
pub(crate) struct Common {
    connections: Cell<usize>,
    inflight: Cell<usize>,
    /// The connections that other loops have taken over. They are counted in the two numbers above.
    pub(crate) gone: Arc<Gone>,
    retiring: Cell<Option<Retire>>,
    scratches: RefCell<Vec<Scratch>>,
    pausing: Cell<usize>,
    pub(crate) first_bytes: FirstBytesGuess,
    /// For each listening socket, the number of clients that sent bytes soon after the accept.
    spoke_soon: Box<[Cell<u64>]>,
    rush: Rush,
    /// The same for connections that pause with their tasks.
    rush_of_pauses: Rush,
    /// Whether a connection was accepted in this turn without an attempt to receive its first
    /// bytes.
    pub(crate) unasked: Cell<bool>,
    /// Connections that are notified when the worker ends, oldest first.
    links: RefCell<BTreeMap<u64, Weak<dyn OnRetire>>>,
    date: Cell<(i64, [u8; 29])>,
    /// The files that were opened in the current turn.
    pub(crate) turn_files: RefCell<TurnFiles>,
    /// The states of older sites, as long as requests use them.
    older: RefCell<Vec<Weak<LoopState>>>,
    /// Queues of access logs that still had lines when such a state was dropped, and queues of
    /// other loops that this loop has used. They are written when the loop ends.
    left_lines: RefCell<Vec<Writers>>,
    /// The last second for which the offset of the local time was computed, and the offset.
    offset: Offset,
    ids: Ids,
}

impl Common {
    /// The state of a new loop with this number of listening sockets.
    fn new(listens: usize) -> Common {
        Common {
            connections: Cell::new(0),
            inflight: Cell::new(0),
            gone: Arc::default(),
            retiring: Cell::new(None),
            scratches: RefCell::new(Vec::new()),
            pausing: Cell::new(0),
            first_bytes: FirstBytesGuess::default(),
            spoke_soon: (0..listens).map(|_| Cell::new(0)).collect(),
            rush: Rush::default(),
            rush_of_pauses: Rush::default(),
            unasked: Cell::new(false),
            links: RefCell::default(),
            turn_files: RefCell::default(),
            older: RefCell::default(),
            left_lines: RefCell::default(),
            date: Cell::new((i64::MIN, [b' '; 29])),
            offset: Offset::default(),
            ids: Ids::new(),
        }
    }
}

/// The state of a module in each loop, with hooks for the loop's start and end. All hooks default
/// to nothing.
pub trait LoopPart: Any {
    /// Called before the loop serves.
    fn init_process(&self, _: &Rc<LoopState>) {}
    /// Runs the parts of `init_process` that may fail, in a process that only tests the
    /// configuration.
    ///
    /// # Errors
    ///
    /// The message for the log.
    fn try_out(&self, _: &LoopState) -> Result<(), String> {
        Ok(())
    }
    /// Servers may have become available, so requests that wait for one check again.
    fn look(&self, _: &LoopState) {}
    /// Another site takes over for new requests. State that it can use is handed over, and
    /// background work of this site ends.
    fn replaced(&self, _: &LoopState, _next: &LoopState) {}
    /// The loop retires.
    fn retire(&self, _: &LoopState) {}
    /// Called when no connection is left, until it returns true: whether the loop may end.
    fn is_flushed(&self, _: &LoopState) -> bool {
        true
    }
    /// The loop has ended.
    fn exit_process(&self, _: &LoopState) {}
}

/// The parts of a loop that exist when modules make their state.
pub struct LoopStart<'a> {
    /// The loop.
    pub handle: &'a Handle,
    /// The site.
    pub site: &'static Site,
    /// The loop's identity.
    pub identity: Identity,
    /// This loop's counters.
    pub metrics: &'a Rc<Tally>,
    /// Its counters by name.
    pub cells: &'a Rc<Cells>,
    /// The state of the same loop with the previous site, if there was one.
    pub before: Option<&'a LoopState>,
}

/// A [`LoopKey`] of any type.
pub trait AnyLoopKey: Sync {
    /// Sets the index.
    fn settle(&self, at: usize);
    /// Makes the module's state in the loop.
    fn make(&self, start: &LoopStart<'_>) -> Box<dyn LoopPart>;
}

/// All modules' keys, in the order in which their hooks run.
pub type LoopKeys = &'static [&'static dyn AnyLoopKey];

impl std::fmt::Debug for dyn AnyLoopKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoopKey")
    }
}

/// The state of a loop with one site.
pub struct LoopState {
    /// The loop.
    pub handle: Handle,
    /// The site. After a change, another state of the same loop has the next site.
    pub site: &'static Site,
    /// The loop's identity.
    pub identity: Identity,
    /// This loop's counters.
    pub metrics: Rc<Tally>,
    /// The counters of all loops, for status pages.
    pub registry: weir_metrics::Registry,
    /// The counts by name.
    pub(crate) counts: Counts,
    /// Adds the counters of crates other than `http` to status pages.
    pub shown: OnceCell<Show>,
    /// Passes commands to the master.
    pub commands: OnceCell<Tell>,
    /// Passes other configurations to the master.
    pub asks_change: OnceCell<AskChange>,
    /// The zones of `stream`, for status pages.
    pub status_zones: OnceCell<&'static [Arc<StatusZone>]>,
    /// The groups of `stream`, for the API that changes their servers.
    pub stream_groups: OnceCell<Vec<Arc<Group>>>,
    /// The queue of access log lines.
    pub(crate) logs: Writers,
    /// The resolvers' cache.
    pub resolvers: Rc<Resolvers>,
    /// The states of modules.
    parts: Vec<Box<dyn LoopPart>>,
    /// The state that outlives a site.
    pub(crate) common: Rc<Common>,
    /// Whether another site serves new requests.
    replaced: Cell<bool>,
    /// `open_file_cache`
    pub(crate) file_caches: RefCell<Caches>,
    /// Certificates with variables in their names.
    pub(crate) certificates: CertificateCache<Arc<weir_tls::ServerConfig>>,
    /// Client certificates for upstream servers with variables in their names.
    pub(crate) upstream_certificates: CertificateCache<weir_tls::TlsClient>,
    /// The lease of `site`. Each request holds this state, and so does each task with a reference
    /// into the site.
    owner: Lent<Site>,
}

impl LoopState {
    /// Makes the state of this thread's loop. Connections find it when they wake.
    pub fn new(
        handle: Handle,
        site: Lent<Site>,
        identity: Identity,
        metrics: Rc<Tally>,
        cells: Rc<Cells>,
    ) -> Rc<LoopState> {
        let event_loop = LoopState::made(handle, site, identity, metrics, cells, None);
        event_loop.begin();
        event_loop
    }

    /// Makes the state of the same loop with another site, which serves new requests. It has the
    /// same listening sockets in the same order.
    pub fn succeed(self: &Rc<Self>, site: Lent<Site>) -> Rc<LoopState> {
        let (handle, metrics) = (self.handle.clone(), self.metrics.clone());
        let cells = self.counts.all().clone();
        let next = LoopState::made(handle, site, self.identity, metrics, cells, Some(self));
        self.replaced.set(true);
        self.counts.is_replaced.set(true);
        for part in &self.parts {
            part.replaced(self, &next);
        }
        let mut older = self.common.older.borrow_mut();
        older.retain(|state| state.strong_count() > 0);
        older.push(Rc::downgrade(self));
        drop(older);
        self.links().iter().for_each(|link| link.replaced(&next));
        doing::forget();
        next.begin();
        next
    }

    /// The connections that are notified when their loop ends.
    fn links(&self) -> Vec<Rc<dyn OnRetire>> {
        self.common.links.borrow().values().filter_map(Weak::upgrade).collect()
    }

    /// A lease of the site, for work on another thread.
    pub fn owner(&self) -> Lent<Site> {
        self.owner.clone()
    }

    /// Calls `work` for the states with older sites, and for this one, which is the newest.
    fn each_state(&self, mut work: impl FnMut(&LoopState)) {
        let older: Vec<_> = self.common.older.borrow().iter().filter_map(Weak::upgrade).collect();
        older.iter().for_each(|state| work(state));
        work(self);
    }

    fn begin(self: &Rc<Self>) {
        self.start_stapling();
        self.parts.iter().for_each(|part| part.init_process(self));
    }

    /// The state that serves new requests: this one, or that of a newer site.
    #[inline]
    pub fn newest(self: &Rc<Self>) -> Rc<LoopState> {
        match self.replaced.get() {
            false => Rc::clone(self),
            true => LoopState::current().unwrap_or_else(|| Rc::clone(self)),
        }
    }

    /// Whether another site serves new requests.
    #[inline]
    pub fn is_replaced(&self) -> bool {
        self.replaced.get()
    }

    /// Whether background work must end: the loop retires, or another site has taken over.
    pub fn is_over(&self) -> bool {
        self.replaced.get() || self.retiring()
    }

    /// Runs the site's `init_by_lua` as in a serving loop, and nothing else. The error is the
    /// message for the log.
    ///
    /// # Errors
    ///
    /// When the script fails.
    pub fn try_out(
        handle: Handle,
        site: Lent<Site>,
        identity: Identity,
        metrics: Rc<Tally>,
        cells: Rc<Cells>,
    ) -> Result<(), String> {
        let event_loop = LoopState::made(handle, site, identity, metrics, cells, None);
        event_loop.parts.iter().try_for_each(|part| part.try_out(&event_loop))
    }

    fn made(
        handle: Handle,
        owner: Lent<Site>,
        identity: Identity,
        metrics: Rc<Tally>,
        cells: Rc<Cells>,
        before: Option<&LoopState>,
    ) -> Rc<LoopState> {
        let site = owner.get();
        if site.loops.fetch_add(1, Ordering::Relaxed) == 0 {
            metrics.add(Metric::Sites, 1);
        }
        let common = match before {
            Some(before) => before.common.clone(),
            None => Rc::new(Common::new(site.listens().len())),
        };
        let registry = cells.registry();
        let counts = Counts::new(&site.status_zones, &cells);
        let log = &site.main.core.error_log;
        let start =
            LoopStart { handle: &handle, site, identity, metrics: &metrics, cells: &cells, before };
        let parts = site.loop_keys.iter().enumerate().map(|(at, key)| {
            key.settle(at);
            key.make(&start)
        });
        let parts = parts.collect();
        let logs = Writers::new(&site.log_targets, log);
        common.gone.set_lines(logs.clone());
        let event_loop = Rc::new(LoopState {
            handle,
            site,
            identity,
            metrics,
            registry,
            counts,
            shown: OnceCell::new(),
            commands: OnceCell::new(),
            asks_change: OnceCell::new(),
            status_zones: OnceCell::new(),
            stream_groups: OnceCell::new(),
            logs,
            resolvers: Resolvers::telling(log),
            parts,
            common,
            replaced: Cell::new(false),
            file_caches: RefCell::new(Caches::default()),
            certificates: CertificateCache::default(),
            upstream_certificates: CertificateCache::default(),
            owner,
        });
        CURRENT.with(|c| *c.borrow_mut() = Some(event_loop.clone()));
        event_loop
    }

    /// Starts to fetch OCSP responses for stapling, on one loop of each worker.
    fn start_stapling(self: &Rc<Self>) {
        if self.identity.index == 0 && !self.identity.agent {
            let known = Rc::downgrade(self);
            let retiring = move || known.upgrade().is_none_or(|event_loop| event_loop.is_over());
            weir_ssl::ocsp::staple::start(&self.handle, &self.site.staplings, retiring);
        }
    }

    /// The state of this thread's loop.
    pub fn current() -> Option<Rc<LoopState>> {
        CURRENT.try_with(|c| c.borrow().clone()).ok().flatten()
    }

    /// Drops the state of this thread's loop, which has ended. Later, finalizers of scripts would
    /// find thread locals destroyed.
    pub fn leave() {
        let ended = CURRENT.take();
        drop(ended);
    }

    /// Ends all connections except parked ones, which `connection` wakes.
    pub(crate) fn begin_retiring(&self, how: Retire) {
        self.common.retiring.set(Some(how));
        // A connection that ends at once leaves the list.
        self.links().iter().for_each(|link| link.retiring());
        self.each_state(|state| state.parts.iter().for_each(|part| part.retire(state)));
    }

    /// Ends the loop now, whatever its connections do. True if some notify their clients and need a
    /// moment for that.
    pub fn shut_down(&self) -> bool {
        let tell = self.links().iter().map(|link| link.shut_down()).filter(|tells| *tells).count();
        // After a reload, idle clients have been told nothing.
        tell + self.handle.unpark_all(Wake::Evicted) > 0
    }

    /// Makes requests that wait for a server check again.
    pub fn look(&self) {
        self.each_state(|state| state.parts.iter().for_each(|part| part.look(state)));
    }

    /// Drops what holds for the current turn only: open files, and the state of accepted
    /// connections.
    pub fn end_of_turn(&self) {
        self.common.unasked.set(false);
        self.common.turn_files.borrow_mut().close();
        if !self.common.older.borrow().is_empty() {
            self.give_up_sites();
        }
    }

    /// Frees sites that no request of this loop uses, on another thread, unless other loops use
    /// them.
    #[cold]
    fn give_up_sites(&self) {
        let gone = GONE.with(Graveyard::empty);
        if gone.is_empty() {
            return;
        }
        self.common.older.borrow_mut().retain(|state| state.strong_count() > 0);
        doing::forget();
        // If the pool's queue is full, they are freed here.
        let _ = self.handle.files().hand_over(Rank::Write, move || {
            drop(gone);
            weir_sys::allocator::give_back();
        });
    }

    /// Called when no connection is left: whether the timers of scripts have run and pending data
    /// were sent or given up.
    pub fn is_flushed(&self) -> bool {
        self.parts.iter().all(|part| part.is_flushed(self))
    }

    /// Whether responses must announce the end of the connection.
    pub fn retiring(&self) -> bool {
        self.common.retiring.get().is_some()
    }

    /// Whether the loop retires because other workers serve a newer configuration.
    pub fn has_successor(&self) -> bool {
        matches!(self.common.retiring.get(), Some(Retire::Reload))
    }

    /// Appends the current date, as in the header `Date`.
    pub fn write_date(&self, out: &mut Vec<u8>) {
        let now = self.handle.wall().secs;
        let (at, mut text) = self.common.date.get();
        if at != now {
            text = weir_proto::date::imf_fixdate(now);
            self.common.date.set((now, text));
        }
        out.extend_from_slice(&text);
    }

    /// The time: seconds since 1970 (UTC), and the offset of the local time in seconds.
    pub fn local_time(&self) -> (i64, i32) {
        self.common.offset.local_time(&self.handle)
    }

    /// An unpredictable number.
    pub fn random_word(&self) -> u64 {
        self.common.ids.next()
    }

    /// 16 unique bytes.
    pub fn random_id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.common.ids.next().to_ne_bytes());
        id[8..].copy_from_slice(&self.common.ids.next().to_ne_bytes());
        id
    }

    /// Adds the connection of this number to those that are notified when the worker ends.
    pub(crate) fn register_link(&self, number: u64, link: Weak<dyn OnRetire>) {
        self.common.links.borrow_mut().insert(number, link);
    }

    pub(crate) fn unregister_link(&self, number: u64) {
        self.common.links.borrow_mut().remove(&number);
    }
}

impl Drop for LoopState {
    /// No request on this loop uses the site any more.
    fn drop(&mut self) {
        if self.site.loops.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.metrics.sub(Metric::Sites, 1);
        }
        let mut left = self.common.left_lines.borrow_mut();
        left.iter().for_each(|lines| lines.flush(&self.handle));
        left.retain(|lines| !lines.is_empty());
        self.logs.flush(&self.handle);
        if !self.logs.is_empty() {
            left.push(std::mem::take(&mut self.logs));
        }
        let mut owner = Some(self.owner.clone());
        let _ = GONE.try_with(|gone| owner.take().map(|owner| gone.retire(owner)));
        // On a thread that ends, nothing is freed.
        std::mem::forget(owner);
    }
}
