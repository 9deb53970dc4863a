//! What the cache has for a request.

#![expect(clippy::disallowed_methods, reason = "names are those of keys")]

use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_cache::writer::PATIENCE;
use weir_cache::{
    CacheEntry, CacheKey, FileFacts, Fill, Lookup as Known, Object, Opened, Sameness, StoredBody,
    Unusable,
};
use weir_engine::{Either, either};
use weir_log::{Cause, Level};
use weir_proto::http1::Method;

use super::kept::{Kept, Part};
use super::rules::{Facts, Serving, Wanted, names_range};
use super::state::State;
use super::unlisted;
use crate::request::Request;
use crate::request::cache_reason::{Life, LifetimeSource, Lookup};
use crate::request::cached::Status;
use crate::upstream::client::{Waited, wait};
use crate::upstream::passing::UpstreamConf;

/// How often it is looked whether another process has an answer.
const LOOK: Duration = Duration::from_millis(50);
/// How often it is looked whether the file of another process's answer is there.
const ARRIVAL_LOOK: Duration = Duration::from_millis(2);
/// How often weir looks for the file of an answer in memory, in milliseconds.
const CHECK: u64 = 1000;

/// See [`lookup`].
pub enum Found {
    /// An answer to be sent.
    Kept(Kept),
    /// An error that stands for the answer.
    Error(u16),
    /// Nothing that can be sent now; `state` knows what is too old.
    Nothing,
    /// The client left.
    Gone,
}

/// How the search for one key ended.
enum Looked {
    End(Found),
    /// The answer depends on the request: another key is looked for.
    Variant(CacheKey),
    /// Another request had the right to update it: once more.
    Again,
}

/// Looks for what there is; waits for another request that fetches it, if the location says so.
pub async fn lookup(r: &mut Request, passing: &'static UpstreamConf, state: &mut State) -> Found {
    let begun = r.event_loop.handle.now();
    let deadline = begun + passing.caching.lock_timeout;
    loop {
        match once(r, passing, state, deadline).await {
            Looked::End(Found::Nothing) if arrives(r, state, begun + PATIENCE) => {
                let sleep = r.event_loop.handle.clone();
                let sleep = pin!(sleep.sleep(ARRIVAL_LOOK));
                if let Waited::Gone = wait(r, passing, sleep, None).await {
                    return Found::Gone;
                }
            }
            Looked::End(found) => return found,
            Looked::Variant(key) if state.key == state.main => {
                state.shown.because(|reason| reason.lookup = Lookup::Variant);
                state.key = key;
            }
            Looked::Variant(_) => return absent(r, passing, state, deadline).await.into(),
            Looked::Again => {}
        }
    }
}

/// Another process has the whole answer, and its file will be there before the deadline: its client may have its end
/// already, and expects that the next request finds it.
fn arrives(r: &Request, state: &State, deadline: Instant) -> bool {
    let now = r.event_loop.handle.now();
    let index = &state.cache.index;
    state.ticket.is_none() && now < deadline && index.is_arriving(&state.key, index.msec(now))
}

impl From<Looked> for Found {
    fn from(looked: Looked) -> Found {
        match looked {
            Looked::End(found) => found,
            Looked::Variant(_) | Looked::Again => Found::Nothing,
        }
    }
}

async fn once(
    r: &mut Request,
    passing: &'static UpstreamConf,
    state: &mut State,
    deadline: Instant,
) -> Looked {
    let now = state.cache.index.msec(r.event_loop.handle.now());
    let wall = r.event_loop.handle.wall().secs;
    let mut gone = Vec::new();
    let uses = passing.caching.min_uses;
    let known = state.cache.index.look(&state.key, now, wall, uses, &mut gone);
    weir_cache::writer::remove_files(&state.cache, gone, &r.event_loop.handle);
    let known = match known {
        // A variant's file may outlive the removal of its key for a while.
        Known::Stored(generation)
            if state.key != state.main && state.cache.index.is_removed(&state.main, generation) =>
        {
            Known::Absent
        }
        known => known,
    };
    if let Some(fill) = state.cache.whole(&state.key) {
        // It is on its way into its file.
        if let Some(looked) = join(r, passing, state, fill, deadline).await {
            return looked;
        }
    }
    let kept = match known {
        Known::Error(status) => return Looked::End(Found::Error(status)),
        Known::Scarce if state.cache.index.is_warm() => return scarce(state),
        Known::Scarce => match unlisted(r, state, now).await.flatten() {
            None => return scarce(state),
            kept => kept,
        },
        Known::NoRoom => {
            let name = state.cache.name();
            r.log(
                Level::Alert,
                format_args!("could not allocate node in cache keys zone \"{name}\""),
            );
            state.shown.cacheable.set(false);
            return Looked::End(Found::Nothing);
        }
        Known::Absent if state.cache.index.is_warm() => None,
        Known::Absent => match unlisted(r, state, now).await {
            // What is fetched now would only wait for the same disk.
            None => return scarce(state),
            Some(kept) => kept,
        },
        Known::Stored(generation) => stored(r, state, generation, now).await,
    };
    match kept {
        Some(kept) => judge(r, passing, state, kept),
        None => absent(r, passing, state, deadline).await,
    }
}

