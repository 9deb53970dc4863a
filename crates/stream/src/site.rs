//! A compiled `stream` block.

use std::sync::Arc;

use weir_conf::{Error, Spot};
use weir_log::Log;
use weir_ssl::ocsp::Stapling;
use weir_values::Variables;
use weir_values::endpoints::{Bound, Group, bind, gather};
use weir_values::listen::{Listen, ListenLine, Protocols};
use weir_values::log::Target;
use weir_values::names::{Hosts, ServerId, ServerName};

use crate::config::{Conf, Groups};
use crate::health::Check;
use crate::session::Session;

/// A `server` block.
#[derive(Debug)]
pub struct Server {
    /// Its settings.
    pub conf: Conf,
    /// `server_name`
    pub names: Vec<ServerName>,
    /// For complaints.
    pub at: Spot,
}

/// What a site is made of.
pub struct Parts {
    /// Servers with what they listen on.
    pub servers: Vec<(Server, Vec<ListenLine>)>,
    /// All variables.
    pub variables: Variables<Session>,
    /// Groups of upstream servers.
    pub upstreams: Groups,
    /// `health_check`s.
    pub checks: Vec<Check>,
    /// Files that sessions are logged to.
    pub targets: Vec<Target>,
    /// Responses that are fetched to be sent along with certificates.
    pub staplings: Vec<Stapling>,
    /// `error_log` outside of any server.
    pub main_log: Arc<Log>,
}

/// A compiled `stream` block.
#[derive(Debug)]
pub struct Site {
    sockets: Vec<Listen>,
    /// For each socket.
    bound: Vec<Bound<Endpoint>>,
    servers: Vec<Server>,
    /// All variables.
    pub variables: Variables<Session>,
    /// Groups of upstream servers.
    pub upstreams: Groups,
    /// `health_check`s.
    pub checks: Vec<Check>,
    /// Files that sessions are logged to.
    pub targets: Vec<Target>,
    /// Responses that are fetched to be sent along with certificates.
    pub staplings: Vec<Stapling>,
    /// `error_log` outside of any server.
    pub main_log: Arc<Log>,
}

/// What one address leads to.
#[derive(Debug)]
pub struct Endpoint {
    /// Its servers.
    pub hosts: Hosts,
    /// What is spoken on it before anything else.
    pub protocols: Protocols,
}

impl Site {
    /// Puts a site together.
    pub fn new(parts: Parts, warnings: &mut Vec<Error>) -> Result<Site, Error> {
        let (mut lines, mut servers) = (Vec::new(), Vec::new());
        for (i, (server, listens)) in parts.servers.into_iter().enumerate() {
            lines.extend(listens.into_iter().map(|line| (ServerId(i as u32), line)));
            servers.push(server);
        }
        let mut endpoints = Vec::new();
        for group in gather(&lines, warnings)? {
            let (listen, protocols) = (group.listen.clone(), group.protocols());
            if protocols.ssl {
                check_certificates(&group, &servers)?;
            }
            let hosts = group.hosts(|id| &servers[id.0 as usize].names, None, warnings)?;
            endpoints.push((listen, Endpoint { hosts, protocols }));
        }
        let (sockets, bound) = bind(endpoints);
        let Parts { variables, upstreams, checks, targets, staplings, main_log, .. } = parts;
        Ok(Site {
            sockets,
            bound,
            servers,
            variables,
            upstreams,
            checks,
            targets,
            staplings,
            main_log,
        })
    }

    /// The sockets to open; connections are handed over with an index into this list.
    pub fn listens(&self) -> &[Listen] {
        &self.sockets
    }

    /// Whether an `error_log` of it is stderr.
    pub fn logs_to_stderr(&self) -> bool {
        let logs = self.servers.iter().map(|server| &server.conf.error_log);
        logs.chain([&self.main_log]).any(|log| log.has_stderr())
    }

    /// A server by its place.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }

    /// Where a connection of a socket leads.
    pub fn bound(&self, listen: usize) -> &Bound<Endpoint> {
        &self.bound[listen]
    }
}

/// Who wants TLS must have something to show.
fn check_certificates(group: &Group<'_>, servers: &[Server]) -> Result<(), Error> {
    let of = |id: &ServerId| servers.get(id.0 as usize);
    let default = group.default.as_ref().or(group.servers.first()).and_then(of);
    let all = group.servers.iter().filter_map(of);
    let missing =
        weir_ssl::server::check(default, all, |server| server.conf.tls.context.as_deref());
    missing.map_or(Ok(()), |server| Err(server.at.error(weir_ssl::server::NO_CERTIFICATE)))
}
