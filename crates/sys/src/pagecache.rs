//! Cached parts of files: reads that refuse to wait, and `cachestat(2)`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// The system call number of `cachestat`, the same on all architectures. Linux 6.5 and later.
const SYS_CACHESTAT: libc::c_long = 451;

/// Reads cached bytes at `offset` into the spare capacity of `buf`, without waiting for a disk
/// (`preadv2` with `RWF_NOWAIT`). Returns the number of bytes appended.
///
/// Fails with [`io::ErrorKind::WouldBlock`] if the first of these bytes is not cached, and with
/// [`io::ErrorKind::Unsupported`] if the file system cannot promise not to wait.
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

/// How bytes are divided into frames.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// The size of a frame's head.
    pub head: usize,
    /// The bytes of a frame without its head, at least 1. The last frame may have fewer.
    pub body: usize,
}

impl Framing {
    /// The number of frames for this many bytes.
    pub fn frames(self, bytes: usize) -> usize {
        bytes.div_ceil(self.body.max(1))
    }
}

/// The most pieces that one call reads.
const PIECES: usize = 16;

/// As [`read_nowait`], but at most `most` bytes, divided into frames with zeros in place of the
/// heads. Reads at most 16 frames, as far as the spare capacity of `buf` suffices. Returns the
/// number of bytes appended, without heads.
pub fn read_framed_nowait(
    file: impl AsFd,
    buf: &mut Vec<u8>,
    offset: u64,
    most: usize,
    framing: Framing,
) -> io::Result<usize> {
    let offset = offset_of(offset)?;
    let body = framing.body.max(1);
    let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
    let (mut count, mut left) = (0, most);
    let frames = buf.spare_capacity_mut().chunks_mut(framing.head.saturating_add(body));
    for (piece, frame) in pieces.iter_mut().zip(frames) {
        let Some((head, body)) = frame.split_at_mut_checked(framing.head) else { break };
        let len = body.len().min(left);
        if len == 0 {
            break;
        }
        head.fill(MaybeUninit::new(0));
        *piece = libc::iovec { iov_base: body.as_mut_ptr().cast(), iov_len: len };
        count += 1;
        left -= len;
    }
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the first `count` pieces are parts of the spare capacity of a live vector, exclusively borrowed, that do not
    // overlap; the kernel writes at most `iov_len` bytes to each and reads none.
    let n = unsafe { libc::preadv2(fd, pieces.as_ptr(), count, offset, libc::RWF_NOWAIT) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel fills the pieces in order, all but the last of `body` bytes, so `n` bytes are behind as many heads, which
    // were written above, and without a gap between them.
    unsafe { buf.set_len(buf.len() + n + framing.head * framing.frames(n)) };
    Ok(n)
}

/// The number of cached pages in a range of `file`. Fails if the kernel is older, or if this
/// process may not ask.
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
    fn a_file_is_read_between_the_heads_of_frames() {
        let bytes: Vec<u8> = (0..9_000).map(|n| (n % 251) as u8 + 1).collect();
        let file = written(&bytes);
        let read = |offset: usize, most, room, head, body| {
            let mut buf = Vec::with_capacity(1 + room);
            buf.push(9);
            let read =
                read_framed_nowait(&file, &mut buf, offset as u64, most, Framing { head, body });
            read.map(|n| (n, buf))
        };
        let expected = |offset: usize, len, head, body| {
            let frames = bytes[offset..offset + len].chunks(body);
            let framed = frames.flat_map(|frame| [&vec![0; head], frame].concat());
            [9].into_iter().chain(framed).collect::<Vec<u8>>()
        };
        match read(0, 9_000, 20_000, 9, 4_000) {
            Ok((n, buf)) => assert_eq!((n, buf), (9_000, expected(0, 9_000, 9, 4_000))),
            Err(e) => return assert_eq!(e.kind(), io::ErrorKind::Unsupported),
        }
        // No more than requested.
        assert_eq!(
            read(5, 4_001, 20_000, 9, 2_000).unwrap(),
            (4_001, expected(5, 4_001, 9, 2_000))
        );
        // Up to the end of the file.
        assert_eq!(
            read(8_000, 4_000, 20_000, 9, 600).unwrap(),
            (1_000, expected(8_000, 1_000, 9, 600))
        );
        assert_eq!(read(9_000, 4_000, 20_000, 9, 600).unwrap(), (0, vec![9]));
        // Up to the spare capacity. A head alone is no frame.
        let room = Vec::<u8>::with_capacity(1 + 3 * 109).capacity() - 1;
        let (n, buf) = read(0, 9_000, room, 9, 100).unwrap();
        assert_eq!(buf, expected(0, n, 9, 100));
        assert!(n <= room - 9 * n.div_ceil(100), "{n}");
        // As many pieces as one call takes.
        assert_eq!(read(0, 9_000, 20_000, 1, 10).unwrap(), (160, expected(0, 160, 1, 10)));
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
