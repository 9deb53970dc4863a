//! What HPACK and QPACK share: the Huffman code, numbers and strings, the table of earlier fields.

mod codes;
pub(crate) mod huffman;
mod table;

pub(crate) use table::{DynamicTable, OVERHEAD};

/// Shorter strings gain nothing that is worth the looking.
const SHORT: usize = 3;

/// What a peer's fields may take.
#[derive(Clone, Copy, Debug)]
pub struct FieldLimits {
    /// Bytes of a name, and of a value, as they are written: in the Huffman code, five may stand for eight.
    pub field: usize,
    /// Bytes of all names and values, as nginx counts them. A limit that SETTINGS of HTTP/3 announce
    /// counts 32 more for each field, so what keeps to it is not refused.
    pub block: usize,
}

/// Appends a number that begins in the low bits of a byte, below the bits of `high`: RFC 7541 section 5.1.
pub(crate) fn write_number(high: u8, prefix: u32, number: u64, out: &mut Vec<u8>) {
    let most = (1 << prefix) - 1;
    if number < most {
        return out.push(high | number as u8);
    }
    out.push(high | most as u8);
    let mut left = number - most;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// Appends a string, in the Huffman code where that is shorter: RFC 7541 section 5.2. Its length begins in the low bits of
/// a byte; the bit above them tells of the code.
pub(crate) fn write_string(high: u8, prefix: u32, text: &[u8], out: &mut Vec<u8>) {
    if text.len() > SHORT {
        let coded = huffman::encoded_len(text);
        if coded < text.len() {
            write_number(high | 1 << prefix, prefix, coded as u64, out);
            return huffman::encode(text, out);
        }
    }
    write_number(high, prefix, text.len() as u64, out);
    out.extend_from_slice(text);
}

/// Hands a name on in lower case.
pub(crate) fn with_lower_case<T>(name: &[u8], then: impl FnOnce(&[u8]) -> T) -> T {
    let mut lower = [0; 64];
    match lower.get_mut(..name.len()) {
        Some(lower) => {
            lower.copy_from_slice(name);
            lower.make_ascii_lowercase();
            then(lower)
        }
        None => then(&name.to_ascii_lowercase()),
    }
}
