//! The rules of RFC 9111 for a shared cache: which answers may be stored, and which stored answers
//! may be sent. Pure: no clock, no disk, no server.

mod control;
mod target;
#[cfg(test)]
mod tests;

pub use control::Control;
pub use target::in_place_of;

use std::collections::BTreeSet;

use weir_cache::{Field, field, fields};
use weir_proto::date;

use crate::request::cache_reason::{Life, LifetimeSource, Lookup, Refusal};

/// The largest time, in seconds: RFC 9111, section 1.2.2.
const LONGEST: i64 = 1 << 31;
/// The longest heuristic freshness, in seconds: RFC 9111, section 4.2.2.
const GUESSED: i64 = 7 * 86400;

/// What the rules need of an answer's head.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Facts {
    control: Control,
    /// `Age`
    age: i64,
    date: Option<i64>,
    /// `Expires`. An invalid date counts as one in the past.
    expires: Option<i64>,
    last_modified: Option<i64>,
    has_etag: bool,
    /// `Vary`, all lines joined.
    pub vary: Vec<u8>,
    /// `Vary: *`
    varies_by_anything: bool,
    /// The fields that `Connection`, `no-cache` and `private` name, in lower case. They are removed
    /// from stored answers.
    withheld: BTreeSet<Vec<u8>>,
    /// The head has a hop-by-hop field.
    has_hops: bool,
    /// `X-Accel-Expires`, which takes precedence over other fields.
    accel: Option<Accel>,
}

/// `X-Accel-Expires`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accel {
    For(i64),
    Until(i64),
}

/// What the rules need of a request's head.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// `Cache-Control`
    pub control: Control,
    /// The request has `Authorization`.
    pub authorized: bool,
}

/// Whether an answer may be stored, and its freshness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storing {
    /// Why it must not be stored.
    pub refused: Option<Refusal>,
    /// Its freshness lifetime, and its age when it was received. With a lifetime of 0, it must be
    /// revalidated before each use.
    pub life: Life,
    /// For how long it may be sent stale while it is updated.
    pub updating: i64,
    /// For how long it may be sent stale if it cannot be updated.
    pub error: i64,
}

/// Whether a stored answer may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// It is fresh.
    Fresh(Life),
    /// It is stale, but the client accepts that (`max-stale`).
    Stale(Life),
    /// A server is to be asked.
    Ask {
        /// The reason.
        why: Lookup,
        /// Lifetime and age of the answer.
        life: Life,
        /// It may be sent while the server is asked.
        updating: bool,
        /// It may be sent if the server fails.
        error: bool,
        /// It may be sent only after revalidation, whatever the configuration says.
        never_stale: bool,
    },
}

