//! File operations that never block the loop.
//!
//! An operation is first tried in a form that refuses to wait: `openat2` with `RESOLVE_CACHED`,
//! `preadv2` with `RWF_NOWAIT`. If the kernel would have to wait, a thread of the [`FilePool`]
//! performs it. Threads perform all operations that write.

mod doer;
mod info;
mod locality;
mod open_file;
mod pool;
mod rank;
mod residence;
mod running;

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use weir_sys::pagecache::Framing;

pub use doer::{Doer, Touches};
pub use info::{FileInfo, FileKind};
pub use open_file::OpenFile;
pub use pool::{FilePool, Offload, PoolState, WeakFilePool};
pub use rank::Rank;
pub(crate) use residence::{Residence, residence};
pub(crate) use running::name_of;
pub use running::{Place, RunningOperation, file_operation};

use crate::budget;
use crate::operation::operation;
use crate::seam::{self, Call};
use locality::Locality;
use open_file::Access;

/// File operations of a loop: see [`crate::Handle::files`].
pub struct Files {
    pool: FilePool,
    named: Vec<FilePool>,
    locality: Locality,
    offloaded: Cell<u64>,
    /// Buffers for threads that open a file and read it. They belong to the loop, since each thread
    /// of a large pool would otherwise keep allocating pages that are new to the kernel.
    scratches: RefCell<Vec<Vec<u8>>>,
}

/// The size of a scratch buffer. Longer files do not use one.
const SCRATCH: usize = 128 << 10;
/// The most scratch buffers that are kept.
const SCRATCHES: usize = 8;

/// How to open a file.
#[derive(Clone, Copy, Debug)]
pub struct OpenHow {
    /// `O_CLOEXEC` is added.
    pub flags: OFlags,
    /// Permissions of a file that is created, before the umask.
    pub mode: Mode,
    /// How the path is resolved; openat2(2).
    pub resolve: ResolveFlags,
}

impl OpenHow {
    /// For reading. Opening a FIFO does not wait for a writer.
    pub fn read() -> Self {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        OpenHow { flags, mode: Mode::empty(), resolve: ResolveFlags::empty() }
    }

    fn flags(&self) -> OFlags {
        self.flags | OFlags::CLOEXEC
    }

    /// Whether it may create or truncate a file.
    fn writes(&self) -> bool {
        self.flags.contains(OFlags::TMPFILE)
            || self.flags.intersects(OFlags::CREATE | OFlags::TRUNC)
    }

    fn rank(&self) -> Rank {
        if self.writes() { Rank::Write } else { Rank::Read }
    }
}

impl Files {
    pub(crate) fn new(pool: FilePool, named: Vec<FilePool>) -> Self {
        let scratches = RefCell::default();
        Files { pool, named, locality: Locality::new(), offloaded: Cell::new(0), scratches }
    }

    /// The pool for operations that name no other.
    pub fn default_pool(&self) -> &FilePool {
        &self.pool
    }

    /// The default choice of thread: the default pool.
    pub fn doer(&self) -> Doer {
        Doer::Pool(self.pool.clone())
    }

    /// The pool with this name.
    pub fn pool(&self, name: &[u8]) -> Option<&FilePool> {
        self.named.iter().chain([&self.pool]).find(|pool| pool.name().as_bytes() == name)
    }

    /// As [`FilePool::oldest_operation`], over all pools.
    pub fn oldest_operation(&self) -> Option<RunningOperation> {
        let pools = self.named.iter().chain([&self.pool]);
        pools.filter_map(FilePool::oldest_operation).min_by_key(|operation| operation.since)
    }

