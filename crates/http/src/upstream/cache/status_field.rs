//! The field `Cache-Status` (RFC 9211).

use std::io::Write as _;

use super::conf::Caching;
use crate::request::Request;
use crate::request::cache_reason::{Kept, Lookup};

/// Adds this cache's member to the field, if the configuration names the cache. `forwarded` is the
/// server's status, if it differs from the answer's.
pub fn add(r: &mut Request, caching: &Caching, forwarded: Option<u16>) {
    let Some(name) = &caching.status_field else { return };
    let mut member = name.clone();
    let _ = match r.contexts.upstream.cache.as_deref() {
        None if caching.methods.contains(&r.method) => write!(member, "; fwd=bypass"),
        None => write!(member, "; fwd=method"),
        Some(shown) => {
            let reason = shown.reason.get();
            let (waited, served) = (shown.waited.get(), reason.lookup.is_served());
            let said = match (served, waited) {
                (true, false) => write!(member, "; hit"),
                (true, true) => write!(member, "; fwd=uri-miss; collapsed"),
                (false, _) => write!(member, "; fwd={}", forward(reason.lookup)),
            };
            let said = said.and_then(|()| match forwarded {
                Some(status) if !served => write!(member, "; fwd-status={status}"),
                _ => Ok(()),
            });
            let keeps = matches!(reason.kept, Kept::Stored | Kept::Revalidated);
            let said = said.and_then(|()| match reason.life {
                Some(life) if served || keeps => write!(member, "; ttl={}", life.left()),
                _ => Ok(()),
            });
            said.and_then(|()| if keeps { write!(member, "; stored") } else { Ok(()) })
        }
    };
    r.response.headers.add(b"Cache-Status", &member);
}

/// Why a server was asked (RFC 9211, section 2.2).
fn forward(lookup: Lookup) -> &'static str {
    match lookup {
        Lookup::Bypass => "bypass",
        Lookup::Variant | Lookup::Varies => "vary-miss",
        Lookup::AskedNoCache | Lookup::AskedMaxAge | Lookup::AskedMinFresh => "request",
        Lookup::Part => "partial",
        Lookup::TooOld | Lookup::NoCache => "stale",
        Lookup::Absent | Lookup::Scarce | Lookup::OnlyIfCached => "uri-miss",
        Lookup::Authorization | Lookup::OfHead => "miss",
        // These are no reasons for asking a server.
        Lookup::Fresh | Lookup::Allowed | Lookup::Updating | Lookup::Failed => "miss",
    }
}
