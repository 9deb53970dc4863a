//! Sets of header names.

use weir_proto::http1::HeaderId;

/// A set of header names. A lookup of a well-known name is a bit test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    known: u64,
    others: Vec<Vec<u8>>,
}

impl Names {
    /// Adds a name, in any case.
    pub fn insert(&mut self, name: &[u8]) {
        match HeaderId::from_name(name) {
            HeaderId::Other => self.others.push(name.to_ascii_lowercase()),
            id => self.known |= bit(id),
        }
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &[u8]) {
        match HeaderId::from_name(name) {
            HeaderId::Other => self.others.retain(|n| !n.eq_ignore_ascii_case(name)),
            id => self.known &= !bit(id),
        }
    }

    /// Removes all names.
    pub fn clear(&mut self) {
        *self = Names::default();
    }

    /// Whether the set has this header.
    pub fn contains(&self, id: HeaderId, name: &[u8]) -> bool {
        match id {
            HeaderId::Other => self.others.iter().any(|n| n.eq_ignore_ascii_case(name)),
            id => self.known & bit(id) != 0,
        }
    }

    /// Whether the set has this well-known header.
    pub fn has(&self, id: HeaderId) -> bool {
        self.known & bit(id) != 0
    }
}

impl<N: AsRef<[u8]>> Extend<N> for Names {
    fn extend<I: IntoIterator<Item = N>>(&mut self, names: I) {
        names.into_iter().for_each(|name| self.insert(name.as_ref()));
    }
}

impl<N: AsRef<[u8]>> FromIterator<N> for Names {
    fn from_iter<I: IntoIterator<Item = N>>(names: I) -> Names {
        let mut set = Names::default();
        set.extend(names);
        set
    }
}

fn bit(id: HeaderId) -> u64 {
    1u64.checked_shl(id as u32).unwrap_or(0)
}
