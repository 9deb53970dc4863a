//! Removes what a request names: `..._cache_purge`, as in nginx's commercial edition.

use bytes::Bytes;
use weir_cache::purge::{Which, purge as remove};
use weir_log::{Cause, Level};

use super::Caching;
use crate::phases::Step;
use crate::request::Request;
use crate::upstream::protocol::Protocol;

/// Removes one answer, or all whose keys begin with what stands before a `*`. 204, or 404 where there is none.
pub async fn purge<P: Protocol>(r: &mut Request, caching: &Caching, protocol: &P) -> Step {
    let cache = match caching.cache(r) {
        Ok(Some(cache)) => cache,
        Ok(None) => return Step::Status(404),
        Err(step) => return step,
    };
    let mut text = super::key_text(r, caching, protocol);
    let which = match text.pop_if(|last| *last == b'*') {
        Some(_) => Which::Prefix(text),
        None => Which::Key(text),
    };
    match remove(&cache, which, r.worker.handle.files()).await {
        Ok(0) => Step::Status(404),
        Ok(_) => {
            r.response.status = 204;
            Step::Respond(Bytes::new())
        }
        Err(error) => {
            let (path, cause) = (cache.settings.place.directory.display(), Cause(&error));
            r.log(Level::Crit, format_args!("opendir() \"{path}\" failed {cause}"));
            Step::Status(500)
        }
    }
}
