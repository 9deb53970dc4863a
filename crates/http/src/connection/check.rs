//! What a client is told over HTTP of its handshake.

use weir_log::Level;

use weir_ssl::server::{ClientRefusal, ServerContext, Verify};

use crate::request::Request;

/// The status that a request is refused with, before anything else is looked at.
pub fn check(r: &mut Request) -> Option<u16> {
    let tls = r.conn.tls.as_deref()?;
    if tls.plain {
        r.log(Level::Info, format_args!("client sent plain HTTP request to HTTPS port"));
        return Some(497);
    }
    let context = r.server.conf.ssl.as_deref().filter(|own| own.verify != Verify::Off)?;
    let shown = r.conn.with_tls(|connection| !connection.peer_certificates().is_empty());
    let shown = shown == Some(true);
    if is_misdirected(r, context, shown) {
        r.log(
            Level::Info,
            format_args!(
                "client attempted to request the server name different from the one that was \
                 negotiated"
            ),
        );
        return Some(421);
    }
    let refusal = context.refusal(tls.shown.fault, shown)?;
    r.log(Level::Info, format_args!("{refusal}"));
    Some(match refusal {
        ClientRefusal::Bad(_) => 495,
        ClientRefusal::Missing => 496,
    })
}

/// The client named another host in the handshake, and was asked for its certificate there. A
/// client that named none, or none of ours, was asked by the default server: what was `shown` there
/// counts for a server that would have judged it alike.
fn is_misdirected(r: &Request, context: &ServerContext, shown: bool) -> bool {
    let Some(tls) = r.conn.tls.as_deref() else { return false };
    let named_another = tls.chosen
        && !r.host.is_empty()
        && tls.shown.host().is_some_and(|name| name.as_bytes() != r.host);
    named_another || shown && tls.shown.context.is_some_and(|judge| !judge.judges_like(context))
}
