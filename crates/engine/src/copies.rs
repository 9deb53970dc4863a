//! Copies of large pieces at full speed where `memcpy` is slow.
//!
//! glibc before 2.39 copies some kilobytes and more by `rep movsb`. AMD's Zen processors then take
//! up to twenty times as long if the destination is a few bytes behind the source, in the low
//! twelve bits of the addresses. That is common: buffers begin at page boundaries, and the head of
//! a frame or record is a few bytes long. glibc's bug 30994.

use crate::seam;

/// glibc uses other instructions for copies below this size.
const PIECE: usize = 2048;
/// Only the addresses' offsets in a page matter.
const PAGE: usize = 4096;
/// Distances below this are slow: a cache line.
pub const LINE: usize = 64;

/// Appends `bytes` as `extend_from_slice` does, but in pieces that are never slow.
pub fn append(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len());
    bytes.chunks(PIECE).for_each(|piece| out.extend_from_slice(piece));
}

/// Whether copying all of `bytes` at once to `head` bytes behind a page boundary would be slow.
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
