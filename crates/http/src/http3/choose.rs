//! Chooses the TLS configuration of a connection by the server name in the ClientHello.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};

use weir_engine::{Either, either};
use weir_quic::ChosenConfig;
use weir_ssl::server::{AcceptError, Certificates, Decided, FileNames, ServerContext, Shown};
use weir_tls::quic::{QuicAlert, alert};
use weir_tls::{HandshakeError, Hello};

use super::link::Found;
use crate::address::Address;
use crate::carrier::{Conn, Resting, Secure};
use crate::event_loop::LoopState;
use crate::phases::handshake::HandshakePhases;
use crate::request::{Request, Scratch};

/// The log's text for a handshake that `ssl_reject_handshake` refuses.
pub const REJECTED: &str = "handshake rejected";

/// Chooses the TLS configuration by the server name, where no certificate has to be loaded.
pub fn choose(listen: usize, ip: Option<IpAddr>, mut hello: Hello, found: &Found) -> ChosenConfig {
    let (secure, context) = find(listen, ip, &mut hello)?;
    let Certificates::Fixed(config) = &context.quic else { return Err(missing()) };
    *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(secure);
    Ok(config.clone())
}

/// The server of a ClientHello, and its TLS context.
fn find(
    listen: usize,
    ip: Option<IpAddr>,
    hello: &mut Hello,
) -> Result<(Secure, Arc<ServerContext>), QuicAlert> {
    let Some(event_loop) = LoopState::current() else {
        return Err(QuicAlert::new(alert::INTERNAL_ERROR, "the loop has ended".to_owned()));
    };
    let site = event_loop.site;
    let default = site.default_at(listen, ip);
    let shown = Shown::take(hello);
    let number = site.number;
    let mut secure = Secure::new(default, number, shown);
    if let Some(host) = secure.shown.host() {
        match site.server_named_at(listen, ip, host.as_bytes()) {
            Ok(None) => {}
            Ok(Some(server)) => (secure.server, secure.chosen) = (server, true),
            Err(gave_up) => return Err(QuicAlert::new(alert::INTERNAL_ERROR, gave_up.to_string())),
        }
    }
    let own = site.server(secure.server).conf.ssl.as_ref();
    if own.is_some_and(|context| context.reject) {
        return Err(QuicAlert::new(alert::UNRECOGNIZED_NAME, REJECTED));
    }
    let context = own.filter(|context| context.has_certificates());
    let context = context.or(site.server(default).conf.ssl.as_ref()).ok_or_else(missing)?;
    if context.lacks_quic() {
        return Err(QuicAlert::new(alert::PROTOCOL_VERSION, "unsupported protocol"));
    }
    secure.shown.context = Some(context.clone());
    Ok((secure, context.clone()))
}

fn missing() -> QuicAlert {
    QuicAlert::new(alert::HANDSHAKE_FAILURE, "no suitable certificate")
}

/// A handshake whose certificates may have to be loaded.
pub struct ConfigLoader {
    /// The client's address.
    pub peer: Address,
    /// The address of this host that it sends to.
    pub local: Address,
    /// The listening socket's number.
    pub listen: usize,
    /// A socket whose peer is closed, since a [`Conn`] needs a socket.
    pub closed: Arc<OwnedFd>,
    /// Receives the chosen server.
    pub found: Found,
}

impl ConfigLoader {
    /// Finds the TLS context for the ClientHello, runs its scripts and loads its certificates.
    pub async fn config(self, mut hello: Hello) -> ChosenConfig {
        let (secure, context) = find(self.listen, self.local.ip(), &mut hello)?;
        let ended = || QuicAlert::new(alert::INTERNAL_ERROR, "the loop has ended");
        let event_loop = LoopState::current().ok_or_else(ended)?.newest();
        let (server, number) = (secure.server, event_loop.next_connection());
        let secure = Arc::new(secure);
        let conn = || self.conn(&event_loop, number, &secure);
        let names = match context.quic.is_computed() {
            true => names(conn()?, &event_loop, &context),
            false => FileNames::new(),
        };
        let decided = match context.is_scripted() {
            true => self.scripts(conn()?, &event_loop, &context, &hello).await,
            false => Ok(Decided::default()),
        };
        let mut judge = None;
        let loaded = match decided {
            Err(failure) => Err(failure),
            Ok(decided) => {
                judge = decided.demand.as_ref().map(|demand| context.demanding(demand));
                let loaded = &event_loop.certificates;
                let config = context.quic.config(names, &event_loop.handle, loaded).await;
                config.and_then(|config| context.decide_over_quic(config, decided))
            }
        };
        let config = loaded.map_err(|failure| {
            failure.count(&event_loop.metrics);
            let log = &event_loop.site.location(event_loop.site.server(server).location).conf.core;
            let (client, local) = (self.peer.host(), &self.local);
            let text = format_args!("{failure}, client: {client}, server: {local}");
            log.error_log.write(failure.level(), Some(number), text);
            QuicAlert::new(alert::INTERNAL_ERROR, "the certificate could not be loaded")
        })?;
        let mut secure = Arc::try_unwrap(secure).map_err(|_| ended())?;
        secure.shown.context = judge.or(secure.shown.context.take());
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(secure);
        Ok(config)
    }

    /// A [`Conn`] for variables and scripts, before the connection has begun.
    fn conn(
        &self,
        event_loop: &LoopState,
        number: u64,
        secure: &Arc<Secure>,
    ) -> Result<Rc<Conn>, QuicAlert> {
        let now = event_loop.handle.now();
        let resting = Resting::new(self.peer.clone(), self.listen, number, now);
        let full = |_| QuicAlert::new(alert::INTERNAL_ERROR, "the loop has no room");
        let socket = event_loop.handle.stream_in_place(self.closed.clone()).map_err(full)?;
        let mut conn = resting.before_quic(socket, self.local.clone());
        conn.tls = Some(secure.clone());
        Ok(Rc::new(conn))
    }

    /// Runs the scripts of the handshake, within `client_header_timeout`.
    async fn scripts(
        &self,
        conn: Rc<Conn>,
        event_loop: &Rc<LoopState>,
        context: &Arc<ServerContext>,
        hello: &Hello,
    ) -> Result<Decided, AcceptError> {
        let site = event_loop.site;
        let own = site.default_server(&conn);
        let default = site.server(site.default_at(self.listen, self.local.ip()));
        let is_own = own.conf.ssl.as_ref().is_some_and(|ssl| Arc::ptr_eq(ssl, context));
        let server = if is_own { own } else { default };
        let mut phases = HandshakePhases::new(conn, event_loop.clone(), hello, false);
        let deciding = async move {
            phases.client_hello(default).await?;
            phases.certificate(server, context).await?;
            Ok(phases.into_decided())
        };
        let late = event_loop.handle.sleep(default.conf.client_header_timeout);
        match either(deciding, late).await {
            Either::Left(decided) => decided,
            Either::Right(()) => Err(HandshakeError::TimedOut.into()),
        }
    }
}

/// The names of the certificate files. Their variables are evaluated for a request without a head.
fn names(conn: Rc<Conn>, event_loop: &Rc<LoopState>, context: &ServerContext) -> FileNames {
    let mut r = Request::new(conn, event_loop.clone(), Scratch::default());
    context.quic.names(&mut r)
}
