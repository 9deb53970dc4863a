//! Virtual hosts: the server that a host name selects on an address. As in nginx, the order is: the
//! exact name, the longest `*.` wildcard, the longest `.*` wildcard, the first regular expression,
//! the default server.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use weir_conf::{Directive, Error};

use crate::builtin;
use crate::reading::Reading;
use crate::regex::{GaveUp, Regex};
use crate::subject::Subject;

/// A server's index in the site's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// One name of a `server_name` directive.
#[derive(Debug, Clone)]
pub enum ServerName {
    /// `example.org`, and `""` for requests without a host.
    Exact(Vec<u8>),
    /// `*.example.org` (without the star and dot).
    Head(Vec<u8>),
    /// `.example.org` (without the dot): the exact name and all names below it. If one of these is
    /// taken, neither is added.
    Both(Vec<u8>),
    /// `www.*` (without dot and star).
    Tail(Vec<u8>),
    /// `~^www\d+`
    Regex(Regex),
    /// An invalid wildcard. The error is reported once the addresses are known.
    Bad(Vec<u8>),
}

impl ServerName {
    /// Parses a name, in lower case since hosts are compared without case. `None` if it is no name.
    pub fn parse(text: &[u8]) -> Option<ServerName> {
        match text {
            [b'*', rest @ ..] if rest.len() < 2 || rest.first() != Some(&b'.') => return None,
            [b'.'] => return None,
            _ => {}
        }
        let name = text.to_ascii_lowercase();
        let stars = memchr::memchr_iter(b'*', &name).count();
        let dots = name.windows(2).any(|pair| pair == b"..");
        if stars > 1 || dots || name.contains(&0) {
            return Some(ServerName::Bad(name));
        }
        if let Some(rest) = name.strip_prefix(b"*.") {
            return Some(ServerName::Head(rest.to_vec()));
        }
        if let Some(rest) = name.strip_prefix(b".") {
            return Some(ServerName::Both(rest.to_vec()));
        }
        if let Some(rest) = name.strip_suffix(b".*")
            && !rest.is_empty()
        {
            return Some(ServerName::Tail(rest.to_vec()));
        }
        Some(if stars == 0 { ServerName::Exact(name) } else { ServerName::Bad(name) })
    }
}

/// The names of a line `server_name NAME ...`
pub fn server_names<S: Subject>(
    reading: &mut Reading<'_, S>,
    d: &Directive,
) -> Result<Vec<ServerName>, Error> {
    let mut names = Vec::with_capacity(d.args.len());
    for word in &d.args {
        if word.bytes.contains(&b'/') {
            let text = format!("server name \"{}\" has suspicious symbols", word.lossy());
            reading.warnings.push(d.warning(text).mark(word.pos));
        }
        names.push(match word.bytes.strip_prefix(b"~") {
            Some([]) => return Err(d.error_at(word, "empty regex in server name \"~\"")),
            Some(pattern) => {
                let caseless = pattern.iter().any(u8::is_ascii_uppercase);
                ServerName::Regex(reading.regex(d, word, pattern, caseless)?)
            }
            None if word.bytes.eq_ignore_ascii_case(b"$hostname") => {
                ServerName::Exact(builtin::hostname())
            }
            None => ServerName::parse(&word.bytes).ok_or_else(|| {
                d.error_at(word, format!("server name \"{}\" is invalid", word.lossy()))
            })?,
        });
    }
    Ok(names)
}

/// Values by names with wildcards. The exact name wins, then the longest `*.` wildcard, then the
/// longest `.*` wildcard.
#[derive(Debug, Clone)]
pub struct WildcardNames<T> {
    exact: HashMap<Box<[u8]>, T>,
    heads: HashMap<Box<[u8]>, T>,
    tails: HashMap<Box<[u8]>, T>,
}

impl<T> Default for WildcardNames<T> {
    fn default() -> Self {
        WildcardNames { exact: HashMap::new(), heads: HashMap::new(), tails: HashMap::new() }
    }
}

