//! File operations of root in directories that other users may change. path_resolution(7),
//! symlink(7).
//!
//! A user who may write to a directory can put a link into it. If root follows the link, root
//! opens, makes or gives away a file elsewhere. So root follows a link, or uses something other
//! than a plain file, only if no other user can have put it there. Links to the standard output and
//! error of the process are followed in any case, unless these are plain files that would be given
//! away. Each directory of a path is opened before the next name is looked up in it, so nothing
//! changes between a check and its use. A process that is not root needs no such checks.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, PROC_SUPER_MAGIC, Stat, Uid, chmodat, fchmod,
    fchown, fcntl_getfl, fcntl_setfl, fstat, fstatfs, mkdirat, open as open_path, openat,
    readlinkat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The number of links after which a path counts as circular. The kernel's own limit.
const MOST_LINKS: u32 = 40;

/// Links with these targets lead to the files that the process was started with.
const STANDARD: [&[u8]; 4] =
    [b"/dev/stdout", b"/dev/stderr", b"/proc/self/fd/1", b"/proc/self/fd/2"];

/// Bits of a directory's mode. With the sticky bit, only owners remove entries.
const GROUP_WRITES: u32 = 0o020;
const ALL_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// All rights of the owner of a directory.
const OWNER: u32 = 0o700;

/// Opens a file; `mode` applies if `flags` has CREATE. Never waits for the other end of a FIFO: for
/// a FIFO of root without a reader, the result is ENXIO.
///
/// # Errors
///
/// The error of open(2), or `PermissionDenied` with a text if another user may have put the file
/// there.
pub fn open(path: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Errno::ISDIR.into());
    }
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    resolve(path, |dir, name, way| {
        let fd = openat(dir, name, flags | way.follow, mode);
        if fd.as_ref().is_err_and(|e| *e == Errno::NXIO) {
            let path = OFlags::PATH | OFlags::CLOEXEC | way.follow;
            let found = fstat(openat(dir, name, path, Mode::empty())?)?;
            let is_pipe = FileType::from_raw_mode(found.st_mode) == FileType::Fifo;
            if !is_pipe {
                return Err(Errno::OPNOTSUPP.into());
            }
            if !is_from_root(&found, dir)? {
                return Err(refused("no plain file"));
            }
        }
        let fd = fd?;
        let found = fstat(&fd)?;
        let is_plain = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if way.planted && is_plain {
            return Err(refused("a link"));
        }
        if !(is_plain && found.st_nlink == 1 || is_from_root(&found, dir)?) {
            return Err(refused(if is_plain { "a hard link" } else { "no plain file" }));
        }
        if !is_plain {
            fcntl_setfl(&fd, fcntl_getfl(&fd)? - OFlags::NONBLOCK)?;
        }
        Ok(File::from(fd))
    })
}

