//! Writes an answer into its file while it is received. This is a task of its own, so that no
//! client waits for the disk.

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
use crate::store::{Published, TemporaryFile, remove_file, rewrite};
use crate::tags::Tags;
use crate::{Cache, Stored, tag_index};

/// Bytes of each write. The last write may be shorter, and so may writes while memory is full.
const CHUNK: u64 = 256 * 1024;

/// How long the disk may hold up a client. After that, the answer is not stored.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Logs a failure: the operation and its error.
pub type Complain = Box<dyn Fn(&str, &io::Error)>;

/// An answer to be stored.
pub struct StoreJob {
    /// The cache.
    pub cache: Arc<Cache>,
    /// The key that the answer is stored under.
    pub key: CacheKey,
    /// The source of the answer.
    pub fill: Arc<Fill>,
    /// The metadata and head.
    pub entry: Arc<CacheEntry>,
    /// The origin of the answer: scheme, host and port. Groups belong to it.
    pub origin: Vec<u8>,
    /// The cache lock, released at the end.
    pub ticket: Option<Ticket>,
    /// The file pool, and the request that it works for.
    pub doer: Doer,
    /// The directory for temporary files, if not the cache's own.
    pub temporary: Option<PathBuf>,
    /// A small answer may also be kept in memory.
    pub memory: bool,
    /// Logs failures.
    pub complain: Complain,
}

impl StoreJob {
    /// Stores the answer. Returns whether it was stored.
    pub async fn run(mut self, handle: Handle) -> bool {
        let stored = match self.write(&handle).await {
            Ok(stored) => stored,
            Err(error) => {
                (self.complain)("cannot be stored", &error);
                self.fill.store_failed();
                // The fill stays for readers that have begun. It accepts no new ones.
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

    /// Writes the file. `None` if the answer broke off or is not to be stored any more.
    async fn write(&self, handle: &Handle) -> io::Result<Option<Published>> {
        let body = self.entry.size() as u64;
        let mut growing: Option<TemporaryFile> = None;
        loop {
            let (pieces, at, end) = self.fill.unwritten(CHUNK).await;
            if end == Some(FillEnd::Broken) {
                return Ok(None);
            }
            let written = at + pieces.iter().map(|p| p.len() as u64).sum::<u64>();
            let last = end == Some(FillEnd::Whole);
            // An answer that is complete before anything was written waits in memory without
            // holding up a client. The backlog limits such answers.
            let waits = end.is_none() || growing.is_some();
            let _place = match waits {
                true => None,
                false => Some(self.cache.backlog.enter(written - at).ok_or_else(too_slow)?),
            };
            let rank = if waits { Rank::Write } else { Rank::Later };
            let step = DiskOperation {
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
                None => self.wait_for_disk(pin!(work), handle).await,
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

    /// Waits for the disk while the answer is received. If the disk holds up the answer for too
    /// long, the answer is not stored any more. False in that case.
    async fn wait_for_disk<T>(
        &self,
        mut work: Pin<&mut impl Future<Output = T>>,
        handle: &Handle,
    ) -> (T, bool) {
        loop {
            match either(work.as_mut(), handle.sleep(PATIENCE)).await {
                Either::Left(done) => return (done, true),
                Either::Right(()) if self.fill.is_blocked_by_disk() => {
                    self.fill.store_failed();
                    return (work.await, false);
                }
                Either::Right(()) => {}
            }
        }
    }

    /// Adds the new file to the index, and to the memory tier.
    fn announce(&self, handle: &Handle, file: Published) {
        let cache = &self.cache;
        let now = cache.index.msec(handle.now());
        let mut gone = Vec::new();
        let generation = cache.index.stored(&self.key, file.size, now, &mut gone);
        if cache.is_removed(&self.fill) {
            // The key was purged after the file got its name, which removed the file.
            cache.index.lost(&self.key);
            cache.remove_from_memory(&self.key);
            return remove_files(cache, gone, handle);
        }
        let admits =
            |body: &Bytes| self.memory && cache.memory.admits(&self.key, body.len() as u64);
        cache.remove_from_memory(&self.key);
        if let Some(body) = self.fill.in_memory().filter(admits) {
            let body = StoredBody::in_memory(&body, handle.files());
            let object = Object::new(self.entry.clone(), body, generation, file.inode, now);
            cache.memory.put(self.key, object);
        }
        remove_files(cache, gone, handle);
    }
}

/// The error of an answer that is not stored, although no operation failed.
fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "the disk is too slow")
}

/// Removes the files of keys that the index has evicted.
pub fn remove_files(cache: &Arc<Cache>, keys: Vec<CacheKey>, handle: &Handle) {
    cache.count_evicted(keys.len());
    if keys.is_empty() {
        return;
    }
    let place = cache.settings.place.clone();
    for key in &keys {
        cache.remove_from_memory(key);
    }
    handle.files().default_pool().insist(Rank::Later, move || {
        for key in keys {
            let _ = remove_file(&place.path(&key));
        }
    });
}

/// Writes the new times of a revalidated answer into its file.
///
/// # Errors
///
/// The error of the file system; `InvalidData` if the file has another answer by now.
pub async fn renew(
    cache: &Arc<Cache>,
    key: CacheKey,
    stored: Stored,
    who: &Doer,
    handle: &Handle,
) -> io::Result<()> {
    let path = cache.settings.place.path(&key);
    cache.memory.renew(&key, &stored.entry, None);
    // The write changes the file's mtime, by which open files are compared.
    cache.open.remove(&key);
    let entry = stored.entry.clone();
    let work = move || rewrite(&path, &stored);
    let written = handle.files().run_by(who, Rank::Later, "renew", work).await;
    let written = written.and_then(|written| written);
    match written {
        // A new generation, since other processes have the old times in memory.
        Ok(()) => cache.memory.renew(&key, &entry, cache.index.changed(&key)),
        Err(_) => cache.remove_from_memory(&key),
    }
    written
}

/// Opens the file of this name, so that its blocks are not freed while this is held.
fn keep_blocks(path: &Path) -> Option<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// One operation of the file pool.
struct DiskOperation {
    key: CacheKey,
    cache: Arc<Cache>,
    fill: Arc<Fill>,
    temporary: Option<PathBuf>,
    growing: Option<TemporaryFile>,
    pool: FilePool,
    pieces: Vec<Bytes>,
    offset: u64,
    /// The head, once the body is complete.
    head: Option<Vec<u8>>,
    /// The answer's tags, once the body is complete.
    tags: Tags,
}

enum StoreResult {
    Grown(TemporaryFile),
    Published(Published),
    /// The answer is not to be stored any more.
    Superseded,
}

impl DiskOperation {
    fn run(self) -> io::Result<StoreResult> {
        // Only if nothing was written yet: readers may still need a file that was begun.
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
                TemporaryFile::create(directory, &self.key, &self.pool)?
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
                // The old file is held, so that its blocks are freed only after the rename. Freeing
                // takes long on some disks and would block other renames on the file system.
                tag_index::note(&settings.place, &self.key, &self.tags, |key| {
                    self.cache.index.has(key)
                })?;
                let _replaced = keep_blocks(&path);
                let _naming = self.cache.lock_naming(&self.key);
                match self.fill.is_storable() && !self.cache.is_removed(&self.fill) {
                    true => growing.publish(&head, &path).map(StoreResult::Published),
                    false => Ok(StoreResult::Superseded),
                }
            }
        }
    }
}
