//! Selects the location of a path. As in nginx, the longest prefix is selected, unless a regular
//! expression matches. `=` and `^~` end the search. Nested locations are searched inside the
//! selected one.

use std::collections::{HashMap, HashSet};

use rustc_hash::FxBuildHasher;
use weir_conf::{Error, Pos};

use crate::regex::{Matched, Regex};
use crate::request::Request;
use crate::site::plan::Plan;
use crate::site::settings::LocationConf;

/// The index of a location in [`crate::Site`]'s list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocationId(pub u32);

/// How a location is selected.
#[derive(Debug)]
pub enum Kind {
    /// The settings of a server outside of its locations.
    Server,
    /// `location = /x`
    Exact,
    /// `location /x`
    Prefix {
        /// `^~`: regular expressions are not tested.
        noregex: bool,
    },
    /// `location ~ x`, `~* x`
    Regex(Regex),
    /// `location @x`
    Named,
    /// `if (...) { }`: entered by the rewrite module.
    If,
    /// `limit_except { }`: entered by the request's method.
    LimitExcept,
}

impl Kind {
    /// Whether this is the settings of a server.
    pub fn is_server(&self) -> bool {
        matches!(self, Kind::Server)
    }
}

/// A location with its settings and nested locations.
#[derive(Debug)]
pub struct Location {
    /// The name as written: prefix, path, pattern or `@name`.
    pub name: Vec<u8>,
    /// The start of the block.
    pub at: Option<Pos>,
    /// How it is selected.
    pub kind: Kind,
    /// Settings of all modules.
    pub conf: LocationConf,
    /// The handlers and filters that it needs.
    pub plan: Plan,
    /// Whether a request for the name without its last slash is redirected (`proxy_pass` and
    /// alike).
    pub auto_redirect: bool,
    /// Nested locations.
    pub children: Children,
}

/// The key of a location among its siblings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// The whole path.
    Exact(Vec<u8>),
    /// A prefix of the path.
    Prefix(Vec<u8>),
    /// A pattern.
    Regex,
    /// `@name`
    Named(Vec<u8>),
}

/// Locations by name. Names are from the configuration, so clients cannot cause collisions.
type Names = HashMap<Vec<u8>, LocationId, FxBuildHasher>;

/// The locations of a server or location, arranged for the search.
#[derive(Debug, Default)]
pub struct Children {
    exact: Names,
    /// Sorted by name, so that names with a common prefix are adjacent.
    prefixes: Vec<Prefix>,
    regexes: Vec<LocationId>,
    named: Names,
    /// Names that a request without the last slash is redirected to.
    redirects: Names,
}

#[derive(Debug)]
struct Prefix {
    name: Vec<u8>,
    id: LocationId,
    /// The longest other name that is a prefix of this one.
    parent: Option<u32>,
}

/// The result of a search among exact names and prefixes.
enum Static {
    Exact(LocationId),
    Redirect(LocationId),
    Prefix(LocationId),
    None,
}

impl Children {
    /// Arranges locations. Each comes with the error for a duplicate name. `auto` tells whether a
    /// location redirects to its name with a slash.
    pub fn new(
        inner: Vec<(LocationId, Key, Error)>,
        auto: &dyn Fn(LocationId) -> bool,
    ) -> Result<Self, Error> {
        let mut this = Children::default();
        let mut known = HashSet::with_hasher(FxBuildHasher);
        for (id, key, duplicate) in inner {
            if let Key::Exact(name) | Key::Prefix(name) = &key
                && name.ends_with(b"/")
                && auto(id)
            {
                this.redirects.insert(name[..name.len() - 1].to_vec(), id);
            }
            match key {
                Key::Exact(name) => {
                    if this.exact.insert(name, id).is_some() {
                        return Err(duplicate);
                    }
                }
                Key::Prefix(name) => {
                    if !known.insert(name.clone()) {
                        return Err(duplicate);
                    }
                    this.prefixes.push(Prefix { name, id, parent: None });
                }
                Key::Regex => this.regexes.push(id),
                // As in nginx, a second location of the name is allowed, and unreachable.
                Key::Named(name) => {
                    this.named.entry(name).or_insert(id);
                }
            }
        }
        this.prefixes.sort_by(|a, b| a.name.cmp(&b.name));
        for i in 0..this.prefixes.len() {
            let mut up = i.checked_sub(1).map(|p| p as u32);
            while let Some(p) = up
                && !this.prefixes[i].name.starts_with(&this.prefixes[p as usize].name)
            {
                up = this.prefixes[p as usize].parent;
            }
            this.prefixes[i].parent = up;
        }
        Ok(this)
    }

    /// Whether there are no nested locations.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty()
            && self.prefixes.is_empty()
            && self.regexes.is_empty()
            && self.named.is_empty()
    }

    /// The location of a name that begins with `@`.
    pub fn named(&self, name: &[u8]) -> Option<LocationId> {
        self.named.get(name).copied()
    }

    fn fixed(&self, path: &[u8]) -> Static {
        if !self.exact.is_empty()
            && let Some(&id) = self.exact.get(path)
        {
            return Static::Exact(id);
        }
        let after = self.prefixes.partition_point(|p| p.name.as_slice() <= path);
        let mut at = after.checked_sub(1).map(|i| i as u32);
        while let Some(i) = at
            && !path.starts_with(&self.prefixes[i as usize].name)
        {
            at = self.prefixes[i as usize].parent;
        }
        let found = at.map(|i| &self.prefixes[i as usize]);
        match found {
            Some(p) if p.name.len() == path.len() => Static::Prefix(p.id),
            _ if !self.redirects.is_empty() && self.redirects.contains_key(path) => {
                Static::Redirect(self.redirects[path])
            }
            Some(p) => Static::Prefix(p.id),
            None => Static::None,
        }
    }
}

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// This location serves the request.
    At(LocationId),
    /// The request must be redirected to the location's name, which is its path with a slash.
    Redirect(LocationId),
    /// A regular expression exceeded its match limit. The request is refused, since another
    /// location might allow what this one denies.
    Undecided,
}

