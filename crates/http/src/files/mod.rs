//! Opens and examines files for requests, without blocking the loop.
//!
//! A loop opens a file once per turn. All requests of a turn arrived before it began, so they may
//! share the open file. `open_file_cache` keeps files for longer.

#![expect(clippy::disallowed_methods, reason = "this is the room")]

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::Errno;
use weir_engine::OpenHow;
use weir_log::Level;

use crate::phases::Step;
use crate::request::Request;

pub mod aio;
pub mod cache;
mod climb;
pub mod directory;
pub mod disk;
mod doer;
mod opened;
mod path;
pub mod permissions;
pub mod realpath;
pub mod symlinks;
pub mod temp_file;
mod turn;
mod walk;

pub use cache::Caches;
pub use climb::refused as climbs;
pub use doer::doer;
pub use opened::{FileError, Opened, Stat};
use symlinks::Refuse;
pub use turn::TurnFiles;
pub use walk::LinkRule;

impl FileError {
    /// Logs the error as nginx does.
    pub fn log(&self, r: &Request, level: Level, path: &[u8]) {
        let path = weir_log::Bytes(path);
        r.log(level, format_args!("{} \"{path}\" failed {self}", self.call));
    }
}

/// Opens a file for reading.
pub async fn open(r: &mut Request, path: &[u8]) -> Result<Opened, FileError> {
    if let Some(opened) = remembered(r, path) {
        return opened;
    }
    let conf = &r.conf().core;
    if conf.symlinks.refuse != Refuse::Nothing {
        return open_without_links(r, path).await;
    }
    let now = r.event_loop.handle.now();
    let cache = conf.open_files.cache.is_some();
    let opened = open_plain(r, path).await;
    if cache {
        r.event_loop.file_caches.borrow_mut().put(&conf.open_files, path, &opened, now);
    }
    // If the loop has waited, the file may be older than the requests of the current turn.
    if let Ok(opened) = &opened
        && r.event_loop.handle.now() == now
    {
        remember(r, path, opened);
    }
    opened
}

/// Opens a file with `disable_symlinks`. In `open_file_cache` the file has a key with the rule, since
/// locations that share the cache may have different rules.
async fn open_without_links(r: &mut Request, path: &[u8]) -> Result<Opened, FileError> {
    let (conf, rule) = (&r.conf().core, LinkRule::of(r));
    if conf.open_files.cache.is_none() {
        return walk::open(r, rule, path, OFlags::empty()).await;
    }
    let (key, now) = (rule.cache_key(path), r.event_loop.handle.now());
    let known = r.event_loop.file_caches.borrow_mut().get(&conf.open_files, &key, now);
    if let Some(known) = known {
        return known;
    }
    let opened = walk::open(r, rule, path, OFlags::empty()).await;
    r.event_loop.file_caches.borrow_mut().put(&conf.open_files, &key, &opened, now);
    opened
}

/// Keeps a file until the end of the turn.
fn remember(r: &Request, path: &[u8], opened: &Opened) {
    r.event_loop.common.turn_files.borrow_mut().put(path, opened);
}

/// The open file from this turn or from `open_file_cache`.
pub fn remembered(r: &Request, path: &[u8]) -> Option<Result<Opened, FileError>> {
    let conf = &r.conf().core;
    if conf.symlinks.refuse != Refuse::Nothing {
        return None;
    }
    if let Some(opened) = r.event_loop.common.turn_files.borrow().get(path) {
        return Some(Ok(opened));
    }
    conf.open_files.cache.as_ref()?;
    let now = r.event_loop.handle.now();
    let known = r.event_loop.file_caches.borrow_mut().get(&conf.open_files, path, now);
    if let Some(Ok(opened)) = &known {
        remember(r, path, opened);
    }
    known
}

/// A small file that was opened and read in this turn. It needs no system call.
pub fn whole(r: &Request, path: &[u8]) -> Option<(Opened, Bytes)> {
    if r.conf().core.symlinks.refuse != Refuse::Nothing {
        return None;
    }
    r.event_loop.common.turn_files.borrow().whole(path)
}

async fn open_plain(r: &mut Request, path: &[u8]) -> Result<Opened, FileError> {
    let path = Path::new(OsStr::from_bytes(path));
    let doer = doer(r);
    let opened = r.event_loop.handle.files().open_by(doer, path, &OpenHow::read()).await;
    match opened {
        Ok((file, info)) => Ok(Opened { file, info }),
        Err(error) => Err(FileError::new(&error, "open()")),
    }
}

/// The attributes of the file at a path.
pub async fn stat(r: &mut Request, path: &[u8]) -> Result<Stat, FileError> {
    if let Some(opened) = remembered(r, path) {
        return opened.map(|opened| Stat(opened.info));
    }
    let conf = &r.conf().core;
    if conf.symlinks.refuse != Refuse::Nothing {
        // As in nginx, a file that cannot be read is not found here either.
        return open_without_links(r, path).await.map(|opened| Stat(opened.info));
    }
    if conf.open_files.cache.is_some() {
        // The cache keeps open files. A file that is tested is usually opened next.
        return open(r, path).await.map(|opened| Stat(opened.info));
    }
    let (doer, path) = (doer(r), Path::new(OsStr::from_bytes(path)));
    let found = r.event_loop.handle.files().stat_by(doer, path).await;
    found.map(Stat).map_err(|error| FileError::new(&error, "stat()"))
}

/// Checks `disable_symlinks` before a file is created, changed or removed. A refusal is logged and
/// returned as a step.
pub async fn check_links(r: &mut Request, path: &[u8]) -> Result<(), Step> {
    if r.conf().core.symlinks.refuse == Refuse::Nothing {
        return Ok(());
    }
    let rule = LinkRule::of(r);
    match walk::open(r, rule, path, OFlags::PATH).await {
        // Without following links, opening a link as a directory fails with ENOTDIR.
        Err(error) if error.is_symlink() || error.errno == Errno::NOTDIR => {
            error.log(r, Level::Error, path);
            Err(Step::Status(403))
        }
        // A missing file is not behind a link. Other errors will occur again in the operation
        // itself.
        _ => Ok(()),
    }
}

/// The content of a small file.
pub async fn content(r: &Request, path: &[u8], opened: &Opened) -> io::Result<Bytes> {
    let handle = &r.event_loop.handle;
    if let Some(content) = r.event_loop.common.turn_files.borrow().content(path, opened) {
        return Ok(content);
    }
    let len = usize::try_from(opened.info.len).unwrap_or(usize::MAX);
    let mut buf = Vec::with_capacity(len);
    while buf.len() < len {
        let at = buf.len() as u64;
        let (result, back) = handle.files().read_at(&opened.file, buf, at).await;
        buf = back;
        if result? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    buf.truncate(len);
    let content = Bytes::from(buf);
    r.event_loop.common.turn_files.borrow_mut().put_content(path, opened, &content);
    Ok(content)
}
