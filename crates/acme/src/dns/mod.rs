//! TXT records that prove names: published, waited for and removed.
//!
//! - `hook`: by a program of the operator
//! - `update`: by dynamic updates (RFC 2136), signed with TSIG
//! - `query`: questions to name servers
//! - `wait`: which name servers answer for a name, and whether they show a record already
//!
//! All of it blocks, on the threads of the keeper.

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
    /// `dns_hook`, `dns_update`: how a record is published; none for `dns-persist-01`.
    pub publisher: Option<Publisher>,
    /// `dns_wait`: how long to wait for the record at most; none: not at all.
    pub wait: Option<Duration>,
    /// `dns_wait`: the servers that are to show it; those of the zone if there are none.
    pub servers: Vec<SocketAddr>,
    /// `dns_resolver`: which servers find others; the machine's if there are none.
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

/// A TXT record. Others may stand under the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TxtRecord {
    /// Its name, without a dot at the end.
    pub name: String,
    /// Its text.
    pub value: String,
}

/// What is done with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is added.
    Publish,
    /// It is removed.
    Remove,
}

/// Why DNS could not be asked or changed.
#[derive(Debug)]
pub enum DnsFailure {
    /// The worker retires.
    Stopped,
    /// For this reason.
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

    /// Records are changed under the name that an alias leads to. A hook gets the name that the authority asks for.
    pub fn follows_aliases(&self) -> bool {
        matches!(self, Publisher::Update(_))
    }
}