impl Facts {
    /// Reads the fields of an answer, except `ignored` ones. `own` is a field for this cache alone,
    /// which takes precedence over `CDN-Cache-Control` (RFC 9213, section 2.2).
    pub fn of<'a>(
        fields: impl Iterator<Item = Field<'a>> + Clone,
        ignored: impl Fn(&[u8]) -> bool,
        own: Option<&[u8]>,
    ) -> Facts {
        let mut this = Facts::default();
        let (mut age, mut of_connection) = (None, Vec::new());
        let (mut for_this, mut for_such) = (Vec::new(), Vec::new());
        for (name, value) in fields {
            this.has_hops |= hop(name);
            if ignored(name) {
                continue;
            }
            if own.is_some_and(|own| name.eq_ignore_ascii_case(own)) {
                for_this.push(value);
            }
            match name.len() {
                3 if is(name, b"age") => {
                    age.get_or_insert(value);
                }
                4 if is(name, b"date") => this.date = this.date.or(when(value)),
                4 if is(name, b"etag") => this.has_etag = true,
                4 if is(name, b"vary") => this.add_vary(value),
                7 if is(name, b"expires") => {
                    let time = when(value).unwrap_or(0);
                    this.expires = Some(this.expires.map_or(time, |other| other.min(time)));
                }
                10 if is(name, b"connection") => of_connection.extend(words(value)),
                13 if is(name, b"cache-control") => this.control.add(value),
                13 if is(name, b"last-modified") => this.last_modified = date::parse(value),
                15 if is(name, b"x-accel-expires") && this.accel.is_none() => this.accel(value),
                17 if is(name, b"cdn-cache-control") => for_such.push(value),
                _ => {}
            }
        }
        let targeted = Control::targeted(for_this.into_iter());
        if let Some(control) = targeted.or_else(|| Control::targeted(for_such.into_iter())) {
            (this.control, this.expires) = (control, None);
        }
        this.withheld = this.control.withheld.drain(..).chain(of_connection).collect();
        // `Age` must not be a list. If it is one, its first member is used.
        let age = age.and_then(|value: &[u8]| value.split(|b| *b == b',').next());
        this.age = age.and_then(|value| seconds(value.trim_ascii())).unwrap_or(0);
        this
    }

    /// Reads a stored head. A status line is skipped.
    pub fn of_head(head: &[u8], ignored: impl Fn(&[u8]) -> bool, own: Option<&[u8]>) -> Facts {
        Facts::of(fields(head), ignored, own)
    }

    fn add_vary(&mut self, value: &[u8]) {
        let mut words = value.split(|b| *b == b',').map(<[u8]>::trim_ascii);
        self.varies_by_anything |= words.any(|word| word == b"*");
        if !self.vary.is_empty() {
            self.vary.extend_from_slice(b", ");
        }
        self.vary.extend_from_slice(value);
    }

    fn accel(&mut self, value: &[u8]) {
        self.accel = match value.strip_prefix(b"@") {
            Some(time) => seconds_at_most(time, i64::MAX).map(Accel::Until),
            None => seconds(value).map(Accel::For),
        };
    }

    /// The freshness lifetime (RFC 9111, section 4.2.1) and its source. `valid`: the configured
    /// lifetime, for answers without their own. `received`: when the answer was received.
    fn lifetime(&self, status: u16, received: i64, valid: Option<i64>) -> (i64, LifetimeSource) {
        let accel = self.accel.map(|accel| match accel {
            Accel::For(n) => n,
            Accel::Until(time) => time.saturating_sub(received),
        });
        let date = self.date.unwrap_or(received);
        let expires = self.expires.map(|time| time.saturating_sub(date));
        let said = [
            (accel, LifetimeSource::AccelExpires),
            (self.control.s_maxage, LifetimeSource::SMaxage),
            (self.control.max_age, LifetimeSource::MaxAge),
            (expires, LifetimeSource::Expires),
        ];
        if let Some((said, by)) = said.into_iter().find_map(|(said, by)| Some((said?, by))) {
            return (said.clamp(0, LONGEST), by);
        }
        if let Some(valid) = valid {
            return (valid, LifetimeSource::CacheValid);
        }
        let unchanged = self.last_modified.map_or(0, |time| date.saturating_sub(time));
        match ((unchanged / 10).clamp(0, GUESSED), guesses(status) || self.control.public) {
            (0, _) | (_, false) => (0, LifetimeSource::Nothing),
            (guessed, true) => (guessed, LifetimeSource::LastModified),
        }
    }

    /// The age of the answer when it was received (RFC 9111, section 4.2.3). `delay`: seconds since
    /// the request was sent.
    fn age(&self, received: i64, delay: i64) -> i64 {
        let apparent = self.date.map_or(0, |date| received.saturating_sub(date).max(0));
        apparent.max(self.age.saturating_add(delay)).min(LONGEST)
    }

    /// Whether an answer of this status to this request may be stored (RFC 9111, section 3).
    pub fn storing(
        &self,
        status: u16,
        wanted: &Wanted,
        (received, delay): (i64, i64),
        valid: Option<i64>,
    ) -> Storing {
        let control = &self.control;
        let (lifetime, by) = self.lifetime(status, received, valid);
        let age = self.age(received, delay);
        let validates = self.has_etag || self.last_modified.is_some();
        let no_cache = control.no_cache && self.accel.is_none();
        let explicit = !matches!(by, LifetimeSource::CacheValid | LifetimeSource::Nothing);
        let explicit = explicit && by != LifetimeSource::LastModified;
        let of_use = lifetime > age || validates && (explicit || guesses(status) || control.public);
        let refused = self.forbidden(status, wanted).or(match (of_use, no_cache && !validates) {
            (false, _) => Some(Refusal::NoLifetime),
            (true, true) => Some(Refusal::NoValidator),
            (true, false) => None,
        });
        let lifetime = if no_cache { 0 } else { lifetime };
        let never_stale = self.never_stale();
        let later = |time: Option<i64>| if never_stale { 0 } else { time.unwrap_or(0) };
        Storing {
            refused,
            life: Life { lifetime, age, by },
            updating: later(control.stale_while_revalidate),
            error: later(control.stale_if_error),
        }
    }

    /// The reason that forbids to store the answer, apart from its lifetime.
    fn forbidden(&self, status: u16, wanted: &Wanted) -> Option<Refusal> {
        let control = &self.control;
        let accel = self.accel.is_some();
        let rules = [
            (matches!(self.accel, Some(Accel::For(0))), Refusal::AccelExpires),
            // `X-Accel-Expires` overrides `Cache-Control`.
            (!accel && control.must_understand && !understood(status), Refusal::NotUnderstood),
            (!accel && !control.must_understand && control.no_store, Refusal::NoStore),
            (!accel && control.private, Refusal::Private),
            (self.varies_by_anything, Refusal::VaryAnything),
            (status < 200 || status == 304, Refusal::Status),
            (wanted.control.no_store, Refusal::AskedNoStore),
            (wanted.authorized && !self.is_for_all(), Refusal::Authorization),
        ];
        rules.into_iter().find_map(|(holds, why)| holds.then_some(why))
    }

    /// Whether the answer to a request with `Authorization` may be sent to other clients (RFC 9111,
    /// section 3.5).
    pub fn is_for_all(&self) -> bool {
        let control = &self.control;
        control.public || control.must_revalidate || control.s_maxage.is_some()
    }

    /// Whether the answer must not be sent stale (RFC 9111, section 4.2.4).
    fn never_stale(&self) -> bool {
        let control = &self.control;
        let said = control.must_revalidate || control.proxy_revalidate || control.no_cache;
        self.accel.is_none() && (said || control.s_maxage.is_some())
    }

    /// Whether this stored answer may be sent for a request (RFC 9111, section 4). `born`: when its
    /// age was 0.
    pub fn serving(
        &self,
        status: u16,
        wanted: &Wanted,
        now: i64,
        born: i64,
        valid: Option<i64>,
    ) -> Serving {
        let (control, asks) = (&self.control, &wanted.control);
        let age = now.saturating_sub(born).max(0);
        let (lifetime, by) = self.lifetime(status, born, valid);
        let whole = self.accel.is_none();
        // A location with nginx's rules may have stored an answer that must not be stored here.
        let secret = control.private || control.no_store && !control.must_understand;
        let no_cache = whole && (control.no_cache || secret);
        let lifetime = if no_cache { 0 } else { lifetime };
        let life = Life { lifetime, age, by };
        let least = asks.min_fresh.unwrap_or(0);
        let outgrown = asks.max_age.is_some_and(|most| age > most);
        let why = [
            (no_cache, Lookup::NoCache),
            (lifetime <= age, Lookup::TooOld),
            (asks.no_cache, Lookup::AskedNoCache),
            (outgrown, Lookup::AskedMaxAge),
            (lifetime <= age.saturating_add(least), Lookup::AskedMinFresh),
        ];
        let Some(why) = why.into_iter().find_map(|(holds, why)| holds.then_some(why)) else {
            return Serving::Fresh(life);
        };
        let is_young = !outgrown && !asks.no_cache;
        let never_stale = self.never_stale();
        let too_old = age.saturating_sub(lifetime).max(0);
        let taken = asks.max_stale.is_some_and(|most| too_old <= most);
        if taken && is_young && !never_stale && least == 0 {
            return Serving::Stale(life);
        }
        let within = |time: Option<i64>| !never_stale && time.is_some_and(|time| too_old <= time);
        let error = within(control.stale_if_error) || within(asks.stale_if_error);
        let updating = within(control.stale_while_revalidate) && is_young && least == 0;
        Serving::Ask { why, life, updating, error, never_stale }
    }

    /// Whether [`Facts::withholds`] may be true for a field of the head.
    pub fn withhold_some(&self) -> bool {
        self.has_hops || !self.withheld.is_empty()
    }

    /// Whether a field of this name is removed from stored answers (RFC 9111, sections 3.1 and
    /// 5.2.2.4).
    pub fn withholds(&self, name: &[u8]) -> bool {
        let listed = || self.withheld.contains(&name.to_ascii_lowercase());
        hop(name) || !self.withheld.is_empty() && listed()
    }
}

