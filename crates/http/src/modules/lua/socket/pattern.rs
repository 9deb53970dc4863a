//! What a script wants to receive.

/// How much to receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// `*l`: up to the end of a line, which is left out.
    Line,
    /// `*a`: all until the other side closes.
    All,
    /// So many bytes.
    Bytes(usize),
    /// What comes first, so much at the most.
    Any(usize),
    /// Up to a mark.
    Until {
        /// The mark.
        mark: Vec<u8>,
        /// It belongs to what is received.
        inclusive: bool,
        /// A piece is no longer than this.
        most: Option<usize>,
    },
}

impl Pattern {
    /// Takes what it wants out of what has come, if that is enough; and whether a mark was reached.
    pub fn take(&self, unread: &mut Vec<u8>) -> Option<(Vec<u8>, bool)> {
        let (keep, taken, reached) = self.found(unread)?;
        let rest = unread.split_off(taken.min(unread.len()));
        let mut found = std::mem::replace(unread, rest);
        found.truncate(keep);
        if *self == Pattern::Line {
            found.retain(|byte| *byte != b'\r');
        }
        Some((found, reached))
    }

    /// Of what has come: how much is received, how much is taken, and whether a mark was reached.
    fn found(&self, unread: &[u8]) -> Option<(usize, usize, bool)> {
        match self {
            Pattern::Line => {
                let at = memchr::memchr(b'\n', unread)?;
                Some((at, at + 1, true))
            }
            Pattern::All => None,
            Pattern::Bytes(n) => (unread.len() >= *n).then_some((*n, *n, true)),
            Pattern::Any(most) => {
                let n = unread.len().min(*most);
                (n > 0).then_some((n, n, true))
            }
            Pattern::Until { mark, inclusive, most } => {
                let most = most.unwrap_or(usize::MAX);
                let at = memchr::memmem::find(unread, mark);
                if let Some(at) = at.filter(|at| *at <= most) {
                    let end = at + mark.len();
                    return Some((if *inclusive { end } else { at }, end, true));
                }
                let sure = unread.len() - begun(unread, mark);
                (at.is_some() || sure >= most).then_some((most, most, false))
            }
        }
    }
}

/// How many of the last bytes may be the beginning of the mark.
fn begun(unread: &[u8], mark: &[u8]) -> usize {
    let longest = unread.len().min(mark.len().saturating_sub(1));
    let begins = |n: &usize| mark.get(..*n).is_some_and(|begin| unread.ends_with(begin));
    (1..=longest).rev().find(begins).unwrap_or(0)
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
        // The last byte may be the mark's first.
        assert_eq!(until("--", Some(3)).found(b"ab-"), None);
        assert_eq!(until("--", Some(3)).found(b"abc"), Some((3, 3, false)));
        assert_eq!(until("-+-!", Some(3)).found(b"abc-+-"), Some((3, 3, false)));
        assert_eq!(until("-+-!", Some(4)).found(b"abc-+-"), None);
        assert_eq!(until("-+-!", Some(4)).found(b"abc-+x"), Some((4, 4, false)));
        assert_eq!(until("--", Some(3)).found(b"abcdef--"), Some((3, 3, false)));
        assert_eq!(until("--", Some(3)).found(b"abc--"), Some((3, 5, true)));
        assert_eq!(until("--", Some(3)).found(b"--abc"), Some((0, 2, true)));
    }
}
