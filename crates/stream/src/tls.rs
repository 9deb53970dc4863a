//! TLS of sessions: with clients (nginx: ngx_stream_ssl_module) and with upstream servers
//! (`proxy_ssl`).

use std::sync::Arc;
use std::time::Instant;

use weir_conf::{Directive as Line, Error};
use weir_engine::Stream;
use weir_log::Level;
use weir_metrics::Metric;
use weir_proto::proxy_protocol::{Extras, extras};
use weir_ssl::client::{self, Needed, UpstreamTls};
use weir_ssl::ocsp::{LookUp, WaitingConnection};
use weir_ssl::server::{self, AcceptError, ServerContext, Shown, Spoken, TlsSubject, choose};
use weir_ssl::{DirectiveUse, SslDirective};
use weir_tls::x509::cert::Certificate;
use weir_tls::x509::name;
use weir_tls::{FirstBytes, Hello, Negotiated, Secured, refuse_plain};
use weir_upstream::fault::{self, Blame};
use weir_values::{Subject, Template};

use crate::config::StreamScope;
use crate::directives::{Set, StreamDirective};
use crate::preread;
use crate::scripted_handshake;
use crate::session::Session;
use crate::settings::PhaseScripts;
use crate::status::{Outcome, SessionError};

/// The longest name of an ALPN protocol (RFC 7301, section 3.1).
const MAX_ALPN: usize = 255;

const ROWS: &[SslDirective<Session, server::Conf>] = server::rows();

/// `ssl_...` directives that `http` has too.
pub static FOR_CLIENTS: [StreamDirective; ROWS.len()] = {
    let row = StreamDirective { name: "", help: "", set: Set::Line(for_clients) };
    let mut all = [row; ROWS.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] =
            StreamDirective { name: ROWS[i].name, help: ROWS[i].help, set: Set::Line(for_clients) };
        i += 1;
    }
    all
};

fn for_clients(s: &mut StreamScope<'_, '_>, d: &Line) -> Result<(), Error> {
    let used = DirectiveUse { line: d, first: s.first(d) };
    SslDirective::read(ROWS, &mut s.conf.tls.server, used, &mut s.setup.tls())
}

/// Makes a `proxy_ssl_...` directive.
macro_rules! to_servers {
    (settings, $name:expr, $help:literal, $set:expr) => {
        StreamDirective {
            name: $name,
            help: $help,
            set: Set::Line(|s, d| {
                let set: weir_ssl::SetDirective<Session, client::Settings> = $set;
                let used = DirectiveUse { line: d, first: s.first(d) };
                set(&mut s.conf.tls.client, used, &mut s.setup.tls())
            }),
        }
    };
}

/// `proxy_ssl_...` directives that `http` has too.
pub static TO_SERVERS: &[StreamDirective] =
    weir_ssl::client_directives!("proxy_", to_servers, settings);

/// TLS directives that only `stream` has.
pub static OWN: &[StreamDirective] = &[
    StreamDirective {
        name: "ssl_handshake_timeout",
        help: "How long a handshake with a client may take.",
        set: Set::Line(|s, d| {
            s.once(d)?;
            s.conf.tls.handshake_timeout = d.duration()?;
            Ok(())
        }),
    },
    StreamDirective {
        name: "ssl_alpn",
        help: "Protocols to be spoken above TLS, the preferred first; a client that offers none of them is refused.",
        set: Set::Line(|s, d| {
            s.once(d)?;
            if d.args.iter().any(|word| word.bytes.len() > MAX_ALPN) {
                return Err(d.problem("protocol too long"));
            }
            s.conf.tls.alpn = d.args.iter().map(|word| word.bytes.clone()).collect();
            Ok(())
        }),
    },
    StreamDirective {
        name: "proxy_ssl",
        help: "TLS is spoken to servers.",
        set: Set::Line(|s, d| {
            s.once(d)?;
            s.conf.tls.to_servers = d.flag()?;
            Ok(())
        }),
    },
    StreamDirective {
        name: "proxy_ssl_alpn",
        help: "Protocols that servers are offered to speak above TLS.",
        set: Set::Line(|s, d| {
            s.once(d)?;
            let mut reading = s.setup.reading();
            let names = d.args.iter().map(|word| reading.template(d, word));
            let names = names.collect::<Result<Vec<_>, _>>()?;
            if names.iter().filter_map(Template::constant).any(|name| name.len() > MAX_ALPN) {
                return Err(d.problem("protocol too long"));
            }
            s.conf.tls.client.alpn = names;
            Ok(())
        }),
    },
];

