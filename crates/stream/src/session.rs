//! One session, and the data that its variables show.

use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::fmt::{Arguments, Write};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::{Either, Handle, either};
use weir_log::{Cause, Level};
use weir_proto::client_hello::Hello;
use weir_proto::proxy_protocol::ProxyHeader;
use weir_ssl::server::{Handshake, Shown};
use weir_tls::{Secured, Wire, failed_call};
use weir_upstream::Failure;
use weir_upstream::fault::{self, Blame, FailedOperation};
use weir_upstream::tunnel::PassedBytes;
use weir_values::limit_conn::HeldPlaces;
use weir_values::regex::Captures;
use weir_values::status::{Counting, StatusZone};
use weir_values::{Address, Get, Identity, Subject, VariableValues, Variables};

use crate::datagrams::FlowGuard;
use crate::event_loop::LoopState;
use crate::settings::StreamConf;
use crate::site::Server;
use crate::status::Outcome;
use crate::variables;

/// One attempt to connect to an upstream server.
#[derive(Debug)]
pub struct Attempt {
    /// The server's name, or the group's if none of its servers was available.
    pub name: Arc<str>,
    /// When it began.
    pub started: Instant,
    /// Whether the TLS handshake with the server has begun.
    pub secures: bool,
    /// How long the connect took.
    pub connect: Option<Duration>,
    /// How long until the server's first bytes.
    pub first: Option<Duration>,
    /// How long the attempt and its relay took in all.
    pub whole: Option<Duration>,
    /// Bytes to the server.
    pub sent: u64,
    /// Bytes from the server.
    pub received: u64,
    /// Why the attempt failed, and the system call's errno.
    pub fault: Cell<Option<(Failure, Option<i32>)>>,
}

/// The client's side of a session.
#[derive(Clone)]
pub enum Client {
    /// A connection.
    Connected(Rc<Wire>),
    /// The connection was passed to another listener.
    Gone,
    /// Datagrams.
    Sending(Rc<FlowGuard>),
}

/// One session.
pub struct Session {
    /// The loop's state.
    pub event_loop: Rc<LoopState>,
    /// The server block whose settings apply.
    pub server: &'static Server,
    /// Its client.
    pub client: Client,
    /// The number of the listening socket.
    pub listen: usize,
    /// The address of the connection's other end.
    pub connected: Address,
    /// The client's address from the PROXY header, if its sender is trusted.
    pub real: Option<Address>,
    local: OnceCell<Address>,
    number: u64,
    /// When it was accepted.
    pub started: Instant,
    values: VariableValues,
    captures: Captures,
    /// The PROXY header.
    pub proxy: Option<Box<ProxyHeader>>,
    /// Bytes that were read from the client before the content.
    pub unread: Vec<u8>,
    /// The client's ClientHello, from `ssl_preread`.
    pub hello: Option<Hello>,
    /// Whether `ssl_preread` reads a ClientHello, and the bytes so far may be one.
    pub may_be_hello: bool,
    /// What the TLS handshake with the client showed.
    pub shown: Option<Box<Shown>>,
    /// Its places under `limit_conn`.
    pub held: HeldPlaces,
    /// Counts it in its `status_zone`.
    pub counting: Option<Counting>,
    /// What the session does at present, for the log. Empty where messages name it themselves.
    pub doing: &'static str,
    /// Whether the session is proxied.
    pub is_proxied: bool,
    /// Whether the client was sent a text, which it may not have read when the connection ends.
    pub answered: bool,
    /// Whether the session has run to its end, and was not dropped before.
    pub ends_in_order: bool,
    /// Its result, once it has ended.
    pub outcome: Option<Outcome>,
    /// Bytes that were received from the client before the relay.
    pub received: u64,
    /// Bytes that were sent to the client besides those of the relay.
    pub sent: u64,
    /// How often `pass` has passed the connection on.
    pub passes: u32,
    /// Bytes of the relay.
    pub passed: Rc<PassedBytes>,
    /// The attempts to connect to upstream servers.
    pub attempts: Vec<Attempt>,
    /// The Lua state of its scripts.
    pub script_context: Option<Box<dyn Any>>,
    /// The TLS handshake, while scripts take part in it.
    pub handshake: Option<Box<Handshake>>,
}

impl Session {
    /// A session at its beginning.
    pub fn new(
        event_loop: Rc<LoopState>,
        server: &'static Server,
        client: Client,
        connected: Address,
        listen: usize,
    ) -> Session {
        let started = event_loop.handle.now();
        let passed = match &client {
            Client::Connected(_) | Client::Gone => Rc::default(),
            Client::Sending(place) => place.flow.passed.clone(),
        };
        Session {
            event_loop,
            server,
            client,
            listen,
            connected,
            real: None,
            local: OnceCell::new(),
            number: weir_values::next_connection(),
            started,
            values: VariableValues::default(),
            captures: Captures::default(),
            proxy: None,
            unread: Vec::new(),
            hello: None,
            may_be_hello: false,
            shown: None,
            held: HeldPlaces::default(),
            counting: server.conf.status_zone.as_ref().map(StatusZone::begin),
            doing: "",
            is_proxied: false,
            answered: false,
            ends_in_order: false,
            outcome: None,
            received: 0,
            sent: 0,
            passes: 0,
            passed,
            attempts: Vec::new(),
            script_context: None,
            handshake: None,
        }
    }

