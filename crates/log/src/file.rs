//! Log files: append-only, one open file per path, reopened in place.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use weir_sys::{descriptor, guarded};

use crate::later::{self, Output, WriteQueue};
use crate::lost;

/// The most bytes that a pipe takes atomically. pipe(7): PIPE_BUF.
const PIPE: usize = 4096;

/// An append-only file that can be reopened while others write to it.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    queue: WriteQueue,
    /// The second in which the disk was last full. Nothing is written during it.
    full: AtomicU64,
}

impl LogFile {
    /// Opens `path` for appending, creating it with mode 0644. As root it follows no link that others can have put
    /// there ([`guarded`]).
    pub fn open(path: &Path) -> io::Result<LogFile> {
        Ok(LogFile::over(open(path)?, path))
    }

    fn over(file: File, path: &Path) -> LogFile {
        let queue = WriteQueue::default();
        LogFile { path: path.to_owned(), file, queue, full: AtomicU64::new(0) }
    }

    /// The path, which [`LogFile::reopen`] opens again.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line with one `write(2)`. If this thread must not wait ([`crate::never_wait`]), another
    /// one does it. A failure is not reported: there is no better place than this log.
    pub fn write(self: &Arc<Self>, line: &[u8]) {
        later::write(self, line);
    }

    /// Appends whole lines. Other processes may write to the same file or pipe, and no line is torn: a file takes
    /// all lines in one call, a pipe in pieces of at most PIPE_BUF.
    pub fn write_lines(&self, bytes: &[u8]) -> io::Result<()> {
        let full = self.full.load(Ordering::Relaxed);
        if full != 0 && full == second() {
            lost::count(bytes);
            return Ok(());
        }
        let piece = match bytes.len() > PIPE && !self.file.metadata()?.is_file() {
            true => PIPE,
            false => usize::MAX,
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(lines_within(rest, piece));
            if let Err(error) = (&self.file).write_all(now) {
                if error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) {
                    self.full.store(second(), Ordering::Relaxed);
                }
                lost::count(rest);
                return Err(error);
            }
            rest = later;
        }
        Ok(())
    }

    /// Opens the path again under the same descriptor number, so that every holder of this log uses the
    /// new file. The file is given to `owner` if it has another one. Queued lines go to the old file.
    pub fn reopen(&self, owner: Option<(u32, u32)>) -> io::Result<()> {
        self.queue.alone(self, || {
            let fresh = open(&self.path)?;
            if let Some((uid, _)) = owner {
                give(&fresh, uid)?;
            }
            descriptor::replace(self.file.as_fd(), fresh.into())
        })
    }

    /// Drops all lines until the path is opened again.
    fn drop_lines(&self) -> io::Result<()> {
        self.queue.alone(self, || {
            let nowhere = File::options().append(true).open("/dev/null")?;
            descriptor::replace(self.file.as_fd(), nowhere.into())
        })
    }

    /// Whether the path still names the open file.
    fn is_current(&self) -> bool {
        let (Ok(here), Ok(there)) = (self.file.metadata(), fs::metadata(&self.path)) else {
            return false;
        };
        (here.dev(), here.ino()) == (there.dev(), there.ino())
    }
}

impl Output for LogFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn queue(&self) -> &WriteQueue {
        &self.queue
    }

    fn put(&self, lines: &[u8]) {
        let _ = self.write_lines(lines);
    }
}

impl AsFd for LogFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The length of the whole lines that fit into `most` bytes, or of the first line if it is longer.
fn lines_within(bytes: &[u8], most: usize) -> usize {
    let Some(window) = bytes.get(..most) else { return bytes.len() };
    let end = |part: &[u8]| part.iter().rposition(|b| *b == b'\n').map(|at| at + 1);
    let first = || bytes.iter().position(|b| *b == b'\n').map(|at| at + 1);
    end(window).or_else(first).unwrap_or(bytes.len())
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    guarded::open(path, flags, Mode::from_raw_mode(0o644))
}

/// Makes the workers' user the owner of `file`, since workers reopen it without root's rights.
/// The group stays, as in nginx.
fn give(file: &File, uid: u32) -> io::Result<()> {
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(());
    }
    if meta.uid() != uid {
        std::os::unix::fs::fchown(file, Some(uid), None)?;
    }
    let mode = meta.permissions().mode();
    if mode & 0o600 != 0o600 {
        file.set_permissions(Permissions::from_mode(mode | 0o600))?;
    }
    Ok(())
}

