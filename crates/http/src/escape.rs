//! Escaping of text that becomes part of JSON.

/// Appends `bytes` as the inside of a JSON string; bytes above 0x7f stay as they are. nginx: ngx_escape_json.
pub fn json_escape(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        if json_escapes(byte) {
            json_escaped(byte, out);
        } else {
            out.push(byte);
        }
    }
}

/// Whether a byte is escaped in JSON strings.
pub fn json_escapes(byte: u8) -> bool {
    matches!(byte, 0..0x20 | b'"' | b'\\')
}

fn json_escaped(byte: u8, out: &mut Vec<u8>) {
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => {
            out.extend_from_slice(b"\\u00");
            out.extend_from_slice(&hex(byte));
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

/// Bytes as two small digits each.
pub fn hex_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A byte as two digits.
pub fn hex(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}
