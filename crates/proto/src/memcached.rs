//! Answers of memcached's text protocol to `get` with one key. nginx: ngx_http_memcached_module.c.

/// What stands behind a value.
pub const END: &[u8] = b"\r\nEND\r\n";

/// The first line of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueLine<'a> {
    /// There is such a value: its flags as written, and its length.
    Value(&'a [u8], u64),
    /// There is none.
    Missing,
}

/// Why a line is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineError {
    /// It is no answer to `get`.
    Invalid,
    /// It is one for another key.
    Key,
    /// Its length is no number.
    Length,
}

/// Reads the first line, without its line feed.
pub fn line<'a>(line: &'a [u8], key: &[u8]) -> Result<ValueLine<'a>, LineError> {
    let line = line.strip_suffix(b"\r").ok_or(LineError::Invalid)?;
    if line == b"END" {
        return Ok(ValueLine::Missing);
    }
    let rest = line.strip_prefix(b"VALUE ").ok_or(LineError::Invalid)?;
    let rest = rest.strip_prefix(key).ok_or(LineError::Key)?;
    let rest = rest.strip_prefix(b" ").ok_or(LineError::Invalid)?;
    let at = memchr::memchr(b' ', rest).ok_or(LineError::Invalid)?;
    let length = crate::http1::offset(&rest[at + 1..]).ok_or(LineError::Length)?;
    Ok(ValueLine::Value(&rest[..at], length))
}

/// How much of `bytes`, which follow a value, belongs to its end, of which `seen` bytes have come before. `None`: it is
/// not the end.
pub fn end(bytes: &[u8], seen: usize) -> Option<usize> {
    let due = END.get(seen..).unwrap_or_default();
    let length = due.len().min(bytes.len());
    (due.get(..length) == bytes.get(..length)).then_some(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_what_servers_send() {
        assert_eq!(line(b"VALUE /a 0 5\r", b"/a"), Ok(ValueLine::Value(b"0", 5)));
        assert_eq!(line(b"VALUE k 17 0\r", b"k"), Ok(ValueLine::Value(b"17", 0)));
        assert_eq!(line(b"END\r", b"k"), Ok(ValueLine::Missing));
        let bad: [(&[u8], LineError); 8] = [
            (b"", LineError::Invalid),
            (b"END", LineError::Invalid),
            (b"ERROR\r", LineError::Invalid),
            (b"VALUE k 0\r", LineError::Invalid),
            (b"VALUE kk 0 1\r", LineError::Invalid),
            (b"VALUE x 0 1\r", LineError::Key),
            (b"VALUE k 0 x\r", LineError::Length),
            (b"VALUE k 0 99999999999999999999\r", LineError::Length),
        ];
        for (text, error) in bad {
            assert_eq!(line(text, b"k"), Err(error), "{}", String::from_utf8_lossy(text));
        }
    }

    proptest! {
        #[test]
        fn an_end_is_one_in_any_pieces(cut in 0usize..7, junk in any::<u8>()) {
            prop_assert_eq!(end(&END[..cut], 0), Some(cut));
            let more = [&END[cut..], &[junk]].concat();
            prop_assert_eq!(end(&more, cut), Some(END.len() - cut));
            let mut wrong = END.to_vec();
            wrong[cut] = wrong[cut].wrapping_add(1);
            prop_assert_eq!(end(&wrong, 0), None);
        }
    }
}