/// An anonymous file. Where a sandbox forbids those, `/dev/null`.
fn nowhere() -> io::Result<File> {
    match rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC) {
        Ok(fd) => Ok(fd.into()),
        Err(_) => File::options().write(true).open("/dev/null"),
    }
}

fn second() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The open log files of a process, one per path.
#[derive(Debug, Default)]
pub struct OpenLogs {
    files: Mutex<BTreeMap<PathBuf, Weak<LogFile>>>,
    /// The files that [`OpenLogs::open_waiting`] opens, in the order in which they were requested.
    waiting: Mutex<Vec<Weak<LogFile>>>,
}

impl OpenLogs {
    /// A registry without files.
    pub fn new() -> OpenLogs {
        OpenLogs::default()
    }

    /// The file at `path`. It is opened if no log has it open yet, and reopened if it was renamed or
    /// removed: a new configuration writes to the file that its path names now.
    pub fn open(&self, path: &Path) -> io::Result<Arc<LogFile>> {
        let mut files = self.lock();
        files.retain(|_, file| file.strong_count() > 0);
        if let Some(file) = files.get(path).and_then(Weak::upgrade) {
            if !file.is_current() {
                file.reopen(None)?;
            }
            return Ok(file);
        }
        let file = Arc::new(LogFile::open(path)?);
        files.insert(path.to_owned(), Arc::downgrade(&file));
        Ok(file)
    }

    /// The file at `path`, which [`OpenLogs::open_waiting`] opens. A configuration is checked as a whole before files are
    /// created for it.
    pub fn open_later(&self, path: &Path) -> io::Result<Arc<LogFile>> {
        let mut files = self.lock();
        files.retain(|_, file| file.strong_count() > 0);
        let known = files.get(path).and_then(Weak::upgrade);
        let file = match known {
            Some(file) if file.is_current() => return Ok(file),
            Some(file) => file,
            None => {
                // A placeholder until then.
                let file = Arc::new(LogFile::over(nowhere()?, path));
                files.insert(path.to_owned(), Arc::downgrade(&file));
                file
            }
        };
        self.waiting().push(Arc::downgrade(&file));
        Ok(file)
    }

    /// Opens the files of [`OpenLogs::open_later`]. Returns the pipes that have no reader: their lines are dropped until they
    /// are opened again.
    ///
    /// # Errors
    ///
    /// The path of the first file that cannot be opened, and the reason.
    pub fn open_waiting(&self) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
        let waiting = std::mem::take(&mut *self.waiting());
        let mut unread = Vec::new();
        for file in waiting.iter().filter_map(Weak::upgrade) {
            let opened = match file.reopen(None) {
                Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                    unread.push(file.path.clone());
                    file.drop_lines()
                }
                other => other,
            };
            opened.map_err(|e| (file.path.clone(), e))?;
        }
        Ok(unread)
    }

    /// Takes a file that another process has opened for this one.
    pub fn adopt(&self, path: &Path, file: File) -> Arc<LogFile> {
        let mut files = self.lock();
        if let Some(known) = files.get(path).and_then(Weak::upgrade) {
            return known;
        }
        let file = Arc::new(LogFile::over(file, path));
        files.insert(path.to_owned(), Arc::downgrade(&file));
        file
    }

    /// Gives up opening the files of [`OpenLogs::open_later`]: another process opens them.
    pub fn leave_waiting(&self) {
        self.waiting().clear();
    }

    /// The open file at `path`.
    pub fn get(&self, path: &Path) -> Option<Arc<LogFile>> {
        self.lock().get(path).and_then(Weak::upgrade)
    }

    /// The paths of all files.
    pub fn paths(&self) -> Vec<PathBuf> {
        let files = self.lock();
        files.iter().filter(|(_, file)| file.strong_count() > 0).map(|(p, _)| p.clone()).collect()
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Weak<LogFile>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reopens every file, as for USR1. `owner` is the workers' user if the caller is root.
    ///
    /// A file that cannot be reopened stays open as it was. It is returned with the reason.
    pub fn reopen_all(&self, owner: Option<(u32, u32)>) -> Vec<(PathBuf, io::Error)> {
        let held: Vec<_> = self.lock().values().filter_map(Weak::upgrade).collect();
        held.into_iter()
            .filter_map(|file| file.reopen(owner).err().map(|e| (file.path.clone(), e)))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Weak<LogFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
