//! What is too old, and is used all the same.

use weir_cache::Stored;
use weir_log::{Cause, Level};
use weir_proto::http1::HeaderId;

use super::hit::{self, Unsent};
use super::judge::{self, Verdict};
use super::kept::{Kept, Part};
use super::state::{State, UPDATE};
use crate::phases::Step;
use crate::request::Request;
use crate::request::cached::Status;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::protocol::{Found, Protocol, Reader};

/// Starts a request beside this one that updates the answer. This one's right to do so passes to it.
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

/// Sends what is too old, since there is nothing better.
pub async fn send<P: Protocol>(
    r: &mut Request,
    mut state: Box<State>,
    passing: &'static UpstreamConf,
    protocol: &mut P,
) -> Option<Step> {
    let old = state.old.take()?;
    state.shown.status.set(Status::Stale);
    state.give_up();
    send_kept(r, passing, protocol, old).await
}

/// None if nothing was sent.
async fn send_kept<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
    protocol: &mut P,
    kept: Kept,
) -> Option<Step> {
    match hit::send(r, passing, protocol, kept).await {
        Ok(step) => Some(step),
        Err(Unsent::Unusable) => None,
        Err(Unsent::Rest(_)) => Some(Step::Abort),
    }
}

/// The server says that the old answer stands: it does for longer now.
pub async fn renew_and_send<P: Protocol>(
    r: &mut Request,
    mut state: Box<State>,
    passing: &'static UpstreamConf,
    protocol: &mut P,
) -> Option<Step> {
    let old = state.old.take()?;
    let said = judge::judge(r, passing);
    let now = r.event_loop.handle.wall().secs;
    let said =
        if said.says_when() { said } else { stored_verdict(r, passing, protocol, &old, now) };
    let times = said.times(&passing.caching, old.entry().status, now);
    state.shown.status.set(Status::Revalidated);
    state.shown.cacheable.set(false);
    let kept = Kept { entry: old.entry.clone(), ..old };
    let length = match &kept.part {
        Part::Memory(bytes) => Some(bytes.len() as u64),
        Part::File(_, _, length) => Some(*length),
        Part::Coming(..) => None,
    };
    if let (Some(times), Some(length)) = (times, length) {
        let mut entry = (*kept.entry).clone();
        entry.times = times;
        let stored = Stored { body: entry.size() as u64, entry, length };
        renew(r, &mut state, stored);
    }
    send_kept(r, passing, protocol, kept).await
}

/// Writes the new times, beside the request.
fn renew(r: &mut Request, state: &mut State, stored: Stored) {
    let (cache, key, ticket) = (state.cache.clone(), state.key, state.ticket.take());
    let (handle, doer) = (r.event_loop.handle.clone(), crate::files::doer(r));
    let (log, event_loop) = (r.conf().core.error_log.clone(), r.event_loop.clone());
    r.event_loop.handle.spawn(async move {
        if let Err(error) = weir_cache::writer::renew(&cache, key, stored, &doer, &handle).await {
            event_loop.metrics.add(weir_metrics::Metric::CacheFaults, 1);
            let path = cache.settings.place.path(&key);
            let (path, cause) = (path.display(), Cause(&error));
            log.write(Level::Crit, None, format_args!("write() \"{path}\" failed {cause}"));
        }
        if let Some(ticket) = ticket {
            cache.index.release(ticket);
        }
    });
}

/// What the old answer's own head says.
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