/// Makes a directory with this mode, regardless of the umask, or uses an existing one. Gives it to
/// `owner`, with all rights.
///
/// # Errors
///
/// The name of the failed call, with its error.
pub fn directory(
    path: &Path,
    mode: u32,
    owner: Option<u32>,
) -> Result<(), (&'static str, io::Error)> {
    let mut call = "mkdir()";
    // The working directory and the root exist.
    if names(path.as_os_str().as_bytes()).is_empty() {
        return Ok(());
    }
    resolve(path, |dir, name, way| {
        call = "mkdir()";
        let made = match mkdirat(dir, name, Mode::from_raw_mode(mode)) {
            Err(Errno::EXIST) => false,
            other => other.map(|()| true)?,
        };
        if !made && owner.is_none() {
            return Ok(());
        }
        call = "open()";
        if !made {
            // Root without CAP_DAC_OVERRIDE, as in containers, cannot read another user's directory.
            let found = fstat(into(dir, name, way.follow)?)?;
            if Some(found.st_uid) == owner && found.st_mode & OWNER == OWNER {
                return Ok(());
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(dir, name, flags | way.follow, Mode::empty())?;
        if made {
            // A user who may change the parent directory may have replaced the new one meanwhile.
            if !is_empty(&fd)? {
                return Err(refused("a directory"));
            }
            call = "chmod()";
            fchmod(&fd, Mode::from_raw_mode(mode))?;
        }
        let Some(owner) = owner else { return Ok(()) };
        let found = fstat(&fd)?;
        if found.st_uid != owner {
            call = "chown()";
            if !made && !is_from_root(&found, dir)? {
                return Err(refused("a directory"));
            }
            fchown(&fd, Some(Uid::from_raw(owner)), None::<Gid>)?;
        }
        if found.st_mode & OWNER != OWNER {
            call = "chmod()";
            fchmod(&fd, Mode::from_raw_mode(found.st_mode | OWNER))?;
        }
        Ok(())
    })
    .map_err(|e| (call, e))
}

/// Removes a name. A link is removed itself.
pub fn remove(path: &Path) -> io::Result<()> {
    resolve(path, |dir, name, _| Ok(unlinkat(dir, name, AtFlags::empty())?))
}

/// Renames the entry at `path` within its directory.
pub fn rename(path: &Path, to: &OsStr) -> io::Result<()> {
    resolve(path, |dir, name, _| Ok(renameat(dir, name, dir, to)?))
}

/// Checks that `path` leads to a directory without a link of another user on the way.
pub fn check(path: &Path) -> io::Result<()> {
    resolve(path, |_, _, _| Ok(()))
}

/// Gives the file of a Unix-domain socket no permissions when bind(2) makes it. [`open_socket`]
/// recognizes it by that.
pub fn mark_socket(socket: &OwnedFd) {
    // If the kernel does not support it, the socket is only recognized by its directory.
    let _ = fchmod(socket, Mode::empty());
}

/// Sets the mode of the Unix-domain socket that was marked and bound to `path`.
///
/// # Errors
///
/// The errors of the system calls, or `PermissionDenied` with a text if another user may have put
/// another socket there.
pub fn open_socket(path: &Path, mode: Mode) -> io::Result<()> {
    resolve(path, |dir, name, _| {
        let fd = openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)?;
        let found = fstat(&fd)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
            return Err(Errno::NOTSOCK.into());
        }
        let is_marked = found.st_mode & 0o7777 == 0 && found.st_nlink == 1;
        let is_own = found.st_uid == geteuid().as_raw();
        if !(is_marked && is_own || is_from_root(&found, dir)?) {
            return Err(refused("a socket"));
        }
        // An O_PATH descriptor has no fchmod(2).
        let by_number = format!("/proc/self/fd/{}", fd.as_raw_fd());
        match rustix::fs::chmod(by_number, mode) {
            // There is no /proc. No other user can put a link into this directory meanwhile.
            Err(Errno::NOENT) if is_from_root(&found, dir)? => {
                Ok(chmodat(dir, name, mode, AtFlags::empty())?)
            }
            done => Ok(done?),
        }
    })
}

/// How the walk reached the last name of a path.
#[derive(Clone, Copy)]
struct PathChecks {
    /// Flags for opening it: whether a link is followed.
    follow: OFlags,
    /// By way of another user's link to the standard output or error.
    planted: bool,
}

/// Walks to the last directory of `path` and calls `last` with it and the last name.
fn resolve<T>(
    path: &Path,
    mut last: impl FnMut(&OwnedFd, &OsStr, PathChecks) -> io::Result<T>,
) -> io::Result<T> {
    let whole = path.as_os_str().as_bytes();
    let mut at = start_of(whole)?;
    let mut rest = names(whole);
    let mut way = PathChecks { follow: OFlags::NOFOLLOW, planted: false };
    let mut links = 0;
    while let Some(name) = rest.pop() {
        let found = match rest.is_empty() {
            true => last(&at, &name, way).map(Ok),
            false => into(&at, &name, OFlags::NOFOLLOW).map(Err),
        };
        let error = match found {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(directory)) => {
                at = directory;
                continue;
            }
            Err(e) => e,
        };
        let (text, planted) = link(&at, &name, error)?;
        way.planted |= planted;
        let Some(text) = text else {
            // The target of a procfs link has no path to walk.
            match rest.is_empty() {
                true => return last(&at, &name, PathChecks { follow: OFlags::empty(), ..way }),
                false => at = into(&at, &name, OFlags::empty())?,
            }
            continue;
        };
        links += 1;
        if links > MOST_LINKS {
            return Err(Errno::LOOP.into());
        }
        if text.starts_with(b"/") {
            at = start_of(&text)?;
        }
        rest.extend(names(&text));
    }
    Err(Errno::ISDIR.into())
}

