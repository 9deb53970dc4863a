//! The cache loader: adds existing files to the index, once after the start. nginx: "cache loader"
//! process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use weir_engine::{FilePool, Handle, Rank};

use crate::Cache;
use crate::key::CacheKey;
use crate::store::walk;

/// A temporary file of this age is abandoned, even if a process with its id exists.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Loads the directory, with pauses. It has a thread of its own, since it may take long and threads
/// for files are few. Removes temporary files that killed processes have left, in the cache's
/// directory and in the `temporary` ones.
pub async fn run(
    cache: Arc<Cache>,
    temporary: Vec<PathBuf>,
    handle: Handle,
) -> std::io::Result<()> {
    let now = cache.index.msec(handle.now());
    let this = cache.clone();
    let thread = FilePool::named("loader", 1, 1);
    let read = handle.files().run_in(&thread, Rank::Read, move || {
        temporary.iter().for_each(|directory| sweep(directory));
        load(&this, now)
    });
    read.await??;
    cache.index.set_warm();
    Ok(())
}

fn load(cache: &Cache, now: u64) -> std::io::Result<()> {
    let pace = cache.settings.loader;
    let (mut files, mut since) = (0, clock());
    let directory = &cache.settings.place.directory;
    walk(directory, &mut |named| {
        match named.key {
            Some(key) => cache.index.known(&key, named.size, now),
            None => remove_abandoned(&named.path, named.modified),
        }
        files += 1;
        let long = clock().saturating_duration_since(since) >= pace.threshold;
        if files >= pace.files || long {
            pause(pace.sleep);
            (files, since) = (0, clock());
        }
        true
    })?;
    Ok(())
}

/// Removes abandoned files of caches from a directory for temporary files of all uses.
fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let growing = |name: &str| name.split('.').next().and_then(CacheKey::from_hex).is_some();
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(growing) {
            let modified = entry.metadata().and_then(|meta| meta.modified());
            remove_abandoned(&entry.path(), modified.ok());
        }
    }
}

/// Removes a temporary file if the process in its name is gone, or if it is too old.
fn remove_abandoned(path: &Path, modified: Option<SystemTime>) {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let process = name.split('.').nth(1).and_then(|pid| pid.parse::<i32>().ok());
    let pid = process.and_then(rustix::process::Pid::from_raw);
    let alive = pid.is_none_or(|pid| rustix::process::test_kill_process(pid).is_ok());
    let age = modified.and_then(|at| SystemTime::now().duration_since(at).ok());
    if pid.is_some() && (!alive || age.is_some_and(|age| age > ABANDONED)) {
        let _ = std::fs::remove_file(path);
    }
}

fn clock() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods, reason = "a thread for file operations, which may wait")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
