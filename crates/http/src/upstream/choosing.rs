//! Choice of a group's servers by a script, in place of the balancing method. The script is asked
//! before each attempt (`balancer_by_lua`).
//!
//! - In: how the last attempt failed, and how many attempts there may be.
//! - Out: the server of the attempt, and settings for its connection.
//! - Callers: the driver asks; a module with scripts answers.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use weir_upstream::{Failure, Limits, Peer};

use crate::request::Request;
use crate::request::passed::ChosenTimes;

/// Chooses servers.
pub trait Choose: Debug + Send + Sync {
    /// Chooses the server of the next attempt. Must not block or wait.
    fn choose(&self, r: &mut Request, situation: Situation, selection: &mut Selection) -> Chosen;
}

/// The result of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// The attempt begins, with the chosen server or with one of the group's own.
    Goes,
    /// The request ends with this status.
    Ends(u16),
    /// The attempt counts as failed, as if its server were unreachable.
    Fails,
}

/// The state of a request before an attempt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Situation {
    /// The number of attempts that it may make, past ones included.
    pub tries: u32,
    /// `..._next_upstream_tries`; 0 for no limit.
    pub most: u32,
    /// The group has servers of its own.
    pub has_servers: bool,
    /// The most idle connections that a loop keeps to chosen servers.
    pub idle: usize,
}

/// What the script has chosen for a request.
#[derive(Debug, Default)]
pub struct Selection {
    /// How the last attempt failed.
    pub before: Option<Failure>,
    /// TLS is configured.
    pub can_secure: bool,
    /// Attempts that were added so far.
    pub granted: u32,

    /// The server of this attempt; `None` for one of the group's own.
    pub peer: Option<Arc<Peer>>,
    /// Attempts to add, if a server was chosen.
    pub more: u32,
    /// The keepalive limits for the connection of this attempt; `None` for the group's.
    pub keepalive: Option<Limits>,
    /// The request is serialized again.
    pub recreates: bool,

    /// The server name for TLS, from this attempt on.
    pub host: Option<Vec<u8>>,
    /// TLS is not used, from this attempt on.
    pub plain: bool,
    /// The local address, from this attempt on.
    pub from: Option<SocketAddr>,
    /// Timeouts, from this attempt on.
    pub times: ChosenTimes,
}

impl Selection {
    /// The state before the first choice.
    pub fn new(can_secure: bool) -> Selection {
        Selection { can_secure, ..Selection::default() }
    }

    /// Resets the values that hold for one attempt.
    pub fn begin(&mut self) {
        (self.peer, self.more, self.keepalive, self.recreates) = (None, 0, None, false);
    }
}

/// The scheme in log lines for the same protocol without TLS.
pub fn without_tls(scheme: &'static str) -> &'static str {
    match scheme {
        "https://" => "http://",
        "grpcs://" => "grpc://",
        "suwsgi://" => "uwsgi://",
        scheme => scheme,
    }
}
