//! The rules of RFC 9111 for a shared cache: what may be stored, and what of it may be sent. Nothing here asks a clock,
//! a disk or a server: facts in, verdicts out.

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

/// The longest time that counts, in seconds: RFC 9111, section 1.2.2.
const LONGEST: i64 = 1 << 31;
/// The longest time that an answer without a lifetime of its own is taken to be fresh.
const GUESSED: i64 = 7 * 86400;

/// What the rules take from an answer's head.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Facts {
    control: Control,
    /// `Age`
    age: i64,
    date: Option<i64>,
    /// `Expires`; one that is no date lies in the past.
    expires: Option<i64>,
    last_modified: Option<i64>,
    has_etag: bool,
    /// `Vary`, all lines as one.
    pub vary: Vec<u8>,
    /// `Vary: *`
    varies_by_anything: bool,
    /// The fields that `Connection`, `no-cache` and `private` name, in lower case: no stored answer shows them.
    withheld: BTreeSet<Vec<u8>>,
    /// One of its fields belongs to a connection or to a proxy.
    has_hops: bool,
    /// `X-Accel-Expires` that counts; it stands for what the head says else.
    accel: Option<Accel>,
}

/// `X-Accel-Expires`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accel {
    For(i64),
    Until(i64),
}

/// What of a request matters to a cache.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// `Cache-Control`
    pub control: Control,
    /// `Authorization` is there.
    pub authorized: bool,
}

/// Whether an answer may be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storing {
    /// Why it must not be.
    pub refused: Option<Refusal>,
    /// How long it is fresh, and how old it was when it came; with a lifetime of 0 or less, not at all without asking.
    pub life: Life,
    /// So long after that it may be sent while it is updated.
    pub updating: i64,
    /// So long after that it may be sent where it cannot be updated.
    pub error: i64,
}

/// Whether something stored may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// As it is.
    Fresh(Life),
    /// As it is, since the client takes what is too old.
    Old(Life),
    /// A server is to be asked.
    Ask {
        /// Why.
        why: Lookup,
        /// What the answer's life says.
        life: Life,
        /// It may be sent while that happens.
        updating: bool,
        /// It may be sent if that fails.
        error: bool,
        /// It may be sent only if a server says that it stands, whatever the configuration says.
        never_old: bool,
    },
}

impl Facts {
    /// Reads the fields of an answer; `ignored` says which ones do not count. `own`: the field for this cache alone, which stands
    /// before `CDN-Cache-Control` (RFC 9213, section 2.2).
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
        // A list is no age, but its first member may be meant.
        let age = age.and_then(|value: &[u8]| value.split(|b| *b == b',').next());
        this.age = age.and_then(|value| seconds(value.trim_ascii())).unwrap_or(0);
        this
    }

    /// Reads a stored head; what stands before its first line of a field is not looked at.
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

    /// How long the answer is fresh (RFC 9111, section 4.2.1), and what says so. `valid`: what the configuration says where the
    /// answer does not. `received`: when it came.
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

    /// How old the answer was when it came (RFC 9111, section 4.2.3). `delay`: seconds since it was asked for.
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
        let never_old = self.never_old();
        let later = |time: Option<i64>| if never_old { 0 } else { time.unwrap_or(0) };
        Storing {
            refused,
            life: Life { lifetime, age, by },
            updating: later(control.stale_while_revalidate),
            error: later(control.stale_if_error),
        }
    }

    /// What forbids to store the answer, whatever its lifetime.
    fn forbidden(&self, status: u16, wanted: &Wanted) -> Option<Refusal> {
        let control = &self.control;
        let accel = self.accel.is_some();
        let rules = [
            (matches!(self.accel, Some(Accel::For(0))), Refusal::AccelExpires),
            // What the configuration's own field says stands for the rest.
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

    /// An answer to a request with `Authorization` that may be sent to others (RFC 9111, section 3.5).
    pub fn is_for_all(&self) -> bool {
        let control = &self.control;
        control.public || control.must_revalidate || control.s_maxage.is_some()
    }

    /// No answer that is too old may be sent (RFC 9111, section 4.2.4).
    fn never_old(&self) -> bool {
        let control = &self.control;
        let said = control.must_revalidate || control.proxy_revalidate || control.no_cache;
        self.accel.is_none() && (said || control.s_maxage.is_some())
    }

    /// Whether this stored answer may be sent for a request (RFC 9111, section 4). It came, unchanged, `age` seconds ago.
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
        // A location with other rules may have stored what these would not.
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
        let never_old = self.never_old();
        let too_old = age.saturating_sub(lifetime).max(0);
        let taken = asks.max_stale.is_some_and(|most| too_old <= most);
        if taken && is_young && !never_old && least == 0 {
            return Serving::Old(life);
        }
        let within = |time: Option<i64>| !never_old && time.is_some_and(|time| too_old <= time);
        let error = within(control.stale_if_error) || within(asks.stale_if_error);
        let updating = within(control.stale_while_revalidate) && is_young && least == 0;
        Serving::Ask { why, life, updating, error, never_old }
    }

    /// Whether there is a field that [`Facts::withholds`] may be about.
    pub fn withhold_some(&self) -> bool {
        self.has_hops || !self.withheld.is_empty()
    }

    /// No stored answer shows a field of this name (RFC 9111, section 3.1; section 5.2.2.4).
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

/// Whether an answer 304 with these fields is about the stored answer with this head (RFC 9111, section 4.3.4): it has no tag, or
/// the same one. A server that compresses may make a tag weak in one of the two.
pub fn is_about<'a>(head: &[u8], mut new: impl Iterator<Item = Field<'a>>) -> bool {
    let old = named(fields(head), b"etag").next();
    let new = new.find(|(name, _)| is(name, b"etag"));
    match (old, new) {
        (Some((_, old)), Some((_, new))) => strong(old) == strong(new),
        _ => true,
    }
}

/// Whether an answer to HEAD with these fields has the validators and the length of the stored answer with this head, as far
/// as it tells any (RFC 9111, section 4.3.5). `length`: that of the stored body, if it is known.
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

/// A tag without what makes it weak.
fn strong(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// The stored head after an answer 304 with these fields (RFC 9111, section 3.2). It keeps its own tag.
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
    // These are not for later requests (RFC 9111, section 3.1).
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

/// The members of a list without quotes, in lower case.
fn words(value: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    value.split(|b| *b == b',').map(|word| word.trim_ascii().to_ascii_lowercase())
}

/// A date in one of the three forms of RFC 9110, section 5.6.7: no other zone than GMT is one, and months have their names.
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

/// Fields that belong to a connection or to a proxy, whether it says so or not.
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

/// Whether a key tells which part of an answer it is of: only such a part may be stored (RFC 9111, section 3.3).
pub fn names_range(key: &[u8]) -> bool {
    key.windows(6).any(|word| word.eq_ignore_ascii_case(b"bytes="))
}

/// A number of seconds, at most [`LONGEST`]; `None` if it is none.
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

/// An answer of this status may be fresh without saying so: RFC 9110, section 15.1.
fn guesses(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// This server knows what caches must know of the status.
fn understood(status: u16) -> bool {
    guesses(status)
        || matches!(
            status,
            302 | 303 | 307 | 400 | 401 | 403 | 406..=409 | 411 | 412 | 415 | 421 | 422
        )
        || matches!(status, 451 | 500 | 502..=504)
}
