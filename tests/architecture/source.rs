//! What one source file declares and names, read from its tokens: no types are known, only paths.

/// A path as a file writes it, and the inline modules that stand around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// `crate::a::B` as its parts.
    pub path: Vec<String>,
    /// How many `mod x { }` of the file itself stand around it: `super` leaves these first.
    pub depth: usize,
}

/// `use a::B as C;`
#[derive(Debug)]
pub struct Import {
    /// The name by which this file knows it; `*` for all.
    pub alias: String,
    /// What it names.
    pub named: Named,
    /// `pub use`: the name is passed on, and this file itself need not use it.
    pub public: bool,
}

/// One file.
#[derive(Debug, Default)]
pub struct Source {
    /// `mod x;`, and whether tests alone have it.
    pub modules: Vec<(String, bool)>,
    pub imports: Vec<Import>,
    /// Paths of two parts and more outside of `use`.
    pub paths: Vec<Named>,
    /// Names of the items that the file defines.
    pub items: Vec<String>,
    /// Words inside `name! { }`: a list that a macro turns into paths.
    pub listed: Vec<String>,
}

/// The features that only tests turn on.
const TEST_FEATURES: &[&str] = &["test", "sim", "processes"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    Word(String),
    /// `::`
    Colons,
    Sign(char),
    /// What a string says, with its escapes: features of `cfg` are strings.
    Text(String),
}

/// Splits source text into words and signs; comments and numbers' inside are dropped.
pub fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut out = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        let c = chars[i];
        if c.is_whitespace() {
            i += 1;
        } else if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && chars[i] != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            i += 2;
            while i < chars.len() && !(chars[i] == '*' && at(i + 1) == '/') {
                i += 1;
            }
            i += 2;
        } else if let Some(end) = raw_string(&chars, i) {
            let raw: String = chars[i..end].iter().collect();
            let inside = raw.split_once('"').map_or("", |(_, rest)| rest.trim_end_matches('#'));
            let inside = inside.strip_suffix('"').unwrap_or(inside);
            out.push(Token::Text(inside.replace('\\', "\\\\").replace('"', "\\\"")));
            i = end;
        } else if c == '"' || (matches!(c, 'b' | 'c') && at(i + 1) == '"') {
            i += if c == '"' { 1 } else { 2 };
            let begin = i;
            while i < chars.len() && chars[i] != '"' {
                i += if chars[i] == '\\' { 2 } else { 1 };
            }
            out.push(Token::Text(chars[begin..i.min(chars.len())].iter().collect()));
            i += 1;
        } else if c == '\'' || (c == 'b' && at(i + 1) == '\'') {
            i += if c == 'b' { 2 } else { 1 };
            if at(i) == '\\' {
                i += 2;
                while i < chars.len() && chars[i] != '\'' {
                    i += 1;
                }
                i += 1;
            } else if at(i + 1) == '\'' {
                i += 2;
            } else {
                // A lifetime. `'static` is not the keyword of an item.
                while at(i).is_alphanumeric() || at(i) == '_' {
                    i += 1;
                }
            }
        } else if c.is_alphabetic() || c == '_' {
            let begin = i;
            while at(i).is_alphanumeric() || at(i) == '_' {
                i += 1;
            }
            out.push(Token::Word(chars[begin..i].iter().collect()));
        } else if c.is_ascii_digit() {
            while at(i).is_alphanumeric() || at(i) == '_' {
                i += 1;
            }
        } else if c == ':' && at(i + 1) == ':' {
            out.push(Token::Colons);
            i += 2;
        } else {
            out.push(Token::Sign(c));
            i += 1;
        }
    }
    out
}

/// The end of `r"…"`, `r#"…"#`, `br"…"` that begins here.
fn raw_string(chars: &[char], begin: usize) -> Option<usize> {
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut i = begin;
    if matches!(at(i), 'b' | 'c') {
        i += 1;
    }
    if at(i) != 'r' {
        return None;
    }
    i += 1;
    let mut hashes = 0;
    while at(i) == '#' {
        (hashes, i) = (hashes + 1, i + 1);
    }
    if at(i) != '"' {
        return None;
    }
    i += 1;
    while i < chars.len() {
        if chars[i] == '"' && (1..=hashes).all(|n| at(i + n) == '#') {
            return Some(i + 1 + hashes);
        }
        i += 1;
    }
    Some(i)
}

