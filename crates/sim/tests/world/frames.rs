//! HTTP/2 frames, as clients and servers of the world write and parse them.

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;

/// The header of a frame.
pub struct Head {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

/// Appends a frame.
pub fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Takes the first complete frame.
pub fn take(buf: &mut Vec<u8>) -> Option<(Head, Vec<u8>)> {
    let [a, b, c, kind, flags, e, f, g, h] = *buf.first_chunk::<9>()?;
    let len = u32::from_be_bytes([0, a, b, c]) as usize;
    if buf.len() < 9 + len {
        return None;
    }
    let rest = buf.split_off(9 + len);
    let whole = std::mem::replace(buf, rest);
    let stream = u32::from_be_bytes([e, f, g, h]);
    Some((Head { kind, flags, stream }, whole[9..].to_vec()))
}

/// The number in the first four bytes.
pub fn word(payload: &[u8]) -> i64 {
    payload.first_chunk().map_or(0, |word| i64::from(u32::from_be_bytes(*word)))
}
