//! The work of the DAV methods on the disk. Runs on a thread of the pool.

#![expect(
    clippy::disallowed_methods,
    reason = "names come from `map_path_into`, links are asked about before"
)]

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use weir_log::{Cause, Level};

use super::Depth;
use crate::files::LinkRule;
use crate::files::disk::{Disk, DiskError, DiskResult, modified, path};

/// The source and destination of COPY or MOVE.
pub struct Transfer {
    /// The source, without the slash of a collection.
    pub from: PathBuf,
    /// The destination, without the slash of a collection.
    pub to: PathBuf,
    /// Whether the method is MOVE.
    pub moves: bool,
    /// Whether the path of the source ends with a slash.
    pub collection: bool,
    /// Whether an existing destination is replaced.
    pub overwrite: bool,
    /// The path of the request and `Destination`, for log lines.
    pub names: (String, String),
    /// The method as the client wrote it.
    pub method: String,
    /// The permission bits of directories that are created.
    pub access: u32,
    /// The rule for symbolic links inside a collection.
    pub links: LinkRule,
}

/// Each function carries out a method.
impl Disk {
    /// DELETE.
    pub fn delete(&mut self, bytes: &[u8], collection: bool, depth: Depth) -> DiskResult<()> {
        let named = path(bytes);
        let info = fs::symlink_metadata(&named).map_err(|e| {
            let missing = match Errno::from_io_error(&e) {
                Some(Errno::NOTDIR) => DiskError::MissingParent,
                _ => DiskError::Missing,
            };
            self.failed(&e, missing, "lstat()", &named)
        })?;
        if !info.is_dir() {
            if matches!(depth, Depth::One | Depth::Invalid) {
                self.note(Level::Error, "\"Depth\" header must be 0 or infinity".to_owned());
                return Err(DiskError::BadRequest);
            }
            return self.remove_file(&named);
        }
        if !collection {
            let cause = Cause(&Errno::ISDIR.into()).to_string();
            self.note(
                Level::Error,
                format!("DELETE \"{}\" failed {cause}", weir_log::Bytes::of_path(&named)),
            );
            return Err(DiskError::Directory);
        }
        if !matches!(depth, Depth::Infinity | Depth::Absent) {
            self.note(Level::Error, "\"Depth\" header must be infinity".to_owned());
            return Err(DiskError::BadRequest);
        }
        self.remove_tree(&path(bytes.strip_suffix(b"/").unwrap_or(bytes)))
    }

    /// COPY and MOVE. Returns the status.
    pub fn transfer(&mut self, t: &Transfer, to_collection: bool) -> DiskResult<u16> {
        let there = self.destination(t, to_collection)?;
        let mut from = t.from.clone().into_os_string();
        if t.collection {
            from.push("/");
        }
        let info = fs::symlink_metadata(&from)
            .map_err(|e| self.failed(&e, DiskError::Missing, "lstat()", Path::new(&from)))?;
        if !info.is_dir() {
            return self.transfer_file(t, &info, there.is_some()).map(|()| 204);
        }
        if !t.collection {
            self.note(Level::Error, format!("\"{}\" is collection", t.names.0));
            return Err(DiskError::BadRequest);
        }
        match there {
            Some(old) if old.is_dir() => {
                self.check_apart(t)?;
                self.remove_tree(&t.to)?;
            }
            Some(_) => self.remove_file(&t.to)?,
            None => {}
        }
        if t.moves && fs::rename(&t.from, &t.to).is_ok() {
            return Ok(201);
        }
        self.make_directory(&t.to, info.mode() & 0o777, DiskError::Missing)?;
        self.carry_properties(&t.from, &t.to);
        let whole = self.copy_tree(&t.from, &t.to, &t.links)?;
        if t.moves && !whole {
            let text = format!(
                "\"{}\" was not copied whole, so it stays",
                weir_log::Bytes::of_path(&t.from)
            );
            self.note(Level::Error, text);
            return Err(DiskError::Failed);
        }
        if t.moves {
            self.remove_tree(&t.from)?;
        }
        Ok(201)
    }

    /// What exists at the destination, if it may be replaced.
    fn destination(&mut self, t: &Transfer, to_collection: bool) -> DiskResult<Option<Metadata>> {
        let there = match fs::symlink_metadata(&t.to) {
            Ok(there) => there,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.failed(&e, DiskError::Missing, "lstat()", &t.to)),
        };
        if there.is_dir() && !to_collection {
            return Err(self.no_transfer(t, DiskError::Directory));
        }
        if !t.overwrite {
            let (shown, cause) =
                (weir_log::Bytes::of_path(&t.to), Cause(&Errno::EXIST.into()).to_string());
            self.note(Level::Error, format!("\"{shown}\" could not be created {cause}"));
            return Err(DiskError::NoOverwrite);
        }
        Ok(Some(there))
    }

    /// Checks that the source is not in the collection that it replaces. A link above either of them
    /// gives a collection a second path.
    fn check_apart(&mut self, t: &Transfer) -> DiskResult<()> {
        let mut real = |path: &Path| {
            fs::canonicalize(path)
                .map_err(|e| self.failed(&e, DiskError::Missing, "realpath()", path))
        };
        match real(&t.from)?.starts_with(real(&t.to)?) {
            true => Err(self.no_transfer(t, DiskError::Denied)),
            false => Ok(()),
        }
    }

    fn no_transfer(&mut self, t: &Transfer, error: DiskError) -> DiskError {
        let ((from, to), method) = (&t.names, &t.method);
        let text = format!("\"{from}\" could not be {method}ed to collection \"{to}\"");
        self.note(Level::Error, text);
        error
    }

    fn transfer_file(&mut self, t: &Transfer, info: &Metadata, over: bool) -> DiskResult<()> {
        if t.moves {
            return self.rename(&t.from, &t.to, t.access, true);
        }
        let target = info.is_symlink().then(|| fs::metadata(&t.from).ok()).flatten();
        let info = target.as_ref().unwrap_or(info);
        if over {
            return self.copy_over(&t.from, &t.to, info);
        }
        self.copy_file(&t.from, &t.to, info.mode() & 0o777, modified(info))
    }
}
