//! `$realpath_root`: the root with symbolic links resolved.
//!
//! Variables are evaluated without waiting, and a loop must not read the disk for path elements
//! that the kernel has not cached. So a thread resolves the root before the handlers of a phase
//! run, if the site uses the variable.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use weir_engine::{Rank, file_operation};
use weir_log::{Cause, Level};

use crate::request::Request;
use crate::request::contexts::KnownRoot;

/// Resolves the root in advance, unless it is known.
pub async fn prepare(r: &mut Request) {
    let root = peek_root(r);
    if r.contexts.realpath.as_ref().is_some_and(|known| known.root == root)
        || path_in_kernel(r, &root).is_some()
    {
        return;
    }
    let (doer, path) = (super::doer::doer(r), root.clone());
    let walk = move || file_operation("realpath", &*path, || std::fs::canonicalize(&path));
    let walked = r.event_loop.handle.files().run_by(&doer, Rank::Read, "realpath", walk).await;
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
    let real = walked.flatten().map_err(errno);
    r.contexts.realpath = Some(Box::new(KnownRoot { root, real }));
}

/// Appends the value of the variable.
pub fn value(r: &mut Request, out: &mut Vec<u8>) -> bool {
    let root = root(r);
    let known = r.contexts.realpath.as_deref().filter(|known| known.root == root);
    let real = match known {
        Some(known) => known.real.clone(),
        None => path_in_kernel(r, &root).ok_or(Errno::AGAIN),
    };
    match real {
        Ok(real) => out.extend_from_slice(real.as_os_str().as_bytes()),
        Err(errno) => {
            let (root, error) = (root.display(), errno.into());
            let cause = Cause(&error);
            r.log(Level::Crit, format_args!("realpath() \"{root}\" failed {cause}"));
            return false;
        }
    }
    true
}

fn root(r: &mut Request) -> PathBuf {
    let core = &r.conf().core;
    let mut root = Vec::new();
    core.root_into(r, &mut root);
    PathBuf::from(OsString::from_vec(root))
}

/// The current root. Variables that it evaluates are not cached and nothing is logged, since the
/// configuration has not used them yet.
fn peek_root(r: &mut Request) -> PathBuf {
    if r.conf().core.root.value.constant().is_some() {
        return root(r);
    }
    let copy = r.values.copy();
    let values = std::mem::replace(&mut r.values, copy);
    let captures = r.captures.clone();
    r.contexts.is_silent = true;
    let root = root(r);
    r.contexts.is_silent = false;
    (r.values, r.captures) = (values, captures);
    root
}

/// The root as the kernel knows it, without waiting: a descriptor of a cached directory has a path.
fn path_in_kernel(r: &Request, root: &Path) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    let fd = r.event_loop.handle.files().directory_now(root)?;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let path = rustix::fs::readlink(link, Vec::new()).ok()?;
    let path = path.to_bytes();
    // A removed directory has no path.
    let here = path.starts_with(b"/") && !path.ends_with(b" (deleted)");
    here.then(|| Path::new(OsStr::from_bytes(path)).to_owned())
}
