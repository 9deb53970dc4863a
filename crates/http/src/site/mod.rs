//! A whole `http` block, ready to serve: servers, locations, and which server an address and a name select.

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

/// One `server` block.
#[derive(Debug)]
pub struct Server {
    /// Settings that belong to the server as a whole.
    pub conf: ServerConf,
    /// The names that select it.
    pub names: Vec<ServerName>,
    /// The first name as written: `$server_name`.
    pub first_name: String,
    /// The settings outside of any location, and the locations inside.
    pub location: LocationId,
    /// Where it stands in the configuration.
    pub at: Spot,
}

impl Server {
    /// `$server_name`
    pub fn name(&self) -> &str {
        &self.first_name
    }
}

/// Tells a site from the others of a process, whatever becomes of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteNumber(u64);

impl SiteNumber {
    /// One that no other site of the process has.
    pub fn next() -> SiteNumber {
        static LAST: AtomicU64 = AtomicU64::new(0);
        SiteNumber(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// A compiled `http` block.
#[derive(Debug)]
pub struct Site {
    /// Which one it is.
    pub number: SiteNumber,
    /// How many loops hold it: each for the requests that begin, or for some that have begun.
    pub loops: AtomicUsize,
    /// Its sockets.
    pub listening: Listening,
    /// All servers.
    pub servers: Vec<Arc<Server>>,
    /// All locations.
    pub locations: Vec<Arc<Location>>,
    /// What the next site may take of them; the reader of configurations knows the type.
    pub known: Box<dyn Any + Send + Sync>,
    /// How many servers were taken from the site before.
    pub taken: usize,
    /// All variables.
    pub variables: Variables<Request>,
    /// Something refers to `$realpath_root`, which may have to be found before it is asked for.
    pub asks_realpath: bool,
    /// Some server has certificates for QUIC that are loaded when a client asks for them.
    pub loads_for_quic: bool,
    /// Settings of the `http` block, for what happens outside of any server.
    pub main: crate::site::settings::LocationConf,
    /// Responses that are fetched to be sent along with certificates.
    pub staplings: Vec<Arc<weir_ssl::ocsp::Stapling>>,
    /// Certificates that peers are shown.
    pub certificates: BTreeSet<weir_ssl::CertificateFacts>,
    /// Names of `status_zone`s at their numbers; an empty one is of no zone.
    pub status_zones: Vec<String>,
    /// Directories of answers that are kept.
    pub caches: Vec<Arc<weir_cache::Cache>>,
    /// What modules keep in each loop.
    pub loop_keys: LoopKeys,
    /// What modules made of the block.
    pub main_confs: MainConfs,
    /// Requests can ask for what the master does, through `weir_api`.
    pub takes_commands: bool,
    /// They can ask it for another configuration.
    pub takes_changes: bool,
    /// There is an `init_by_lua`, which may fail.
    pub has_init_script: bool,
    /// Directories for temporary files, to be created before the site is served.
    pub temp_paths: Vec<Arc<TempPath>>,
    /// Where certificates are that prove names to ACME servers.
    pub tls_challenges: Vec<PathBuf>,
    /// What `-V` says of the words with which the program was configured.
    pub configured: String,
    /// Where relative paths begin.
    pub prefix: Vec<u8>,
    /// Files that requests are logged to.
    pub log_targets: Vec<Arc<LogTarget>>,
}

/// The sockets of a site, and what each leads to.
#[derive(Debug)]
pub struct Listening {
    sockets: Vec<Listen>,
    /// For each socket.
    bound: Vec<BoundSocket<Endpoint>>,
}

/// What one address leads to.
#[derive(Debug)]
struct Endpoint {
    hosts: Hosts,
    protocols: Protocols,
}

impl Listening {
    /// The sockets for the addresses that these servers listen on, and `server_names_hash_bucket_size`, where it was set.
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
    /// Directories for temporary files, to be created before the site is served.
    pub fn temp_paths(&self) -> &[Arc<TempPath>] {
        &self.temp_paths
    }

    /// The sockets to open; connections are handed over with an index into this list.
    pub fn listens(&self) -> &[Listen] {
        &self.listening.sockets
    }

    /// Whether connections begin there as here, at each address of the same sockets: with TLS, with a balancer's header.
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

    /// Where a stall of a loop is logged that belongs to no location.
    pub fn stall_defaults(&self) -> StallDefaults {
        let log = self.main.core.error_log.clone();
        StallDefaults { log, threshold: self.main.core.blocked_threshold }
    }

    /// Whether an `error_log` of it is stderr.
    pub fn logs_to_stderr(&self) -> bool {
        let confs = self.locations.iter().map(|location| &location.conf).chain([&self.main]);
        confs.into_iter().any(|conf| conf.core.error_log.has_stderr())
    }

    /// A location by its place.
    pub fn location(&self, id: LocationId) -> &Location {
        &self.locations[id.0 as usize]
    }

    /// All locations.
    pub fn locations(&self) -> &[Arc<Location>] {
        &self.locations
    }

    /// All of them that no other site shares, before the site is served.
    pub(crate) fn locations_mut(&mut self) -> impl Iterator<Item = &mut Location> {
        self.locations.iter_mut().filter_map(Arc::get_mut)
    }

    /// What is spoken at an address, before and below HTTP/1, on connections of a listening socket.
    pub fn protocols_at(&self, listen: usize, ip: Option<IpAddr>) -> Option<Protocols> {
        Some(self.listening.bound.get(listen)?.at(|| ip).protocols)
    }

    /// A server by its place.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }

    /// The server of this connection where no name is known.
    pub fn default_server(&'static self, conn: &Conn) -> &'static Server {
        self.server(self.default_id(conn))
    }

    /// Its place.
    pub fn default_id(&self, conn: &Conn) -> ServerId {
        match &conn.tls {
            Some(tls) if tls.site == self.number => tls.server,
            Some(tls) => self.named_again(conn, tls),
            None => self.hosts(conn).default,
        }
    }

    /// The server that the client named in a handshake with an older site.
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

    /// As [`Site::server_named`], by an address of a listening socket.
    pub fn server_named_at(
        &self,
        listen: usize,
        ip: Option<IpAddr>,
        name: &[u8],
    ) -> Result<Option<ServerId>, GaveUp> {
        let bound = self.listening.bound.get(listen);
        bound.map_or(Ok(None), |bound| bound.at(|| ip).hosts.find_named(name))
    }

    /// True where names make no difference on this connection's address.
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

    /// The server for a name that a client gave in the handshake, if there is one of this name.
    pub fn server_named(
        &'static self,
        conn: &Conn,
        name: &[u8],
    ) -> Result<Option<ServerId>, GaveUp> {
        self.hosts(conn).find_named(name)
    }

    /// What heads may be like for the server of this host name, if it has one of its own.
    pub fn head_limits_of(&'static self, conn: &Conn, host: &[u8]) -> Option<&'static HeadLimits> {
        if self.is_single(conn) {
            return None;
        }
        // Where a regular expression gives up, the request will be refused.
        let named = self.server_named(conn, host).ok().flatten()?;
        Some(&self.server(named).conf.head_limits)
    }

    /// How long a new connection of a socket may stay silent.
    pub fn first_timeout(&self, listen: usize) -> Duration {
        match self.listening.bound.get(listen) {
            Some(bound) => self.server(bound.own.hosts.default).conf.client_header_timeout,
            None => Duration::from_secs(60),
        }
    }

    /// What is spoken on a connection's address before and below HTTP/1.
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

/// A server that listens with TLS needs a certificate: the default server, or each server where that one refuses
/// handshakes.
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

/// The default server of an address with QUIC needs TLS 1.3. Clients that name another server without it are refused.
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
