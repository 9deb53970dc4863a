//! Runs the Lua scripts of sessions, and gives them access to the session. nginx:
//! stream-lua-nginx-module of OpenResty.

use std::any::Any;
use std::fmt::Arguments;
use std::time::{Duration, Instant};

use weir_log::Level;
use weir_ssl::scripted::{Chosen, ScriptEnd, ScriptedClient, ScriptedSession, ServerChoice};
use weir_ssl::server::{AcceptError, Handshake, Shown, TlsSubject};
use weir_values::{Address, NotStored, Subject};

use crate::session::{Client, Session};
use crate::status::{Outcome, SessionError};

/// `ssl_client_hello_by_lua`
pub async fn client_hello(s: &mut Session) -> Result<(), AcceptError> {
    match s.event_loop.scripts.get().cloned() {
        Some(scripts) => scripts.client_hello(s).await,
        None => Err(AcceptError::Script("callback failed")),
    }
}

/// `ssl_certificate_by_lua`
pub async fn certificate(s: &mut Session) -> Result<(), AcceptError> {
    match s.event_loop.scripts.get().cloned() {
        Some(scripts) => scripts.certificate(s).await,
        None => Err(AcceptError::Script("cert cb error")),
    }
}

/// `preread_by_lua`. Returns the outcome if the script ends the session.
pub async fn preread(s: &mut Session) -> Option<Outcome> {
    let Some(scripts) = s.event_loop.scripts.get().cloned() else {
        return Some(Err(SessionError::Internal));
    };
    match scripts.preread(s).await {
        ScriptEnd::Next => None,
        ScriptEnd::Over(status) => Some(outcome(status)),
    }
}

/// `content_by_lua`
pub async fn content(s: &mut Session) -> Outcome {
    let scripts = s.event_loop.scripts.get().cloned().ok_or(SessionError::Internal)?;
    match scripts.content(s).await {
        ScriptEnd::Next => Ok(()),
        ScriptEnd::Over(status) => outcome(status),
    }
}

/// `balancer_by_lua` of a group
pub fn choose(s: &mut Session, group: &str, choice: &mut ServerChoice) -> Chosen {
    match s.event_loop.scripts.get().cloned() {
        Some(scripts) => scripts.choose(group, s, choice),
        None => Chosen::Ends(500),
    }
}

/// `log_by_lua`
pub fn log(s: &mut Session) {
    if let Some(scripts) = s.event_loop.scripts.get().cloned() {
        scripts.log(s);
    }
}

fn outcome(status: u16) -> Outcome {
    if status == 200 { Ok(()) } else { Err(SessionError::Script(status)) }
}

impl ScriptedSession for Session {
    fn server(&self) -> usize {
        self.server.number
    }

    fn log(&self, level: Level, text: Arguments<'_>) {
        Subject::log(self, level, text);
    }

    fn is_logged(&self, level: Level) -> bool {
        self.conf().error_log.enabled(level)
    }

    fn variable(&mut self, name: &[u8], out: &mut Vec<u8>) -> bool {
        self.variable_named(name, out)
    }

    fn store(&mut self, name: &[u8], value: Option<Vec<u8>>) -> Result<(), NotStored> {
        self.store_named(name, value)
    }

    fn started(&self) -> Instant {
        self.started
    }

    fn ends(&self) -> [&Address; 2] {
        [&self.connected, Subject::local(self)]
    }

    fn shown(&self) -> Option<&Shown> {
        self.shown.as_deref()
    }

    fn tls_version(&self) -> Option<&'static str> {
        self.tls(|agreed| agreed.protocol())
    }

    fn handshake(&mut self) -> Option<&mut Handshake> {
        self.handshake.as_deref_mut()
    }

    fn origin(&self) -> String {
        let listen = &self.event_loop.site.listens()[self.listen].address;
        format!(", client: {}, server: {listen}", Subject::peer(self).host())
    }

    fn place(&self) -> &'static str {
        self.handshake.as_ref().map_or("", |handshake| handshake.place)
    }

    fn client(&self) -> ScriptedClient {
        match &self.client {
            Client::Connected(wire) => ScriptedClient::Connected(wire.clone()),
            Client::Sending(_) => ScriptedClient::Sending,
            Client::Gone => ScriptedClient::Gone,
        }
    }

    fn unread(&mut self) -> &mut Vec<u8> {
        &mut self.unread
    }

    fn answer(&self, bytes: &[u8]) -> bool {
        matches!(&self.client, Client::Sending(place) if place.flow.answer(bytes))
    }

    fn passed(&mut self, received: u64, sent: u64) {
        self.received += received;
        self.sent += sent;
        self.answered |= sent > 0 && self.wire().is_some();
    }

    fn preread_limits(&self) -> (usize, Duration) {
        (self.conf().preread_buffer, self.conf().preread_timeout)
    }

    fn script_context(&mut self) -> &mut Option<Box<dyn Any>> {
        &mut self.script_context
    }
}
