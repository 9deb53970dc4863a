//! TLS handshakes with Lua scripts.

use std::sync::Arc;
use std::time::Instant;

use weir_engine::{Either, Stream, either};
use weir_ssl::server::{AcceptError, Decided, Handshake, ServerContext, choose};
use weir_tls::{HandshakeError, Hello, PendingHandshake, Versions};

use crate::scripts;
use crate::session::Session;
use crate::site::Server;
use crate::tls::Accepted;

/// The result of the scripts.
enum Scripted {
    /// The client resumes a TLS session, so no script chooses a certificate.
    Resumed(PendingHandshake, Arc<ServerContext>),
    /// The handshake goes on with these settings.
    Decided(Box<(Hello, Arc<ServerContext>, Decided)>),
}

/// Runs the scripts after the ClientHello, and finishes the handshake. `default` is the default
/// server of the address; the session already has the server that the client named.
pub async fn answer(
    s: &mut Session,
    default: &'static Server,
    hello: Hello,
    socket: &Stream,
    until: Instant,
) -> Result<Accepted, AcceptError> {
    let handle = s.event_loop.handle.clone();
    let left = until.saturating_duration_since(handle.now());
    let decided = match either(decide(s, default, hello, socket), handle.sleep(left)).await {
        Either::Left(decided) => decided,
        Either::Right(()) => Err(HandshakeError::TimedOut.into()),
    };
    s.handshake = None;
    let (hello, context, decided) = match decided? {
        Scripted::Resumed(pending, context) => {
            let secured = pending.finish(socket, until).await?;
            return Ok(Accepted { context, secured, demanded: false });
        }
        Scripted::Decided(with) => *with,
    };
    let demanding = decided.demand.as_ref().map(|demand| context.demanding(demand));
    let (names, event_loop) = (context.certificates.names(s), s.event_loop.clone());
    let certificates = &event_loop.certificates;
    let pending = context.start_handshake(hello, socket, names, certificates, decided).await?;
    let secured = pending.finish(socket, until).await?;
    let demanded = demanding.is_some();
    Ok(Accepted { context: demanding.unwrap_or(context), secured, demanded })
}

async fn decide(
    s: &mut Session,
    default: &'static Server,
    hello: Hello,
    socket: &Stream,
) -> Result<Scripted, AcceptError> {
    let (own, raw) = (s.server, hello.raw());
    let context = default.conf.tls.context.clone();
    s.handshake = Some(Box::new(Handshake { hello: raw, context, ..Handshake::default() }));
    if default.conf.scripts.hello {
        s.server = default;
        let seen = scripts::client_hello(s).await;
        s.server = own;
        let versions = s.handshake.as_ref().and_then(|handshake| handshake.decided.versions);
        let seen = seen.and(match versions {
            Some(Versions::NONE) => Err(AcceptError::NoVersion),
            _ => Ok(()),
        });
        if let Err(failure) = seen {
            failure.send_alert(hello, socket);
            return Err(failure);
        }
    }
    let ssl = own.conf.tls.context.as_ref();
    let (context, hello) = choose(ssl, default.conf.tls.context.as_ref(), hello, socket)?;
    let is_own = ssl.is_some_and(|ssl| Arc::ptr_eq(ssl, &context));
    let server = if is_own { own } else { default };
    if server.conf.scripts.certificate {
        if let Some(handshake) = &s.handshake
            && let Some(pending) = context.resume(&hello, &handshake.decided, socket).await
        {
            return Ok(Scripted::Resumed(pending, context));
        }
        if let Some(handshake) = &mut s.handshake {
            handshake.context = Some(context.clone());
        }
        s.server = server;
        let chosen = scripts::certificate(s).await;
        s.server = own;
        if let Err(failure) = chosen {
            failure.send_alert(hello, socket);
            return Err(failure);
        }
    }
    let decided = s.handshake.take().map(|handshake| handshake.decided).unwrap_or_default();
    Ok(Scripted::Decided(Box::new((hello, context, decided))))
}
