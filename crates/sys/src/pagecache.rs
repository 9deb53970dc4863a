//! The part of a file that is in memory: reads that refuse to wait, and `cachestat(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `cachestat`'s number is the same on every architecture; Linux 6.5 and later.
const SYS_CACHESTAT: libc::c_long = 451;

/// Reads into the spare capacity of `buf` what the page cache has at `offset`, without waiting
/// for a disk (`preadv2` with `RWF_NOWAIT`): the number of bytes appended.
///
/// [`io::ErrorKind::WouldBlock`] if nothing of it is in memory, [`io::ErrorKind::Unsupported`] if
/// the file system cannot promise not to wait.
pub fn read_nowait(file: impl AsFd, buf: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
    let spare = buf.spare_capacity_mut();
    let piece = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() };
    let offset = offset_of(offset)?;
    // SAFETY: the one piece is the spare capacity of a live vector, exclusively borrowed; the
    // kernel writes at most `iov_len` bytes there and reads none.
    let n = unsafe { libc::preadv2(file.as_fd().as_raw_fd(), &piece, 1, offset, libc::RWF_NOWAIT) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has written `n` bytes, within the capacity, behind the old length.
    unsafe { buf.set_len(buf.len() + n) };
    Ok(n)
}

/// How many pages of this range of `file` are in memory. An error where the kernel is older or
/// where this process may not ask.
pub fn cached_pages(file: impl AsFd, offset: u64, len: u64) -> io::Result<u64> {
    let range = [offset, len];
    // Cached, dirty, under write-back, evicted, recently evicted.
    let mut counts = [0u64; 5];
    // SAFETY: both structures are as the kernel defines them, two and five 64-bit words, live
    // for the call; the kernel reads the first and writes the second.
    let failed = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_fd().as_raw_fd(),
            range.as_ptr(),
            counts.as_mut_ptr(),
            0,
        )
    };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(counts[0]) }
}

fn offset_of(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn written(bytes: &[u8]) -> std::fs::File {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let fd = rustix::fs::open(env!("CARGO_MANIFEST_DIR"), flags, Mode::RUSR | Mode::WUSR);
        let mut file = std::fs::File::from(fd.unwrap());
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn what_was_just_written_is_read_behind_what_the_buffer_holds() {
        let file = written(&[7; 10_000]);
        let mut buf = Vec::with_capacity(4);
        buf.push(1);
        match read_nowait(&file, &mut buf, 9_998) {
            Ok(2) => assert_eq!(buf, [1, 7, 7]),
            Ok(n) => panic!("read {n} bytes"),
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::Unsupported),
        }
        assert!(read_nowait(&file, &mut buf, u64::MAX).is_err());
    }

    #[test]
    fn what_was_just_written_is_cached() {
        let file = written(&[7; 10_000]);
        match cached_pages(&file, 0, 10_000) {
            Ok(pages) => assert!(pages >= 1),
            Err(e) => assert!(matches!(
                e.raw_os_error(),
                Some(libc::ENOSYS | libc::EPERM | libc::EOPNOTSUPP)
            )),
        }
    }
}
