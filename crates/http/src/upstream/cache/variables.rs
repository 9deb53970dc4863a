//! `$upstream_cache_status` and kin.

use std::io::Write as _;
use std::sync::Arc;

use weir_cache::CacheEntry;

use crate::config::Setup;
use crate::request::Request;
use crate::request::cached::Status;

/// Defines the variables.
pub fn define(setup: &mut Setup<'_>) {
    let variables = &mut setup.variables;
    variables.define("upstream_cache_status", |r, out| match &r.contexts.upstream.cache {
        Some(state) => {
            out.extend_from_slice(state.status.get().name().as_bytes());
            true
        }
        None => false,
    });
    // nginx does not have the next two, so a configuration may have its own. APISIX sets the second.
    variables.define_changeable("upstream_cache_reason", false, |r, out| {
        match &r.contexts.upstream.cache {
            Some(shown) => write!(out, "{}", shown.reason.get()).is_ok(),
            None => false,
        }
    });
    variables.define_changeable("upstream_cache_key", false, |r, out| {
        match &r.contexts.upstream.cache {
            Some(state) => {
                out.extend_from_slice(&state.text);
                true
            }
            None => false,
        }
    });
    variables.define("upstream_cache_last_modified", |r, out| {
        let Some(time) = old(r).and_then(|old| old.last_modified) else { return false };
        out.extend_from_slice(&weir_proto::date::imf_fixdate(time));
        true
    });
    variables.define("upstream_cache_etag", |r, out| {
        let Some(old) = old(r) else { return false };
        out.extend_from_slice(&old.etag);
        !old.etag.is_empty()
    });
}

/// The stale answer that is being revalidated.
fn old(r: &Request) -> Option<Arc<CacheEntry>> {
    let shown = r.contexts.upstream.cache.as_deref();
    let shown = shown.filter(|s| s.status.get() == Status::Expired && s.cacheable.get())?;
    shown.old.borrow().clone()
}
