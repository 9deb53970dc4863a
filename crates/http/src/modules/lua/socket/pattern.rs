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

/// How far one receive has searched the unread bytes. More bytes may be added behind them, and are
/// searched alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Searched {
    /// The bytes that were searched.
    at: usize,
    /// For a piece: the delimiter's bytes that were matched at the end of those, and the number of
    /// bytes before that match.
    matched: usize,
    len: usize,
}

impl Pattern {
    /// Takes the result out of the unread bytes, if there are enough. The flag says whether a
    /// delimiter was reached.
    pub fn take(&self, unread: &mut Vec<u8>, searched: &mut Searched) -> Option<(Vec<u8>, bool)> {
        if let Pattern::Peek(n) = self {
            return unread.get(..*n).map(|first| (first.to_vec(), true));
        }
        let (keep, taken, reached) = self.found(unread, searched)?;
        let rest = unread.split_off(taken.min(unread.len()));
        let mut found = std::mem::replace(unread, rest);
        found.truncate(keep);
        Some((self.shown(found), reached))
    }

    /// Bytes as a script gets them, also those in front of a failure: a line has no carriage return.
    pub fn shown(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if *self == Pattern::Line {
            bytes.retain(|byte| *byte != b'\r');
        }
        bytes
    }

    /// The length of the result, the number of bytes to remove, and whether a delimiter was
    /// reached.
    fn found(&self, unread: &[u8], searched: &mut Searched) -> Option<(usize, usize, bool)> {
        match self {
            Pattern::Line => {
                let at = searched.find(unread, b"\n")?;
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
                    Some(most) => piece(unread, mark, *most, searched)?,
                    None => MarkedPiece { len: searched.find(unread, mark)?, ended: true },
                };
                let MarkedPiece { len, ended } = found;
                let end = if ended { len + mark.len() } else { len };
                Some((if *inclusive { end } else { len }, end, ended))
            }
        }
    }
}

impl Searched {
    /// The place of a delimiter, which may begin in the bytes that were searched.
    fn find(&mut self, unread: &[u8], mark: &[u8]) -> Option<usize> {
        let from = self.at.saturating_sub(mark.len().saturating_sub(1));
        self.at = unread.len();
        memchr::memmem::find(unread.get(from..)?, mark).map(|at| from + at)
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
fn piece(
    unread: &[u8],
    mark: &[u8],
    most: usize,
    Searched { at, matched, len }: &mut Searched,
) -> Option<MarkedPiece> {
    let borders = borders(mark);
    for byte in unread.get(*at..)? {
        *at += 1;
        while *matched > 0 && mark.get(*matched) != Some(byte) {
            let shorter = borders.get(*matched).copied().unwrap_or(0);
            (*len, *matched) = (*len + *matched - shorter, shorter);
        }
        if *len >= most {
            return Some(MarkedPiece { len: *len, ended: false });
        }
        match mark.get(*matched) == Some(byte) {
            true => *matched += 1,
            false => *len += 1,
        }
        if *matched == mark.len() {
            return Some(MarkedPiece { len: *len, ended: true });
        }
        if *len >= most {
            return Some(MarkedPiece { len: *len, ended: false });
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

    /// What a pattern finds in bytes that were not searched before.
    fn found(pattern: &Pattern, unread: &[u8]) -> Option<(usize, usize, bool)> {
        pattern.found(unread, &mut Searched::default())
    }

    #[test]
    fn patterns_find_what_they_want() {
        assert_eq!(found(&Pattern::Line, b"ab\r\nc"), Some((3, 4, true)));
        assert_eq!(found(&Pattern::Line, b"ab"), None);
        assert_eq!(found(&Pattern::Bytes(0), b""), Some((0, 0, true)));
        assert_eq!(found(&Pattern::Bytes(3), b"ab"), None);
        assert_eq!(found(&Pattern::Any(2), b"abc"), Some((2, 2, true)));
        assert_eq!(found(&Pattern::Any(2), b""), None);
        assert_eq!(found(&until("--", None), b"ab--c"), Some((2, 4, true)));
        assert_eq!(found(&until("--", None), b"ab-"), None);
    }

    #[test]
    fn a_part_of_a_line_has_no_carriage_return_either() {
        assert_eq!(Pattern::Line.shown(b"a\rb\r".to_vec()), b"ab");
        assert_eq!(Pattern::Bytes(9).shown(b"a\r".to_vec()), b"a\r");
    }

    #[test]
    fn a_piece_never_holds_a_part_of_the_mark() {
        // The last byte may be the delimiter's first.
        assert_eq!(found(&until("--", Some(3)), b"ab-"), None);
        assert_eq!(found(&until("--", Some(3)), b"abc"), Some((3, 3, false)));
        assert_eq!(found(&until("-+-!", Some(3)), b"abc-+-"), Some((3, 3, false)));
        assert_eq!(found(&until("-+-!", Some(4)), b"abc-+-"), None);
        assert_eq!(found(&until("--", Some(3)), b"abcdef--"), Some((3, 3, false)));
        assert_eq!(found(&until("--", Some(3)), b"ab--c"), Some((2, 4, true)));
        assert_eq!(found(&until("--", Some(3)), b"--abc"), Some((0, 2, true)));
    }

    #[test]
    fn a_mark_behind_a_piece_is_left_for_the_next_one() {
        assert_eq!(found(&until("--", Some(3)), b"abc--"), Some((3, 3, false)));
        assert_eq!(found(&until("--abc", Some(2)), b"----abc"), Some((2, 2, false)));
    }

    #[test]
    fn bytes_that_were_no_mark_stay_together() {
        assert_eq!(found(&until("-+-!", Some(4)), b"abc-+x"), Some((5, 5, false)));
        assert_eq!(found(&until("ab1ab2", Some(2)), b"ab1ab1"), Some((3, 3, false)));
        assert_eq!(found(&until("ab1ab2", Some(9)), b"ab1ab1ab2"), Some((3, 9, true)));
    }

    #[test]
    fn bytes_that_arrive_one_by_one_give_the_same_and_are_searched_once() {
        let texts: [&[u8]; 4] = [b"ab1ab1ab2-+-!ab", b"-+-+-!\r\n--", b"abc-+x\n", b"--abc----abc"];
        let marks = ["--", "-+-!", "ab1ab2", "--abc"];
        let sized = [None, Some(1), Some(2), Some(4), Some(9)];
        let untils = marks.iter().flat_map(|mark| sized.iter().map(|most| until(mark, *most)));
        for pattern in untils.chain([Pattern::Line]) {
            for text in texts {
                // The first length at which the pattern is found in the whole.
                let whole = (0..=text.len()).find_map(|n| found(&pattern, &text[..n]));
                let mut searched = Searched::default();
                let mut apart = None;
                for n in 0..=text.len() {
                    let before = searched.at;
                    apart = apart.or_else(|| pattern.found(&text[..n], &mut searched));
                    assert!(apart.is_some() || searched.at == n && before <= n, "{pattern:?}");
                }
                assert_eq!(apart, whole, "{pattern:?} {text:?}");
            }
        }
    }
}
