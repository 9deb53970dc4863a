//! The directory behind the mount point. Operations name files by inode number.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo};
use rustix::fs::{CWD, Mode, OFlags};

use super::tree::InodeNumbers;

/// The user and group of the calling process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOwner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// An entry of a directory: inode number, type and name.
pub(crate) type DirEntry = (u64, FileType, OsString);

/// The attributes to change of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) accessed: Option<SystemTime>,
    pub(crate) modified: Option<SystemTime>,
}

#[derive(Debug)]
pub(crate) struct Disk {
    tree: Mutex<InodeNumbers>,
    open: Mutex<Handles>,
}

#[derive(Debug, Default)]
struct Handles {
    last: u64,
    files: HashMap<u64, Arc<File>>,
    listings: HashMap<u64, Arc<Vec<DirEntry>>>,
}

impl Disk {
    pub(crate) fn new(source: PathBuf) -> Disk {
        Disk { tree: Mutex::new(InodeNumbers::new(source)), open: Mutex::default() }
    }

    pub(crate) fn lookup(&self, parent: u64, name: &OsStr) -> io::Result<FileAttr> {
        let metadata = fs::symlink_metadata(self.child(parent, name)?)?;
        Ok(attributes(lock(&self.tree).number(parent, name), &metadata))
    }

    pub(crate) fn getattr(&self, number: u64, handle: Option<u64>) -> io::Result<FileAttr> {
        let metadata = match handle.and_then(|handle| self.file(handle).ok()) {
            Some(file) => file.metadata()?,
            None => fs::symlink_metadata(self.path(number)?)?,
        };
        Ok(attributes(number, &metadata))
    }

    pub(crate) fn setattr(
        &self,
        number: u64,
        handle: Option<u64>,
        changes: &Changes,
    ) -> io::Result<FileAttr> {
        let open = handle.and_then(|handle| self.file(handle).ok());
        if let Some(mode) = changes.mode {
            fs::set_permissions(self.path(number)?, Permissions::from_mode(mode & 0o7777))?;
        }
        if changes.uid.is_some() || changes.gid.is_some() {
            lchown(self.path(number)?, changes.uid, changes.gid)?;
        }
        let writable = || File::options().write(true).open(self.path(number)?);
        if let Some(size) = changes.size {
            open.as_ref().map_or_else(|| writable()?.set_len(size), |file| file.set_len(size))?;
        }
        if changes.accessed.is_some() || changes.modified.is_some() {
            let mut times = FileTimes::new();
            times = changes.accessed.map_or(times, |at| times.set_accessed(at));
            times = changes.modified.map_or(times, |at| times.set_modified(at));
            File::open(self.path(number)?)?.set_times(times)?;
        }
        self.getattr(number, handle)
    }

    pub(crate) fn readlink(&self, number: u64) -> io::Result<PathBuf> {
        fs::read_link(self.path(number)?)
    }

    pub(crate) fn mkdir(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        owner: FileOwner,
    ) -> io::Result<FileAttr> {
        let path = self.child(parent, name)?;
        rustix::fs::mkdir(&path, Mode::from_raw_mode(mode))?;
        set_owner(&path, owner);
        self.lookup(parent, name)
    }

    pub(crate) fn symlink(&self, parent: u64, name: &OsStr, to: &Path) -> io::Result<FileAttr> {
        std::os::unix::fs::symlink(to, self.child(parent, name)?)?;
        self.lookup(parent, name)
    }

    pub(crate) fn unlink(&self, parent: u64, name: &OsStr) -> io::Result<()> {
        fs::remove_file(self.child(parent, name)?)?;
        lock(&self.tree).removed(parent, name);
        Ok(())
    }

    pub(crate) fn rmdir(&self, parent: u64, name: &OsStr) -> io::Result<()> {
        fs::remove_dir(self.child(parent, name)?)?;
        lock(&self.tree).removed(parent, name);
        Ok(())
    }

