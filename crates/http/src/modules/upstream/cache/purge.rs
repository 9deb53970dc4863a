//! Removes what a request names: `..._cache_purge`, as in nginx's commercial edition.

use bytes::Bytes;
use weir_cache::{Key, purge_prefix};
use weir_log::{Cause, Level};

use super::Caching;
use crate::modules::upstream::protocol::Protocol;
use crate::phases::Step;
use crate::request::Request;

/// Removes one answer, or all whose keys begin with what stands before a `*`. 204, or 404 where there is none.
pub async fn purge<P: Protocol>(r: &mut Request, caching: &Caching, protocol: &P) -> Step {
    let Some(cache) = caching.cache(r) else { return Step::Status(404) };
    let text = super::key_text(r, caching, protocol);
    let files = r.worker.handle.clone();
    let place = cache.settings.place.clone();
    let purged = match text.strip_suffix(b"*") {
        Some(prefix) => {
            let prefix = prefix.to_vec();
            let all = files.files().run(move || purge_prefix(&place, &prefix)).await;
            match all.and_then(|all| all) {
                Ok(all) => all,
                Err(error) => {
                    let path = cache.settings.place.directory.display();
                    r.log(
                        Level::Crit,
                        format_args!("opendir() \"{path}\" failed {}", Cause(&error)),
                    );
                    return Step::Status(500);
                }
            }
        }
        None => {
            let key = Key::of(&text);
            let removed = files.files().unlink(&place.path(&key)).await;
            if removed.is_ok() { vec![key] } else { Vec::new() }
        }
    };
    for key in &purged {
        cache.index.forget(key);
        cache.memory.remove(key);
    }
    if purged.is_empty() {
        return Step::Status(404);
    }
    r.response.status = 204;
    Step::Respond(Bytes::new())
}
