//! Interprets a complete head: server, path, framing of the body, keep-alive.

use weir_log::Level;
use weir_proto::http1::{BodyDecoder, ConnectionHeader, HeaderId, Method, Version};
use weir_ssl::server::{ServerContext, Verify};

use crate::request::Request;

/// Why no server was selected, which was logged.
#[derive(Debug)]
pub enum Unselected {
    /// A regular expression of a server name exceeded a limit.
    Undecided,
    /// The server verifies client certificates, and another server verified this client's in the handshake. That one stays
    /// selected.
    Misdirected,
}

/// Selects the server for the host name, as soon as that is known.
pub fn select_server(r: &mut Request) -> Result<(), Unselected> {
    take_host(r);
    if r.site.is_single(&r.conn) {
        return Ok(());
    }
    let host = std::mem::take(&mut r.host);
    let server = r.site.server_for(r, &host).map_err(|gave_up| {
        r.log(Level::Alert, format_args!("{gave_up} while reading client request headers"));
        Unselected::Undecided
    })?;
    let context = server.conf.ssl.as_deref().filter(|own| own.verify != Verify::Off);
    if context.is_some_and(|context| is_misdirected(r, &host, context)) {
        let text = "client attempted to request the server name different from the one that was negotiated";
        r.log(Level::Info, format_args!("{text} while reading client request headers"));
        return Err(Unselected::Misdirected);
    }
    r.host = host;
    r.server = server;
    r.location = r.site.location(r.server.location);
    Ok(())
}

/// Takes over the host name, if it is known.
pub fn take_host(r: &mut Request) {
    r.host.clear();
    let head = r.parser.head();
    if let Some(span) = head.server {
        r.host.extend_from_slice(span.of(&r.buf));
        if head.server_upper {
            r.host.make_ascii_lowercase();
        }
    }
}

/// Whether the client named another server in its handshake, which asked for its certificate. If it named none of ours, the
/// default server asked. Its verification counts for servers that would have verified alike.
fn is_misdirected(r: &Request, host: &[u8], context: &ServerContext) -> bool {
    let Some(tls) = r.conn.tls.as_deref() else { return false };
    let shown = &tls.shown;
    if tls.chosen {
        return shown.host().is_some_and(|name| name.as_bytes() != host);
    }
    r.conn.with_tls(|tls| !tls.peer_certificates().is_empty()) == Some(true)
        && shown.context.as_ref().is_some_and(|judge| !judge.judges_like(context))
}

/// Takes a complete head over into the request.
pub fn accept(r: &mut Request) {
    take_line(r);
    let head = r.parser.head();
    r.request_length = u64::from(head.end.saturating_sub(head.line.start));
    r.body.length = head.content_length;
    r.body.chunked = head.chunked;
    if head.chunked {
        r.body.expect(BodyDecoder::chunked());
    } else if let Some(n) = head.content_length.filter(|n| *n > 0) {
        r.body.expect(BodyDecoder::length(n));
    }
    r.body.expects_continue = head
        .header(HeaderId::Expect)
        .is_some_and(|h| h.value.of(&r.buf).eq_ignore_ascii_case(b"100-continue"));
    r.keepalive = match head.connection {
        // Further bytes may be meant for the other end of a tunnel.
        _ if r.method == Method::Connect => false,
        ConnectionHeader::Close => false,
        ConnectionHeader::KeepAlive => true,
        ConnectionHeader::Unspecified => head.version >= Version::Http11,
    };
}

/// Logs fields that were dropped because of invalid names.
pub fn tell_dropped(r: &Request) {
    for line in &r.parser.head().dropped {
        let text = line.of(&r.buf);
        let (what, shown) = r.carrier.dropped_field(text);
        let shown = weir_log::Bytes(shown);
        let doing = "while reading client request headers";
        r.log(Level::Info, format_args!("client sent invalid {what}: \"{shown}\" {doing}"));
    }
}

/// Takes the request line over, also that of a refused head: the log and the choice of an error page need it.
pub fn take_line(r: &mut Request) {
    let head = r.parser.head();
    r.method = head.method;
    r.version = head.version;
    r.path.clear();
    r.path.extend_from_slice(head.uri(&r.buf));
    r.args.clear();
    r.args.extend_from_slice(head.args.unwrap_or_default().of(&r.buf));
}
