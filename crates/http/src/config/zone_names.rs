//! The names of `status_zone`s, by number. Compiled servers refer to the numbers.
//!
//! - In: names, as blocks are read, and uses that a reused server repeats ([`super::known`]).
//! - Out: the site's names by number. An unused number has an empty name.

use std::collections::HashMap;

/// The names of the site that is being read.
#[derive(Debug, Default)]
pub struct ZoneNames {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
    /// Numbers of the previous site that are free.
    free: Vec<usize>,
    is_used: Vec<bool>,
    /// The numbers that the server that is being read uses.
    noted: Vec<usize>,
}

impl ZoneNames {
    /// The number of a name. It counts as used.
    pub fn of(&mut self, name: &str) -> usize {
        let at = self.numbers.get(name).copied().unwrap_or_else(|| {
            let at = self.free.pop().unwrap_or(self.names.len());
            self.names.resize_with(self.names.len().max(at + 1), String::new);
            if let Some(place) = self.names.get_mut(at) {
                name.clone_into(place);
            }
            self.numbers.insert(name.to_owned(), at);
            at
        });
        self.uses(at);
        self.noted.push(at);
        at
    }

    fn uses(&mut self, at: usize) {
        self.is_used.resize(self.names.len().max(at + 1), false);
        if let Some(used) = self.is_used.get_mut(at) {
            *used = true;
        }
    }

    /// Takes over the numbers of the previous site. Only the `kept` ones stay reserved for their
    /// names.
    pub fn number_as(&mut self, before: &[String], kept: impl Iterator<Item = usize>) {
        self.names = vec![String::new(); before.len()];
        for at in kept {
            let Some((place, name)) = self.names.get_mut(at).zip(before.get(at)) else { continue };
            place.clone_from(name);
            self.numbers.insert(name.clone(), at);
        }
        let places = self.names.iter().enumerate().rev();
        self.free = places.filter(|(_, name)| name.is_empty()).map(|(at, _)| at).collect();
    }

    /// Called before a server is read.
    pub fn note(&mut self) {
        self.noted.clear();
    }

    /// The numbers that the server used.
    pub fn noted(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.noted)
    }

    /// Repeats the uses of a reused server.
    pub fn repeat(&mut self, noted: &[usize]) {
        noted.iter().for_each(|at| self.uses(*at));
    }

    /// The names by number. Unused numbers have empty names.
    pub fn end(mut self) -> Vec<String> {
        self.is_used.resize(self.names.len(), false);
        for (name, _) in self.names.iter_mut().zip(&self.is_used).filter(|(_, used)| !**used) {
            name.clear();
        }
        self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_names_keep_their_numbers_and_free_places_are_used_again() {
        let mut first = ZoneNames::default();
        let numbers = ["a", "b", "c", "a"].map(|name| first.of(name));
        assert_eq!(numbers, [0, 1, 2, 0]);
        let before = first.end();
        let mut next = ZoneNames::default();
        next.number_as(&before, [0, 2].into_iter());
        assert_eq!(next.of("d"), 1, "the place of b");
        assert_eq!(next.of("c"), 2);
        assert_eq!(next.of("e"), 3);
        assert_eq!(next.end(), ["", "d", "c", "e"], "no server repeated a");
        let mut last = ZoneNames::default();
        last.number_as(&before, [0, 2].into_iter());
        last.repeat(&[0]);
        assert_eq!(last.end(), ["a", "", ""]);
    }
}
