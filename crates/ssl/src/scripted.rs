//! Scripts of sessions: what they see of a session, and what runs them. `stream` implements the
//! sessions, `http` the scripts.

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

/// A session's client, as scripts see it.
pub enum ScriptedClient {
    /// A connection.
    Connected(Rc<Wire>),
    /// A client of datagrams. The session began with one.
    Sending,
    /// The connection has left this session.
    Gone,
}

/// A session as its scripts see it.
pub trait ScriptedSession {
    /// Which `server` block of the configuration serves it, from 0.
    fn server(&self) -> usize;
    /// Writes to the session's error log.
    fn log(&self, level: Level, text: Arguments<'_>);
    /// Whether the session's error log has this level.
    fn is_logged(&self, level: Level) -> bool;
    /// Appends a variable's value. False if it has none.
    fn variable(&mut self, name: &[u8], out: &mut Vec<u8>) -> bool;
    /// Sets a variable, or with `None` removes its value.
    ///
    /// # Errors
    ///
    /// There is no such variable, or it cannot be changed.
    fn store(&mut self, name: &[u8], value: Option<Vec<u8>>) -> Result<(), NotStored>;
    /// When the session began.
    fn started(&self) -> Instant;
    /// The client's address, and the address that it has connected to.
    fn ends(&self) -> [&Address; 2];
    /// The client's ClientHello. `None` without TLS.
    fn shown(&self) -> Option<&Shown>;
    /// The negotiated version of TLS.
    fn tls_version(&self) -> Option<&'static str>;
    /// The handshake that scripts may change, while it lasts.
    fn handshake(&mut self) -> Option<&mut Handshake>;
    /// The client and the listener, as log lines name them.
    fn origin(&self) -> String;
    /// The phase, as log lines name it behind their text.
    fn place(&self) -> &'static str;
    /// The client.
    fn client(&self) -> ScriptedClient;
    /// Bytes that were received from the client and not consumed.
    fn unread(&mut self) -> &mut Vec<u8>;
    /// Sends a datagram to the client. False on failure.
    fn answer(&self, bytes: &[u8]) -> bool;
    /// Counts bytes that scripts received from the client and sent to it.
    fn passed(&mut self, received: u64, sent: u64);
    /// The most bytes that may be read in the preread phase, and its timeout.
    fn preread_limits(&self) -> (usize, Duration);
    /// The context of the session's scripts, which they make themselves.
    fn script_context(&mut self) -> &mut Option<Box<dyn Any>>;
}

/// How a script of a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptEnd {
    /// The session goes on.
    Next,
    /// The session is over, with this status.
    Over(u16),
}

/// An attempt to reach a server, for the script of an `upstream` (`balancer_by_lua`).
#[derive(Debug, Default)]
pub struct ServerChoice {
    /// How many attempts the session has in all, past ones included.
    pub tries: u32,
    /// The most attempts. 0: no limit.
    pub most: u32,
    /// The group has servers of its own.
    pub has_servers: bool,
    /// How the previous attempt failed.
    pub before: Option<Failure>,

    /// The script's choice. `None`: one of the group's own servers.
    pub peer: Option<Arc<Peer>>,
    /// Further attempts that the script permits, if it chose a server.
    pub more: u32,

    /// The local address, from this attempt on.
    pub from: Option<SocketAddr>,
    /// The timeout of connecting, from this attempt on.
    pub connect: Option<Duration>,
    /// The timeout of both sides' silence, from this attempt on.
    pub idle: Option<Duration>,
}

/// The result of a script's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// The attempt begins, with the chosen server or one of the group's own.
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