impl<T: Clone> WildcardNames<T> {
    /// Adds a name. False if it is there already. Regular expressions are not kept here.
    pub fn add(&mut self, name: &ServerName, value: T) -> bool {
        let (map, key) = match name {
            ServerName::Exact(key) => (&mut self.exact, key),
            ServerName::Head(key) => (&mut self.heads, key),
            ServerName::Tail(key) => (&mut self.tails, key),
            ServerName::Both(key) => {
                let taken = |map: &HashMap<_, _>| map.contains_key(key.as_slice());
                if taken(&self.exact) || taken(&self.heads) {
                    return false;
                }
                self.exact.insert(key.as_slice().into(), value.clone());
                (&mut self.heads, key)
            }
            ServerName::Regex(_) | ServerName::Bad(_) => return true,
        };
        match map.entry(key.as_slice().into()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(value);
                true
            }
        }
    }

    /// The value for a name, which must be in lower case.
    pub fn find(&self, name: &[u8]) -> Option<&T> {
        if let Some(value) = self.exact.get(name) {
            return Some(value);
        }
        let head = |at: usize| self.heads.get(name.get(at + 1..)?);
        if !self.heads.is_empty()
            && let Some(value) = memchr::memchr_iter(b'.', name).find_map(head)
        {
            return Some(value);
        }
        if self.tails.is_empty() {
            return None;
        }
        memchr::memrchr_iter(b'.', name).find_map(|at| self.tails.get(name.get(..at)?))
    }
}

/// The servers of one address.
#[derive(Debug)]
pub struct Hosts {
    /// The server for hosts that match no name.
    pub default: ServerId,
    names: WildcardNames<ServerId>,
    regexes: Vec<(Regex, ServerId)>,
    /// All names belong to the default server.
    single: bool,
}

impl Hosts {
    /// No names yet.
    pub fn new(default: ServerId) -> Self {
        Hosts { default, names: WildcardNames::default(), regexes: Vec::new(), single: true }
    }

    /// Adds a server's name. False if another server of this address has it already.
    pub fn add(&mut self, name: &ServerName, server: ServerId) -> bool {
        self.single &= server == self.default;
        if let ServerName::Regex(regex) = name {
            self.regexes.push((regex.clone(), server));
            self.single = false;
        }
        self.names.add(name, server)
    }

    /// The server for a host (lower case, without port). `r` gets the captures of a regular
    /// expression.
    pub fn find<S: Subject>(&self, host: &[u8], r: &mut S) -> Result<ServerId, GaveUp> {
        self.find_by(host, |regex| regex.keep_groups(r, host))
            .map(|found| found.unwrap_or(self.default))
    }

    /// As [`Hosts::find`], without captures. `None` if only the default server is left.
    pub fn find_named(&self, host: &[u8]) -> Result<Option<ServerId>, GaveUp> {
        self.find_by(host, |regex| regex.test(host))
    }

    fn find_by(
        &self,
        host: &[u8],
        mut matches: impl FnMut(&Regex) -> Result<bool, GaveUp>,
    ) -> Result<Option<ServerId>, GaveUp> {
        if let Some(&id) = self.names.find(host) {
            return Ok(Some(id));
        }
        if host.is_empty() {
            return Ok(None);
        }
        for (regex, id) in &self.regexes {
            if matches(regex)? {
                return Ok(Some(*id));
            }
        }
        Ok(None)
    }

    /// True if the default server gets all requests.
    pub fn single(&self) -> bool {
        self.single
    }
}

impl ServerName {
    /// `$server_name`, if this is the server's first name: as written, without a leading dot.
    pub fn of_server(&self) -> Vec<u8> {
        match self {
            ServerName::Both(name) => name.clone(),
            name => name.text(),
        }
    }