impl Wanted {
    /// Reads the fields of a request.
    pub fn of<'a>(fields: impl Iterator<Item = Field<'a>>) -> Wanted {
        let mut this = Wanted::default();
        for (name, value) in fields {
            match name.len() {
                13 if is(name, b"cache-control") => this.control.add(value),
                13 if is(name, b"authorization") => this.authorized = true,
                _ => {}
            }
        }
        this
    }
}

/// Whether a 304 with these fields is about the stored answer with this head (RFC 9111, section
/// 4.3.4): it has no ETag or the same one. Weak and strong tags are equal, since a server that
/// compresses may weaken one of them.
pub fn is_about<'a>(head: &[u8], mut new: impl Iterator<Item = Field<'a>>) -> bool {
    let old = named(fields(head), b"etag").next();
    let new = new.find(|(name, _)| is(name, b"etag"));
    match (old, new) {
        (Some((_, old)), Some((_, new))) => strong(old) == strong(new),
        _ => true,
    }
}

/// Whether an answer to HEAD with these fields has the validators and the length of the stored
/// answer with this head (RFC 9111, section 4.3.5). At least one of them must be present. `length`:
/// that of the stored body, if known.
pub fn agrees<'a>(
    head: &[u8],
    length: Option<u64>,
    new: impl Iterator<Item = Field<'a>> + Clone,
) -> bool {
    let both = |name: &[u8]| {
        let (_, new) = named(new.clone(), name).next()?;
        Some((named(fields(head), name).next().map(|(_, old)| old), new))
    };
    let tag = both(b"etag").map(|(old, new)| old.map(strong) == Some(strong(new)));
    let time = both(b"last-modified").map(|(old, new)| old == Some(new));
    let told = named(new.clone(), b"content-length").next().zip(length);
    let long = told.map(|((_, told), length)| told == length.to_string().as_bytes());
    let said = [tag, time, long].into_iter().flatten();
    said.clone().count() > 0 && said.into_iter().all(|same| same)
}

