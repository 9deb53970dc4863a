//! Decides whether an answer may be stored and how long it is fresh, from its head and the
//! configuration.

use weir_cache::{Freshness, Tags};
use weir_proto::http1::HeaderId;

use super::conf::Caching;
use super::rules::{Facts, Wanted, names_range};
use crate::request::Request;
use crate::request::cache_reason::{Kept, Life, LifetimeSource, Refusal};
use crate::upstream::passing::UpstreamConf;

/// The longest `Vary` of an answer that is stored, as in nginx.
const VARY: usize = 128;

/// The same under the rules of RFC 9111.
const LONG_VARY: usize = 1024;

/// The judgement of an answer's head.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why the answer must not be stored.
    pub refused: Option<Refusal>,
    /// `Vary`
    pub vary: Vec<u8>,
    /// `Last-Modified`
    pub last_modified: Option<i64>,
    /// `ETag`
    pub etag: Vec<u8>,
    /// Until when it is fresh; 0 if the head does not say.
    valid_until: i64,
    /// The field that says so.
    by: LifetimeSource,
    updating: i64,
    error: i64,
    /// `no-cache`, `no-store`, `private` or `max-age=0`.
    no_cache: bool,
    expired: bool,
    accel: bool,
    /// The result of the rules of RFC 9111, if they apply.
    ruled: Option<(Freshness, Life)>,
}

/// Judges the head of the answer that was just received.
pub fn judge(r: &Request, passing: &UpstreamConf, status: u16) -> Verdict {
    let context = &r.contexts.upstream;
    if passing.caching.keeps_standard() {
        let fields = context.headers.iter();
        let fields = fields.map(|h| (h.name.of(&context.head), h.value.of(&context.head)));
        return by_rules(r, passing, status, fields);
    }
    let headers = context.headers.iter().map(|h| (h.id, h.value.of(&context.head)));
    Verdict::of(headers, passing, r.event_loop.handle.wall().secs)
}

/// Judges an answer that was just received with these fields, by the rules of RFC 9111.
pub fn by_rules<'h>(
    r: &Request,
    passing: &UpstreamConf,
    status: u16,
    fields: impl Iterator<Item = (&'h [u8], &'h [u8])> + Clone,
) -> Verdict {
    let own = passing.caching.control_field.as_deref();
    let facts = Facts::of(fields.clone(), |name| is_ignored(passing, name), own);
    let handle = &r.event_loop.handle;
    let asked = r.contexts.upstream.attempts.last().map(|attempt| attempt.started);
    let delay = asked.map_or(0, |at| handle.now().saturating_duration_since(at).as_secs());
    let (now, delay) = (handle.wall().secs, i64::try_from(delay).unwrap_or(0));
    let valid = passing.caching.valid(status);
    let storing = facts.storing(status, &Wanted::of(r.headers()), (now, delay), valid);
    let Life { lifetime, age, .. } = storing.life;
    let born = now.saturating_sub(age);
    let ruled = Freshness {
        valid_until: born.saturating_add(lifetime).saturating_sub(1),
        updating: storing.updating,
        error: storing.error,
        date: born,
    };
    let shown = r.contexts.upstream.cache.as_deref();
    let is_part = status == 206 && !shown.is_some_and(|shown| names_range(&shown.text));
    let mut this = Verdict { ruled: Some((ruled, storing.life)), ..Verdict::default() };
    let rules = [
        (is_part, Refusal::Part),
        (facts.vary.len() > LONG_VARY, Refusal::LongVary),
        // The index of tags would not have all of them, so purges would miss it.
        (Tags::of(fields.clone(), b"").more, Refusal::ManyTags),
    ];
    let by_cache = rules.into_iter().find_map(|(holds, why)| holds.then_some(why));
    this.refused = storing.refused.or(by_cache);
    for (name, value) in fields {
        match HeaderId::from_name(name) {
            HeaderId::LastModified => this.last_modified = weir_proto::date::parse(value),
            HeaderId::ETag => this.etag = value.to_vec(),
            _ => {}
        }
    }
    this.vary = facts.vary;
    this
}

/// Whether `..._ignore_headers` names the field.
pub fn is_ignored(passing: &UpstreamConf, name: &[u8]) -> bool {
    let id = HeaderId::from_name(name);
    id != HeaderId::Other && passing.ignored.has(id)
}