    pub(crate) fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr)) -> io::Result<()> {
        fs::rename(self.child(from.0, from.1)?, self.child(to.0, to.1)?)?;
        lock(&self.tree).renamed(from, to);
        Ok(())
    }

    pub(crate) fn open(&self, number: u64, flags: i32) -> io::Result<u64> {
        let file = rustix::fs::openat(CWD, self.path(number)?, passed_flags(flags), Mode::empty())?;
        Ok(self.keep(file.into()))
    }

    pub(crate) fn create(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        flags: i32,
        owner: FileOwner,
    ) -> io::Result<(FileAttr, u64)> {
        let path = self.child(parent, name)?;
        let flags = passed_flags(flags)
            | OFlags::CREATE
            | OFlags::from_bits_retain(flags as u32) & OFlags::EXCL;
        let file = File::from(rustix::fs::openat(CWD, &path, flags, Mode::from_raw_mode(mode))?);
        set_owner(&path, owner);
        let attributes = attributes(lock(&self.tree).number(parent, name), &file.metadata()?);
        Ok((attributes, self.keep(file)))
    }

    pub(crate) fn read(&self, handle: u64, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        let (file, mut bytes, mut len) = (self.file(handle)?, vec![0; size], 0);
        // A short read would mean the end of the file.
        while let Some(rest) = bytes.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, offset + len as u64) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    pub(crate) fn write(&self, handle: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(handle)?.write_all_at(bytes, offset)
    }

    pub(crate) fn fsync(&self, handle: u64, data_only: bool) -> io::Result<()> {
        let file = self.file(handle)?;
        if data_only { file.sync_data() } else { file.sync_all() }
    }

    pub(crate) fn release(&self, handle: u64) {
        let mut open = lock(&self.open);
        let closed = (open.files.remove(&handle), open.listings.remove(&handle));
        drop(open);
        // The files are closed without the lock, since closing may take long.
        drop(closed);
    }

    pub(crate) fn opendir(&self, number: u64) -> io::Result<u64> {
        let path = self.path(number)?;
        let mut all = vec![
            (number, FileType::Directory, OsString::from(".")),
            (number, FileType::Directory, OsString::from("..")),
        ];
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
            let name = entry.file_name();
            all.push((lock(&self.tree).number(number, &name), kind, name));
        }
        let mut open = lock(&self.open);
        open.last += 1;
        let handle = open.last;
        open.listings.insert(handle, Arc::new(all));
        Ok(handle)
    }

    pub(crate) fn listing(&self, handle: u64) -> Option<Arc<Vec<DirEntry>>> {
        lock(&self.open).listings.get(&handle).cloned()
    }

    pub(crate) fn statfs(&self, number: u64) -> io::Result<rustix::fs::StatVfs> {
        Ok(rustix::fs::statvfs(self.path(number)?)?)
    }

    fn path(&self, number: u64) -> io::Result<PathBuf> {
        lock(&self.tree).path(number).ok_or_else(stale)
    }

    fn child(&self, parent: u64, name: &OsStr) -> io::Result<PathBuf> {
        lock(&self.tree).child(parent, name).ok_or_else(stale)
    }

    fn keep(&self, file: File) -> u64 {
        let mut open = lock(&self.open);
        open.last += 1;
        let handle = open.last;
        open.files.insert(handle, Arc::new(file));
        handle
    }

    fn file(&self, handle: u64) -> io::Result<Arc<File>> {
        let file = lock(&self.open).files.get(&handle).cloned();
        file.ok_or_else(|| rustix::io::Errno::BADF.into())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stale() -> io::Error {
    io::Error::from_raw_os_error(Errno::ESTALE.code())
}

/// The flags that are passed on. The kernel handles the others, and O_DIRECT would need aligned
/// buffers.
fn passed_flags(flags: i32) -> OFlags {
    let flags = OFlags::from_bits_retain(flags as u32);
    (flags & (OFlags::RWMODE | OFlags::TRUNC)) | OFlags::CLOEXEC
}

/// Gives a new file to the process that created it, if this process has the right.
fn set_owner(path: &Path, owner: FileOwner) {
    let _ = lchown(path, Some(owner.uid), Some(owner.gid));
}

fn attributes(number: u64, of: &Metadata) -> FileAttr {
    let time = |seconds: i64, nanos: i64| {
        let seconds = u64::try_from(seconds).unwrap_or(0);
        UNIX_EPOCH + Duration::new(seconds, u32::try_from(nanos).unwrap_or(0))
    };
    FileAttr {
        ino: INodeNo(number),
        size: of.size(),
        blocks: of.blocks(),
        atime: time(of.atime(), of.atime_nsec()),
        mtime: time(of.mtime(), of.mtime_nsec()),
        ctime: time(of.ctime(), of.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(of.file_type()).unwrap_or(FileType::RegularFile),
        perm: (of.mode() & 0o7777) as u16,
        nlink: u32::try_from(of.nlink()).unwrap_or(u32::MAX),
        uid: of.uid(),
        gid: of.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
