//! The file operations that threads of a pool are running, for messages about a slow disk.
//!
//! Each thread has a slot. [`file_operation`] fills it before a call that may block, and clears it
//! afterwards. Other threads read the slots only when an operation takes long.

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rank::Rank;
use crate::clock::coarse_nanos;

/// The file that an operation works on.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// A name.
    Path(&'a Path),
    /// An open file.
    File(RawFd),
}

impl<'a> From<&'a Path> for Place<'a> {
    fn from(path: &'a Path) -> Self {
        Place::Path(path)
    }
}

impl<'a, F: AsFd> From<&'a F> for Place<'a> {
    fn from(file: &'a F) -> Self {
        Place::File(file.as_fd().as_raw_fd())
    }
}

/// A file operation that a thread is running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningOperation {
    /// When it began, by [`crate::coarse_nanos`].
    pub since: u64,
    /// The purpose of the operation.
    pub rank: Rank,
    /// The operation, such as the name of a system call.
    pub name: &'static str,
    /// The file.
    pub path: PathBuf,
}

/// The operation that a thread is running. Other threads may read it.
pub(super) type Slot = Arc<Mutex<Noted>>;

/// The content of a [`Slot`].
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// 0 if the thread is running no operation.
    since: u64,
    name: &'static str,
    /// Empty for an open file. Cleared instead of replaced, to reuse its memory.
    path: OsString,
    file: i32,
}

thread_local! {
    /// The slot of a pool's thread. None on other threads.
    static SLOT: RefCell<Option<Slot>> = const { RefCell::new(None) };
}

/// Makes the slot of this thread, which belongs to a pool.
pub(super) fn make_slot() -> Slot {
    let slot = Slot::default();
    SLOT.set(Some(Arc::clone(&slot)));
    slot
}

fn lock(slot: &Slot) -> MutexGuard<'_, Noted> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work`, which may block, and notes it in the thread's slot. On threads outside of pools it
/// only runs `work`.
pub fn file_operation<'a, T>(
    name: &'static str,
    place: impl Into<Place<'a>>,
    work: impl FnOnce() -> T,
) -> T {
    SLOT.with_borrow(|slot| {
        let Some(slot) = slot else { return };
        let mut noted = lock(slot);
        noted.path.clear();
        match place.into() {
            Place::Path(path) => noted.path.push(path),
            Place::File(file) => noted.file = file,
        }
        (noted.name, noted.since) = (name, coarse_nanos().max(1));
    });
    let out = work();
    SLOT.with_borrow(|slot| slot.iter().for_each(empty));
    out
}

/// Clears a slot, in case a panic left an operation in it.
pub(super) fn empty(slot: &Slot) {
    lock(slot).since = 0;
}

/// The operation in a slot, whose job has this rank.
pub(super) fn read(slot: &Slot, rank: Rank) -> Option<RunningOperation> {
    let noted = lock(slot);
    if noted.since == 0 {
        return None;
    }
    let path = match noted.path.is_empty() {
        false => PathBuf::from(&noted.path),
        true => name_of(noted.file),
    };
    Some(RunningOperation { since: noted.since, rank, name: noted.name, path })
}

/// The path of an open file as the kernel remembers it. This reads no disk.
pub(crate) fn name_of(file: RawFd) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{file}")).unwrap_or_default()
}
