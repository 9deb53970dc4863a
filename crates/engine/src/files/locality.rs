//! Which paths can be opened without asking a server.
//!
//! With `RESOLVE_CACHED` the kernel walks the *path* in memory. Opening a file of FUSE or NFS asks
//! a server all the same. While only local file systems are mounted, no path needs a check.
//! Otherwise the path is first opened with `O_PATH`, which asks no server. The device of the result
//! is then looked up in the table of mounts.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use weir_sys::poll::{PollSet, Polled};

use crate::clock::coarse_nanos;

/// How often the table of mounts is checked for changes, in nanoseconds.
const CHECK_INTERVAL: u64 = 100_000_000;

/// File systems that need no server.
const LOCAL: &[&str] = &[
    "bcachefs",
    "btrfs",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hugetlbfs",
    "iso9660",
    "jfs",
    "mqueue",
    "msdos",
    "nilfs2",
    "overlay",
    "proc",
    "pstore",
    "ramfs",
    "reiserfs",
    "rootfs",
    "securityfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
    "udf",
    "ufs",
    "vfat",
    "xfs",
    "zfs",
    "bpf",
    "efivarfs",
    "fusectl",
    "binfmt_misc",
    "nsfs",
    "autofs",
];

pub(crate) struct Locality {
    mounts: RefCell<Option<Mounts>>,
    /// When the mounts were last checked, by the coarse clock in nanoseconds.
    checked: Cell<Option<u64>>,
}

struct Mounts {
    file: File,
    all_local: bool,
    /// Device numbers, major and minor.
    devices: HashMap<(u32, u32), bool>,
}

impl Locality {
    pub(crate) fn new() -> Self {
        Locality { mounts: RefCell::new(Mounts::read().ok()), checked: Cell::new(None) }
    }

    /// Whether a loop may open `path`, if the kernel can walk it in memory.
    pub(crate) fn answers_from_memory(&self, path: &Path, resolve: ResolveFlags) -> bool {
        self.refresh();
        let mounts = self.mounts.borrow();
        let Some(mounts) = &*mounts else { return false };
        mounts.all_local || device(path, resolve).is_some_and(|d| mounts.is_local(d))
    }

    fn refresh(&self) {
        let now = coarse_nanos();
        if self.checked.get().is_some_and(|at| now.saturating_sub(at) < CHECK_INTERVAL) {
            return;
        }
        self.checked.set(Some(now));
        let mut mounts = self.mounts.borrow_mut();
        if mounts.as_ref().is_some_and(Mounts::changed) {
            *mounts = Mounts::read().ok();
        }
    }
}

impl Mounts {
    fn read() -> io::Result<Self> {
        let mut file = File::open("/proc/self/mountinfo")?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        file.rewind()?;
        let devices: HashMap<_, _> = text.lines().filter_map(mount).collect();
        // A line that could not be parsed may be any file system.
        let all_local = text.lines().all(|l| mount(l).is_some_and(|(_, local)| local));
        Ok(Mounts { file, all_local, devices })
    }

    /// Whether the table has changed since it was read. The kernel then reports a priority event
    /// (proc(5)).
    fn changed(&self) -> bool {
        let mut set = PollSet::default();
        set.push(self.file.as_raw_fd(), Polled::PRIORITY);
        set.wait(Some(Duration::ZERO)).is_err() || set.results().any(|r| r != Polled::NONE)
    }

    fn is_local(&self, device: (u32, u32)) -> bool {
        self.devices.get(&device).copied().unwrap_or(false)
    }
}

/// Parses a line of mountinfo (proc(5)): the device, and whether its file system is local.
fn mount(line: &str) -> Option<((u32, u32), bool)> {
    let (left, right) = line.split_once(" - ")?;
    let (major, minor) = left.split(' ').nth(2)?.split_once(':')?;
    let kind = right.split(' ').next()?;
    Some(((major.parse().ok()?, minor.parse().ok()?), LOCAL.contains(&kind)))
}

/// The device of the file that `path` names, if the kernel can tell from memory.
fn device(path: &Path, resolve: ResolveFlags) -> Option<(u32, u32)> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = resolve | ResolveFlags::CACHED;
    let fd = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve).ok()?;
    // Cached metadata is enough, since the device of a file does not change.
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(&fd, "", how, StatxFlags::empty()).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_s_line_names_device_and_kind() {
        let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(mount(line), Some(((98, 0), true)));
        let line = "37 35 0:42 / /mnt rw - fuse.sshfs user@host:/ rw";
        assert_eq!(mount(line), Some(((0, 42), false)));
        assert_eq!(mount("37 35 0:x / /mnt rw - ext4 a rw"), None);
        assert_eq!(mount(""), None);
    }

    #[test]
    fn a_known_path_has_a_device_that_is_mounted() {
        let mounts = Mounts::read().unwrap();
        assert!(!mounts.changed());
        std::fs::metadata("/proc/self/stat").unwrap();
        if let Some(device) = device(Path::new("/proc/version"), ResolveFlags::empty()) {
            assert!(mounts.is_local(device));
        }
        assert!(!mounts.is_local((4095, 77)));
    }
}