/// A tag without its mark of weakness.
fn strong(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// The stored head, updated by a 304 with these fields (RFC 9111, section 3.2). It keeps its own
/// ETag.
pub fn updated<'a>(head: &[u8], fresh: impl Iterator<Item = Field<'a>> + Clone) -> Vec<u8> {
    const STAY: [&[u8]; 6] = [
        b"content-length",
        b"content-encoding",
        b"content-range",
        b"content-type",
        b"transfer-encoding",
        b"status",
    ];
    let tagged = named(fields(head), b"etag").next().is_some();
    // Fields that `Connection` names are not stored (RFC 9111, section 3.1).
    let listed = named(fresh.clone(), b"connection").flat_map(|(_, value)| words(value));
    let listed: BTreeSet<Vec<u8>> = listed.collect();
    let stays = |name: &[u8]| {
        STAY.iter().any(|other| is(name, other))
            || hop(name)
            || tagged && is(name, b"etag")
            || listed.contains(&name.to_ascii_lowercase())
    };
    let fresh = fresh.filter(|(name, _)| !stays(name));
    let new: BTreeSet<Vec<u8>> = fresh.clone().map(|(name, _)| name.to_ascii_lowercase()).collect();
    let mut out = Vec::with_capacity(head.len());
    for line in head.split_inclusive(|b| *b == b'\n') {
        let bare = line.trim_ascii_end();
        if bare.is_empty() {
            break;
        }
        let replaced = field(bare)
            .is_some_and(|(name, _)| is(name, b"age") || new.contains(&name.to_ascii_lowercase()));
        if !replaced {
            out.extend_from_slice(line);
        }
    }
    for (name, value) in fresh {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// The members of a list without quoted strings, in lower case.
fn words(value: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    value.split(|b| *b == b',').map(|word| word.trim_ascii().to_ascii_lowercase())
}

/// Parses a date in one of the three forms of RFC 9110, section 5.6.7. The zone must be GMT, and
/// the month a name.
fn when(value: &[u8]) -> Option<i64> {
    const MONTHS: [&[u8]; 12] = [
        b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov",
        b"dec",
    ];
    let mut words = value.split(|b| matches!(b, b' ' | b'-' | b',')).skip(1);
    let is_month = |word: &[u8]| MONTHS.iter().any(|month| word.eq_ignore_ascii_case(month));
    let named = words.any(is_month);
    let is_asctime = value.get(3) == Some(&b' ');
    let zone = value.get(value.len().saturating_sub(4)..).unwrap_or_default();
    date::parse(value).filter(|_| named && (is_asctime || zone.eq_ignore_ascii_case(b" GMT")))
}

fn named<'a>(
    fields: impl Iterator<Item = Field<'a>>,
    name: &[u8],
) -> impl Iterator<Item = Field<'a>> {
    fields.filter(move |(other, _)| other.eq_ignore_ascii_case(name))
}