    /// Sets the local address, for a connection that was passed on.
    pub fn at(self, local: Address) -> Session {
        Session { local: local.into(), ..self }
    }

    /// The client's connection. `None` for datagrams.
    pub fn wire(&self) -> Option<Rc<Wire>> {
        match &self.client {
            Client::Connected(wire) => Some(wire.clone()),
            Client::Sending(_) | Client::Gone => None,
        }
    }

    /// The word before `client` and `proxy` in log lines: `udp ` for datagrams.
    pub fn kind(&self) -> &'static str {
        match self.client {
            Client::Sending(_) => "udp ",
            Client::Connected(_) | Client::Gone => "",
        }
    }

    /// Takes the connection out of the session. `None` if another task holds it too.
    pub fn leave(&mut self) -> Option<Wire> {
        // The address must be read while the socket is here.
        self.local();
        match std::mem::replace(&mut self.client, Client::Gone) {
            Client::Connected(wire) => Rc::try_unwrap(wire).ok(),
            Client::Sending(_) | Client::Gone => None,
        }
    }

    /// Puts TLS on the client's connection. False if there is none.
    pub fn secure(&mut self, secured: Secured) -> bool {
        let Some(wire) = self.leave() else { return false };
        let (stream, _) = wire.part();
        self.client = Client::Connected(Rc::new(Wire::join(stream, Some(secured))));
        true
    }

    /// Settings of its server.
    pub fn conf(&self) -> &'static StreamConf {
        &self.server.conf
    }

    /// Bytes from the client.
    pub fn bytes_received(&self) -> u64 {
        self.received + self.passed.up.get()
    }

    /// Bytes to the client.
    pub fn bytes_sent(&self) -> u64 {
        self.sent + self.passed.down_sent.get()
    }

    /// Writes to the error log without the description of the session.
    pub fn log_bare(&self, level: Level, text: Arguments<'_>) {
        self.conf().error_log.write(level, Some(self.number), text);
    }

    /// Logs a failed operation. Returns whose fault it was, and notes it in the attempt.
    pub fn log_failed(&self, failed: FailedOperation) -> Blame {
        self.log(failed.level, format_args!("{}", failed.text));
        if let (Some(attempt), Blame::Peer(failure)) = (self.attempts.last(), failed.blame) {
            attempt.fault.set(Some((failure, failed.errno)));
        }
        failed.blame
    }

    /// Appends the session's present action and its description to a log line.
    pub fn describe_moment(&self, line: &mut String) {
        if !self.doing.is_empty() {
            let _ = write!(line, " while {}", self.doing);
        }
        self.describe(line);
    }

    /// Appends the description of the session to a log line.
    pub fn describe(&self, line: &mut String) {
        let local = &self.event_loop.site.listens()[self.listen].address;
        let _ = write!(line, ", {}client: {}, server: {local}", self.kind(), self.peer().host());
        // Unread bytes of a connection have been received too. A first datagram is already counted.
        let waiting = if self.wire().is_some() { self.unread.len() as u64 } else { 0 };
        let (received, sent) = (self.bytes_received() + waiting, self.bytes_sent());
        if let Some(attempt) = self.attempts.last() {
            let (from, to) = match attempt.whole {
                Some(_) => (attempt.received, attempt.sent),
                None => (self.passed.down.get(), self.passed.up_sent.get() + attempt.sent),
            };
            let _ = write!(
                line,
                ", upstream: \"{}\", bytes from/to client:{received}/{sent}, \
                 bytes from/to upstream:{from}/{to}",
                attempt.name
            );
        } else if self.is_proxied {
            let _ = write!(
                line,
                ", bytes from/to client:{received}/{sent}, bytes from/to upstream:0/0"
            );
        }
    }
}

impl Subject for Session {
    const BLOCK: &'static str = "stream";

    fn define(variables: &mut Variables<Session>) {
        variables::define(variables);
    }

    fn prefixed(name: &[u8]) -> Option<Get<Session>> {
        variables::prefixed(name)
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
        if log.enabled(level) {
            let mut line = text.to_string();
            self.describe_moment(&mut line);
            log.write(level, Some(self.number), format_args!("{line}"));
        }
    }

    fn peer(&self) -> &Address {
        self.real.as_ref().unwrap_or(&self.connected)
    }

    fn local(&self) -> &Address {
        if let Client::Sending(place) = &self.client {
            return place.flow.local();
        }
        let find = || Address::local_of(self.wire()?.socket());
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

/// Logs a failed read from the client, or its time-out.
pub fn log_client_error(s: &Session, error: &io::Error, doing: &str) {
    if fault::is_late(error) {
        let cause = fault::late();
        s.log(Level::Info, format_args!("client timed out {} while {doing}", Cause(&cause)));
    } else {
        let call = failed_call("recv()", error);
        s.log(Level::Info, format_args!("{call} failed {} while {doing}", Cause(error)));
    }
}

/// Waits for `what`, unless a datagram session must end before. A TCP session goes on if its client
/// closes meanwhile, as in nginx: the bytes that the client sent before must still be relayed.
pub async fn unless_ended<T>(s: &Session, what: impl Future<Output = T>) -> Option<T> {
    let what = Box::pin(what);
    match &s.client {
        Client::Connected(_) | Client::Gone => Some(what.await),
        Client::Sending(place) => match either(what, std::pin::pin!(place.flow.ended())).await {
            Either::Left(done) => Some(done),
            Either::Right(_) => None,
        },
    }
}
