//! One loop's state of the `http` room: what its connections share.

mod first_bytes;
mod gone;
mod ids;
mod parts;
mod rush;

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_engine::{Handle, Rank, operation};
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

/// Rooms of ended requests that are kept for new ones.
const SCRATCHES: usize = 64;

thread_local! {
    static CURRENT: RefCell<Option<Rc<LoopState>>> = const { RefCell::new(None) };
    /// Sites that this loop has no use for any more. They go between two turns.
    static GONE: Graveyard<Site> = const { Graveyard::new() };
}

/// Adds figures to a status page, from what was counted under names; of many servers behind each one, if that was asked for.
pub type Show = Box<dyn Fn(&AllCounted, bool, &mut MetricsPage)>;

/// Passes a command on to the master, which has all processes carry it out.
pub type Tell = Rc<dyn Fn(Command) -> std::io::Result<()>>;

/// Asks the master for another configuration.
pub type AskChange = Rc<dyn Fn(&ChangeRequest) -> ChangeAnswer>;

/// A connection that is told when its worker begins to end, and when another site takes over.
pub trait OnRetire {
    /// The loop retires.
    fn retiring(&self);
    /// The loop ends now. True if it is to wait for a moment, since the client is told.
    fn shut_down(&self) -> bool {
        false
    }
    /// Requests that begin from now on belong to the site of this state.
    fn replaced(&self, next: &Rc<LoopState>);
}

/// What the connections of one loop share whatever site they are served by: it outlives each of the loop's sites.
pub(crate) struct Common {
    connections: Cell<usize>,
    inflight: Cell<usize>,
    /// Of both, what went to other loops.
    pub(crate) gone: Arc<Gone>,
    retiring: Cell<Option<Retire>>,
    scratches: RefCell<Vec<Scratch>>,
    pausing: Cell<usize>,
    pub(crate) first_bytes: FirstBytesGuess,
    /// For each listening socket, how many clients spoke soon after they were accepted.
    spoke_soon: Box<[Cell<u64>]>,
    rush: Rush,
    /// The same of connections that pause with their tasks.
    rush_of_pauses: Rush,
    /// In this turn a connection was accepted without being asked for its first bytes.
    pub(crate) unasked: Cell<bool>,
    /// Connections that are told of the worker's end, the oldest first.
    links: RefCell<BTreeMap<u64, Weak<dyn OnRetire>>>,
    date: Cell<(i64, [u8; 29])>,
    /// Files that the running turn has opened.
    pub(crate) turn_files: RefCell<TurnFiles>,
    /// The states with older sites, as long as requests hold them.
    older: RefCell<Vec<Weak<LoopState>>>,
    /// Lines of access logs that were on their way when such a state went, and the ways of other loops' that this one has
    /// used: written when the loop ends.
    left_lines: RefCell<Vec<Writers>>,
    /// The last second for which the time zone was asked, and its offset.
    offset: Offset,
    ids: Ids,
}

impl Common {
    /// That of a new loop with so many listening sockets.
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

/// What a module keeps in each loop, and what it does when the loop starts and ends. All hooks default to nothing.
pub trait LoopPart: Any {
    /// The loop is about to serve.
    fn init_process(&self, _: &Rc<LoopState>) {}
    /// Does what may fail of `init_process`, in a process that tries the configuration and does nothing else.
    ///
    /// # Errors
    ///
    /// What the log is told.
    fn try_out(&self, _: &LoopState) -> Result<(), String> {
        Ok(())
    }
    /// Servers may have become free: requests that wait for one look.
    fn look(&self, _: &LoopState) {}
    /// Another site serves the requests that begin from now on: what may be of use there goes over, and what is done beside
    /// requests ends.
    fn replaced(&self, _: &LoopState, _next: &LoopState) {}
    /// The loop begins to end.
    fn retire(&self, _: &LoopState) {}
    /// No connection is left: whether the loop may end, too. It is asked again until then.
    fn is_flushed(&self, _: &LoopState) -> bool {
        true
    }
    /// The loop has ended.
    fn exit_process(&self, _: &LoopState) {}
}

/// What there is of a loop when modules make their parts.
pub struct LoopStart<'a> {
    /// The loop.
    pub handle: &'a Handle,
    /// What it serves.
    pub site: &'static Site,
    /// Which loop this is.
    pub identity: Identity,
    /// This loop's counters.
    pub metrics: &'a Rc<Tally>,
    /// Its counters under names.
    pub cells: &'a Rc<Cells>,
    /// The same loop's state with the site before, if there was one.
    pub before: Option<&'a LoopState>,
}

