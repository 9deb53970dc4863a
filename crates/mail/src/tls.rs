//! TLS with clients: from the first byte on, or once they ask for it. nginx: ngx_mail_ssl_module, ngx_mail_handler.c.

use std::sync::Arc;
use std::time::Instant;

use weir_engine::Stream;
use weir_log::Level;
use weir_metrics::Metric;
use weir_ssl::ocsp::WaitingConnection;
use weir_ssl::server::{AcceptError, ClientRefusal, ServerContext, Shown, TlsSubject};
use weir_tls::{FirstBytes, Secured, refuse_plain};
use weir_values::Subject;

use crate::session::{Session, SessionEnd};

/// Goes through the handshake, and looks at the client's certificate.
pub async fn begin(s: &mut Session) -> Result<(), SessionEnd> {
    if s.is_secured() {
        // Another listener has gone through it.
        return admit(s);
    }
    let Some(context) = s.conf().context.clone() else { return Err(SessionEnd::Closed) };
    let Some(client) = s.client.take() else { return Err(SessionEnd::Closed) };
    let (until, bytes) = (s.until, std::mem::take(&mut s.unread));
    let done = handshake(s, &context, client.socket(), bytes, until).await;
    s.client = Some(client);
    let secured = done.map_err(|failure| {
        failure.count(&s.event_loop.metrics);
        // The text says it.
        s.doing = "";
        s.log(failure.level(), format_args!("{failure}"));
        SessionEnd::Closed
    })?;
    s.secure(secured);
    s.wire()?.set_deadline(None);
    let resumed = s.tls(|tls| tls.is_resumed());
    s.event_loop.metrics.add(Metric::TlsHandshakes, 1);
    s.event_loop.metrics.add(Metric::TlsResumed, (resumed == Some(true)).into());
    let handle = s.event_loop.handle.clone();
    let waiting = WaitingConnection {
        handle: &handle,
        log: &s.conf().error_log,
        number: s.number(),
        until: s.until,
    };
    let fault = context.judge(s.wire()?, waiting).await;
    if let Some(shown) = &mut s.shown {
        (shown.context, shown.fault) = (Some(context), fault);
    }
    admit(s)
}

async fn handshake(
    s: &mut Session,
    context: &Arc<ServerContext>,
    socket: &Stream,
    bytes: Vec<u8>,
    until: Instant,
) -> Result<Secured, AcceptError> {
    let mut hello = match weir_tls::read_hello(socket, bytes, until).await? {
        FirstBytes::Hello(hello) => hello,
        FirstBytes::Plain(bytes) => return Err(AcceptError::Plain(refuse_plain(socket, &bytes))),
    };
    s.shown = Some(Box::new(Shown::take(&mut hello)));
    let (names, event_loop) = (context.certificates.names(s), s.event_loop.clone());
    context.accept(hello, socket, names, &event_loop.certificates, until).await
}

/// A client that must show a certificate, and has not shown a good one, is refused.
fn admit(s: &Session) -> Result<(), SessionEnd> {
    let Some(own) = &s.conf().context else { return Ok(()) };
    let certificate = s.tls(|connection| !connection.peer_certificates().is_empty()) == Some(true);
    let judge = s.shown.as_ref().and_then(|shown| shown.context.as_ref());
    if certificate && judge.is_some_and(|judge| !judge.judges_like(own)) {
        let text = "client SSL certificate was judged by another server";
        s.log(Level::Info, format_args!("{text}"));
        return Err(SessionEnd::Told(s.protocol().bad_certificate().to_vec()));
    }
    let fault = s.shown.as_ref().and_then(|shown| shown.fault);
    let Some(refusal) = own.refusal(fault, certificate) else { return Ok(()) };
    s.log(Level::Info, format_args!("{refusal}"));
    Err(SessionEnd::Told(match refusal {
        ClientRefusal::Bad(_) => s.protocol().bad_certificate().to_vec(),
        ClientRefusal::Missing => s.protocol().no_certificate().to_vec(),
    }))
}
