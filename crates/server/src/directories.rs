//! The directories for temporary files: made before anybody serves, given to the workers' user.
//! nginx: ngx_create_paths.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use weir_log::{Cause, Log, log};

use crate::config::User;
use crate::sockets::Failed;

/// All that an owner may do with a directory.
const OWNER: u32 = 0o700;

/// Makes the directories that are missing; those that are there keep what is in them. The one that `own` names is
/// made for those in it.
pub fn create<'a>(
    paths: impl Iterator<Item = &'a Path>,
    own: &Path,
    user: Option<&User>,
    log: &Log,
) -> Result<(), Failed> {
    for path in paths {
        let there = match path.parent() == Some(own) {
            true => std::fs::create_dir_all(own).map_err(|e| ("mkdir()", e)),
            false => Ok(()),
        };
        there.and_then(|()| one(path, user)).map_err(|(call, e)| {
            log!(log, Emerg, None, "{call} \"{}\" failed {}", path.display(), Cause(&e));
            Failed
        })?;
    }
    Ok(())
}

fn one(path: &Path, user: Option<&User>) -> Result<(), (&'static str, io::Error)> {
    match std::fs::DirBuilder::new().mode(OWNER).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(("mkdir()", e)),
        _ => {}
    }
    let Some(user) = user else { return Ok(()) };
    let found = std::fs::metadata(path).map_err(|e| ("stat()", e))?;
    if found.uid() != user.uid {
        std::os::unix::fs::chown(path, Some(user.uid), None).map_err(|e| ("chown()", e))?;
    }
    let mode = found.permissions().mode();
    if mode & OWNER != OWNER {
        let wanted = Permissions::from_mode(mode | OWNER);
        std::fs::set_permissions(path, wanted).map_err(|e| ("chmod()", e))?;
    }
    Ok(())
}
