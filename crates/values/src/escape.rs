//! Escapes text for JSON and for lines of a head.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Range;

/// Bytes that a field value must not contain: RFC 9110, section 5.5.
fn ends_line(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n' | 0)
}

/// Whether a text contains a byte that ends a line. Without an early exit, many bytes are compared
/// at once; most values are too short for more.
#[inline]
fn has_line_end(text: &[u8]) -> bool {
    text.iter().fold(false, |any, byte| any | ends_line(*byte))
}

/// A text of the configuration as one line. Each line end, with the blanks around it, becomes a
/// space, and the outermost blanks are removed. Recipients read folded lines in the same way: RFC
/// 9112, section 5.2. A text without line ends is unchanged.
pub fn one_line(text: &[u8]) -> Cow<'_, [u8]> {
    if !has_line_end(text) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    fold(text, &mut out);
    Cow::Owned(out.trim_ascii().to_vec())
}

fn fold(text: &[u8], out: &mut Vec<u8>) {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t') || ends_line(*byte);
    for run in text.chunk_by(|a, b| is_blank(a) == is_blank(b)) {
        if has_line_end(run) { out.push(b' ') } else { out.extend_from_slice(run) }
    }
}

/// Texts of several lines that the configuration gives to variables (`map`, `set` and the like). In
/// a field value, their line ends become spaces. All other line ends come from requests and are
/// escaped.
#[derive(Debug, Default)]
pub struct OwnTexts(Vec<Box<[u8]>>);

impl OwnTexts {
    /// Adds a text, if it has several lines and not only blanks. True if it was added.
    pub fn add(&mut self, text: &[u8]) -> bool {
        let is_one = has_line_end(text) && text.iter().any(|byte| *byte > b' ');
        if is_one && !self.0.iter().any(|known| **known == *text) {
            self.0.push(text.into());
        }
        is_one
    }

    /// The ranges of such texts in a value, in order and without overlaps. Of several that begin
    /// together, the longest counts.
    fn find(&self, value: &[u8]) -> Vec<Range<usize>> {
        let places =
            self.0.iter().filter(|text| text.len() <= value.len()).flat_map(|text| {
                memchr::memmem::find_iter(value, text).map(|at| at..at + text.len())
            });
        let mut places: Vec<_> = places.chain(certificates(value)).collect();
        places.sort_unstable_by_key(|place| (place.start, Reverse(place.end)));
        let mut end = 0;
        places.retain(|place| {
            let is_free = place.start >= end;
            end = if is_free { place.end } else { end };
            is_free
        });
        places
    }
}

/// The ranges of certificates in a value, in the form of `$ssl_client_cert` and
/// `$ssl_client_raw_cert`. The server makes these texts itself, and upstreams accept them in one
/// line: Apache sends a certificate with spaces, too.
fn certificates(value: &[u8]) -> impl Iterator<Item = Range<usize>> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    const END: &[u8] = b"-----END CERTIFICATE-----";
    // The first end behind the last beginning. Each part of the value is searched once, since a
    // client may send very many beginnings.
    let mut next = 0;
    let texts = memchr::memmem::find_iter(value, BEGIN).map_while(move |start| {
        let from = start + BEGIN.len();
        if next < from {
            next = from + memchr::memmem::find(&value[from..], END)?;
        }
        Some((start, from..next))
    });
    texts.filter_map(|(start, text)| {
        let is_own = |b: &u8| b.is_ascii_alphanumeric() || b"+/=\n\t".contains(b);
        let mut end = text.end + END.len();
        end += usize::from(value.get(end) == Some(&b'\n'));
        value[text].iter().all(is_own).then_some(start..end)
    })
}

/// Keeps the bytes of `out` from `start` on within their line. CR, LF and NUL would end the line
/// and begin another one. Those of the configuration's own texts and of certificates become spaces;
/// all others are percent-encoded. Every field value that is written must pass here, since a
/// decoded path may contain any byte.
#[inline]
pub fn within_line(out: &mut Vec<u8>, start: usize, own: &OwnTexts) {
    if out.get(start..).is_some_and(has_line_end) {
        escape_within_line(out, start, own);
    }
}

#[cold]
fn escape_within_line(out: &mut Vec<u8>, start: usize, own: &OwnTexts) {
    let value = out.split_off(start);
    let mut from = 0;
    for place in own.find(&value) {
        percent(&value[from..place.start], out, ends_line);
        from = place.end;
        let text = &value[place.clone()];
        let text = if place.start == 0 { text.trim_ascii_start() } else { text };
        fold(if from == value.len() { text.trim_ascii_end() } else { text }, out);
    }
    percent(&value[from..], out, ends_line);
}

/// As [`within_line`], for a field name: bytes that are no token characters are percent-encoded.
/// RFC 9110, section 5.1.
pub fn within_name(out: &mut Vec<u8>, start: usize) {
    if !is_name(out.get(start..).unwrap_or_default()) {
        let name = out.split_off(start);
        percent(&name, out, |byte| !is_token(byte));
    }
}

