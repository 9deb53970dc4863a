//! Lists directories, on threads of the file pool: a scan may read the disk for each name.

#![expect(
    clippy::disallowed_methods,
    reason = "names come from `map_path_into`, links are asked about before"
)]

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use weir_engine::{FileInfo, FileKind, file_operation};
use weir_log::{Cause, Level};

use crate::files;
use crate::phases::Step;
use crate::request::Request;

/// A name in a directory, and the file that it refers to. Links are followed.
#[derive(Debug, Clone)]
pub struct DirectoryEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The attributes of the file. Those of the link itself if its target does not exist.
    pub info: FileInfo,
}

/// Selects the entries of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryFilter {
    /// Whether names that begin with a dot are included.
    pub dotfiles: bool,
    /// Whether links are included.
    pub links: bool,
}

impl EntryFilter {
    /// The entries that lists usually show.
    pub const USUAL: EntryFilter = EntryFilter { dotfiles: false, links: true };
}

/// A list with more entries is sorted and written by a thread of the file pool, so as not to block
/// the loop.
const MANY: usize = 200;

/// The path of the directory that a request names with a slash at the end.
pub fn requested_path(r: &mut Request) -> Result<Vec<u8>, Step> {
    let mut path = Vec::new();
    r.conf().core.map_path_into(r, &mut path)?;
    if path.len() > 1 {
        path.pop();
    }
    Ok(path)
}

/// Runs `write` for a list of `entries`, on a thread if there are many. A failure is logged and
/// returned as a step.
pub async fn run_for<T: Send + 'static>(
    r: &Request,
    entries: usize,
    write: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Step> {
    if entries <= MANY {
        return Ok(write());
    }
    r.event_loop.handle.files().run(write).await.map_err(|error| {
        r.log(Level::Crit, format_args!("the list was not written {}", Cause(&error)));
        Step::Status(500)
    })
}

/// A failed call and its path.
struct Failed {
    call: &'static str,
    path: PathBuf,
    error: io::Error,
}

/// The entries of a directory, unsorted. A failure is logged and returned as a step.
pub async fn entries(
    r: &mut Request,
    path: &[u8],
    filter: EntryFilter,
) -> Result<Vec<DirectoryEntry>, Step> {
    files::check_links(r, path).await?;
    let directory = PathBuf::from(OsString::from_vec(path.to_vec()));
    let scanned = r.event_loop.handle.files().run(move || scan(&directory, filter)).await;
    let (entries, skipped) = match scanned {
        Ok(Ok(found)) => found,
        Ok(Err(failed)) => return Err(refuse(r, &failed)),
        Err(error) => {
            r.log(Level::Crit, format_args!("opendir() failed {}", Cause(&error)));
            return Err(Step::Status(500));
        }
    };
    for failed in skipped {
        failed.log(r, Level::Crit);
    }
    Ok(entries)
}

impl Failed {
    fn new(call: &'static str, path: &Path, error: io::Error) -> Self {
        Failed { call, path: path.to_owned(), error }
    }

    fn log(&self, r: &Request, level: Level) {
        let (path, cause) = (weir_log::Bytes::of_path(&self.path), Cause(&self.error));
        r.log(level, format_args!("{} \"{path}\" failed {cause}", self.call));
    }
}

fn refuse(r: &Request, failed: &Failed) -> Step {
    let (level, status) = match failed.error.kind() {
        _ if failed.call != "opendir()" => (Level::Crit, 500),
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename => {
            (Level::Error, 404)
        }
        ErrorKind::PermissionDenied => (Level::Error, 403),
        _ => (Level::Crit, 500),
    };
    failed.log(r, level);
    Step::Status(status)
}

/// Scans a directory. Blocks. Also returns entries that were skipped for lack of permission.
fn scan(
    directory: &Path,
    filter: EntryFilter,
) -> Result<(Vec<DirectoryEntry>, Vec<Failed>), Failed> {
    let open = || std::fs::read_dir(directory);
    let listing = file_operation("opendir", directory, open)
        .map_err(|e| Failed::new("opendir()", directory, e))?;
    let (mut entries, mut skipped) = (Vec::new(), Vec::new());
    for item in listing {
        let item = item.map_err(|e| Failed::new("readdir()", directory, e))?;
        let name = item.file_name();
        let is_link = || item.file_type().is_ok_and(|kind| kind.is_symlink());
        if !filter.dotfiles && name.as_bytes().starts_with(b".") || !filter.links && is_link() {
            continue;
        }
        let path = item.path();
        match look(&path) {
            Ok(info) => entries.push(DirectoryEntry { name: name.into_vec(), info }),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                skipped.push(Failed::new("stat()", &path, error));
            }
            Err(error) => return Err(Failed::new("stat()", &path, error)),
        }
    }
    Ok((entries, skipped))
}

fn look(path: &Path) -> io::Result<FileInfo> {
    match rustix::fs::stat(path) {
        Ok(stat) => Ok(stat.into()),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => {
            Ok(rustix::fs::lstat(path)?.into())
        }
        Err(error) => Err(error.into()),
    }
}

impl DirectoryEntry {
    /// Whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.info.kind == FileKind::Directory
    }

    /// Whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.info.kind == FileKind::File
    }
}
