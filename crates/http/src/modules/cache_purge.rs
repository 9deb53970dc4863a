//! A location that removes answers from a cache and does nothing else: `..._cache_purge ZONE KEY`. The other forms
//! of the directive stand with the caches. As the module ngx_cache_purge has it.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error, Word};
use weir_engine::Boxed;
use weir_proto::http1::Method;
use weir_values::Template;

use crate::config::scope::{Scope, Spot};
use crate::modules::{Module, Named, Settings};
use crate::phases::{Handler, Later, Step};
use crate::request::Request;
use crate::upstream::cache::{Zone, purge};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    zone: Zone,
    key: Template,
    /// Such as `proxy`.
    prefix: String,
}

impl Settings for Conf {
    fn enter(conf: &mut Arc<Self>) {
        if !matches!(conf.zone, Zone::Off) {
            *conf = Arc::default();
        }
    }

    fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
        if matches!(s.location.cache_purge.zone, Zone::Named(..)) {
            let Conf { zone, prefix, .. } = Scope::change(&mut s.location.cache_purge);
            zone.look_up(&s.setup.caches, prefix)?;
        }
        Ok(())
    }
}

/// The module. Its directives are those of each kind of cache.
pub const MODULE: Module = Module { name: "http_cache_purge", directives: &[], init: |_| {} };

/// `..._cache_purge ZONE KEY`, in a location.
pub fn set(
    s: &mut Scope<'_, '_>,
    d: &Line,
    zone: &Word,
    key: &Word,
    directive: &str,
) -> Result<(), Error> {
    let key = s.setup.template(d, key)?;
    let zone = Zone::Named(zone.lossy().into_owned(), Spot::new(d, zone));
    let prefix = directive.trim_end_matches("_cache").to_owned();
    *Scope::change(&mut s.location.cache_purge) = Conf { zone, key, prefix };
    Scope::change(&mut s.location.core).handler =
        Some(Named { module: "cache_purge", run: Handler::Later(handler) });
    Ok(())
}

fn handler(r: &mut Request) -> Later<'_> {
    Boxed::new(move || async move {
        if !matches!(r.method, Method::Get | Method::Head | Method::Delete)
            && r.method_name() != b"PURGE"
        {
            return Step::Status(405);
        }
        let conf = r.conf().cache_purge.clone();
        let cache = match conf.zone.cache(r) {
            Ok(Some(cache)) => cache,
            Ok(None) => return Step::Status(404),
            Err(step) => return step,
        };
        let text = conf.key.eval(r).into_owned();
        purge::purge(r, &cache, text, purge::TOLD).await
    })
}
