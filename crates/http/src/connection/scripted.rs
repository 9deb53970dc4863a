//! Handshakes with scripts (`ssl_client_hello_by_lua` and others).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use weir_engine::{Either, either};
use weir_ssl::server::{AcceptError, Decided, ServerContext, choose};
use weir_tls::{ExternalSessions, HandshakeError, Hello, PendingHandshake};

use crate::carrier::Conn;
use crate::event_loop::LoopState;
use crate::phases::handshake::HandshakePhases;
use crate::site::Server;

/// The result of the scripts.
pub enum Scripted {
    /// The client resumes a session: no script chooses its certificate.
    Resumed(PendingHandshake, Arc<ServerContext>),
    /// The handshake goes on.
    Decided(Box<(Hello, Arc<ServerContext>, Decided)>),
}

/// Lets scripts store the TLS session after the handshake. Returns none if the connection is held elsewhere.
pub async fn store(
    conn: Conn,
    event_loop: &Rc<LoopState>,
    sessions: Arc<ExternalSessions>,
) -> Option<Conn> {
    if sessions.created().is_none() {
        return Some(conn);
    }
    let server = match &conn.tls {
        Some(secure) => event_loop.site.server(secure.server),
        None => event_loop.site.default_server(&conn),
    };
    let conn = Rc::new(conn);
    HandshakePhases::session_store(conn.clone(), event_loop.clone(), server, sessions).await;
    Rc::try_unwrap(conn).ok()
}

/// Runs the scripts of a handshake, with a deadline. `default` is the default server of the address, `own` the one that the
/// client names.
pub async fn run(
    conn: &Rc<Conn>,
    event_loop: &Rc<LoopState>,
    [default, own]: [&'static Server; 2],
    hello: Hello,
    until: Instant,
) -> Result<Scripted, AcceptError> {
    let handle = &event_loop.handle;
    let left = until.saturating_duration_since(handle.now());
    let phases = HandshakePhases::new(conn.clone(), event_loop.clone(), &hello, true);
    let deciding = decide(conn, phases, [default, own], hello);
    match either(deciding, handle.sleep(left)).await {
        Either::Left(scripted) => scripted,
        Either::Right(()) => Err(HandshakeError::TimedOut.into()),
    }
}

async fn decide(
    conn: &Conn,
    mut phases: HandshakePhases,
    [default, own]: [&'static Server; 2],
    hello: Hello,
) -> Result<Scripted, AcceptError> {
    let socket = conn.wire().socket();
    if let Err(failure) = phases.client_hello(default).await {
        failure.send_alert(hello, socket);
        return Err(failure);
    }
    let (ssl, default_ssl) = (own.conf.ssl.as_ref(), default.conf.ssl.as_ref());
    let (context, hello) = choose(ssl, default_ssl, hello, socket)?;
    let is_own = ssl.is_some_and(|ssl| Arc::ptr_eq(ssl, &context));
    let server = if is_own { own } else { default };
    if let Err(failure) = phases.session_fetch(server, &context).await {
        failure.send_alert(hello, socket);
        return Err(failure);
    }
    if phases.chooses(server) {
        if let Some(decided) = phases.decided()
            && let Some(pending) = context.resume(&hello, decided, socket).await
        {
            return Ok(Scripted::Resumed(pending, context));
        }
        if let Err(failure) = phases.certificate(server, &context).await {
            failure.send_alert(hello, socket);
            return Err(failure);
        }
    }
    Ok(Scripted::Decided(Box::new((hello, context, phases.into_decided()))))
}
