//! The sockets of all servers' `listen` lines, and the servers of each.

use std::collections::HashMap;
use std::net::IpAddr;

use weir_conf::Error;

use crate::address::Address;
use crate::listen::{Listen, ListenLine, Protocols};
use crate::names::{Hosts, ServerId, ServerName};

/// The endpoints of one listening socket.
#[derive(Debug)]
pub struct BoundSocket<E> {
    /// Endpoints of other addresses that share this wildcard socket, by a connection's local
    /// address.
    addresses: HashMap<IpAddr, E>,
    /// The endpoint of the socket's own address.
    pub own: E,
}

impl<E> BoundSocket<E> {
    /// The endpoint of a connection, by its local address.
    pub fn at(&self, local: impl FnOnce() -> Option<IpAddr>) -> &E {
        if self.addresses.is_empty() {
            return &self.own;
        }
        local().and_then(|ip| self.addresses.get(&ip)).unwrap_or(&self.own)
    }

    /// The other addresses of the socket.
    pub fn others(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.keys().copied()
    }
}

/// All servers of one address.
pub struct AddressGroup<'a> {
    /// The socket.
    pub listen: Listen,
    options_at: Option<&'a ListenLine>,
    /// `default_server`
    pub default: Option<ServerId>,
    protocols: CombinedProtocols,
    /// The servers that listen on it.
    pub servers: Vec<ServerId>,
}

/// The protocols of an address, combined from its lines.
struct CombinedProtocols {
    /// The protocols of all lines.
    all: Protocols,
    /// The protocols that later lines are compared with, from the second line on.
    expected: Option<Protocols>,
    changed: bool,
}

impl CombinedProtocols {
    fn new(first: Protocols) -> Self {
        CombinedProtocols { all: first, expected: None, changed: false }
    }

    /// Adds the protocols of a further line. True if the lines contradict each other. nginx:
    /// ngx_http_add_addresses.
    fn add(&mut self, line: &ListenLine, options_before: bool) -> bool {
        let (before, these) = (self.all, line.protocols);
        self.all = before.or(these);
        let differs = self.expected.is_some_and(|expected| expected != these);
        let (contradicts, expected) = if self.all != before {
            let removes = self.all != these;
            let late = options_before && !line.options;
            (late || self.changed || removes, before)
        } else if self.all != these {
            (line.options || differs, these)
        } else {
            ((line.options && self.changed) || differs, these)
        };
        self.changed |= before != these;
        self.expected = Some(expected);
        contradicts
    }
}

/// Groups the lines by address. `lines` has them server by server. Contradictions are reported in
/// nginx's words.
pub fn gather<'a>(
    lines: &'a [(ServerId, ListenLine)],
    warnings: &mut Vec<Error>,
) -> Result<Vec<AddressGroup<'a>>, Error> {
    let mut groups: Vec<AddressGroup<'_>> = Vec::new();
    let mut index: HashMap<(&Address, bool), usize> = HashMap::new();
    for (server, line) in lines {
        let address = &line.listen.address;
        let at = *index.entry((address, line.listen.udp)).or_insert_with(|| {
            groups.push(AddressGroup {
                listen: line.listen.clone(),
                options_at: None,
                default: None,
                protocols: CombinedProtocols::new(line.protocols),
                servers: Vec::new(),
            });
            groups.len() - 1
        });
        let group = &mut groups[at];
        // The lines of a server follow each other.
        if group.servers.last() == Some(server) {
            return Err(line.at.error(format!("a duplicate listen {address}")));
        }
        if !group.servers.is_empty() && group.protocols.add(line, group.options_at.is_some()) {
            let text = format!("protocol options redefined for {address}");
            warnings.push(line.at.warning(text));
        }
        group.servers.push(*server);
        if line.options {
            if group.options_at.is_some() {
                return Err(line.at.error(format!("duplicate listen options for {address}")));
            }
            group.listen = line.listen.clone();
            group.options_at = Some(line);
        }
        if line.default_server {
            if group.default.is_some() {
                return Err(line.at.error(format!("a duplicate default server for {address}")));
            }
            group.default = Some(*server);
        }
    }
    Ok(groups)
}

impl AddressGroup<'_> {
    /// The protocols of all lines.
    pub fn protocols(&self) -> Protocols {
        self.protocols.all
    }

    /// The address's servers by their names.
    pub fn hosts<'n>(
        self,
        names: impl Fn(ServerId) -> &'n [ServerName],
        bucket: Option<u64>,
        warnings: &mut Vec<Error>,
    ) -> Result<Hosts, Error> {
        let default = self.default.or(self.servers.first().copied()).unwrap_or(ServerId(0));
        let mut hosts = Hosts::new(default);
        // The names of a single server select nothing, so nginx does not check them.
        let alone = self.servers.len() == 1;
        for id in self.servers {
            for name in names(id) {
                if !alone {
                    check_name(name, &self.listen.address, bucket)?;
                }
                if !hosts.add(name, id) && !alone {
                    warnings.push(Error::warn(format!(
                        "conflicting server name \"{}\" on {}, ignored",
                        String::from_utf8_lossy(&name.text()),
                        self.listen.address
                    )));
                }
            }
        }
        Ok(hosts)
    }
}

/// Checks a name. If the configuration sets the bucket size, a name that does not fit is an error,
/// as in nginx. weir itself has no such limit.
fn check_name(name: &ServerName, address: &Address, bucket: Option<u64>) -> Result<(), Error> {
    match name {
        ServerName::Bad(text) => Err(Error::emerg(format!(
            "invalid server name or wildcard \"{}\" on {address}",
            String::from_utf8_lossy(text)
        ))),
        ServerName::Exact(text) => {
            let needed = (text.len() as u64 + 2).next_multiple_of(8) + 16;
            let given = bucket.map(|size| size.next_multiple_of(64));
            match given.filter(|given| *given < needed) {
                Some(given) => Err(Error::emerg(format!(
                    "could not build server_names_hash, you should increase \
                     server_names_hash_bucket_size: {given}"
                ))),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Lets addresses share the wildcard socket of their port, unless they are bound separately.
pub fn bind<E>(endpoints: Vec<(Listen, E)>) -> (Vec<Listen>, Vec<BoundSocket<E>>) {
    let shares = |a: &Address, b: &Address| match (a, b) {
        (Address::Inet(a), Address::Inet(b)) => a.port() == b.port() && a.is_ipv4() == b.is_ipv4(),
        _ => false,
    };
    let wildcards = endpoints.iter().map(|(l, _)| l).filter(|l| l.address.is_wildcard());
    let wildcards: Vec<(Address, bool)> = wildcards.map(|l| (l.address.clone(), l.udp)).collect();
    let (mut sockets, mut bound) = (Vec::<Listen>::new(), Vec::<BoundSocket<E>>::new());
    let mut guests = Vec::new();
    for (listen, own) in endpoints {
        let wildcard =
            wildcards.iter().find(|(w, udp)| *udp == listen.udp && shares(w, &listen.address));
        match wildcard {
            Some(host) if !listen.address.is_wildcard() && !listen.bind => {
                guests.push((host.clone(), listen.address.clone(), own));
            }
            _ => {
                sockets.push(listen);
                bound.push(BoundSocket { addresses: HashMap::new(), own });
            }
        }
    }
    for (host, address, endpoint) in guests {
        let at = sockets.iter().position(|l| (&l.address, l.udp) == (&host.0, host.1));
        if let (Some(at), Some(ip)) = (at, address.ip()) {
            bound[at].addresses.insert(ip, endpoint);
        }
    }
    (sockets, bound)
}
