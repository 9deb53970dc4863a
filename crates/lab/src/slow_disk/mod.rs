//! A file system with slow operations: it shows another directory, and a share of chosen operations
//! takes longer. A seed makes a run repeatable.
//!
//! A delayed operation waits on a thread of its own, so that it delays only callers that wait for
//! it. What stands still behind one slow operation is then the fault of the server under test. FUSE
//! needs `/dev/fuse` and the right to mount, or the program `fusermount3`; libfuse is not needed.

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

/// Threads that take requests from the kernel. None of them ever waits for a delay.
const THREADS: usize = 4;

/// A mounted slow disk; unmounted when it is dropped.
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
    /// Where FUSE is not there or not allowed, and where either is no directory.
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

    /// How many operations were delayed so far, and how many might have been.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.faults.counts()
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        if session.umount_and_join().is_err() {
            // A process still has a file open there. The mount goes away with the last of them.
            let _ = rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}