/// A [`LoopKey`], whatever its type is.
pub trait AnyLoopKey: Sync {
    /// Takes its number in the list.
    fn settle(&self, at: usize);
    /// Makes the loop's part.
    fn make(&self, start: &LoopStart<'_>) -> Box<dyn LoopPart>;
}

/// All modules' keys, in the order in which their hooks run.
pub type LoopKeys = &'static [&'static dyn AnyLoopKey];

impl std::fmt::Debug for dyn AnyLoopKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoopKey")
    }
}

/// What the connections of one loop share.
pub struct LoopState {
    /// The loop.
    pub handle: Handle,
    /// What it serves. Another state of the same loop has the site that comes after it.
    pub site: &'static Site,
    /// Which loop this is.
    pub identity: Identity,
    /// This loop's counters.
    pub metrics: Rc<Tally>,
    /// All loops' counters, for the status pages.
    pub registry: weir_metrics::Registry,
    /// What it counts under names.
    pub(crate) counts: Counts,
    /// What others than `http` have to show there.
    pub shown: OnceCell<Show>,
    /// Takes the commands that all processes must carry out.
    pub commands: OnceCell<Tell>,
    /// Takes texts of other configurations.
    pub asks_change: OnceCell<AskChange>,
    /// What sessions are counted under, for the same.
    pub status_zones: OnceCell<&'static [Arc<StatusZone>]>,
    /// Servers that sessions are passed to, for the API that changes them.
    pub stream_groups: OnceCell<Vec<Arc<Group>>>,
    /// Lines of access logs on their way.
    pub(crate) logs: Writers,
    /// What name servers have told.
    pub resolvers: Rc<Resolvers>,
    /// What modules keep.
    parts: Vec<Box<dyn LoopPart>>,
    /// What outlives a site.
    pub(crate) common: Rc<Common>,
    /// Another site serves the requests that begin from now on.
    replaced: Cell<bool>,
    /// `open_file_cache`
    pub(crate) file_caches: RefCell<Caches>,
    /// Certificates with variables in their names.
    pub(crate) certificates: CertificateCache<Arc<weir_tls::ServerConfig>>,
    /// The same of certificates that servers are shown.
    pub(crate) upstream_certificates: CertificateCache<weir_tls::TlsClient>,
    /// The right to `site`. Each request, and each task with a reference into the site, holds the state that has it.
    owner: Lent<Site>,
}

impl LoopState {
    /// The state of this thread's loop; connections find it again when they wake.
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

    /// The state of the same loop with another site, which serves the requests that begin from now on. It listens where this
    /// one's does, in the same order.
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

    /// The connections that are told of what becomes of their loop.
    fn links(&self) -> Vec<Rc<dyn OnRetire>> {
        self.common.links.borrow().values().filter_map(Weak::upgrade).collect()
    }

    /// An owner of the site, for what another thread does with it.
    pub fn owner(&self) -> Lent<Site> {
        self.owner.clone()
    }

    /// The states with older sites, and this one, which is the newest.
    fn each_state(&self, mut work: impl FnMut(&LoopState)) {
        let older: Vec<_> = self.common.older.borrow().iter().filter_map(Weak::upgrade).collect();
        older.iter().for_each(|state| work(state));
        work(self);
    }

    fn begin(self: &Rc<Self>) {
        self.start_stapling();
        self.parts.iter().for_each(|part| part.init_process(self));
    }

    /// The state that serves the requests that begin now: this one, or that of a newer site.
    #[inline]
    pub fn newest(self: &Rc<Self>) -> Rc<LoopState> {
        match self.replaced.get() {
            false => Rc::clone(self),
            true => LoopState::current().unwrap_or_else(|| Rc::clone(self)),
        }
    }

    /// Whether another site serves the requests that begin from now on.
    #[inline]
    pub fn is_replaced(&self) -> bool {
        self.replaced.get()
    }

    /// Whether what is done beside requests is to end: the loop retires, or another site has taken over.
    pub fn is_over(&self) -> bool {
        self.replaced.get() || self.retiring()
    }

    /// Runs the site's `init_by_lua` as a loop would that serves it, and does nothing else; the error is what the log is told.
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

    /// Starts to fetch what is sent along with certificates, on one loop of each worker.
    fn start_stapling(self: &Rc<Self>) {
        if self.identity.index == 0 && !self.identity.agent {
            let known = Rc::downgrade(self);
            let retiring = move || known.upgrade().is_none_or(|event_loop| event_loop.is_over());
            weir_ssl::ocsp::staple::start(&self.handle, &self.site.staplings, retiring);
        }
    }

