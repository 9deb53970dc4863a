//! A compiled `stream` block.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Error, Spot};
use weir_log::Log;
use weir_ssl::CertificateFacts;
use weir_ssl::ocsp::Stapling;
use weir_upstream::Group;
use weir_upstream::config::servers_file::ServersFile;
use weir_values::doing::{Blamed, StallDefaults};
use weir_values::endpoints::{AddressGroup, BoundSocket, bind, gather};
use weir_values::listen::{Listen, ListenLine, Protocols};
use weir_values::log::LogTarget;
use weir_values::names::{Hosts, ServerId, ServerName};
use weir_values::status::StatusZone;
use weir_values::{Address, Variables};

use crate::health::StreamCheck;
use crate::session::Session;
use crate::settings::{Groups, StreamConf};

/// A `server` block.
#[derive(Debug)]
pub struct Server {
    /// Its index among the `server` blocks.
    pub number: usize,
    /// Its settings.
    pub conf: StreamConf,
    /// `server_name`
    pub names: Vec<ServerName>,
    /// The first address that it listens on.
    pub address: Address,
    /// The block's position in the configuration, for errors.
    pub at: Spot,
}

impl Blamed for Server {
    fn name(&self) -> (&'static str, Cow<'_, str>) {
        ("server", self.address.to_string().into())
    }

    fn log(&self) -> &Arc<Log> {
        &self.conf.error_log
    }

    fn threshold(&self) -> Duration {
        self.conf.threshold
    }
}

/// The parts of a site.
pub struct SiteParts {
    /// The server blocks with their `listen` lines.
    pub servers: Vec<(Server, Vec<ListenLine>)>,
    /// All variables.
    pub variables: Variables<Session>,
    /// Groups of upstream servers.
    pub upstreams: Groups,
    /// `health_check` lines.
    pub checks: Vec<StreamCheck>,
    /// Access log files.
    pub targets: Vec<LogTarget>,
    /// OCSP responses to fetch and staple.
    pub staplings: Vec<Stapling>,
    /// The certificates of the configuration, for metrics.
    pub certificates: BTreeSet<CertificateFacts>,
    /// `error_log` outside of any server.
    pub main_log: Arc<Log>,
    /// `blocked_threshold` outside of any server.
    pub threshold: Duration,
}

/// A compiled `stream` block.
#[derive(Debug)]
pub struct Site {
    sockets: Vec<Listen>,
    /// The endpoints of each socket.
    bound: Vec<BoundSocket<ListenEndpoint>>,
    servers: Vec<Server>,
    /// All variables.
    pub variables: Variables<Session>,
    /// Groups of upstream servers.
    pub upstreams: Groups,
    /// `health_check` lines.
    pub checks: Vec<Arc<StreamCheck>>,
    /// The zones of `status_zone`.
    pub status_zones: Vec<Arc<StatusZone>>,
    /// Access log files.
    pub targets: Vec<Arc<LogTarget>>,
    /// OCSP responses to fetch and staple.
    pub staplings: Vec<Arc<Stapling>>,
    /// The certificates of the configuration, for metrics.
    pub certificates: BTreeSet<CertificateFacts>,
    /// `error_log` outside of any server.
    pub main_log: Arc<Log>,
    /// `blocked_threshold` outside of any server.
    pub threshold: Duration,
}

/// A listening address.
#[derive(Debug)]
pub struct ListenEndpoint {
    /// Its servers.
    pub hosts: Hosts,
    /// Whether its connections begin with a PROXY header, and whether they use TLS.
    pub protocols: Protocols,
}

impl Site {
    /// The groups with a `servers_file`.
    pub fn groups_in_files(&self) -> impl Iterator<Item = (Arc<Group>, Arc<ServersFile>)> {
        self.upstreams.in_files()
    }

    /// All upstream groups.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.upstreams.all().map(|upstream| upstream.group.clone()).collect()
    }

    /// Makes a site of its parts.
    pub fn new(parts: SiteParts, warnings: &mut Vec<Error>) -> Result<Site, Error> {
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
            endpoints.push((listen, ListenEndpoint { hosts, protocols }));
        }
        let (sockets, bound) = bind(endpoints);
        let mut status_zones: Vec<Arc<StatusZone>> = Vec::new();
        for zone in servers.iter().filter_map(|server| server.conf.status_zone.as_ref()) {
            if !status_zones.iter().any(|known| known.name() == zone.name()) {
                status_zones.push(zone.clone());
            }
        }
        let SiteParts {
            variables,
            upstreams,
            checks,
            targets,
            staplings,
            certificates,
            main_log,
            threshold,
            ..
        } = parts;
        Ok(Site {
            sockets,
            bound,
            servers,
            variables,
            upstreams,
            checks: checks.into_iter().map(Arc::new).collect(),
            status_zones,
            targets: targets.into_iter().map(Arc::new).collect(),
            staplings: staplings.into_iter().map(Arc::new).collect(),
            certificates,
            main_log,
            threshold,
        })
    }

    /// The sockets to open. Connections arrive with an index into this list.
    pub fn listens(&self) -> &[Listen] {
        &self.sockets
    }

    /// The log and threshold for stalls outside of any server.
    pub fn stall_defaults(&self) -> StallDefaults {
        StallDefaults { log: self.main_log.clone(), threshold: self.threshold }
    }

    /// Whether any `error_log` is stderr.
    pub fn logs_to_stderr(&self) -> bool {
        let logs = self.servers.iter().map(|server| &server.conf.error_log);
        logs.chain([&self.main_log]).any(|log| log.has_stderr())
    }

    /// The server with this index.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }

    /// The endpoints of a listening socket.
    pub fn bound(&self, listen: usize) -> &BoundSocket<ListenEndpoint> {
        &self.bound[listen]
    }
}

/// Refuses a TLS server without a certificate.
fn check_certificates(group: &AddressGroup<'_>, servers: &[Server]) -> Result<(), Error> {
    let of = |id: &ServerId| servers.get(id.0 as usize);
    let default = group.default.as_ref().or(group.servers.first()).and_then(of);
    let all = group.servers.iter().filter_map(of);
    let missing =
        weir_ssl::server::check(default, all, |server| server.conf.tls.context.as_deref());
    missing.map_or(Ok(()), |server| Err(server.at.error(weir_ssl::server::no_certificate("ssl"))))
}
