//! Cache keys, and the file names that follow from them. The names are nginx's, so that operators
//! find the files.

use std::path::PathBuf;

use md5::{Digest, Md5};

use crate::head;

/// From this byte on, a key and its variants are equal. Three levels of two digits need three
/// bytes.
const SHARED_FROM: usize = 12;

/// The key of a stored answer: the MD5 of the key's text. nginx: `proxy_cache_key`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey(pub [u8; 16]);

/// The key of a variant: a hash over the main key and the request headers that `Vary` names.
pub type Variant = CacheKey;

impl CacheKey {
    /// The key of this text.
    pub fn of(text: &[u8]) -> CacheKey {
        CacheKey(Md5::digest(text).into())
    }

    /// The key of the variant that a request selects. `headers` gives the request's values of a
    /// header in `vary`. The file lies in the same directory as the main key's: see
    /// [`CacheKey::is_beside`].
    pub fn variant<'h, I>(
        &self,
        vary: &[u8],
        same: VariantMatching,
        headers: impl Fn(&[u8]) -> I,
    ) -> Variant
    where
        I: Iterator<Item = &'h [u8]>,
    {
        let mut hash = Md5::new();
        hash.update(self.0);
        for name in words(vary) {
            let name = name.to_ascii_lowercase();
            hash.update(&name);
            hash.update(b":");
            if same == VariantMatching::Meaning {
                hash.update(meaning(&name, headers(&name)));
                hash.update(b"\r\n");
                continue;
            }
            let mut several = false;
            let mut add = |value: &[u8]| {
                if std::mem::replace(&mut several, true) {
                    hash.update(b",");
                }
                hash.update(value);
            };
            for value in headers(&name) {
                match NORMALISED.contains(&name.as_slice()) {
                    true => words(value).for_each(&mut add),
                    false => add(value),
                }
            }
            hash.update(b"\r\n");
        }
        let mut key: [u8; 16] = hash.finalize().into();
        key[SHARED_FROM..].copy_from_slice(&self.0[SHARED_FROM..]);
        CacheKey(key)
    }

    /// Whether two keys have the same end, as a main key and its variants have. Their files are in
    /// one directory, since the end of a key names it.
    pub fn is_beside(&self, other: &CacheKey) -> bool {
        self.0[SHARED_FROM..] == other.0[SHARED_FROM..]
    }

    /// The key in hexadecimal digits, which is the file's name.
    pub fn hex(&self) -> String {
        let digit = |n: u8| char::from(if n < 10 { b'0' + n } else { b'a' + n - 10 });
        self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }

    /// Parses a file's name.
    pub fn from_hex(name: &str) -> Option<CacheKey> {
        if name.len() != 32 || !name.is_ascii() {
            return None;
        }
        let mut key = [0; 16];
        for (i, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(name.get(2 * i..2 * i + 2)?, 16).ok()?;
        }
        Some(CacheKey(key))
    }

    /// The path below the cache's directory: `c/29/...29c` for `levels=1:2`.
    pub fn path(&self, levels: &[usize]) -> PathBuf {
        let name = self.hex();
        let mut path = PathBuf::with_capacity(2 * name.len());
        let mut end = name.len();
        for digits in levels {
            let start = end.saturating_sub(*digits);
            path.push(name.get(start..end).unwrap_or_default());
            end = start;
        }
        path.push(name);
        path
    }
}

/// When two values of a header select the same variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariantMatching {
    /// As in nginx: by words in `NORMALISED` headers, by bytes in others.
    Words,
    /// As RFC 9111 allows, section 4.1: spaces around commas do not matter. In `NORMALISED`
    /// headers, other spaces, case and order do not matter either.
    Meaning,
}