    /// The worker of this thread.
    pub fn current() -> Option<Rc<LoopState>> {
        CURRENT.try_with(|c| c.borrow().clone()).ok().flatten()
    }

    /// The loop of this thread has ended: what it keeps goes now. Later the thread would lack what scripts' finalizers use.
    pub fn leave() {
        let ended = CURRENT.take();
        drop(ended);
    }

    /// Begins the end of all but parked connections, which `connection` wakes.
    pub(crate) fn begin_retiring(&self, how: Retire) {
        self.common.retiring.set(Some(how));
        // One that ends at once leaves the list.
        self.links().iter().for_each(|link| link.retiring());
        self.each_state(|state| state.parts.iter().for_each(|part| part.retire(state)));
    }

    /// The loop ends now, whatever its connections are at. True if some tell their clients, and need a moment for that.
    pub fn shut_down(&self) -> bool {
        self.links().iter().map(|link| link.shut_down()).filter(|tells| *tells).count() > 0
    }

    /// Requests that wait for a server look whether there is one.
    pub fn look(&self) {
        self.each_state(|state| state.parts.iter().for_each(|part| part.look(state)));
    }

    /// What a turn has found out about files and newcomers does not hold in the next one.
    pub fn end_of_turn(&self) {
        self.common.unasked.set(false);
        self.common.turn_files.borrow_mut().close();
        if !self.common.older.borrow().is_empty() {
            self.give_up_sites();
        }
    }

    /// Sites that no request of this loop needs any more are freed by another thread, unless other loops have them.
    #[cold]
    fn give_up_sites(&self) {
        let gone = GONE.with(Graveyard::empty);
        if gone.is_empty() {
            return;
        }
        self.common.older.borrow_mut().retain(|state| state.strong_count() > 0);
        doing::forget();
        // A pool without room drops them here.
        let _ = self.handle.files().hand_over(Rank::Write, move || {
            drop(gone);
            weir_sys::allocator::give_back();
        });
    }

    /// Where the lines of a connection's requests go; `first` is where those of its first requests went, if they were
    /// another loop's.
    pub(crate) fn lines<'a>(&'a self, first: Option<&'a Writers>) -> &'a Writers {
        let is_others = |lines: &&Writers| lines.is_beside(&self.logs) && !lines.is(&self.logs);
        let Some(others) = first.filter(is_others) else { return &self.logs };
        let mut left = self.common.left_lines.borrow_mut();
        if !left.iter().any(|lines| lines.is(others)) {
            left.retain(|lines| !lines.is_empty());
            left.push(others.clone());
        }
        others
    }

    /// Waits until the lines of a connection's requests are in their files, as far as the disk is not slow.
    pub(crate) async fn logged(&self, first: Option<&Writers>) {
        self.lines(first).written(&self.handle).await;
    }

    /// Sends buffered lines of access logs to their files, through these queues.
    pub fn flush_logs(&self) -> Vec<Writers> {
        let mut queues = Vec::new();
        self.each_state(|state| {
            state.logs.flush(&state.handle);
            queues.push(state.logs.clone());
        });
        queues
    }

    /// Writes all lines of access logs that wait, and returns when that is done: the loop has ended.
    pub fn finish_logs(&self) {
        self.parts.iter().for_each(|part| part.exit_process(self));
        self.each_state(|state| state.logs.finish());
        self.common.left_lines.borrow().iter().for_each(Writers::finish);
    }

    /// No connection is left: whether its scripts' timers have run to their end, and it has sent what it had to tell, or given up.
    pub fn is_flushed(&self) -> bool {
        self.parts.iter().all(|part| part.is_flushed(self))
    }

    /// Whether answers must announce the connection's end.
    pub fn retiring(&self) -> bool {
        self.common.retiring.get().is_some()
    }

    /// It retires since other workers serve a newer configuration.
    pub fn has_successor(&self) -> bool {
        matches!(self.common.retiring.get(), Some(Retire::Reload))
    }

    /// How many clients of the listening socket of this number spoke soon after they were accepted.
    pub fn spoke_soon(&self, listen: usize) -> u64 {
        self.common.spoke_soon.get(listen).map_or(0, Cell::get)
    }

    /// Notes such a client.
    pub(crate) fn note_spoke_soon(&self, listen: usize) {
        if let Some(count) = self.common.spoke_soon.get(listen) {
            count.set(count.get() + 1);
        }
    }

    /// Open client connections.
    pub fn connections(&self) -> usize {
        self.common.connections.get().saturating_sub(self.common.gone.open())
    }

    /// Requests being processed, and connections without an answer to their first request yet.
    pub fn inflight(&self) -> usize {
        self.common.inflight.get().saturating_sub(self.common.gone.busy())
    }

