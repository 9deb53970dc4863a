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

/// Why a session ends before the relay.
#[derive(Debug)]
pub enum SessionEnd {
    /// The client has left, or has its last reply already.
    Closed,
    /// The client is told of an internal error. The log has the details.
    Internal,
    /// The client gets this last reply.
    Reply(Vec<u8>),
}

/// How a client authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginMethod {
    /// By its password, in any command or mechanism that sends it.
    Plain,
    /// By the digest of APOP (RFC 1939).
    Apop,
    /// By the digest of CRAM-MD5 (RFC 2195).
    CramMd5,
    /// By its certificate, with SASL's EXTERNAL.
    External,
    /// Not at all (`smtp_auth none`).
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

/// The challenge that the client must respond to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Challenge {
    /// LOGIN: the name.
    Username,
    /// LOGIN: the password.
    Password,
    /// PLAIN: name and password.
    Plain,
    /// CRAM-MD5: name and digest.
    CramMd5,
    /// EXTERNAL: the name.
    External,
}

/// What an SMTP client has sent before it logs in.
#[derive(Debug, Default)]
pub struct SmtpHello {
    /// Whether it sent `EHLO`.
    pub esmtp: bool,
    /// The argument of `HELO` or `EHLO`.
    pub helo: Vec<u8>,
    /// The whole `MAIL FROM` command.
    pub from: Vec<u8>,
    /// The whole `RCPT TO` command.
    pub to: Vec<u8>,
}

/// One session.
pub struct Session {
    /// The loop's state.
    pub event_loop: Rc<LoopState>,
    /// The server block whose settings apply.
    pub server: &'static Server,
    /// The connection. `None` during a TLS handshake.
    pub client: Option<Wire>,
    listen: usize,
    /// The address of the connection's other end.
    pub connected: Address,
    /// The client's address from the PROXY header, if its sender is trusted.
    pub real: Option<Address>,
    local: OnceCell<Address>,
    number: u64,
    values: VariableValues,
    captures: Captures,
    /// The PROXY header.
    pub proxy: Option<Box<ProxyHeader>>,
    /// What the TLS handshake with the client showed.
    pub shown: Option<Box<Shown>>,
    /// What the session does at present, for the log.
    pub doing: &'static str,
    /// Bytes from the client that are not part of a command yet.
    pub unread: Vec<u8>,
    /// When the client must have sent its credentials.
    pub deadline: Instant,
    /// Whether the client started TLS with a command.
    pub starttls: bool,
    /// How many lines were no commands, for `max_errors`.
    pub errors: u64,
    /// The challenge that the client must respond to.
    pub challenge: Option<Challenge>,
    /// How the client authenticates.
    pub method: LoginMethod,
    /// The user's name.
    pub login: Vec<u8>,
    /// The password, or a digest of it.
    pub password: Option<Vec<u8>>,
    /// The timestamp of APOP and CRAM-MD5. Empty until it is needed.
    pub salt: Vec<u8>,
    /// How often the client has tried to log in.
    pub attempts: u64,
    /// IMAP: the tag of the last command, with the space after it.
    pub tag: Vec<u8>,
    /// IMAP: how many literals of the present command were allowed.
    pub literals: usize,
    /// POP3: whether `USER` was sent, so that `PASS` must follow.
    pub has_user: bool,
    /// SMTP: the commands before the log-in.
    pub hello: SmtpHello,
    /// SMTP: the client's host name from the DNS.
    pub host: Vec<u8>,
    /// The address of the mail server.
    pub upstream: Option<String>,
    /// Whether the session has run to its end, and was not dropped before.
    pub ended: bool,
}

impl Session {
    /// A session at its beginning.
    pub fn new(
        event_loop: Rc<LoopState>,
        server: &'static Server,
        client: Wire,
        connected: Address,
        listen: usize,
    ) -> Session {
        let deadline = event_loop.handle.now() + server.conf.timeout;
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
            deadline,
            starttls: false,
            errors: 0,
            challenge: None,
            method: LoginMethod::Plain,
            login: Vec::new(),
            password: None,
            salt: Vec::new(),
            attempts: 0,
            tag: Vec::new(),
            literals: 0,
            has_user: false,
            hello: SmtpHello::default(),
            host: Vec::new(),
            upstream: None,
            ended: false,
        }
    }

    /// Settings of its server.
    pub fn conf(&self) -> &'static MailConf {
        &self.server.conf
    }

    /// The protocol of the server block.
    pub fn protocol(&self) -> Protocol {
        self.server.protocol
    }

    /// The client's connection.
    pub fn wire(&self) -> Result<&Wire, SessionEnd> {
        self.client.as_ref().ok_or(SessionEnd::Closed)
    }

    /// Whether the client's connection uses TLS.
    pub fn is_secured(&self) -> bool {
        self.client.as_ref().is_some_and(Wire::is_tls)
    }

    /// Puts TLS on the client's connection.
    pub fn secure(&mut self, secured: Secured) {
        if let Some(wire) = self.client.take() {
            let (stream, _) = wire.part();
            self.client = Some(Wire::join(stream, Some(secured)));
        }
    }

    /// Sends bytes to the client.
    pub async fn send(&self, text: impl Into<Vec<u8>>) -> Result<(), SessionEnd> {
        let wire = self.wire()?;
        let mut chain = Chain::new();
        chain.push(text.into());
        let sent = wire.send(&mut chain, Patience::Idle(self.conf().timeout)).await;
        sent.map_err(|error| self.log_client_error("send()", &error))
    }

    /// Reads more bytes from the client, up to `most` unread ones.
    pub async fn receive(&mut self, most: usize) -> Result<(), SessionEnd> {
        // A client that has always sent more is never waited for.
        if self.event_loop.handle.now() >= self.deadline {
            return Err(self.log_client_error("recv()", &io::ErrorKind::TimedOut.into()));
        }
        let mut bytes = std::mem::take(&mut self.unread);
        bytes.reserve_exact(most.saturating_sub(bytes.len()).max(1));
        let until = self.deadline;
        let wire = self.wire()?;
        wire.set_deadline(Some(until));
        let (result, bytes) = wire.recv(bytes).await;
        wire.set_deadline(None);
        self.unread = bytes;
        match result {
            Ok(0) => Err(SessionEnd::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(self.log_client_error("recv()", &error)),
        }
    }

    /// Logs a failed read or write on the client's connection, or its time-out.
    pub fn log_client_error(&self, call: &str, error: &io::Error) -> SessionEnd {
        if fault::is_late(error) {
            let cause = fault::late();
            self.log(Level::Info, format_args!("client timed out {}", Cause(&cause)));
        } else {
            let call = failed_call(call, error);
            self.log(Level::Info, format_args!("{call} failed {}", Cause(error)));
        }
        SessionEnd::Closed
    }

    /// Logs a failure of weir or of an upstream server.
    pub fn fail(&self, text: Arguments<'_>) -> SessionEnd {
        self.log(Level::Error, text);
        SessionEnd::Internal
    }

    /// Writes to the error log without the description of the session.
    pub fn log_bare(&self, level: Level, text: Arguments<'_>) {
        self.conf().error_log.write(level, Some(self.number), text);
    }

    /// The address of the listening socket.
    pub fn listening(&self) -> &'static Address {
        &self.event_loop.site.listens()[self.listen].address
    }

    /// The value of a variable, if it has one.
    pub fn value(&mut self, name: &str) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        self.variable_named(name.as_bytes(), &mut value).then_some(value)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The worker exits and does not wait for the session any longer.
        if !self.ended && self.event_loop.retiring() && !std::thread::panicking() {
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
    const BLOCK: &'static str = "mail";

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