/// Finds the location for the request's path inside `start`. The first `start` is the server's own
/// location.
pub fn find(r: &mut Request, start: LocationId) -> Found {
    match search(r, start) {
        (Outcome::Redirect, id) => Found::Redirect(id),
        (Outcome::Failed, _) => Found::Undecided,
        (_, id) => Found::At(id),
    }
}

#[derive(PartialEq, Eq)]
enum Outcome {
    /// The search has ended.
    Final,
    /// Only a prefix or nothing was found. Regular expressions of outer locations may match.
    Open,
    Redirect,
    /// A regular expression exceeded its match limit.
    Failed,
}

fn search(r: &mut Request, start: LocationId) -> (Outcome, LocationId) {
    let site = r.site;
    let here = site.location(start);
    let (mut best, mut noregex) = (start, false);
    match here.children.fixed(&r.path) {
        Static::Exact(id) => return (Outcome::Final, id),
        Static::Redirect(id) => return (Outcome::Redirect, id),
        Static::Prefix(id) => {
            let inner = site.location(id);
            noregex = matches!(inner.kind, Kind::Prefix { noregex: true });
            best = id;
            if !inner.children.is_empty() {
                let (outcome, id) = search(r, id);
                if outcome != Outcome::Open {
                    return (outcome, id);
                }
                best = id;
            }
        }
        Static::None => {}
    }
    if !noregex {
        for &id in &here.children.regexes {
            let Kind::Regex(regex) = &site.location(id).kind else { continue };
            match matches_path(regex, r) {
                Matched::No => continue,
                Matched::Failed => return (Outcome::Failed, id),
                Matched::Yes => {}
            }
            let inner = site.location(id);
            if inner.children.is_empty() {
                return (Outcome::Final, id);
            }
            let (outcome, found) = search(r, id);
            return match outcome {
                Outcome::Redirect | Outcome::Failed => (outcome, found),
                Outcome::Final | Outcome::Open => (Outcome::Final, found),
            };
        }
    }
    (Outcome::Open, best)
}

/// Matches the request's path. Captures become `$1` and so on, and named variables.
fn matches_path(regex: &Regex, r: &mut Request) -> Matched {
    let path = std::mem::take(&mut r.path);
    let matched = regex.decide(r, &path);
    r.path = path;
    matched
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_testkit::spent;

    fn children(locations: &[(bool, &str)], auto: bool) -> Children {
        let key = |exact: bool, name: &str| match exact {
            true => Key::Exact(name.as_bytes().to_vec()),
            false => Key::Prefix(name.as_bytes().to_vec()),
        };
        let inner = locations.iter().enumerate().map(|(i, (exact, name))| {
            (LocationId(i as u32), key(*exact, name), Error::emerg("duplicate"))
        });
        Children::new(inner.collect(), &|_| auto).unwrap()
    }

    fn found(children: &Children, path: &str) -> Option<(&'static str, u32)> {
        match children.fixed(path.as_bytes()) {
            Static::Exact(id) => Some(("exact", id.0)),
            Static::Redirect(id) => Some(("redirect", id.0)),
            Static::Prefix(id) => Some(("prefix", id.0)),
            Static::None => None,
        }
    }

    #[test]
    fn exact_wins_over_prefix_and_both_over_a_missing_slash() {
        let list = [(false, "/a/"), (true, "/a"), (false, "/"), (false, "/b/")];
        let children = children(&list, true);
        assert_eq!(found(&children, "/a"), Some(("exact", 1)));
        assert_eq!(found(&children, "/a/x"), Some(("prefix", 0)));
        assert_eq!(found(&children, "/b"), Some(("redirect", 3)));
        assert_eq!(found(&children, "/bb"), Some(("prefix", 2)));
        assert_eq!(found(&children, "b"), None);
    }

    #[test]
    fn no_two_locations_of_a_kind_have_one_name() {
        let twins = |key: fn(Vec<u8>) -> Key| {
            let one = |id| (LocationId(id), key(b"/a".to_vec()), Error::emerg("duplicate"));
            Children::new(vec![one(0), one(1)], &|_| false).is_err()
        };
        assert!(twins(Key::Exact) && twins(Key::Prefix));
        assert!(!twins(Key::Named));
    }

    proptest! {
        #[test]
        fn the_longest_prefix_wins(
            names in prop::collection::hash_set("/[ab/]{0,5}", 0..12),
            path in "/[ab/]{0,8}",
        ) {
            let names: Vec<String> = names.into_iter().collect();
            let list: Vec<_> = names.iter().map(|name| (false, name.as_str())).collect();
            let naive = names.iter().enumerate().filter(|(_, name)| path.starts_with(*name));
            let naive = naive.max_by_key(|(_, name)| name.len());
            let naive = naive.map(|(i, _)| ("prefix", i as u32));
            prop_assert_eq!(found(&children(&list, false), &path), naive);
        }
    }

    /// The time grows with the number of locations, not with its square.
    #[test]
    fn many_locations_are_arranged_in_time() {
        let time = |many: u32| {
            let one = |n| {
                (
                    LocationId(n),
                    Key::Prefix(format!("/place/{n:07}").into()),
                    Error::emerg("duplicate"),
                )
            };
            let inner = (0..many).map(one).collect();
            spent(|| _ = Children::new(inner, &|_| false).unwrap())
        };
        let (few, many) = (time(5_000), time(100_000));
        assert!(many < few * 100, "{few:?}, {many:?}");
    }
}
