//! The copy of a directory with all that is in it, for COPY, and for MOVE to another file system.

#![expect(
    clippy::disallowed_methods,
    reason = "names come from `map_path_into`, links are asked about before"
)]

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use weir_log::Level;

use crate::files::LinkRule;
use crate::files::disk::{Disk, DiskError, DiskResult, directory_access, modified, set_time};

impl Disk {
    /// Copies what is in one directory into another that is there. As with nginx, links are copied as what they lead to.
    /// What fails is noted, and the rest goes on. False if something was not copied.
    pub fn copy_tree(&mut self, from: &Path, to: &Path, links: &LinkRule) -> DiskResult<bool> {
        let roots = [from, to].map(|path| fs::metadata(path).map(|info| identity(&info)));
        let above = roots.into_iter().flatten().collect();
        let mut copy = TreeCopy { disk: self, links, above, whole: true };
        copy.directory(from, to)?;
        Ok(copy.whole)
    }
}

/// A file, whatever it is called.
type Identity = (u64, u64);

fn identity(info: &Metadata) -> Identity {
    (info.dev(), info.ino())
}

/// A copy under way.
struct TreeCopy<'d> {
    disk: &'d mut Disk,
    links: &'d LinkRule,
    /// The destination, and the directories on the way to the current one. The copy of a link to one of them would not end.
    above: Vec<Identity>,
    /// Nothing has failed so far.
    whole: bool,
}

impl TreeCopy<'_> {
    fn directory(&mut self, from: &Path, to: &Path) -> DiskResult<()> {
        for entry in self.disk.entries(from)? {
            let Some(name) = entry.file_name() else { continue };
            let copied = self.entry(&entry, &to.join(name));
            self.whole &= copied.is_ok();
        }
        Ok(())
    }

    fn entry(&mut self, from: &Path, to: &Path) -> DiskResult<()> {
        let info = self.look(from)?;
        if info.is_dir() {
            return self.subdirectory(from, to, &info);
        }
        if info.is_file() {
            return self.disk.copy_file(from, to, info.mode() & 0o777, modified(&info));
        }
        // Pipes, sockets and devices are left out, as with nginx.
        Err(DiskError::Failed)
    }

    /// What a name leads to, if it may be followed.
    fn look(&mut self, path: &Path) -> DiskResult<Metadata> {
        let info = self.disk.link_info(path).ok_or(DiskError::Failed)?;
        if !info.is_symlink() {
            return Ok(info);
        }
        let allowed = self.links.check(path);
        allowed.map_err(|e| self.disk.broken(Level::Error, "openat()", path, &e.into()))?;
        fs::metadata(path).map_err(|e| self.disk.broken(Level::Crit, "stat()", path, &e))
    }

    fn subdirectory(&mut self, from: &Path, to: &Path, info: &Metadata) -> DiskResult<()> {
        if self.above.contains(&identity(info)) {
            let shown = weir_log::Bytes::of_path(from);
            let text = format!("\"{shown}\" leads back to a directory that is being copied");
            self.disk.note(Level::Error, text);
            return Err(DiskError::Failed);
        }
        let mode = directory_access(info.mode() & 0o777);
        let made = self.disk.make_directory(to, mode, DiskError::Missing);
        self.disk.carry_properties(from, to);
        self.above.push(identity(info));
        let copied = self.directory(from, to);
        self.above.pop();
        let timed = File::open(to).and_then(|dir| set_time(&dir, modified(info)));
        if let Err(e) = timed {
            self.disk.broken(Level::Alert, "utimes()", to, &e);
        }
        // It may be there; what is in it is copied all the same.
        made.or_else(|e| if e == DiskError::Exists { Ok(()) } else { Err(e) }).and(copied)
    }
}