impl Verdict {
    /// Judges these headers by nginx's rules.
    pub fn of<'h>(
        headers: impl Iterator<Item = (HeaderId, &'h [u8])>,
        passing: &UpstreamConf,
        now: i64,
    ) -> Verdict {
        let mut this = Verdict::default();
        for (id, value) in headers {
            let ignored = id != HeaderId::Other && passing.ignored.has(id);
            match id {
                HeaderId::LastModified => this.last_modified = weir_proto::date::parse(value),
                HeaderId::ETag => this.etag = value.to_vec(),
                _ if ignored => {}
                HeaderId::SetCookie => this.refuse(Refusal::SetCookie),
                HeaderId::CacheControl => this.cache_control(value, now),
                HeaderId::Expires => this.expires(value, now),
                HeaderId::XAccelExpires => this.accel_expires(value, now),
                HeaderId::Vary => this.add_vary(value),
                _ => {}
            }
        }
        let rules = [
            (this.no_cache, Refusal::NoCache),
            (this.expired, Refusal::Expired),
            (this.vary.len() > VARY, Refusal::LongVary),
        ];
        rules.into_iter().filter(|(holds, _)| *holds).for_each(|(_, why)| this.refuse(why));
        this
    }

    /// The freshness of the answer. `None` if neither the head nor the configuration gives a
    /// lifetime.
    pub fn times(&self, caching: &Caching, status: u16, now: i64) -> Option<Freshness> {
        if let Some((times, _)) = self.ruled {
            return self.is_cacheable().then_some(times);
        }
        let valid_until = match self.valid_until {
            0 => now.saturating_add(caching.valid(status)?),
            until => until,
        };
        Some(Freshness { valid_until, updating: self.updating, error: self.error, date: now })
    }

    /// Whether the head allows to store the answer.
    pub fn is_cacheable(&self) -> bool {
        self.refused.is_none()
    }

    /// Whether one line forbids to store anything. As in nginx, this holds for the error in place of
    /// a head that broke off behind the line. What follows from the whole head does not.
    pub fn is_refused_by_line(&self) -> bool {
        use Refusal::{AccelExpires, BadNumber, SetCookie, VaryAnything};
        matches!(self.refused, Some(AccelExpires | BadNumber | SetCookie | VaryAnything))
    }

    fn refuse(&mut self, why: Refusal) {
        self.refused.get_or_insert(why);
    }

    /// Whether the answer is stored, with these times. `told`: `..._no_cache` forbids it.
    pub fn outcome(&self, times: Option<&Freshness>, told: bool) -> Kept {
        match (self.refused, times) {
            (Some(why), _) => Kept::Refused(why),
            (None, _) if told => Kept::Refused(Refusal::Configured),
            (None, None) => Kept::Refused(Refusal::NoLifetime),
            (None, Some(_)) => Kept::Stored,
        }
    }

    /// The lifetime that follows from these times, and its source.
    pub fn life(&self, times: &Freshness) -> Life {
        let lifetime = times.valid_until.saturating_sub(times.date);
        let by = if self.says_when() { self.by } else { LifetimeSource::CacheValid };
        self.ruled.map_or(Life { lifetime, age: 0, by }, |(_, life)| life)
    }

    /// Whether the head itself gives a lifetime.
    pub fn says_when(&self) -> bool {
        self.valid_until != 0
    }

    fn cache_control(&mut self, value: &[u8], now: i64) {
        let value = value.to_ascii_lowercase();
        if !(self.valid_until != 0 && self.accel) {
            let forbids = |word: &[u8]| find(&value, word).is_some();
            if forbids(b"no-cache") || forbids(b"no-store") || forbids(b"private") {
                self.no_cache = true;
                return;
            }
            let shared = find(&value, b"s-maxage=");
            let by =
                if shared.is_some() { LifetimeSource::SMaxage } else { LifetimeSource::MaxAge };
            let age = shared.or_else(|| find(&value, b"max-age="));
            match age.map(seconds) {
                None => {}
                Some(None) => return self.refuse(Refusal::BadNumber),
                Some(Some(0)) => return self.no_cache = true,
                Some(Some(n)) => {
                    (self.valid_until, self.by) = (now.saturating_add(n), by);
                    self.expired = false;
                }
            }
        }
        match find(&value, b"stale-while-revalidate=").map(seconds) {
            None => {}
            Some(None) => return self.refuse(Refusal::BadNumber),
            Some(Some(n)) => (self.updating, self.error) = (n, n),
        }
        match find(&value, b"stale-if-error=").map(seconds) {
            None => {}
            Some(None) => self.refuse(Refusal::BadNumber),
            Some(Some(n)) => self.error = n,
        }
    }

    fn expires(&mut self, value: &[u8], now: i64) {
        if self.valid_until != 0 {
            return;
        }
        match weir_proto::date::parse(value).filter(|time| *time >= now) {
            Some(time) => (self.valid_until, self.by) = (time, LifetimeSource::Expires),
            None => self.expired = true,
        }
    }

