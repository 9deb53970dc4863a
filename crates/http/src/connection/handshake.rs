//! From an accepted socket to a connection with TLS.

#![expect(clippy::disallowed_methods, reason = "this is the room")]

use std::any::Any;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use weir_acme::tls_challenge_file;
use weir_engine::{Handle, Idle, Stream, Wake};
use weir_metrics::Metric;
use weir_ssl::ocsp::WaitingConnection;
use weir_ssl::server::{
    AcceptError as Refused, Decided, FileNames, ServerContext, Shown, choose, proof,
};
use weir_tls::{
    ExternalSessions, FirstBytes, HandshakeError, HandshakeProgress, Hello, PendingHandshake,
    ProxyHeaderError, ServerConfig,
};

use super::CLOSED;
use super::head::without_header;
use super::presence::Presence;
use super::scripted::{self, Scripted};
use crate::carrier::{Conn, Resting, Secure};
use crate::event_loop::LoopState;
use crate::phases::handshake::is_wanted;
use crate::regex::GaveUp;
use crate::request::{Request, Scratch};
use crate::site::Server;

/// A connection after its handshake, with the first bytes of a client that does not speak TLS.
pub type Done = (Conn, Presence, Vec<u8>);

/// Makes the handshake on a new connection, from which these bytes were read. Returns none if the client leaves or is refused,
/// or another loop takes the connection.
pub async fn handshake(
    conn: Conn,
    presence: Presence,
    event_loop: &Rc<LoopState>,
    bytes: Vec<u8>,
) -> Option<Done> {
    let default = event_loop.site.default_server(&conn);
    let until = event_loop.handle.now() + default.conf.client_header_timeout;
    conn.wire().set_deadline(Some(until));
    let outcome = match proxy_header(&conn, event_loop, bytes).await {
        Ok(bytes) => begin(conn, presence, event_loop, default, bytes, until).await,
        Err(error) => Err((Some(conn), error)),
    };
    ended(outcome, event_loop, default)
}

/// Continues a handshake that another loop has begun.
pub async fn go_on(
    conn: Conn,
    presence: Presence,
    event_loop: &Rc<LoopState>,
    begun: Begun,
) -> Option<Done> {
    let default = event_loop.site.default_server(&conn);
    let outcome = answer(conn, presence, event_loop, begun, true).await;
    ended(outcome, event_loop, default)
}

fn ended(
    outcome: HandshakeResult,
    event_loop: &LoopState,
    default: &'static Server,
) -> Option<Done> {
    match outcome {
        Ok(None) => None,
        Ok(Some((conn, presence, bytes))) => {
            conn.wire().set_deadline(None);
            if let Some(resumed) = conn.with_tls(|tls| tls.is_resumed()) {
                event_loop.metrics.add(Metric::TlsHandshakes, 1);
                event_loop.metrics.add(Metric::TlsResumed, resumed.into());
            }
            Some((conn, presence, bytes))
        }
        Err((conn, error)) => {
            match &error {
                Failure::Secure(failure) => failure.count(&event_loop.metrics),
                Failure::ProxyProtocol(error) => {
                    event_loop.metrics.add(Metric::TlsFailed, 1);
                    if !matches!(error, ProxyHeaderError::Invalid(_)) {
                        event_loop.metrics.add(Metric::TlsAbandoned, 1);
                    }
                }
            }
            if let Some(conn) = conn {
                say(&conn, event_loop, default, &error);
            }
            None
        }
    }
}

/// Takes over a connection whose handshake was made by another listener. The client counts as one that named no server: the
/// default server answers, and verifies the client's certificate.
pub fn take_over(conn: &mut Conn, event_loop: &LoopState) {
    let shown = conn.before.as_mut().and_then(Arc::get_mut).and_then(|before| before.shown.take());
    let (server, site) = (event_loop.site.default_id(conn), event_loop.site.number);
    let shown = shown.map(|shown| *shown).unwrap_or_default();
    conn.tls = Some(Arc::new(Secure::new(server, site, shown)));
}

