//! A compiled `http` block: servers, locations, and the selection of a server by address and name.

pub mod content;
pub mod core;
pub mod location;
pub mod main_conf;
pub mod plan;
pub mod server;
pub mod settings;

use std::any::Any;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use weir_conf::Error;
use weir_proto::http1::HeadLimits;

use crate::carrier::{Conn, Secure};
use crate::config::scope::Spot;
use crate::event_loop::LoopKeys;
use crate::files::temp_file::TempPath;
use crate::listen::{Listen, ListenLine, Protocols};
use crate::names::{Hosts, ServerId, ServerName};
use crate::regex::GaveUp;
use crate::request::Request;
use location::{Location, LocationId};
use main_conf::MainConfs;
use server::ServerConf;
use weir_values::Variables;
use weir_values::doing::StallDefaults;
use weir_values::endpoints::{AddressGroup, BoundSocket, bind, gather};
use weir_values::log::LogTarget;

/// A `server` block.
#[derive(Debug)]
pub struct Server {
    /// Settings that belong to the server as a whole.
    pub conf: ServerConf,
    /// The names of `server_name`.
    pub names: Vec<ServerName>,
    /// The first name as written: `$server_name`.
    pub first_name: String,
    /// The location with the settings outside of all locations. It contains the locations.
    pub location: LocationId,
    /// The place of the block.
    pub at: Spot,
}

impl Server {
    /// `$server_name`
    pub fn name(&self) -> &str {
        &self.first_name
    }
}

/// Identifies a site among all sites of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteNumber(u64);

