//! The directives that are the same for all protocols: `proxy_cache`, `fastcgi_cache` ...

use std::sync::Arc;
use std::time::Duration;

use weir_cache::Cache;
use weir_conf::{Directive as Line, Error, values};
use weir_log::Level;
use weir_proto::http1::Method;
use weir_upstream::Failures;

use super::purge::Purge;
use crate::config::scope::{Scope, Spot};
use crate::phases::Step;
use crate::request::Request;
use weir_values::Template;

/// What a location says of its cache.
#[derive(Debug, Clone)]
pub struct Caching {
    /// `..._cache`
    pub zone: Zone,
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
    /// The same: `updating`.
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
    /// What the names of these directives begin with.
    pub prefix: &'static str,
}

/// Memory for what is asked for often, where the configuration does not say.
const MEMORY: u64 = 16 << 20;

/// Which cache.
#[derive(Debug, Clone, Default)]
pub enum Zone {
    /// None.
    #[default]
    Off,
    /// The one of this name, which was not looked up yet.
    Named(String, Spot),
    /// This one.
    Known(Arc<Cache>),
    /// The one that a value names.
    Computed(Template),
}

impl Default for Caching {
    fn default() -> Self {
        Caching {
            zone: Zone::Off,
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
            prefix: "",
        }
    }
}

impl Caching {
    /// The location has a cache.
    pub fn is_on(&self) -> bool {
        !matches!(self.zone, Zone::Off)
    }

    /// How long an answer of this status is valid if it does not say so itself.
    pub fn valid(&self, status: u16) -> Option<i64> {
        let known = self.valid.iter().find(|(of, _)| *of == 0 || *of == status);
        known.map(|(_, seconds)| *seconds).filter(|seconds| *seconds > 0)
    }

    /// All simple directives of a block were read: caches are known by now.
    pub fn finish(&mut self, caches: &[Arc<Cache>], prefix: &'static str) -> Result<(), Error> {
        self.prefix = prefix;
        self.zone.look_up(caches, prefix)
    }
}

impl Zone {
    /// Caches are known by now.
    pub fn look_up(&mut self, caches: &[Arc<Cache>], prefix: &str) -> Result<(), Error> {
        let Zone::Named(name, spot) = &self else { return Ok(()) };
        let found = caches.iter().find(|cache| cache.name() == name);
        let unknown = || spot.error(format!("\"{prefix}_cache\" zone \"{name}\" is unknown"));
        *self = Zone::Known(found.ok_or_else(unknown)?.clone());
        Ok(())
    }

    /// The cache for a request, if it has one.
    ///
    /// # Errors
    ///
    /// The request's end, where its value names a cache that there is not.
    pub fn cache(&self, r: &mut Request) -> Result<Option<Arc<Cache>>, Step> {
        let template = match self {
            Zone::Off | Zone::Named(..) => return Ok(None),
            Zone::Known(cache) => return Ok(Some(cache.clone())),
            Zone::Computed(template) => template,
        };
        let name = template.eval(r).into_owned();
        if matches!(name.as_slice(), b"" | b"off") {
            return Ok(None);
        }
        let found = r.site.caches.iter().find(|cache| cache.name().as_bytes() == name);
        if found.is_none() {
            let name = String::from_utf8_lossy(&name);
            r.log(Level::Error, format_args!("cache \"{name}\" not found"));
            return Err(Step::Status(500));
        }
        Ok(found.cloned())
    }
}

/// `..._cache NAME | off`
pub fn zone(s: &mut Scope<'_, '_>, d: &Line) -> Result<Zone, Error> {
    let Some(word) = d.args.first() else { return Ok(Zone::Off) };
    if word.is("off") {
        return Ok(Zone::Off);
    }
    let value = s.setup.template(d, word)?;
    if value.constant().is_none() {
        return Ok(Zone::Computed(value));
    }
    Ok(Zone::Named(word.lossy().into_owned(), Spot::new(d, word)))
}

/// Values of which one must be true.
pub fn predicates(s: &mut Scope<'_, '_>, d: &Line) -> Result<Vec<Template>, Error> {
    d.args.iter().map(|word| s.setup.template(d, word)).collect()
}