/// Why there is no connection.
enum Failure {
    Secure(Refused),
    ProxyProtocol(ProxyHeaderError),
}

/// The failure of a handshake, with the connection if it still exists.
type FailedHandshake = (Option<Conn>, Failure);

/// The result of a handshake. None if another loop has taken it.
type HandshakeResult = Result<Option<Done>, FailedHandshake>;

impl<F: Into<Refused>> From<F> for Failure {
    fn from(failure: F) -> Self {
        Failure::Secure(failure.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // nginx waits for the first byte before it begins a handshake.
            Failure::Secure(Refused::Handshake(HandshakeError::Silent)) => {
                write!(f, "{CLOSED} while SSL handshaking")
            }
            Failure::Secure(failure) => failure.fmt(f),
            Failure::ProxyProtocol(error) => {
                write!(f, "{} while reading PROXY protocol", without_header(error).1)
            }
        }
    }
}

fn say(conn: &Conn, event_loop: &LoopState, server: &'static Server, failure: &Failure) {
    let level = match failure {
        Failure::Secure(failure) => failure.level(),
        Failure::ProxyProtocol(error) => without_header(error).0,
    };
    let log = &event_loop.site.location(server.location).conf.core.error_log;
    conn.log(event_loop.site, log, level, format_args!("{failure}"));
}

/// Reads the PROXY protocol's header before the handshake. Bytes behind it may have been read, too.
async fn proxy_header(
    conn: &Conn,
    event_loop: &LoopState,
    mut bytes: Vec<u8>,
) -> Result<Vec<u8>, Failure> {
    if !event_loop.site.protocols(conn).proxy_protocol {
        return Ok(bytes);
    }
    let header = conn.wire().read_proxy_header(&mut bytes).await.map_err(Failure::ProxyProtocol)?;
    if let Some(header) = header {
        let _ = conn.proxy.set(header.into());
    }
    Ok(bytes)
}

async fn begin(
    mut conn: Conn,
    presence: Presence,
    event_loop: &Rc<LoopState>,
    default: &'static Server,
    bytes: Vec<u8>,
    until: Instant,
) -> HandshakeResult {
    let server = event_loop.site.default_id(&conn);
    let mut secure = Secure::new(server, event_loop.site.number, Shown::default());
    match weir_tls::read_hello(conn.wire().socket(), bytes, until).await {
        Err(error) => Err((Some(conn), error.into())),
        Ok(FirstBytes::Plain(bytes)) => {
            secure.plain = true;
            conn.tls = Some(Arc::new(secure));
            Ok(Some((conn, presence, bytes)))
        }
        Ok(FirstBytes::Hello(mut hello)) => {
            if hello.is_acme
                && let Some(config) = proof_for(&hello, event_loop).await
            {
                return prove(conn, hello, config, until).await;
            }
            secure.shown = Shown::take(&mut hello);
            let found = find(&conn, event_loop, &mut secure);
            conn.tls = Some(Arc::new(secure));
            match found {
                Ok(()) => accept(conn, presence, event_loop, default, hello, until).await,
                Err(gave_up) => Err((Some(conn), Refused::NameUndecided(gave_up).into())),
            }
        }
    }
}

/// The configuration with the certificate for a tls-alpn-01 challenge, if the client asks for one.
async fn proof_for(hello: &Hello, event_loop: &LoopState) -> Option<Arc<ServerConfig>> {
    let (name, directories) = (hello.server_name.as_deref()?, &event_loop.site.tls_challenges);
    let paths = directories.iter().filter_map(|directory| tls_challenge_file(directory, name));
    proof(paths.collect(), &event_loop.handle).await
}

/// Makes the handshake for a tls-alpn-01 challenge. The connection serves no requests.
async fn prove(
    conn: Conn,
    hello: Hello,
    config: Arc<ServerConfig>,
    until: Instant,
) -> HandshakeResult {
    let pending = hello.start(config, false);
    let shown = match pending {
        Ok(pending) => pending.finish(conn.wire().socket(), until).await.map(drop),
        Err(error) => Err(error),
    };
    match shown {
        Ok(()) => Ok(None),
        Err(error) => Err((Some(conn), error.into())),
    }
}

