//! Writes an incoming answer into its file. It runs as a task of its own, so that no client waits
//! for the disk.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use weir_engine::{Doer, Either, FilePool, Handle, Rank, either, file_operation};

use crate::body::StoredBody;
use crate::entry::CacheEntry;
use crate::fill::{Fill, FillEnd};
use crate::head::fields;
use crate::index::Ticket;
use crate::key::CacheKey;
use crate::memory::Object;
use crate::store::{Growing, Published, remove_file, rewrite};
use crate::tags::Tags;
use crate::{Cache, Stored, tag_index};

/// So much is written at once; less only at the end.
const CHUNK: u64 = 256 * 1024;

/// A client that the disk has held up for so long does not wait for it any more.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// What the log hears: the operation that failed, and why.
pub type Complain = Box<dyn Fn(&str, &io::Error)>;

/// An answer to be stored.
pub struct StoreJob {
    /// Where.
    pub cache: Arc<Cache>,
    /// Under which key.
    pub key: CacheKey,
    /// Where it comes from.
    pub fill: Arc<Fill>,
    /// What is known of it.
    pub entry: Arc<CacheEntry>,
    /// Where the answer is from: scheme, host and port, for its groups.
    pub origin: Vec<u8>,
    /// The right to update the key, given back when that is done.
    pub ticket: Option<Ticket>,
    /// The file pool that waits for the disk.
    pub doer: Doer,
    /// Where files grow that are to become files of a cache, if not there.
    pub temporary: Option<PathBuf>,
    /// A small answer may stay in memory.
    pub memory: bool,
    /// Hears of failures.
    pub complain: Complain,
}

impl StoreJob {
    /// Stores the answer when it is whole; whether it was.
    pub async fn run(mut self, handle: Handle) -> bool {
        let stored = match self.write(&handle).await {
            Ok(stored) => stored,
            Err(error) => {
                (self.complain)("cannot be stored", &error);
                self.fill.store_failed();
                // Readers that are behind still need it; new ones would find no beginning.
                None
            }
        };
        let stored = stored.filter(|_| self.fill.is_storable());
        if let Some(file) = stored {
            self.announce(&handle, file);
        }
        self.cache.index.arrived(&self.key);
        if let Some(ticket) = self.ticket.take() {
            self.cache.index.release(ticket);
        }
        self.cache.end(&self.key, &self.fill);
        stored.is_some()
    }

    /// The file, if the answer is whole and in it.
    async fn write(&self, handle: &Handle) -> io::Result<Option<Published>> {
        let body = self.entry.size() as u64;
        let mut growing: Option<Growing> = None;
        loop {
            let (pieces, at, end) = self.fill.unwritten(CHUNK).await;
            if end == Some(FillEnd::Broken) {
                return Ok(None);
            }
            let written = at + pieces.iter().map(|p| p.len() as u64).sum::<u64>();
            let last = end == Some(FillEnd::Whole);
            // What is whole before any of it was written takes memory for which no client waits.
            let waits = end.is_none() || growing.is_some();
            let _place = match waits {
                true => None,
                false => Some(self.cache.backlog.enter(written - at).ok_or_else(too_slow)?),
            };
            let rank = if waits { Rank::Write } else { Rank::Later };
            let step = DiskVisit {
                key: self.key,
                cache: self.cache.clone(),
                fill: self.fill.clone(),
                temporary: self.temporary.clone(),
                growing: growing.take(),
                pool: handle.files().default_pool().clone(),
                pieces,
                offset: body + at,
                head: last.then(|| self.entry.encode(written)),
                tags: if last { self.tags() } else { Tags::default() },
            };
            let files = handle.files();
            let work = files.run_by(&self.doer, rank, "store", move || step.run());
            let (done, in_time) = match end {
                Some(_) => (work.await, true),
                None => self.hurry(pin!(work), handle).await,
            };
            match done?? {
                _ if !in_time => return Err(too_slow()),
                StoreResult::Published(file) => return Ok(Some(file)),
                StoreResult::Superseded => return Ok(None),
                StoreResult::Grown(grown) => {
                    self.fill.written(&grown.file, body, written);
                    growing = Some(grown);
                }
            }
        }
    }

    fn tags(&self) -> Tags {
        Tags::of(fields(&self.entry.head), &self.origin)
    }

    /// Waits for the disk while the answer comes in; but the answer does not wait for long.
    /// False: it went on without being stored.
    async fn hurry<T>(
        &self,
        mut work: Pin<&mut impl Future<Output = T>>,
        handle: &Handle,
    ) -> (T, bool) {
        loop {
            match either(work.as_mut(), handle.sleep(PATIENCE)).await {
                Either::Left(done) => return (done, true),
                Either::Right(()) if self.fill.is_held_up() => {
                    self.fill.store_failed();
                    return (work.await, false);
                }
                Either::Right(()) => {}
            }
        }
    }

