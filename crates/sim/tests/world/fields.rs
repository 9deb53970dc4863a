//! HTTP/3 frames and QPACK fields of clients, without the dynamic table.

/// Frame types.
pub const DATA: u64 = 0;
pub const HEADERS: u64 = 1;
pub const SETTINGS: u64 = 4;
pub const GOAWAY: u64 = 7;

/// `:status` in the static table: index and value.
const STATUS: &[(u64, u16)] = &[
    (24, 103),
    (25, 200),
    (26, 304),
    (27, 404),
    (28, 503),
    (63, 100),
    (64, 204),
    (65, 206),
    (66, 302),
    (67, 400),
    (68, 403),
    (69, 421),
    (70, 425),
    (71, 500),
];

/// Characters with Huffman codes of five, six and seven bits, each with the code of the first one.
/// Others are not decoded.
const CODES: [(u32, u32, &[u8]); 3] = [
    (5, 0, b"012aceiost"),
    (6, 0x14, b" %-./3456789=A_bdfghlmnpru"),
    (7, 0x5c, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
];

/// Appends a QUIC integer.
pub fn write_number(out: &mut Vec<u8>, n: u64) {
    match n {
        0..0x40 => out.push(n as u8),
        0x40..0x4000 => out.extend_from_slice(&(n as u16 | 0x4000).to_be_bytes()),
        _ => out.extend_from_slice(&(n as u32 | 0x8000_0000).to_be_bytes()),
    }
}

/// Takes a QUIC integer from the front.
pub fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let first = *bytes.first()?;
    let len = 1 << (first >> 6);
    let (number, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    let plain = number.iter().skip(1).fold(u64::from(first & 0x3f), |n, b| n << 8 | u64::from(*b));
    Some(plain)
}

/// Appends a frame.
pub fn frame(out: &mut Vec<u8>, kind: u64, payload: &[u8]) {
    write_number(out, kind);
    write_number(out, payload.len() as u64);
    out.extend_from_slice(payload);
}

/// Appends an HPACK integer that begins in the low bits of a byte.
fn write_prefixed(out: &mut Vec<u8>, high: u8, bits: u32, n: usize) {
    let most = (1 << bits) - 1;
    if n < most {
        return out.push(high | n as u8);
    }
    out.push(high | most as u8);
    let mut left = n - most;
    while left >= 0x80 {
        out.push(0x80 | left as u8);
        left >>= 7;
    }
    out.push(left as u8);
}

fn take_prefixed(bytes: &mut &[u8], bits: u32) -> Option<u64> {
    let (first, mut rest) = bytes.split_first()?;
    let most = (1 << bits) - 1;
    let mut n = u64::from(*first) & most;
    let mut shift = 0;
    while n >= most {
        let (next, after) = rest.split_first()?;
        rest = after;
        n += u64::from(next & 0x7f) << shift;
        shift += 7;
        if next & 0x80 == 0 {
            break;
        }
    }
    *bytes = rest;
    Some(n)
}

/// Appends a field section of literals.
pub fn section(out: &mut Vec<u8>, fields: &[(&str, &str)]) {
    out.extend_from_slice(&[0, 0]);
    for (name, value) in fields {
        write_prefixed(out, 0x20, 3, name.len());
        out.extend_from_slice(name.as_bytes());
        write_prefixed(out, 0, 7, value.len());
        out.extend_from_slice(value.as_bytes());
    }
}

/// Decodes a Huffman-coded string. It ends at a character that is not decoded.
fn decode(bytes: &[u8]) -> String {
    let (mut code, mut bits, mut text) = (0, 0, String::new());
    for at in 0..bytes.len() * 8 {
        code = code << 1 | u32::from(bytes[at / 8] >> (7 - at % 8) & 1);
        bits += 1;
        let of_length = CODES.iter().find(|(length, ..)| *length == bits);
        let found =
            of_length.and_then(|(_, first, all)| all.get(code.checked_sub(*first)? as usize));
        if let Some(found) = found {
            text.push(char::from(*found));
            (code, bits) = (0, 0);
        }
    }
    text
}

fn take_string(bytes: &mut &[u8], bits: u32) -> Option<String> {
    let coded = bytes.first()? >> bits & 1 == 1;
    let len = take_prefixed(bytes, bits)?;
    let (text, rest) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
    *bytes = rest;
    Some(if coded { decode(text) } else { String::from_utf8_lossy(text).into_owned() })
}

/// A decoded head. A field whose name is in the static table has its index as the name.
#[derive(Debug, Default, Clone)]
pub struct Read {
    pub status: u16,
    pub fields: Vec<(String, String)>,
}

/// Decodes a field section.
pub fn read(mut bytes: &[u8]) -> Option<Read> {
    let bytes = &mut bytes;
    let (earlier, _) = (take_prefixed(bytes, 8)?, take_prefixed(bytes, 7)?);
    if earlier > 0 {
        return None;
    }
    let mut head = Read::default();
    while let Some(first) = bytes.first().copied() {
        let status = |at: u64| STATUS.iter().find(|(index, _)| *index == at);
        let (index, name) = match first {
            0xc0.. => {
                let index = take_prefixed(bytes, 6)?;
                match status(index) {
                    Some((_, code)) => head.status = *code,
                    None => head.fields.push((index.to_string(), String::new())),
                }
                continue;
            }
            0x50..0x60 | 0x70..0x80 => (Some(take_prefixed(bytes, 4)?), None),
            0x20..0x40 => (None, Some(take_string(bytes, 3)?)),
            _ => return None,
        };
        let value = take_string(bytes, 7)?;
        match (index, name) {
            (Some(index), _) if status(index).is_some() => head.status = value.parse().ok()?,
            (index, name) => {
                let of_table = || index.unwrap_or_default().to_string();
                head.fields.push((name.unwrap_or_else(of_table), value));
            }
        }
    }
    Some(head)
}
