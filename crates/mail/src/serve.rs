//! Serves one session: the greeting, the log-in, the mail server. nginx: ngx_mail_handler.c.

use std::rc::Rc;

use weir_engine::Stream;
use weir_log::{Cause, Level};
use weir_proto::proxy_protocol::{HeaderError, cut_short};
use weir_ssl::HandedConnection;
use weir_tls::{ProxyHeaderError, Wire};
use weir_upstream::fault;
use weir_values::listen::Protocols;
use weir_values::presence::Presence;
use weir_values::{Address, Subject, doing, forwarded};

use crate::auth_http::{self, Verdict};
use crate::event_loop::LoopState;
use crate::protocol::Protocol;
use crate::session::{Session, SessionEnd};
use crate::{dialog, pop3, smtp, tls, upstream};

/// Serves an accepted connection up to its end.
pub async fn accepted(event_loop: Rc<LoopState>, stream: Stream, peer: Address, listen: usize) {
    let presence = event_loop.open.begin();
    let local = || Address::local_of(&stream).and_then(|local| local.ip());
    let site = event_loop.site;
    let endpoint = site.bound(listen).at(local);
    // Fails on Unix sockets, which do not delay anyway.
    let _ = stream.nodelay(true);
    let (wire, server) = (Wire::join(stream, None), site.server(endpoint));
    let s = Session::new(event_loop, server, wire, peer, listen);
    run(s, presence, &endpoint.protocols).await;
}

/// Serves a connection that another listener has passed on.
pub async fn handed(event_loop: Rc<LoopState>, handed: HandedConnection, listen: usize) {
    let presence = event_loop.open.begin();
    let HandedConnection { wire, shown, peer, local, proxy, bytes, .. } = handed;
    let site = event_loop.site;
    let endpoint = site.bound(listen).at(|| local.ip());
    let mut s = Session::new(event_loop, site.server(endpoint), wire, peer, listen);
    (s.shown, s.proxy, s.unread) = (shown, proxy, bytes);
    run(s, presence, &endpoint.protocols).await;
}

async fn run(mut s: Session, presence: Presence, protocols: &Protocols) {
    if s.conf().error_log.enabled(Level::Info) {
        let (peer, to) = (&s.connected, s.listening());
        s.log_bare(Level::Info, format_args!("client {peer} connected to {to}"));
    }
    let end = session(&mut s, presence, protocols).await;
    s.ended = true;
    // A client that does not read the last reply has gone.
    let _ = match end {
        Ok(()) | Err(SessionEnd::Closed) => Ok(()),
        Err(SessionEnd::Internal) => s.send(s.protocol().internal_error()).await,
        Err(SessionEnd::Reply(text)) => s.send(text).await,
    };
}

async fn session(
    s: &mut Session,
    presence: Presence,
    protocols: &Protocols,
) -> Result<(), SessionEnd> {
    if protocols.proxy_protocol {
        read_proxy_header(s).await?;
        let header = s.proxy.as_ref();
        let introduced = |header| forwarded::introduced(&s.connected, header, &s.conf().believed);
        s.real = header.and_then(|header| introduced(header));
    }
    if protocols.ssl {
        s.doing = "SSL handshaking";
        // Boxed, to keep the future of each session small: few sessions go through it, and none
        // stays long.
        Box::pin(tls::begin(s)).await?;
        s.doing = "sending client greeting line";
    }
    doing::note("the greeting", "", s.server);
    match s.protocol() {
        Protocol::Pop3 => pop3::greet(s).await?,
        Protocol::Imap => s.send(*b"* OK IMAP4 ready\r\n").await?,
        Protocol::Smtp => Box::pin(smtp::greet(s)).await?,
    }
    loop {
        s.doing = "in auth state";
        doing::note("the log-in", "", s.server);
        dialog::log_in(s).await?;
        s.attempts += 1;
        let verdict = Box::pin(auth_http::ask(s)).await?;
        match verdict {
            Verdict::Server(address) => {
                return Box::pin(upstream::pass(s, &presence, address)).await;
            }
            Verdict::Refused { text, pause: None } => return Err(SessionEnd::Reply(text)),
            Verdict::Refused { text, pause: Some(pause) } => {
                s.event_loop.handle.sleep(pause).await;
                s.send(text).await?;
                s.deadline = s.event_loop.handle.now() + s.conf().timeout;
            }
        }
    }
}

/// Reads the PROXY header.
async fn read_proxy_header(s: &mut Session) -> Result<(), SessionEnd> {
    s.doing = "reading PROXY protocol";
    let mut bytes = std::mem::take(&mut s.unread);
    let until = s.deadline;
    let client = s.wire()?;
    client.set_deadline(Some(until));
    let read = client.read_proxy_header(&mut bytes).await;
    client.set_deadline(None);
    s.unread = bytes;
    s.proxy = match read {
        Ok(header) => header,
        Err(ProxyHeaderError::Invalid(error)) => return Err(no_header(s, &error)),
        Err(ProxyHeaderError::Closed) => return Err(no_header(s, &cut_short(b""))),
        Err(ProxyHeaderError::Io(error)) => return Err(s.log_client_error("recv()", &error)),
    };
    s.deadline = s.event_loop.handle.now() + s.conf().timeout;
    s.doing = "sending client greeting line";
    Ok(())
}

/// Logs an invalid PROXY header.
fn no_header(s: &Session, error: &HeaderError) -> SessionEnd {
    s.log(Level::Error, format_args!("{error}"));
    SessionEnd::Closed
}

/// The log's text when the HTTP server or the mail server cannot be reached.
pub fn unreachable(error: &std::io::Error) -> String {
    if fault::is_late(error) {
        return format!("upstream timed out {}", Cause(&fault::late()));
    }
    fault::failed("connect()", error)
}
