//! TLS with clients, from the start or after a command. nginx: ngx_mail_ssl_module,
//! ngx_mail_handler.c.

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

/// Makes the TLS handshake, and refuses the client if its certificate is not valid.
pub async fn begin(s: &mut Session) -> Result<(), SessionEnd> {
    if s.is_secured() {
        // Another listener has made the handshake.
        return admit(s);
    }
    let Some(context) = s.conf().context.clone() else { return Err(SessionEnd::Closed) };
    let Some(client) = s.client.take() else { return Err(SessionEnd::Closed) };
    let (until, bytes) = (s.deadline, std::mem::take(&mut s.unread));
    let done = handshake(s, &context, client.socket(), bytes, until).await;
    s.client = Some(client);
    let secured = done.map_err(|failure| {
        failure.count(&s.event_loop.metrics);
        // The failure's text names the handshake itself.
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
        until: s.deadline,
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

/// Refuses a client without a valid certificate if the server demands one.
fn admit(s: &Session) -> Result<(), SessionEnd> {
    let Some(own) = &s.conf().context else { return Ok(()) };
    let certificate = s.tls(|connection| !connection.peer_certificates().is_empty()) == Some(true);
    let judge = s.shown.as_ref().and_then(|shown| shown.context.as_ref());
    if certificate && judge.is_some_and(|judge| !judge.judges_like(own)) {
        let text = "client SSL certificate was judged by another server";
        s.log(Level::Info, format_args!("{text}"));
        return Err(SessionEnd::Reply(s.protocol().bad_certificate().to_vec()));
    }
    let fault = s.shown.as_ref().and_then(|shown| shown.fault);
    let Some(refusal) = own.refusal(fault, certificate) else { return Ok(()) };
    s.log(Level::Info, format_args!("{refusal}"));
    Err(SessionEnd::Reply(match refusal {
        ClientRefusal::Bad(_) => s.protocol().bad_certificate().to_vec(),
        ClientRefusal::Missing => s.protocol().no_certificate().to_vec(),
    }))
}