/// Normalises all values of a header, so that values with the same meaning become equal.
fn meaning<'h>(name: &[u8], values: impl Iterator<Item = &'h [u8]>) -> Vec<u8> {
    let is_list = NORMALISED.contains(&name);
    let mut members: Vec<Vec<u8>> = Vec::new();
    for value in values {
        members.extend(head::members(value).map(|member| {
            match is_list {
                true => member
                    .iter()
                    .filter(|b| !b.is_ascii_whitespace())
                    .map(u8::to_ascii_lowercase)
                    .collect(),
                false => member.to_vec(),
            }
        }));
    }
    if is_list {
        members.sort_unstable();
    }
    members.join(&b',')
}

/// Headers in which spaces between words have no meaning.
const NORMALISED: [&[u8]; 3] = [b"accept-charset", b"accept-encoding", b"accept-language"];

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|b| matches!(b, b' ' | b',')).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_file_as_nginx_does() {
        let key = CacheKey::of(b"http://127.0.0.1/t");
        assert_eq!(CacheKey::from_hex(&key.hex()), Some(key));
        let key = CacheKey::from_hex("b7f54b2df7773722d382f4809d65029c").unwrap();
        let path = key.path(&[1, 2]);
        assert_eq!(path.to_str(), Some("c/29/b7f54b2df7773722d382f4809d65029c"));
        assert_eq!(CacheKey::of(b"").hex(), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(CacheKey::from_hex("xyz"), None);
        assert_eq!(CacheKey::from_hex("z7f54b2df7773722d382f4809d65029c"), None);
    }

    fn variant(vary: &[u8], headers: &[(&str, &str)]) -> Variant {
        variant_by(VariantMatching::Words, vary, headers)
    }

    fn variant_by(same: VariantMatching, vary: &[u8], headers: &[(&str, &str)]) -> Variant {
        CacheKey::of(b"k").variant(vary, same, |name| {
            let of = headers.iter().filter(move |(n, _)| n.as_bytes() == name);
            of.map(|(_, v)| v.as_bytes()).collect::<Vec<_>>().into_iter()
        })
    }

    #[test]
    fn variants_differ_by_what_they_depend_on() {
        let gzip = variant(b"Accept-Encoding", &[("accept-encoding", "gzip, br")]);
        assert_eq!(gzip, variant(b" accept-encoding", &[("accept-encoding", "gzip,  br")]));
        assert_ne!(gzip, variant(b"Accept-Encoding", &[("accept-encoding", "gzip")]));
        assert_ne!(gzip, variant(b"Accept-Encoding, X", &[("accept-encoding", "gzip, br")]));
        let (one, two) = (variant(b"x", &[("x", "a b")]), variant(b"x", &[("x", "a  b")]));
        assert_ne!(one, two);
        let apart = variant(b"x", &[("x", "a"), ("x", "b")]);
        assert_eq!(apart, variant(b"x", &[("x", "a,b")]));
    }

    #[test]
    fn by_the_standard_values_of_one_meaning_are_one_variant() {
        let of = |name: &str, value: &str| {
            variant_by(VariantMatching::Meaning, name.as_bytes(), &[(name, value)])
        };
        let same = |name: &str, one: &str, two: &str| of(name, one) == of(name, two);
        assert!(same("accept-language", "en, de;q=0.5", "DE; q=0.5 ,en"));
        assert!(!same("accept-language", "en;q=1, de;q=0.5", "en;q=0.5, de;q=1"));
        assert!(same("x", "1,2", " 1 ,  2"));
        assert!(!same("x", "1,2", "2,1") && !same("x", "a", "A"));
        assert!(!same("x", "\"1, 2\"", "\"1,2\""));
    }

    #[test]
    fn variants_lie_beside_their_main_key() {
        let (main, one) = (CacheKey::of(b"k"), variant(b"x", &[("x", "a")]));
        assert!(one != main && one.is_beside(&main) && !one.is_beside(&CacheKey::of(b"other")));
        assert_eq!(one.path(&[2, 2, 2]).parent(), main.path(&[2, 2, 2]).parent());
    }
}
