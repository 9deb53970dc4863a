//! A loop's bounded cache of resolved names.

use std::collections::HashMap;
use std::time::Instant;

use super::Resolved;

/// The most names and addresses in a generation.
const NAMES: usize = 2048;
const ADDRESSES: usize = 64 * 1024;

/// Two generations of names. A name that is looked up moves to the young one. When that is full it
/// becomes the old one, and names that were not looked up meanwhile are dropped.
#[derive(Default)]
pub struct NameCache {
    young: Generation,
    old: Generation,
}

#[derive(Default)]
struct Generation {
    names: HashMap<String, Resolved>,
    /// The number of their addresses.
    addresses: usize,
}

impl Generation {
    fn remove(&mut self, name: &str) -> Option<(String, Resolved)> {
        let (name, found) = self.names.remove_entry(name)?;
        self.addresses -= found.addresses.len();
        Some((name, found))
    }

    fn insert(&mut self, name: String, found: Resolved) {
        self.addresses += found.addresses.len();
        self.names.insert(name, found);
    }
}

impl NameCache {
    /// The addresses of a name, if they have not expired.
    pub fn find(&mut self, name: &str, now: Instant) -> Option<Resolved> {
        if let Some(found) = self.young.names.get(name) {
            return (found.until > now).then(|| found.clone());
        }
        let (name, found) = self.old.remove(name).filter(|(_, found)| found.until > now)?;
        self.keep(name, found.clone());
        Some(found)
    }

    /// Stores the addresses of a name.
    pub fn keep(&mut self, name: String, found: Resolved) {
        self.young.remove(&name);
        self.old.remove(&name);
        let young = &self.young;
        if young.names.len() >= NAMES || young.addresses + found.addresses.len() > ADDRESSES {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, found);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use super::*;

    fn found(addresses: usize, until: Instant) -> Resolved {
        Resolved { addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST); addresses], until }
    }

    fn size(known: &NameCache) -> (usize, usize) {
        let all = [&known.young, &known.old];
        (all.iter().map(|g| g.names.len()).sum(), all.iter().map(|g| g.addresses).sum())
    }

    #[test]
    fn a_flood_of_names_is_bounded_and_leaves_those_in_use() {
        let (mut known, now) = (NameCache::default(), Instant::now());
        let until = now + Duration::from_secs(60);
        known.keep("used".to_owned(), found(1, until));
        for n in 0..5 * NAMES {
            known.keep(format!("n{n}"), found(1 + n % 3, until));
            assert!(known.find("used", now).is_some(), "{n}");
            assert!(size(&known).0 <= 2 * NAMES);
        }
        assert_eq!(known.find("n1", now), None);
    }

    #[test]
    fn names_with_many_addresses_are_fewer() {
        let (mut known, now) = (NameCache::default(), Instant::now());
        let until = now + Duration::from_secs(60);
        for n in 0..100 {
            known.keep(format!("n{n}"), found(8000, until));
            assert!(size(&known).1 <= 2 * ADDRESSES);
        }
        known.keep("n99".to_owned(), found(1, until));
        assert_eq!(known.find("n99", now).unwrap().addresses.len(), 1);
        assert_eq!(known.find("n99", until), None);
    }
}
