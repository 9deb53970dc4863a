//! File operations that never block the loop.
//!
//! An operation is first asked of the kernel in a form that refuses to wait: `openat2` with
//! `RESOLVE_CACHED`, `preadv2` with `RWF_NOWAIT`. What is in memory is answered on the loop; when
//! the answer is "not now", and for everything that writes, a thread of the [`FilePool`] does it.

mod doer;
mod info;
mod locality;
mod open_file;
mod pool;
mod rank;
mod residence;
mod running;

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
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
    /// What threads read files into that they open: memory of the loop's, since what each of many threads
    /// allocates is new to the kernel again and again.
    scratches: RefCell<Vec<Vec<u8>>>,
}

/// The size of a scratch buffer: longer files are not read whole.
const SCRATCH: usize = 128 << 10;
/// So many are kept.
const SCRATCHES: usize = 8;

/// How to open a file.
#[derive(Clone, Copy, Debug)]
pub struct OpenHow {
    /// `O_CLOEXEC` is added.
    pub flags: OFlags,
    /// Permissions of a file that is created, before the umask.
    pub mode: Mode,
    /// Restrictions on the way to the file.
    pub resolve: ResolveFlags,
}

impl OpenHow {
    /// For reading; opening a FIFO does not wait for its other end.
    pub fn read() -> Self {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        OpenHow { flags, mode: Mode::empty(), resolve: ResolveFlags::empty() }
    }

    /// For reading and writing; it must not exist.
    pub fn create_new(mode: u32) -> Self {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        OpenHow { flags, mode: Mode::from_raw_mode(mode), resolve: ResolveFlags::empty() }
    }

    fn flags(&self) -> OFlags {
        self.flags | OFlags::CLOEXEC
    }

    /// It may create a file, or cut one.
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

    /// The pool that is used where no other is named.
    pub fn default_pool(&self) -> &FilePool {
        &self.pool
    }

    /// The waiter where nothing else is said: the default pool.
    pub fn doer(&self) -> Doer {
        Doer::Pool(self.pool.clone())
    }

    /// The pool of this name.
    pub fn pool(&self, name: &[u8]) -> Option<&FilePool> {
        self.named.iter().chain([&self.pool]).find(|pool| pool.name().as_bytes() == name)
    }

    /// As [`FilePool::oldest_operation`], of all pools.
    pub fn oldest_operation(&self) -> Option<RunningOperation> {
        let pools = self.named.iter().chain([&self.pool]);
        pools.filter_map(FilePool::oldest_operation).min_by_key(|operation| operation.since)
    }

    /// Runs `work`, which reads, on a thread of the pool. An error if the pool is full or `work` panicked.
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

