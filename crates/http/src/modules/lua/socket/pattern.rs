//! The patterns of receiving methods.

/// How much to receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// `*l`: a line, without its end.
    Line,
    /// `*a`: everything until the peer closes.
    All,
    /// This many bytes.
    Bytes(usize),
    /// Whatever arrives next, at most this many bytes.
    Any(usize),
    /// This many bytes, which stay unread.
    Peek(usize),
    /// Everything up to a delimiter.
    Until {
        /// The delimiter.
        mark: Vec<u8>,
        /// Whether the delimiter is part of the result.
        inclusive: bool,
        /// The most bytes of a piece.
        most: Option<usize>,
    },
}

impl Pattern {
    /// Takes the result out of the unread bytes, if there are enough. The flag says whether a
    /// delimiter was reached.
    pub fn take(&self, unread: &mut Vec<u8>) -> Option<(Vec<u8>, bool)> {
        if let Pattern::Peek(n) = self {
            return unread.get(..*n).map(|first| (first.to_vec(), true));
        }
        let (keep, taken, reached) = self.found(unread)?;
        let rest = unread.split_off(taken.min(unread.len()));
        let mut found = std::mem::replace(unread, rest);
        found.truncate(keep);
        if *self == Pattern::Line {
            found.retain(|byte| *byte != b'\r');
        }
        Some((found, reached))
    }

    /// The length of the result, the number of bytes to remove, and whether a delimiter was
    /// reached.
    fn found(&self, unread: &[u8]) -> Option<(usize, usize, bool)> {
        match self {
            Pattern::Line => {
                let at = memchr::memchr(b'\n', unread)?;
                Some((at, at + 1, true))
            }
            Pattern::All | Pattern::Peek(_) => None,
            Pattern::Bytes(n) => (unread.len() >= *n).then_some((*n, *n, true)),
            Pattern::Any(most) => {
                let n = unread.len().min(*most);
                (n > 0).then_some((n, n, true))
            }
            Pattern::Until { mark, inclusive, most } => {
                let found = match most {
                    Some(most) => piece(unread, mark, *most)?,
                    None => MarkedPiece { len: memchr::memmem::find(unread, mark)?, ended: true },
                };
                let MarkedPiece { len, ended } = found;
                let end = if ended { len + mark.len() } else { len };
                Some((if *inclusive { end } else { len }, end, ended))
            }
        }
    }
}

/// The bytes before a delimiter, or a piece of them.
struct MarkedPiece {
    len: usize,
    /// Whether the delimiter follows. It is removed, too.
    ended: bool,
}

/// A piece of about `most` bytes. As in OpenResty, bytes that look like the delimiter's beginning
/// but are not stay together, and a delimiter after a full piece is left for the next one.
fn piece(unread: &[u8], mark: &[u8], most: usize) -> Option<MarkedPiece> {
    let borders = borders(mark);
    // The matched length of the delimiter, and the number of bytes before that match.
    let (mut matched, mut len) = (0, 0);
    for byte in unread {
        while matched > 0 && mark.get(matched) != Some(byte) {
            let shorter = borders.get(matched).copied().unwrap_or(0);
            (len, matched) = (len + matched - shorter, shorter);
        }
        if len >= most {
            return Some(MarkedPiece { len, ended: false });
        }
        match mark.get(matched) == Some(byte) {
            true => matched += 1,
            false => len += 1,
        }
        if matched == mark.len() {
            return Some(MarkedPiece { len, ended: true });
        }
        if len >= most {
            return Some(MarkedPiece { len, ended: false });
        }
    }
    None
}

/// The failure function of Knuth, Morris and Pratt: for each prefix of the delimiter, the length of
/// its longest border.
fn borders(mark: &[u8]) -> Vec<usize> {
    let mut borders = vec![0; mark.len().max(2)];
    let mut matched = 0;
    for (at, byte) in mark.iter().enumerate().skip(1) {
        while matched > 0 && mark.get(matched) != Some(byte) {
            matched = borders.get(matched).copied().unwrap_or(0);
        }
        if mark.get(matched) == Some(byte) {
            matched += 1;
        }
        if let Some(place) = borders.get_mut(at + 1) {
            *place = matched;
        }
    }
    borders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(mark: &str, most: Option<usize>) -> Pattern {
        Pattern::Until { mark: mark.into(), inclusive: false, most }
    }

    #[test]
    fn patterns_find_what_they_want() {
        assert_eq!(Pattern::Line.found(b"ab\r\nc"), Some((3, 4, true)));
        assert_eq!(Pattern::Line.found(b"ab"), None);
        assert_eq!(Pattern::Bytes(0).found(b""), Some((0, 0, true)));
        assert_eq!(Pattern::Bytes(3).found(b"ab"), None);
        assert_eq!(Pattern::Any(2).found(b"abc"), Some((2, 2, true)));
        assert_eq!(Pattern::Any(2).found(b""), None);
        assert_eq!(until("--", None).found(b"ab--c"), Some((2, 4, true)));
        assert_eq!(until("--", None).found(b"ab-"), None);
    }

    #[test]
    fn a_piece_never_holds_a_part_of_the_mark() {
        // The last byte may be the delimiter's first.
        assert_eq!(until("--", Some(3)).found(b"ab-"), None);
        assert_eq!(until("--", Some(3)).found(b"abc"), Some((3, 3, false)));
        assert_eq!(until("-+-!", Some(3)).found(b"abc-+-"), Some((3, 3, false)));
        assert_eq!(until("-+-!", Some(4)).found(b"abc-+-"), None);
        assert_eq!(until("--", Some(3)).found(b"abcdef--"), Some((3, 3, false)));
        assert_eq!(until("--", Some(3)).found(b"ab--c"), Some((2, 4, true)));
        assert_eq!(until("--", Some(3)).found(b"--abc"), Some((0, 2, true)));
    }

    #[test]
    fn a_mark_behind_a_piece_is_left_for_the_next_one() {
        assert_eq!(until("--", Some(3)).found(b"abc--"), Some((3, 3, false)));
        assert_eq!(until("--abc", Some(2)).found(b"----abc"), Some((2, 2, false)));
    }

    #[test]
    fn bytes_that_were_no_mark_stay_together() {
        assert_eq!(until("-+-!", Some(4)).found(b"abc-+x"), Some((5, 5, false)));
        assert_eq!(until("ab1ab2", Some(2)).found(b"ab1ab1"), Some((3, 3, false)));
        assert_eq!(until("ab1ab2", Some(9)).found(b"ab1ab1ab2"), Some((3, 9, true)));
    }
}
