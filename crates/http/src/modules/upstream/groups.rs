//! The groups of a configuration: those of `upstream { }`, and one for each host that is named without.

use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Directive, Error, Word};
use weir_upstream::balance::{Balance, RoundRobin};
use weir_upstream::{Group, Limits, Options, Peer};

use super::dynamic::{Dynamic, Named};
use super::url::Url;
use crate::modules::core::{self, Resolver};
use crate::scope::Spot;
use crate::template::Template;

/// A group's place in the site's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupId(u32);

/// What a method of balancing hashes.
#[derive(Debug, Clone, Default)]
pub enum Key {
    /// Nothing.
    #[default]
    Nothing,
    /// The client's address.
    Address,
    /// A value of the configuration.
    Value(Template),
}

/// A group, ready to serve.
#[derive(Debug)]
pub struct Upstream {
    /// The peers.
    pub group: Arc<Group>,
    /// What is kept of their connections; `None`: nothing.
    pub keepalive: Option<Limits>,
    /// What the method hashes.
    pub key: Key,
    /// Servers whose names are looked up again and again.
    pub dynamic: Option<Dynamic>,
    host: Vec<u8>,
    /// 0 for a block, whose servers have their own.
    port: u16,
}

/// A group as far as it was read.
pub struct Draft {
    host: Vec<u8>,
    port: Option<u16>,
    default_port: u16,
    url: Url,
    at: Spot,
    block: Option<Block>,
}

/// What stands in an `upstream { }`.
#[derive(Default)]
pub struct Block {
    /// Its peers so far.
    pub peers: Vec<Arc<Peer>>,
    /// The method, where one is named.
    pub balance: Option<Box<dyn Balance>>,
    /// What it hashes.
    pub key: Key,
    /// `keepalive` and kin.
    pub keepalive: Limits,
    /// Servers with `resolve`.
    pub named: Vec<Named>,
    /// `zone`
    pub zone: bool,
    /// `resolver`
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub resolver_timeout: Option<Duration>,
}

/// All groups while the configuration is read.
#[derive(Default)]
pub struct Drafts(Vec<Draft>);

/// All groups.
#[derive(Debug, Default)]
pub struct Upstreams(Vec<Upstream>);

impl Drafts {
    /// The group that a directive such as `proxy_pass` names.
    pub fn refer(
        &mut self,
        d: &Directive,
        word: &Word,
        url: Url,
        default_port: u16,
    ) -> Result<GroupId, Error> {
        let name = String::from_utf8_lossy(&url.host).into_owned();
        for (i, draft) in self.0.iter().enumerate() {
            if !draft.host.eq_ignore_ascii_case(&url.host) {
                continue;
            }
            if let (Some(_), Some(port)) = (&draft.block, url.port) {
                let text = format!("upstream \"{name}\" may not have port {port}");
                return Err(d.error_at(word, text));
            }
            if draft.block.is_some() || draft.same_port(url.port, default_port) {
                return Ok(GroupId(i as u32));
            }
        }
        self.0.push(Draft {
            host: url.host.clone(),
            port: url.port,
            default_port,
            url,
            at: Spot::new(d, word),
            block: None,
        });
        Ok(GroupId(self.0.len() as u32 - 1))
    }

    /// An `upstream { }` was read.
    pub fn define(&mut self, d: &Directive, word: &Word, block: Block) -> Result<(), Error> {
        let name = word.lossy();
        for draft in &mut self.0 {
            if !draft.host.eq_ignore_ascii_case(&word.bytes) {
                continue;
            }
            if draft.block.is_some() {
                return Err(d.error_at(word, format!("duplicate upstream \"{name}\"")));
            }
            if let Some(port) = draft.port {
                return Err(draft
                    .at
                    .error(format!("upstream \"{name}\" may not have port {port}")));
            }
            draft.block = Some(block);
            return Ok(());
        }
        self.0.push(Draft {
            host: word.bytes.clone(),
            port: None,
            default_port: 80,
            url: Url { host: word.bytes.clone(), port: None, address: None, uri: Vec::new() },
            at: Spot::new(d, word),
            block: Some(block),
        });
        Ok(())
    }

