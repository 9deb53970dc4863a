//! What DAV does to the disk. Every function may wait: none of them runs on a loop.

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
use weir_log::{Cause, Level};

use super::Depth;
use crate::modules::dav_ext;

/// What an act on the disk came to, or the status to answer with.
pub type DavResult<T> = Result<T, u16>;

/// One request's work on the disk, with what is to be logged of it.
pub struct Disk {
    /// Files have properties that clients gave them.
    pub properties: bool,
    /// Lines for the error log.
    pub notes: Vec<(Level, String)>,
}

/// What PUT is to do.
pub struct Put {
    /// The body's temporary file.
    pub from: PathBuf,
    /// Where it is to go.
    pub to: PathBuf,
    /// Its permissions.
    pub access: u32,
    /// Create the directories on the way.
    pub create_path: bool,
    /// When the client says that it was changed last, seconds since 1970.
    pub date: Option<i64>,
}

/// What is at the two ends of COPY and MOVE.
pub struct Transfer {
    /// What is copied; without the slash of a collection.
    pub from: PathBuf,
    /// Where to; without the slash of a collection.
    pub to: PathBuf,
    /// It is a move.
    pub moves: bool,
    /// The path of the source ends with a slash.
    pub collection: bool,
    /// What exists may be replaced.
    pub overwrite: bool,
    /// For log lines: the path and the `Destination`.
    pub names: (String, String),
    /// The method as the client wrote it.
    pub method: String,
    /// Permissions of directories on the way.
    pub access: u32,
}

/// A path from its bytes.
pub fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Adds the permission to enter a directory wherever there is one to read.
pub fn directory_access(access: u32) -> u32 {
    access | (access & 0o444) >> 2
}

/// Single operations.
impl Disk {
    fn note(&mut self, level: Level, text: String) {
        self.notes.push((level, text));
    }

    /// Notes a failure; the answer is the status for it. nginx: ngx_http_dav_error.
    fn failed(&mut self, error: &io::Error, not_found: u16, call: &str, path: &Path) -> u16 {
        let (level, status) = match Errno::from_io_error(error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => (Level::Error, not_found),
            Some(Errno::ACCESS | Errno::PERM) => (Level::Error, 403),
            Some(Errno::EXIST) => (Level::Error, 405),
            Some(Errno::NOSPC) => (Level::Crit, 507),
            _ => (Level::Crit, 500),
        };
        self.note(level, format!("{call} \"{}\" failed {}", path.display(), Cause(error)));
        status
    }

    /// Notes a failure that leaves no choice.
    fn broken(&mut self, level: Level, call: &str, path: &Path, error: &io::Error) -> u16 {
        self.note(level, format!("{call} \"{}\" failed {}", path.display(), Cause(error)));
        500
    }

    /// Creates a directory; `not_found`: the status where its parent is missing.
    pub fn make_directory(&mut self, path: &Path, mode: u32, not_found: u16) -> DavResult<()> {
        let made = fs::DirBuilder::new().mode(mode).create(path);
        made.map_err(|e| self.failed(&e, not_found, "mkdir()", path))
    }

