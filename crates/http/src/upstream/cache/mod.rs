//! The cache of all upstream protocols. nginx: ngx_http_file_cache.c and the cache's part of
//! ngx_http_upstream.c.
//!
//! `begin` computes a request's cache key, `lookup` finds a stored answer, and `hit` sends it.
//! Otherwise a server is asked. `judge` decides from the head of its answer whether that is stored,
//! and `relay` passes it on while it is stored.

mod conf;
pub mod directives;
pub mod explain;
mod hit;
mod invalidate;
mod judge;
mod kept;
mod key;
mod lookup;
mod of_head;
mod path;
pub mod purge;
pub mod purge_location;
mod relay;
mod rules;
mod stale;
mod state;
pub mod status_field;
mod stores;
mod tasks;
mod unlisted;
mod variables;

pub use conf::{Caching, Zone};
pub(crate) use directives::cache_directives;
pub use invalidate::invalidate;
pub use key::{configured_key, key_text};
pub use of_head::{asks_with_head, is_revalidated_by_head};
pub use path::set_path;
pub use relay::{go_on, relay};
pub use state::{State, UPDATE};
pub use stores::STORES;
pub use tasks::start;
pub use variables::define;

use std::sync::Arc;

use weir_cache::{CacheEntry, Fill, Freshness, MissingRest};
use weir_log::Level;
use weir_metrics::Metric;
use weir_proto::http1::Method;
use weir_upstream::Failure;

use self::key::fits;
use self::rules::Wanted;
use super::counts::COUNTS;
use super::passing::UpstreamConf;
use super::protocol::{Answer, Protocol};
use crate::counts::cells::CacheCell;
use crate::phases::Step;
use crate::request::Request;
use crate::request::cache_reason::{Kept, Lookup, Refusal};
use crate::request::cached::{Shown, Status};
use weir_values::Template;

impl State {
    /// Takes the part that the client lacks, if `answer` is the same answer as the one that the
    /// client has the beginning of. Status, length and validators are compared.
    pub fn rest(
        &mut self,
        r: &Request,
        passing: &UpstreamConf,
        answer: &Answer,
    ) -> Option<Box<MissingRest>> {
        let (rest, said) = (self.rest.take()?, judge::judge(r, passing, answer.status));
        let entry = &rest.entry;
        let same = (answer.status, answer.length) == (entry.status, rest.length)
            && said.last_modified == entry.last_modified
            && said.etag == entry.etag;
        same.then_some(rest)
    }

    /// Whether the stored answer is sent in place of the server's answer of this status: it is
    /// stale and may be sent, or the server has revalidated it.
    pub fn is_replaced_by_stored(&self, passing: &UpstreamConf, status: u16) -> bool {
        let caching = &*passing.caching;
        let may = self.shown.status.get() == Status::Expired && self.old.is_some();
        let unchanged = status == 304 && self.revalidate;
        let by_head = caching.keeps_standard() && self.stale_error && is_error(status);
        let listed = !self.never_stale && listed(caching, Failure::Status(status));
        may && (unchanged || by_head || listed)
    }
}

/// The result of asking the cache.
pub enum LookupResult {
    /// The request is done.
    Done(Step),
    /// A server is to be asked. The state is that of the cache, if the request uses one.
    Ask(Option<Box<State>>),
}

/// Asks the cache, if the location has one. `update` is the state of a request that updates a stale
/// answer in the background.
pub async fn look<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
    protocol: &mut P,
    update: Option<Box<State>>,
) -> LookupResult {
    let caching = &*passing.caching;
    if let Some(step) = purge::asked(r, caching, protocol).await {
        return LookupResult::Done(step);
    }
    let begun = match update {
        Some(update) => Ok(Some(*update)),
        None => begin(r, passing, protocol),
    };
    let mut state = match begun {
        Ok(Some(state)) => state,
        Ok(None) => return LookupResult::Ask(None),
        Err(step) => return LookupResult::Done(step),
    };
    r.contexts.upstream.cache = Some(state.shown.clone());
    r.contexts.upstream.ask_with_get = converts_head(r, caching);
    if state.shown.status.get() == Status::Bypass {
        return LookupResult::Ask(state.ask());
    }
    let kept = match lookup::lookup(r, passing, &mut state).await {
        lookup::Found::Kept(kept) => kept,
        lookup::Found::Error(status) => {
            state.shown.status.set(Status::Hit);
            return LookupResult::Done(Step::Status(status));
        }
        lookup::Found::Gone => return LookupResult::Done(Step::Status(499)),
        lookup::Found::Nothing => {
            if caching.keeps_standard() && Wanted::of(r.headers()).control.only_if_cached {
                state.found(Lookup::OnlyIfCached, None);
                state.give_up();
                return LookupResult::Done(Step::Status(504));
            }
            if beyond_offset(r, caching) {
                state.give_up();
            }
            return LookupResult::Ask(state.ask());
        }
    };
    if state.ticket.is_some() && state.shown.status.get() == Status::Stale {
        stale::update_in_background(r, &mut state);
    }
    match hit::send(r, passing, protocol, kept).await {
        Ok(step) => LookupResult::Done(step),
        Err(hit::Unsent::Rest(None)) => LookupResult::Done(Step::Abort),
        Err(hit::Unsent::Rest(Some(rest))) => {
            state.give_back();
            state.rest = Some(rest);
            LookupResult::Ask(state.ask())
        }
        Err(hit::Unsent::Unusable) => {
            // The unusable entry is removed, so that it does not hide a better one.
            state.cache.index.lost(&state.key);
            state.cache.remove_from_memory(&state.key);
            state.shown.status.set(Status::Miss);
            LookupResult::Ask(state.ask())
        }
    }
}

