//! The allocator: mimalloc, with requests for aligned memory only where its plain blocks are not
//! aligned enough.
//!
//! The `mimalloc` crate passes on the alignment of each block. If such a request exceeds a kilobyte
//! and is no power of two, mimalloc's third version treats it as one of special alignment. It then
//! allocates more than was requested and marks the page, which makes allocating and freeing several
//! times as expensive. Its plain blocks are aligned as C's are.

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc,
    mi_zalloc_aligned,
};

unsafe extern "C" {
    /// mimalloc's function. Its own crate declares it only together with much that is not needed
    /// here.
    fn mi_collect(force: bool);
}

/// Returns freed memory to the system: what this thread keeps of mimalloc's, and what the C library
/// keeps, such as that of TLS keys.
pub fn give_back() {
    // SAFETY: it may be called at any time, and touches no block that is in use.
    unsafe { mi_collect(true) }
    #[cfg(target_env = "gnu")]
    // SAFETY: the same.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Mimalloc;

/// Runs before the first allocation, since mimalloc asks for huge pages. Zeroing two megabytes
/// stops a loop for long, and a small server never uses most of them. Forked processes inherit the
/// setting.
#[used]
// SAFETY: what stands in .init_array is a function of C that glibc calls once, before main; it allocates nothing.
#[unsafe(link_section = ".init_array")]
static FIRST: extern "C" fn() = use_small_pages;

extern "C" fn use_small_pages() {
    // A kernel without huge pages refuses this.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// For programs that start others, which would inherit the setting.
pub fn allow_huge_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(false);
}

/// The alignment of plain blocks of at least this size. Smaller blocks are aligned to words.
const ALIGNED: usize = 16;

/// Whether a plain block of this size is aligned enough.
#[inline]
const fn is_plain(size: usize, align: usize) -> bool {
    align <= size_of::<usize>() || align <= ALIGNED && size >= ALIGNED
}

// SAFETY: mimalloc's blocks are valid for their size until they are freed, do not overlap, and are null where there is
// no memory; `is_plain` says where their alignment needs no asking for. mi_free and mi_realloc take blocks of both kinds,
// and nothing here panics.
unsafe impl GlobalAlloc for Mimalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: any size will do; an alignment is a power of two.
        let block = unsafe {
            if is_plain(size, align) { mi_malloc(size) } else { mi_malloc_aligned(size, align) }
        };
        block.cast()
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: as in `alloc`.
        let block = unsafe {
            if is_plain(size, align) { mi_zalloc(size) } else { mi_zalloc_aligned(size, align) }
        };
        block.cast()
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller has the block from here, and does not use it any more.
        unsafe { mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (block, align) = (block.cast(), layout.align());
        // SAFETY: as in `alloc` and `dealloc`.
        let block = unsafe {
            if is_plain(size, align) {
                mi_realloc(block, size)
            } else {
                mi_realloc_aligned(block, size, align)
            }
        };
        block.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocates, grows, checks and frees blocks of many sizes.
    fn blocks(align: usize, zeroed: bool) {
        for size in (1..300).chain([1023, 1024, 1025, 5120, 5121, 70_000, 1 << 20]) {
            let Ok(layout) = Layout::from_size_align(size, align) else { continue };
            // SAFETY: the size is not zero; the block is written within its size, and freed once.
            unsafe {
                let block =
                    if zeroed { Mimalloc.alloc_zeroed(layout) } else { Mimalloc.alloc(layout) };
                assert!(!block.is_null() && block.addr().is_multiple_of(align), "{size} {align}");
                if zeroed {
                    assert!((0..size).all(|i| block.add(i).read() == 0), "{size} {align}");
                }
                block.write_bytes(7, size);
                let grown = Mimalloc.realloc(block, layout, 3 * size);
                assert!(!grown.is_null() && grown.addr().is_multiple_of(align), "{size} {align}");
                assert!((0..size).all(|i| grown.add(i).read() == 7), "{size} {align}");
                let layout = Layout::from_size_align(3 * size, align).unwrap();
                Mimalloc.dealloc(grown, layout);
            }
        }
    }

    #[test]
    fn blocks_are_aligned_and_keep_what_they_hold() {
        for align in [1, 2, 4, 8, 16, 32, 64, 4096] {
            blocks(align, false);
            blocks(align, true);
        }
    }
}
