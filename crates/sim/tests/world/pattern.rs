//! Bodies whose bytes identify their answer and their offset.

use weir_testkit::Dice;

/// The eight bytes of `owner`'s body from offset `at * 8` on.
fn word(owner: u64, at: u64) -> [u8; 8] {
    let word = (owner ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (word ^ word >> 29).wrapping_mul(0x94d0_49bb_1331_11eb).to_le_bytes()
}

/// The body of `owner` from `offset` on, in pieces of up to eight bytes.
fn pieces(owner: u64, offset: u64) -> impl Iterator<Item = ([u8; 8], usize)> {
    (offset / 8..)
        .zip([(offset % 8) as usize].into_iter().chain(std::iter::repeat(0)))
        .map(move |(at, skip)| (word(owner, at), skip))
}

/// Appends `len` bytes of `owner`'s body from `offset` on.
pub fn fill(out: &mut Vec<u8>, owner: u64, offset: u64, len: u64) {
    let mut left = len as usize;
    out.reserve(left);
    for (word, skip) in pieces(owner, offset) {
        if left == 0 {
            return;
        }
        let piece = &word[skip..];
        let piece = &piece[..piece.len().min(left)];
        out.extend_from_slice(piece);
        left -= piece.len();
    }
}

/// The first offset at which `bytes` differ from `owner`'s body. They begin at `offset`.
pub fn first_wrong(owner: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let mut left = bytes;
    for (word, skip) in pieces(owner, offset) {
        let (piece, rest) = left.split_at(left.len().min(8 - skip));
        if let Some(wrong) = piece.iter().zip(&word[skip..]).position(|(a, b)| a != b) {
            return Some(offset + (bytes.len() - left.len() + wrong) as u64);
        }
        left = rest;
        if left.is_empty() {
            break;
        }
    }
    None
}

/// The owner of a cached object's body, by its name and generation.
pub fn object(name: u64, generation: u64) -> u64 {
    0x0b1e_c700_0000 + name * 0x1_0000 + generation
}

/// The owner of a file's body.
pub fn file(name: u64) -> u64 {
    0xf11e_0000_0000 + name
}

/// Appends `owner`'s body in chunks of random lengths up to `most`, each with this extension. The
/// line end after the last chunk is left out.
pub fn chunks(out: &mut Vec<u8>, dice: &mut Dice, whose: (u64, u64), most: usize, extension: &str) {
    let ((owner, len), mut at) = (whose, 0);
    while at < len {
        let n = (1 + dice.below(most) as u64).min(len - at);
        out.extend_from_slice(format!("{n:x}{extension}\r\n").as_bytes());
        fill(out, owner, at, n);
        out.extend_from_slice(b"\r\n");
        at += n;
    }
    out.extend_from_slice(b"0\r\n");
}
