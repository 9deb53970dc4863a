//! Stale answers: background updates, revalidation, and sending them after failures.

use std::sync::Arc;

use weir_cache::writer::PATIENCE;
use weir_cache::{Fill, FillEnd, Stored};
use weir_engine::OpenFile;
use weir_log::{Cause, Level};
use weir_proto::http1::{HeaderId, HeaderLine};

use super::hit::{self, Unsent};
use super::judge::{self, Verdict};
use super::kept::{Kept, Part};
use super::rules;
use super::state::{State, UPDATE};
use crate::phases::Step;
use crate::request::Request;
use crate::request::cache_reason::{Kept as Outcome, Lookup};
use crate::request::cached::Status;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::protocol::{Found, Protocol, Reader};

/// Starts a background request that updates the answer. The cache lock moves to it.
pub fn update_in_background(r: &mut Request, state: &mut State) {
    let update = Box::new(state.hand_over());
    let along = r.contexts.for_update();
    let sub = r.ask_again(|sr| {
        sr.response.header_only = true;
        UPDATE.set(&mut sr.contexts, update);
        sr.contexts.add(along);
    });
    if let Some(sub) = sub {
        r.leave_in_background(sub);
    }
}

/// Sends the stale answer, after a failure.
pub async fn send<P: Protocol>(
    r: &mut Request,
    mut state: Box<State>,
    passing: &'static UpstreamConf,
    protocol: &mut P,
) -> Option<Step> {
    let old = state.old.take()?;
    state.shown.because(|reason| reason.lookup = Lookup::Failed);
    state.shown.status.set(Status::Stale);
    state.give_up();
    match hit::send(r, passing, protocol, old).await {
        Ok(step) => Some(step),
        Err(Unsent::Unusable) => None,
        Err(Unsent::Rest(_)) => Some(Step::Abort),
    }
}

/// Sends the stored answer after the server has revalidated it, and updates it. The error is the
/// state for asking the server for a missing rest.
pub async fn renew_and_send<P: Protocol>(
    r: &mut Request,
    mut state: Box<State>,
    passing: &'static UpstreamConf,
    protocol: &mut P,
) -> Result<Option<Step>, Box<State>> {
    let Some(old) = state.old.take() else { return Ok(None) };
    let kept = match passing.caching.keeps_standard() {
        true => replace(r, &mut state, passing, old),
        false => renewed(r, &mut state, passing, protocol, old),
    };
    match hit::send(r, passing, protocol, kept).await {
        Ok(step) => Ok(Some(step)),
        Err(Unsent::Unusable) => Ok(None),
        Err(Unsent::Rest(None)) => Ok(Some(Step::Abort)),
        Err(Unsent::Rest(Some(rest))) => {
            state.give_back();
            state.rest = Some(rest);
            Err(state)
        }
    }
}

/// nginx's rules: gives the stored answer new times, in the background.
fn renewed<P: Protocol>(
    r: &mut Request,
    state: &mut State,
    passing: &UpstreamConf,
    protocol: &mut P,
    old: Kept,
) -> Kept {
    let said = judge::judge(r, passing, old.entry().status);
    let now = r.event_loop.handle.wall().secs;
    let said =
        if said.says_when() { said } else { stored_verdict(r, passing, protocol, &old, now) };
    let times = said.times(&passing.caching, old.entry().status, now);
    let life = times.as_ref().map(|times| said.life(times));
    state.shown.because(|reason| (reason.kept, reason.life) = (Outcome::Revalidated, life));
    state.shown.status.set(Status::Revalidated);
    state.shown.cacheable.set(false);
    if let (Some(times), Some(length)) = (times, old.whole_length()) {
        let mut entry = (*old.entry).clone();
        entry.times = times;
        let stored = Stored { body: entry.size() as u64, entry, length };
        renew(r, state, stored);
    }
    old
}

