//! The user data of events, which says what an event is for.

use crate::slots::Key;

/// The kind of thing that an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Stream = 0,
    Listener = 1,
    Foreign = 2,
    Own = 3,
}

/// The 64 bits of user data of an event: kind, generation, slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) u64);

impl Token {
    /// The mailbox's notifier.
    pub(crate) const NOTIFIER: Token = Token::own(0);
    /// The timer of the loop's steal group.
    pub(crate) const STALL_TIMER: Token = Token::own(1);

    const fn own(which: u64) -> Token {
        Token((TokenKind::Own as u64) << 62 | which)
    }

    pub(crate) fn new(kind: TokenKind, key: Key) -> Self {
        Token((kind as u64) << 62 | u64::from(key.generation) << 32 | u64::from(key.index))
    }

    #[inline]
    pub(crate) fn kind(self) -> TokenKind {
        match self.0 >> 62 {
            0 => TokenKind::Stream,
            1 => TokenKind::Listener,
            2 => TokenKind::Foreign,
            _ => TokenKind::Own,
        }
    }

    #[inline]
    pub(crate) fn key(self) -> Key {
        Key { index: self.0 as u32, generation: (self.0 >> 32) as u32 & ((1 << 30) - 1) }
    }
}
