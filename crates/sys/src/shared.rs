//! Memory that forked processes share: mmap(2) with MAP_SHARED and MAP_ANONYMOUS.
//!
//! The master maps it before it forks, so all workers see the same words, and they outlive a
//! worker. All access is through atomics.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A mapping of zeroed 64-bit words, shared with all processes that are forked later.
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    len: usize,
}

impl SharedWords {
    /// Maps `n` words, all zero. The mapping is page-aligned.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for no words or too many, otherwise the error of mmap(2).
    pub fn new(n: usize) -> io::Result<SharedWords> {
        let bytes = bytes_of(n).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice cannot overlap
        // memory that anything else in this program refers to.
        let start = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::SHARED)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { start, len: n })
    }

    /// Maps the first `n` words of a BPF array, which eBPF programs see as well
    /// ([`crate::steering`]).
    pub(crate) fn of(array: BorrowedFd<'_>, n: usize) -> io::Result<SharedWords> {
        let bytes = bytes_of(n).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice cannot overlap memory that anything else in this
        // program refers to. The array has so many bytes or the kernel refuses.
        let start = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, array, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { start, len: n })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds `len` words, is page-aligned and zeroed (a valid AtomicU64),
        // and lives until `drop`. Other processes change the words only through atomics too.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        let bytes = self.len * size_of::<AtomicU64>();
        // SAFETY: the mapping was made by `new` with this length, and the borrows that `deref`
        // gave out have ended. It disappears from this process only.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
    }
}

impl fmt::Debug for SharedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWords").field("len", &self.len).finish()
    }
}

// SAFETY: the value owns its mapping, which is not bound to a thread.
unsafe impl Send for SharedWords {}
// SAFETY: all that can be reached through a shared reference is `&[AtomicU64]`, which is Sync.
unsafe impl Sync for SharedWords {}

fn bytes_of(n: usize) -> Option<usize> {
    let bytes = n.checked_mul(size_of::<AtomicU64>())?;
    (1..=isize::MAX as usize).contains(&bytes).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn starts_zeroed_and_aligned() {
        let words = SharedWords::new(1000).unwrap();
        assert_eq!(words.len(), 1000);
        assert!(words.iter().all(|w| w.load(SeqCst) == 0));
        assert_eq!(words.as_ptr().addr() % 4096, 0);
    }

    #[test]
    fn refuses_no_words_and_too_many() {
        assert_eq!(SharedWords::new(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(SharedWords::new(usize::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_forked_process_writes_the_same_words() {
        let words = SharedWords::new(16).unwrap();
        words[3].store(7, SeqCst);
        // SAFETY: the child touches only the mapping and ends with _exit, so nothing that another
        // thread of this test process held at the fork is used.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let seen = words[3].load(SeqCst);
            words[4].store(seen + 1, SeqCst);
            // SAFETY: ends the child without running this process's destructors.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: `status` outlives the call; the child is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, words[4].load(SeqCst)), (0, 8));
    }
}