/// RFC 9111's rules: updates the head of the stored answer with the fields of the 304. The result
/// is stored anew, in the background. Readers of the old answer keep its file.
fn replace(r: &mut Request, state: &mut State, passing: &UpstreamConf, old: Kept) -> Kept {
    let context = &r.contexts.upstream;
    let line = |h: &HeaderLine| (h.name.of(&context.head), h.value.of(&context.head));
    let new: Vec<(&[u8], &[u8])> = context.headers.iter().map(line).collect();
    if !rules::is_about(&old.entry.head, new.iter().copied()) {
        // The 304 is about another answer. The client gets the stored one, which is not updated.
        state.shown.because(|reason| reason.kept = Outcome::Revalidated);
        state.shown.status.set(Status::Revalidated);
        state.give_up();
        return old;
    }
    let now = r.event_loop.handle.wall().secs;
    let date = weir_proto::date::imf_fixdate(now);
    // RFC 9110, section 6.6.1: an answer without `Date` gets the time of its arrival.
    let dated = context.headers.iter().any(|h| h.id == HeaderId::Date);
    let date = (!dated).then_some((&b"Date"[..], &date[..]));
    let head = rules::updated(&old.entry.head, new.into_iter().chain(date));
    let status = old.entry.status;
    let verdict = judge::by_rules(r, passing, status, weir_cache::fields(&head));
    let times = verdict.times(&passing.caching, status, now);
    // With another `Vary`, it is unknown which requests the stored answer matches (RFC 9111,
    // section 4.1).
    let varies_alike = verdict.vary == old.entry.vary;
    let may = state.shown.cacheable.get() && verdict.is_cacheable() && varies_alike;
    let life = Some(verdict.life(&times.unwrap_or(old.entry.times)));
    state.shown.because(|reason| (reason.kept, reason.life) = (Outcome::Revalidated, life));
    let mut entry = (*old.entry).clone();
    entry.times = times.unwrap_or(weir_cache::Freshness { date: now, ..entry.times });
    (entry.last_modified, entry.etag, entry.head) = (verdict.last_modified, verdict.etag, head);
    let entry = Arc::new(entry);
    state.shown.status.set(Status::Revalidated);
    if let (Some(length), true) = (old.whole_length(), may && entry.fits()) {
        let fill = super::store(r, passing, state, entry.clone(), Some(length));
        match &old.part {
            Part::Memory(bytes) => {
                fill.push(bytes.clone());
                fill.finish(FillEnd::Whole);
                state.received_whole(&fill, r.event_loop.handle.now());
            }
            Part::File(file, offset, length) => {
                copy_in(r, fill, file.clone(), *offset, *length);
            }
            Part::Coming(..) => {}
        }
    }
    state.shown.cacheable.set(false);
    Kept::new(entry, old.part)
}

/// Copies a stored body into a fill.
fn copy_in(r: &Request, fill: Arc<Fill>, file: Arc<OpenFile>, offset: u64, length: u64) {
    let handle = r.event_loop.handle.clone();
    r.event_loop.handle.spawn(async move {
        let mut at = 0;
        while at < length {
            let next = (length - at).min(COPIED);
            let room = Vec::with_capacity(next as usize);
            let (read, mut bytes) = handle.files().read_at(&file, room, offset + at).await;
            let read = read.unwrap_or(0).min(next as usize);
            if read == 0 || !fill.room().await {
                return fill.finish(FillEnd::Broken);
            }
            bytes.truncate(read);
            at += read as u64;
            fill.push(bytes.into());
        }
        fill.finish(FillEnd::Whole);
    });
}

/// Bytes that are copied at once.
const COPIED: u64 = 128 * 1024;

/// Writes the new times into the file, in the background.
fn renew(r: &mut Request, state: &mut State, stored: Stored) {
    let (cache, key, ticket) = (state.cache.clone(), state.key, state.ticket.take());
    let (handle, doer) = (r.event_loop.handle.clone(), crate::files::doer(r));
    let (log, event_loop) = (r.error_log().clone(), r.event_loop.clone());
    cache.index.arrives(&key, cache.index.msec(handle.now()), PATIENCE);
    let storing = super::STORES.of(&r.event_loop).add();
    r.event_loop.handle.spawn(async move {
        let _storing = storing;
        if let Err(error) = weir_cache::writer::renew(&cache, key, stored, &doer, &handle).await {
            event_loop.metrics.add(weir_metrics::Metric::CacheFaults, 1);
            let path = cache.settings.place.path(&key);
            let (path, cause) = (path.display(), Cause(&error));
            log.write(Level::Crit, None, format_args!("write() \"{path}\" failed {cause}"));
        }
        cache.index.arrived(&key);
        if let Some(ticket) = ticket {
            cache.index.release(ticket);
        }
    });
}

/// The judgement of the stored answer's own head.
fn stored_verdict<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    protocol: &mut P,
    old: &Kept,
    now: i64,
) -> Verdict {
    let mut buf = old.entry.head.clone();
    protocol.reader().restart();
    let headers = match protocol.reader().head(r, &mut buf) {
        Ok(Found::Head(answer)) => answer.headers,
        _ => Vec::new(),
    };
    let headers: Vec<(HeaderId, &[u8])> =
        headers.iter().map(|h| (h.id, h.value.of(&buf))).collect();
    Verdict::of(headers.into_iter(), passing, now)
}