/// Finds the server that the client names.
fn find(conn: &Conn, event_loop: &LoopState, secure: &mut Secure) -> Result<(), GaveUp> {
    let Some(host) = secure.shown.host() else { return Ok(()) };
    if let Some(server) = event_loop.site.server_named(conn, host.as_bytes())? {
        (secure.server, secure.chosen) = (server, true);
    }
    Ok(())
}

async fn accept(
    conn: Conn,
    presence: Presence,
    event_loop: &Rc<LoopState>,
    default: &'static Server,
    hello: Hello,
    until: Instant,
) -> HandshakeResult {
    let own = conn.tls.as_ref().map_or(default, |secure| event_loop.site.server(secure.server));
    let servers = [default, own];
    if servers.iter().any(|server| is_wanted(event_loop.site, server)) {
        return Box::pin(with_scripts(conn, presence, event_loop, servers, hello, until)).await;
    }
    let (own, default) = (own.conf.ssl.as_ref(), default.conf.ssl.as_ref());
    match choose(own, default, hello, conn.wire().socket()) {
        Ok((context, hello)) => {
            let with = (hello, context, Decided::default());
            agree(conn, presence, event_loop, with, until).await
        }
        Err(failure) => Err((Some(conn), failure.into())),
    }
}

/// The same where scripts decide.
async fn with_scripts(
    conn: Conn,
    presence: Presence,
    event_loop: &Rc<LoopState>,
    servers: [&'static Server; 2],
    hello: Hello,
    until: Instant,
) -> HandshakeResult {
    let conn = Rc::new(conn);
    let outcome = scripted::run(&conn, event_loop, servers, hello, until).await;
    let Ok(conn) = Rc::try_unwrap(conn) else {
        return Err((None, HandshakeError::Closed.into()));
    };
    match outcome {
        Err(failure) => Err((Some(conn), failure.into())),
        Ok(Scripted::Resumed(pending, context)) => {
            let begun = Begun { pending, context, until, handed: None };
            answer(conn, presence, event_loop, begun, false).await
        }
        Ok(Scripted::Decided(with)) => agree(conn, presence, event_loop, *with, until).await,
    }
}

/// Continues the handshake once the server's settings are known.
async fn agree(
    conn: Conn,
    presence: Presence,
    event_loop: &Rc<LoopState>,
    (hello, context, decided): (Hello, Arc<ServerContext>, Decided),
    until: Instant,
) -> HandshakeResult {
    let Some((conn, names)) = names(conn, &context, event_loop) else {
        return Err((None, Refused::NoCertificate.into()));
    };
    let handed = decided.sessions.clone();
    let demanding = decided.demand.as_ref().map(|demand| context.demanding(demand));
    let (socket, certificates) = (conn.wire().socket(), &event_loop.certificates);
    match context.start_handshake(hello, socket, names, certificates, decided).await {
        Err(failure) => Err((Some(conn), failure.into())),
        Ok(pending) => {
            let begun = Begun { pending, context: demanding.unwrap_or(context), until, handed };
            answer(conn, presence, event_loop, begun, false).await
        }
    }
}

/// A handshake that has begun.
pub struct Begun {
    pending: PendingHandshake,
    context: Arc<ServerContext>,
    until: Instant,
    /// Sessions that scripts store.
    handed: Option<Arc<ExternalSessions>>,
}

/// Continues the handshake to its end. `spoke`: the client has sent data that was not received yet.
async fn answer(
    mut conn: Conn,
    mut presence: Presence,
    event_loop: &Rc<LoopState>,
    begun: Begun,
    mut spoke: bool,
) -> HandshakeResult {
    let Begun { mut pending, mut context, until, mut handed } = begun;
    loop {
        if spoke && let Err(error) = pending.receive(conn.wire().socket(), until).await {
            return Err((Some(conn), error.into()));
        }
        pending = match pending.advance(conn.wire().socket(), until).await {
            Err(error) => return Err((Some(conn), error.into())),
            Ok(HandshakeProgress::Done(secured)) => {
                let mut conn = conn.secured(secured);
                judge(&mut conn, &context, event_loop).await;
                if let Some(sessions) = handed {
                    let Some(back) = scripted::store(conn, event_loop, sessions).await else {
                        return Err((None, HandshakeError::Closed.into()));
                    };
                    conn = back;
                }
                return Ok(Some((conn, presence, Vec::new())));
            }
            Ok(HandshakeProgress::Waits(pending)) => pending,
        };
        spoke = true;
        if event_loop.handle.has_steal_group() && !conn.stays() {
            let begun = Begun { pending, context, until, handed };
            let waited = offer(&mut conn, presence, event_loop, begun).await;
            let Some((back, begun)) = waited else { return Ok(None) };
            (presence, pending, context, handed) =
                (back, begun.pending, begun.context, begun.handed);
        }
    }
}

/// A handshake that waits for its client, as another loop may take it.
struct Waits {
    conn: Resting,
    /// There is no other reference, so that the handshake may add to it.
    tls: Option<Arc<Secure>>,
    presence: Presence,
    begun: Begun,
}

impl Idle for Waits {
    fn resume(self: Box<Self>, handle: &Handle, stream: Stream, _: Wake) {
        let Some(event_loop) = LoopState::current() else { return };
        let Waits { mut conn, tls, mut presence, begun } = *self;
        presence.arrive(&mut conn, &event_loop);
        let mut conn = conn.on(stream);
        conn.tls = tls;
        handle.spawn_large(|| super::shaken(conn, presence, event_loop, begun));
    }
}

/// Waits until the client sends data or the timeout is over. Returns none if another loop takes the connection
/// meanwhile. A handshake under way need not make room for other connections.
async fn offer(
    conn: &mut Conn,
    presence: Presence,
    event_loop: &LoopState,
    begun: Begun,
) -> Option<(Presence, Begun)> {
    let grace = begun.until.saturating_duration_since(event_loop.handle.now());
    let tls = conn.tls.take();
    // TLS has not begun, so it has no pending data.
    let waits = Waits { conn: conn.lend()?, tls, presence, begun };
    let (_, idle) = conn.wire().socket().rest_stealable(grace, Box::new(waits)).await?;
    let Waits { conn: lent, tls, presence, begun } = *(idle as Box<dyn Any>).downcast().ok()?;
    conn.take_back(lent);
    conn.tls = tls;
    Some((presence, begun))
}

/// The certificates' file names with their variables evaluated. A request that stands for the handshake provides the
/// values.
fn names(
    conn: Conn,
    context: &ServerContext,
    event_loop: &Rc<LoopState>,
) -> Option<(Conn, FileNames)> {
    if !context.certificates.is_computed() {
        return Some((conn, FileNames::new()));
    }
    let conn = Rc::new(conn);
    let names = {
        let mut r = Request::new(conn.clone(), event_loop.clone(), Scratch::default());
        context.certificates.names(&mut r)
    };
    Some((Rc::try_unwrap(conn).ok()?, names))
}

/// Verifies the client's certificate, if it was asked for one and has sent it. OCSP responders may take as long as a client
/// may take for its first request.
async fn judge(conn: &mut Conn, context: &Arc<ServerContext>, event_loop: &LoopState) {
    let server = event_loop.site.default_server(conn);
    let waiting = WaitingConnection {
        handle: &event_loop.handle,
        log: &event_loop.site.location(server.location).conf.core.error_log,
        number: conn.number,
        until: event_loop.handle.now() + server.conf.client_header_timeout,
    };
    let fault = context.judge(conn.wire(), waiting).await;
    // Before the first request there is no other reference.
    if let Some(secure) = conn.tls.as_mut().and_then(Arc::get_mut) {
        (secure.shown.context, secure.shown.fault) = (Some(Arc::clone(context)), fault);
    }
}
