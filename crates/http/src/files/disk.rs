//! Changes files on the disk, for PUT and other methods of WebDAV, and for `..._store`. All
//! functions may block and run on threads of the pool. [`on_disk`] starts them from a loop.

#![expect(
    clippy::disallowed_methods,
    reason = "names come from `map_path_into`, links are asked about before"
)]

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use weir_engine::file_operation;
use weir_log::{Cause, Level};

use crate::request::Request;
use crate::request::step::Step;
use crate::site::core::CarryProperties;

/// The result of an operation on the disk.
pub type DiskResult<T> = Result<T, DiskError>;

/// Why an operation on the disk failed. The notes have the details. nginx: ngx_http_dav_error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskError {
    /// The file does not exist.
    Missing,
    /// The directory of the file does not exist.
    MissingParent,
    /// The permission is missing.
    Denied,
    /// The file exists.
    Exists,
    /// The disk is full.
    Full,
    /// The file is a directory.
    Directory,
    /// `Overwrite: F` forbids to replace the file.
    NoOverwrite,
    /// The request does not fit the kind of the file.
    BadRequest,
    /// Any other failure.
    Failed,
}

impl DiskError {
    /// The status that the request ends with.
    pub fn status(self) -> u16 {
        match self {
            DiskError::BadRequest => 400,
            DiskError::Denied => 403,
            DiskError::Missing => 404,
            DiskError::Exists => 405,
            DiskError::MissingParent | DiskError::Directory => 409,
            DiskError::NoOverwrite => 412,
            DiskError::Failed => 500,
            DiskError::Full => 507,
        }
    }
}

impl From<DiskError> for Step {
    fn from(error: DiskError) -> Step {
        Step::Status(error.status())
    }
}

/// The work of a request on the disk, and the lines to log.
pub struct Disk {
    /// Copies the properties of one file to another, if clients may set properties.
    pub carry: Option<CarryProperties>,
    /// Lines for the error log.
    pub notes: Vec<(Level, String)>,
}

/// The parameters of PUT.
pub struct Put {
    /// The body's temporary file.
    pub from: PathBuf,
    /// The destination.
    pub to: PathBuf,
    /// The permission bits of the file.
    pub access: u32,
    /// Whether missing directories of the path are created.
    pub create_path: bool,
    /// The modification time from the client, in seconds since 1970.
    pub date: Option<i64>,
}

/// Converts bytes to a path.
pub fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Adds the permission to search directories for each permission to read them.
pub fn directory_access(access: u32) -> u32 {
    access | (access & 0o444) >> 2
}

/// Runs `work` on a thread of the pool and logs its notes.
pub async fn on_disk<T: Send + 'static>(
    r: &mut Request,
    work: impl FnOnce(&mut Disk) -> DiskResult<T> + Send + 'static,
) -> DiskResult<T> {
    let carry = r.conf().core.carry_properties;
    let done = r.event_loop.handle.files().write(move || {
        let mut disk = Disk { carry, notes: Vec::new() };
        let outcome = work(&mut disk);
        (outcome, disk.notes)
    });
    let Ok((outcome, notes)) = done.await else { return Err(DiskError::Failed) };
    for (level, text) in notes {
        r.log(level, format_args!("{text}"));
    }
    outcome
}

/// Single operations.
impl Disk {
    pub fn note(&mut self, level: Level, text: String) {
        self.notes.push((level, text));
    }

    /// Notes a failure. `missing` is the error if the path does not exist.
    pub fn failed(
        &mut self,
        error: &io::Error,
        missing: DiskError,
        call: &str,
        path: &Path,
    ) -> DiskError {
        let (level, failure) = match Errno::from_io_error(error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => (Level::Error, missing),
            Some(Errno::ACCESS | Errno::PERM) => (Level::Error, DiskError::Denied),
            Some(Errno::EXIST) => (Level::Error, DiskError::Exists),
            Some(Errno::NOSPC) => (Level::Crit, DiskError::Full),
            _ => (Level::Crit, DiskError::Failed),
        };
        self.note(
            level,
            format!("{call} \"{}\" failed {}", weir_log::Bytes::of_path(path), Cause(error)),
        );
        failure
    }