    /// Appends the current date as a header's value.
    pub fn write_date(&self, out: &mut Vec<u8>) {
        let now = self.handle.wall().secs;
        let (at, mut text) = self.common.date.get();
        if at != now {
            text = weir_proto::date::imf_fixdate(now);
            self.common.date.set((now, text));
        }
        out.extend_from_slice(&text);
    }

    /// The time of day: seconds since 1970 (UTC), and the local zone's offset from it in seconds.
    pub fn local_time(&self) -> (i64, i32) {
        self.common.offset.local_time(&self.handle)
    }

    /// A number that cannot be foreseen.
    pub fn random_word(&self) -> u64 {
        self.common.ids.next()
    }

    /// 16 bytes that are not given out twice.
    pub fn random_id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.common.ids.next().to_ne_bytes());
        id[8..].copy_from_slice(&self.common.ids.next().to_ne_bytes());
        id
    }

    pub(crate) fn next_connection(&self) -> u64 {
        weir_values::next_connection()
    }

    /// One connection more: see [`Presence`](crate::connection::presence::Presence).
    pub(crate) fn open(&self) {
        self.metrics.add(Metric::Active, 1);
        self.arrived(false);
    }

    /// One connection more here, and one less in another loop of the worker: all together are as many as before.
    pub(crate) fn arrived(&self, busy: bool) {
        self.common.connections.set(self.common.connections.get() + 1);
        self.common.rush.grew(self.connections());
        if busy {
            self.busy();
        }
    }

    /// One connection less.
    pub(crate) fn closed(&self) {
        self.metrics.sub(Metric::Active, 1);
        self.left();
    }

    /// One connection less here, which another loop of the worker counts, too.
    pub(crate) fn left(&self) {
        self.common.connections.set(self.common.connections.get().saturating_sub(1));
        if self.common.rush.shrank(self.connections()) {
            self.handle.spawn(calm_down(|l| l.common.rush.is_calm(l.connections())));
        }
    }

    pub(crate) fn busy(&self) {
        self.common.inflight.set(self.common.inflight.get() + 1);
    }

    pub(crate) fn idle(&self) {
        self.common.inflight.set(self.common.inflight.get().saturating_sub(1));
    }

    /// Remembers the connection of this number, to tell it of the worker's end.
    pub(crate) fn register_link(&self, number: u64, link: Weak<dyn OnRetire>) {
        self.common.links.borrow_mut().insert(number, link);
    }

    pub(crate) fn unregister_link(&self, number: u64) {
        self.common.links.borrow_mut().remove(&number);
    }

    /// A place among the connections that keep their tasks between two requests; none beyond `most`.
    pub(crate) fn pausing(self: &Rc<Self>, most: usize) -> Option<Pausing> {
        let n = self.common.pausing.get();
        (n < most).then(|| {
            self.common.pausing.set(n + 1);
            self.common.rush_of_pauses.grew(n + 1);
            Pausing(self.clone())
        })
    }

    pub(crate) fn take_scratch(&self) -> Scratch {
        self.common.scratches.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a room for the next connection, as new. There is no other way for a room to be kept.
    pub(crate) fn give_scratch(&self, mut scratch: Scratch) {
        scratch.renew();
        let mut kept = self.common.scratches.borrow_mut();
        if kept.len() < SCRATCHES {
            kept.push(scratch);
        }
    }
}

impl Drop for LoopState {
    /// No request needs its site on this loop any more.
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
        // A thread that ends frees nothing.
        std::mem::forget(owner);
    }
}

/// Gives memory back after a rush, unless the next rush is there by then.
async fn calm_down(is_calm: impl FnOnce(&LoopState) -> bool) {
    let Some(event_loop) = LoopState::current() else { return };
    event_loop.handle.sleep(rush::CALM).await;
    // The pages of a hundred megabytes take milliseconds: tasks that are ready go first.
    event_loop.handle.heavy().await;
    if is_calm(&event_loop) {
        operation("giving memory back", || {
            event_loop.common.scratches.take();
            event_loop.handle.free_spare();
            weir_sys::allocator::give_back();
        });
    }
}

/// A place that is given back when it is dropped.
pub(crate) struct Pausing(Rc<LoopState>);

impl Drop for Pausing {
    fn drop(&mut self) {
        let event_loop = &self.0;
        let left = event_loop.common.pausing.get().saturating_sub(1);
        event_loop.common.pausing.set(left);
        if event_loop.common.rush_of_pauses.shrank(left) {
            event_loop
                .handle
                .spawn(calm_down(|l| l.common.rush_of_pauses.is_calm(l.common.pausing.get())));
        }
    }
}
