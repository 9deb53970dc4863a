//! Requests of SCGI: pairs that end with zeroes, in a netstring. nginx: ngx_http_scgi_module.c.

use crate::pairs::{Pairs, PendingValue};

/// Names and values; a zero in them would begin another one, and is left out.
#[derive(Debug)]
pub enum Headers {}

impl Pairs for Headers {
    fn name(name: &[u8], out: &mut Vec<u8>) -> PendingValue {
        let start = out.len();
        out.extend_from_slice(name);
        Self::end(PendingValue { length: start, start }, out);
        PendingValue { length: out.len(), start: out.len() }
    }

    fn end(value: PendingValue, out: &mut Vec<u8>) {
        if out.get(value.start..).is_some_and(|text| memchr::memchr(0, text).is_some()) {
            let mut text = out.split_off(value.start);
            text.retain(|byte| *byte != 0);
            out.append(&mut text);
        }
        out.push(0);
    }
}

/// The head of a request with these pairs, the first of which must be `CONTENT_LENGTH`.
pub fn netstring(pairs: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(pairs.len() + 16);
    out.extend_from_slice(pairs.len().to_string().as_bytes());
    out.push(b':');
    out.extend_from_slice(pairs);
    out.push(b',');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_is_as_the_specification_says() {
        let mut pairs = Vec::new();
        Headers::pair(b"CONTENT_LENGTH", b"27", &mut pairs);
        Headers::pair(b"SCGI", b"1", &mut pairs);
        Headers::pair(b"REQUEST_METHOD", b"POST", &mut pairs);
        Headers::pair(b"REQUEST_URI", b"/deepthought", &mut pairs);
        let expected = b"70:CONTENT_LENGTH\x0027\0SCGI\x001\0REQUEST_METHOD\0POST\0REQUEST_URI\0/deepthought\0,";
        assert_eq!(netstring(&pairs), expected);
    }

    proptest! {
        #[test]
        fn no_value_begins_another_pair(
            list in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 0..40),
                 proptest::collection::vec(any::<u8>(), 0..40)),
                0..8,
            ),
        ) {
            let mut pairs = Vec::new();
            for (name, value) in &list {
                Headers::pair(name, value, &mut pairs);
            }
            let zeroes = pairs.iter().filter(|b| **b == 0).count();
            prop_assert_eq!(zeroes, 2 * list.len());
        }
    }
}
