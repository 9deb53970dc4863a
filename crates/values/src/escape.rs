//! Escaping of text that becomes part of JSON, or of a line of a head.

/// Keeps what stands in `out` from `start` on within its line: CR, LF and NUL, which would end the line and begin
/// another one, are escaped as in a URL. All values of heads and trailers that a configuration computes go through
/// here, whoever writes them: a decoded path may have any byte.
#[inline]
pub fn within_line(out: &mut Vec<u8>, start: usize) {
    let ends = |byte: u8| matches!(byte, b'\r' | b'\n' | 0);
    // Without a way out, so that many bytes are compared at once: most values are too short for more.
    if out.get(start..).unwrap_or_default().iter().fold(false, |any, byte| any | ends(*byte)) {
        percent(out, start, ends);
    }
}

/// As [`within_line`], for a word of a request line (method, target): spaces and other control characters would end
/// it, too.
pub fn within_word(out: &mut Vec<u8>, start: usize) {
    let ends = |byte: u8| byte <= b' ' || byte == 0x7f;
    // Without a way out, so that many bytes are compared at once.
    if out.get(start..).unwrap_or_default().iter().fold(false, |any, byte| any | ends(*byte)) {
        percent(out, start, ends);
    }
}

#[cold]
fn percent(out: &mut Vec<u8>, start: usize, escapes: impl Fn(u8) -> bool) {
    for byte in out.split_off(start) {
        if escapes(byte) {
            out.push(b'%');
            out.extend_from_slice(&hex(byte));
        } else {
            out.push(byte);
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_leaves_its_line_or_its_word(
            before in any::<Vec<u8>>(),
            text in prop::collection::vec(prop_oneof![any::<u8>(), 0u8..33], 0..40),
        ) {
            let mut line = [before.clone(), text.clone()].concat();
            within_line(&mut line, before.len());
            let mut word = [before.clone(), text.clone()].concat();
            within_word(&mut word, before.len());
            prop_assert_eq!(&line[..before.len()], &before[..]);
            prop_assert_eq!(&word[..before.len()], &before[..]);
            let (line, word) = (&line[before.len()..], &word[before.len()..]);
            prop_assert!(!line.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)));
            prop_assert!(!word.iter().any(|b| *b <= b' ' || *b == 0x7f));
            if !text.iter().any(|b| *b <= b' ' || *b == 0x7f) {
                prop_assert!(line == text && word == text);
            }
        }
    }
}
