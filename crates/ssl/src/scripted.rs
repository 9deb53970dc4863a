//! Scripts of sessions: what a session shows to them, and what runs them. `stream` has the sessions, `http` the scripts.

use std::any::Any;
use std::fmt::Arguments;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::Boxed;
use weir_log::Level;
use weir_tls::Wire;
use weir_upstream::{Failure, Peer};
use weir_values::{Address, NotStored};

use crate::server::{AcceptError, Handshake, Shown};

/// What a session's client is to scripts.
pub enum ScriptedClient {
    /// A connection.
    Connected(Rc<Wire>),
    /// Datagrams, of which the session began with one.
    Sending,
    /// It is not this session's any more.
    Gone,
}

/// A session as its scripts see it.
pub trait ScriptedSession {
    /// Which `server` block of the configuration serves it, from 0.
    fn server(&self) -> usize;
    /// Writes to its error log.
    fn log(&self, level: Level, text: Arguments<'_>);
    /// Whether its error log takes this.
    fn is_logged(&self, level: Level) -> bool;
    /// Appends a variable's value; false where it has none.
    fn variable(&mut self, name: &[u8], out: &mut Vec<u8>) -> bool;
    /// Stores a variable, or with `None` takes its value away.
    ///
    /// # Errors
    ///
    /// There is no such variable, or it cannot be changed.
    fn store(&mut self, name: &[u8], value: Option<Vec<u8>>) -> Result<(), NotStored>;
    /// When it began.
    fn started(&self) -> Instant;
    /// The address that has connected, and the one that it has connected to.
    fn ends(&self) -> [&Address; 2];
    /// What the client's first message of TLS has shown; missing without TLS.
    fn shown(&self) -> Option<&Shown>;
    /// The version of TLS that is spoken.
    fn tls_version(&self) -> Option<&'static str>;
    /// The handshake in which scripts decide, as long as it lasts.
    fn handshake(&mut self) -> Option<&mut Handshake>;
    /// What lines of the log say of its client and of where it listens.
    fn origin(&self) -> String;
    /// What the log says of it behind the text of a line.
    fn place(&self) -> &'static str;
    /// The client.
    fn client(&self) -> ScriptedClient;
    /// What was read of the client and leads nowhere yet.
    fn unread(&mut self) -> &mut Vec<u8>;
    /// Sends a datagram to the client; false if that did not succeed.
    fn answer(&self, bytes: &[u8]) -> bool;
    /// Scripts took so many bytes of the client, and sent so many.
    fn passed(&mut self, received: u64, sent: u64);
    /// How many bytes may be read before the session leads anywhere, and how long that may take.
    fn preread_limits(&self) -> (usize, Duration);
    /// What scripts keep with the session.
    fn seat(&mut self) -> &mut Option<Box<dyn Any>>;
}

/// How a script of a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptEnd {
    /// The session goes on.
    Next,
    /// The session is over, with this status.
    Over(u16),
}

/// What a script of an `upstream` chooses for an attempt to reach a server.
#[derive(Debug, Default)]
pub struct ServerChoice {
    /// How many attempts the session has, with those that are over.
    pub tries: u32,
    /// How many it may have at most; 0: no limit.
    pub most: u32,
    /// The group has servers of its own.
    pub has_servers: bool,
    /// How the attempt before has failed.
    pub before: Option<Failure>,

    /// The server; `None`: one of the group's own.
    pub peer: Option<Arc<Peer>>,
    /// Attempts to be added, if a server was chosen.
    pub more: u32,

    /// The local address, from this attempt on.
    pub from: Option<SocketAddr>,
    /// How long a connection may take, from this attempt on.
    pub connect: Option<Duration>,
    /// How long both sides may be silent, from this attempt on.
    pub idle: Option<Duration>,
}

/// What a choice leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// The attempt begins, with the server that was chosen or with one of the group's own.
    Goes,
    /// The session ends with this status.
    Ends(u16),
    /// The attempt counts as one that could not reach its server.
    Fails,
}

/// Runs scripts for the sessions of one loop.
pub trait SessionScripts {
    /// `ssl_client_hello_by_lua`
    fn client_hello<'a>(
        &'a self,
        session: &'a mut (dyn ScriptedSession + 'static),
    ) -> Boxed<'a, Result<(), AcceptError>>;
    /// `ssl_certificate_by_lua`
    fn certificate<'a>(
        &'a self,
        session: &'a mut (dyn ScriptedSession + 'static),
    ) -> Boxed<'a, Result<(), AcceptError>>;
    /// `preread_by_lua`
    fn preread<'a>(
        &'a self,
        session: &'a mut (dyn ScriptedSession + 'static),
    ) -> Boxed<'a, ScriptEnd>;
    /// `content_by_lua`
    fn content<'a>(
        &'a self,
        session: &'a mut (dyn ScriptedSession + 'static),
    ) -> Boxed<'a, ScriptEnd>;
    /// `balancer_by_lua` of the `upstream` of this name
    fn choose(
        &self,
        group: &str,
        session: &mut (dyn ScriptedSession + 'static),
        choice: &mut ServerChoice,
    ) -> Chosen;
    /// `log_by_lua`
    fn log(&self, session: &mut (dyn ScriptedSession + 'static));
}