    /// Notes a failure, which is [`DiskError::Failed`] whatever its cause.
    pub fn broken(
        &mut self,
        level: Level,
        call: &str,
        path: &Path,
        error: &io::Error,
    ) -> DiskError {
        self.note(
            level,
            format!("{call} \"{}\" failed {}", weir_log::Bytes::of_path(path), Cause(error)),
        );
        DiskError::Failed
    }

    /// Creates a directory. `missing` is the error if its parent does not exist.
    pub fn make_directory(&mut self, path: &Path, mode: u32, missing: DiskError) -> DiskResult<()> {
        let make = || fs::DirBuilder::new().mode(mode).create(path);
        let made = file_operation("mkdir", path, make);
        made.map_err(|e| self.failed(&e, missing, "mkdir()", path))
    }

    /// Creates an empty file. An existing file is not a failure.
    pub fn create(&mut self, path: &Path, access: u32) -> DiskResult<()> {
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create_new(true).mode(access);
        match file_operation("open", path, || options.open(path)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(self.failed(&error, DiskError::MissingParent, "open()", path))
            }
            _ => Ok(()),
        }
    }

    pub fn remove_file(&mut self, path: &Path) -> DiskResult<()> {
        let removed = file_operation("unlink", path, || fs::remove_file(path));
        removed.map_err(|e| self.failed(&e, DiskError::Missing, "unlink()", path))
    }

    /// Removes a directory and its contents. A failure is noted, and the rest is removed.
    pub fn remove_tree(&mut self, path: &Path) -> DiskResult<()> {
        for entry in self.entries(path)? {
            let _ = match self.link_info(&entry) {
                Some(info) if info.is_dir() => self.remove_tree(&entry),
                Some(_) => self.remove_file(&entry),
                None => Ok(()),
            };
        }
        fs::remove_dir(path).map_err(|e| self.failed(&e, DiskError::Missing, "rmdir()", path))
    }

    pub fn entries(&mut self, path: &Path) -> DiskResult<Vec<PathBuf>> {
        let all = fs::read_dir(path).and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()
        });
        all.map_err(|e| self.broken(Level::Crit, "opendir()", path, &e))
    }

    pub fn link_info(&mut self, path: &Path) -> Option<Metadata> {
        let info = fs::symlink_metadata(path);
        info.map_err(|e| self.broken(Level::Crit, "lstat()", path, &e)).ok()
    }

    /// Copies a file with its modification time, permissions and properties.
    pub fn copy_file(
        &mut self,
        from: &Path,
        to: &Path,
        access: u32,
        time: SystemTime,
    ) -> DiskResult<()> {
        let mut source =
            File::open(from).map_err(|e| self.broken(Level::Crit, "open()", from, &e))?;
        let mut options = fs::OpenOptions::new();
        let target = options.write(true).create(true).truncate(true).mode(access).open(to);
        let mut target = target.map_err(|e| self.broken(Level::Crit, "open()", to, &e))?;
        io::copy(&mut source, &mut target)
            .map_err(|e| self.broken(Level::Alert, "write()", to, &e))?;
        self.carry_properties(from, to);
        set_time(&target, time).map_err(|e| self.broken(Level::Alert, "futimes()", to, &e))
    }

    /// Copies the properties of a file or directory to another. A failure is noted and otherwise
    /// ignored.
    pub fn carry_properties(&mut self, from: &Path, to: &Path) {
        if let Some(carry) = self.carry
            && let Err(error) = carry(from, to)
        {
            self.properties_failed("copy", from, &error);
        }
    }

    /// Notes that the properties of a file could not be read, changed or copied.
    pub fn properties_failed(&mut self, what: &str, path: &Path, error: &io::Error) {
        let (path, cause) = (weir_log::Bytes::of_path(path), Cause(error));
        let text = format!("dav_ext: cannot {what} the properties of \"{path}\" {cause}");
        self.note(Level::Error, text);
    }
}

