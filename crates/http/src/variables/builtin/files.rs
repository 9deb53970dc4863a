//! Where the request's files are.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use weir_engine::OpenHow;
use weir_log::{Cause, Level};

use super::{Read, put};
use crate::request::Request;

pub const TABLE: &[(&str, Read)] = &[
    ("request_filename", |r, out| {
        let core = &r.conf().core;
        core.map_path_into(r, out);
        true
    }),
    ("document_root", |r, out| {
        let core = &r.conf().core;
        core.root_into(r, out);
        true
    }),
    ("realpath_root", realpath_root),
    ("request_body_file", request_body_file),
];

fn request_body_file(r: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(file) = &r.body.file else { return false };
    out.extend_from_slice(file.file.path.as_os_str().as_encoded_bytes());
    true
}

/// The root without symbolic links in it. The kernel is asked for what it has in memory, which after the first
/// request is the way to the root; only a way that it does not know is walked on the loop.
fn realpath_root(r: &mut Request, out: &mut Vec<u8>) -> bool {
    use std::os::unix::ffi::OsStringExt;
    let core = &r.conf().core;
    let mut root = Vec::new();
    core.root_into(r, &mut root);
    let root = PathBuf::from(std::ffi::OsString::from_vec(root));
    match known_realpath(r, &root).map_or_else(|| walk(&root), Ok) {
        Ok(path) => put(out, path.as_os_str().as_bytes()),
        Err(error) => {
            let (root, cause) = (root.display(), Cause(&error));
            r.log(Level::Crit, format_args!("realpath() \"{root}\" failed {cause}"));
            false
        }
    }
}

/// An open descriptor knows its path.
fn known_realpath(r: &Request, root: &Path) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let how = OpenHow { flags, mode: Mode::empty(), resolve: ResolveFlags::empty() };
    let (fd, _) = r.worker.handle.files().open_now(root, &how)?.ok()?;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let path = rustix::fs::readlink(link, Vec::new()).ok()?;
    let path = path.to_bytes();
    // A directory that was removed since has no path any more.
    let here = path.starts_with(b"/") && !path.ends_with(b" (deleted)");
    here.then(|| Path::new(std::ffi::OsStr::from_bytes(path)).to_owned())
}

fn walk(root: &Path) -> std::io::Result<PathBuf> {
    std::fs::canonicalize(root)
}
