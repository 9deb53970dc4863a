//! The cache manager: removes inactive answers, and the least recently used ones while the cache is
//! too large. nginx: "cache manager" process.

use std::sync::Arc;
use std::time::Duration;

use weir_engine::{Handle, file_operation};

use crate::Cache;
use crate::store::remove_file;

/// The longest time between two rounds.
const PERIOD: Duration = Duration::from_secs(10);

/// One round. Returns the time until the next.
pub async fn run(cache: &Arc<Cache>, handle: &Handle) -> Duration {
    let pace = cache.settings.manager;
    loop {
        let now = cache.index.msec(handle.now());
        let mut gone = Vec::new();
        let more = round(cache, now, &mut gone, free(cache, handle).await);
        let some = !gone.is_empty();
        cache.count_evicted(gone.len());
        let place = cache.settings.place.clone();
        for key in &gone {
            cache.remove_from_memory(key);
        }
        if some {
            let removed = handle.files().later(move || {
                for key in gone {
                    let _ = remove_file(&place.path(&key));
                }
            });
            // A file that cannot be removed is found by the loader at the next start.
            let _ = removed.await;
        }
        if !more {
            let next = cache.index.next_expiry(now, cache.settings.inactive);
            return next.map_or(PERIOD, |next| next.clamp(LEAST, PERIOD));
        }
        handle.sleep(pace.sleep).await;
    }
}

/// The shortest time between two rounds.
const LEAST: Duration = Duration::from_millis(500);

/// Removes entries from the index, up to `manager_files`. True if there may be more.
fn round(cache: &Cache, now: u64, gone: &mut Vec<crate::CacheKey>, free: Option<u64>) -> bool {
    let settings = &cache.settings;
    let most = settings.manager.files.max(1);
    let mut freed = 0;
    for _ in 0..most {
        let before = cache.index.size();
        let large = settings.max_size.is_some_and(|max| before > max);
        let full = free.is_some_and(|free| free.saturating_add(freed) < settings.min_free);
        let idle = if large || full { None } else { Some(settings.inactive) };
        match cache.index.expire(now, idle) {
            None => return false,
            Some((key, true)) => gone.push(key),
            Some((_, false)) => {}
        }
        freed += before.saturating_sub(cache.index.size());
    }
    true
}

/// Free bytes of the file system. Stores them in the index, for status pages.
async fn free(cache: &Cache, handle: &Handle) -> Option<u64> {
    let directory = cache.settings.place.directory.clone();
    let ask = move || file_operation("statvfs", &*directory, || rustix::fs::statvfs(&directory));
    let asked = handle.files().run(ask).await;
    let stat = asked.ok()?.ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    cache.index.note_disk(bytes(stat.f_bavail), bytes(stat.f_blocks));
    Some(bytes(stat.f_bavail))
}
