//! What a client is told over HTTP of its handshake.

use std::fmt;

use weir_log::Level;

use weir_ssl::server::{ClientRefusal, ServerContext, Verify};

use crate::request::Request;

/// Why a request is refused that came after this handshake.
pub enum HandshakeRefusal {
    /// There was no handshake where one is needed.
    Plain,
    /// The client negotiated with another server.
    Misdirected,
    /// The client needs a good certificate.
    Certificate(ClientRefusal),
}

impl HandshakeRefusal {
    /// The status that the request ends with.
    pub fn status(&self) -> u16 {
        match self {
            HandshakeRefusal::Plain => 497,
            HandshakeRefusal::Misdirected => 421,
            HandshakeRefusal::Certificate(ClientRefusal::Bad(_)) => 495,
            HandshakeRefusal::Certificate(ClientRefusal::Missing) => 496,
        }
    }
}

impl fmt::Display for HandshakeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeRefusal::Plain => f.write_str("client sent plain HTTP request to HTTPS port"),
            HandshakeRefusal::Misdirected => f.write_str(
                "client attempted to request the server name different from the one that was \
                 negotiated",
            ),
            HandshakeRefusal::Certificate(refusal) => refusal.fmt(f),
        }
    }
}

/// Refuses a request for its handshake, before anything else is looked at. The log is told.
pub fn check(r: &mut Request) -> Option<HandshakeRefusal> {
    let refusal = refusal(r)?;
    r.log(Level::Info, format_args!("{refusal}"));
    Some(refusal)
}

fn refusal(r: &Request) -> Option<HandshakeRefusal> {
    let tls = r.conn.tls.as_deref()?;
    if tls.plain {
        return Some(HandshakeRefusal::Plain);
    }
    let context = r.server.conf.ssl.as_deref().filter(|own| own.verify != Verify::Off)?;
    let shown = r.conn.with_tls(|connection| !connection.peer_certificates().is_empty());
    let shown = shown == Some(true);
    if is_misdirected(r, context, shown) {
        return Some(HandshakeRefusal::Misdirected);
    }
    context.refusal(tls.shown.fault, shown).map(HandshakeRefusal::Certificate)
}

/// The client named another host in the handshake, and was asked for its certificate there. A
/// client that named none, or none of ours, was asked by the default server: what was `shown` there
/// counts for a server that would have judged it alike.
fn is_misdirected(r: &Request, context: &ServerContext, shown: bool) -> bool {
    let Some(tls) = r.conn.tls.as_deref() else { return false };
    let named_another = tls.chosen
        && !r.host.is_empty()
        && tls.shown.host().is_some_and(|name| name.as_bytes() != r.host);
    named_another
        || shown && tls.shown.context.as_ref().is_some_and(|judge| !judge.judges_like(context))
}
