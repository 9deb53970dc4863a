//! Revalidation of a stored answer to GET by an answer to HEAD (RFC 9111, section 4.3.5).

use weir_cache::purge::{Which, purge};
use weir_log::{Cause, Level};
use weir_proto::http1::Method;

use super::rules;
use super::state::State;
use crate::request::Request;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::protocol::Answer;

/// Whether servers are asked with HEAD for this request, so that their answers have no bodies.
pub fn asks_with_head(r: &Request) -> bool {
    r.method == Method::Head && !r.contexts.upstream.ask_with_get
}

/// For a request that [`asks_with_head`]: whether the answer to HEAD agrees with the stored answer
/// to GET. If so, the stored answer is revalidated as by a 304. If not, it is removed.
pub async fn is_revalidated_by_head(
    r: &mut Request,
    state: &mut State,
    passing: &UpstreamConf,
    answer: &Answer,
) -> bool {
    if !passing.caching.keeps_standard() || answer.status != 200 {
        return false;
    }
    let of_get = |entry: &weir_cache::CacheEntry| entry.status == 200 && !entry.of_head;
    let Some(old) = state.old.as_ref().filter(|old| of_get(&old.entry)) else { return false };
    let context = &r.contexts.upstream;
    let new = context.headers.iter();
    let new = new.map(|h| (h.name.of(&context.head), h.value.of(&context.head)));
    if rules::agrees(&old.entry.head, old.length(), new) {
        return true;
    }
    state.old = None;
    let which = Which::Key(state.shown.text.clone());
    if let Err(error) = purge(&state.cache, which, r.event_loop.handle.files()).await {
        let (path, cause) = (state.cache.settings.place.directory.display(), Cause(&error));
        r.log(Level::Crit, format_args!("opendir() \"{path}\" failed {cause}"));
    }
    false
}
