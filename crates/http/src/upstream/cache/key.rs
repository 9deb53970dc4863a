//! The text of cache keys.

use weir_log::Level;

use super::conf::Caching;
use crate::request::Request;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::protocol::Protocol;

/// The text of a request's key.
pub fn key_text<P: Protocol>(r: &mut Request, caching: &Caching, protocol: &P) -> Vec<u8> {
    let mut text = Vec::new();
    match &caching.key {
        Some(key) => key.eval_into(r, &mut text),
        None => protocol.cache_key(r, &mut text),
    }
    text
}

/// The text of a request's key, for protocols without a default key. Empty if none is configured.
pub fn configured_key(r: &mut Request, caching: &Caching) -> Vec<u8> {
    caching.key.as_ref().map_or(Vec::new(), |key| key.eval(r).into_owned())
}

/// Whether `..._buffer_size` would hold the key and what nginx puts beside it. As in nginx, nothing
/// is cached with a smaller buffer.
pub fn fits(r: &Request, passing: &UpstreamConf, key: &[u8]) -> bool {
    let (prefix, size) = (passing.caching.prefix, passing.buffer_size);
    let needed = (BESIDE_KEY + key.len()) as u64;
    if needed > size {
        let least = needed.next_multiple_of(1024);
        let text = format_args!(
            "{prefix}_buffer_size {size} is not enough for cache key, it should be increased to at least {least}"
        );
        r.log(Level::Error, text);
    }
    needed <= size
}

/// The size of the structure at the beginning of nginx's files, of its text around the key, and of
/// the least room for a head.
const BESIDE_KEY: usize = 336 + 7 + 256;
