//! Answers that are kept for later requests, whatever the protocol. nginx: ngx_http_file_cache.c and the cache's
//! part of ngx_http_upstream.c.
//!
//! A request's way: `begin` finds its key, `lookup` what is there, `hit` sends that. Else a server is asked;
//! `judge` says from the head of its answer whether it is kept, and `relay` passes it on while it is stored.

mod conf;
mod hit;
mod judge;
mod lookup;
mod path;
pub mod purge;
mod relay;
mod stale;
mod tasks;
mod unlisted;
mod variables;

pub(crate) use conf::cache_directives;
pub use conf::{Caching, Zone, methods, predicates, valid, zone};
pub use hit::Kept;
pub use path::set_path;
pub use relay::{go_on, relay};
pub use tasks::start;
pub use variables::define;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use weir_cache::{Cache, CacheEntry, CacheKey, Fill, Freshness, MissingRest, Ticket};
use weir_log::Level;
use weir_metrics::Metric;
use weir_proto::http1::Method;
use weir_upstream::{Failure, Failures};

use super::passing::Passing;
use super::protocol::{Answer, Protocol};
use crate::counts::CacheCell;
use crate::phases::Step;
use crate::request::Request;
use weir_values::Template;

/// What a request had from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Nothing.
    Miss,
    /// It was not to be asked.
    Bypass,
    /// Something too old, which is updated.
    Expired,
    /// Something too old, since there is nothing better.
    Stale,
    /// Something too old, while another request updates it.
    Updating,
    /// Something too old that is as good as new.
    Revalidated,
    /// An answer.
    Hit,
}

impl Status {
    /// As `$upstream_cache_status` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Status::Miss => "MISS",
            Status::Bypass => "BYPASS",
            Status::Expired => "EXPIRED",
            Status::Stale => "STALE",
            Status::Updating => "UPDATING",
            Status::Revalidated => "REVALIDATED",
            Status::Hit => "HIT",
        }
    }
}

/// What is to be seen of what a request has to do with a cache, as long as the request is there.
#[derive(Debug)]
pub struct Shown {
    /// What it had from the cache.
    status: Cell<Status>,
    /// The server's answer may be kept.
    cacheable: Cell<bool>,
    /// The main key's text.
    text: Vec<u8>,
    /// What the server is asked about, whether it still stands.
    old: RefCell<Option<Arc<CacheEntry>>>,
    /// Where it is counted in the end: nowhere, if it is no request of a client.
    counted: Option<(CacheCell, Arc<Cache>)>,
}

impl Shown {
    fn new(text: Vec<u8>, status: Status, counted: Option<(CacheCell, Arc<Cache>)>) -> Rc<Shown> {
        let (status, cacheable) = (Cell::new(status), Cell::new(true));
        Rc::new(Shown { status, cacheable, text, old: RefCell::default(), counted })
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some((cell, cache)) = &self.counted {
            cell.asked(self.status.get() as usize);
            cell.evicted(cache);
        }
    }
}

