//! Is a range of a file in memory, so that sending it does not wait for a disk?

use std::io::IoSliceMut;

use rustix::io::ReadWriteFlags;
use weir_sys::pagecache::cached_pages;

use super::OpenFile;
use crate::seam;

/// What sending a range of a file would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residence {
    /// It is all in memory.
    Cached,
    /// Some of it would be read from a disk, or the file system does not tell.
    Unknown,
}

/// Looks at `len` bytes of `file` from `offset` on.
pub(crate) fn residence(file: &OpenFile, offset: u64, len: u64) -> Residence {
    let end = offset.saturating_add(len.max(1));
    let look = || seam::is_resident(|| is_cached(file, offset, end));
    let cached = file.is_resident(offset..end, look);
    if cached { Residence::Cached } else { Residence::Unknown }
}

fn is_cached(file: &OpenFile, offset: u64, end: u64) -> bool {
    let page = rustix::param::page_size() as u64;
    let last = end - 1;
    let pages = last / page - offset / page + 1;
    // Pages count from when they are asked of the disk; the last one has its bytes when those before it have theirs.
    // And not every file system answers at all.
    present(file, last)
        && (pages == 1
            || match cached_pages(file, offset, end - offset) {
                Ok(cached) => cached >= pages,
                // An older kernel, or a file that this process may not ask about: both ends stand for the rest.
                Err(_) => present(file, offset),
            })
}

fn present(file: &OpenFile, offset: u64) -> bool {
    let mut byte = [0u8; 1];
    let mut pieces = [IoSliceMut::new(&mut byte)];
    // Behind the end of a file that became shorter there is nothing to wait for either.
    rustix::io::preadv2(file, &mut pieces, offset, ReadWriteFlags::NOWAIT).is_ok()
}
