//! What chooses the servers of a group in place of its method: a script, which is asked before each attempt.
//!
//! - In: how the attempt before has failed, and how many attempts there may be.
//! - Out: the server of the attempt, and what holds for the connection to it.
//! - Callers: the driver asks; a module that has scripts answers.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use weir_upstream::{Failure, Limits, Peer};

use crate::request::Request;
use crate::request::passed::ChosenTimes;

/// Chooses servers.
pub trait Choose: Debug + Send + Sync {
    /// Chooses the server of the attempt that begins, without waiting for anything.
    fn choose(&self, r: &mut Request, situation: Situation, selection: &mut Selection) -> Chosen;
}

/// What a choice leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// The attempt begins, with the server that was chosen or with one of the group's own.
    Goes,
    /// The request ends with this status.
    Ends(u16),
    /// The attempt counts as one that could not reach its server.
    Fails,
}

/// Where a request stands before an attempt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Situation {
    /// How many attempts it has, with those that are over.
    pub tries: u32,
    /// How many it may have at most; 0: no limit.
    pub most: u32,
    /// The group has servers of its own.
    pub has_servers: bool,
    /// How many idle connections to servers that are chosen a loop keeps.
    pub idle: usize,
}

/// What was chosen for a request.
#[derive(Debug, Default)]
pub struct Selection {
    /// How the attempt before has failed.
    pub before: Option<Failure>,
    /// TLS is configured.
    pub can_secure: bool,
    /// Attempts that were added to those of the group.
    pub granted: u32,

    /// The server of this attempt; `None`: one of the group's own.
    pub peer: Option<Arc<Peer>>,
    /// Attempts to be added, if a server was chosen.
    pub more: u32,
    /// How the connection of this attempt is kept; `None`: as the group says.
    pub keepalive: Option<Limits>,
    /// The request is written anew.
    pub recreates: bool,

    /// The name by which TLS knows the server, from this attempt on.
    pub host: Option<Vec<u8>>,
    /// TLS is not spoken, from this attempt on.
    pub plain: bool,
    /// The local address, from this attempt on.
    pub from: Option<SocketAddr>,
    /// How long servers may take, from this attempt on.
    pub times: ChosenTimes,
}

impl Selection {
    /// Nothing was chosen yet.
    pub fn new(can_secure: bool) -> Selection {
        Selection { can_secure, ..Selection::default() }
    }

    /// Another attempt begins: what was said of the one before is forgotten.
    pub fn begin(&mut self) {
        (self.peer, self.more, self.keepalive, self.recreates) = (None, 0, None, false);
    }
}

/// What log lines write before the name of a server that is spoken to without TLS.
pub fn without_tls(scheme: &'static str) -> &'static str {
    match scheme {
        "https://" => "http://",
        "grpcs://" => "grpc://",
        "suwsgi://" => "uwsgi://",
        scheme => scheme,
    }
}
