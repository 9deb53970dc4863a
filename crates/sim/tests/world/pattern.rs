//! Bodies that say at each offset whose they are.

use weir_testkit::Dice;

/// The byte at `offset` of the body that belongs to `owner`.
pub fn byte(owner: u64, offset: u64) -> u8 {
    let word = (owner ^ (offset / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word >> (offset % 8 * 8)) as u8
}

/// Appends `len` bytes of `owner`'s body from `offset` on.
pub fn fill(out: &mut Vec<u8>, owner: u64, offset: u64, len: u64) {
    out.extend((offset..offset + len).map(|at| byte(owner, at)));
}

/// Where `bytes`, which should be `owner`'s from `offset` on, are first another's.
pub fn first_wrong(owner: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let wrong = |(i, b): (usize, &u8)| *b != byte(owner, offset + i as u64);
    bytes.iter().enumerate().position(|(i, b)| wrong((i, b))).map(|i| offset + i as u64)
}

/// Whose a cached object's body is: of its name, at its time.
pub fn object(name: u64, generation: u64) -> u64 {
    0x0b1e_c700_0000 + name * 0x1_0000 + generation
}

/// Whose a file's body is.
pub fn file(name: u64) -> u64 {
    0xf11e_0000_0000 + name
}

/// Appends so much of an owner's body in chunks of drawn lengths up to `most`, each with this extension, up to the last
/// one's line.
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
