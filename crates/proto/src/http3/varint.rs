//! Variable-length integers: RFC 9000, section 16.

/// The largest number.
pub const MAX: u64 = (1 << 62) - 1;

/// Takes a number from the start of `input`, if it is complete.
#[inline]
pub fn take(input: &mut &[u8]) -> Option<u64> {
    let (&first, _) = input.split_first()?;
    let (bytes, rest) = input.split_at_checked(1 << (first >> 6))?;
    *input = rest;
    let mask = MAX >> (62 - (8 * bytes.len() - 2));
    Some(bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)) & mask)
}

/// The length of a number as [`write()`] encodes it.
#[inline]
pub const fn len(number: u64) -> usize {
    match number {
        ..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Appends a number in as few bytes as possible. Writes [`MAX`] for larger numbers.
#[inline]
pub fn write(number: u64, out: &mut Vec<u8>) {
    let number = number.min(MAX);
    match len(number) {
        1 => out.push(number as u8),
        2 => out.extend_from_slice(&(number as u16 | 1 << 14).to_be_bytes()),
        4 => out.extend_from_slice(&(number as u32 | 2 << 30).to_be_bytes()),
        _ => out.extend_from_slice(&(number | 3 << 62).to_be_bytes()),
    }
}

/// A number that may be incomplete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartialVarint {
    number: u64,
    /// The number of missing bytes. 0 before the first byte.
    left: u8,
}

impl PartialVarint {
    /// Takes bytes from the start of `input` until the number is complete. Then the next call begins another number.
    #[inline]
    pub fn read(&mut self, input: &mut &[u8]) -> Option<u64> {
        if self.left == 0 {
            if let Some(number) = take(input) {
                return Some(number);
            }
            let (&first, rest) = input.split_first()?;
            *input = rest;
            *self =
                PartialVarint { number: u64::from(first & 0x3f), left: (1 << (first >> 6)) - 1 };
        }
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            self.number = self.number << 8 | u64::from(byte);
            self.left -= 1;
            if self.left == 0 {
                return Some(std::mem::take(self).number);
            }
        }
        None
    }

    /// The number has begun and is incomplete.
    #[inline]
    pub fn is_begun(self) -> bool {
        self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_examples_of_the_rfc() {
        let read = |mut bytes: &[u8]| (take(&mut bytes), bytes.len());
        let eight = b"\xc2\x19\x7c\x5e\xff\x14\xe8\x8c";
        assert_eq!(read(eight), (Some(151_288_809_941_952_652), 0));
        assert_eq!(read(b"\x9d\x7f\x3e\x7d"), (Some(494_878_333), 0));
        assert_eq!(read(b"\x7b\xbd"), (Some(15_293), 0));
        assert_eq!(read(b"\x25"), (Some(37), 0));
        assert_eq!(read(b"\x40\x25"), (Some(37), 0));
        assert_eq!(read(b"\x40"), (None, 1));
        assert_eq!(read(b"\xff\xff\xff\xff\xff\xff\xff\xff!"), (Some(MAX), 1));
    }

    #[test]
    fn no_number_is_too_large_to_write() {
        let mut out = Vec::new();
        write(u64::MAX, &mut out);
        assert_eq!(take(&mut &out[..]), Some(MAX));
    }

    proptest! {
        #[test]
        fn numbers_come_back(random: u64, shift in 2..64, tail in 0usize..3) {
            let number = random >> shift;
            let mut out = Vec::new();
            write(number, &mut out);
            prop_assert_eq!(out.len(), len(number));
            let whole = out.len();
            out.resize(whole + tail, 0xff);
            let mut rest = &out[..];
            prop_assert_eq!(take(&mut rest), Some(number));
            prop_assert_eq!(rest.len(), tail);
            for cut in 0..whole {
                let mut partial = PartialVarint::default();
                let (mut left, mut right) = out.split_at(cut);
                prop_assert_eq!(partial.read(&mut left), None);
                prop_assert_eq!((left.len(), partial.is_begun()), (0, cut > 0));
                prop_assert_eq!(partial.read(&mut right), Some(number));
                prop_assert_eq!((right.len(), partial.is_begun()), (tail, false));
            }
        }
    }
}
