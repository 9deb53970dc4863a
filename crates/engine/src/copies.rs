//! Copies of large pieces, where `memcpy` is slow.
//!
//! glibc before 2.39 copies some kilobytes and more by `rep movsb`. AMD's Zen processors then take up to twenty times as long
//! where the destination is a few bytes behind the source, as seen by the low twelve bits of both addresses. Buffers begin at
//! multiples of a page, and the head of a frame or of a record is just as short. glibc's bug 30994.

use crate::seam;

/// Shorter copies are made by other instructions.
const PIECE: usize = 2048;
/// What the low bits of addresses count.
const PAGE: usize = 4096;
/// The distance that is slow: a line of the cache.
pub const LINE: usize = 64;

/// Appends `bytes` as `extend_from_slice` does, and at the same speed wherever the two are.
pub fn append(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len());
    bytes.chunks(PIECE).for_each(|piece| out.extend_from_slice(piece));
}

/// True if it takes long to copy all of `bytes` to a place that is `head` bytes behind the beginning of a page.
pub fn is_slow(bytes: &[u8], head: usize) -> bool {
    let behind = (head % PAGE + PAGE - bytes.as_ptr().addr() % PAGE) % PAGE;
    bytes.len() > PIECE && seam::is_behind(|| (1..LINE).contains(&behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_appended() {
        let bytes: Vec<u8> = (0..3 * PIECE + 7).map(|n| n as u8).collect();
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, bytes.len()] {
            let mut out = b"before".to_vec();
            append(&mut out, &bytes[..len]);
            assert_eq!(out[..6], *b"before");
            assert_eq!(out[6..], bytes[..len]);
        }
    }

    #[test]
    fn a_copy_is_slow_to_a_place_that_is_a_little_behind() {
        let memory = vec![0; 3 * PAGE];
        let page = PAGE - memory.as_ptr().addr() % PAGE;
        let from = |offset: usize| &memory[page + offset..page + offset + PAGE];
        assert!(is_slow(from(0), 5) && is_slow(from(0), 63) && is_slow(from(PAGE - 1), 5));
        assert!(!is_slow(from(0), 0) && !is_slow(from(0), 64) && !is_slow(from(5), 5));
        assert!(!is_slow(from(512), 5) && !is_slow(&from(0)[..PIECE], 5));
    }
}
