//! Encodes field sections without the dynamic table. So the bytes of a section do not depend on
//! earlier sections, streams may encode theirs in any order, and none is blocked.

use super::static_table::STATIC;
use crate::compression::{with_lower_case, write_number, write_string};

/// The prefix of a section without references to the dynamic table.
#[inline]
pub fn begin_section(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// A field of the static table.
#[inline]
pub fn indexed(index: u8, out: &mut Vec<u8>) {
    write_number(0xc0, 6, index.into(), out);
}

/// A cache of encoded fields. Most answers of a server have the same few.
#[derive(Debug)]
pub struct FieldMemo(Vec<CachedField>);

#[derive(Debug, Default)]
struct CachedField {
    name: Vec<u8>,
    value: Vec<u8>,
    written: Vec<u8>,
}

/// The number of cached fields.
const CACHED_FIELDS: usize = 64;
/// Longer values are not.
const LONGEST_CACHED: usize = 128;

impl Default for FieldMemo {
    fn default() -> FieldMemo {
        FieldMemo((0..CACHED_FIELDS).map(|_| CachedField::default()).collect())
    }
}

impl FieldMemo {
    /// As [`field`].
    pub fn field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let (Some(first), true) = (name.first(), value.len() <= LONGEST_CACHED) else {
            return field(name, value, out);
        };
        // The slot depends on the name's first byte and both lengths. So a new value of the same length replaces the old one.
        let place = usize::from(*first) * 7 + name.len() * 5 + value.len();
        let Some(kept) = self.0.get_mut(place % CACHED_FIELDS) else { return };
        if kept.name != name || kept.value != value {
            kept.written.clear();
            field(name, value, &mut kept.written);
            for (to, from) in [(&mut kept.name, name), (&mut kept.value, value)] {
                to.clear();
                to.extend_from_slice(from);
            }
        }
        out.extend_from_slice(&kept.written);
    }
}

/// A literal field with a name of the static table.
pub fn with_name_of(index: u8, value: &[u8], out: &mut Vec<u8>) {
    write_number(0x50, 4, index.into(), out);
    write_string(0, 7, value, out);
}

/// A field, indexed if the static table has it or its name. The name becomes lower case.
pub fn field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    with_lower_case(name, |name| lower_field(name, value, out));
}

fn lower_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let known = indices(name);
    let Some(&first) = known.first() else {
        write_string(0x20, 3, name, out);
        return write_string(0, 7, value, out);
    };
    let same = |index: &&u8| STATIC.get(usize::from(**index)).is_some_and(|row| row.1 == value);
    match known.iter().find(same) {
        Some(&index) => indexed(index, out),
        None => with_name_of(first, value, out),
    }
}

/// `:status`
pub fn status(status: u16, out: &mut Vec<u8>) {
    let digits = [status / 100 % 10, status / 10 % 10, status % 10];
    lower_field(b":status", &digits.map(|digit| b'0' + digit as u8), out);
}

/// The indices of a name in the static table.
fn indices(name: &[u8]) -> &'static [u8] {
    match name {
        b":authority" => &[0],
        b":method" => &[15, 16, 17, 18, 19, 20, 21],
        b":path" => &[1],
        b":scheme" => &[22, 23],
        b":status" => &[25, 26, 27, 24, 28, 63, 64, 65, 66, 67, 68, 69, 70, 71],
        b"accept" => &[29, 30],
        b"accept-encoding" => &[31],
        b"accept-language" => &[72],
        b"accept-ranges" => &[32],
        b"access-control-allow-credentials" => &[73, 74],
        b"access-control-allow-headers" => &[33, 34, 75],
        b"access-control-allow-methods" => &[76, 77, 78],
        b"access-control-allow-origin" => &[35],
        b"access-control-expose-headers" => &[79],
        b"access-control-request-headers" => &[80],
        b"access-control-request-method" => &[81, 82],
        b"age" => &[2],
        b"alt-svc" => &[83],
        b"authorization" => &[84],
        b"cache-control" => &[36, 37, 38, 39, 40, 41],
        b"content-disposition" => &[3],
        b"content-encoding" => &[42, 43],
        b"content-length" => &[4],
        b"content-security-policy" => &[85],
        b"content-type" => &[44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54],
        b"cookie" => &[5],
        b"date" => &[6],
        b"early-data" => &[86],
        b"etag" => &[7],
        b"expect-ct" => &[87],
        b"forwarded" => &[88],
        b"if-modified-since" => &[8],
        b"if-none-match" => &[9],
        b"if-range" => &[89],
        b"last-modified" => &[10],
        b"link" => &[11],
        b"location" => &[12],
        b"origin" => &[90],
        b"purpose" => &[91],
        b"range" => &[55],
        b"referer" => &[13],
        b"server" => &[92],
        b"set-cookie" => &[14],
        b"strict-transport-security" => &[56, 57, 58],
        b"timing-allow-origin" => &[93],
        b"upgrade-insecure-requests" => &[94],
        b"user-agent" => &[95],
        b"vary" => &[59, 60],
        b"x-content-type-options" => &[61],
        b"x-forwarded-for" => &[96],
        b"x-frame-options" => &[97, 98],
        b"x-xss-protection" => &[62],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_fields_are_encoded_as_new_ones() {
        let mut memo = FieldMemo::default();
        let long = [b'v'; LONGEST_CACHED + 1];
        for _ in 0..2 {
            for (name, value) in [
                (&b"Server"[..], &b"weir"[..]),
                (b"server", b"weir"),
                (b"server", b"wehr"),
                (b"Date", b"Mon, 01 Jan 2024 00:00:00 GMT"),
                (b"Date", b"Mon, 01 Jan 2024 00:00:01 GMT"),
                (b"", b"nameless"),
                (b"x-empty", b""),
                (b"x-long", &long),
            ] {
                let (mut expected, mut out) = (Vec::new(), Vec::new());
                field(name, value, &mut expected);
                memo.field(name, value, &mut out);
                assert_eq!(out, expected);
            }
        }
    }

    #[test]
    fn every_row_of_the_table_is_found() {
        for (index, (name, value)) in STATIC.iter().enumerate() {
            let mut out = Vec::new();
            field(name, value, &mut out);
            let mut expected = Vec::new();
            indexed(index as u8, &mut expected);
            assert_eq!(out, expected, "{index}");
        }
    }
}
