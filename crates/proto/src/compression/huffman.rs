//! Strings in the Huffman code: a machine that reads four bits at a step, made from the codes at compile time.

use super::codes::CODES;

/// Why a string cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadCode;

/// What four more bits lead to.
#[derive(Clone, Copy)]
struct Transition {
    /// The node that is reached.
    next: u8,
    /// The byte that was completed, if `flags` says so.
    byte: u8,
    flags: u8,
}

const BYTE: u8 = 1;
const BAD: u8 = 2;

/// In the tree: not a node but the byte in the low bits.
const LEAF: u16 = 0x100;
const NOWHERE: u16 = u16::MAX;

/// The tree of codes: for each inner node what follows a 0 and a 1.
const TREE: [[u16; 2]; 256] = tree();
static STEPS: [[Transition; 16]; 256] = steps();
/// Where a string may end: behind at most seven ones that belong to no byte. Eight are a byte too many, but some
/// clients send them, and nginx takes them.
static ENDS: [bool; 256] = ends();

const fn tree() -> [[u16; 2]; 256] {
    let mut tree = [[NOWHERE; 2]; 256];
    let mut nodes = 1;
    let mut byte = 0;
    while byte < 256 {
        let (code, bits) = CODES[byte];
        let (mut node, mut left) = (0, bits);
        while left > 0 {
            left -= 1;
            let bit = (code >> left & 1) as usize;
            if left == 0 {
                tree[node][bit] = LEAF | byte as u16;
            } else if tree[node][bit] == NOWHERE {
                tree[node][bit] = nodes;
                node = nodes as usize;
                nodes += 1;
            } else {
                node = tree[node][bit] as usize;
            }
        }
        byte += 1;
    }
    tree
}

const fn steps() -> [[Transition; 16]; 256] {
    let mut steps = [[Transition { next: 0, byte: 0, flags: 0 }; 16]; 256];
    let mut node = 0;
    while node < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            steps[node][nibble] = step(node, nibble);
            nibble += 1;
        }
        node += 1;
    }
    steps
}

const fn step(from: usize, nibble: usize) -> Transition {
    let mut step = Transition { next: 0, byte: 0, flags: 0 };
    let mut node = from;
    let mut left = 4;
    while left > 0 {
        left -= 1;
        let to = TREE[node][nibble >> left & 1];
        if to == NOWHERE {
            step.flags = BAD;
            return step;
        }
        if to & LEAF != 0 {
            step.flags = BYTE;
            step.byte = to as u8;
            node = 0;
        } else {
            node = to as usize;
        }
    }
    step.next = node as u8;
    step
}

const fn ends() -> [bool; 256] {
    let mut ends = [false; 256];
    let (mut node, mut ones) = (0, 0);
    while ones <= 8 {
        ends[node] = true;
        node = TREE[node][1] as usize;
        ones += 1;
    }
    ends
}

/// Appends what `input` stands for.
pub fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), BadCode> {
    out.reserve(input.len() + input.len() / 2);
    let mut node = 0;
    for &byte in input {
        for nibble in [byte >> 4, byte & 15] {
            let step = STEPS[node as usize][nibble as usize];
            if step.flags & BYTE != 0 {
                out.push(step.byte);
            }
            if step.flags & BAD != 0 {
                return Err(BadCode);
            }
            node = step.next;
        }
    }
    if ENDS[node as usize] { Ok(()) } else { Err(BadCode) }
}

/// How many bytes of the code a text of `len` bytes takes at most: no byte takes more than 30 bits.
pub const fn longest_code(len: usize) -> usize {
    len.saturating_mul(4)
}

/// How many bytes `input` takes in the code.
pub fn encoded_len(input: &[u8]) -> usize {
    let bits: usize = input.iter().map(|&byte| CODES[byte as usize].1 as usize).sum();
    bits.div_ceil(8)
}

/// Appends `input` in the code.
pub fn encode(input: &[u8], out: &mut Vec<u8>) {
    let (mut word, mut bits) = (0u64, 0);
    for &byte in input {
        let (code, len) = CODES[byte as usize];
        word = word << len | u64::from(code);
        bits += u32::from(len);
        while bits >= 8 {
            bits -= 8;
            out.push((word >> bits) as u8);
        }
    }
    if bits > 0 {
        let padding = 8 - bits;
        out.push((word << padding) as u8 | ((1 << padding) - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_the_rfc() {
        let mut out = Vec::new();
        encode(b"www.example.com", &mut out);
        assert_eq!(out, b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff");
    }

    #[test]
    fn padding_must_be_short_and_of_ones() {
        let mut out = Vec::new();
        // "a" is 00011; three bits of padding follow
        assert_eq!(decode(&[0b0001_1111], &mut out), Ok(()));
        assert_eq!(decode(&[0b0001_1110], &mut out), Err(BadCode));
        assert_eq!(decode(&[0b0001_1111, 0xff], &mut out), Err(BadCode));
        // "&" is 11111000
        assert_eq!(decode(&[0b1111_1000, 0xff], &mut out), Ok(()));
        assert_eq!(decode(&[0b1111_1000, 0xff, 0xff], &mut out), Err(BadCode));
        // the code of the end itself
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff], &mut out), Err(BadCode));
    }

    proptest! {
        #[test]
        fn what_was_encoded_comes_back(text in prop::collection::vec(any::<u8>(), 0..80)) {
            let (mut coded, mut back) = (Vec::new(), Vec::new());
            encode(&text, &mut coded);
            prop_assert_eq!(coded.len(), encoded_len(&text));
            prop_assert_eq!(decode(&coded, &mut back), Ok(()));
            prop_assert_eq!(back, text);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&bytes, &mut Vec::new());
        }
    }
}
