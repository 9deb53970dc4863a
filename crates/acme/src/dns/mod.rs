//! TXT records that prove names: published, waited for and removed.
//!
//! - `hook`: by a program of the operator
//! - `update`: by dynamic updates (RFC 2136), signed with TSIG
//! - `query`: queries to name servers
//! - `wait`: finds the name servers of a zone, and waits until they serve a record
//!
//! All functions block. They run on the keeper's threads.

mod hook;
mod query;
mod update;
mod wait;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stop::{Stop, Stopped};

pub use hook::Hook;
pub use update::{TsigKey, UpdateServer};
pub use wait::{Persistent, is_published, targets, until_visible};

/// How names are proved by DNS.
#[derive(Debug, Clone)]
pub struct Dns {
    /// `dns_hook`, `dns_update`: how records are published. None for `dns-persist-01`.
    pub publisher: Option<Publisher>,
    /// `dns_wait`: how long to wait at most until the record is served. None: no wait.
    pub wait: Option<Duration>,
    /// `dns_wait`: the servers that must serve it. If empty, those of the zone.
    pub servers: Vec<SocketAddr>,
    /// `dns_resolver`: the resolvers. If empty, the machine's.
    pub resolvers: Vec<SocketAddr>,
}

impl Default for Dns {
    fn default() -> Self {
        let wait = Some(Duration::from_secs(120));
        Dns { publisher: None, wait, servers: Vec::new(), resolvers: Vec::new() }
    }
}

/// Publishes and removes records.
#[derive(Debug, Clone)]
pub enum Publisher {
    /// `dns_hook`
    Hook(Hook),
    /// `dns_update`
    Update(UpdateServer),
}

/// A TXT record. The same name may have others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TxtRecord {
    /// Its name, without a dot at the end.
    pub name: String,
    /// Its text.
    pub value: String,
}

/// A change of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is added.
    Publish,
    /// It is removed.
    Remove,
}

/// Why a query or change failed.
#[derive(Debug)]
pub enum DnsFailure {
    /// The worker retires.
    Stopped,
    /// The reason.
    Failed(String),
}

impl From<Stopped> for DnsFailure {
    fn from(_: Stopped) -> Self {
        DnsFailure::Stopped
    }
}

impl From<String> for DnsFailure {
    fn from(why: String) -> Self {
        DnsFailure::Failed(why)
    }
}

impl fmt::Display for DnsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DnsFailure::Stopped => f.write_str("the worker retires"),
            DnsFailure::Failed(why) => f.write_str(why),
        }
    }
}

impl Publisher {
    /// Changes a record.
    pub fn change(
        &self,
        change: Change,
        record: &TxtRecord,
        stop: &Arc<Stop>,
    ) -> Result<(), DnsFailure> {
        match self {
            Publisher::Hook(hook) => hook.run(change, record, stop),
            Publisher::Update(server) => {
                let (server, record) = (server.clone(), record.clone());
                let done = stop.run(move || server.change(change, &record))?;
                Ok(done.unwrap_or_else(|| Err("no thread for the update".to_owned()))?)
            }
        }
    }

    /// Whether records are changed at the target of a CNAME. A hook gets the name that the authority asks for.
    pub fn follows_aliases(&self) -> bool {
        matches!(self, Publisher::Update(_))
    }
}