fn scarce(state: &mut State) -> Looked {
    state.shown.because(|reason| reason.lookup = Lookup::Scarce);
    state.shown.cacheable.set(false);
    Looked::End(Found::Nothing)
}

/// From memory, or from the file.
async fn stored(r: &mut Request, state: &State, generation: u32, now: u64) -> Option<Kept> {
    let at_hand = state.cache.at_hand(state.memory);
    let Some(object) = at_hand.get(&state.key, &state.shown.text, generation) else {
        return open(r, state, generation, now).await;
    };
    let looked = object.look(now, CHECK);
    if looked == FileFacts::Soon {
        check_beside(r, state, &object);
    }
    let there = looked != FileFacts::Due || is_there(r, state, &object, now).await;
    let files = r.event_loop.handle.files();
    if there && let Some(kept) = Kept::of_object(files, object.clone()).await {
        return Some(kept);
    }
    at_hand.remove_this(&state.key, &object);
    open(r, state, generation, now).await
}

async fn is_there(r: &Request, state: &State, object: &Object, now: u64) -> bool {
    // An operator who removes a file by hand wants the answer to be gone.
    let path = state.cache.settings.place.path(&state.key);
    match r.event_loop.handle.files().stat(&path).await {
        Ok(info) if info.inode == object.inode => {
            object.seen(now);
            true
        }
        _ => false,
    }
}

/// Looks for the file of an answer before that is due, so that no request has to wait for it while the answer is
/// asked for often.
fn check_beside(r: &Request, state: &State, object: &Arc<Object>) {
    let (cache, key, object) = (state.cache.clone(), state.key, object.clone());
    let in_memory = state.memory;
    let handle = r.event_loop.handle.clone();
    r.event_loop.handle.spawn(async move {
        let path = cache.settings.place.path(&key);
        match handle.files().stat(&path).await {
            Ok(info) if info.inode == object.inode => object.seen(cache.index.msec(handle.now())),
            _ => cache.at_hand(in_memory).remove_this(&key, &object),
        }
    });
}

async fn open(r: &mut Request, state: &State, generation: u32, now: u64) -> Option<Kept> {
    let path = state.cache.settings.place.path(&state.key);
    let doer = crate::files::doer(r);
    let outcome = Opened::open(r.event_loop.handle.files(), doer, &path).await;
    opened(r, state, &path, outcome, Some(generation), now)
}

/// What there is that the loader has not come to yet. `None`: it is not known, and the disk takes
/// too long to say.
async fn unlisted(r: &mut Request, state: &State, now: u64) -> Option<Option<Kept>> {
    let path = state.cache.settings.place.path(&state.key);
    let outcome = unlisted::open(r, state, &path).await?;
    Some(opened(r, state, &path, outcome, None, now))
}

/// What there is in a file that was opened, or not.
fn opened(
    r: &mut Request,
    state: &State,
    path: &Path,
    outcome: io::Result<Result<Opened, Unusable>>,
    known: Option<u32>,
    now: u64,
) -> Option<Kept> {
    let opened = match outcome {
        Ok(Ok(opened)) if opened.stored.entry.key == state.shown.text => opened,
        Ok(Ok(_)) => {
            let path = path.display();
            r.log(Level::Crit, format_args!("cache file \"{path}\" has md5 collision"));
            return None;
        }
        Ok(Err(why)) => {
            complain(r, path, why);
            state.cache.index.lost(&state.key);
            return None;
        }
        Err(error) => {
            if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) {
                let (path, cause) = (path.display(), Cause(&error));
                r.log(Level::Crit, format_args!("open() \"{path}\" failed {cause}"));
                r.event_loop.metrics.add(weir_metrics::Metric::CacheFaults, 1);
            }
            state.cache.index.lost(&state.key);
            return None;
        }
    };
    match known {
        None => {
            let size = weir_cache::whole_blocks(opened.info.len);
            state.cache.index.known(&state.key, size, now);
        }
        Some(generation) => remember(r, state, &opened, generation, now),
    }
    Some(Kept::of_file(opened))
}

