//! Virtual hosts: which server a host name selects on an address. Order of nginx: the exact name, the longest
//! `*.` wildcard, the longest `.*` wildcard, the first regular expression, the default server.

use std::collections::HashMap;

use crate::regex::Regex;
use crate::request::Request;

/// A server's place in [`crate::Site`]'s list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// One name of a `server_name` directive.
#[derive(Debug, Clone)]
pub enum ServerName {
    /// `example.org`, and `""` for requests without a host.
    Exact(Vec<u8>),
    /// `*.example.org` (without the star and dot); `.example.org` gives this and the exact name.
    Head(Vec<u8>),
    /// `www.*` (without dot and star).
    Tail(Vec<u8>),
    /// `~^www\d+`
    Regex(Regex),
}

impl ServerName {
    /// Reads a name as written; lower-cased, as hosts are compared without case.
    pub fn parse(text: &[u8]) -> Option<Vec<ServerName>> {
        let name = text.to_ascii_lowercase();
        if name.contains(&0) {
            return None;
        }
        if let Some(rest) = name.strip_prefix(b"*.") {
            return valid_rest(rest).then(|| vec![ServerName::Head(rest.to_vec())]);
        }
        if let Some(rest) = name.strip_prefix(b".") {
            let both = vec![ServerName::Head(rest.to_vec()), ServerName::Exact(rest.to_vec())];
            return valid_rest(rest).then_some(both);
        }
        if let Some(rest) = name.strip_suffix(b".*") {
            return valid_rest(rest).then(|| vec![ServerName::Tail(rest.to_vec())]);
        }
        (!name.contains(&b'*')).then(|| vec![ServerName::Exact(name)])
    }
}

fn valid_rest(rest: &[u8]) -> bool {
    !rest.is_empty() && !rest.contains(&b'*') && !rest.windows(2).any(|w| w == b"..")
}

/// The servers of one address.
#[derive(Debug)]
pub struct Hosts {
    /// Who answers when no name fits.
    pub default: ServerId,
    exact: HashMap<Vec<u8>, ServerId>,
    heads: HashMap<Vec<u8>, ServerId>,
    tails: HashMap<Vec<u8>, ServerId>,
    regexes: Vec<(Regex, ServerId)>,
}

impl Hosts {
    /// No names yet.
    pub fn new(default: ServerId) -> Self {
        Hosts {
            default,
            exact: HashMap::new(),
            heads: HashMap::new(),
            tails: HashMap::new(),
            regexes: Vec::new(),
        }
    }

    /// Adds a server's name. False if another server of this address has it already.
    pub fn add(&mut self, name: &ServerName, server: ServerId) -> bool {
        let (map, key) = match name {
            ServerName::Exact(key) => (&mut self.exact, key),
            ServerName::Head(key) => (&mut self.heads, key),
            ServerName::Tail(key) => (&mut self.tails, key),
            ServerName::Regex(regex) => {
                self.regexes.push((regex.clone(), server));
                return true;
            }
        };
        if map.contains_key(key) {
            return false;
        }
        map.insert(key.clone(), server);
        true
    }

    /// The server for a host (lower case, without port). `r` receives the groups of a regular expression.
    pub fn find(&self, host: &[u8], r: &mut Request) -> ServerId {
        if let Some(&id) = self.exact.get(host) {
            return id;
        }
        if host.is_empty() {
            return self.default;
        }
        if !self.heads.is_empty() {
            for at in memchr::memchr_iter(b'.', host) {
                if let Some(&id) = self.heads.get(&host[at + 1..]).filter(|_| at > 0) {
                    return id;
                }
            }
        }
        if !self.tails.is_empty() {
            for at in memchr::memrchr_iter(b'.', host) {
                if let Some(&id) = self.tails.get(&host[..at]).filter(|_| at + 1 < host.len()) {
                    return id;
                }
            }
        }
        let hit = self.regexes.iter().find(|(regex, _)| match regex.groups() {
            0 => regex.is_match(host),
            _ => regex.matches(r, host),
        });
        hit.map_or(self.default, |(_, id)| *id)
    }

    /// True where the default server has all requests.
    pub fn single(&self) -> bool {
        let named = self.exact.values().chain(self.heads.values()).chain(self.tails.values());
        self.regexes.is_empty() && named.into_iter().all(|id| *id == self.default)
    }
}

impl ServerName {
    /// As written, for messages.
    pub fn text(&self) -> Vec<u8> {
        match self {
            ServerName::Exact(name) => name.clone(),
            ServerName::Head(rest) => [b"*.", rest.as_slice()].concat(),
            ServerName::Tail(rest) => [rest.as_slice(), b".*"].concat(),
            ServerName::Regex(regex) => format!("~{}", regex.text()).into_bytes(),
        }
    }
}
