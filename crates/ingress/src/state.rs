//! The files of certificates and passwords.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes the files that do not exist yet, for their owner alone. A file's name has the digest of
/// its content, so an existing file is right.
pub fn write(files: &BTreeMap<PathBuf, Arc<[u8]>>) -> io::Result<()> {
    for (path, content) in files {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o711).create(folder)?;
        }
        if fs::symlink_metadata(path).is_ok() {
            continue;
        }
        // Written under another name first, so that a killed process leaves no incomplete file.
        let part = path.with_extension("part");
        let written = create(&part, content).and_then(|()| fs::rename(&part, path));
        if written.is_err() {
            // The disk may be full.
            let _ = fs::remove_file(&part);
        }
        written?;
    }
    Ok(())
}

fn create(path: &Path, content: &[u8]) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}
