//! One session, and its answers to variables.

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

/// One try to reach a server.
#[derive(Debug)]
pub struct Attempt {
    /// The server's name, or the group's if no server of it was available.
    pub name: Arc<str>,
    /// When it began.
    pub started: Instant,
    /// The handshake with the server has begun.
    pub secures: bool,
    /// How long until there was a connection.
    pub connect: Option<Duration>,
    /// How long until the server's first bytes.
    pub first: Option<Duration>,
    /// How long in all.
    pub whole: Option<Duration>,
    /// Bytes to the server.
    pub sent: u64,
    /// Bytes from the server.
    pub received: u64,
    /// Why the server failed, and the error number of the system call.
    pub fault: Cell<Option<(Failure, Option<i32>)>>,
}

/// What a session has of its client.
#[derive(Clone)]
pub enum Client {
    /// A connection.
    Connected(Rc<Wire>),
    /// It is not this session's any more.
    Gone,
    /// Datagrams.
    Sending(Rc<FlowGuard>),
}

/// One session.
pub struct Session {
    /// The loop's state.
    pub event_loop: Rc<LoopState>,
    /// The server with the settings that count.
    pub server: &'static Server,
    /// Its client.
    pub client: Client,
    /// Which listening socket it came from.
    pub listen: usize,
    /// The address that connected.
    pub connected: Address,
    /// The client behind that address.
    pub real: Option<Address>,
    local: OnceCell<Address>,
    number: u64,
    /// When it was accepted.
    pub started: Instant,
    values: VariableValues,
    captures: Captures,
    /// What a balancer in front said.
    pub proxy: Option<Box<ProxyHeader>>,
    /// What was read of the client before the session leads anywhere.
    pub unread: Vec<u8>,
    /// What the client's first message said.
    pub hello: Option<Hello>,
    /// One is looked for, and nothing speaks against it yet.
    pub looked: bool,
    /// What the handshake with the client has shown.
    pub shown: Option<Box<Shown>>,
    /// What `limit_conn` came to.
    pub held: HeldPlaces,
    /// What counts it for status pages.
    pub counting: Option<Counting>,
    /// What is being done with it, for the log; nothing where a message says so itself.
    pub doing: &'static str,
    /// It is to lead to a server.
    pub leads: bool,
    /// The client has been sent a text, and may not have read it when the connection ends.
    pub answered: bool,
    /// It has come to its end in order.
    pub ending: bool,
    /// How it ended, once it has.
    pub outcome: Option<Outcome>,
    /// Bytes from the client that were read before it was passed on.
    pub received: u64,
    /// Bytes to the client besides those that were passed.
    pub sent: u64,
    /// How often `pass` has handed it over.
    pub handed: u32,
    /// What is passing.
    pub passed: Rc<PassedBytes>,
    /// The tries to reach a server.
    pub attempts: Vec<Attempt>,
    /// What its scripts keep with it.
    pub seat: Option<Box<dyn Any>>,
    /// The handshake, while scripts decide in it.
    pub handshake: Option<Box<Handshake>>,
}

impl Session {
    /// A session that begins.
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
            looked: false,
            shown: None,
            held: HeldPlaces::default(),
            counting: server.conf.status_zone.as_ref().map(StatusZone::begin),
            doing: "",
            leads: false,
            answered: false,
            ending: false,
            outcome: None,
            received: 0,
            sent: 0,
            handed: 0,
            passed,
            attempts: Vec::new(),
            seat: None,
            handshake: None,
        }
    }

    /// The same at this address.
    pub fn at(self, local: Address) -> Session {
        Session { local: local.into(), ..self }
    }

    /// Its client's connection, where there is one.
    pub fn wire(&self) -> Option<Rc<Wire>> {
        match &self.client {
            Client::Connected(wire) => Some(wire.clone()),
            Client::Sending(_) | Client::Gone => None,
        }
    }

    /// `udp `, as the log begins where no connection is meant.
    pub fn kind(&self) -> &'static str {
        match self.client {
            Client::Sending(_) => "udp ",
            Client::Connected(_) | Client::Gone => "",
        }
    }

    /// Takes the connection away, if no other task holds it.
    pub fn leave(&mut self) -> Option<Wire> {
        // It is known from now on.
        self.local();
        match std::mem::replace(&mut self.client, Client::Gone) {
            Client::Connected(wire) => Rc::try_unwrap(wire).ok(),
            Client::Sending(_) | Client::Gone => None,
        }
    }

    /// From now on TLS is spoken with the client; false if there is no connection.
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

    /// Writes to the error log, without what else is said of it.
    pub fn log_bare(&self, level: Level, text: Arguments<'_>) {
        self.conf().error_log.write(level, Some(self.number), text);
    }

    /// Logs a failed operation, and says whose fault it was.
    pub fn log_failed(&self, failed: FailedOperation) -> Blame {
        self.log(failed.level, format_args!("{}", failed.text));
        if let (Some(attempt), Blame::Peer(failure)) = (self.attempts.last(), failed.blame) {
            attempt.fault.set(Some((failure, failed.errno)));
        }
        failed.blame
    }

    /// Appends what the error log is told of the session, and what it is doing.
    pub fn describe_moment(&self, line: &mut String) {
        if !self.doing.is_empty() {
            let _ = write!(line, " while {}", self.doing);
        }
        self.describe(line);
    }

    /// Appends what the error log is told of the session.
    pub fn describe(&self, line: &mut String) {
        let local = &self.event_loop.site.listens()[self.listen].address;
        let _ = write!(line, ", {}client: {}, server: {local}", self.kind(), self.peer().host());
        // Bytes of a connection that wait for a server have come as well. A first datagram counts from the beginning.
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
        } else if self.leads {
            let _ = write!(
                line,
                ", bytes from/to client:{received}/{sent}, bytes from/to upstream:0/0"
            );
        }
    }
}

impl Subject for Session {
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

/// Logs that a client took too long, or what failed.
pub fn complain(s: &Session, error: &io::Error, doing: &str) {
    if fault::is_late(error) {
        let cause = fault::late();
        s.log(Level::Info, format_args!("client timed out {} while {doing}", Cause(&cause)));
    } else {
        let call = failed_call("recv()", error);
        s.log(Level::Info, format_args!("{call} failed {} while {doing}", Cause(error)));
    }
}

/// Waits for something, unless a session of datagrams is to end before. A connection that its client closes
/// meanwhile goes on, as in nginx: what the client sent before is still to arrive.
pub async fn unless_over<T>(s: &Session, what: impl Future<Output = T>) -> Option<T> {
    let what = Box::pin(what);
    match &s.client {
        Client::Connected(_) | Client::Gone => Some(what.await),
        Client::Sending(place) => match either(what, std::pin::pin!(place.flow.over())).await {
            Either::Left(done) => Some(done),
            Either::Right(_) => None,
        },
    }
}
