//! Base64, plain and for URLs. nginx: ngx_encode_base64, ngx_decode_base64.

/// The two alphabets of RFC 4648.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// `+` and `/`; encoded texts are padded with `=`.
    Plain,
    /// `-` and `_`; encoded texts have no padding.
    Url,
}

impl Alphabet {
    fn letters(self) -> &'static [u8; 64] {
        match self {
            Alphabet::Plain => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
            Alphabet::Url => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
        }
    }

    fn value(self, letter: u8) -> Option<u8> {
        let (last, but_one) = match self {
            Alphabet::Plain => (b'/', b'+'),
            Alphabet::Url => (b'_', b'-'),
        };
        match letter {
            b'A'..=b'Z' => Some(letter - b'A'),
            b'a'..=b'z' => Some(letter - b'a' + 26),
            b'0'..=b'9' => Some(letter - b'0' + 52),
            _ if letter == but_one => Some(62),
            _ if letter == last => Some(63),
            _ => None,
        }
    }
}

/// Appends `bytes` to `out`, encoded.
pub fn encode(alphabet: Alphabet, bytes: &[u8], out: &mut Vec<u8>) {
    let letters = alphabet.letters();
    for chunk in bytes.chunks(3) {
        let word = chunk
            .iter()
            .enumerate()
            .fold(0u32, |word, (i, byte)| word | u32::from(*byte) << (16 - 8 * i));
        for i in 0..4 {
            if i <= chunk.len() {
                out.push(letters[(word >> (18 - 6 * i)) as usize & 63]);
            } else if alphabet == Alphabet::Plain {
                out.push(b'=');
            }
        }
    }
}

/// The bytes that a text stands for. What follows a `=` is not read; a text that ends one letter
/// behind a whole group, or holds other letters, stands for nothing.
pub fn decode(alphabet: Alphabet, text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().position(|ch| *ch == b'=').unwrap_or(text.len());
    let text = text.get(..end)?;
    if text.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    for chunk in text.chunks(4) {
        let mut word = 0u32;
        for (i, letter) in chunk.iter().enumerate() {
            word |= u32::from(alphabet.value(*letter)?) << (18 - 6 * i);
        }
        let bytes = [(word >> 16) as u8, (word >> 8) as u8, word as u8];
        out.extend_from_slice(bytes.get(..chunk.len() - 1)?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn examples_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            encode(Alphabet::Plain, bytes.as_bytes(), &mut out);
            assert_eq!(out, text.as_bytes());
            assert_eq!(decode(Alphabet::Plain, text.as_bytes()).unwrap(), bytes.as_bytes());
        }
    }

    #[test]
    fn wrong_texts() {
        for text in ["Z", "Zm9vY", "Zm 9", "Zm9-", "é"] {
            assert_eq!(decode(Alphabet::Plain, text.as_bytes()), None, "{text}");
        }
        assert_eq!(decode(Alphabet::Url, b"_-8").unwrap(), [0xff, 0xef]);
    }

    proptest! {
        #[test]
        fn what_was_encoded_comes_back(bytes: Vec<u8>, url: bool) {
            let alphabet = if url { Alphabet::Url } else { Alphabet::Plain };
            let mut text = Vec::new();
            encode(alphabet, &bytes, &mut text);
            prop_assert_eq!(decode(alphabet, &text).unwrap(), bytes);
        }

        #[test]
        fn no_text_panics(text: Vec<u8>) {
            let _ = decode(Alphabet::Plain, &text);
        }
    }
}