    /// Runs `work`, which reads, on a thread of the default pool. Fails if the queue is full or
    /// `work` panicked.
    pub fn run<T, W>(&self, work: W) -> Offload<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        self.run_in(&self.pool, Rank::Read, work)
    }

    /// As [`Files::run`], where `work` writes.
    pub fn write<T, W>(&self, work: W) -> Offload<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        self.run_in(&self.pool, Rank::Write, work)
    }

    /// As [`Files::run`], where `work` writes and no client waits for it.
    pub fn later<T, W>(&self, work: W) -> Offload<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        self.run_in(&self.pool, Rank::Later, work)
    }

    /// As [`Files::run`], on a thread of another pool.
    pub fn run_in<T, W>(&self, pool: &FilePool, rank: Rank, work: W) -> Offload<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        self.offloaded.set(self.offloaded.get() + 1);
        pool.run(rank, work)
    }

    /// Runs `work` on a thread of the pool that `doer` names, or on the loop as an [`operation`]
    /// called `name`.
    pub async fn run_by<T, W>(
        &self,
        doer: &Doer,
        rank: Rank,
        name: &'static str,
        work: W,
    ) -> io::Result<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        match doer.pool(Touches::Directory) {
            Some(pool) => self.run_in(pool, rank, work).await,
            None => Ok(operation(name, work)),
        }
    }

    /// As [`Files::run`], without a result. Fails if the queue is full; `work` is then dropped.
    pub fn hand_over(&self, rank: Rank, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.offloaded.set(self.offloaded.get() + 1);
        self.pool.hand_over(rank, work)
    }

    /// A file in memory (memfd_create(2)). Reading it never blocks, and `sendfile` sends it without
    /// a copy.
    pub fn memory_file(&self, bytes: &[u8]) -> io::Result<Arc<OpenFile>> {
        let file = File::from(rustix::fs::memfd_create("weir", MemfdFlags::CLOEXEC)?);
        file.write_all_at(bytes, 0)?;
        Ok(Arc::new(OpenFile::new(file, self.pool.clone(), Access::Here)))
    }

    /// As [`FilePool::hold`], with the default pool.
    pub fn hold(&self, file: File) -> Arc<OpenFile> {
        self.pool.hold(file)
    }

    /// Operations given to file pools so far.
    pub fn offloaded(&self) -> u64 {
        self.offloaded.get()
    }

    /// Opens a file and reads its metadata.
    pub async fn open(&self, path: &Path, how: &OpenHow) -> io::Result<(Arc<OpenFile>, FileInfo)> {
        self.open_by(self.doer(), path, how).await
    }

    /// As [`Files::open`], performed by `doer`, which later also reads the file.
    pub async fn open_by(
        &self,
        doer: Doer,
        path: &Path,
        how: &OpenHow,
    ) -> io::Result<(Arc<OpenFile>, FileInfo)> {
        let pool = match doer {
            Doer::Pool(pool) | Doer::Partly(pool, Touches::Name | Touches::Directory) => pool,
            Doer::Partly(pool, Touches::Content) => {
                let (fd, info) = open_waiting(path, how)?;
                return Ok((Arc::new(OpenFile::new(fd.into(), pool, Access::Pool)), info));
            }
            Doer::Loop => {
                let (fd, info) = open_waiting(path, how)?;
                let file = OpenFile::new(fd.into(), self.pool.clone(), Access::Here);
                return Ok((Arc::new(file), info));
            }
        };
        if let Some(opened) = self.open_now(path, how) {
            return opened.map(|opened| from_memory(opened, how, pool));
        }
        let (path, how) = (path.to_owned(), *how);
        let (fd, info) =
            self.run_in(&pool, how.rank(), move || open_waiting(&path, &how)).await??;
        Ok((Arc::new(OpenFile::new(fd.into(), pool, Access::Pool)), info))
    }

    /// As [`Files::open_by`], and reads the beginning of the file. `want` says how many bytes. If a
    /// thread has to open the file, it reads in the same job.
    pub async fn open_and_read(
        &self,
        doer: Doer,
        path: &Path,
        how: &OpenHow,
        want: fn(&FileInfo) -> usize,
    ) -> io::Result<(Arc<OpenFile>, FileInfo, Vec<u8>)> {
        let now = doer.pool(Touches::Name).map(|pool| (pool.clone(), self.open_now(path, how)));
        let (file, info) = match now {
            Some((pool, None)) => {
                let (path, how) = (path.to_owned(), *how);
                let kept = self.scratches.borrow_mut().pop();
                let mut scratch = kept.unwrap_or_else(|| Vec::with_capacity(SCRATCH));
                let work = move || {
                    let (fd, info) = open_waiting(&path, &how)?;
                    let file = File::from(fd);
                    if info.len > scratch.capacity() as u64 {
                        scratch = Vec::with_capacity(want(&info));
                    }
                    read_waiting(&file, &mut scratch, 0).map(|_| (file, info, scratch))
                };
                let (file, info, mut scratch) = self.run_in(&pool, how.rank(), work).await??;
                let buf = scratch.get(..want(&info)).unwrap_or(&scratch).to_vec();
                scratch.clear();
                let mut scratches = self.scratches.borrow_mut();
                if scratches.len() < SCRATCHES && scratch.capacity() >= SCRATCH {
                    scratches.push(scratch);
                }
                return Ok((Arc::new(OpenFile::new(file, pool, Access::Pool)), info, buf));
            }
            Some((pool, Some(opened))) => from_memory(opened?, how, pool),
            None => self.open_by(doer, path, how).await?,
        };
        let (read, buf) = self.read_at(&file, Vec::with_capacity(want(&info)), 0).await;
        read.map(|_| (file, info, buf))
    }

    /// As [`Files::open`], from memory alone. `None` if the kernel would have to wait.
    pub fn open_now(&self, path: &Path, how: &OpenHow) -> Option<io::Result<(OwnedFd, FileInfo)>> {
        // The kernel refuses to create or truncate with `RESOLVE_CACHED`.
        if how.writes() {
            return None;
        }
        let cached = seam::cached_flags();
        if !cached.is_empty() && !self.locality.answers_from_memory(path, how.resolve) {
            return None;
        }
        let resolve = how.resolve | cached;
        let now = || rustix::fs::openat2(CWD, path, how.flags(), how.mode, resolve);
        let open = || seam::at(Call::FromMemory).and_then(|()| now());
        match operation("open", open) {
            Ok(fd) => Some(rustix::fs::fstat(&fd).map(|s| (fd, s.into())).map_err(Into::into)),
            Err(e) if must_wait(e) => None,
            Err(e) => Some(Err(e.into())),
        }
    }

    /// Opens a directory with `O_PATH`, if the kernel can walk there in memory. This asks no
    /// server.
    pub fn directory_now(&self, path: &Path) -> Option<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat2(CWD, path, flags, Mode::empty(), seam::cached_flags()).ok()
    }

    /// Reads the metadata of the file that `path` names. A symbolic link is followed.
    pub async fn stat(&self, path: &Path) -> io::Result<FileInfo> {
        self.stat_by(self.doer(), path).await
    }

    /// As [`Files::stat`], performed by `doer`.
    pub async fn stat_by(&self, doer: Doer, path: &Path) -> io::Result<FileInfo> {
        let Some(pool) = doer.pool(Touches::Name) else {
            return Ok(operation("stat", || rustix::fs::stat(path))?.into());
        };
        let how = OpenHow { flags: OFlags::PATH, ..OpenHow::read() };
        if let Some(opened) = self.open_now(path, &how) {
            return opened.map(|(_, info)| info);
        }
        let path = path.to_owned();
        let ask = move || file_operation("stat", &*path, || Ok(rustix::fs::stat(&path)?.into()));
        self.run_in(pool, Rank::Read, ask).await?
    }

    /// Reads once into the spare capacity of `buf`. Returns the number of bytes appended, 0 at the
    /// end of the file, and the buffer.
    pub async fn read_at(
        &self,
        file: &Arc<OpenFile>,
        mut buf: Vec<u8>,
        offset: u64,
    ) -> (io::Result<usize>, Vec<u8>) {
        budget::breathe().await;
        let read = if file.waits_here() {
            read_waiting(file, &mut buf, offset)
        } else {
            operation("read", || {
                seam::at(Call::FromMemory)?;
                seam::read_now(file, &mut buf, offset)
            })
        };
        match read {
            Err(e) if !file.waits_here() && is_not_now(&e) => {}
            read => {
                budget::spend_call(*read.as_ref().unwrap_or(&0));
                return (read, buf);
            }
        }
        let (file, pool) = (Arc::clone(file), file.pool().clone());
        let read = move || (read_waiting(&file, &mut buf, offset), buf);
        let read = self.run_in(&pool, Rank::Read, read).await;
        read.unwrap_or_else(|e| (Err(e), Vec::new()))
    }

    /// Appends up to `most` bytes of the file that are in memory, with space for the head of each
    /// frame. Returns the number of bytes without heads. `None` if the caller must use
    /// [`Files::read_at`], which may wait and reports errors.
    pub fn read_framed_now(
        &self,
        file: &OpenFile,
        buf: &mut Vec<u8>,
        offset: u64,
        most: usize,
        framing: Framing,
    ) -> Option<usize> {
        if file.waits_here() {
            return None;
        }
        let read = operation("read", || {
            seam::at(Call::FromMemory)?;
            seam::read_framed_now(file, buf, offset, most, framing)
        });
        let read = read.ok().filter(|n| *n > 0)?;
        budget::spend_call(read);
        Some(read)
    }

    /// Writes all of `buf`. Returns the buffer with the result.
    pub async fn write_at(
        &self,
        file: &Arc<OpenFile>,
        buf: Vec<u8>,
        offset: u64,
    ) -> (io::Result<()>, Vec<u8>) {
        let file = Arc::clone(file);
        let write =
            move || (file_operation("write", &*file, || file.write_all_at(&buf, offset)), buf);
        let written = self.write(write).await;
        written.unwrap_or_else(|e| (Err(e), Vec::new()))
    }

    /// Writes all of `buf` at the file's position. Returns the buffer with the result.
    pub async fn append(&self, file: &Arc<OpenFile>, buf: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        let file = Arc::clone(file);
        let write = move || (file_operation("write", &*file, || (&**file).write_all(&buf)), buf);
        let written = self.write(write).await;
        written.unwrap_or_else(|e| (Err(e), Vec::new()))
    }

    /// Renames a file. An existing target is replaced.
    pub async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.write(move || file_operation("rename", &*to, || std::fs::rename(from, &to))).await?
    }

    /// Removes a file.
    pub async fn unlink(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        self.write(move || file_operation("unlink", &*path, || std::fs::remove_file(&path))).await?
    }
}

