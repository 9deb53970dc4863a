//! Prefetching of memory that is needed soon.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Makes the processor load up to `most` bytes of a value into its caches, without waiting. Does
/// nothing on architectures for which stable Rust has no such instruction.
#[inline]
pub fn prefetch<T: ?Sized>(value: &T, most: usize) {
    let first = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of_val(value).min(most)).step_by(LINE) {
        line(first.wrapping_add(offset));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch has no effect that a program can see, and does not fault, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn line(_: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_value_can_be_fetched() {
        prefetch(&0_u8, usize::MAX);
        prefetch::<[u64]>(&[], 64);
        prefetch(
            "a text that is longer than one line of a cache, and that begins anywhere in one",
            64,
        );
        let large = vec![1_u8; 10_000];
        prefetch(&large[..], 300);
        assert!(large.iter().all(|byte| *byte == 1));
    }
}
