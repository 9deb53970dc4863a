//! The places in a configuration where a directive may stand.

use std::fmt;
use std::ops::BitOr;

/// A set of places. One place is a set of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Context(u16);

impl Context {
    /// Nowhere.
    pub const NONE: Context = Context(0);
    /// Outside of all blocks.
    pub const MAIN: Context = Context(1);
    /// `events { }`.
    pub const EVENTS: Context = Context(1 << 1);
    /// `http { }`.
    pub const HTTP: Context = Context(1 << 2);
    /// `server { }` in `http`.
    pub const SERVER: Context = Context(1 << 3);
    /// `location { }`.
    pub const LOCATION: Context = Context(1 << 4);
    /// `if { }` in a `server`.
    pub const IF_SERVER: Context = Context(1 << 5);
    /// `if { }` in a `location`.
    pub const IF_LOCATION: Context = Context(1 << 6);
    /// `limit_except { }`.
    pub const LIMIT_EXCEPT: Context = Context(1 << 7);
    /// `upstream { }` in `http`.
    pub const UPSTREAM: Context = Context(1 << 8);
    /// `stream { }`.
    pub const STREAM: Context = Context(1 << 9);
    /// `server { }` in `stream`.
    pub const STREAM_SERVER: Context = Context(1 << 10);
    /// `upstream { }` in `stream`.
    pub const STREAM_UPSTREAM: Context = Context(1 << 11);
    /// `mail { }`.
    pub const MAIL: Context = Context(1 << 12);
    /// `server { }` in `mail`.
    pub const MAIL_SERVER: Context = Context(1 << 13);
    /// Everywhere.
    pub const ANY: Context = Context((1 << 14) - 1);

    /// The name of each single place, as the documentation prints it.
    const NAMES: [(Context, &'static str); 14] = [
        (Context::MAIN, "main"),
        (Context::EVENTS, "events"),
        (Context::HTTP, "http"),
        (Context::SERVER, "server"),
        (Context::LOCATION, "location"),
        (Context::IF_SERVER, "if in server"),
        (Context::IF_LOCATION, "if in location"),
        (Context::LIMIT_EXCEPT, "limit_except"),
        (Context::UPSTREAM, "upstream"),
        (Context::STREAM, "stream"),
        (Context::STREAM_SERVER, "stream server"),
        (Context::STREAM_UPSTREAM, "stream upstream"),
        (Context::MAIL, "mail"),
        (Context::MAIL_SERVER, "mail server"),
    ];

    /// Both sets together; `|` for constants.
    pub const fn or(self, other: Context) -> Context {
        Context(self.0 | other.0)
    }

    /// The sets have a place in common.
    pub const fn meets(self, other: Context) -> bool {
        self.0 & other.0 != 0
    }

    /// The single places in the set.
    pub fn each(self) -> impl Iterator<Item = Context> {
        Self::NAMES.into_iter().map(|(c, _)| c).filter(move |c| self.meets(*c))
    }

    /// The names of the places in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(c, _)| self.meets(*c)).map(|(_, name)| name)
    }
}

impl BitOr for Context {
    type Output = Context;

    fn bitor(self, other: Context) -> Context {
        self.or(other)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({self})")
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Context::ANY {
            return f.write_str("any");
        }
        for (n, name) in self.names().enumerate() {
            write!(f, "{}{name}", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Context;

    #[test]
    fn sets() {
        let set = Context::HTTP | Context::SERVER;
        assert!(set.meets(Context::SERVER));
        assert!(!set.meets(Context::LOCATION));
        assert_eq!(set.to_string(), "http, server");
        assert_eq!(Context::ANY.to_string(), "any");
        assert!(Context::NAMES.iter().all(|(c, _)| Context::ANY.meets(*c)));
    }
}
