//! A location that only purges: `..._cache_purge ZONE KEY`, as in the module ngx_cache_purge.

use weir_conf::{Directive as Line, Error, Word};
use weir_engine::Boxed;
use weir_proto::http1::Method;
use weir_values::Template;

use super::{Zone, purge};
use crate::config::scope::{Scope, Spot};
use crate::phases::{Answer, Later, Step};
use crate::request::Request;
use crate::site::content::ContentHandler;

/// The settings of such a location.
#[derive(Debug, Clone)]
pub struct Purge {
    zone: Zone,
    key: Template,
    /// Such as `proxy`.
    prefix: String,
}

/// Looks the cache of such a location up, after its block was read.
pub fn look_up(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    let core = Scope::change(&mut s.location.core);
    if let Some(purge) = CONTENT.change(&mut core.content) {
        purge.zone.look_up(&s.setup.caches, &purge.prefix)?;
    }
    Ok(())
}

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
    s.answer_with(CONTENT.with(Purge { zone, key, prefix }));
    Ok(())
}

/// The content handler.
static CONTENT: ContentHandler<Purge> = ContentHandler {
    module: "cache_purge",
    in_limit_except: false,
    optional: false,
    run: |r, settings| Answer::Later(handler(r, settings)),
};

/// Purges the key of a request.
fn handler<'a>(r: &'a mut Request, what: &'static Purge) -> Later<'a> {
    Boxed::new(move || async move {
        if !matches!(r.method, Method::Get | Method::Head | Method::Delete)
            && r.method_name() != b"PURGE"
        {
            return Step::Status(405);
        }
        let cache = match what.zone.cache(r, &what.prefix) {
            Ok(Some(cache)) => cache,
            Ok(None) => return Step::Status(404),
            Err(step) => return step,
        };
        let text = what.key.eval(r).into_owned();
        purge::purge(r, &cache, text, purge::TOLD).await
    })
}