/// `..._cache_valid [status ...] time`
pub fn valid(d: &Line) -> Result<Vec<(u16, i64)>, Error> {
    let Some((time, statuses)) = d.args.split_last() else { return Ok(Vec::new()) };
    let seconds = values::sec(&time.bytes).and_then(|n| i64::try_from(n).ok());
    let seconds = seconds.ok_or_else(|| d.invalid("time value", time))?;
    if statuses.is_empty() {
        return Ok([200, 301, 302].map(|status| (status, seconds)).to_vec());
    }
    let read = |word: &weir_conf::Word| {
        if word.is("any") {
            return Ok((0, seconds));
        }
        let status = values::number(&word.bytes).filter(|n| (100..=599).contains(n));
        let status = status.ok_or_else(|| d.invalid("status", word))?;
        Ok((status as u16, seconds))
    };
    statuses.iter().map(read).collect()
}

/// `..._cache_methods`: GET and HEAD are always among them.
pub fn methods(d: &Line) -> Vec<Method> {
    let mut methods = vec![Method::Get, Method::Head];
    if d.args.iter().any(|word| word.bytes.eq_ignore_ascii_case(b"POST")) {
        methods.push(Method::Post);
    }
    methods
}

/// The directives that set a module's [`Caching`]: `cache_directives!(proxy, "proxy_")` for a module whose
/// settings have a field `passing`.
macro_rules! cache_directives {
    ($key:ident, $prefix:literal) => {{
        use weir_conf::Directive as Line;

        use $crate::upstream::cache;
        use $crate::config::scope::Scope;
        use $crate::config::table::table;

        const STORE: &str = concat!($prefix, "store");
        const CONFLICT: &str = concat!("is incompatible with \"", $prefix, "store\"");
        fn settings<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut cache::Caching {
            let passing = &mut $key.change(&mut s.location).passing;
            std::sync::Arc::make_mut(&mut passing.caching)
        }
        table! { $prefix, settings:
            "cache_path": line(|s, d| cache::set_path(s, d, concat!($prefix, "cache"))),
                "A directory of answers that are kept, with its index and its limits.";
            "cache": once(|s, d| {
                let zone = cache::zone(s, d)?;
                let same_block = s.has_seen(STORE);
                let passing = &mut $key.change(&mut s.location).passing;
                if !matches!(zone, cache::Zone::Off) && passing.store.is_some() {
                    if same_block {
                        return Err(d.problem(CONFLICT));
                    }
                    // What the block around stores, this one keeps.
                    passing.store = None;
                }
                settings(s).zone = zone;
                Ok(())
            }), "The cache that answers are kept in.";
            "cache_key": scoped(key, |s, d| Ok(cache::predicates(s, d)?.pop())),
                "What answers are kept under.";
            "cache_valid": list(valid, |_, d| cache::valid(d)),
                "How long answers are valid that do not say so themselves.";
            "cache_bypass": list(bypass, cache::predicates),
                "Values of which one makes a request go past the cache.";
            "no_cache": list(no_cache, cache::predicates),
                "Values of which one keeps an answer out of the cache.";
            "cache_purge": line(|s, d| {
                let first = s.first(d);
                if let Some(purge) = cache::purge::read(s, d, concat!($prefix, "cache"))? {
                    settings(s).purge.add(d, purge, first)?;
                }
                Ok(())
            }), "Values of which one makes a request remove what it names; `*` at a key's end: all that begin so. Or \
                 `METHOD [from ADDRESS ...]`, and in a location `ZONE KEY`, as the module ngx_cache_purge has it.";
            "cache_methods": value(methods, |d| Ok(cache::methods(d))),
                "Methods with answers that are kept.";
            "cache_min_uses": value(min_uses, Line::number),
                "How often something must be asked for to be kept.";
            "cache_max_range_offset": value(max_range_offset, |d| d.offset().map(Some)),
                "Ranges that begin behind this are asked for as they are, and not kept.";
            "cache_use_stale": once(|s, d| {
                let (failures, updating) = cache::stale_failures(d);
                let caching = settings(s);
                (caching.use_stale, caching.stale_while_updating) = (failures, updating);
                Ok(())
            }), "After which failures something too old is sent.";
            "cache_lock": value(lock, Line::flag),
                "Whether one request fetches what several ask for.";
            "cache_lock_timeout": value(lock_timeout, Line::duration),
                "How long the others wait for it.";
            "cache_lock_age": value(lock_age, Line::duration),
                "After how long one of the others may try, too.";
            "cache_revalidate": value(revalidate, Line::flag),
                "Whether servers are asked if something too old has changed.";
            "cache_convert_head": value(convert_head, Line::flag),
                "Whether HEAD is passed as GET.";
            "cache_memory": value(memory, Line::size),
                "How much memory each worker spends on small answers that are asked for often; 0: none.";
            "cache_background_update": value(background_update, Line::flag),
                "Whether something too old is sent while it is updated.";
        }
    }};
}
pub(crate) use cache_directives;