/// Keeps an answer at hand: a small one that was read whole with its head in memory, if it may be there; else a local
/// file open.
fn remember(r: &Request, state: &State, opened: &Opened, generation: u32, now: u64) {
    let at_hand = state.cache.at_hand(state.memory);
    let admits = |body: &Bytes| at_hand.admits(&state.key, body.len() as u64);
    let body = if state.memory {
        let Some(body) = opened.body().filter(admits) else { return };
        StoredBody::in_memory(&body, r.event_loop.handle.files())
    } else if opened.file.is_local() && at_hand.admits(&state.key, 0) {
        StoredBody::File(opened.range())
    } else {
        return;
    };
    let entry = Arc::new(opened.stored.entry.clone());
    at_hand.put(state.key, Object::new(entry, body, generation, opened.info.inode, now));
}

fn complain(r: &Request, path: &Path, why: Unusable) {
    if why != Unusable::Version {
        r.event_loop.metrics.add(weir_metrics::Metric::CacheFaults, 1);
    }
    let (level, text) = match why {
        Unusable::TooSmall => (Level::Crit, "is too small"),
        Unusable::Version => (Level::Info, "version mismatch"),
        Unusable::More(_) => (Level::Crit, "has too long header"),
        Unusable::Damaged => (Level::Crit, "is damaged"),
    };
    r.log(level, format_args!("cache file \"{}\" {text}", path.display()));
}

/// Whether something that is there may be sent.
fn judge(r: &mut Request, passing: &UpstreamConf, state: &mut State, kept: Kept) -> Looked {
    let caching = &*passing.caching;
    let entry = kept.entry.clone();
    if let Some(of) = entry.variant {
        let wanted = variant(r, passing, &state.main, &entry.vary);
        if of != wanted {
            return Looked::Variant(wanted);
        }
    }
    let (now, times) = (r.event_loop.handle.wall().secs, entry.times);
    let (mut may_be_old, mut beside) = (caching.stale_while_updating, caching.background_update);
    if caching.keeps_standard() {
        let facts = kept.facts(passing);
        if let Some(why) = foreign(r, &entry, facts) {
            // Whatever comes takes its place.
            state.found(why, None);
            state.never_old = true;
            return Looked::End(Found::Nothing);
        }
        let (wanted, valid) = (Wanted::of(r.headers()), caching.valid(entry.status));
        let serving = facts.serving(entry.status, &wanted, now, times.date, valid);
        match serving {
            Serving::Fresh(life) if !state.background => {
                state.found(Lookup::Fresh, Some(life));
                state.shown.status.set(Status::Hit);
                return Looked::End(Found::Kept(kept));
            }
            Serving::Old(life) if !state.background => {
                state.found(Lookup::Allowed, Some(life));
                state.shown.status.set(Status::Stale);
                return Looked::End(Found::Kept(kept));
            }
            Serving::Ask { why, life, updating, error, never_old } => {
                state.found(why, Some(life));
                (state.stale_error, state.never_old) = (error, never_old);
                may_be_old = updating || may_be_old && !never_old && !wanted.control.no_cache;
                beside |= updating;
            }
            _ => {}
        }
    } else {
        let (lifetime, age) = (times.valid_until.saturating_sub(times.date), now - times.date);
        let life = Some(Life { lifetime, age, by: LifetimeSource::Stored });
        if times.valid_until >= now {
            state.found(Lookup::Fresh, life);
            state.shown.status.set(Status::Hit);
            return Looked::End(Found::Kept(kept));
        }
        state.found(Lookup::TooOld, life);
        may_be_old |= times.valid_until.saturating_add(times.updating) >= now;
        state.stale_error = times.valid_until.saturating_add(times.error) >= now;
    }
    may_be_old &= !state.background;
    if state.ticket.is_none() {
        let clock = state.cache.index.msec(r.event_loop.handle.now());
        let age = caching.lock_age.max(passing.read_timeout);
        state.ticket = state.cache.index.take(&state.key, clock, age);
    }
    match &state.ticket {
        Some(_) if may_be_old && beside => {
            state.shown.because(|reason| reason.lookup = Lookup::Updating);
            state.shown.status.set(Status::Stale);
            return Looked::End(Found::Kept(kept));
        }
        None if may_be_old => {
            state.shown.because(|reason| reason.lookup = Lookup::Updating);
            state.shown.status.set(Status::Updating);
            return Looked::End(Found::Kept(kept));
        }
        _ => {}
    }
    state.shown.status.set(Status::Expired);
    if state.revalidate {
        state.shown.old.replace(Some(kept.entry.clone()));
    }
    state.old = Some(kept);
    Looked::End(Found::Nothing)
}