    /// Makes the new file known.
    fn announce(&self, handle: &Handle, file: Published) {
        let cache = &self.cache;
        let now = cache.index.msec(handle.now());
        let mut gone = Vec::new();
        let generation = cache.index.stored(&self.key, file.size, now, &mut gone);
        if cache.is_removed(&self.fill) {
            // Its file is gone already: it had its name before that.
            cache.index.lost(&self.key);
            cache.let_go(&self.key);
            return remove_files(cache, gone, handle);
        }
        let admits =
            |body: &Bytes| self.memory && cache.memory.admits(&self.key, body.len() as u64);
        cache.let_go(&self.key);
        if let Some(body) = self.fill.in_memory().filter(admits) {
            let body = StoredBody::in_memory(&body, handle.files());
            let object = Object::new(self.entry.clone(), body, generation, file.inode, now);
            cache.memory.put(self.key, object);
        }
        remove_files(cache, gone, handle);
    }
}

/// Why an answer is not stored although nothing has failed.
fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "the disk is too slow")
}

/// Removes the files of keys that the index has let go.
pub fn remove_files(cache: &Arc<Cache>, keys: Vec<CacheKey>, handle: &Handle) {
    cache.evicts(keys.len());
    if keys.is_empty() {
        return;
    }
    let place = cache.settings.place.clone();
    for key in &keys {
        cache.let_go(key);
    }
    handle.files().default_pool().insist(Rank::Later, move || {
        for key in keys {
            let _ = remove_file(&place.path(&key));
        }
    });
}

/// The answer was found to be valid for longer: its file says so from now on.
///
/// # Errors
///
/// What the file system says; `InvalidData` if the file is another one by now.
pub async fn renew(
    cache: &Arc<Cache>,
    key: CacheKey,
    stored: Stored,
    who: &Doer,
    handle: &Handle,
) -> io::Result<()> {
    let path = cache.settings.place.path(&key);
    cache.memory.renew(&key, &stored.entry, None);
    // Its file's time changes.
    cache.open.remove(&key);
    let entry = stored.entry.clone();
    let work = move || rewrite(&path, &stored);
    let written = handle.files().run_by(who, Rank::Later, "renew", work).await;
    let written = written.and_then(|written| written);
    match written {
        // Other processes have the old times in memory.
        Ok(()) => cache.memory.renew(&key, &entry, cache.index.changed(&key)),
        Err(_) => cache.let_go(&key),
    }
    written
}

/// Keeps the blocks of what has this name, until it is dropped.
fn hold(path: &Path) -> Option<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// One visit to the disk.
struct DiskVisit {
    key: CacheKey,
    cache: Arc<Cache>,
    fill: Arc<Fill>,
    temporary: Option<PathBuf>,
    growing: Option<Growing>,
    pool: FilePool,
    pieces: Vec<Bytes>,
    offset: u64,
    /// The head, once the body is complete.
    head: Option<Vec<u8>>,
    /// The answer's tags, then.
    tags: Tags,
}

enum StoreResult {
    Grown(Growing),
    Published(Published),
    /// Another one is newer, or it is wanted no more.
    Superseded,
}

impl DiskVisit {
    fn run(self) -> io::Result<StoreResult> {
        // Readers that are behind in an answer that comes in still need its file.
        if self.growing.is_none() && self.head.is_some() && !self.fill.is_storable() {
            return Ok(StoreResult::Superseded);
        }
        let settings = &self.cache.settings;
        let path = settings.place.path(&self.key);
        let growing = match self.growing {
            Some(growing) => growing,
            None => {
                let beside = path.parent().unwrap_or(&settings.place.directory);
                let directory = self.temporary.as_deref().unwrap_or(beside);
                Growing::create(directory, &self.key, &self.pool)?
            }
        };
        let mut at = self.offset;
        for piece in &self.pieces {
            file_operation("write", &*growing.file, || growing.file.write_all_at(piece, at))?;
            at += piece.len() as u64;
        }
        match self.head {
            None => Ok(StoreResult::Grown(growing)),
            Some(head) => {
                // The old file's blocks are freed when all is done. That takes long on some disks,
                // and while one file gets its name, no other one on the file system can.
                tag_index::note(&settings.place, &self.key, &self.tags, |key| {
                    self.cache.index.has(key)
                })?;
                let _replaced = hold(&path);
                let _turn = self.cache.turn(&self.key);
                match self.fill.is_storable() && !self.cache.is_removed(&self.fill) {
                    true => growing.publish(&head, &path).map(StoreResult::Published),
                    false => Ok(StoreResult::Superseded),
                }
            }
        }
    }
}
