//! Why a cache sent a stored answer or asked a server, and why it stored what came: `$upstream_cache_reason`.

use std::fmt;

/// Where a lifetime comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LifetimeSource {
    /// It was stored, and nothing says from where.
    #[default]
    Stored,
    /// `X-Accel-Expires`
    AccelExpires,
    /// `s-maxage`
    SMaxage,
    /// `max-age`
    MaxAge,
    /// `Expires`
    Expires,
    /// `..._cache_valid`
    CacheValid,
    /// A tenth of the time since `Last-Modified`.
    LastModified,
    /// Nothing gives one.
    Nothing,
}

/// How long an answer is fresh, and how old it is, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Life {
    /// From when it was made.
    pub lifetime: i64,
    /// Since then.
    pub age: i64,
    /// Where the lifetime comes from.
    pub by: LifetimeSource,
}

/// How a request found the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lookup {
    /// Nothing is stored for it.
    #[default]
    Absent,
    /// What is stored depends on fields that the request has otherwise.
    Variant,
    /// `..._cache_bypass`
    Bypass,
    /// `..._cache_min_uses`
    Scarce,
    /// The stored answer is fresh.
    Fresh,
    /// It is too old, and the request takes it (`max-stale`).
    Allowed,
    /// It is too old, and is sent while it is updated.
    Updating,
    /// It is too old, and is sent since no server gives a better one.
    Failed,
    /// It is too old.
    TooOld,
    /// It says `no-cache`.
    NoCache,
    /// The request says `no-cache`.
    AskedNoCache,
    /// The request's `max-age` is shorter than its age.
    AskedMaxAge,
    /// It is not fresh for as long as the request's `min-fresh`.
    AskedMinFresh,
    /// It is a part, and not the one that is asked for.
    Part,
    /// By other rules it was stored for a request with `Authorization`, and it is not for others.
    Authorization,
    /// It answers HEAD, and the request is another one.
    OfHead,
    /// It depends on fields of requests at which the location that stored it did not look.
    Varies,
    /// There is none, and the request wants no other: `only-if-cached`.
    OnlyIfCached,
}

/// Why an answer is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `no-store`
    NoStore,
    /// `private`
    Private,
    /// `must-understand`, and the status is not understood.
    NotUnderstood,
    /// `X-Accel-Expires: 0`
    AccelExpires,
    /// `Vary: *`
    VaryAnything,
    /// `Vary` is too long.
    LongVary,
    /// No answer of this status is stored.
    Status,
    /// The request says `no-store`.
    AskedNoStore,
    /// The request has `Authorization`, and the answer is not for others.
    Authorization,
    /// Nothing says that it is fresh, and it has no validator.
    NoLifetime,
    /// `no-cache`, and it has no validator.
    NoValidator,
    /// nginx's rules: `no-cache`, `no-store`, `private` or `max-age=0`.
    NoCache,
    /// nginx's rules: `Set-Cookie`.
    SetCookie,
    /// nginx's rules: it has expired.
    Expired,
    /// nginx's rules: a time in `Cache-Control` is no number.
    BadNumber,
    /// Its head is longer than those of cache files.
    LongHead,
    /// It has more tags than are kept.
    ManyTags,
    /// `..._no_cache`
    Configured,
    /// It is not passed on in a way in which it can be stored, or it has no head.
    Unbuffered,
    /// It is a part, and nothing asked for parts.
    Part,
    /// Another request has the right to store it, or it is not asked for often enough.
    Elsewhere,
}

/// What became of a server's answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kept {
    /// No server has answered.
    #[default]
    Unanswered,
    /// It is stored.
    Stored,
    /// It says that the stored one stands.
    Revalidated,
    /// It is not stored.
    Refused(Refusal),
}

/// What a cache did for a request, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reason {
    /// How the request found the cache.
    pub lookup: Lookup,
    /// What became of a server's answer.
    pub kept: Kept,
    /// The life of what was found, or of what was stored.
    pub life: Option<Life>,
}

impl Life {
    /// Seconds for which it still is fresh; less than 0: for which it is too old.
    pub fn left(self) -> i64 {
        self.lifetime.saturating_sub(self.age)
    }
}

impl Lookup {
    /// The client gets what was stored, and no server is waited for.
    pub fn is_served(self) -> bool {
        use Lookup::{Allowed, Failed, Fresh, Updating};
        matches!(self, Fresh | Allowed | Updating | Failed)
    }
}

