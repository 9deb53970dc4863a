//! Files that the loader may not have found yet. Whether such a file exists is unknown, and no
//! client waits long for the disk to tell.

use std::path::Path;

use weir_cache::{Opened, Unusable, writer};
use weir_engine::{Either, either};
use weir_log::Level;
use weir_metrics::Metric;

use super::state::State;
use crate::request::Request;

type Outcome = std::io::Result<Result<Opened, Unusable>>;

/// Opens the file, if it exists. `None` if the disk takes too long. The request's answer is not
/// stored then.
pub async fn open(r: &mut Request, state: &State, path: &Path) -> Option<Outcome> {
    let cache = &state.cache;
    if cache.overdue.any() {
        r.event_loop.metrics.add(Metric::CacheUnstored, 1);
        return None;
    }
    let doer = crate::files::doer(r);
    let path = path.to_path_buf();
    let handle = r.event_loop.handle.clone();
    // Owned by the future, since the request may go on before it ends.
    let mut opening = Box::pin({
        let handle = handle.clone();
        async move { Opened::open(handle.files(), doer, &path).await }
    });
    let waited = either(opening.as_mut(), handle.sleep(writer::PATIENCE)).await;
    if let Either::Left(outcome) = waited {
        return Some(outcome);
    }
    let late = cache.overdue.add();
    r.event_loop.metrics.add(Metric::CacheUnstored, 1);
    let name = cache.name();
    r.log(Level::Info, format_args!("the disk of cache \"{name}\" does not say what it has"));
    handle.spawn(async move {
        let _ = opening.await;
        drop(late);
    });
    None
}
