//! The phases of a handshake, in which modules choose what the client is shown.

use std::rc::Rc;
use std::sync::Arc;

use weir_ssl::server::{AcceptError, Decided, Handshake, ServerContext};
use weir_tls::{ExternalSessions, Hello, Versions};

use crate::carrier::Conn;
use crate::event_loop::LoopState;
use crate::request::step::{HandshakeHandler, Named};
use crate::request::{Request, Scratch};
use crate::site::{Server, Site};

/// The phases of one handshake, with a request that stands for the connection.
pub struct HandshakePhases(Box<Request>);

/// Whether a server has anything to decide in a handshake.
pub fn is_wanted(site: &'static Site, server: &Server) -> bool {
    let plan = &site.location(server.location).plan;
    let sessions = !plan.session_fetch.is_empty() || !plan.session_store.is_empty();
    !plan.client_hello.is_empty() || !plan.certificate.is_empty() || sessions
}

impl HandshakePhases {
    /// For a connection that begins like this. `is_watched`: a client that closes the socket has left.
    pub fn new(
        conn: Rc<Conn>,
        event_loop: Rc<LoopState>,
        hello: &Hello,
        is_watched: bool,
    ) -> HandshakePhases {
        let mut r = Box::new(Request::new(conn, event_loop, Scratch::default()));
        let handshake = Handshake { hello: hello.raw(), is_watched, ..Handshake::default() };
        r.contexts.handshake = Some(Box::new(handshake));
        HandshakePhases(r)
    }

    /// The handshake of a connection with such sessions is over: what it has begun is stored.
    pub async fn session_store(
        conn: Rc<Conn>,
        event_loop: Rc<LoopState>,
        server: &'static Server,
        sessions: Arc<ExternalSessions>,
    ) {
        let mut r = Box::new(Request::new(conn, event_loop, Scratch::default()));
        let decided = Decided { sessions: Some(sessions), ..Decided::default() };
        r.contexts.handshake = Some(Box::new(Handshake { decided, ..Handshake::default() }));
        let handlers = &r.site.location(server.location).plan.session_store;
        // It is too late for an error.
        let _ = HandshakePhases(r).decide(server, server.conf.ssl.as_ref(), handlers).await;
    }

    /// The client's first message is there; the server is the default one of the address.
    ///
    /// # Errors
    ///
    /// The handshake ends.
    pub async fn client_hello(&mut self, server: &'static Server) -> Result<(), AcceptError> {
        let handlers = &self.0.site.location(server.location).plan.client_hello;
        self.decide(server, server.conf.ssl.as_ref(), handlers).await?;
        match self.handshake().decided.versions {
            Some(Versions::NONE) => Err(AcceptError::NoVersion),
            _ => Ok(()),
        }
    }

    /// Whether the certificate of this server is chosen anew for each client.
    pub fn chooses(&self, server: &Server) -> bool {
        !self.0.site.location(server.location).plan.certificate.is_empty()
    }

    /// The certificate of this server would be shown.
    ///
    /// # Errors
    ///
    /// The handshake ends.
    pub async fn certificate(
        &mut self,
        server: &'static Server,
        context: &Arc<ServerContext>,
    ) -> Result<(), AcceptError> {
        let handlers = &self.0.site.location(server.location).plan.certificate;
        self.decide(server, Some(context), handlers).await
    }

    /// The client may resume a session by its id, or begins one. Then the module knows where sessions are.
    ///
    /// # Errors
    ///
    /// The handshake ends.
    pub async fn session_fetch(
        &mut self,
        server: &'static Server,
        context: &Arc<ServerContext>,
    ) -> Result<(), AcceptError> {
        let plan = &self.0.site.location(server.location).plan;
        if plan.session_fetch.is_empty() && plan.session_store.is_empty() {
            return Ok(());
        }
        let handshake = self.handshake();
        if !context.keeps_by_id(&handshake.hello, &handshake.decided) {
            return Ok(());
        }
        handshake.decided.sessions = Some(Arc::default());
        match handshake.hello.session.is_empty() {
            true => Ok(()),
            false => self.decide(server, Some(context), &plan.session_fetch).await,
        }
    }

    /// What is decided so far.
    pub fn decided(&self) -> Option<&Decided> {
        self.0.contexts.handshake.as_ref().map(|handshake| &handshake.decided)
    }

    /// The decisions.
    pub fn into_decided(mut self) -> Decided {
        std::mem::take(&mut self.handshake().decided)
    }

    fn handshake(&mut self) -> &mut Handshake {
        self.0.contexts.handshake.get_or_insert_default()
    }

    /// The settings are this server's from now on. What was said of another one's certificates is forgotten.
    async fn decide(
        &mut self,
        server: &'static Server,
        context: Option<&Arc<ServerContext>>,
        handlers: &[Named<HandshakeHandler>],
    ) -> Result<(), AcceptError> {
        if handlers.is_empty() {
            return Ok(());
        }
        (self.0.server, self.0.location) = (server, self.0.site.location(server.location));
        let handshake = self.handshake();
        let same = |own: &Arc<ServerContext>| context.is_some_and(|new| Arc::ptr_eq(own, new));
        if !handshake.context.as_ref().is_some_and(same) {
            handshake.decided.certificates = None;
            handshake.context = context.cloned();
        }
        for handler in handlers {
            (handler.run)(&mut self.0).await?;
        }
        Ok(())
    }
}
