//! Copies a directory and its contents, for COPY, and for MOVE to another file system.

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
    /// Copies the contents of a directory into an existing one. As in nginx, links are copied as
    /// their targets. A failure is logged, and the rest is copied. Returns false if anything was
    /// not copied.
    pub fn copy_tree(&mut self, from: &Path, to: &Path, links: &LinkRule) -> DiskResult<bool> {
        let roots = [from, to].map(|path| fs::metadata(path).map(|info| identity(&info)));
        let ancestors = roots.into_iter().flatten().collect();
        let mut copy = TreeCopy { disk: self, links, ancestors, complete: true };
        copy.directory(from, to)?;
        Ok(copy.complete)
    }
}

/// Device and inode: the identity of a file under any name.
type Identity = (u64, u64);

fn identity(info: &Metadata) -> Identity {
    (info.dev(), info.ino())
}

/// A running copy.
struct TreeCopy<'d> {
    disk: &'d mut Disk,
    links: &'d LinkRule,
    /// The destination, and the directories above the current one. The copy of a link to one of
    /// them would not end.
    ancestors: Vec<Identity>,
    /// Whether nothing has failed so far.
    complete: bool,
}

impl TreeCopy<'_> {
    fn directory(&mut self, from: &Path, to: &Path) -> DiskResult<()> {
        for entry in self.disk.entries(from)? {
            let Some(name) = entry.file_name() else { continue };
            let copied = self.entry(&entry, &to.join(name));
            self.complete &= copied.is_ok();
        }
        Ok(())
    }

    fn entry(&mut self, from: &Path, to: &Path) -> DiskResult<()> {
        let info = self.target_info(from)?;
        if info.is_dir() {
            return self.subdirectory(from, to, &info);
        }
        if info.is_file() {
            return self.disk.copy_file(from, to, info.mode() & 0o777, modified(&info));
        }
        // As in nginx, pipes, sockets and devices are not copied.
        Err(DiskError::Failed)
    }

    /// The attributes of a file, or of the target of a link if it may be followed.
    fn target_info(&mut self, path: &Path) -> DiskResult<Metadata> {
        let info = self.disk.link_info(path).ok_or(DiskError::Failed)?;
        if !info.is_symlink() {
            return Ok(info);
        }
        let allowed = self.links.check(path);
        allowed.map_err(|e| self.disk.broken(Level::Error, "openat()", path, &e.into()))?;
        fs::metadata(path).map_err(|e| self.disk.broken(Level::Crit, "stat()", path, &e))
    }

    fn subdirectory(&mut self, from: &Path, to: &Path, info: &Metadata) -> DiskResult<()> {
        if self.ancestors.contains(&identity(info)) {
            let shown = weir_log::Bytes::of_path(from);
            let text = format!("\"{shown}\" leads back to a directory that is being copied");
            self.disk.note(Level::Error, text);
            return Err(DiskError::Failed);
        }
        let mode = directory_access(info.mode() & 0o777);
        let made = self.disk.make_directory(to, mode, DiskError::Missing);
        self.disk.carry_properties(from, to);
        self.ancestors.push(identity(info));
        let copied = self.directory(from, to);
        self.ancestors.pop();
        let timed = File::open(to).and_then(|dir| set_time(&dir, modified(info)));
        if let Err(e) = timed {
            self.disk.broken(Level::Alert, "utimes()", to, &e);
        }
        // An existing directory is no failure. Its contents are copied all the same.
        made.or_else(|e| if e == DiskError::Exists { Ok(()) } else { Err(e) }).and(copied)
    }
}
