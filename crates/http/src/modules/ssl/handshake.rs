//! From an accepted socket to a connection with TLS.

use std::fmt;
use std::rc::Rc;

use weir_log::Level;
use weir_proto::proxy_protocol;
use weir_tls::x509::{Fault, Purpose};
use weir_tls::{Begin, HandshakeError, Hello};

use super::context::Certificates;
use super::{Context, Verify, ocsp};
use crate::config::site::Server;
use crate::connection::Conn;
use crate::regex::GaveUp;
use crate::worker::Worker;

/// What the handshake has shown, for as long as the connection lives.
#[derive(Debug)]
pub struct Secure {
    /// Who answers: the server that the client named, or the default.
    pub server: &'static Server,
    /// `$ssl_server_name`, where it named one that is served here.
    pub chosen: bool,
    /// The name that the client gave.
    pub server_name: Option<Box<str>>,
    /// The client speaks no TLS.
    pub plain: bool,
    /// By whose settings the handshake went, and the client's certificate was judged.
    pub context: Option<&'static Context>,
    /// What is wrong with the client's certificate.
    pub fault: Option<Fault>,
    /// What the client offered: ciphers, curves.
    pub ciphers: Box<[u16]>,
    /// See `ciphers`.
    pub curves: Box<[u16]>,
    /// See `ciphers`: signature schemes.
    pub schemes: Box<[u16]>,
}

impl Secure {
    fn new(server: &'static Server) -> Secure {
        Secure {
            server,
            chosen: false,
            server_name: None,
            plain: false,
            context: None,
            fault: None,
            ciphers: Box::default(),
            curves: Box::default(),
            schemes: Box::default(),
        }
    }
}

/// Goes through the handshake on a new connection. With it come first bytes of a client that speaks no TLS;
/// nothing comes of one that goes away, or is refused.
pub async fn handshake(conn: Conn, worker: &Rc<Worker>) -> Option<(Conn, Vec<u8>)> {
    let default = worker.site.default_server(&conn);
    let until = worker.handle.now() + default.conf.client_header_timeout;
    conn.stream.set_deadline(Some(until));
    let outcome = match proxy_header(&conn, worker).await {
        Ok(bytes) => begin(conn, worker, default, bytes).await,
        Err(error) => Err((Some(conn), error)),
    };
    match outcome {
        Ok((conn, bytes)) => {
            conn.stream.set_deadline(None);
            Some((conn, bytes))
        }
        Err((conn, error)) => {
            if let Some(conn) = conn {
                say(&conn, worker, default, &error);
            }
            None
        }
    }
}

/// Why there is no connection.
enum Failure {
    Handshake(HandshakeError),
    ProxyProtocol(proxy_protocol::HeaderError),
    /// The server has no certificate to show.
    NoCertificate,
    /// A certificate with variables in its name could not be loaded.
    Certificate(String),
    /// `ssl_reject_handshake`
    Rejected,
    /// A pattern among the servers' names could not be tried to its end.
    NameUndecided(GaveUp),
}

/// What is left of a connection whose handshake failed.
type Refusal = (Option<Conn>, Failure);

impl From<HandshakeError> for Failure {
    fn from(error: HandshakeError) -> Self {
        Failure::Handshake(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Handshake(error) => write!(f, "{error} while SSL handshaking"),
            Failure::ProxyProtocol(error) => write!(f, "{error} while reading PROXY protocol"),
            Failure::Certificate(text) => write!(f, "{text} while SSL handshaking"),
            Failure::NameUndecided(text) => write!(f, "{text} while SSL handshaking"),
            Failure::NoCertificate => f.write_str(
                "SSL_do_handshake() failed (SSL: no suitable certificate) while SSL handshaking",
            ),
            Failure::Rejected => f.write_str(
                "SSL_do_handshake() failed (SSL: unrecognized name) while SSL handshaking",
            ),
        }
    }
}

fn say(conn: &Conn, worker: &Worker, server: &'static Server, failure: &Failure) {
    let level = match failure {
        Failure::ProxyProtocol(_) | Failure::Certificate(_) => Level::Error,
        Failure::NameUndecided(_) => Level::Alert,
        _ => Level::Info,
    };
    let log = &worker.site.location(server.location).conf.core.error_log;
    if log.enabled(level) {
        let (client, local) = (conn.peer.host(), conn.local());
        let text = format_args!("{failure}, client: {client}, server: {local}");
        log.write(level, Some(conn.number), text);
    }
}

/// Takes the header that a balancer puts before the handshake; what follows it was read, too.
async fn proxy_header(conn: &Conn, worker: &Worker) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    if !worker.site.protocols(conn).proxy_protocol {
        return Ok(bytes);
    }
    loop {
        match proxy_protocol::parse(&bytes) {
            Ok(proxy_protocol::Progress::Done { header, len }) => {
                if let Some(header) = header {
                    let _ = conn.proxy.set(header);
                }
                bytes.drain(..len);
                return Ok(bytes);
            }
            Ok(proxy_protocol::Progress::More) => {}
            Err(error) => return Err(Failure::ProxyProtocol(error)),
        }
        bytes.reserve(1024);
        let (result, back) = conn.stream.recv(bytes).await;
        bytes = back;
        if result.map_err(HandshakeError::from)? == 0 {
            return Err(HandshakeError::Closed.into());
        }
    }
}

