//! A compiled `mail` block.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use weir_conf::Error;
use weir_log::Log;
use weir_ssl::CertificateFacts;
use weir_upstream::config::Upstreams;
use weir_values::doing::{Blamed, StallDefaults, THRESHOLD};
use weir_values::endpoints::{BoundSocket, bind};
use weir_values::listen::{Deferred, Listen, ListenLine, Protocols};
use weir_values::{Address, Variables};

use crate::protocol::Protocol;
use crate::session::Session;
use crate::settings::{MailConf, StartTls};

/// The HTTP servers of `auth_http`.
pub type Groups = Upstreams<()>;

/// A `server` block.
#[derive(Debug)]
pub struct Server {
    /// Its settings.
    pub conf: MailConf,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its capability replies.
    pub texts: Texts,
    /// The first address that it listens on.
    pub address: Address,
}

/// The replies to `CAPABILITY`, `CAPA` or `EHLO`.
#[derive(Debug, Default)]
pub struct Texts {
    /// With TLS, or where TLS cannot be started.
    pub capabilities: Vec<u8>,
    /// Without TLS, where it may be started.
    pub with_starttls: Vec<u8>,
    /// Without TLS, where it must be started.
    pub starttls_only: Vec<u8>,
}

impl Server {
    /// The capability reply for a client with or without TLS.
    pub fn capabilities(&self, is_secured: bool) -> &[u8] {
        match self.conf.starttls {
            _ if is_secured => &self.texts.capabilities,
            StartTls::Off => &self.texts.capabilities,
            StartTls::On => &self.texts.with_starttls,
            StartTls::Only => &self.texts.starttls_only,
        }
    }
}

impl Blamed for Server {
    fn name(&self) -> (&'static str, Cow<'_, str>) {
        ("server", self.address.to_string().into())
    }

    fn log(&self) -> &Arc<Log> {
        &self.conf.error_log
    }

    fn threshold(&self) -> Duration {
        THRESHOLD
    }
}

/// A compiled `mail` block.
#[derive(Debug)]
pub struct Site {
    sockets: Vec<Listen>,
    /// The endpoints of each socket.
    bound: Vec<BoundSocket<ListenEndpoint>>,
    servers: Vec<Server>,
    /// All variables.
    pub variables: Variables<Session>,
    /// The HTTP servers of `auth_http`.
    pub upstreams: Groups,
    /// The certificates of the configuration, for metrics.
    pub certificates: BTreeSet<CertificateFacts>,
    /// `error_log` outside of any server.
    pub main_log: Arc<Log>,
}

/// A listening address.
#[derive(Debug)]
pub struct ListenEndpoint {
    server: usize,
    /// Whether its connections begin with a PROXY header, and whether they use TLS.
    pub protocols: Protocols,
}

/// The parts of a site.
pub struct SiteParts {
    /// The server blocks with their `listen` lines.
    pub servers: Vec<(Server, Vec<ListenLine>)>,
    /// All variables.
    pub variables: Variables<Session>,
    /// The HTTP servers of `auth_http`.
    pub upstreams: Groups,
    /// The certificates of the configuration, for metrics.
    pub certificates: BTreeSet<CertificateFacts>,
    /// `error_log` outside of any server.
    pub main_log: Arc<Log>,
}

impl Site {
    /// Makes a site of its parts.
    pub fn new(parts: SiteParts) -> Result<Site, Error> {
        let (mut servers, mut endpoints, mut taken) = (Vec::new(), Vec::new(), HashSet::new());
        for (number, (server, listens)) in parts.servers.into_iter().enumerate() {
            for line in listens {
                let address = line.listen.address.clone();
                if !taken.insert(address.clone()) {
                    let text = format!("duplicate \"{address}\" address and port pair");
                    return Err(line.at.error(text));
                }
                // Never deferred: a client waits for the greeting before it sends anything.
                let listen = Listen { deferred: Deferred::Off, ..line.listen };
                endpoints
                    .push((listen, ListenEndpoint { server: number, protocols: line.protocols }));
            }
            servers.push(server);
        }
        let (sockets, bound) = bind(endpoints);
        let SiteParts { variables, upstreams, certificates, main_log, .. } = parts;
        Ok(Site { sockets, bound, servers, variables, upstreams, certificates, main_log })
    }

    /// The sockets to open. Connections arrive with an index into this list.
    pub fn listens(&self) -> &[Listen] {
        &self.sockets
    }

    /// The log and threshold for stalls outside of any server.
    pub fn stall_defaults(&self) -> StallDefaults {
        StallDefaults { log: self.main_log.clone(), threshold: THRESHOLD }
    }

    /// Whether any `error_log` is stderr.
    pub fn logs_to_stderr(&self) -> bool {
        let logs = self.servers.iter().map(|server| &server.conf.error_log);
        logs.chain([&self.main_log]).any(|log| log.has_stderr())
    }

    /// The endpoints of a listening socket.
    pub fn bound(&self, listen: usize) -> &BoundSocket<ListenEndpoint> {
        &self.bound[listen]
    }

    /// The server block of an endpoint.
    pub fn server(&self, endpoint: &ListenEndpoint) -> &Server {
        &self.servers[endpoint.server]
    }
}
