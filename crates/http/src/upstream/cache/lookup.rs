//! Finds the stored answer for a request.

#![expect(clippy::disallowed_methods, reason = "names are those of keys")]

use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_cache::writer::PATIENCE;
use weir_cache::{
    CacheEntry, CacheKey, FileCheck, Fill, Lookup as Known, Object, Opened, StoredBody, Unusable,
    VariantMatching,
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

/// How often a request that waits for another process checks the cache.
const LOCK_POLL: Duration = Duration::from_millis(50);
/// How often a request checks for the file of another process's answer that will exist soon.
const ARRIVAL_POLL: Duration = Duration::from_millis(2);
/// How often the existence of the file of an answer in memory is checked, in milliseconds.
const FILE_CHECK: u64 = 1000;

/// See [`lookup`].
pub enum Found {
    /// An answer to send.
    Kept(Kept),
    /// A cached error status.
    Error(u16),
    /// Nothing that may be sent now. A stale answer is in `state`.
    Nothing,
    /// The client left.
    Gone,
}

/// The result of looking up one key.
enum LookupStep {
    End(Found),
    /// The stored answer is another variant. This key is to be looked up.
    Variant(CacheKey),
    /// Another request had the cache lock: look up again.
    Again,
}

/// Looks the request's answer up. With `..._cache_lock`, waits for another request that fetches it.
pub async fn lookup(r: &mut Request, passing: &'static UpstreamConf, state: &mut State) -> Found {
    let begun = r.event_loop.handle.now();
    let deadline = begun + passing.caching.lock_timeout;
    loop {
        match look_up_key(r, passing, state, deadline).await {
            LookupStep::End(Found::Nothing) if arrives(r, state, begun + PATIENCE) => {
                let sleep = r.event_loop.handle.clone();
                let sleep = pin!(sleep.sleep(ARRIVAL_POLL));
                if let Waited::Gone = wait(r, passing, sleep, None).await {
                    return Found::Gone;
                }
            }
            LookupStep::End(found) => return found,
            LookupStep::Variant(key) if state.key == state.main => {
                state.shown.because(|reason| reason.lookup = Lookup::Variant);
                state.key = key;
            }
            LookupStep::Variant(_) => return absent(r, passing, state, deadline).await.into(),
            LookupStep::Again => {}
        }
    }
}

/// Whether another process has the complete answer and is writing its file. Its client may have
/// seen the end already, and expects that the next request is a hit.
fn arrives(r: &Request, state: &State, deadline: Instant) -> bool {
    let now = r.event_loop.handle.now();
    let index = &state.cache.index;
    state.ticket.is_none() && now < deadline && index.is_arriving(&state.key, index.msec(now))
}

impl From<LookupStep> for Found {
    fn from(looked: LookupStep) -> Found {
        match looked {
            LookupStep::End(found) => found,
            LookupStep::Variant(_) | LookupStep::Again => Found::Nothing,
        }
    }
}

async fn look_up_key(
    r: &mut Request,
    passing: &'static UpstreamConf,
    state: &mut State,
    deadline: Instant,
) -> LookupStep {
    let now = state.cache.index.msec(r.event_loop.handle.now());
    let wall = r.event_loop.handle.wall().secs;
    let mut gone = Vec::new();
    let uses = passing.caching.min_uses;
    let known = state.cache.index.look_up(&state.key, now, wall, uses, &mut gone);
    weir_cache::writer::remove_files(&state.cache, gone, &r.event_loop.handle);
    let known = match known {
        // A variant's file may outlive the purge of its main key for a while.
        Known::Stored(generation)
            if state.key != state.main && state.cache.index.is_removed(&state.main, generation) =>
        {
            Known::Absent
        }
        known => known,
    };
    if let Some(fill) = state.cache.whole(&state.key) {
        // It is complete and being written.
        if let Some(looked) = join(r, passing, state, fill, deadline).await {
            return looked;
        }
    }
    let kept = match known {
        Known::Error(status) => return LookupStep::End(Found::Error(status)),
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
            return LookupStep::End(Found::Nothing);
        }
        Known::Absent if state.cache.index.is_warm() => None,
        Known::Absent => match unlisted(r, state, now).await {
            // The answer is not stored, since it would wait for the same slow disk.
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

fn scarce(state: &mut State) -> LookupStep {
    state.shown.because(|reason| reason.lookup = Lookup::Scarce);
    state.shown.cacheable.set(false);
    LookupStep::End(Found::Nothing)
}

/// Gets a stored answer from the memory tier or from its file.
async fn stored(r: &mut Request, state: &State, generation: u32, now: u64) -> Option<Kept> {
    let at_hand = state.cache.at_hand(state.memory);
    let Some(object) = at_hand.get(&state.key, &state.shown.text, generation) else {
        return open(r, state, generation, now).await;
    };
    let looked = object.check_due(now, FILE_CHECK);
    if looked == FileCheck::Soon {
        check_beside(r, state, &object);
    }
    let there = looked != FileCheck::Due || is_there(r, state, &object, now).await;
    let files = r.event_loop.handle.files();
    if there && let Some(kept) = Kept::of_object(files, object.clone()).await {
        return Some(kept);
    }
    at_hand.remove_this(&state.key, &object);
    open(r, state, generation, now).await
}

async fn is_there(r: &Request, state: &State, object: &Object, now: u64) -> bool {
    // An operator who removes a file by hand expects that the answer is gone.
    let path = state.cache.settings.place.path(&state.key);
    match r.event_loop.handle.files().stat(&path).await {
        Ok(info) if info.inode == object.inode => {
            object.seen(now);
            true
        }
        _ => false,
    }
}

/// Checks the file of an answer in the background, before the check is due. So no request for a
/// popular answer waits for the check.
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

/// Opens a file that the loader may not have found yet. `None` if the disk takes too long.
async fn unlisted(r: &mut Request, state: &State, now: u64) -> Option<Option<Kept>> {
    let path = state.cache.settings.place.path(&state.key);
    let outcome = unlisted::open(r, state, &path).await?;
    Some(opened(r, state, &path, outcome, None, now))
}

/// Handles the result of opening a file: logs errors and updates the index.
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

/// Adds an answer to its memory tier. In memory: if the body was read with the head. Else: the open
/// file, if it is on a local file system.
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

/// Decides whether an answer from the cache may be sent.
fn judge(r: &mut Request, passing: &UpstreamConf, state: &mut State, kept: Kept) -> LookupStep {
    let caching = &*passing.caching;
    let entry = kept.entry.clone();
    if let Some(of) = entry.variant {
        let wanted = variant(r, passing, &state.main, &entry.vary);
        if of != wanted {
            return LookupStep::Variant(wanted);
        }
    }
    let (now, times) = (r.event_loop.handle.wall().secs, entry.times);
    let (mut may_be_stale, mut beside) = (caching.stale_while_updating, caching.background_update);
    if caching.keeps_standard() {
        let facts = kept.facts(passing);
        if let Some(why) = foreign(r, &entry, facts) {
            // The server's answer replaces it.
            state.found(why, None);
            state.never_stale = true;
            return LookupStep::End(Found::Nothing);
        }
        let (wanted, valid) = (Wanted::of(r.headers()), caching.valid(entry.status));
        let serving = facts.serving(entry.status, &wanted, now, times.date, valid);
        match serving {
            Serving::Fresh(life) if !state.background => {
                state.found(Lookup::Fresh, Some(life));
                state.shown.status.set(Status::Hit);
                return LookupStep::End(Found::Kept(kept));
            }
            Serving::Stale(life) if !state.background => {
                state.found(Lookup::Allowed, Some(life));
                state.shown.status.set(Status::Stale);
                return LookupStep::End(Found::Kept(kept));
            }
            Serving::Ask { why, life, updating, error, never_stale } => {
                state.found(why, Some(life));
                (state.stale_error, state.never_stale) = (error, never_stale);
                may_be_stale = updating || may_be_stale && !never_stale && !wanted.control.no_cache;
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
            return LookupStep::End(Found::Kept(kept));
        }
        state.found(Lookup::TooOld, life);
        may_be_stale |= times.valid_until.saturating_add(times.updating) >= now;
        state.stale_error = times.valid_until.saturating_add(times.error) >= now;
    }
    may_be_stale &= !state.background;
    if state.ticket.is_none() {
        let clock = state.cache.index.msec(r.event_loop.handle.now());
        let age = caching.lock_age.max(passing.read_timeout);
        state.ticket = state.cache.index.take(&state.key, clock, age);
    }
    match &state.ticket {
        Some(_) if may_be_stale && beside => {
            state.shown.because(|reason| reason.lookup = Lookup::Updating);
            state.shown.status.set(Status::Stale);
            return LookupStep::End(Found::Kept(kept));
        }
        None if may_be_stale => {
            state.shown.because(|reason| reason.lookup = Lookup::Updating);
            state.shown.status.set(Status::Updating);
            return LookupStep::End(Found::Kept(kept));
        }
        _ => {}
    }
    state.shown.status.set(Status::Expired);
    if state.revalidate {
        state.shown.old.replace(Some(kept.entry.clone()));
    }
    state.old = Some(kept);
    LookupStep::End(Found::Nothing)
}

/// Why a stored answer cannot be used under the rules of RFC 9111, whatever its age. It has no
/// body, or a location with other rules has stored it.
pub fn foreign(r: &Request, entry: &CacheEntry, facts: &Facts) -> Option<Lookup> {
    let rules = [
        (entry.of_head && r.method != Method::Head, Lookup::OfHead),
        (entry.status == 206 && !names_range(&entry.key), Lookup::Part),
        (entry.authorized && !facts.is_for_all(), Lookup::Authorization),
        (entry.vary.is_empty() && !facts.vary.is_empty(), Lookup::Varies),
    ];
    rules.into_iter().find_map(|(holds, why)| holds.then_some(why))
}

/// After a miss: this request fetches the answer, or waits for another one that does
/// (`..._cache_lock`).
async fn absent(
    r: &mut Request,
    passing: &'static UpstreamConf,
    state: &mut State,
    deadline: Instant,
) -> LookupStep {
    let caching = &*passing.caching;
    if !caching.lock {
        return LookupStep::End(Found::Nothing);
    }
    let now = state.cache.index.msec(r.event_loop.handle.now());
    if let Some(ticket) = state.cache.index.take(&state.key, now, caching.lock_age) {
        state.ticket = Some(ticket);
        state.since = state.cache.index.last();
        let fill = Fill::new(super::relay::IN_MEMORY, state.asked());
        state.cache.begin(state.key, fill.clone());
        state.fill = Some(fill);
        return LookupStep::End(Found::Nothing);
    }
    if r.event_loop.handle.now() >= deadline {
        if !caching.lock_timeout.is_zero() {
            r.log(Level::Info, format_args!("cache lock timeout"));
        }
        state.shown.cacheable.set(false);
        return LookupStep::End(Found::Nothing);
    }
    state.shown.waited.set(true);
    if let Some(fill) = state.cache.fill(&state.key)
        && let Some(looked) = join(r, passing, state, fill, deadline).await
    {
        return looked;
    }
    // The lock's holder is in another process, or its answer is not shared. This waits, since
    // nothing can change within this turn.
    let until = deadline.min(r.event_loop.handle.now() + LOCK_POLL);
    let handle = r.event_loop.handle.clone();
    let waited = wait(r, passing, pin!(handle.sleep_until(until)), None).await;
    match waited {
        Waited::For(()) => LookupStep::Again,
        Waited::Gone => LookupStep::End(Found::Gone),
    }
}

/// Waits for the head of an answer that another request fetches, and joins its readers. `None` if
/// the answer is not for this request.
async fn join(
    r: &mut Request,
    passing: &'static UpstreamConf,
    state: &mut State,
    fill: Arc<Fill>,
    deadline: Instant,
) -> Option<LookupStep> {
    let handle = r.event_loop.handle.clone();
    // The other request's cache lock may expire meanwhile.
    let until = deadline.min(handle.now() + passing.caching.lock_age);
    let head = either(fill.head(), handle.sleep_until(until));
    let waited = wait(r, passing, pin!(head), None).await;
    let (entry, length) = match waited {
        Waited::Gone => return Some(LookupStep::End(Found::Gone)),
        Waited::For(Either::Right(())) => return Some(LookupStep::Again),
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

/// The key of the variant that this request selects.
pub fn variant(r: &Request, passing: &UpstreamConf, main: &CacheKey, vary: &[u8]) -> CacheKey {
    let same = match passing.caching.keeps_standard() {
        true => VariantMatching::Meaning,
        false => VariantMatching::Words,
    };
    main.variant(vary, same, |name| {
        let name = name.to_vec();
        r.headers().filter(move |(n, _)| n.eq_ignore_ascii_case(&name)).map(|(_, value)| value)
    })
}