/// The target of the link that made a step fail with `error`, and whether another user may have put
/// the link there. Fails if root must not follow it. The target is None for a procfs link, which
/// the kernel itself follows.
fn link(at: &OwnedFd, name: &OsStr, error: io::Error) -> io::Result<(Option<Vec<u8>>, bool)> {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    if !matches!(code, Some(Errno::LOOP | Errno::NOTDIR)) {
        return Err(error);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = openat(at, name, flags, Mode::empty())?;
    let found = fstat(&link)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
        return Err(error);
    }
    let text = readlinkat(&link, "", Vec::new())?.into_bytes();
    let planted = !is_from_root(&found, at)?;
    if planted && !STANDARD.contains(&text.as_slice()) {
        return Err(refused("a link"));
    }
    let is_proc = fstatfs(at)?.f_type as u64 == PROC_SUPER_MAGIC as u64;
    Ok(((!is_proc).then_some(text), planted))
}

/// Whether no user other than root can have put `entry` into the directory. True for a process that
/// is not root, since it has no more rights than its user.
fn is_from_root(entry: &Stat, dir: &OwnedFd) -> io::Result<bool> {
    if !geteuid().is_root() {
        return Ok(true);
    }
    let dir = fstat(dir)?;
    let mode = dir.st_mode;
    let kind = FileType::from_raw_mode(entry.st_mode);
    let is_closed = mode & (GROUP_WRITES | ALL_WRITE) == 0;
    // In a sticky directory, other users may add names, and hard links to root's files.
    let is_kept = mode & (ALL_WRITE | STICKY) != ALL_WRITE
        && (kind == FileType::Directory || entry.st_nlink == 1);
    let is_own = entry.st_uid == 0 && (is_closed || is_kept);
    Ok(dir.st_uid == 0 && (is_own || is_closed && kind != FileType::Symlink))
}

fn is_empty(directory: &OwnedFd) -> io::Result<bool> {
    let is_other = |name: &CStr| !matches!(name.to_bytes(), b"." | b"..");
    let mut entries = Dir::read_from(directory)?;
    Ok(!entries.any(|entry| entry.is_ok_and(|entry| is_other(entry.file_name()))))
}

