//! `match { }`: what a server is sent, and what it must say to count as healthy.

use std::sync::Arc;

use weir_conf::{Directive, Error};
use weir_values::Regex;

use crate::config::StreamScope;

/// The rules of one block.
#[derive(Debug, Default)]
pub struct Match {
    /// Its name.
    pub name: String,
    /// `send`
    pub send: Vec<u8>,
    expect: Option<Expect>,
}

/// `expect`
#[derive(Debug)]
enum Expect {
    /// What comes first.
    Text(Vec<u8>),
    /// What stands somewhere in it.
    Pattern(Regex),
}

impl Match {
    fn read(s: &mut StreamScope<'_, '_>, d: &Directive) -> Result<Match, Error> {
        let name = d.arg(0).map(|word| word.lossy().into_owned()).unwrap_or_default();
        let (mut send, mut expect) = (None, None);
        for line in d.block() {
            match &*line.name.lossy() {
                "send" if send.is_some() => return Err(line.problem("is duplicate")),
                "expect" if expect.is_some() => return Err(line.problem("is duplicate")),
                "send" => match line.args.as_slice() {
                    [text] => send = Some(unescaped(&text.bytes)),
                    _ => return Err(line.problem("is not understood")),
                },
                "expect" => expect = Some(Expect::read(s, line)?),
                other => return Err(line.error(format!("unknown directive \"{other}\""))),
            }
        }
        Ok(Match { name, send: send.unwrap_or_default(), expect })
    }

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

impl Expect {
    fn read(s: &mut StreamScope<'_, '_>, d: &Directive) -> Result<Expect, Error> {
        let pattern = |caseless| {
            move |s: &mut StreamScope<'_, '_>, word: &weir_conf::Word| {
                s.setup.reading().regex(d, word, &word.bytes, caseless).map(Expect::Pattern)
            }
        };
        match d.args.as_slice() {
            [text] => Ok(Expect::Text(unescaped(&text.bytes))),
            [operator, word] if operator.is("~") => pattern(false)(s, word),
            [operator, word] if operator.is("~*") => pattern(true)(s, word),
            _ => Err(d.problem("is not understood")),
        }
    }
}

/// With bytes for what is written as `\x80`.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| (*text.get(at)? as char).to_digit(16);
    let (mut out, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(byte) = text.get(at) {
        match (text.get(at..at + 2), digit(at + 2), digit(at + 3)) {
            (Some(b"\\x"), Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 4;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

/// `match NAME { }`
pub fn rules(s: &mut StreamScope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let rules = Match::read(s, d)?;
    if s.setup.matches.iter().any(|known| known.name == rules.name) {
        return Err(d.error(format!("duplicate match \"{}\"", rules.name)));
    }
    s.setup.matches.push(Arc::new(rules));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_in_hexadecimal() {
        assert_eq!(unescaped(br"a\x00\xFFz"), b"a\0\xffz");
        assert_eq!(unescaped(br"\x0"), br"\x0");
        assert_eq!(unescaped(br"\xg0\y\"), br"\xg0\y\");
    }

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
