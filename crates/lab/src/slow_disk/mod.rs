//! A FUSE file system with slow operations. It shows another directory and delays a share of chosen
//! operations. A seed makes a run repeatable.
//!
//! A delayed operation waits on a thread of its own, so that it delays only its own callers. If
//! other work stops behind a slow operation, that is the fault of the server under test. FUSE needs
//! `/dev/fuse` and the right to mount, or the program `fusermount3`, but not libfuse.

mod command;
mod delays;
mod disk;
mod file_system;
mod tree;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};

pub(crate) use command::{Options, run};
pub(crate) use delays::{Delays, Operation, Share, Spread};

use delays::Faults;
use disk::Disk;
use file_system::FileSystem;

/// Threads that receive requests from the kernel. They never wait for a delay.
const THREADS: usize = 4;

/// A mounted slow disk. It is unmounted when this is dropped.
#[derive(Debug)]
pub(crate) struct SlowDisk {
    session: Option<BackgroundSession>,
    mount: PathBuf,
    faults: Arc<Faults>,
}

impl SlowDisk {
    /// Shows the directory `source` at `mount`.
    ///
    /// # Errors
    ///
    /// FUSE is missing or not permitted, or one of the paths is not a directory.
    pub(crate) fn mount(source: &Path, mount: &Path, delays: Delays) -> io::Result<SlowDisk> {
        let faults = Arc::new(Faults::new(delays));
        let disk = Disk::new(source.canonicalize()?);
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        config.acl = SessionACL::All;
        config.mount_options = vec![
            MountOption::FSName("weir-slowdisk".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoDev,
            MountOption::NoSuid,
        ];
        let system = FileSystem::new(disk, Arc::clone(&faults));
        let session = Some(fuser::spawn_mount(system, mount, &config)?);
        Ok(SlowDisk { session, mount: mount.to_owned(), faults })
    }

    /// Switches the delays on or off.
    pub(crate) fn set_slow(&self, slow: bool) {
        self.faults.set_slow(slow);
    }

    /// Whether operations are delayed.
    pub(crate) fn is_slow(&self) -> bool {
        self.faults.is_slow()
    }

    /// The number of delayed operations, and of those that could have been.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.faults.counts()
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        if session.umount_and_join().is_err() {
            // A process still has a file open. The kernel unmounts once the last one is closed.
            let _ = rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}