/// Builds the TLS settings of a server block, once its directives are read.
pub fn finish(s: &mut StreamScope<'_, '_>) -> Result<(), Error> {
    let conf = &mut s.conf;
    let look_up = LookUp { resolver: conf.resolver.clone(), timeout: conf.resolver_timeout };
    let scripted = s.setup.has_hello_script || conf.scripts.certificate;
    let (tls, reader) = (&mut conf.tls, &mut s.setup.tls());
    let spoken = Spoken { tcp: tls.alpn.clone(), scripted, ..Spoken::default() };
    tls.context = server::build(&tls.server, reader, look_up, spoken, b"STREAM")?;
    if tls.to_servers {
        tls.client.finish(reader, "proxy", Needed::Tls)?;
    }
    Ok(())
}

impl TlsSubject for Session {
    fn tls<T>(&self, look: impl FnOnce(&Negotiated<'_>) -> T) -> Option<T> {
        self.wire()?.tls(look)
    }

    fn shown(&self) -> Option<&Shown> {
        self.shown.as_deref()
    }
}

/// Makes the TLS handshake with a client, whose first bytes may have been read already. Failures go
/// to the log. So does the reason why the client's certificate is refused.
pub async fn accept(s: &mut Session) -> Outcome {
    let Some(client) = s.wire() else { return Ok(()) };
    if client.is_tls() {
        // Another listener has made the handshake.
        return admit(s, s.conf().tls.context.as_deref());
    }
    let until = s.event_loop.handle.now() + s.conf().tls.handshake_timeout;
    let bytes = std::mem::take(&mut s.unread);
    let done = handshake(s, client.socket(), bytes, until).await;
    drop(client);
    let Accepted { context, secured, demanded } = done.map_err(|failure| {
        failure.count(&s.event_loop.metrics);
        s.log(failure.level(), format_args!("{failure}"));
        SessionError::Internal
    })?;
    if !s.secure(secured) {
        return Err(SessionError::Internal);
    }
    let resumed = s.wire().and_then(|wire| wire.tls(|tls| tls.is_resumed()));
    s.event_loop.metrics.add(Metric::TlsHandshakes, 1);
    s.event_loop.metrics.add(Metric::TlsResumed, (resumed == Some(true)).into());
    judge_certificate(s, context, demanded).await
}

/// A completed handshake.
pub struct Accepted {
    /// The settings that it used.
    pub context: Arc<ServerContext>,
    /// The connection's TLS.
    pub secured: Secured,
    /// Whether a script asked for the client's certificate. `context` decides about it then.
    pub demanded: bool,
}

async fn handshake(
    s: &mut Session,
    socket: &Stream,
    bytes: Vec<u8>,
    until: Instant,
) -> Result<Accepted, AcceptError> {
    let mut hello = match weir_tls::read_hello(socket, bytes, until).await? {
        FirstBytes::Hello(hello) => hello,
        FirstBytes::Plain(bytes) => return Err(AcceptError::Plain(refuse_plain(socket, &bytes))),
    };
    let first = s.server;
    let default = first.conf.tls.context.as_ref();
    find_server(s, &mut hello)?;
    let PhaseScripts { certificate, .. } = s.conf().scripts;
    if first.conf.scripts.hello || first.conf.scripts.certificate || certificate {
        return Box::pin(scripted_handshake::answer(s, first, hello, socket, until)).await;
    }
    let own = s.conf().tls.context.as_ref();
    let (context, hello) = choose(own, default, hello, socket)?;
    let (names, event_loop) = (context.certificates.names(s), s.event_loop.clone());
    let certificates = &event_loop.certificates;
    let secured = context.accept(hello, socket, names, certificates, until).await?;
    Ok(Accepted { context, secured, demanded: false })
}

/// Selects the server that the ClientHello names.
fn find_server(s: &mut Session, hello: &mut Hello) -> Result<(), AcceptError> {
    let shown = Shown::take(hello);
    let host = shown.host();
    s.shown = Some(Box::new(shown));
    match host {
        Some(host) => {
            preread::select_server(s, host.as_bytes()).map_err(AcceptError::NameUndecided)
        }
        None => Ok(()),
    }
}

/// Verifies the client's certificate, and refuses the client if it must.
async fn judge_certificate(
    s: &mut Session,
    context: Arc<ServerContext>,
    demanded: bool,
) -> Outcome {
    let Some(client) = s.wire() else { return Err(SessionError::Internal) };
    let handle = s.event_loop.handle.clone();
    let waiting = WaitingConnection {
        handle: &handle,
        log: &s.conf().error_log,
        number: s.number(),
        until: handle.now() + s.conf().tls.handshake_timeout,
    };
    let fault = context.judge(&client, waiting).await;
    if let Some(shown) = &mut s.shown {
        (shown.context, shown.fault) = (Some(context.clone()), fault);
    }
    let own = if demanded { Some(&*context) } else { s.conf().tls.context.as_deref() };
    admit(s, own)
}

/// Refuses a client without a valid certificate if the server demands one.
fn admit(s: &Session, own: Option<&ServerContext>) -> Outcome {
    let Some(own) = own else { return Ok(()) };
    let certificate = s.tls(|connection| !connection.peer_certificates().is_empty()) == Some(true);
    let judge = s.shown.as_ref().and_then(|shown| shown.context.as_ref());
    if certificate && judge.is_some_and(|judge| !judge.judges_like(own)) {
        let text = "client SSL certificate was judged by another server";
        s.log(Level::Info, format_args!("{text} while SSL handshaking"));
        return Err(SessionError::Internal);
    }
    let fault = s.shown.as_ref().and_then(|shown| shown.fault);
    match own.refusal(fault, certificate) {
        None => Ok(()),
        Some(refusal) => {
            s.log(Level::Info, format_args!("{refusal} while SSL handshaking"));
            Err(SessionError::Internal)
        }
    }
}

/// The TLS settings for servers, if `proxy_ssl` is on. `host` is the default name.
pub fn to_servers(s: &mut Session, host: &[u8]) -> Option<UpstreamTls> {
    let tls = &s.conf().tls;
    if tls.to_servers { tls.client.secure(s, host) } else { None }
}

/// Makes the TLS handshake with the server at this address. Logs a failure.
pub async fn connect(
    s: &Session,
    stream: &Stream,
    secure: &UpstreamTls,
    peer: &str,
) -> Result<Secured, Blame> {
    let event_loop = &s.event_loop;
    let known = &event_loop.upstream_certificates;
    let client = secure.client(&event_loop.handle, known, peer).await;
    let client = client.map_err(|error| s.log_failed(fault::unsecured(error)))?;
    let until = event_loop.handle.now() + s.conf().proxy.connect_timeout;
    let done = Secured::connect(stream, &client, until).await;
    done.map_err(|error| s.log_failed(fault::securing(&error, secure.chosen)))
}

/// The PROXY header's fields about the client's TLS: SNI, ALPN, cipher, and certificates.
pub fn proxy_header_extras(s: &Session) -> Extras {
    let mut all = Extras::default();
    let Some(client) = s.wire() else { return all };
    if let Some(name) = s.shown.as_ref().and_then(|shown| shown.server_name.as_deref()) {
        all.add(extras::AUTHORITY, name.as_bytes());
    }
    let fault = s.shown.as_ref().and_then(|shown| shown.fault);
    client.tls(|connection| {
        if let Some(protocol) = connection.alpn() {
            all.add(extras::ALPN, protocol);
        }
        let mut values = Extras::default();
        values.add(extras::SSL_VERSION, connection.protocol().as_bytes());
        let certificate = connection.peer_certificates().first();
        let name = certificate.and_then(|der| common_name(der));
        if let Some(name) = name {
            values.add(extras::SSL_CN, &name);
        }
        if let Some(cipher) = connection.cipher() {
            values.add(extras::SSL_CIPHER, cipher.as_bytes());
        }
        if let Some(own) = connection.own_certificate() {
            values.add(extras::SSL_SIGNATURE, own.signature().as_bytes());
            if let Some(key) = own.key() {
                values.add(extras::SSL_KEY, key.as_bytes());
            }
        }
        let shown = certificate.is_some();
        let verdict = if shown { fault.map_or(0, |fault| fault.code) } else { 1 };
        all.add_tls(shown, !connection.is_resumed(), verdict, &values);
    });
    all
}

fn common_name(der: &[u8]) -> Option<Vec<u8>> {
    let certificate = Certificate::parse(der)?;
    name::common_names(certificate.subject).into_iter().next()
}
