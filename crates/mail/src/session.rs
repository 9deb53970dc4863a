//! One session of a client.

use std::cell::OnceCell;
use std::fmt::{Arguments, Write};
use std::io;
use std::rc::Rc;
use std::time::Instant;

use weir_engine::{Chain, Handle, Patience};
use weir_log::{Cause, Level};
use weir_proto::proxy_protocol::ProxyHeader;
use weir_ssl::server::{Shown, TlsSubject};
use weir_tls::{Negotiated, Secured, Wire, failed_call};
use weir_upstream::fault;
use weir_values::regex::Captures;
use weir_values::{Address, Get, Identity, Subject, VariableValues, Variables};

use crate::event_loop::LoopState;
use crate::protocol::Protocol;
use crate::settings::MailConf;
use crate::site::Server;

/// Why a session ends before a server has its client.
#[derive(Debug)]
pub enum SessionEnd {
    /// The client has left, or was told already.
    Closed,
    /// The client is told that this server failed. The log has the details.
    Internal,
    /// The client is told this.
    Told(Vec<u8>),
}

/// How a client logs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginMethod {
    /// By its password.
    Plain,
    /// By a digest of the password (RFC 1939).
    Apop,
    /// By a digest of the password (RFC 2195).
    CramMd5,
    /// By its certificate.
    External,
    /// Not at all, of SMTP.
    None,
}

impl LoginMethod {
    /// `Auth-Method`
    pub fn name(self) -> &'static str {
        match self {
            LoginMethod::Plain => "plain",
            LoginMethod::Apop => "apop",
            LoginMethod::CramMd5 => "cram-md5",
            LoginMethod::External => "external",
            LoginMethod::None => "none",
        }
    }
}

/// What is waited for after a challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Challenge {
    /// The name.
    Username,
    /// The password.
    Password,
    /// Both.
    Plain,
    /// A name and a digest.
    CramMd5,
    /// A name.
    External,
}

/// What a client of SMTP has said before it logs in.
#[derive(Debug, Default)]
pub struct SmtpHello {
    /// It knows extensions.
    pub esmtp: bool,
    /// Its name.
    pub helo: Vec<u8>,
    /// The command with the sender.
    pub from: Vec<u8>,
    /// The command with the recipient.
    pub to: Vec<u8>,
}

/// One session.
pub struct Session {
    /// The loop's state.
    pub event_loop: Rc<LoopState>,
    /// Its server.
    pub server: &'static Server,
    /// The client; none while TLS begins.
    pub client: Option<Wire>,
    listen: usize,
    /// The address that connected.
    pub connected: Address,
    /// The client behind that address.
    pub real: Option<Address>,
    local: OnceCell<Address>,
    number: u64,
    values: VariableValues,
    captures: Captures,
    /// What a balancer in front said.
    pub proxy: Option<Box<ProxyHeader>>,
    /// What the handshake with the client has shown.
    pub shown: Option<Box<Shown>>,
    /// What is being done with it, for the log.
    pub doing: &'static str,
    /// Bytes of the client that no command has taken.
    pub unread: Vec<u8>,
    /// By then the client is to have given its credentials.
    pub until: Instant,
    /// The client has begun TLS by a command.
    pub starttls: bool,
    /// How many lines were no commands.
    pub errors: u64,
    /// What is waited for after a challenge.
    pub challenge: Option<Challenge>,
    /// How it logs in.
    pub method: LoginMethod,
    /// The name of its user.
    pub login: Vec<u8>,
    /// Its password, or a digest of it.
    pub password: Option<Vec<u8>>,
    /// What digests are made with; empty until one may be needed.
    pub salt: Vec<u8>,
    /// How often it has tried.
    pub attempts: u64,
    /// IMAP's tag of the last command, with its space.
    pub tag: Vec<u8>,
    /// IMAP: how many literals of a command it has leave for.
    pub granted: usize,
    /// POP3: it has said its name, and is to say its password.
    pub named: bool,
    /// SMTP: what it has said.
    pub hello: SmtpHello,
    /// The client's name as name servers have it.
    pub host: Vec<u8>,
    /// The server that it leads to.
    pub upstream: Option<String>,
    /// It has come to its end.
    pub over: bool,
}

impl Session {
    /// A session that begins.
    pub fn new(
        event_loop: Rc<LoopState>,
        server: &'static Server,
        client: Wire,
        connected: Address,
        listen: usize,
    ) -> Session {
        let until = event_loop.handle.now() + server.conf.timeout;
        Session {
            event_loop,
            server,
            client: Some(client),
            listen,
            connected,
            real: None,
            local: OnceCell::new(),
            number: weir_values::next_connection(),
            values: VariableValues::default(),
            captures: Captures::default(),
            proxy: None,
            shown: None,
            doing: "sending client greeting line",
            unread: Vec::new(),
            until,
            starttls: false,
            errors: 0,
            challenge: None,
            method: LoginMethod::Plain,
            login: Vec::new(),
            password: None,
            salt: Vec::new(),
            attempts: 0,
            tag: Vec::new(),
            granted: 0,
            named: false,
            hello: SmtpHello::default(),
            host: Vec::new(),
            upstream: None,
            over: false,
        }
    }