async fn begin(
    mut conn: Conn,
    worker: &Rc<Worker>,
    default: &'static Server,
    bytes: Vec<u8>,
) -> Result<(Conn, Vec<u8>), Refusal> {
    let mut secure = Secure::new(default);
    match weir_tls::begin(conn.stream.socket(), bytes).await {
        Err(error) => Err((Some(conn), error.into())),
        Ok(Begin::Plain(bytes)) => {
            secure.plain = true;
            conn.tls = Some(Box::new(secure));
            Ok((conn, bytes))
        }
        Ok(Begin::Hello(mut hello)) => {
            let chosen = choose(&conn, worker, &mut secure, &mut hello);
            conn.tls = Some(Box::new(secure));
            match chosen {
                Ok(()) => accept(conn, worker, default, hello).await,
                Err(gave_up) => Err((Some(conn), Failure::NameUndecided(gave_up))),
            }
        }
    }
}

/// Finds the server that the client names, and keeps what it offers.
fn choose(
    conn: &Conn,
    worker: &Worker,
    secure: &mut Secure,
    hello: &mut Hello,
) -> Result<(), GaveUp> {
    secure.ciphers = std::mem::take(&mut hello.ciphers).into();
    secure.curves = std::mem::take(&mut hello.curves).into();
    secure.schemes = std::mem::take(&mut hello.schemes).into();
    let Some(name) = hello.server_name.take() else { return Ok(()) };
    let bare = name.strip_suffix('.').unwrap_or(&name);
    if let Some(server) = worker.site.server_named(conn, bare.as_bytes())? {
        (secure.server, secure.chosen) = (server, true);
    }
    secure.server_name = Some(name.into());
    Ok(())
}

async fn accept(
    conn: Conn,
    worker: &Rc<Worker>,
    default: &'static Server,
    hello: Hello,
) -> Result<(Conn, Vec<u8>), Refusal> {
    let own = conn.tls.as_ref().and_then(|secure| secure.server.conf.ssl.as_deref());
    if own.is_some_and(|context| context.reject) {
        hello.reject(conn.stream.socket());
        return Err((Some(conn), Failure::Rejected));
    }
    let shown = own.filter(|context| context.has_certificates());
    let Some(context) = shown.or(default.conf.ssl.as_deref()) else {
        return Err((Some(conn), Failure::NoCertificate));
    };
    let (conn, config) = match &context.certificates {
        Certificates::None => return Err((Some(conn), Failure::NoCertificate)),
        Certificates::Fixed(config) => (conn, config.clone()),
        Certificates::Computed(computed) => {
            let loaded = computed.config(conn, worker).await;
            loaded.map_err(|(conn, text)| (conn, Failure::Certificate(text)))?
        }
    };
    let handle = &worker.handle;
    let others_wait = handle.tasks() + handle.parked() > 1;
    match hello.accept(conn.stream.socket(), config, context.slow && others_wait).await {
        Err(error) => Err((Some(conn), error.into())),
        Ok(secured) => {
            let mut conn = conn.secured(secured);
            judge(&mut conn, context, worker).await;
            Ok((conn, Vec::new()))
        }
    }
}

/// What the client's certificate is worth, if it was asked for one and has shown it.
async fn judge(conn: &mut Conn, context: &'static Context, worker: &Worker) {
    if let Some(secure) = &mut conn.tls {
        secure.context = Some(context);
    }
    if context.verify == Verify::Off {
        return;
    }
    let judged = conn.stream.tls(|connection| {
        let chain = connection.peer_certificates();
        let judged = (!chain.is_empty()).then(|| context.authorities.check(chain, Purpose::Client));
        // Who goes on to ask needs the way to the root.
        let kept = |path: Vec<&[u8]>| match &context.ocsp {
            Some(_) => path.into_iter().map(<[u8]>::to_vec).collect(),
            None => Vec::new(),
        };
        judged.map(|path| path.map(kept))
    });
    let fault = match (judged.flatten(), &context.ocsp) {
        (None, _) | (Some(Ok(_)), None) => None,
        (Some(Err(fault)), _) => Some(fault),
        (Some(Ok(path)), Some(ocsp)) => {
            Box::pin(ask(conn, context, ocsp, &path, worker)).await.err()
        }
    };
    if let Some(secure) = &mut conn.tls {
        secure.fault = fault;
    }
}

/// Asks responders, for as long as a client may take for its first request.
async fn ask(
    conn: &Conn,
    context: &Context,
    ocsp: &ocsp::Clients,
    path: &[Vec<u8>],
    worker: &Worker,
) -> Result<(), Fault> {
    let server = worker.site.default_server(conn);
    let waiting = ocsp::Waiting {
        worker,
        log: &worker.site.location(server.location).conf.core.error_log,
        number: conn.number,
        until: worker.handle.now() + server.conf.client_header_timeout,
    };
    ocsp.check(path, &context.authorities, &waiting).await
}
