//! Certificates and password files on disk.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

/// Writes the files that are not there yet, for their owner alone. A file's name tells its content, so one that is
/// there is right.
pub fn write(files: &BTreeMap<PathBuf, Arc<[u8]>>) -> io::Result<()> {
    for (path, content) in files {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o711).create(folder)?;
        }
        if fs::symlink_metadata(path).is_ok() {
            continue;
        }
        // Under another name first, so that a killed process leaves no half of a file under the right one.
        let part = path.with_extension("part");
        let _ = fs::remove_file(&part);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
    }
    Ok(())
}
