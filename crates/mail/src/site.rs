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

/// The servers that clients are looked up at.
pub type Groups = Upstreams<()>;

/// A `server` block.
#[derive(Debug)]
pub struct Server {
    /// Its settings.
    pub conf: MailConf,
    /// What it speaks.
    pub protocol: Protocol,
    /// What it tells clients of itself.
    pub texts: Texts,
    /// The first address that it listens on.
    pub address: Address,
}

/// What a server tells clients of itself.
#[derive(Debug, Default)]
pub struct Texts {
    /// What it can do.
    pub capabilities: Vec<u8>,
    /// The same, to a client that may begin TLS.
    pub with_starttls: Vec<u8>,
    /// The same, to a client that must begin TLS.
    pub starttls_only: Vec<u8>,
}

impl Server {
    /// What it can do, for a client that speaks TLS already or not.
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
    /// For each socket.
    bound: Vec<BoundSocket<ListenEndpoint>>,
    servers: Vec<Server>,
    /// All variables.
    pub variables: Variables<Session>,
    /// The servers that clients are looked up at.
    pub upstreams: Groups,
    /// Certificates that peers are shown.
    pub certificates: BTreeSet<CertificateFacts>,
    /// `error_log` outside of any server.
    pub main_log: Arc<Log>,
}

/// What one address leads to.
#[derive(Debug)]
pub struct ListenEndpoint {
    server: usize,
    /// What is spoken on it before anything else.
    pub protocols: Protocols,
}

/// What a site is made of.
pub struct SiteParts {
    /// Servers with what they listen on.
    pub servers: Vec<(Server, Vec<ListenLine>)>,
    /// All variables.
    pub variables: Variables<Session>,
    /// The servers that clients are looked up at.
    pub upstreams: Groups,
    /// Certificates that peers are shown.
    pub certificates: BTreeSet<CertificateFacts>,
    /// `error_log` outside of any server.
    pub main_log: Arc<Log>,
}

impl Site {
    /// Puts a site together.
    pub fn new(parts: SiteParts) -> Result<Site, Error> {
        let (mut servers, mut endpoints, mut taken) = (Vec::new(), Vec::new(), HashSet::new());
        for (number, (server, listens)) in parts.servers.into_iter().enumerate() {
            for line in listens {
                let address = line.listen.address.clone();
                if !taken.insert(address.clone()) {
                    let text = format!("duplicate \"{address}\" address and port pair");
                    return Err(line.at.error(text));
                }
                // Clients wait for the server's greeting.
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

    /// The sockets to open; connections are handed over with an index into this list.
    pub fn listens(&self) -> &[Listen] {
        &self.sockets
    }

    /// Where stalls are logged that belong to no server in particular.
    pub fn stall_defaults(&self) -> StallDefaults {
        StallDefaults { log: self.main_log.clone(), threshold: THRESHOLD }
    }

    /// Whether an `error_log` of it is stderr.
    pub fn logs_to_stderr(&self) -> bool {
        let logs = self.servers.iter().map(|server| &server.conf.error_log);
        logs.chain([&self.main_log]).any(|log| log.has_stderr())
    }

    /// Where a connection of a socket leads.
    pub fn bound(&self, listen: usize) -> &BoundSocket<ListenEndpoint> {
        &self.bound[listen]
    }

    /// The server of an address.
    pub fn server(&self, endpoint: &ListenEndpoint) -> &Server {
        &self.servers[endpoint.server]
    }
}
