//! Answers that are kept for later requests, whatever the protocol. nginx: ngx_http_file_cache.c and the cache's
//! part of ngx_http_upstream.c.
//!
//! A request's way: `begin` finds its key, `lookup` what is there, `hit` sends that. Else a server is asked;
//! `judge` says from the head of its answer whether it is kept, and `relay` passes it on while it is stored.

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
pub use of_head::{asks_with_head, stands};
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
    /// What is to be sent of an answer after the client has got its beginning, if this one is the
    /// same, as far as its head tells.
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

    /// Whether something old is sent in place of an answer of this status.
    pub fn stands_in(&self, passing: &UpstreamConf, status: u16) -> bool {
        let caching = &*passing.caching;
        let may = self.shown.status.get() == Status::Expired && self.old.is_some();
        let unchanged = status == 304 && self.revalidate;
        let by_head = caching.keeps_standard() && self.stale_error && is_error(status);
        let listed = !self.never_old && listed(caching, Failure::Status(status));
        may && (unchanged || by_head || listed)
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
    passing: &'static UpstreamConf,
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
        return Looked::Ask(state.ask());
    }
    let kept = match lookup::lookup(r, passing, &mut state).await {
        lookup::Found::Kept(kept) => kept,
        lookup::Found::Error(status) => {
            state.shown.status.set(Status::Hit);
            return Looked::Done(Step::Status(status));
        }
        lookup::Found::Gone => return Looked::Done(Step::Status(499)),
        lookup::Found::Nothing => {
            if caching.keeps_standard() && Wanted::of(r.headers()).control.only_if_cached {
                state.found(Lookup::OnlyIfCached, None);
                state.give_up();
                return Looked::Done(Step::Status(504));
            }
            if beyond_offset(r, caching) {
                state.give_up();
            }
            return Looked::Ask(state.ask());
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
            Looked::Ask(state.ask())
        }
        Err(hit::Unsent::Unusable) => {
            // It would be in the way of a better one.
            state.cache.index.lost(&state.key);
            state.cache.let_go(&state.key);
            state.shown.status.set(Status::Miss);
            Looked::Ask(state.ask())
        }
    }
}

/// Finds the answer's place. `None` where this request has nothing to do with the cache.
fn begin<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
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
    let counted = COUNTS.of(&r.event_loop).cache(r.site, &cache).map(|cell| (cell, cache.clone()));
    let shown = Shown::new(text, if bypass { Status::Bypass } else { Status::Miss }, counted);
    if bypass {
        shown.because(|reason| reason.lookup = Lookup::Bypass);
    }
    let revalidate = caching.revalidate || caching.keeps_standard();
    Ok(Some(State::new(cache, shown, caching.memory > 0, revalidate)))
}

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
    /// A server's answer to this request may be kept: it is read to its end, even if the client has
    /// left.
    pub fn is_cacheable(&self) -> bool {
        self.contexts.upstream.cache.as_ref().is_some_and(|shown| shown.cacheable.get())
    }
}

/// After these, something old may be sent: RFC 5861, section 4.
fn is_error(status: u16) -> bool {
    matches!(status, 500 | 502 | 503 | 504)
}

fn listed(caching: &Caching, failure: Failure) -> bool {
    failure.set().is_some_and(|one| caching.use_stale.contains(one))
}

/// Sends something old in place of an answer of this status. The error: the client has the beginning of it, and the server is
/// to be asked for the rest.
pub async fn send_old<P: Protocol>(
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

/// No server answered, and no other one is asked: something old is sent instead, or `step` is the
/// end. It may stand for the answer for a while.
pub async fn instead<P: Protocol>(
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
    // RFC 9111, section 4.2.4: a cache that is cut off may send what is too old.
    let cut_off = caching.keeps_standard() && !state.never_old;
    let by_head = (cut_off || state.stale_error) && !matches!(failure, Failure::Status(_));
    let by_head = by_head
        || state.stale_error
            && caching.keeps_standard()
            && matches!(step, Step::Status(s) if is_error(s));
    if may && (by_head || !state.never_old && listed(caching, failure)) {
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

/// The head of an answer has come: what it says. If it must not be kept, no other request may use
/// it.
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

/// If an answer is to be kept, the fill that it goes into; `may`: it is passed on in a way in which it can be.
pub fn keep(
    r: &mut Request,
    state: &mut State,
    verdict: judge::Verdict,
    passing: &UpstreamConf,
    answer: &Answer,
    may: bool,
) -> Option<Arc<Fill>> {
    let caching = &*passing.caching;
    // What has no head says nothing of itself, not even whether it is whole.
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
        authorized: Wanted::of(r.headers()).authorized,
        of_head: asks_with_head(r),
        head: head.get(..answer.end).unwrap_or_default().to_vec(),
    });
    match entry.fits() {
        true => Ok(store(r, passing, state, entry, answer.length)),
        false => Err(Refusal::LongHead),
    }
}

/// Begins to store an answer; its body comes through the fill.
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
    let (cell, storing) = (state.shown.cell(), STORES.of(&r.event_loop).one());
    r.event_loop.handle.spawn(async move {
        let _storing = storing;
        if job.run(handle).await {
            cell.iter().for_each(CacheCell::stored);
        }
    });
    fill
}

/// What the log hears when the answer cannot be stored.
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