/// Reads a file's text.
pub fn read(text: &str) -> Source {
    let mut reader = Reader { tokens: tokens(text), at: 0, source: Source::default() };
    reader.items(0);
    reader.source
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
    source: Source,
}

impl Reader {
    fn peek(&self, n: usize) -> Option<&Token> {
        self.tokens.get(self.at + n)
    }

    fn is_sign(&self, n: usize, c: char) -> bool {
        self.peek(n) == Some(&Token::Sign(c))
    }

    fn word(&self, n: usize) -> Option<&str> {
        match self.peek(n) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    /// Reads to the end of a block, or of the file.
    fn items(&mut self, depth: usize) {
        // Whether the attributes before an item leave it to tests.
        let mut for_tests = false;
        while self.at < self.tokens.len() {
            if self.is_sign(0, '}') {
                self.at += 1;
                return;
            }
            if self.is_sign(0, '#') {
                for_tests |= self.attribute();
                continue;
            }
            if self.is_sign(0, '{') {
                self.at += 1;
                self.items(depth);
                for_tests = false;
                continue;
            }
            if for_tests {
                self.skip_item();
                for_tests = false;
                continue;
            }
            match self.word(0) {
                Some("use") => self.import(depth),
                Some("mod") if self.word(1).is_some() && self.is_sign(2, ';') => {
                    let name = self.word(1).unwrap_or_default().to_owned();
                    self.source.modules.push((name, false));
                    self.at += 3;
                }
                Some("mod") if self.word(1).is_some() && self.is_sign(2, '{') => {
                    self.at += 3;
                    self.items(depth + 1);
                }
                Some(
                    "struct" | "enum" | "trait" | "fn" | "const" | "static" | "type" | "union"
                    | "macro_rules",
                ) => {
                    let n = 1 + usize::from(self.is_sign(1, '!') || self.word(1) == Some("mut"));
                    if let Some(name) = self.word(n).map(str::to_owned) {
                        self.source.items.push(name);
                    }
                    self.at += 1;
                }
                Some(_) if self.is_sign(1, '!') && self.is_sign(2, '{') => {
                    self.at += 3;
                    self.list(depth);
                }
                Some(_) => self.path(depth),
                None => self.at += 1,
            }
        }
    }

    /// `#[…]`: whether it leaves what follows to tests.
    fn attribute(&mut self) -> bool {
        self.at += 1;
        if self.is_sign(0, '!') {
            self.at += 1;
        }
        let (begin, mut open) = (self.at, 0usize);
        while let Some(token) = self.peek(0) {
            match token {
                Token::Sign('[') => open += 1,
                Token::Sign(']') => open = open.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if open == 0 {
                break;
            }
        }
        let inside = &self.tokens[begin..self.at];
        let word = |w: &str| inside.contains(&Token::Word(w.to_owned()));
        if !word("cfg") || word("not") {
            return false;
        }
        inside.iter().any(|token| match token {
            Token::Word(word) => word == "test",
            Token::Text(feature) => TEST_FEATURES.contains(&feature.as_str()),
            _ => false,
        })
    }

    /// An item for tests: noted if it is a file, else passed over.
    fn skip_item(&mut self) {
        let mut open = 0usize;
        while let Some(token) = self.peek(0).cloned() {
            if open == 0 && self.word(0) == Some("mod") && self.is_sign(2, ';') {
                let name = self.word(1).unwrap_or_default().to_owned();
                self.source.modules.push((name, true));
            }
            match token {
                Token::Sign('{' | '(' | '[') => open += 1,
                Token::Sign(c @ ('}' | ')' | ']')) => {
                    if open == 0 {
                        return;
                    }
                    open -= 1;
                    if open == 0 && c == '}' {
                        self.at += 1;
                        return;
                    }
                }
                Token::Sign(';' | ',') if open == 0 => {
                    self.at += 1;
                    return;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// What stands inside `name! { }`.
    fn list(&mut self, depth: usize) {
        let begin = self.at;
        self.items(depth);
        let words = self.tokens[begin..self.at].iter().filter_map(|token| match token {
            Token::Word(word) => Some(word.clone()),
            _ => None,
        });
        self.source.listed.extend(words);
    }

    /// A word, and what follows it after `::`.
    fn path(&mut self, depth: usize) {
        // `$crate` and a field's or method's name begin no path of this file.
        let is_member = self.at > 0 && self.tokens[self.at - 1] == Token::Sign('.');
        let mut path = Vec::new();
        while let Some(word) = self.word(0) {
            path.push(word.to_owned());
            self.at += 1;
            if self.peek(0) != Some(&Token::Colons) {
                break;
            }
            self.at += 1;
        }
        if path.len() > 1 && !is_member {
            self.source.paths.push(Named { path, depth });
        }
    }

    fn import(&mut self, depth: usize) {
        let before = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
        // `pub use` and `pub(crate) use`.
        let public = match before {
            Some(Token::Word(word)) => word == "pub",
            Some(Token::Sign(sign)) => *sign == ')',
            _ => false,
        };
        self.at += 1;
        self.tree(&[], depth, public);
    }

    /// `a::{b, c as d}` of a `use`.
    fn tree(&mut self, before: &[String], depth: usize, public: bool) {
        let mut path = before.to_vec();
        loop {
            match self.peek(0).cloned() {
                Some(Token::Word(word)) if word == "as" => {
                    let alias = self.word(1).unwrap_or_default().to_owned();
                    self.at += 2;
                    let named = Named { path, depth };
                    self.source.imports.push(Import { alias, named, public });
                    return;
                }
                Some(Token::Word(word)) => {
                    path.push(word);
                    self.at += 1;
                    let goes_on =
                        self.peek(0) == Some(&Token::Colons) || self.word(0) == Some("as");
                    if !goes_on {
                        self.push_import(path, depth, public);
                        return;
                    }
                }
                Some(Token::Colons) => self.at += 1,
                Some(Token::Sign('*')) => {
                    self.at += 1;
                    let named = Named { path, depth };
                    self.source.imports.push(Import { alias: "*".into(), named, public });
                    return;
                }
                Some(Token::Sign('{')) => {
                    self.at += 1;
                    while self.at < self.tokens.len() && !self.is_sign(0, '}') {
                        if self.is_sign(0, ',') {
                            self.at += 1;
                        } else {
                            self.tree(&path, depth, public);
                        }
                    }
                    self.at += 1;
                    return;
                }
                _ => {
                    self.at += 1;
                    return;
                }
            }
        }
    }

    fn push_import(&mut self, mut path: Vec<String>, depth: usize, public: bool) {
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let alias = path.last().cloned().unwrap_or_default();
        self.source.imports.push(Import { alias, named: Named { path, depth }, public });
    }
}

#[test]
fn paths_are_found_wherever_they_stand() {
    let source = read(
        r##"use crate::a::{B, c::{self, D as E}, f::*}; pub(crate) use super::G;
        #[cfg(test)] mod tests; mod h; #[cfg(test)] mod inline { use crate::not::Here; }
        #[cfg(not(test))] fn i<'a>(x: &'a crate::j::K, y: &'static L) -> char { '"' } // crate::not::Here
        mod l { fn m() { super::super::n::o::<crate::p::Q>(); } }
        const S: &str = r#"crate::not::Here "#; const T: u8 = b'\''; list! { u, v }"##,
    );
    let names = |named: &Named| (named.path.join("::"), named.depth);
    let imports: Vec<_> =
        source.imports.iter().map(|i| (i.alias.as_str(), names(&i.named).0, i.public)).collect();
    assert_eq!(
        imports,
        [
            ("B", "crate::a::B".to_owned(), false),
            ("c", "crate::a::c".to_owned(), false),
            ("E", "crate::a::c::D".to_owned(), false),
            ("*", "crate::a::f".to_owned(), false),
            ("G", "super::G".to_owned(), true),
        ]
    );
    let paths: Vec<_> = source.paths.iter().map(names).collect();
    let expected = [("crate::j::K", 0), ("super::super::n::o", 1), ("crate::p::Q", 1)];
    assert_eq!(paths, expected.map(|(path, depth)| (path.to_owned(), depth)));
    assert_eq!(source.modules, [("tests".to_owned(), true), ("h".to_owned(), false)]);
    assert_eq!(source.items, ["i", "m", "S", "T"]);
    assert_eq!(source.listed, ["u", "v"]);
}