/// Putting a file in its place.
impl Disk {
    /// Moves a body to its destination. True if the destination did not exist.
    pub fn put(&mut self, put: &Put) -> DiskResult<bool> {
        let existed = match fs::metadata(&put.to) {
            Ok(info) if info.is_dir() => {
                let cause = Cause(&Errno::ISDIR.into()).to_string();
                let shown = weir_log::Bytes::of_path(&put.to);
                self.note(Level::Error, format!("\"{shown}\" could not be created {cause}"));
                return Err(DiskError::Directory);
            }
            found => found.is_ok(),
        };
        fs::set_permissions(&put.from, fs::Permissions::from_mode(put.access))
            .map_err(|e| self.broken(Level::Crit, "chmod()", &put.from, &e))?;
        if let Some(time) = put.date.and_then(system_time) {
            let file = File::options().write(true).open(&put.from);
            file.and_then(|file| set_time(&file, time))
                .map_err(|e| self.broken(Level::Crit, "futimes()", &put.from, &e))?;
        }
        if existed {
            self.carry_properties(&put.to, &put.from);
        }
        self.rename(&put.from, &put.to, put.access, put.create_path)?;
        Ok(!existed)
    }

    /// Renames a file, or copies it to another file system. nginx: ngx_ext_rename_file.
    pub fn rename(
        &mut self,
        from: &Path,
        to: &Path,
        access: u32,
        create_path: bool,
    ) -> DiskResult<()> {
        let mut renamed = fs::rename(from, to);
        let missing = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
        if create_path && renamed.as_ref().is_err_and(missing) {
            make_path(to, directory_access(access))
                .map_err(|e| self.broken(Level::Crit, "mkdir()", to, &e))?;
            renamed = fs::rename(from, to);
        }
        match renamed {
            Err(e) if e.kind() == io::ErrorKind::CrossesDevices => self.carry(from, to),
            renamed => renamed.map_err(|e| {
                let (from, to, cause) =
                    (weir_log::Bytes::of_path(from), weir_log::Bytes::of_path(to), Cause(&e));
                let text = format!("rename() \"{from}\" to \"{to}\" failed {cause}");
                self.note(Level::Crit, text);
                DiskError::Failed
            }),
        }
    }

    /// Moves a file to another file system.
    fn carry(&mut self, from: &Path, to: &Path) -> DiskResult<()> {
        let info = fs::metadata(from).map_err(|e| self.broken(Level::Alert, "stat()", from, &e))?;
        self.copy_over(from, to, &info)?;
        self.remove_file(from)
    }

    /// Replaces a file by a copy of another. The copy is written to a temporary file and renamed,
    /// since the old file may be on its way to a client.
    pub fn copy_over(&mut self, from: &Path, to: &Path, info: &Metadata) -> DiskResult<()> {
        let mut temporary = to.as_os_str().to_owned();
        temporary.push(format!(".{:010}", info.ino() % 10_000_000_000));
        let temporary = PathBuf::from(temporary);
        let copied = self.copy_file(from, &temporary, info.mode() & 0o777, modified(info));
        let placed = copied.and_then(|()| {
            fs::rename(&temporary, to)
                .map_err(|e| self.broken(Level::Crit, "rename()", &temporary, &e))
        });
        if placed.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        placed
    }
}

/// Creates the missing directories of a path. One that may not be accessed is skipped.
fn make_path(file: &Path, mode: u32) -> io::Result<()> {
    let mut last = Ok(());
    let mut parents: Vec<&Path> = file.ancestors().skip(1).collect();
    parents.reverse();
    for directory in parents.into_iter().filter(|d| d.parent().is_some() && *d != Path::new("")) {
        match fs::DirBuilder::new().mode(mode).create(directory) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => last = Ok(()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => last = Err(e),
            Err(e) => return Err(e),
        }
    }
    last
}

pub fn modified(info: &Metadata) -> SystemTime {
    info.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

fn system_time(seconds: i64) -> Option<SystemTime> {
    let since = Duration::from_secs(u64::try_from(seconds).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

pub fn set_time(file: &File, time: SystemTime) -> io::Result<()> {
    file.set_times(FileTimes::new().set_accessed(time).set_modified(time))
}