/// Wraps a file that was opened without waiting.
fn from_memory(
    (fd, info): (OwnedFd, FileInfo),
    how: &OpenHow,
    pool: FilePool,
) -> (Arc<OpenFile>, FileInfo) {
    let quick = how.flags & OFlags::RWMODE == OFlags::RDONLY;
    let access = if quick { Access::Memory } else { Access::Pool };
    (Arc::new(OpenFile::new(fd.into(), pool, access)), info)
}

/// Whether the kernel would have had to wait, or refuses the system call.
fn must_wait(e: Errno) -> bool {
    is_refused(e) || matches!(e, Errno::AGAIN | Errno::INTR)
}

/// Whether the kernel or the file system lacks a system call or its flag, or a sandbox forbids it.
/// Another call may do the same.
pub(crate) fn is_refused(e: Errno) -> bool {
    // PERM: the sandbox of an old container runtime. If the file itself is forbidden, the next
    // attempt fails the same way.
    matches!(e, Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP)
}

fn is_not_now(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(|code| must_wait(Errno::from_raw_os_error(code)))
}

fn open_waiting(path: &Path, how: &OpenHow) -> io::Result<(OwnedFd, FileInfo)> {
    let open = || match how.resolve.is_empty() {
        true => rustix::fs::open(path, how.flags(), how.mode),
        false => rustix::fs::openat2(CWD, path, how.flags(), how.mode, how.resolve),
    };
    file_operation("open", path, || {
        let fd = operation("open", open)?;
        let info = rustix::fs::fstat(&fd)?.into();
        Ok((fd, info))
    })
}

pub(crate) fn read_waiting(file: &File, buf: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
    let read = || loop {
        match rustix::io::pread(file, rustix::buffer::spare_capacity(buf), offset) {
            Err(Errno::INTR) => {}
            read => return Ok(read?),
        }
    };
    file_operation("read", file, || operation("read", read))
}

#[cfg(test)]
mod tests;