    /// Settings of its server.
    pub fn conf(&self) -> &'static MailConf {
        &self.server.conf
    }

    /// What is spoken.
    pub fn protocol(&self) -> Protocol {
        self.server.protocol
    }

    /// The client.
    pub fn wire(&self) -> Result<&Wire, SessionEnd> {
        self.client.as_ref().ok_or(SessionEnd::Closed)
    }

    /// Whether TLS is spoken with the client.
    pub fn is_secured(&self) -> bool {
        self.client.as_ref().is_some_and(Wire::is_tls)
    }

    /// From now on TLS is spoken with the client.
    pub fn secure(&mut self, secured: Secured) {
        if let Some(wire) = self.client.take() {
            let (stream, _) = wire.part();
            self.client = Some(Wire::join(stream, Some(secured)));
        }
    }

    /// Sends a text to the client.
    pub async fn say(&self, text: impl Into<Vec<u8>>) -> Result<(), SessionEnd> {
        let wire = self.wire()?;
        let mut chain = Chain::new();
        chain.push(text.into());
        let sent = wire.send(&mut chain, Patience::Idle(self.conf().timeout)).await;
        sent.map_err(|error| self.complain("send()", &error))
    }

    /// Reads more of what the client sends.
    pub async fn hear(&mut self, most: usize) -> Result<(), SessionEnd> {
        let mut bytes = std::mem::take(&mut self.unread);
        bytes.reserve_exact(most.saturating_sub(bytes.len()).max(1));
        let until = self.until;
        let wire = self.wire()?;
        wire.set_deadline(Some(until));
        let (result, bytes) = wire.recv(bytes).await;
        wire.set_deadline(None);
        self.unread = bytes;
        match result {
            Ok(0) => Err(SessionEnd::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(self.complain("recv()", &error)),
        }
    }

    /// Logs that the client took too long, or what failed.
    pub fn complain(&self, call: &str, error: &io::Error) -> SessionEnd {
        if fault::is_late(error) {
            let cause = fault::late();
            self.log(Level::Info, format_args!("client timed out {}", Cause(&cause)));
        } else {
            let call = failed_call(call, error);
            self.log(Level::Info, format_args!("{call} failed {}", Cause(error)));
        }
        SessionEnd::Closed
    }

    /// Logs that weir or a server behind failed.
    pub fn fail(&self, text: Arguments<'_>) -> SessionEnd {
        self.log(Level::Error, text);
        SessionEnd::Internal
    }

    /// Writes to the error log, without what else is said of it.
    pub fn log_bare(&self, level: Level, text: Arguments<'_>) {
        self.conf().error_log.write(level, Some(self.number), text);
    }

    /// The address that it came to.
    pub fn listening(&self) -> &'static Address {
        &self.event_loop.site.listens()[self.listen].address
    }

    /// Its variable of this name, where it has it.
    pub fn value(&mut self, name: &str) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        self.variable_named(name.as_bytes(), &mut value).then_some(value)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Its loop ends, and waits no longer for it.
        if !self.over && self.event_loop.retiring() && !std::thread::panicking() {
            self.log(Level::Info, format_args!("shutdown timeout"));
        }
        if let Some(client) = &self.client {
            client.close_notify();
        }
    }
}

impl TlsSubject for Session {
    fn tls<T>(&self, look: impl FnOnce(&Negotiated<'_>) -> T) -> Option<T> {
        self.client.as_ref()?.tls(look)
    }

    fn shown(&self) -> Option<&Shown> {
        self.shown.as_deref()
    }
}

impl Subject for Session {
    fn define(variables: &mut Variables<Session>) {
        weir_ssl::server::define(variables);
    }

    fn prefixed(_name: &[u8]) -> Option<Get<Session>> {
        None
    }

    fn variables(&self) -> &'static Variables<Session> {
        &self.event_loop.site.variables
    }

    fn values(&mut self) -> &mut VariableValues {
        &mut self.values
    }

    fn captures(&mut self) -> &mut Captures {
        &mut self.captures
    }

    fn log(&self, level: Level, text: Arguments<'_>) {
        let log = &self.conf().error_log;
        if !log.enabled(level) {
            return;
        }
        let mut line = text.to_string();
        if !self.doing.is_empty() {
            let _ = write!(line, " while {}", self.doing);
        }
        let tls = if self.starttls { " using starttls" } else { "" };
        let (client, server) = (self.peer().host(), self.listening());
        let _ = write!(line, ", client: {client}{tls}, server: {server}");
        if !self.login.is_empty() {
            let _ = write!(line, ", login: \"{}\"", String::from_utf8_lossy(&self.login));
        }
        if let Some(upstream) = &self.upstream {
            let _ = write!(line, ", upstream: {upstream}");
        }
        log.write(level, Some(self.number), format_args!("{line}"));
    }

    fn peer(&self) -> &Address {
        self.real.as_ref().unwrap_or(&self.connected)
    }

    fn local(&self) -> &Address {
        let find = || Address::local_of(self.client.as_ref()?.socket());
        self.local.get_or_init(|| find().unwrap_or(Address::Unknown))
    }

    fn proxy(&self) -> Option<&ProxyHeader> {
        self.proxy.as_deref()
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn handle(&self) -> &Handle {
        &self.event_loop.handle
    }

    fn local_time(&self) -> (i64, i32) {
        self.event_loop.offset.local_time(&self.event_loop.handle)
    }

    fn identity(&self) -> Identity {
        self.event_loop.identity
    }
}