    /// Runs `work` where it may wait: on a thread of a pool, or here, as an operation of this name.
    pub async fn run_by<T, W>(
        &self,
        who: &Doer,
        rank: Rank,
        name: &'static str,
        work: W,
    ) -> io::Result<T>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        match who.pool(Touches::Directory) {
            Some(pool) => self.run_in(pool, rank, work).await,
            None => Ok(operation(name, work)),
        }
    }

    /// As [`Files::run`], where no answer is wanted. An error if the pool is full: then nothing is done.
    pub fn hand_over(&self, rank: Rank, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.offloaded.set(self.offloaded.get() + 1);
        self.pool.hand_over(rank, work)
    }

    /// A file that is memory and nothing else: no loop waits for it, and what is sent of it is not copied.
    pub fn memory_file(&self, bytes: &[u8]) -> io::Result<Arc<OpenFile>> {
        let file = File::from(rustix::fs::memfd_create("weir", MemfdFlags::CLOEXEC)?);
        file.write_all_at(bytes, 0)?;
        Ok(Arc::new(OpenFile::new(file, self.pool.clone(), Access::Here)))
    }

    /// As [`FilePool::hold`], by the default pool.
    pub fn hold(&self, file: File) -> Arc<OpenFile> {
        self.pool.hold(file)
    }

    /// Operations given to the pool so far.
    pub fn offloaded(&self) -> u64 {
        self.offloaded.get()
    }

    /// Opens a file and asks what it is.
    pub async fn open(&self, path: &Path, how: &OpenHow) -> io::Result<(Arc<OpenFile>, FileInfo)> {
        self.open_by(self.doer(), path, how).await
    }

    /// As [`Files::open`]; the waiter for the file here also waits for reads of it.
    pub async fn open_by(
        &self,
        who: Doer,
        path: &Path,
        how: &OpenHow,
    ) -> io::Result<(Arc<OpenFile>, FileInfo)> {
        let pool = match who {
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

    /// As [`Files::open_by`], and reads what the file begins with, as many bytes as `want` says. Where a thread has to
    /// wait for the one, it does the other too.
    pub async fn open_and_read(
        &self,
        who: Doer,
        path: &Path,
        how: &OpenHow,
        want: fn(&FileInfo) -> usize,
    ) -> io::Result<(Arc<OpenFile>, FileInfo, Vec<u8>)> {
        let now = who.pool(Touches::Name).map(|pool| (pool.clone(), self.open_now(path, how)));
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
            None => self.open_by(who, path, how).await?,
        };
        let (read, buf) = self.read_at(&file, Vec::with_capacity(want(&info)), 0).await;
        read.map(|_| (file, info, buf))
    }

    /// As [`Files::open`], from memory alone: `None` if that cannot be known without waiting.
    pub fn open_now(&self, path: &Path, how: &OpenHow) -> Option<io::Result<(OwnedFd, FileInfo)>> {
        // The kernel answers "not now" to whatever would create or truncate.
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

    /// A directory, good for its path alone, if the kernel walks there in memory; that asks no server either.
    pub fn directory_now(&self, path: &Path) -> Option<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat2(CWD, path, flags, Mode::empty(), seam::cached_flags()).ok()
    }

    /// Asks about what `path` names; a symbolic link is followed.
    pub async fn stat(&self, path: &Path) -> io::Result<FileInfo> {
        self.stat_by(self.doer(), path).await
    }

    /// As [`Files::stat`], through the pool of `who` if it must wait.
    pub async fn stat_by(&self, who: Doer, path: &Path) -> io::Result<FileInfo> {
        let Some(pool) = who.pool(Touches::Name) else {
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

    /// Reads into the spare capacity of `buf`, once: the number of bytes appended, 0 at the end
    /// of the file. The buffer comes back with the answer.
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

    /// Appends what is in memory of at most `most` bytes of a file, and room for the head of each frame. The number of bytes
    /// without heads; `None` if [`Files::read_at`] has to be asked, which waits for a disk, or says why not.
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

    /// Writes all of `buf`; the buffer comes back with the answer.
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

    /// Appends all of `buf` at the file's position; the buffer comes back with the answer.
    pub async fn append(&self, file: &Arc<OpenFile>, buf: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        let file = Arc::clone(file);
        let write = move || (file_operation("write", &*file, || (&**file).write_all(&buf)), buf);
        let written = self.write(write).await;
        written.unwrap_or_else(|e| (Err(e), Vec::new()))
    }

    /// Renames; the target is replaced.
    pub async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.write(move || file_operation("rename", &*to, || std::fs::rename(from, &to))).await?
    }

    /// Removes a file.
    pub async fn unlink(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        self.write(move || file_operation("unlink", &*path, || std::fs::remove_file(&path))).await?
    }

    /// Creates a file with a name that is not taken: `prefix` and ten digits. Its path comes
    /// with it; a caller that keeps it renames it.
    pub async fn create_temp(
        &self,
        prefix: &Path,
        mode: u32,
    ) -> io::Result<(Arc<OpenFile>, PathBuf)> {
        let prefix = prefix.as_os_str().to_owned();
        let (file, path) = self.write(move || create_temp_waiting(&prefix, mode)).await??;
        Ok((self.hold(file), path))
    }
}

/// A file that was opened from memory.
fn from_memory(
    (fd, info): (OwnedFd, FileInfo),
    how: &OpenHow,
    pool: FilePool,
) -> (Arc<OpenFile>, FileInfo) {
    let quick = how.flags & OFlags::RWMODE == OFlags::RDONLY;
    let access = if quick { Access::Memory } else { Access::Pool };
    (Arc::new(OpenFile::new(fd.into(), pool, access)), info)
}

/// The answer of a kernel that would have to wait, or that does not know the question.
fn must_wait(e: Errno) -> bool {
    // PERM: a sandbox that does not know openat2, as old ones of containers. A file that it is true of is refused again.
    matches!(e, Errno::AGAIN | Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::INTR)
}

fn is_not_now(e: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, Unsupported, WouldBlock};
    matches!(e.kind(), WouldBlock | Unsupported | Interrupted)
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

fn create_temp_waiting(prefix: &OsString, mode: u32) -> io::Result<(File, PathBuf)> {
    let how = OpenHow::create_new(mode);
    loop {
        let mut number = [0u8; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
        let mut path = prefix.clone();
        path.push(format!("{:010}", u64::from_ne_bytes(number) % 10_000_000_000));
        let create = || rustix::fs::open(&path, how.flags(), how.mode);
        match file_operation("open", Path::new(&path), create) {
            Ok(fd) => return Ok((fd.into(), path.into())),
            Err(Errno::EXIST | Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests;
