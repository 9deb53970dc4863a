//! A configuration as it was written: directives, words, blocks.

use std::borrow::Cow;
use std::fmt;

use crate::block::Block;
use crate::error::Error;
use crate::source::{Pos, Sources};

/// A word of a directive, without its quotes and escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The word's bytes; nginx does not ask for UTF-8, so neither does weir.
    pub bytes: Vec<u8>,
    /// Where the word begins (its quote, if it has one).
    pub pos: Pos,
    /// The word stood in quotes.
    pub quoted: bool,
}

impl Word {
    /// The word as text for messages.
    pub fn lossy(&self) -> Cow<'_, str> {
        // Most words are ASCII, which this looks at eight bytes at a time.
        self.str().map_or_else(|| String::from_utf8_lossy(&self.bytes), Cow::Borrowed)
    }

    /// The word as text, if it is UTF-8.
    pub fn str(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    /// The word is exactly this text.
    pub fn is(&self, text: &str) -> bool {
        self.bytes == text.as_bytes()
    }
}

/// One directive. A line of a free-form block (`types`, `map`, `geo`, ...) is one too: its first
/// word is the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// The first word.
    pub name: Word,
    /// The other words.
    pub args: Vec<Word>,
    /// The contents of the braces.
    pub body: DirectiveBody,
    /// Where the `;` or `{` stands: nginx names this line in errors about the directive.
    pub end: Pos,
    /// Where the `}` of a block stands, else `end`: nginx names this line in errors about a block
    /// as a whole.
    pub close: Pos,
}

/// The contents of a directive's braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectiveBody {
    /// No braces: the directive ended with `;`.
    None,
    /// Directives, or the lines of a free-form block.
    Block(Block),
    /// The text of a `..._by_lua_block`.
    Raw(Vec<u8>),
}

impl Directive {
    /// The argument with this index, from 0.
    pub fn arg(&self, index: usize) -> Option<&Word> {
        self.args.get(index)
    }

    /// The directives in the braces; none if there are no braces.
    pub fn block(&self) -> &[Directive] {
        self.shared_block().map_or(&[], |block| block)
    }

    /// The block itself, which clones share.
    pub fn shared_block(&self) -> Option<&Block> {
        match &self.body {
            DirectiveBody::Block(block) => Some(block),
            DirectiveBody::None | DirectiveBody::Raw(_) => None,
        }
    }

    /// An error about the whole directive, at the place that nginx names.
    pub fn error(&self, message: impl fmt::Display) -> Error {
        Error::emerg(message).at(self.end).mark(self.name.pos)
    }

    /// An error about one word of the directive.
    pub fn error_at(&self, word: &Word, message: impl fmt::Display) -> Error {
        Error::emerg(message).at(self.end).mark(word.pos)
    }

    /// nginx's `invalid WHAT "WORD"`.
    pub fn invalid(&self, what: &str, word: &Word) -> Error {
        self.error_at(word, format!("invalid {what} \"{}\"", word.lossy()))
    }

    /// nginx's `"NAME" directive PROBLEM`, as in `"listen" directive is duplicate`.
    pub fn problem(&self, problem: &str) -> Error {
        self.error(format!("\"{}\" directive {problem}", self.name.lossy()))
    }

    /// A warning about the whole directive.
    pub fn warning(&self, message: impl fmt::Display) -> Error {
        Error::warn(message).at(self.end).mark(self.name.pos)
    }
}

/// A configuration with everything that it includes.
///
/// nginx checks directives while it reads, so it reports the first error in file order. weir reads
/// first. `broken` keeps the error that stopped the parser, and [`crate::check`](crate::check())
/// reports it only if there is no error before it.
#[derive(Clone, Debug)]
pub struct ConfigTree {
    /// The texts.
    pub sources: Sources,
    /// The directives outside of all blocks, those of `-g` first.
    pub main: Vec<Directive>,
    /// The error that stopped the parser. `main` then only holds the directives before it.
    pub broken: Option<Error>,
}

/// Whether two lists have the same words and blocks, whatever their positions and quotes.
pub fn is_same(a: &[Directive], b: &[Directive]) -> bool {
    let words = |a: &Word, b: &Word| a.bytes == b.bytes;
    let each = |(a, b): (&Directive, &Directive)| {
        let bodies = match (&a.body, &b.body) {
            (DirectiveBody::Block(a), DirectiveBody::Block(b)) => a.is_same(b) || is_same(a, b),
            (DirectiveBody::Raw(a), DirectiveBody::Raw(b)) => a == b,
            (DirectiveBody::None, DirectiveBody::None) => true,
            _ => false,
        };
        let mut args = a.args.iter().zip(&b.args);
        let args = a.args.len() == b.args.len() && args.all(|(a, b)| words(a, b));
        words(&a.name, &b.name) && args && bodies
    };
    a.len() == b.len() && a.iter().zip(b).all(each)
}