/// Whether a field may have this name. The empty name is true here, and its writer leaves the line
/// out.
pub fn is_name(name: &[u8]) -> bool {
    name.iter().all(|byte| is_token(*byte))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// As [`within_line`], for a word of a request line (method, target): spaces and other control
/// characters are percent-encoded as well.
pub fn within_word(out: &mut Vec<u8>, start: usize) {
    let ends = |byte: u8| byte <= b' ' || byte == 0x7f;
    // Without an early exit, many bytes are compared at once.
    if out.get(start..).unwrap_or_default().iter().fold(false, |any, byte| any | ends(*byte)) {
        let word = out.split_off(start);
        percent(&word, out, ends);
    }
}

#[cold]
fn percent(text: &[u8], out: &mut Vec<u8>, escapes: impl Fn(u8) -> bool) {
    for &byte in text {
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

/// Bytes in lower-case hexadecimal.
pub fn hex_text(bytes: &[u8]) -> String {
    let digit = |n: u8| char::from(n + if n < 10 { b'0' } else { b'a' - 10 });
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// A byte as two upper-case hexadecimal digits.
pub fn hex(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_text_of_several_lines_becomes_one() {
        for (text, line) in [
            (
                "\n    default-src 'self';\r\n\tscript-src 'self';\n  ",
                "default-src 'self'; script-src 'self';",
            ),
            ("a  b\t", "a  b\t"),
            ("a \t \n\n b  c", "a b  c"),
            ("a\0b", "a b"),
            ("\n", ""),
        ] {
            assert_eq!(one_line(text.as_bytes()), line.as_bytes());
        }
    }

    #[test]
    fn texts_of_the_configuration_are_found_within_values() {
        let mut own = OwnTexts::default();
        assert!(own.add(b"a;\n  b;\n") && own.add(b"a;\n"));
        assert!(!own.add(b"one line") && !own.add(b"\n"));
        for (value, line) in [
            ("a;\n  b;\n", "a; b;"),
            ("x a;\n  b;\ny\n", "x a; b; y%0A"),
            ("a;\na;\n  b;\r", "a; a;   b;%0D"),
            ("a;\n  b;\na;\n", "a; b; a;"),
        ] {
            let mut out = b"before ".to_vec();
            out.extend_from_slice(value.as_bytes());
            within_line(&mut out, 7, &own);
            assert_eq!(String::from_utf8_lossy(&out), format!("before {line}"));
        }
    }

    #[test]
    fn a_certificate_is_one_line() {
        let own = OwnTexts::default();
        let line = |value: &str| {
            let mut out = value.as_bytes().to_vec();
            within_line(&mut out, 0, &own);
            String::from_utf8(out).unwrap()
        };
        let one = "-----BEGIN CERTIFICATE----- MIIB+/ ab== -----END CERTIFICATE-----";
        for end in ["\n", "\n\t"] {
            let pem = one.replace("- M", &format!("-{end}M"));
            let pem = pem.replace("/ a", &format!("/{end}a")).replace("= -", &format!("={end}-"));
            assert_eq!(line(&pem), one);
            assert_eq!(line(&format!("{pem}\n")), one);
            assert_eq!(line(&format!("x {pem}\nX: y")), format!("x {one} X: y"));
        }
        let other = "-----BEGIN CERTIFICATE-----\nX-Evil: y\n-----END CERTIFICATE-----";
        assert_eq!(line(other), other.replace('\n', "%0A"));
    }

    /// A search for the end behind each beginning would take hours.
    #[test]
    fn a_value_of_many_beginnings_of_certificates_is_searched_once() {
        let begin = "-----BEGIN CERTIFICATE-----";
        let many = begin.repeat(1_000_000);
        let own = OwnTexts::default();
        for (end, written) in
            [("\n", "%0A"), ("\n-----END CERTIFICATE-----", " -----END CERTIFICATE-----")]
        {
            let mut out = format!("{many}{end}").into_bytes();
            within_line(&mut out, 0, &own);
            assert!(out == format!("{many}{written}").into_bytes());
        }
    }

    proptest! {
        #[test]
        fn no_value_leaves_its_line_or_its_word(
            before in any::<Vec<u8>>(),
            text in prop::collection::vec(prop_oneof![any::<u8>(), 0u8..33], 0..40),
            own in prop::collection::vec((0usize..40, 0usize..40), 0..4),
        ) {
            // Some parts of the text are the configuration's.
            let mut texts = OwnTexts::default();
            for (from, to) in own {
                texts.add(text.get(from..to).unwrap_or_default());
            }
            let mut line = [before.clone(), text.clone()].concat();
            within_line(&mut line, before.len(), &texts);
            let mut name = text.clone();
            within_name(&mut name, 0);
            prop_assert!(is_name(&name));
            prop_assert!(!one_line(&text).iter().any(|b| ends_line(*b)));
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
