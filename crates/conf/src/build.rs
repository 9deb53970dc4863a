//! Directives that a program makes, instead of a text that a person wrote.
//!
//! A value becomes one word, whatever its bytes. There is no text around it that it could break.

use crate::block::Block;
use crate::source::Pos;
use crate::tree::{Directive, DirectiveBody, Word};

/// The position of words that are in no text.
const NOWHERE: Pos = Pos { file: u32::MAX, line: 1, column: 1 };

impl Word {
    /// A word with these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Word {
        Word { bytes: bytes.into(), pos: NOWHERE, quoted: true }
    }
}

impl Directive {
    /// A directive without braces.
    pub fn new<I>(name: &str, args: I) -> Directive
    where
        I: IntoIterator,
        I::Item: Into<Vec<u8>>,
    {
        let args = args.into_iter().map(Word::new).collect();
        let body = DirectiveBody::None;
        Directive { name: Word::new(name), args, body, end: NOWHERE, close: NOWHERE }
    }

    /// The directive with a block of others.
    pub fn with_block(mut self, list: Vec<Directive>) -> Directive {
        self.body = DirectiveBody::Block(Block::new(list));
        self
    }
}