/// Why the standard's rules have no use for a stored answer, whatever its age: a location with other rules has stored it, or it
/// has no body.
pub fn foreign(r: &Request, entry: &CacheEntry, facts: &Facts) -> Option<Lookup> {
    let rules = [
        (entry.of_head && r.method != Method::Head, Lookup::OfHead),
        (entry.status == 206 && !names_range(&entry.key), Lookup::Part),
        (entry.authorized && !facts.is_for_all(), Lookup::Authorization),
        (entry.vary.is_empty() && !facts.vary.is_empty(), Lookup::Varies),
    ];
    rules.into_iter().find_map(|(holds, why)| holds.then_some(why))
}

/// There is nothing: this request fetches it, or waits for another one that does.
async fn absent(
    r: &mut Request,
    passing: &'static UpstreamConf,
    state: &mut State,
    deadline: Instant,
) -> Looked {
    let caching = &*passing.caching;
    if !caching.lock {
        return Looked::End(Found::Nothing);
    }
    let now = state.cache.index.msec(r.event_loop.handle.now());
    if let Some(ticket) = state.cache.index.take(&state.key, now, caching.lock_age) {
        state.ticket = Some(ticket);
        state.since = state.cache.index.last();
        let fill = Fill::new(super::relay::IN_MEMORY, state.asked());
        state.cache.begin(state.key, fill.clone());
        state.fill = Some(fill);
        return Looked::End(Found::Nothing);
    }
    if r.event_loop.handle.now() >= deadline {
        if !caching.lock_timeout.is_zero() {
            r.log(Level::Info, format_args!("cache lock timeout"));
        }
        state.shown.cacheable.set(false);
        return Looked::End(Found::Nothing);
    }
    state.shown.waited.set(true);
    if let Some(fill) = state.cache.fill(&state.key)
        && let Some(looked) = join(r, passing, state, fill, deadline).await
    {
        return looked;
    }
    // Another process has the right to fetch it, or a request of this one with an answer that is
    // not shared. In the same turn nothing would be otherwise.
    let until = deadline.min(r.event_loop.handle.now() + LOOK);
    let handle = r.event_loop.handle.clone();
    let waited = wait(r, passing, pin!(handle.sleep_until(until)), None).await;
    match waited {
        Waited::For(()) => Looked::Again,
        Waited::Gone => Looked::End(Found::Gone),
    }
}

/// Waits for the head of an answer that another request fetches, and reads on from there. `None`: it is not for this
/// request.
async fn join(
    r: &mut Request,
    passing: &'static UpstreamConf,
    state: &mut State,
    fill: Arc<Fill>,
    deadline: Instant,
) -> Option<Looked> {
    let handle = r.event_loop.handle.clone();
    // The request with the right to update a key may lose it meanwhile.
    let until = deadline.min(handle.now() + passing.caching.lock_age);
    let head = either(fill.head(), handle.sleep_until(until));
    let waited = wait(r, passing, pin!(head), None).await;
    let (entry, length) = match waited {
        Waited::Gone => return Some(Looked::End(Found::Gone)),
        Waited::For(Either::Right(())) => return Some(Looked::Again),
        Waited::For(Either::Left(head)) => head?,
    };
    if entry.key != state.shown.text {
        return None;
    }
    let part = match fill.in_memory() {
        Some(bytes) => Part::Memory(bytes),
        None => Part::Coming(fill.reader()?, length),
    };
    Some(judge(r, passing, state, Kept::new(entry, part)))
}

/// The variant of an answer for this request.
pub fn variant(r: &Request, passing: &UpstreamConf, main: &CacheKey, vary: &[u8]) -> CacheKey {
    let same = match passing.caching.keeps_standard() {
        true => Sameness::Meaning,
        false => Sameness::Words,
    };
    main.variant(vary, same, |name| {
        let name = name.to_vec();
        r.headers().filter(move |(n, _)| n.eq_ignore_ascii_case(&name)).map(|(_, value)| value)
    })
}
