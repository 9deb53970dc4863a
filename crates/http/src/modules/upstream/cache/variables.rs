//! `$upstream_cache_status` and kin.

use super::{State, Status};
use crate::configure::Setup;
use crate::request::Request;

/// Defines them.
pub fn define(setup: &mut Setup<'_>) {
    let variables = &mut setup.variables;
    variables.define("upstream_cache_status", |r, out| match &r.contexts.upstream.cache {
        Some(state) => {
            out.extend_from_slice(state.status.name().as_bytes());
            true
        }
        None => false,
    });
    variables.define("upstream_cache_key", |r, out| match &r.contexts.upstream.cache {
        Some(state) => {
            out.extend_from_slice(&state.text);
            true
        }
        None => false,
    });
    variables.define("upstream_cache_last_modified", |r, out| {
        let Some(time) = old(r).and_then(|state| state.old.as_ref()?.entry().last_modified) else {
            return false;
        };
        out.extend_from_slice(&weir_proto::date::imf_fixdate(time));
        true
    });
    variables.define("upstream_cache_etag", |r, out| {
        let Some(old) = old(r).and_then(|state| state.old.as_ref()) else { return false };
        out.extend_from_slice(&old.entry().etag);
        !old.entry().etag.is_empty()
    });
}

/// The cache's part, where what is too old may turn out to stand.
fn old(r: &Request) -> Option<&State> {
    let state = r.contexts.upstream.cache.as_deref();
    state.filter(|s| s.revalidate && s.status == Status::Expired && s.cacheable)
}
