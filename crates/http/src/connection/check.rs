//! Refuses requests because of the TLS handshake of their connection.

use std::fmt;

use weir_log::Level;

use weir_ssl::server::{ClientRefusal, ServerContext, Verify};

use crate::carrier::Secure;
use crate::request::Request;

/// Why a request is refused because of its handshake.
pub enum HandshakeRefusal {
    /// There was no handshake where one is needed.
    Plain,
    /// The client needs a good certificate.
    Certificate(ClientRefusal),
    /// An earlier configuration verified its certificate, and the present one comes to another result.
    Outdated,
}

impl HandshakeRefusal {
    /// The status that the request ends with.
    pub fn status(&self) -> u16 {
        match self {
            HandshakeRefusal::Plain => 497,
            HandshakeRefusal::Certificate(ClientRefusal::Bad(_)) => 495,
            HandshakeRefusal::Certificate(ClientRefusal::Missing) => 496,
            HandshakeRefusal::Outdated => 421,
        }
    }
}

impl fmt::Display for HandshakeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeRefusal::Plain => f.write_str("client sent plain HTTP request to HTTPS port"),
            HandshakeRefusal::Certificate(refusal) => refusal.fmt(f),
            HandshakeRefusal::Outdated => {
                f.write_str("client SSL certificate was verified by an earlier configuration")
            }
        }
    }
}

/// Checks the handshake before anything else of a request. A refusal is logged.
pub fn check(r: &mut Request) -> Option<HandshakeRefusal> {
    let refusal = refusal(r)?;
    r.log(Level::Info, format_args!("{refusal} while reading client request headers"));
    if matches!(refusal, HandshakeRefusal::Outdated) {
        // On a new connection the certificate is verified again.
        r.keepalive = false;
    }
    Some(refusal)
}

fn refusal(r: &Request) -> Option<HandshakeRefusal> {
    let tls = r.conn.tls.as_deref()?;
    if tls.plain {
        return Some(HandshakeRefusal::Plain);
    }
    let context = r.server.conf.ssl.as_deref().filter(|own| own.verify != Verify::Off)?;
    if is_outdated(r, tls, context) {
        return Some(HandshakeRefusal::Outdated);
    }
    let shown = r.conn.with_tls(|connection| !connection.peer_certificates().is_empty());
    context.refusal(tls.shown.fault, shown == Some(true)).map(HandshakeRefusal::Certificate)
}

/// Whether an earlier configuration verified the client's certificate, and the present one would come to another result.
fn is_outdated(r: &Request, tls: &Secure, context: &ServerContext) -> bool {
    let judge = tls.shown.context.as_deref().filter(|_| tls.site != r.site.number);
    let stands = |judge: &ServerContext| {
        let fault = tls.shown.fault;
        r.conn.with_tls(|connection| context.agrees_with(judge, fault, connection))
    };
    judge.is_some_and(|judge| stands(judge) == Some(false))
}
