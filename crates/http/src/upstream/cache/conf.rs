//! The cache settings of a location, for all protocols.

use std::sync::Arc;
use std::time::Duration;

use weir_cache::Cache;
use weir_conf::{Directive as Line, Error};
use weir_log::Level;
use weir_proto::http1::Method;
use weir_upstream::Failures;
use weir_zone::ZoneError;

use crate::config::scope::Spot;
use crate::phases::Step;
use crate::request::Request;
use weir_values::{Cidr, Template};

/// The cache settings of a location.
#[derive(Debug, Clone)]
pub struct Caching {
    /// `..._cache`
    pub zone: Zone,
    /// Where `..._cache` names it.
    pub at: Option<Spot>,
    /// `..._cache_key`
    pub key: Option<Template>,
    /// `..._cache_valid`: status (0: any) and seconds.
    pub valid: Vec<(u16, i64)>,
    /// `..._cache_bypass`
    pub bypass: Vec<Template>,
    /// `..._no_cache`
    pub no_cache: Vec<Template>,
    /// `..._cache_purge`
    pub purge: Purge,
    /// `..._cache_methods`
    pub methods: Vec<Method>,
    /// `..._cache_min_uses`
    pub min_uses: u64,
    /// `..._cache_max_range_offset`
    pub max_range_offset: Option<u64>,
    /// `..._cache_use_stale`
    pub use_stale: Failures,
    /// `..._cache_use_stale updating`
    pub stale_while_updating: bool,
    /// `..._cache_lock`
    pub lock: bool,
    /// `..._cache_lock_timeout`
    pub lock_timeout: Duration,
    /// `..._cache_lock_age`
    pub lock_age: Duration,
    /// `..._cache_revalidate`
    pub revalidate: bool,
    /// `..._cache_convert_head`
    pub convert_head: bool,
    /// `..._cache_background_update`
    pub background_update: bool,
    /// `..._cache_memory`
    pub memory: u64,
    /// `..._cache_rules`
    pub rules: Rules,
    /// `..._cache_control_field`, in lower case.
    pub control_field: Option<Vec<u8>>,
    /// `..._cache_status_field`: the cache's name, as `Cache-Status` has it.
    pub status_field: Option<Vec<u8>>,
    /// The prefix of the directives' names, such as `proxy`.
    pub prefix: &'static str,
}

/// The rules for storing and sending answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rules {
    /// nginx's.
    #[default]
    Nginx,
    /// Those of RFC 9111.
    Rfc9111,
}

/// The default of `..._cache_memory`.
const MEMORY: u64 = 16 << 20;

/// The cache of a location.
#[derive(Debug, Clone, Default)]
pub enum Zone {
    /// None.
    #[default]
    Off,
    /// The cache of this name, not looked up yet.
    Named(String, Spot),
    /// This one.
    Known(Arc<Cache>),
    /// The cache that a value names.
    Computed(Template),
}

impl Default for Caching {
    fn default() -> Self {
        Caching {
            zone: Zone::Off,
            at: None,
            key: None,
            valid: Vec::new(),
            bypass: Vec::new(),
            no_cache: Vec::new(),
            purge: Purge::Never,
            methods: vec![Method::Get, Method::Head],
            min_uses: 1,
            max_range_offset: None,
            use_stale: Failures::NONE,
            stale_while_updating: false,
            lock: false,
            lock_timeout: Duration::from_secs(5),
            lock_age: Duration::from_secs(5),
            revalidate: false,
            convert_head: true,
            background_update: false,
            memory: MEMORY,
            rules: Rules::Nginx,
            control_field: None,
            status_field: None,
            prefix: "",
        }
    }
}

impl Caching {
    /// Whether the location has a cache.
    pub fn is_on(&self) -> bool {
        !matches!(self.zone, Zone::Off)
    }

    /// Whether the rules of RFC 9111 apply.
    pub fn keeps_standard(&self) -> bool {
        self.rules == Rules::Rfc9111
    }

    /// `..._cache_valid`: the lifetime of an answer of this status that does not give its own.
    pub fn valid(&self, status: u16) -> Option<i64> {
        let known = self.valid.iter().find(|(of, _)| *of == 0 || *of == status);
        known.map(|(_, seconds)| *seconds).filter(|seconds| *seconds > 0)
    }

    /// Looks the cache up, after all simple directives of a block were read.
    pub fn finish(&mut self, caches: &[Arc<Cache>], prefix: &'static str) -> Result<(), Error> {
        self.prefix = prefix;
        self.zone.look_up(caches, prefix)
    }
}

impl Zone {
    /// Looks a named cache up.
    pub fn look_up(&mut self, caches: &[Arc<Cache>], prefix: &str) -> Result<(), Error> {
        let Zone::Named(name, spot) = &self else { return Ok(()) };
        let found = caches.iter().find(|cache| cache.name() == name);
        let unknown = || spot.error(format!("\"{prefix}_cache\" zone \"{name}\" is unknown"));
        let found = found.ok_or_else(unknown)?;
        if !is_of(found, prefix) {
            return Err(spot.error(ZoneError::OtherUse(name.clone())));
        }
        *self = Zone::Known(found.clone());
        Ok(())
    }

    /// The cache for a request of the protocol `prefix`, if it has one.
    ///
    /// # Errors
    ///
    /// The end of the request, if its value names a cache that does not exist.
    pub fn cache(&self, r: &mut Request, prefix: &str) -> Result<Option<Arc<Cache>>, Step> {
        let template = match self {
            Zone::Off | Zone::Named(..) => return Ok(None),
            Zone::Known(cache) => return Ok(Some(cache.clone())),
            Zone::Computed(template) => template,
        };
        let name = template.eval(r).into_owned();
        if matches!(name.as_slice(), b"" | b"off") {
            return Ok(None);
        }
        let wanted = |cache: &&Arc<Cache>| cache.name().as_bytes() == name && is_of(cache, prefix);
        let found = r.site.caches.iter().find(wanted);
        if found.is_none() {
            let name = String::from_utf8_lossy(&name);
            r.log(Level::Error, format_args!("cache \"{name}\" not found"));
            return Err(Step::Status(500));
        }
        Ok(found.cloned())
    }
}

/// Whether a cache has answers of this protocol. Stored heads are the protocol's own.
fn is_of(cache: &Cache, prefix: &str) -> bool {
    cache.directive().strip_suffix("_cache") == Some(prefix)
}

/// The requests that purge.
#[derive(Debug, Clone, Default)]
pub enum Purge {
    /// None.
    #[default]
    Never,
    /// Requests for which one of these values is neither empty nor `0`.
    If(Vec<Template>),
    /// Requests with this method.
    By(Arc<PurgeMethod>),
}

/// `METHOD [from ADDRESS ...]`
#[derive(Debug, Clone)]
pub struct PurgeMethod {
    pub(super) name: Vec<u8>,
    /// The addresses that may purge; `None` for all.
    pub(super) from: Option<Vec<Cidr>>,
}

impl Purge {
    /// Adds a line. `first`: it is the first in its block.
    pub fn add(&mut self, d: &Line, other: Purge, first: bool) -> Result<(), Error> {
        match (self, other) {
            (this, other) if first => *this = other,
            (Purge::If(values), Purge::If(more)) => values.extend(more),
            _ => return Err(d.problem("is duplicate")),
        }
        Ok(())
    }
}
