//! What a cache would do with a request, found without asking a server. For `weir explain`.

use weir_cache::{CacheEntry, CacheKey, Field, Freshness, read_entry};

use super::judge::{self, Verdict};
use super::kept::facts_of;
use super::lookup::{foreign, variant};
use super::rules::{Serving, Wanted};
use crate::request::Request;
use crate::request::cache_reason::{Kept, Life, LifetimeSource, Lookup, Reason};
use crate::request::cached::{Shown, Status};
use crate::upstream::passing::UpstreamConf;
use weir_proto::http1::HeaderId;
use weir_values::Template;

/// Describes what is stored for the key `text`, and whether it would be sent. With `answer`, also
/// says whether a server's answer with this status and fields would be stored. Empty if the
/// location has no cache.
pub fn explain(
    r: &mut Request,
    passing: &UpstreamConf,
    text: Vec<u8>,
    answer: Option<(u16, &[Field<'_>])>,
) -> Vec<String> {
    let caching = &*passing.caching;
    let Ok(Some(cache)) = caching.zone.cache(r, caching.prefix) else { return Vec::new() };
    let mut out = vec![format!("{}, key \"{}\"", cache.name(), String::from_utf8_lossy(&text))];
    if !caching.methods.contains(&r.method) {
        out.push("not asked: answers to this method are not stored".to_owned());
        return out;
    }
    let shown = Shown::new(text.clone(), Status::Miss, None);
    r.contexts.upstream.cache = Some(shown);
    let main = CacheKey::of(&text);
    let file = |key: &CacheKey| cache.settings.place.path(key);
    let mut place = file(&main);
    let mut entry = read_entry(&place).filter(|entry| entry.key == text);
    let mut reason = Reason::default();
    let wanted = entry.as_ref().filter(|entry| entry.variant.is_some());
    let wanted = wanted.map(|entry| variant(r, passing, &main, &entry.vary));
    if let Some(wanted) =
        wanted.filter(|wanted| entry.as_ref().and_then(|e| e.variant) != Some(*wanted))
    {
        place = file(&wanted);
        entry = read_entry(&place).filter(|entry| entry.key == text);
        reason.lookup = Lookup::Variant;
    }
    if let Some(entry) = &entry {
        (reason.lookup, reason.life) = found(r, passing, entry);
        out.push(format!("stored with status {} in {}", entry.status, place.display()));
    }
    if Template::any_is_true(&caching.bypass, r) {
        (reason.lookup, reason.life) = (Lookup::Bypass, None);
    }
    out.push(reason.to_string());
    if let Some((status, fields)) = answer {
        out.push(format!("such an answer would be {}", kept(r, passing, status, fields)));
    }
    out
}

/// Whether a stored answer would be sent now.
fn found(r: &Request, passing: &UpstreamConf, entry: &CacheEntry) -> (Lookup, Option<Life>) {
    let (caching, times) = (&*passing.caching, entry.times);
    let now = r.event_loop.handle.wall().secs;
    if !caching.keeps_standard() {
        let (lifetime, age) = (times.valid_until.saturating_sub(times.date), now - times.date);
        let life = Some(Life { lifetime, age, by: LifetimeSource::Stored });
        return (if times.valid_until >= now { Lookup::Fresh } else { Lookup::TooOld }, life);
    }
    let facts = facts_of(entry, passing);
    if let Some(why) = foreign(r, entry, &facts) {
        return (why, None);
    }
    let (wanted, valid) = (Wanted::of(r.headers()), caching.valid(entry.status));
    match facts.serving(entry.status, &wanted, now, times.date, valid) {
        Serving::Fresh(life) => (Lookup::Fresh, Some(life)),
        Serving::Stale(life) => (Lookup::Allowed, Some(life)),
        Serving::Ask { updating: true, life, .. } => (Lookup::Updating, Some(life)),
        Serving::Ask { why, life, .. } => (why, Some(life)),
    }
}

/// Whether such an answer would be stored.
fn kept(r: &mut Request, passing: &UpstreamConf, status: u16, fields: &[Field<'_>]) -> String {
    let caching = &*passing.caching;
    let now = r.event_loop.handle.wall().secs;
    let verdict = match caching.keeps_standard() {
        true => judge::by_rules(r, passing, status, fields.iter().copied()),
        false => {
            let fields = fields.iter().map(|(name, value)| (HeaderId::from_name(name), *value));
            Verdict::of(fields, passing, now)
        }
    };
    let times = verdict.times(caching, status, now);
    let kept = Template::any_is_true(&caching.no_cache, r);
    let kept = verdict.outcome(times.as_ref(), kept);
    let life = times.as_ref().map(|times: &Freshness| verdict.life(times));
    match (kept, life) {
        (Kept::Refused(why), _) => format!("not stored: {why}"),
        (_, Some(life)) => format!("stored: {life}"),
        (_, None) => "stored".to_owned(),
    }
}
