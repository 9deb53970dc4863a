//! Encodes field blocks without the dynamic table. So the bytes of a block do not depend on earlier blocks, and streams may
//! encode theirs in any order. nginx does the same.

use crate::compression::{with_lower_case, write_number, write_string};

/// A table size update to 0. It must begin the next block after the peer has lowered SETTINGS_HEADER_TABLE_SIZE (RFC 7541,
/// section 4.2).
pub fn empty_table(out: &mut Vec<u8>) {
    out.push(0x20);
}

/// A field of the static table.
#[inline]
pub fn indexed(index: u8, out: &mut Vec<u8>) {
    out.push(0x80 | index);
}

/// A literal field with a name of the static table.
pub fn with_name_of(index: u8, value: &[u8], out: &mut Vec<u8>) {
    write_number(0, 4, index.into(), out);
    write_string(0, 7, value, out);
}

/// A literal field. The name becomes lower case, and is indexed if the static table has it.
pub fn field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    with_lower_case(name, |name| lower_field(name, value, out));
}

fn lower_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    match name_index(name) {
        Some(index) => with_name_of(index, value, out),
        None => {
            out.push(0);
            write_string(0, 7, name, out);
            write_string(0, 7, value, out);
        }
    }
}

/// `:status`
pub fn status(status: u16, out: &mut Vec<u8>) {
    let index = match status {
        200 => 8,
        204 => 9,
        206 => 10,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        _ => {
            let digits = [status / 100 % 10, status / 10 % 10, status % 10];
            return with_name_of(8, &digits.map(|digit| b'0' + digit as u8), out);
        }
    };
    indexed(index, out);
}

/// The index of a name in the static table.
fn name_index(name: &[u8]) -> Option<u8> {
    Some(match name {
        b"accept" => 19,
        b"accept-charset" => 15,
        b"accept-encoding" => 16,
        b"accept-language" => 17,
        b"accept-ranges" => 18,
        b"access-control-allow-origin" => 20,
        b"age" => 21,
        b"allow" => 22,
        b"authorization" => 23,
        b"cache-control" => 24,
        b"content-disposition" => 25,
        b"content-encoding" => 26,
        b"content-language" => 27,
        b"content-length" => 28,
        b"content-location" => 29,
        b"content-range" => 30,
        b"content-type" => 31,
        b"cookie" => 32,
        b"date" => 33,
        b"etag" => 34,
        b"expect" => 35,
        b"expires" => 36,
        b"from" => 37,
        b"host" => 38,
        b"if-match" => 39,
        b"if-modified-since" => 40,
        b"if-none-match" => 41,
        b"if-range" => 42,
        b"if-unmodified-since" => 43,
        b"last-modified" => 44,
        b"link" => 45,
        b"location" => 46,
        b"max-forwards" => 47,
        b"proxy-authenticate" => 48,
        b"proxy-authorization" => 49,
        b"range" => 50,
        b"referer" => 51,
        b"refresh" => 52,
        b"retry-after" => 53,
        b"server" => 54,
        b"set-cookie" => 55,
        b"strict-transport-security" => 56,
        b"transfer-encoding" => 57,
        b"user-agent" => 58,
        b"vary" => 59,
        b"via" => 60,
        b"www-authenticate" => 61,
        _ => return None,
    })
}
