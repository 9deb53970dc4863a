//! Invalidates stored answers after unsafe requests (RFC 9111, section 4.4).

use weir_cache::Tags;
use weir_cache::purge::{Which, purge};
use weir_log::{Cause, Level};
use weir_proto::http1::HeaderId;

use super::key::key_text;
use super::purge::origin;
use super::rules::in_place_of;
use crate::request::Request;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::protocol::Protocol;

/// Removes the answers that this request invalidates: those of its target, of `Location` and
/// `Content-Location` of the same origin, and of the groups in `Cache-Group-Invalidation` (RFC
/// 9875).
pub async fn invalidate<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    protocol: &P,
    status: u16,
) {
    let caching = &*passing.caching;
    let safe = matches!(r.method_name(), b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE");
    if safe || !(200..400).contains(&status) {
        return;
    }
    let Ok(Some(cache)) = caching.zone.cache(r, caching.prefix) else { return };
    let key = key_text(r, caching, protocol);
    let context = &r.contexts.upstream;
    let scheme: &[u8] = if r.conn.is_tls() { b"https" } else { b"http" };
    let host = r.header(HeaderId::Host).unwrap_or_default();
    let place = (scheme, host, r.text(r.head().target));
    let lines = context.headers.iter().filter(|line| {
        let name = line.name.of(&context.head);
        name.eq_ignore_ascii_case(b"location") || name.eq_ignore_ascii_case(b"content-location")
    });
    let others = lines.filter_map(|line| in_place_of(&key, place, line.value.of(&context.head)));
    let mut keys: Vec<Vec<u8>> = others.collect();
    keys.retain(|other| *other != key);
    keys.push(key);
    let origin = origin(r);
    let groups =
        context.headers.iter().map(|h| (h.name.of(&context.head), h.value.of(&context.head)));
    let groups = groups.filter(|(name, _)| name.eq_ignore_ascii_case(b"cache-group-invalidation"));
    let groups = Tags::groups(groups.map(|(_, value)| value), &origin);
    let mut all: Vec<Which> = keys.into_iter().map(Which::Key).collect();
    if !groups.all.is_empty() {
        all.push(Which::Tagged(groups, origin));
    }
    for which in all {
        if let Err(error) = purge(&cache, which, r.event_loop.handle.files()).await {
            let (path, cause) = (cache.settings.place.directory.display(), Cause(&error));
            r.log(Level::Crit, format_args!("opendir() \"{path}\" failed {cause}"));
        }
    }
}
