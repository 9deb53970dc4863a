//! An allocator for tests that reveals uses of freed memory.
//!
//! A freed block is filled with a pattern and not reused for a while. Code that still uses it reads
//! the pattern, and a pointer in it is invalid.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of freed blocks that are kept back.
const KEPT: usize = 1 << 16;
/// Larger blocks are filled and freed at once.
const LARGEST: usize = 1 << 14;
/// The pattern. Eight such bytes are no valid address.
const NONSENSE: u8 = 0xdb;

/// See the [module](self).
pub struct Quarantine {
    busy: AtomicBool,
    ring: UnsafeCell<Ring>,
}

struct Ring {
    blocks: [Option<(*mut u8, Layout)>; KEPT],
    next: usize,
}

// SAFETY: the ring is only touched by the thread that has set `busy`.
unsafe impl Sync for Quarantine {}

impl Quarantine {
    /// An allocator that keeps no blocks yet.
    pub const fn new() -> Quarantine {
        let ring = Ring { blocks: [None; KEPT], next: 0 };
        Quarantine { busy: AtomicBool::new(false), ring: UnsafeCell::new(ring) }
    }

    /// Keeps a block back. Returns the block that was kept longest.
    fn swap(&self, block: *mut u8, layout: Layout) -> Option<(*mut u8, Layout)> {
        while self.busy.swap(true, Ordering::Acquire) {
            spin_loop();
        }
        // SAFETY: `busy` was not set, so no other thread has a reference to the ring until it is unset.
        let ring = unsafe { &mut *self.ring.get() };
        let old = ring.blocks[ring.next].replace((block, layout));
        ring.next = (ring.next + 1) % KEPT;
        self.busy.store(false, Ordering::Release);
        old
    }
}

impl Default for Quarantine {
    fn default() -> Self {
        Quarantine::new()
    }
}

// SAFETY: blocks are the system's, and go back to it once each with the layout that they were asked for with.
unsafe impl GlobalAlloc for Quarantine {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller gives the block back: it is valid for its size, and nothing uses it any more.
        unsafe { block.write_bytes(NONSENSE, layout.size()) };
        let old = match layout.size() <= LARGEST {
            true => self.swap(block, layout),
            false => Some((block, layout)),
        };
        if let Some((block, layout)) = old {
            // SAFETY: it came from `alloc` with this layout, and was taken out of the ring.
            unsafe { System.dealloc(block, layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_block_is_filled_and_kept_back() {
        static OWN: Quarantine = Quarantine::new();
        let layout = Layout::from_size_align(64, 8).unwrap();
        // SAFETY: the layout has a size.
        let block = unsafe { OWN.alloc(layout) };
        // SAFETY: the block was allocated with this layout, and is freed once.
        unsafe { OWN.dealloc(block, layout) };
        // SAFETY: the ring keeps the block, which is readable until so many others are freed.
        assert_eq!(unsafe { block.add(63).read() }, NONSENSE);
        // SAFETY: as above.
        let next = unsafe { OWN.alloc(layout) };
        assert_ne!(block, next);
        // SAFETY: as above.
        unsafe { OWN.dealloc(next, layout) };
    }
}