/// Computes the request's key. `None` if the request does not use the cache.
fn begin<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
    protocol: &mut P,
) -> Result<Option<State>, Step> {
    let caching = &*passing.caching;
    if !caching.methods.contains(&r.method) {
        return Ok(None);
    }
    let Some(cache) = caching.zone.cache(r, caching.prefix)? else { return Ok(None) };
    let text = key_text(r, caching, protocol);
    if !fits(r, passing, &text) {
        r.contexts.upstream.ask_with_get = converts_head(r, caching);
        return Ok(None);
    }
    cache.memory.provide(caching.memory);
    let bypass = Template::any_is_true(&caching.bypass, r);
    let counted = COUNTS.of(&r.event_loop).cache(r.site, &cache).map(|cell| (cell, cache.clone()));
    let shown = Shown::new(text, if bypass { Status::Bypass } else { Status::Miss }, counted);
    if bypass {
        shown.because(|reason| reason.lookup = Lookup::Bypass);
    }
    let revalidate = caching.revalidate || caching.keeps_standard();
    Ok(Some(State::new(cache, shown, caching.memory > 0, revalidate)))
}

/// Whether the server is asked with GET in place of HEAD.
fn converts_head(r: &Request, caching: &Caching) -> bool {
    r.method == Method::Head && caching.convert_head
}

/// `..._cache_max_range_offset`: whether the requested range begins so late that the client would
/// wait too long while the answer is stored.
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
    /// Whether the server's answer to this request may be stored. Such an answer is read to its
    /// end, even if the client has left.
    pub fn is_cacheable(&self) -> bool {
        self.contexts.upstream.cache.as_ref().is_some_and(|shown| shown.cacheable.get())
    }
}

/// Statuses that `stale-if-error` applies to: RFC 5861, section 4.
fn is_error(status: u16) -> bool {
    matches!(status, 500 | 502 | 503 | 504)
}

fn listed(caching: &Caching, failure: Failure) -> bool {
    failure.set().is_some_and(|one| caching.use_stale.contains(one))
}

/// Sends a stored answer in place of the server's answer of this status. The error is the state for
/// asking the server again: the client has the beginning of the stored answer, and the rest is
/// missing.
pub async fn send_stored<P: Protocol>(
    r: &mut Request,
    state: Box<State>,
    passing: &'static UpstreamConf,
    protocol: &mut P,
    status: u16,
) -> Result<Step, Box<State>> {
    let sent = match status {
        304 => stale::renew_and_send(r, state, passing, protocol).await?,
        _ => stale::send(r, state, passing, protocol).await,
    };
    Ok(sent.unwrap_or(Step::Status(500)))
}

/// After a failure, if no other server is asked: sends a stale answer, or ends with `step`. A 502
/// or 504 may be cached as an error for a while.
pub async fn after_failure<P: Protocol>(
    r: &mut Request,
    state: Option<Box<State>>,
    passing: &'static UpstreamConf,
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
    // RFC 9111, section 4.2.4: a disconnected cache may send stale answers.
    let cut_off = caching.keeps_standard() && !state.never_stale;
    let by_head = (cut_off || state.stale_error) && !matches!(failure, Failure::Status(_));
    let by_head = by_head
        || state.stale_error
            && caching.keeps_standard()
            && matches!(step, Step::Status(s) if is_error(s));
    if may && (by_head || !state.never_stale && listed(caching, failure)) {
        return stale::send(r, state, passing, protocol).await.unwrap_or(step);
    }
    let now = r.event_loop.handle.wall().secs;
    if let Step::Status(status @ (502 | 504)) = step
        && state.shown.cacheable.get()
        && (caching.keeps_standard() || !judge::judge(r, passing, status).is_refused_by_line())
        && let Some(valid) = caching.valid(status)
    {
        state.cache.index.set_error(&state.key, status, now.saturating_add(valid));
    }
    state.give_up();
    step
}