impl fmt::Display for LifetimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LifetimeSource::Stored | LifetimeSource::Nothing => "",
            LifetimeSource::AccelExpires => " by X-Accel-Expires",
            LifetimeSource::SMaxage => " by s-maxage",
            LifetimeSource::MaxAge => " by max-age",
            LifetimeSource::Expires => " by Expires",
            LifetimeSource::CacheValid => " by cache_valid",
            LifetimeSource::LastModified => " by Last-Modified",
        })
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Life { lifetime, age, by } = self;
        match lifetime {
            ..=0 => write!(f, "not fresh without asking{by}, age {age}"),
            _ => write!(f, "fresh {lifetime} s{by}, age {age}"),
        }
    }
}

impl fmt::Display for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lookup::Absent => "nothing is stored",
            Lookup::Variant => "no stored variant has the request's fields",
            Lookup::Bypass => "bypassed, as the configuration says",
            Lookup::Scarce => "not asked for often enough",
            Lookup::Fresh => "served",
            Lookup::Allowed => "served too old, as the request's max-stale allows",
            Lookup::Updating => "served too old, while it is updated",
            Lookup::Failed => "served too old, since no server has a better one",
            Lookup::TooOld => "too old",
            Lookup::NoCache => "it says no-cache",
            Lookup::AskedNoCache => "the request says no-cache",
            Lookup::AskedMaxAge => "older than the request's max-age",
            Lookup::AskedMinFresh => "not fresh for the request's min-fresh",
            Lookup::Part => "what is stored is another part",
            Lookup::Authorization => "what is stored is for a request with Authorization",
            Lookup::OfHead => "what is stored answers HEAD",
            Lookup::Varies => "what is stored depends on fields that were not looked at",
            Lookup::OnlyIfCached => "nothing is stored, and the request says only-if-cached",
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::NoStore => "no-store",
            Refusal::Private => "private",
            Refusal::NotUnderstood => "must-understand, and the status is unknown",
            Refusal::AccelExpires => "X-Accel-Expires is 0",
            Refusal::VaryAnything => "Vary is *",
            Refusal::LongVary => "Vary is too long",
            Refusal::Status => "answers of this status are not",
            Refusal::AskedNoStore => "the request says no-store",
            Refusal::Authorization => "the request has Authorization",
            Refusal::NoLifetime => "nothing says for how long it is fresh",
            Refusal::NoValidator => "no-cache, without ETag and Last-Modified",
            Refusal::NoCache => "no-cache, no-store, private or max-age=0",
            Refusal::SetCookie => "Set-Cookie",
            Refusal::Expired => "it has expired",
            Refusal::BadNumber => "a time in Cache-Control is no number",
            Refusal::LongHead => "its head is too long",
            Refusal::ManyTags => "it has too many tags",
            Refusal::Configured => "the configuration says no_cache",
            Refusal::Unbuffered => "it is passed on as it comes",
            Refusal::Part => "it is a part that was not asked for",
            Refusal::Elsewhere => "this request may not",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lookup.fmt(f)?;
        match (self.kept, self.life) {
            (Kept::Unanswered, Some(life)) => write!(f, ": {life}"),
            (Kept::Unanswered, None) => Ok(()),
            (Kept::Stored, Some(life)) => write!(f, "; stored: {life}"),
            (Kept::Stored, None) => f.write_str("; stored"),
            (Kept::Revalidated, Some(life)) => write!(f, "; revalidated: {life}"),
            (Kept::Revalidated, None) => f.write_str("; revalidated"),
            (Kept::Refused(why), _) => write!(f, "; not stored: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_for_people() {
        let life = Some(Life { lifetime: 300, age: 12, by: LifetimeSource::SMaxage });
        let reason = Reason { lookup: Lookup::Fresh, kept: Kept::Unanswered, life };
        assert_eq!(reason.to_string(), "served: fresh 300 s by s-maxage, age 12");
        let reason = Reason { lookup: Lookup::Absent, kept: Kept::Stored, life };
        assert_eq!(
            reason.to_string(),
            "nothing is stored; stored: fresh 300 s by s-maxage, age 12"
        );
        let refused = Kept::Refused(Refusal::Private);
        let reason = Reason { lookup: Lookup::TooOld, kept: refused, life };
        assert_eq!(reason.to_string(), "too old; not stored: private");
    }
}
