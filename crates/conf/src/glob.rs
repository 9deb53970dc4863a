//! File name patterns of `include`, as glob(3) without flags reads them.
//!
//! `*`, `?`, `[a-z]`, `[!a-z]`, `[[:alpha:]]` and backslashes; a slash is never matched by a
//! pattern, a leading period only by a period; names come in byte order (nginx sets no locale).
//! Collating symbols (`[[.-.]]`, `[[=a=]]`) are not known.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A path in which none of these occurs is a plain file name.
pub(crate) fn is_pattern(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().any(|b| matches!(b, b'*' | b'?' | b'['))
}

/// The existing paths that match, in order. What cannot be read matches nothing.
pub(crate) fn expand(pattern: &Path) -> Vec<PathBuf> {
    let mut rest = pattern.as_os_str().as_bytes();
    let mut found = vec![Vec::new()];
    while !rest.is_empty() {
        let slashes = rest.iter().take_while(|&&b| b == b'/').count();
        let (separator, tail) = rest.split_at(slashes);
        let end = tail.iter().position(|&b| b == b'/').unwrap_or(tail.len());
        let (part, tail) = tail.split_at(end);
        found = found
            .into_iter()
            .flat_map(|mut base| {
                base.extend_from_slice(separator);
                step(base, part, tail.is_empty())
            })
            .collect();
        rest = tail;
    }
    found.sort();
    found.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))).collect()
}

/// All continuations of `base` by one part of the pattern. `base` ends with a slash or is empty.
fn step(base: Vec<u8>, part: &[u8], last: bool) -> Vec<Vec<u8>> {
    let join = |name: &[u8]| [base.as_slice(), name].concat();
    if !is_pattern(Path::new(OsStr::from_bytes(part))) {
        let path = join(&literal(part));
        let exists = Path::new(OsStr::from_bytes(&path)).symlink_metadata().is_ok();
        return if !last || exists { vec![path] } else { Vec::new() };
    }
    let dir = if base.is_empty() { b".".as_slice() } else { &base };
    let Ok(entries) = std::fs::read_dir(Path::new(OsStr::from_bytes(dir))) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|name| matches(part, name.as_bytes()))
        .map(|name| join(name.as_bytes()))
        .collect()
}

fn literal(part: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(part.len());
    let mut bytes = part.iter();
    while let Some(&byte) = bytes.next() {
        let byte = if byte == b'\\' { bytes.next().copied().unwrap_or(b'\\') } else { byte };
        out.push(byte);
    }
    out
}

/// A name against one part of a pattern. Only the last star is ever retried, so that the time is
/// bounded by the product of both lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.starts_with(b".") && !pattern.starts_with(b".") && !pattern.starts_with(b"\\.") {
        return false;
    }
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        let rest = pattern.get(p..).unwrap_or_default();
        if rest.first() == Some(&b'*') {
            star = Some((p + 1, n));
            p += 1;
            continue;
        }
        let Some(&byte) = name.get(n) else {
            return rest.is_empty();
        };
        if let Some(len) = one(rest, byte) {
            p += len;
            n += 1;
        } else if let Some((after, from)) = star {
            star = Some((after, from + 1));
            p = after;
            n = from + 1;
        } else {
            return false;
        }
    }
}

/// The length of the pattern's first element, if that element matches this byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', rest @ ..] => match set(rest, byte) {
            Some((len, true)) => Some(1 + len),
            Some((_, false)) => None,
            None => (byte == b'[').then_some(1),
        },
        [plain, ..] => (*plain == byte).then_some(1),
        [] => None,
    }
}

/// A set after its `[`: its length with the `]`, and whether the byte is in it. None if it never
/// ends, and then the bracket is an ordinary byte.
fn set(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.first(), Some(b'!' | b'^'));
    let start = usize::from(negated);
    let mut at = start;
    let mut hit = false;
    loop {
        let rest = pattern.get(at..)?;
        match rest {
            [b']', ..] if at > start => return Some((at + 1, hit != negated)),
            [b'[', b':', class @ ..] => {
                let len = class.windows(2).position(|w| w == b":]")?;
                hit |= in_class(class.get(..len)?, byte);
                at += len + 4;
            }
            _ => {
                let (low, len) = element(rest)?;
                at += len;
                let high = match pattern.get(at..)? {
                    [b'-', end, ..] if *end != b']' => {
                        let (high, len) = element(pattern.get(at + 1..)?)?;
                        at += 1 + len;
                        high
                    }
                    _ => low,
                };
                hit |= (low..=high).contains(&byte);
            }
        }
    }
}

fn element(pattern: &[u8]) -> Option<(u8, usize)> {
    match pattern {
        [b'\\', escaped, ..] => Some((*escaped, 2)),
        [byte, ..] => Some((*byte, 1)),
        [] => None,
    }
}

fn in_class(class: &[u8], byte: u8) -> bool {
    match class {
        b"alpha" => byte.is_ascii_alphabetic(),
        b"digit" => byte.is_ascii_digit(),
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"upper" => byte.is_ascii_uppercase(),
        b"lower" => byte.is_ascii_lowercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"graph" => byte.is_ascii_graphic(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_against_patterns() {
        for (pattern, name, expected) in [
            ("*.conf", "a.conf", true),
            ("*.conf", ".conf", false),
            (".*", ".conf", true),
            ("*.conf", "a.conf~", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?x", "ax", true),
            ("?x", ".x", false),
            ("[0-9]*", "00-a", true),
            ("[!0-9]*", "00-a", false),
            ("[^a]", "b", true),
            ("[]]x", "]x", true),
            ("[a-]", "-", true),
            ("[[:digit:]]x", "7x", true),
            ("[[:digit:]]x", "ax", false),
            ("[", "[", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("**", "abc", true),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    /// The definition itself, without regard to time.
    fn by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=name.len()).any(|n| by_definition(rest, &name[n..])),
            ([b'?', rest @ ..], [_, tail @ ..]) => by_definition(rest, tail),
            ([a, rest @ ..], [b, tail @ ..]) => a == b && by_definition(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn stars_match_as_defined(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(matches(pattern, name), by_definition(pattern, name));
        }

        #[test]
        fn any_pattern_ends(
            pattern in prop::collection::vec(any::<u8>(), 0..40),
            brackets in "[\\[\\]!^:a-z*\\\\-]{0,20}",
            name in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            matches(&pattern, &name);
            matches(brackets.as_bytes(), &name);
        }
    }

    #[test]
    fn many_stars_end_soon() {
        let pattern = "*a".repeat(60) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(2000).as_bytes()));
    }
}