/// After an error page of this server has replaced an answer of this status: the status may be
/// cached as an error.
pub fn intercepted(r: &mut Request, mut state: State, passing: &UpstreamConf, status: u16) {
    let verdict = judge::judge(r, passing, status);
    let now = r.event_loop.handle.wall().secs;
    if let Some(times) = verdict.times(&passing.caching, status, now)
        && verdict.is_cacheable()
        && state.shown.cacheable.get()
    {
        state.cache.index.set_error(&state.key, status, times.valid_until);
    }
    state.give_up();
}

/// Judges the head of a server's answer. If the answer must not be stored, waiting requests ask a
/// server themselves.
pub fn judged(
    r: &Request,
    state: &mut State,
    passing: &UpstreamConf,
    status: u16,
) -> judge::Verdict {
    let verdict = judge::judge(r, passing, status);
    if let Some(why) = verdict.refused {
        state.shown.because(|reason| reason.kept = Kept::Refused(why));
        state.give_up();
    }
    verdict
}

/// Decides whether an answer is stored, and returns its fill. `may`: the answer is relayed in a way
/// that allows it.
pub fn keep(
    r: &mut Request,
    state: &mut State,
    verdict: judge::Verdict,
    passing: &UpstreamConf,
    answer: &Answer,
    may: bool,
) -> Option<Arc<Fill>> {
    let caching = &*passing.caching;
    // An answer without a head does not even tell whether it is complete.
    let refused = match state.shown.cacheable.get() {
        false => Some(verdict.refused.unwrap_or(Refusal::Elsewhere)),
        true if !may || answer.end == 0 => Some(Refusal::Unbuffered),
        true if answer.status == 101 => Some(Refusal::Status),
        true => Template::any_is_true(&caching.no_cache, r).then_some(Refusal::Configured),
    };
    let now = r.event_loop.handle.wall().secs;
    let times = verdict.times(caching, answer.status, now).ok_or(Refusal::NoLifetime);
    let life = times.as_ref().ok().map(|times| verdict.life(times));
    let times = refused.map_or(times, Err);
    match times.and_then(|times| prepare(r, passing, state, verdict, times, answer)) {
        Ok(fill) => {
            state.shown.because(|reason| (reason.kept, reason.life) = (Kept::Stored, life));
            Some(fill)
        }
        Err(why) => {
            state.shown.because(|reason| reason.kept = Kept::Refused(why));
            state.give_up();
            None
        }
    }
}

fn prepare(
    r: &mut Request,
    passing: &UpstreamConf,
    state: &mut State,
    verdict: judge::Verdict,
    times: Freshness,
    answer: &Answer,
) -> Result<Arc<Fill>, Refusal> {
    let variant =
        (!verdict.vary.is_empty()).then(|| lookup::variant(r, passing, &state.main, &verdict.vary));
    if state.key != state.main && variant != Some(state.key) {
        // The answer is another variant than the one that was looked up. It is stored under the
        // main key.
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
        authorized: Wanted::of(r.headers()).authorized,
        of_head: asks_with_head(r),
        head: head.get(..answer.end).unwrap_or_default().to_vec(),
    });
    match entry.fits() {
        true => Ok(store(r, passing, state, entry, answer.length)),
        false => Err(Refusal::LongHead),
    }
}

/// Begins to store an answer. Its body is pushed into the fill.
fn store(
    r: &mut Request,
    passing: &UpstreamConf,
    state: &mut State,
    entry: Arc<CacheEntry>,
    length: Option<u64>,
) -> Arc<Fill> {
    let fill = state.fill.take().unwrap_or_else(|| Fill::new(relay::IN_MEMORY, state.asked()));
    fill.set_head(entry.clone(), length);
    state.cache.begin(state.key, fill.clone());
    let temporary = state.cache.settings.use_temp_path.then_some(&passing.temp_path);
    let job = weir_cache::writer::StoreJob {
        cache: state.cache.clone(),
        key: state.key,
        fill: fill.clone(),
        entry,
        origin: purge::origin(r),
        ticket: state.ticket.take(),
        doer: crate::files::doer(r),
        temporary: temporary.map(|path| path.directory.clone()),
        memory: state.memory,
        complain: complain(r, state),
    };
    let handle = r.event_loop.handle.clone();
    let (cell, storing) = (state.shown.cell(), STORES.of(&r.event_loop).add());
    r.event_loop.handle.spawn(async move {
        let _storing = storing;
        if job.run(handle).await {
            cell.iter().for_each(CacheCell::stored);
        }
    });
    fill
}

/// Logs and counts that an answer cannot be stored.
fn complain(r: &Request, state: &State) -> weir_cache::writer::Complain {
    let log = r.error_log().clone();
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
