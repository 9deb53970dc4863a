//! The operations that threads of a pool have begun, for messages about a disk that blocks.
//!
//! Each thread has a slot. [`file_operation`] fills it before a call that may wait for a disk, and empties it
//! afterwards. Nothing reads the slots until an operation lasts long.

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rank::Rank;
use crate::clock::coarse_nanos;

/// What an operation works on.
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

/// An operation that a thread has begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningOperation {
    /// Since when, by [`crate::coarse_nanos`].
    pub since: u64,
    /// What the operation is for.
    pub rank: Rank,
    /// Its name, such as that of a system call.
    pub name: &'static str,
    /// The file.
    pub path: PathBuf,
}

/// What the thread is at, which other threads may read.
pub(super) type Slot = Arc<Mutex<Noted>>;

/// What stands in a slot.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// 0 for nothing.
    since: u64,
    name: &'static str,
    /// Empty for an open file. It is kept, since its memory is used again.
    path: OsString,
    file: i32,
}

thread_local! {
    /// Of a thread of a pool.
    static SLOT: RefCell<Option<Slot>> = const { RefCell::new(None) };
}

/// Makes the slot of this thread, which is one of a pool.
pub(super) fn make_slot() -> Slot {
    let slot = Slot::default();
    SLOT.set(Some(Arc::clone(&slot)));
    slot
}

fn lock(slot: &Slot) -> MutexGuard<'_, Noted> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does `work`, which may wait for a disk, under a name. Threads that are none of a pool only do it.
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

/// The thread is at nothing, should a panic have left something there.
pub(super) fn empty(slot: &Slot) {
    lock(slot).since = 0;
}

/// What stands in a slot, for an operation of this rank.
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

/// The name of an open file that the kernel knows, which asks no disk.
pub(crate) fn name_of(file: RawFd) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{file}")).unwrap_or_default()
}
