//! `disable_symlinks`: opens a path element by element and checks each for links.
//! nginx: ngx_open_file_wrapper in ngx_open_file_cache.c.

#![expect(clippy::disallowed_methods, reason = "this is the room")]

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use weir_engine::{FileInfo, Rank, file_operation};

use super::opened::{FileError, Opened};
use crate::files::symlinks::Refuse;
use crate::request::Request;

/// Opens a file unless a refused symbolic link is in its path. Runs on a thread, since each element
/// may need the disk.
pub async fn open(
    r: &mut Request,
    rule: LinkRule,
    path: &[u8],
    flags: OFlags,
) -> Result<Opened, FileError> {
    let path = path.to_vec();
    let doer = super::doer::doer(r);
    let work = move || {
        let place = Path::new(OsStr::from_bytes(&path));
        file_operation("openat", place, || rule.walk(&path, flags))
    };
    match r.event_loop.handle.files().run_by(&doer, Rank::Read, "openat", work).await {
        Ok(Ok((fd, info))) => {
            Ok(Opened { file: r.event_loop.handle.files().hold(fd.into()), info })
        }
        Ok(Err(errno)) => Err(FileError { errno, call: "openat()" }),
        Err(error) => Err(FileError::new(&error, "openat()")),
    }
}

/// The rule of `disable_symlinks` for a request, for work on other threads.
#[derive(Debug)]
pub struct LinkRule {
    refuse: Refuse,
    /// `from=`: the trusted leading part of paths.
    from: Option<Vec<u8>>,
}

impl LinkRule {
    /// The rule of the request's location.
    pub fn of(r: &mut Request) -> LinkRule {
        let symlinks = &r.conf().core.symlinks;
        let from = symlinks.from.as_ref().map(|from| from.eval(r).into_owned());
        LinkRule { refuse: symlinks.refuse, from }
    }

    /// The key of a path and this rule in `open_file_cache`. A path has no NUL, so the key is no
    /// other file's.
    pub fn cache_key(&self, path: &[u8]) -> Vec<u8> {
        let refuse: &[u8] = match self.refuse {
            Refuse::Nothing => b"\0",
            Refuse::NotOwner => b"\0o",
            Refuse::All => b"\0a",
        };
        let from = self.from.as_deref();
        let mark: &[u8] = if from.is_some() { b"\0" } else { b"" };
        [path, refuse, mark, from.unwrap_or_default()].concat()
    }

    /// Checks that the path has no refused link. Blocks.
    pub fn check(&self, path: &Path) -> Result<(), Errno> {
        match self.refuse {
            Refuse::Nothing => Ok(()),
            _ => self.walk(path.as_os_str().as_bytes(), OFlags::PATH).map(|_| ()),
        }
    }

    fn walk(&self, path: &[u8], flags: OFlags) -> Result<(OwnedFd, FileInfo), Errno> {
        let trusted = match &self.from {
            Some(from) => trusted_part(from, path),
            None => Some(0),
        };
        match trusted {
            Some(trusted) => walk(path, trusted, self.refuse, flags),
            // The whole path is trusted.
            None => walk(path, 0, Refuse::Nothing, flags),
        }
    }
}

/// The length of the part of the path that `from=` trusts. `None` if all of it is trusted.
fn trusted_part(from: &[u8], path: &[u8]) -> Option<usize> {
    match path.strip_prefix(from) {
        Some([]) if !from.is_empty() => None,
        Some([b'/', ..]) => Some(from.len()),
        Some(_) if from.ends_with(b"/") => Some(from.len() - 1),
        _ => Some(0),
    }
}