impl SiteNumber {
    /// A number that no other site of the process has.
    pub fn next() -> SiteNumber {
        static LAST: AtomicU64 = AtomicU64::new(0);
        SiteNumber(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// A compiled `http` block.
#[derive(Debug)]
pub struct Site {
    /// The site's number.
    pub number: SiteNumber,
    /// The number of loops that use the site, for new requests or for running ones.
    pub loops: AtomicUsize,
    /// Its listening sockets.
    pub listening: Listening,
    /// All servers.
    pub servers: Vec<Arc<Server>>,
    /// All locations.
    pub locations: Vec<Arc<Location>>,
    /// The parts that the next site may reuse. The type is private to `config`.
    pub known: Box<dyn Any + Send + Sync>,
    /// The number of servers that were reused from the previous site.
    pub reused: usize,
    /// All variables.
    pub variables: Variables<Request>,
    /// Whether `$realpath_root` is used, which must be resolved in advance.
    pub asks_realpath: bool,
    /// Whether a server has certificates for QUIC that are loaded during the handshake.
    pub loads_for_quic: bool,
    /// Settings of the `http` block, for events outside of any server.
    pub main: crate::site::settings::LocationConf,
    /// OCSP responses that are fetched for stapling.
    pub staplings: Vec<Arc<weir_ssl::ocsp::Stapling>>,
    /// The certificates that are shown to clients and servers.
    pub certificates: BTreeSet<weir_ssl::CertificateFacts>,
    /// The names of `status_zone`s by number. An unused number has an empty name.
    pub status_zones: Vec<String>,
    /// Caches.
    pub caches: Vec<Arc<weir_cache::Cache>>,
    /// The modules' state in each loop.
    pub loop_keys: LoopKeys,
    /// The modules' settings for the whole block.
    pub main_confs: MainConfs,
    /// Whether requests can send commands to the master, through `weir_api`.
    pub takes_commands: bool,
    /// Whether requests can replace the configuration.
    pub takes_changes: bool,
    /// Whether there is an `init_by_lua`, which may fail.
    pub has_init_script: bool,
    /// The directories for temporary files, which are created before the site is served.
    pub temp_paths: Vec<Arc<TempPath>>,
    /// The directories with certificates for `tls-alpn-01` challenges.
    pub tls_challenges: Vec<PathBuf>,
    /// The configure arguments that `-V` shows.
    pub configured: String,
    /// The directory that relative paths start from.
    pub prefix: Vec<u8>,
    /// The access logs.
    pub log_targets: Vec<Arc<LogTarget>>,
}

/// The listening sockets of a site, and their servers.
#[derive(Debug)]
pub struct Listening {
    sockets: Vec<Listen>,
    /// The addresses of each socket.
    bound: Vec<BoundSocket<Endpoint>>,
}

/// The servers and protocols of an address.
#[derive(Debug)]
struct Endpoint {
    hosts: Hosts,
    protocols: Protocols,
}

impl Listening {
    /// Makes the sockets for the addresses of the servers. `names_bucket` is
    /// `server_names_hash_bucket_size`, if it is set.
    pub fn new(
        servers: &[Arc<Server>],
        lines: &[(ServerId, ListenLine)],
        names_bucket: Option<u64>,
        warnings: &mut Vec<Error>,
    ) -> Result<Listening, Error> {
        let mut endpoints: Vec<(Listen, Endpoint)> = Vec::new();
        for group in gather(lines, warnings)? {
            let (listen, protocols) = (group.listen.clone(), group.protocols());
            for (on, parameter) in [(protocols.ssl, "ssl"), (protocols.quic, "quic")] {
                if on {
                    check_certificates(&group, servers, parameter)?;
                }
            }
            if protocols.quic {
                check_quic(&group, servers, warnings)?;
            }
            let hosts = group.hosts(|id| &servers[id.0 as usize].names, names_bucket, warnings)?;
            endpoints.push((listen, Endpoint { hosts, protocols }));
        }
        let (sockets, bound) = bind(endpoints);
        Ok(Listening { sockets, bound })
    }
}

impl Site {
    /// The directories for temporary files, which are created before the site is served.
    pub fn temp_paths(&self) -> &[Arc<TempPath>] {
        &self.temp_paths
    }

    /// The sockets to open. A connection is handed over with its index in this list.
    pub fn listens(&self) -> &[Listen] {
        &self.listening.sockets
    }

    /// Whether connections to the same sockets begin alike in both sites, at each address: with
    /// TLS, with the PROXY protocol.
    pub fn begins_as(&self, other: &Site) -> bool {
        let mut pairs = self.listening.bound.iter().zip(&other.listening.bound);
        let begins = |bound: &BoundSocket<Endpoint>, ip| {
            let Protocols { ssl, proxy_protocol, .. } = bound.at(|| ip).protocols;
            (ssl, proxy_protocol)
        };
        pairs.all(|(one, two)| {
            let mut addresses = one.others().chain(two.others()).map(Some).chain([None]);
            addresses.all(|ip| begins(one, ip) == begins(two, ip))
        })
    }

    /// The log and threshold for stalls of a loop that belong to no location.
    pub fn stall_defaults(&self) -> StallDefaults {
        let log = self.main.core.error_log.clone();
        StallDefaults { log, threshold: self.main.core.blocked_threshold }
    }

    /// Whether any `error_log` is stderr.
    pub fn logs_to_stderr(&self) -> bool {
        let confs = self.locations.iter().map(|location| &location.conf).chain([&self.main]);
        confs.into_iter().any(|conf| conf.core.error_log.has_stderr())
    }

    /// The location of an ID.
    pub fn location(&self, id: LocationId) -> &Location {
        &self.locations[id.0 as usize]
    }

    /// All locations.
    pub fn locations(&self) -> &[Arc<Location>] {
        &self.locations
    }

    /// The locations that are not shared with another site. To be called before the site is served.
    pub(crate) fn locations_mut(&mut self) -> impl Iterator<Item = &mut Location> {
        self.locations.iter_mut().filter_map(Arc::get_mut)
    }

    /// The protocols of an address of a listening socket.
    pub fn protocols_at(&self, listen: usize, ip: Option<IpAddr>) -> Option<Protocols> {
        Some(self.listening.bound.get(listen)?.at(|| ip).protocols)
    }

    /// The server of an ID.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }

    /// The server of a connection while no host name is known.
    pub fn default_server(&'static self, conn: &Conn) -> &'static Server {
        self.server(self.default_id(conn))
    }

    /// The ID of that server.
    pub fn default_id(&self, conn: &Conn) -> ServerId {
        match &conn.tls {
            Some(tls) if tls.site == self.number => tls.server,
            Some(tls) => self.named_again(conn, tls),
            None => self.hosts(conn).default,
        }
    }

    /// The server for the name in a handshake that an older site has done.
    #[cold]
    fn named_again(&self, conn: &Conn, tls: &Secure) -> ServerId {
        let hosts = self.hosts(conn);
        let named = tls.shown.host().map(|host| hosts.find_named(host.as_bytes()));
        named.and_then(Result::ok).flatten().unwrap_or(hosts.default)
    }

    /// The default server of an address of a listening socket.
    pub fn default_at(&self, listen: usize, ip: Option<IpAddr>) -> ServerId {
        let bound = self.listening.bound.get(listen);
        bound.map_or(ServerId(0), |bound| bound.at(|| ip).hosts.default)
    }

    /// As [`Site::server_named`], for an address of a listening socket.
    pub fn server_named_at(
        &self,
        listen: usize,
        ip: Option<IpAddr>,
        name: &[u8],
    ) -> Result<Option<ServerId>, GaveUp> {
        let bound = self.listening.bound.get(listen);
        bound.map_or(Ok(None), |bound| bound.at(|| ip).hosts.find_named(name))
    }

    /// Whether the connection's address has a single server, so that names are not needed.
    pub fn is_single(&self, conn: &Conn) -> bool {
        self.hosts(conn).single()
    }

    /// The server for a host name.
    pub fn server_for(
        &'static self,
        r: &mut Request,
        host: &[u8],
    ) -> Result<&'static Server, GaveUp> {
        let hosts = self.hosts(&r.conn);
        hosts.find(host, r).map(|id| self.server(id))
    }

    /// The server for the name of a TLS handshake, if a server has this name.
    pub fn server_named(
        &'static self,
        conn: &Conn,
        name: &[u8],
    ) -> Result<Option<ServerId>, GaveUp> {
        self.hosts(conn).find_named(name)
    }

    /// The limits for heads of the server with this host name. `None` if names are not needed or no
    /// server has it.
    pub fn head_limits_of(&'static self, conn: &Conn, host: &[u8]) -> Option<&'static HeadLimits> {
        if self.is_single(conn) {
            return None;
        }
        // If a regular expression exceeds its match limit, the request will be refused.
        let named = self.server_named(conn, host).ok().flatten()?;
        Some(&self.server(named).conf.head_limits)
    }

    /// The timeout for the first bytes of a connection.
    pub fn first_timeout(&self, listen: usize) -> Duration {
        match self.listening.bound.get(listen) {
            Some(bound) => self.server(bound.own.hosts.default).conf.client_header_timeout,
            None => Duration::from_secs(60),
        }
    }

    /// The protocols of a connection's address.
    pub fn protocols(&self, conn: &Conn) -> Protocols {
        self.endpoint(conn).protocols
    }

    fn hosts(&self, conn: &Conn) -> &Hosts {
        &self.endpoint(conn).hosts
    }

    fn endpoint(&self, conn: &Conn) -> &Endpoint {
        self.listening.bound[conn.listen].at(|| conn.local().ip())
    }
}

/// Checks that servers with TLS have certificates. Only the default server needs one, unless it
/// refuses handshakes: then each server needs one.
fn check_certificates(
    group: &AddressGroup<'_>,
    servers: &[Arc<Server>],
    parameter: &str,
) -> Result<(), Error> {
    let (default, all) = members(group, servers);
    let missing = weir_ssl::server::check(default, all, |server| server.conf.ssl.as_deref());
    let error = |server: &Server| server.at.error(weir_ssl::server::no_certificate(parameter));
    missing.map_or(Ok(()), |server| Err(error(server)))
}

/// Checks that the default server of an address with QUIC has TLS 1.3. A client that names another
/// server without it is refused.
fn check_quic(
    group: &AddressGroup<'_>,
    servers: &[Arc<Server>],
    warnings: &mut Vec<Error>,
) -> Result<(), Error> {
    let (default, all) = members(group, servers);
    let lacks = |server: &&Server| server.conf.ssl.as_ref().is_some_and(|tls| tls.lacks_quic());
    if let Some(server) = default.filter(lacks) {
        return Err(server.at.error(weir_ssl::server::NO_QUIC));
    }
    warnings.extend(all.filter(lacks).map(|server| server.at.warning(weir_ssl::server::NO_QUIC)));
    Ok(())
}

/// The default server of an address, and all of its servers.
fn members<'a>(
    group: &'a AddressGroup<'_>,
    servers: &'a [Arc<Server>],
) -> (Option<&'a Server>, impl Iterator<Item = &'a Server>) {
    let of = |id: &ServerId| servers.get(id.0 as usize).map(|server| &**server);
    let default = group.default.as_ref().or(group.servers.first()).and_then(of);
    (default, group.servers.iter().filter_map(of))
}