    /// The name as written, for messages.
    pub fn text(&self) -> Vec<u8> {
        match self {
            ServerName::Exact(name) | ServerName::Bad(name) => name.clone(),
            ServerName::Head(rest) => [b"*.", rest.as_slice()].concat(),
            ServerName::Both(rest) => [b".", rest.as_slice()].concat(),
            ServerName::Tail(rest) => [rest.as_slice(), b".*"].concat(),
            ServerName::Regex(regex) => format!("~{}", regex.text()).into_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(names: &[&str]) -> Hosts {
        let mut hosts = Hosts::new(ServerId(0));
        for (i, name) in names.iter().enumerate() {
            let name = ServerName::parse(name.as_bytes()).unwrap();
            hosts.add(&name, ServerId(i as u32 + 1));
        }
        hosts
    }

    fn find(hosts: &Hosts, host: &str) -> u32 {
        hosts.names.find(host.as_bytes()).map_or(0, |id| id.0)
    }

    #[test]
    fn exact_names_win_over_long_wildcards_and_those_over_short_ones() {
        let hosts = hosts(&["www.example.org", "*.example.org", "*.org", "www.example.*"]);
        assert_eq!(find(&hosts, "www.example.org"), 1);
        assert_eq!(find(&hosts, "a.b.example.org"), 2);
        assert_eq!(find(&hosts, "example.org"), 3);
        assert_eq!(find(&hosts, "www.example.com"), 4);
        assert_eq!(find(&hosts, "www.example.co.uk"), 4);
        assert_eq!(find(&hosts, "org"), 0);
        assert_eq!(find(&hosts, "www.example."), 4);
        assert_eq!(find(&hosts, ".example.org"), 2);
    }

    #[test]
    fn a_leading_dot_stands_for_the_name_and_all_below_it() {
        let hosts = hosts(&[".example.org"]);
        assert_eq!(find(&hosts, "example.org"), 1);
        assert_eq!(find(&hosts, "a.example.org"), 1);
        assert_eq!(find(&hosts, "aexample.org"), 0);
    }

    #[test]
    fn a_leading_dot_adds_nothing_if_one_of_its_names_is_taken() {
        let below = hosts(&["*.example.org", ".example.org"]);
        assert_eq!(find(&below, "example.org"), 0);
        assert_eq!(find(&below, "a.example.org"), 1);
        let exact = hosts(&["example.org", ".example.org"]);
        assert_eq!(find(&exact, "example.org"), 1);
        assert_eq!(find(&exact, "a.example.org"), 0);
    }

    #[test]
    fn a_servers_name_is_as_written_without_a_leading_dot() {
        for (text, name) in
            [(".a.org", "a.org"), ("*.a.org", "*.a.org"), ("a.*", "a.*"), ("A.org", "a.org")]
        {
            assert_eq!(ServerName::parse(text.as_bytes()).unwrap().of_server(), name.as_bytes());
        }
    }

    #[test]
    fn bad_names_are_told_apart_from_none() {
        for text in ["*", "*.", "*a", "."] {
            assert!(ServerName::parse(text.as_bytes()).is_none(), "{text}");
        }
        for text in ["a.*.b", "a*", "*.a.*", "a..b"] {
            let name = ServerName::parse(text.as_bytes()).unwrap();
            assert!(matches!(name, ServerName::Bad(_)), "{text}");
        }
    }

    fn names() -> impl Strategy<Value = Vec<String>> {
        let label = "[ab]{1,2}";
        let host = prop::collection::vec(label, 1..4).prop_map(|labels| labels.join("."));
        let name = (0..4, host).prop_map(|(form, host)| match form {
            0 => host,
            1 => format!("*.{host}"),
            2 => format!(".{host}"),
            _ => format!("{host}.*"),
        });
        prop::collection::vec(name, 0..8)
    }

    /// The same rule, written as plainly as possible.
    fn naive(names: &[String], host: &str) -> u32 {
        let server = |i: usize| i as u32 + 1;
        // A name with a leading dot is refused if an earlier name has one of its halves.
        let halves = |n: &str| match n.strip_prefix('.') {
            Some(rest) => vec![rest.to_owned(), format!("*{n}")],
            None => vec![n.to_owned()],
        };
        let mut taken = Vec::new();
        let names = names.iter().map(|name| {
            let halves = halves(name);
            if halves.iter().any(|half| taken.contains(half)) {
                return "-".to_owned();
            }
            taken.extend(halves);
            name.clone()
        });
        let names: Vec<String> = names.collect();
        let exact = |n: &String| n == host || n.strip_prefix('.') == Some(host);
        if let Some(i) = names.iter().position(exact) {
            return server(i);
        }
        let rest = |n: &String| Some(n.strip_prefix('*').unwrap_or(n).to_owned());
        let heads = names.iter().enumerate().filter(|(_, n)| n.starts_with(['*', '.']));
        let heads = heads.filter_map(|(i, n)| Some((i, rest(n)?)));
        let hit = heads.filter(|(_, n)| host.ends_with(n.as_str()));
        if let Some((i, _)) = hit.max_by_key(|(i, n)| (n.len(), usize::MAX - i)) {
            return server(i);
        }
        let tails = names.iter().enumerate().filter_map(|(i, n)| Some((i, n.strip_suffix('*')?)));
        let hit = tails.filter(|(_, n)| host.starts_with(n));
        hit.max_by_key(|(i, n)| (n.len(), usize::MAX - i)).map_or(0, |(i, _)| server(i))
    }

    proptest! {
        #[test]
        fn the_longest_wildcard_wins(names in names(), host in "[.]?[ab]{1,2}([.][ab]{1,2}){0,4}[.]?") {
            let list: Vec<&str> = names.iter().map(String::as_str).collect();
            prop_assert_eq!(find(&hosts(&list), &host), naive(&names, &host));
        }

        #[test]
        fn any_name_is_decided(name: Vec<u8>) {
            ServerName::parse(&name);
        }
    }
}