    /// Creates an empty file, unless there is one meanwhile.
    pub fn create(&mut self, path: &Path, access: u32) -> DavResult<()> {
        let mut options = fs::OpenOptions::new();
        match options.write(true).create_new(true).mode(access).open(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(self.failed(&error, 409, "open()", path))
            }
            _ => Ok(()),
        }
    }

    fn remove_file(&mut self, path: &Path) -> DavResult<()> {
        fs::remove_file(path).map_err(|e| self.failed(&e, 404, "unlink()", path))
    }

    /// Removes a directory with all that is in it. What cannot be removed is noted, and the rest goes on.
    fn remove_tree(&mut self, path: &Path) -> DavResult<()> {
        for entry in self.entries(path)? {
            let _ = match self.link_info(&entry) {
                Some(info) if info.is_dir() => self.remove_tree(&entry),
                Some(_) => self.remove_file(&entry),
                None => Ok(()),
            };
        }
        fs::remove_dir(path).map_err(|e| self.failed(&e, 404, "rmdir()", path))
    }

    fn entries(&mut self, path: &Path) -> DavResult<Vec<PathBuf>> {
        let all = fs::read_dir(path).and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()
        });
        all.map_err(|e| self.broken(Level::Crit, "opendir()", path, &e))
    }

    fn link_info(&mut self, path: &Path) -> Option<Metadata> {
        let info = fs::symlink_metadata(path);
        info.map_err(|e| self.broken(Level::Crit, "lstat()", path, &e)).ok()
    }

    /// Copies a file with its time and permissions.
    fn copy_file(
        &mut self,
        from: &Path,
        to: &Path,
        access: u32,
        time: SystemTime,
    ) -> DavResult<()> {
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

    /// Gives a file or directory the properties of another. It is there without them where that fails.
    fn carry_properties(&mut self, from: &Path, to: &Path) {
        if self.properties
            && let Err(error) = dav_ext::carry(from, to)
        {
            self.note(Level::Error, dav_ext::told("copy", from, error));
        }
    }

    /// Copies what is in one directory into another that is there.
    fn copy_tree(&mut self, from: &Path, to: &Path) -> DavResult<()> {
        for entry in self.entries(from)? {
            let (Some(info), Some(name)) = (self.link_info(&entry), entry.file_name()) else {
                continue;
            };
            let target = to.join(name);
            if info.is_file() {
                let _ = self.copy_file(&entry, &target, info.mode() & 0o777, modified(&info));
            } else if info.is_dir() {
                // It may be there; what is in it is copied all the same.
                let mode = directory_access(info.mode() & 0o777);
                let _ = self.make_directory(&target, mode, 0);
                self.carry_properties(&entry, &target);
                let _ = self.copy_tree(&entry, &target);
                let timed = File::open(&target).and_then(|dir| set_time(&dir, modified(&info)));
                if let Err(e) = timed {
                    self.broken(Level::Alert, "utimes()", &target, &e);
                }
            }
        }
        Ok(())
    }
}

/// A method's whole work.
impl Disk {
    /// Puts a body in its place; true if nothing was there before.
    pub fn put(&mut self, put: &Put) -> DavResult<bool> {
        let existed = match fs::metadata(&put.to) {
            Ok(info) if info.is_dir() => {
                let cause = Cause(&Errno::ISDIR.into()).to_string();
                let shown = put.to.display();
                self.note(Level::Error, format!("\"{shown}\" could not be created {cause}"));
                return Err(409);
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

    /// Renames, across file systems by copying. nginx: ngx_ext_rename_file.
    fn rename(&mut self, from: &Path, to: &Path, access: u32, create_path: bool) -> DavResult<()> {
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
                let (from, to, cause) = (from.display(), to.display(), Cause(&e));
                let text = format!("rename() \"{from}\" to \"{to}\" failed {cause}");
                self.note(Level::Crit, text);
                500
            }),
        }
    }

    /// Moves a file to another file system.
    fn carry(&mut self, from: &Path, to: &Path) -> DavResult<()> {
        let info = fs::metadata(from).map_err(|e| self.broken(Level::Alert, "stat()", from, &e))?;
        self.copy_over(from, to, &info)?;
        self.remove_file(from)
    }

    /// A copy beside its place takes it in one step: what stands there may be on its way to a client, by reference.
    fn copy_over(&mut self, from: &Path, to: &Path, info: &Metadata) -> DavResult<()> {
        let mut beside = to.as_os_str().to_owned();
        beside.push(format!(".{:010}", info.ino() % 10_000_000_000));
        let beside = PathBuf::from(beside);
        let copied = self.copy_file(from, &beside, info.mode() & 0o777, modified(info));
        let placed = copied.and_then(|()| {
            fs::rename(&beside, to).map_err(|e| self.broken(Level::Crit, "rename()", &beside, &e))
        });
        if placed.is_err() {
            let _ = fs::remove_file(&beside);
        }
        placed
    }