fn refused(what: &str) -> io::Error {
    let text = format!("{what} that a user other than root may have put there");
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

fn start_of(path: &[u8]) -> io::Result<OwnedFd> {
    let start = if path.starts_with(b"/") { "/" } else { "." };
    Ok(open_path(start, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn into(at: &OwnedFd, name: &OsStr, follow: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(at, name, flags | follow, Mode::empty())?)
}

/// The names of a path in reverse order.
fn names(path: &[u8]) -> Vec<OsString> {
    let words = path.split(|byte| *byte == b'/').filter(|word| !word.is_empty() && *word != b".");
    words.rev().map(|word| OsString::from_vec(word.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
    use std::path::PathBuf;

    use super::*;

    /// A directory of one test, removed at its end.
    struct GuardedDir(PathBuf);

    impl GuardedDir {
        fn new(name: &str) -> GuardedDir {
            let path = std::env::temp_dir().join(format!("weir-sys-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            GuardedDir(path)
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for GuardedDir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn append(path: &Path) -> io::Result<File> {
        open(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, Mode::from_raw_mode(0o644))
    }

    #[test]
    fn links_are_followed_as_the_kernel_follows_them() {
        let place = GuardedDir::new("links");
        fs::create_dir_all(place.at("a/b")).unwrap();
        symlink("b/../b", place.at("a/c")).unwrap();
        symlink(place.at("a/c/file"), place.at("a/b/again")).unwrap();
        symlink("again", place.at("a/b/and-again")).unwrap();
        append(&place.at("a/c/and-again")).unwrap().write_all(b"text").unwrap();
        assert_eq!(fs::read(place.at("a/b/file")).unwrap(), b"text");
        symlink("round", place.at("round")).unwrap();
        let errno = |path: &str| append(&place.at(path)).unwrap_err().raw_os_error().unwrap();
        assert_eq!(errno("round"), Errno::LOOP.raw_os_error());
        assert_eq!(errno("a/b/file/x"), Errno::NOTDIR.raw_os_error());
        assert_eq!(errno("nowhere/x"), Errno::NOENT.raw_os_error());
        assert_eq!(errno("a"), Errno::ISDIR.raw_os_error());
        assert_eq!(errno("new/"), Errno::ISDIR.raw_os_error());
        assert!(append(Path::new("/dev/null")).is_ok());
        rename(&place.at("a/c/file"), OsStr::new("other")).unwrap();
        remove(&place.at("a/b/again")).unwrap();
        assert!(
            place.at("a/b/other").is_file() && fs::symlink_metadata(place.at("a/b/again")).is_err()
        );
    }

    #[test]
    fn a_pipe_without_a_reader_is_not_waited_for() {
        let place = GuardedDir::new("pipe");
        let (path, kind) = (place.at("pipe"), FileType::Fifo);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, Mode::RWXU, 0).unwrap();
        assert_eq!(append(&path).unwrap_err().raw_os_error(), Some(Errno::NXIO.raw_os_error()));
        let _reader = open(&path, OFlags::RDONLY, Mode::empty()).unwrap();
        assert!(!fcntl_getfl(append(&path).unwrap()).unwrap().contains(OFlags::NONBLOCK));
    }

    /// The owners and modes of a directory in which others may have put a link.
    #[test]
    fn what_others_may_have_put_is_refused() {
        if !geteuid().is_root() {
            return println!("not run: only root has something to guard");
        }
        let place = GuardedDir::new("owners");
        fs::write(place.at("target"), "").unwrap();
        let follows = |name: &str, owner: u32, mode: u32, links: u32| {
            let dir = place.at(name);
            fs::create_dir(&dir).unwrap();
            symlink("../target", dir.join("link")).unwrap();
            lchown(dir.join("link"), Some(links), Some(links)).unwrap();
            lchown(&dir, Some(owner), Some(5)).unwrap();
            fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
            append(&dir.join("link")).is_ok()
        };
        assert!(follows("closed", 0, 0o755, 0));
        assert!(!follows("closed, another's link", 0, 0o755, 1));
        assert!(follows("of a group", 0, 0o775, 0));
        assert!(!follows("of a group, another's link", 0, 0o775, 1));
        assert!(follows("sticky", 0, 0o1777, 0));
        assert!(!follows("sticky, another's link", 0, 0o1777, 1));
        assert!(!follows("of all", 0, 0o777, 0));
        assert!(!follows("another's", 1, 0o755, 0));
        assert!(!follows("another's, with sticky bit", 1, 0o1755, 0));
    }

    #[test]
    fn a_directory_is_another_s_only_where_root_may_have_made_it() {
        if !geteuid().is_root() {
            return println!("not run: only root has something to guard");
        }
        let place = GuardedDir::new("directories");
        let about = |path: &Path| fs::metadata(path).map(|m| (m.uid(), m.mode() & 0o7777)).unwrap();
        directory(&place.at("new"), 0o700, Some(1)).unwrap();
        assert_eq!(about(&place.at("new")), (1, 0o700));
        // In a directory of root, the existing directory is given away.
        directory(&place.at("new"), 0o700, Some(2)).unwrap();
        assert_eq!(about(&place.at("new")), (2, 0o700));
        // In another user's directory, directories are made, and existing ones of the right owner
        // are used.
        directory(&place.at("new/inside"), 0o700, Some(2)).unwrap();
        directory(&place.at("new/inside"), 0o700, Some(2)).unwrap();
        fs::create_dir(place.at("new/root-s")).unwrap();
        symlink(place.at("new/root-s"), place.at("new/link")).unwrap();
        for name in ["root-s", "link"] {
            let (_, e) = directory(&place.at("new").join(name), 0o700, Some(2)).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{name}: {e}");
        }
        assert_eq!(about(&place.at("new/root-s")).0, 0);
    }
}
