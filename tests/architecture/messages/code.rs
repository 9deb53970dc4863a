//! A file of the source as tokens: its functions, constants and implementations, and the texts in
//! them.

use std::collections::{BTreeMap, BTreeSet};

use super::HOLE;
use crate::source::{Token, tokens};

/// The tokens of a file, with its brackets matched and without its inline tests.
pub struct Code {
    pub tokens: Vec<Token>,
    /// The end of each bracket that opens.
    pub ends: BTreeMap<usize, usize>,
}

/// A function, a constant or an implementation: its name, and its first and last token.
pub type Block = (String, usize, usize);

impl Code {
    pub fn read(text: &str) -> Code {
        let tokens = tokens(text);
        let (mut ends, mut open) = (BTreeMap::new(), Vec::new());
        for (n, token) in tokens.iter().enumerate() {
            match token {
                Token::Sign('(' | '[' | '{') => open.push(n),
                Token::Sign(')' | ']' | '}') => {
                    ends.extend(open.pop().map(|begin| (begin, n)));
                }
                _ => {}
            }
        }
        let mut code = Code { tokens, ends };
        code.leave_tests_out();
        code
    }

    pub fn word(&self, n: usize) -> Option<&str> {
        match self.tokens.get(n) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    pub fn is(&self, n: usize, sign: char) -> bool {
        self.tokens.get(n) == Some(&Token::Sign(sign))
    }

    /// `#[cfg(test)] mod tests { ... }`
    pub fn leave_tests_out(&mut self) {
        let words = ["cfg", "(", "test", ")", "]", "mod"];
        let starts = |code: &Code, n: usize| {
            words.iter().enumerate().all(|(i, word)| match code.tokens.get(n + i) {
                Some(Token::Word(found)) => found == word,
                Some(Token::Sign(found)) => found.to_string() == *word,
                _ => false,
            })
        };
        let blocks: Vec<(usize, usize)> = (0..self.tokens.len())
            .filter(|n| starts(self, *n))
            .filter_map(|n| Some((n + 7, *self.ends.get(&(n + 7))?)))
            .collect();
        for (begin, end) in blocks {
            self.tokens[begin..=end].fill(Token::Sign(';'));
            self.ends.retain(|at, _| !(begin..=end).contains(at));
        }
    }

    /// The brackets around a token, the innermost first.
    pub fn around(&self, n: usize) -> impl Iterator<Item = (usize, usize)> {
        let all = self.ends.range(..n).rev().filter(move |(_, end)| **end > n);
        all.map(|(begin, end)| (*begin, *end))
    }

    /// Blocks that begin with this keyword; the name is the last word before the block, or behind `fn`.
    pub fn blocks(&self) -> Vec<Block> {
        let mut all = Vec::new();
        for n in 0..self.tokens.len() {
            let keyword = self.word(n).unwrap_or_default();
            if !["fn", "impl", "const", "static"].contains(&keyword) {
                continue;
            }
            // `impl` in a type is no item.
            let is_item = n == 0
                || matches!(self.tokens[n - 1], Token::Sign(';' | '{' | '}' | ']'))
                || self.word(n - 1) == Some("unsafe");
            if keyword == "impl" && !is_item {
                continue;
            }
            let mut at = n + 1;
            let mut name = self.word(at).unwrap_or_default().to_owned();
            while at < self.tokens.len() && !self.is(at, '{') && !self.is(at, ';') {
                if keyword == "impl" && self.word(at) == Some("for") {
                    name = self.word(at + 1).unwrap_or_default().to_owned();
                }
                // Arguments and types are no body.
                at = match self.ends.get(&at) {
                    Some(end) if keyword == "fn" || keyword == "impl" => end + 1,
                    _ => at + 1,
                };
            }
            let end = self.ends.get(&at).copied().unwrap_or(at);
            all.push((name, n, end));
        }
        all
    }

    /// The texts of what the texts of a call insert, if its function makes them: `let text = "...";`
    pub fn inserted(&self, call: (usize, usize), function: (usize, usize)) -> Vec<String> {
        let texts = self.tokens[call.0..=call.1].iter().filter_map(|token| match token {
            Token::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let names: BTreeSet<&str> = texts.flat_map(names).collect();
        let mut all = Vec::new();
        for n in function.0..call.0 {
            let named =
                self.word(n) == Some("let") && self.word(n + 1).is_some_and(|w| names.contains(w));
            if named {
                let mut at = n + 1;
                while at < call.0 && !self.is(at, ';') {
                    at = self.ends.get(&at).map_or(at + 1, |end| end + 1);
                }
                all.extend(self.texts(n, at));
            }
        }
        all
    }

    /// The texts between two tokens that have words.
    pub fn texts(&self, begin: usize, end: usize) -> Vec<String> {
        let inside = self.tokens.get(begin..=end.min(self.tokens.len() - 1)).unwrap_or_default();
        let texts = inside.iter().filter_map(|token| match token {
            Token::Text(text) => Some(fixed(text)),
            _ => None,
        });
        texts.filter(|text| letters(text) > 1).collect()
    }
}

/// The names that a text inserts: `{text}`, `{size:?}`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let holes = text.split('{').skip(1).filter_map(|rest| rest.split(['}', ':']).next());
    holes.filter(|name| !name.is_empty())
}

/// A text as it is written, with a hole for each thing that it inserts.
fn fixed(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some('\n') => while rest.next_if(|c| c.is_whitespace()).is_some() {},
                Some('n' | 'r' | 't') => out.push(' '),
                Some(c) => out.push(c),
                None => {}
            },
            '{' if rest.next_if_eq(&'{').is_some() => out.push('{'),
            '}' if rest.next_if_eq(&'}').is_some() => out.push('}'),
            '{' => {
                while rest.next_if(|c| *c != '}').is_some() {}
                rest.next();
                out.push_str(HOLE);
            }
            c => out.push(c),
        }
    }
    out
}

pub fn letters(text: &str) -> usize {
    text.chars().filter(|c| c.is_alphabetic()).count()
}