/// The place of one answer in a cache. It goes with the answer, from the look at what is there to the end of the
/// body, and gives back what it holds wherever that ends.
#[derive(Debug)]
pub struct State {
    cache: Arc<Cache>,
    /// What the answer is stored under: the main key, or that of a variant.
    key: CacheKey,
    main: CacheKey,
    shown: Rc<Shown>,
    /// The right to update the key.
    ticket: Option<Ticket>,
    /// Where others wait for the answer.
    fill: Option<Arc<Fill>>,
    /// What is there, too old.
    old: Option<Kept>,
    /// What is asked for often may be in memory.
    memory: bool,
    /// The server is asked whether what is too old still stands.
    revalidate: bool,
    /// It may be used although it cannot be updated.
    stale_error: bool,
    /// It updates the key for another request, which has its answer already.
    background: bool,
    /// The client has the beginning of an answer, and the server is asked for this.
    rest: Option<Box<MissingRest>>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl State {
    fn new(cache: Arc<Cache>, shown: Rc<Shown>, caching: &Caching) -> State {
        let key = CacheKey::of(&shown.text);
        State {
            cache,
            key,
            main: key,
            shown,
            ticket: None,
            fill: None,
            old: None,
            memory: caching.memory > 0,
            revalidate: caching.revalidate,
            stale_error: false,
            background: false,
            rest: None,
        }
    }

    /// The same place, for a request that updates what is there; it has the right to do so from now on.
    fn hand_over(&mut self) -> State {
        State {
            cache: self.cache.clone(),
            key: self.key,
            main: self.main,
            shown: Shown::new(self.shown.text.clone(), Status::Miss, None),
            ticket: self.ticket.take(),
            fill: None,
            old: None,
            memory: self.memory,
            revalidate: self.revalidate,
            stale_error: false,
            background: true,
            rest: None,
        }
    }

    /// Who waits for this answer waits for nothing.
    fn withdraw(&mut self) {
        if let Some(fill) = self.fill.take() {
            self.cache.end(&self.key, &fill);
            fill.withdraw();
        }
    }

    fn give_back(&mut self) {
        self.withdraw();
        if let Some(ticket) = self.ticket.take() {
            self.cache.index.release(ticket);
        }
    }

    fn give_up(&mut self) {
        self.shown.cacheable.set(false);
        self.give_back();
    }

    /// The client has the beginning of an answer.
    pub fn has_begun(&self) -> bool {
        self.rest.is_some()
    }

    /// What is to be sent of an answer whose beginning the client has, if this one is the same, as far as its head tells.
    pub fn rest(
        &mut self,
        r: &Request,
        passing: &Passing,
        answer: &Answer,
    ) -> Option<Box<MissingRest>> {
        let (rest, said) = (self.rest.take()?, judge::judge(r, passing));
        let entry = &rest.entry;
        let same = (answer.status, answer.length) == (entry.status, rest.length)
            && said.last_modified == entry.last_modified
            && said.etag == entry.etag;
        same.then_some(rest)
    }

    /// All of the answer is in the fill.
    pub fn came(&self, fill: &Arc<Fill>) {
        self.cache.came(self.key, fill);
    }

    /// Whether something old is sent in place of an answer of this status.
    pub fn stands_in(&self, passing: &Passing, status: u16) -> bool {
        let caching = &*passing.caching;
        let may = self.shown.status.get() == Status::Expired && self.old.is_some();
        let unchanged = status == 304 && caching.revalidate;
        may && (unchanged || listed(caching, Failure::Status(status)))
    }
}

/// What comes of asking the cache.
pub enum Looked {
    /// This is the end of the request.
    Done(Step),
    /// A server is to be asked; where the answer belongs.
    Ask(Option<Box<State>>),
}

/// Asks the cache, where the location has one. `update`: the request is there to update this.
pub async fn look<P: Protocol>(
    r: &mut Request,
    passing: &'static Passing,
    protocol: &mut P,
    update: Option<Box<State>>,
) -> Looked {
    let caching = &*passing.caching;
    if let Some(step) = purge::asked(r, caching, protocol).await {
        return Looked::Done(step);
    }
    let begun = match update {
        Some(update) => Ok(Some(*update)),
        None => begin(r, passing, protocol),
    };
    let mut state = match begun {
        Ok(Some(state)) => state,
        Ok(None) => return Looked::Ask(None),
        Err(step) => return Looked::Done(step),
    };
    r.contexts.upstream.cache = Some(state.shown.clone());
    r.contexts.upstream.ask_with_get = r.method == Method::Head && caching.convert_head;
    if state.shown.status.get() == Status::Bypass {
        return Looked::Ask(Some(Box::new(state)));
    }
    let kept = match lookup::lookup(r, passing, &mut state).await {
        lookup::Found::Kept(kept) => kept,
        lookup::Found::Error(status) => {
            state.shown.status.set(Status::Hit);
            return Looked::Done(Step::Status(status));
        }
        lookup::Found::Gone => return Looked::Done(Step::Status(499)),
        lookup::Found::Nothing => {
            if beyond_offset(r, caching) {
                state.give_up();
            }
            return Looked::Ask(Some(Box::new(state)));
        }
    };
    if state.ticket.is_some() && state.shown.status.get() == Status::Stale {
        stale::update_in_background(r, &mut state);
    }
    match hit::send(r, passing, protocol, kept).await {
        Ok(step) => Looked::Done(step),
        Err(hit::Unsent::Rest(None)) => Looked::Done(Step::Abort),
        Err(hit::Unsent::Rest(Some(rest))) => {
            state.give_back();
            state.rest = Some(rest);
            Looked::Ask(Some(Box::new(state)))
        }
        Err(hit::Unsent::Unusable) => {
            // It would be in the way of a better one.
            state.cache.index.lost(&state.key);
            state.cache.let_go(&state.key);
            state.shown.status.set(Status::Miss);
            Looked::Ask(Some(Box::new(state)))
        }
    }
}

/// Finds the answer's place. `None` where this request has nothing to do with the cache.
fn begin<P: Protocol>(
    r: &mut Request,
    passing: &'static Passing,
    protocol: &mut P,
) -> Result<Option<State>, Step> {
    let caching = &*passing.caching;
    if !caching.methods.contains(&r.method) {
        return Ok(None);
    }
    let Some(cache) = caching.zone.cache(r)? else { return Ok(None) };
    let text = key_text(r, caching, protocol);
    if !fits(r, passing, &text) {
        return Ok(None);
    }
    cache.memory.provide(caching.memory);
    let bypass = Template::any_is_true(&caching.bypass, r);
    let counted = r.event_loop.counts.cache(r.site, &cache).map(|cell| (cell, cache.clone()));
    let shown = Shown::new(text, if bypass { Status::Bypass } else { Status::Miss }, counted);
    Ok(Some(State::new(cache, shown, caching)))
}

fn key_text<P: Protocol>(r: &mut Request, caching: &Caching, protocol: &P) -> Vec<u8> {
    let mut text = Vec::new();
    match &caching.key {
        Some(key) => key.eval_into(r, &mut text),
        None => protocol.cache_key(r, &mut text),
    }
    text
}

/// Whether the buffer for heads would hold the key and what nginx puts beside it: who says less does not cache.
fn fits(r: &Request, passing: &Passing, key: &[u8]) -> bool {
    let (prefix, size) = (passing.caching.prefix, passing.buffer_size);
    let needed = (BESIDE_KEY + key.len()) as u64;
    if needed > size {
        let least = needed.next_multiple_of(1024);
        let text = format_args!(
            "{prefix}_buffer_size {size} is not enough for cache key, it should be increased to at least {least}"
        );
        r.log(Level::Error, text);
    }
    needed <= size
}

/// What nginx's files begin with, its words around the key, and the least that it leaves for a head.
const BESIDE_KEY: usize = 336 + 7 + 256;

/// `..._cache_max_range_offset`: the client would wait too long for the part that it wants.
fn beyond_offset(r: &Request, caching: &Caching) -> bool {
    use weir_proto::http1::HeaderId;
    let (Some(most), Some(range)) = (caching.max_range_offset, r.header(HeaderId::Range)) else {
        return false;
    };
    if most == 0 {
        return true;
    }
    let Some((unit, range)) = range.split_at_checked(6) else { return false };
    if range.is_empty() || !unit.eq_ignore_ascii_case(b"bytes=") {
        return false;
    }
    let range = range.trim_ascii_start();
    if range.first() == Some(&b'-') {
        return true;
    }
    let digits = range.iter().take_while(|b| b.is_ascii_digit()).count();
    let start = range.get(..digits).and_then(weir_conf::values::number);
    start.is_some_and(|start| start >= most)
}

impl Request {
    /// A server's answer to this request may be kept: it is read to its end, whoever has left.
    pub fn is_cacheable(&self) -> bool {
        self.contexts.upstream.cache.as_ref().is_some_and(|shown| shown.cacheable.get())
    }
}

fn listed(caching: &Caching, failure: Failure) -> bool {
    failure.set().is_some_and(|one| caching.use_stale.contains(one))
}

/// Sends something old in place of an answer of this status.
pub async fn send_old<P: Protocol>(
    r: &mut Request,
    state: Box<State>,
    passing: &'static Passing,
    protocol: &mut P,
    status: u16,
) -> Step {
    let sent = match status {
        304 => stale::renew_and_send(r, state, passing, protocol).await,
        _ => stale::send(r, state, passing, protocol).await,
    };
    sent.unwrap_or(Step::Status(500))
}

/// Nobody answered, and nobody else is asked: something old is sent instead, or `step` is the end. It may stand for
/// the answer for a while.
pub async fn instead<P: Protocol>(
    r: &mut Request,
    state: Option<Box<State>>,
    passing: &'static Passing,
    protocol: &mut P,
    failure: Option<Failure>,
    step: Step,
) -> Step {
    let caching = &*passing.caching;
    let (Some(failure), Some(mut state)) = (failure, state) else { return step };
    if state.has_begun() {
        return step;
    }
    let may = state.shown.status.get() == Status::Expired && state.old.is_some();
    let by_head = state.stale_error && !matches!(failure, Failure::Status(_));
    if may && (by_head || listed(caching, failure)) {
        return stale::send(r, state, passing, protocol).await.unwrap_or(step);
    }
    let now = r.event_loop.handle.wall().secs;
    if let Step::Status(status @ (502 | 504)) = step
        && state.shown.cacheable.get()
        && let Some(valid) = caching.valid(status)
    {
        state.cache.index.set_error(&state.key, status, now.saturating_add(valid));
    }
    state.give_up();
    step
}

/// A page of this server takes the place of an answer of this status: the status may be kept.
pub fn intercepted(r: &mut Request, mut state: State, passing: &Passing, status: u16) {
    let verdict = judge::judge(r, passing);
    let now = r.event_loop.handle.wall().secs;
    if let Some(times) = verdict.times(&passing.caching, status, now)
        && verdict.cacheable
        && state.shown.cacheable.get()
    {
        state.cache.index.set_error(&state.key, status, times.valid_until);
    }
    state.give_up();
}

/// The head of an answer has come: what it says. Where it must not be kept, nobody takes it for one that may be.
pub fn judged(r: &Request, state: &mut State, passing: &Passing) -> judge::Verdict {
    let verdict = judge::judge(r, passing);
    if !verdict.cacheable {
        state.give_up();
    }
    verdict
}

/// If an answer is to be kept, the fill that it goes into; `may`: it is passed on in a way in which it can be.
pub fn keep(
    r: &mut Request,
    state: &mut State,
    verdict: judge::Verdict,
    passing: &Passing,
    answer: &Answer,
    may: bool,
) -> Option<Arc<Fill>> {
    let caching = &*passing.caching;
    // What has no head says nothing of itself, not even whether it is whole.
    let refused = !state.shown.cacheable.get() || !may || answer.end == 0;
    let refused = refused || answer.status == 101 || Template::any_is_true(&caching.no_cache, r);
    let now = r.event_loop.handle.wall().secs;
    let times = verdict.times(caching, answer.status, now);
    let kept = times.filter(|_| !refused);
    let kept = kept.map(|times| prepare(r, passing, state, verdict, times, answer));
    if kept.is_none() {
        state.give_up();
    }
    kept
}

fn prepare(
    r: &mut Request,
    passing: &Passing,
    state: &mut State,
    verdict: judge::Verdict,
    times: Freshness,
    answer: &Answer,
) -> Arc<Fill> {
    let variant =
        (!verdict.vary.is_empty()).then(|| lookup::variant(r, &state.main, &verdict.vary));
    if state.key != state.main && variant != Some(state.key) {
        // It is another variant than was looked for: it takes the main place.
        state.give_back();
        state.key = state.main;
    }
    let whole = matches!(answer.status, 200 | 206);
    let head = &r.contexts.upstream.head;
    let entry = Arc::new(CacheEntry {
        status: answer.status,
        times,
        last_modified: verdict.last_modified.filter(|_| whole),
        etag: if whole { verdict.etag } else { Vec::new() },
        key: state.shown.text.clone(),
        vary: verdict.vary,
        variant,
        head: head.get(..answer.end).unwrap_or_default().to_vec(),
    });
    let fill = state.fill.take().unwrap_or_else(|| Fill::new(relay::IN_MEMORY));
    fill.set_head(entry.clone(), answer.length);
    state.cache.begin(state.key, fill.clone());
    let temporary = state.cache.settings.use_temp_path.then_some(&passing.temp_path);
    let job = weir_cache::writer::StoreJob {
        cache: state.cache.clone(),
        key: state.key,
        fill: fill.clone(),
        entry,
        ticket: state.ticket.take(),
        doer: crate::files::doer(r),
        temporary: temporary.map(|path| path.directory.clone()),
        memory: state.memory,
        complain: complain(r, state),
    };
    let handle = r.event_loop.handle.clone();
    r.event_loop.handle.spawn(job.run(handle));
    fill
}

/// What the log hears when the answer cannot be stored.
fn complain(r: &Request, state: &State) -> weir_cache::writer::Complain {
    let log = r.conf().core.error_log.clone();
    let path = state.cache.settings.place.path(&state.key);
    let (number, event_loop) = (r.conn.number, r.event_loop.clone());
    Box::new(move |what, error| {
        let (metric, level) = match error.kind() {
            std::io::ErrorKind::ResourceBusy => (Metric::CacheUnstored, Level::Info),
            _ => (Metric::CacheFaults, Level::Crit),
        };
        event_loop.metrics.add(metric, 1);
        let (path, cause) = (path.display(), weir_log::Cause(error));
        log.write(level, Some(number), format_args!("cache file \"{path}\" {what} {cause}"));
    })
}

/// The words of `..._cache_use_stale`.
pub fn stale_failures(d: &weir_conf::Directive) -> (Failures, bool) {
    let updating = d.args.iter().any(|word| word.is("updating"));
    (super::passing::failures(d), updating)
}
