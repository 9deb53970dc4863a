//! Whether a range of a file is in memory, so that sending it does not wait for a disk.

use std::io::IoSliceMut;

use rustix::io::ReadWriteFlags;
use weir_sys::pagecache::cached_pages;

use super::OpenFile;
use crate::seam;

/// Whether sending a range of a file would wait for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residence {
    /// No: all of the range is in memory.
    Cached,
    /// Perhaps: some of it is not in memory, or the file system does not tell.
    Unknown,
}

/// Checks `len` bytes of `file` from `offset` on.
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
    // cachestat(2) counts pages that are still being read. Pages are read in order, so the last
    // page is complete only if the others are. Some file systems support neither call.
    present(file, last)
        && (pages == 1
            || match cached_pages(file, offset, end - offset) {
                Ok(cached) => cached >= pages,
                // cachestat(2) is missing or forbidden. Check the first page, too, and assume the
                // same of those between.
                Err(_) => present(file, offset),
            })
}

fn present(file: &OpenFile, offset: u64) -> bool {
    let mut byte = [0u8; 1];
    let mut pieces = [IoSliceMut::new(&mut byte)];
    // Past the end of a file that was truncated, there is nothing to wait for.
    rustix::io::preadv2(file, &mut pieces, offset, ReadWriteFlags::NOWAIT).is_ok()
}