    /// Whether a block of this name was read.
    pub fn is_defined(&self, name: &[u8]) -> bool {
        self.0.iter().any(|d| d.block.is_some() && d.host.eq_ignore_ascii_case(name))
    }

    /// All groups; names that stand for no block are looked up now.
    pub fn finish(self, core: &core::Conf) -> Result<Upstreams, Error> {
        let built: Result<Vec<Upstream>, Error> =
            self.0.into_iter().map(|draft| draft.finish(core)).collect();
        Ok(Upstreams(built?))
    }
}

impl Draft {
    fn same_port(&self, port: Option<u16>, default_port: u16) -> bool {
        let mine = self.port.unwrap_or(self.default_port);
        mine == port.unwrap_or(default_port)
    }

    fn finish(self, core: &core::Conf) -> Result<Upstream, Error> {
        let name = String::from_utf8_lossy(&self.host).into_owned();
        let seed = seed(&self.host);
        if let Some(block) = self.block {
            return block.finish(core, self.at, self.host);
        }
        let found = self
            .url
            .endpoints(self.default_port)
            .map_err(|e| self.at.error(format!("{e} in upstream \"{name}\"")))?;
        let each = |e| Arc::new(Peer::new(e, name.clone(), Options::default()));
        let peers = found.into_iter().map(each).collect();
        let group = Arc::new(Group::new(name.clone(), peers, Box::new(RoundRobin), seed));
        let port = self.port.unwrap_or(self.default_port);
        Ok(Upstream {
            group,
            keepalive: None,
            key: Key::Nothing,
            dynamic: None,
            host: self.host,
            port,
        })
    }
}

impl Block {
    fn finish(self, core: &core::Conf, at: Spot, host: Vec<u8>) -> Result<Upstream, Error> {
        let name = String::from_utf8_lossy(&host).into_owned();
        let usual = self.peers.iter().any(|p| !p.options.backup);
        if !usual && !self.named.iter().any(|n| !n.options.backup) {
            return Err(at.error(format!("no servers in upstream \"{name}\"")));
        }
        let resolver = self.resolver.or_else(|| core.resolver.clone());
        let timeout = self.resolver_timeout.unwrap_or(core.resolver_timeout);
        let seed = seed(&host);
        let balance = self.balance.unwrap_or_else(|| Box::new(RoundRobin));
        let group = Arc::new(Group::new(name.clone(), self.peers.clone(), balance, seed));
        let dynamic = match (self.named.is_empty(), resolver) {
            (true, _) => None,
            (false, None) => {
                let text = "no resolver defined to resolve names at run time in upstream";
                return Err(at.error(format!("{text} \"{name}\"")));
            }
            (false, Some(_)) if !self.zone => {
                let text = "resolving names at run time requires upstream";
                return Err(at.error(format!("{text} \"{name}\" to be in shared memory")));
            }
            (false, Some(resolver)) => Some(Dynamic {
                named: self.named,
                fixed: self.peers,
                resolver,
                timeout,
                group: group.clone(),
            }),
        };
        let keepalive = Some(self.keepalive).filter(|k| k.idle > 0);
        Ok(Upstream { group, keepalive, key: self.key, dynamic, host, port: 0 })
    }
}

/// Random methods of different groups must not march in step, and a test must be able to repeat itself.
fn seed(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325 ^ u64::from(std::process::id()), |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Upstreams {
    /// All of them.
    pub fn all(&self) -> &[Upstream] {
        &self.0
    }

    /// A group by its place.
    pub fn get(&self, id: GroupId) -> Option<&Upstream> {
        self.0.get(id.0 as usize)
    }

    /// The group for a host that is known only now, if the configuration has one.
    pub fn find(&self, host: &[u8], port: Option<u16>, default_port: u16) -> Option<GroupId> {
        let fits = |u: &Upstream| {
            let same_port = match u.port {
                0 => port.is_none(),
                own => own == port.unwrap_or(default_port),
            };
            same_port && u.host.eq_ignore_ascii_case(host)
        };
        self.0.iter().position(fits).map(|i| GroupId(i as u32))
    }
}

impl GroupId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