fn walk(
    path: &[u8],
    trusted: usize,
    refuse: Refuse,
    flags: OFlags,
) -> Result<(OwnedFd, FileInfo), Errno> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let (first, rest) = path.split_at(trusted);
    let first = match first {
        [] if rest.starts_with(b"/") => b"/",
        [] => b".".as_slice(),
        first => first,
    };
    let mut at = rustix::fs::open(first, directory, Mode::empty())?;
    let mut names = rest.split(|b| *b == b'/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let last = names.peek().is_none();
        let flags = match last {
            true if rest.ends_with(b"/") => directory,
            true => OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | flags,
            false => directory,
        };
        at = step(&at, name, flags, refuse)?;
    }
    let info = rustix::fs::fstat(&at)?.into();
    Ok((at, info))
}

fn step(at: &OwnedFd, name: &[u8], flags: OFlags, refuse: Refuse) -> Result<OwnedFd, Errno> {
    let plain = rustix::fs::openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty());
    let is_link = |fd: &OwnedFd| {
        let kind = rustix::fs::fstat(fd).map(|s| FileType::from_raw_mode(s.st_mode));
        kind == Ok(FileType::Symlink)
    };
    match plain {
        Ok(fd) if flags.contains(OFlags::PATH) && is_link(&fd) => {}
        Ok(fd) => return Ok(fd),
        Err(Errno::LOOP | Errno::MLINK | Errno::NOTDIR) if refuse != Refuse::All => {}
        Err(error) => return Err(error),
    }
    if refuse == Refuse::All {
        return Err(Errno::LOOP);
    }
    let link = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let target = rustix::fs::openat(at, name, flags, Mode::empty())?;
    if refuse == Refuse::NotOwner && rustix::fs::fstat(&target)?.st_uid != link.st_uid {
        return Err(Errno::LOOP);
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory with `real/file`, `link -> real` and `real/twin -> file`.
    fn place() -> (std::path::PathBuf, Vec<u8>) {
        use std::os::unix::ffi::OsStringExt;
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("weir-walk-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name).canonicalize_or_create();
        std::fs::create_dir(dir.join("real")).unwrap();
        std::fs::write(dir.join("real/file"), "x").unwrap();
        symlink(dir.join("real"), dir.join("link")).unwrap();
        symlink("file", dir.join("real/twin")).unwrap();
        let bytes = dir.clone().into_os_string().into_vec();
        (dir, bytes)
    }

    trait Create {
        fn canonicalize_or_create(self) -> std::path::PathBuf;
    }

    impl Create for std::path::PathBuf {
        fn canonicalize_or_create(self) -> std::path::PathBuf {
            std::fs::create_dir(&self).unwrap();
            self.canonicalize().unwrap()
        }
    }

    fn try_open(dir: &[u8], below: &str, trusted: bool, refuse: Refuse) -> Result<u64, Errno> {
        let path = [dir, b"/", below.as_bytes()].concat();
        let trusted =
            if trusted { path.len() - below.split('/').next_back().unwrap_or("").len() } else { 0 };
        walk(&path, trusted, refuse, OFlags::empty()).map(|(_, info)| info.len)
    }

    #[test]
    fn links_end_the_walk() {
        let (dir, bytes) = place();
        assert_eq!(try_open(&bytes, "real/file", false, Refuse::All), Ok(1));
        assert!(try_open(&bytes, "link/file", false, Refuse::All).is_err());
        assert_eq!(try_open(&bytes, "real/twin", false, Refuse::All), Err(Errno::LOOP));
        assert_eq!(try_open(&bytes, "real/none", false, Refuse::All), Err(Errno::NOENT));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_owners_own_links_may_pass() {
        let (dir, bytes) = place();
        assert_eq!(try_open(&bytes, "link/file", false, Refuse::NotOwner), Ok(1));
        assert_eq!(try_open(&bytes, "real/twin", false, Refuse::NotOwner), Ok(1));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_trusted_part_may_hold_links() {
        let (dir, bytes) = place();
        assert_eq!(try_open(&bytes, "link/file", true, Refuse::All), Ok(1));
        assert_eq!(try_open(&bytes, "link/twin", true, Refuse::All), Err(Errno::LOOP));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
