//! `match { }`: what to send to a server, and the answer that shows that it is healthy.

use weir_values::Regex;

/// The rules of one block.
#[derive(Debug, Default)]
pub struct Match {
    /// Its name.
    pub name: String,
    /// `send`
    pub send: Vec<u8>,
    pub(super) expect: Option<Expect>,
}

/// `expect`
#[derive(Debug)]
pub(super) enum Expect {
    /// The answer starts with this text.
    Text(Vec<u8>),
    /// The answer contains a match of this pattern.
    Pattern(Regex),
}

impl Match {
    /// Whether the block has both `send` and `expect`.
    pub fn is_complete(&self) -> bool {
        !self.send.is_empty() && self.expect.is_some()
    }

    /// Whether the answer so far is the expected one. `None`: more bytes are needed.
    pub fn judge(&self, received: &[u8]) -> Option<bool> {
        match &self.expect {
            None => Some(true),
            Some(Expect::Text(text)) if received.len() >= text.len() => {
                Some(received.starts_with(text))
            }
            Some(Expect::Text(text)) if text.starts_with(received) => None,
            Some(Expect::Text(_)) => Some(false),
            Some(Expect::Pattern(regex)) => regex.is_match(received).then_some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_comes_first() {
        let expect = Some(Expect::Text(b"+PONG".to_vec()));
        let rules = Match { expect, ..Match::default() };
        for (received, judged) in [
            ("", None),
            ("+PO", None),
            ("+PONG", Some(true)),
            ("+PONG\r\n", Some(true)),
            ("-ERR", Some(false)),
            ("x+PONG", Some(false)),
        ] {
            assert_eq!(rules.judge(received.as_bytes()), judged, "{received}");
        }
        assert_eq!(Match::default().judge(b""), Some(true));
    }
}
