//! `match { }`: what a server is sent, and what it must say to count as healthy.

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
    /// What comes first.
    Text(Vec<u8>),
    /// What stands somewhere in it.
    Pattern(Regex),
}

impl Match {
    /// Something is sent, and something must come back.
    pub fn is_complete(&self) -> bool {
        !self.send.is_empty() && self.expect.is_some()
    }

    /// Whether what was said so far is what was expected; `None`: that is not known yet.
    pub fn judge(&self, said: &[u8]) -> Option<bool> {
        match &self.expect {
            None => Some(true),
            Some(Expect::Text(text)) if said.len() >= text.len() => Some(said.starts_with(text)),
            Some(Expect::Text(text)) if text.starts_with(said) => None,
            Some(Expect::Text(_)) => Some(false),
            Some(Expect::Pattern(regex)) => regex.is_match(said).then_some(true),
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
        for (said, judged) in [
            ("", None),
            ("+PO", None),
            ("+PONG", Some(true)),
            ("+PONG\r\n", Some(true)),
            ("-ERR", Some(false)),
            ("x+PONG", Some(false)),
        ] {
            assert_eq!(rules.judge(said.as_bytes()), judged, "{said}");
        }
        assert_eq!(Match::default().judge(b""), Some(true));
    }
}