    /// DELETE.
    pub fn delete(&mut self, bytes: &[u8], collection: bool, depth: Depth) -> DavResult<()> {
        let named = path(bytes);
        let info = fs::symlink_metadata(&named).map_err(|e| {
            let directory = Errno::from_io_error(&e) == Some(Errno::NOTDIR);
            self.failed(&e, if directory { 409 } else { 404 }, "lstat()", &named)
        })?;
        if !info.is_dir() {
            if matches!(depth, Depth::One | Depth::Invalid) {
                self.note(Level::Error, "\"Depth\" header must be 0 or infinity".to_owned());
                return Err(400);
            }
            return self.remove_file(&named);
        }
        if !collection {
            let cause = Cause(&Errno::ISDIR.into()).to_string();
            self.note(Level::Error, format!("DELETE \"{}\" failed {cause}", named.display()));
            return Err(409);
        }
        if !matches!(depth, Depth::Infinity | Depth::Absent) {
            self.note(Level::Error, "\"Depth\" header must be infinity".to_owned());
            return Err(400);
        }
        self.remove_tree(&path(bytes.strip_suffix(b"/").unwrap_or(bytes)))
    }

    /// COPY and MOVE; the answer is the status.
    pub fn transfer(&mut self, t: &Transfer, to_collection: bool) -> DavResult<u16> {
        let there = self.destination(t, to_collection)?;
        let mut from = t.from.clone().into_os_string();
        if t.collection {
            from.push("/");
        }
        let info = fs::symlink_metadata(&from)
            .map_err(|e| self.failed(&e, 404, "lstat()", Path::new(&from)))?;
        if !info.is_dir() {
            return self.transfer_file(t, &info, there.is_some()).map(|()| 204);
        }
        if !t.collection {
            self.note(Level::Error, format!("\"{}\" is collection", t.names.0));
            return Err(400);
        }
        match there {
            Some(old) if old.is_dir() => self.remove_tree(&t.to)?,
            Some(_) => self.remove_file(&t.to)?,
            None => {}
        }
        if t.moves && fs::rename(&t.from, &t.to).is_ok() {
            return Ok(201);
        }
        self.make_directory(&t.to, info.mode() & 0o777, 404)?;
        self.carry_properties(&t.from, &t.to);
        self.copy_tree(&t.from, &t.to)?;
        if t.moves {
            self.remove_tree(&t.from)?;
        }
        Ok(201)
    }

    /// What is at the destination, if it may be replaced.
    fn destination(&mut self, t: &Transfer, to_collection: bool) -> DavResult<Option<Metadata>> {
        let there = match fs::symlink_metadata(&t.to) {
            Ok(there) => there,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.failed(&e, 404, "lstat()", &t.to)),
        };
        if there.is_dir() && !to_collection {
            let ((from, to), method) = (&t.names, &t.method);
            let text = format!("\"{from}\" could not be {method}ed to collection \"{to}\"");
            self.note(Level::Error, text);
            return Err(409);
        }
        if !t.overwrite {
            let (shown, cause) = (t.to.display(), Cause(&Errno::EXIST.into()).to_string());
            self.note(Level::Error, format!("\"{shown}\" could not be created {cause}"));
            return Err(412);
        }
        Ok(Some(there))
    }

    fn transfer_file(&mut self, t: &Transfer, info: &Metadata, over: bool) -> DavResult<()> {
        if t.moves {
            return self.rename(&t.from, &t.to, t.access, true);
        }
        if over {
            return self.copy_over(&t.from, &t.to, info);
        }
        self.copy_file(&t.from, &t.to, info.mode() & 0o777, modified(info))
    }
}

/// Creates the directories on the way to a file. One that may not even be looked at is passed over.
fn make_path(file: &Path, mode: u32) -> io::Result<()> {
    let mut last = Ok(());
    let mut above: Vec<&Path> = file.ancestors().skip(1).collect();
    above.reverse();
    for directory in above.into_iter().filter(|d| d.parent().is_some() && *d != Path::new("")) {
        match fs::DirBuilder::new().mode(mode).create(directory) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => last = Ok(()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => last = Err(e),
            Err(e) => return Err(e),
        }
    }
    last
}

fn modified(info: &Metadata) -> SystemTime {
    info.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

fn system_time(seconds: i64) -> Option<SystemTime> {
    let since = Duration::from_secs(u64::try_from(seconds).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

fn set_time(file: &File, time: SystemTime) -> io::Result<()> {
    file.set_times(FileTimes::new().set_accessed(time).set_modified(time))
}
