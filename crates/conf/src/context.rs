//! The places in a configuration where a directive may stand.

use std::fmt;
use std::ops::BitOr;

/// A set of places. One place is a set of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Contexts(u16);

impl Contexts {
    /// Nowhere.
    pub const NONE: Contexts = Contexts(0);
    /// Outside of all blocks.
    pub const MAIN: Contexts = Contexts(1);
    /// `events { }`.
    pub const EVENTS: Contexts = Contexts(1 << 1);
    /// `http { }`.
    pub const HTTP: Contexts = Contexts(1 << 2);
    /// `server { }` in `http`.
    pub const SERVER: Contexts = Contexts(1 << 3);
    /// `location { }`.
    pub const LOCATION: Contexts = Contexts(1 << 4);
    /// `if { }` in a `server`.
    pub const IF_SERVER: Contexts = Contexts(1 << 5);
    /// `if { }` in a `location`.
    pub const IF_LOCATION: Contexts = Contexts(1 << 6);
    /// `limit_except { }`.
    pub const LIMIT_EXCEPT: Contexts = Contexts(1 << 7);
    /// `upstream { }` in `http`.
    pub const UPSTREAM: Contexts = Contexts(1 << 8);
    /// `stream { }`.
    pub const STREAM: Contexts = Contexts(1 << 9);
    /// `server { }` in `stream`.
    pub const STREAM_SERVER: Contexts = Contexts(1 << 10);
    /// `upstream { }` in `stream`.
    pub const STREAM_UPSTREAM: Contexts = Contexts(1 << 11);
    /// `mail { }`.
    pub const MAIL: Contexts = Contexts(1 << 12);
    /// `server { }` in `mail`.
    pub const MAIL_SERVER: Contexts = Contexts(1 << 13);
    /// Everywhere.
    pub const ANY: Contexts = Contexts((1 << 14) - 1);

    /// The name of each single place, as the documentation prints it.
    const NAMES: [(Contexts, &'static str); 14] = [
        (Contexts::MAIN, "main"),
        (Contexts::EVENTS, "events"),
        (Contexts::HTTP, "http"),
        (Contexts::SERVER, "server"),
        (Contexts::LOCATION, "location"),
        (Contexts::IF_SERVER, "if in server"),
        (Contexts::IF_LOCATION, "if in location"),
        (Contexts::LIMIT_EXCEPT, "limit_except"),
        (Contexts::UPSTREAM, "upstream"),
        (Contexts::STREAM, "stream"),
        (Contexts::STREAM_SERVER, "stream server"),
        (Contexts::STREAM_UPSTREAM, "stream upstream"),
        (Contexts::MAIL, "mail"),
        (Contexts::MAIL_SERVER, "mail server"),
    ];

    /// Both sets together; `|` for constants.
    pub const fn or(self, other: Contexts) -> Contexts {
        Contexts(self.0 | other.0)
    }

    /// A bit for each place.
    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    /// The sets have a place in common.
    pub const fn meets(self, other: Contexts) -> bool {
        self.0 & other.0 != 0
    }

    /// The single places in the set.
    pub fn each(self) -> impl Iterator<Item = Contexts> {
        Self::NAMES.into_iter().map(|(c, _)| c).filter(move |c| self.meets(*c))
    }

    /// The names of the places in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(c, _)| self.meets(*c)).map(|(_, name)| name)
    }
}

impl BitOr for Contexts {
    type Output = Contexts;

    fn bitor(self, other: Contexts) -> Contexts {
        self.or(other)
    }
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({self})")
    }
}

impl fmt::Display for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Contexts::ANY {
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
    use super::Contexts;

    #[test]
    fn sets() {
        let set = Contexts::HTTP | Contexts::SERVER;
        assert!(set.meets(Contexts::SERVER));
        assert!(!set.meets(Contexts::LOCATION));
        assert_eq!(set.to_string(), "http, server");
        assert_eq!(Contexts::ANY.to_string(), "any");
        assert!(Contexts::NAMES.iter().all(|(c, _)| Contexts::ANY.meets(*c)));
    }
}