    fn accel_expires(&mut self, value: &[u8], now: i64) {
        if std::mem::replace(&mut self.accel, true) {
            return;
        }
        let number = |text| weir_conf::values::number(text).and_then(|n| i64::try_from(n).ok());
        let until = match value.strip_prefix(b"@") {
            Some(time) => number(time),
            None => match number(value) {
                Some(0) => return self.refuse(Refusal::AccelExpires),
                n => n.map(|n| now.saturating_add(n)),
            },
        };
        if let Some(until) = until {
            (self.valid_until, self.by) = (until, LifetimeSource::AccelExpires);
            (self.no_cache, self.expired) = (false, false);
        }
    }

    fn add_vary(&mut self, value: &[u8]) {
        if value == b"*" {
            self.refuse(Refusal::VaryAnything);
        }
        if !self.vary.is_empty() {
            self.vary.extend_from_slice(b", ");
        }
        self.vary.extend_from_slice(value);
    }
}

/// The text behind a word.
fn find<'v>(value: &'v [u8], word: &[u8]) -> Option<&'v [u8]> {
    let at = value.windows(word.len()).position(|w| w == word)?;
    value.get(at + word.len()..)
}

/// Parses a number of seconds, up to the next delimiter. Saturates.
fn seconds(text: &[u8]) -> Option<i64> {
    let end = text.iter().position(|b| matches!(b, b',' | b';' | b' ')).unwrap_or(text.len());
    let digits = text.get(..end).unwrap_or_default();
    digits.iter().try_fold(0i64, |n, b| {
        b.is_ascii_digit().then(|| n.saturating_mul(10).saturating_add(i64::from(b - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: i64 = 1_000_000;

    fn of(headers: &[(HeaderId, &str)]) -> Verdict {
        let headers = headers.iter().map(|(id, value)| (*id, value.as_bytes()));
        Verdict::of(headers, &UpstreamConf::default(), NOW)
    }

    fn until(headers: &[(HeaderId, &str)]) -> Option<i64> {
        let verdict = of(headers);
        verdict.is_cacheable().then_some(())?;
        verdict.times(&Caching::default(), 200, NOW).map(|times| times.valid_until - NOW)
    }

    #[test]
    fn cache_control_says_how_long() {
        use HeaderId::CacheControl;
        assert_eq!(until(&[(CacheControl, "public, Max-Age=60")]), Some(60));
        assert_eq!(until(&[(CacheControl, "max-age=60, s-maxage=20")]), Some(20));
        for none in ["max-age=0", "no-cache", "no-store, max-age=9", "private", "max-age=x", ""] {
            assert_eq!(until(&[(CacheControl, none)]), None, "{none}");
        }
        let verdict =
            of(&[(CacheControl, "max-age=1, stale-while-revalidate=7, stale-if-error=9")]);
        assert_eq!((verdict.updating, verdict.error), (7, 9));
    }

    #[test]
    fn accel_expires_wins_over_cache_control_over_expires() {
        use HeaderId::{CacheControl, Expires, SetCookie, XAccelExpires};
        let past = (Expires, "Thu, 01 Jan 1970 00:00:01 GMT");
        assert_eq!(until(&[past]), None);
        assert_eq!(until(&[past, (CacheControl, "max-age=5")]), Some(5));
        assert_eq!(until(&[(CacheControl, "no-cache"), (XAccelExpires, "7")]), Some(7));
        assert_eq!(until(&[(XAccelExpires, "7"), (CacheControl, "no-cache")]), Some(7));
        assert_eq!(until(&[(XAccelExpires, "@1000003")]), Some(3));
        assert_eq!(until(&[(XAccelExpires, "0"), (CacheControl, "max-age=5")]), None);
        assert_eq!(until(&[(CacheControl, "max-age=5"), (SetCookie, "a=b")]), None);
    }

    #[test]
    fn the_configuration_says_the_rest() {
        let caching = Caching { valid: vec![(200, 5), (0, 1)], ..Caching::default() };
        let times = |status| of(&[]).times(&caching, status, NOW).map(|t| t.valid_until - NOW);
        assert_eq!((times(200), times(404)), (Some(5), Some(1)));
    }

    proptest! {
        #[test]
        fn anything_may_be_said(value in prop::collection::vec(any::<u8>(), 0..60)) {
            use HeaderId::{CacheControl, Expires, Vary, XAccelExpires};
            for id in [CacheControl, Expires, Vary, XAccelExpires] {
                Verdict::of([(id, value.as_slice())].into_iter(), &UpstreamConf::default(), NOW);
            }
        }
    }
}