fn is(name: &[u8], lower: &[u8]) -> bool {
    name.eq_ignore_ascii_case(lower)
}

/// Hop-by-hop fields, whether `Connection` names them or not.
fn hop(name: &[u8]) -> bool {
    const HOP: [&[u8]; 9] = [
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"transfer-encoding",
        b"upgrade",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
    ];
    HOP.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Whether a key contains a range. A partial answer is stored only under such a key (RFC 9111,
/// section 3.3).
pub fn names_range(key: &[u8]) -> bool {
    key.windows(6).any(|word| word.eq_ignore_ascii_case(b"bytes="))
}

/// Parses a number of seconds, at most [`LONGEST`].
fn seconds(text: &[u8]) -> Option<i64> {
    seconds_at_most(text, LONGEST)
}

fn seconds_at_most(text: &[u8], most: i64) -> Option<i64> {
    let digit = |n: i64, b: &u8| {
        b.is_ascii_digit().then(|| n.saturating_mul(10).saturating_add(i64::from(b - b'0')))
    };
    let number = text.iter().try_fold(0, digit).filter(|_| !text.is_empty())?;
    Some(number.min(most))
}

/// Whether a status is heuristically cacheable: RFC 9110, section 15.1.
fn guesses(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Whether this cache understands the status (`must-understand`: RFC 9111, section 5.2.2.3).
fn understood(status: u16) -> bool {
    guesses(status)
        || matches!(
            status,
            302 | 303 | 307 | 400 | 401 | 403 | 406..=409 | 411 | 412 | 415 | 421 | 422
        )
        || matches!(status, 451 | 500 | 502..=504)
}
