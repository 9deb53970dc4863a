//! One session's way: the greeting, the log-in, the server that it leads to. nginx: ngx_mail_handler.c.

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

/// Serves a connection from its first byte to its end.
pub async fn accepted(event_loop: Rc<LoopState>, stream: Stream, peer: Address, listen: usize) {
    let presence = event_loop.open.begin();
    let local = || Address::local_of(&stream).and_then(|local| local.ip());
    let site = event_loop.site;
    let endpoint = site.bound(listen).at(local);
    // Unix sockets have no such thing, and no delay.
    let _ = stream.nodelay(true);
    let (wire, server) = (Wire::join(stream, None), site.server(endpoint));
    let s = Session::new(event_loop, server, wire, peer, listen);
    run(s, presence, &endpoint.protocols).await;
}

/// Serves a connection that another listener has handed over.
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
    s.over = true;
    // A client that does not take it is gone.
    let _ = match end {
        Ok(()) | Err(SessionEnd::Closed) => Ok(()),
        Err(SessionEnd::Internal) => s.say(s.protocol().internal_error()).await,
        Err(SessionEnd::Told(text)) => s.say(text).await,
    };
}

async fn session(
    s: &mut Session,
    presence: Presence,
    protocols: &Protocols,
) -> Result<(), SessionEnd> {
    if protocols.proxy_protocol {
        balancer(s).await?;
        let header = s.proxy.as_ref();
        let introduced = |header| forwarded::introduced(&s.connected, header, &s.conf().believed);
        s.real = header.and_then(|header| introduced(header));
    }
    if protocols.ssl {
        s.doing = "SSL handshaking";
        // What few sessions go through, and none rests in, is no part of every session's task.
        Box::pin(tls::begin(s)).await?;
        s.doing = "sending client greeting line";
    }
    doing::note("the greeting", "", s.server);
    match s.protocol() {
        Protocol::Pop3 => pop3::greet(s).await?,
        Protocol::Imap => s.say(*b"* OK IMAP4 ready\r\n").await?,
        Protocol::Smtp => Box::pin(smtp::greet(s)).await?,
    }
    loop {
        s.doing = "in auth state";
        doing::note("the log-in", "", s.server);
        dialog::log_in(s).await?;
        s.attempts += 1;
        let verdict = Box::pin(auth_http::ask(s)).await?;
        match verdict {
            Verdict::Leads(address) => {
                return Box::pin(upstream::pass(s, &presence, address)).await;
            }
            Verdict::Refused { text, pause: None } => return Err(SessionEnd::Told(text)),
            Verdict::Refused { text, pause: Some(pause) } => {
                s.event_loop.handle.sleep(pause).await;
                s.say(text).await?;
                s.until = s.event_loop.handle.now() + s.conf().timeout;
            }
        }
    }
}

/// Reads what a balancer puts before the client's own bytes.
async fn balancer(s: &mut Session) -> Result<(), SessionEnd> {
    s.doing = "reading PROXY protocol";
    let mut bytes = std::mem::take(&mut s.unread);
    let until = s.until;
    let client = s.wire()?;
    client.set_deadline(Some(until));
    let read = client.read_proxy_header(&mut bytes).await;
    client.set_deadline(None);
    s.unread = bytes;
    s.proxy = match read {
        Ok(header) => header,
        Err(ProxyHeaderError::Invalid(error)) => return Err(no_header(s, &error)),
        Err(ProxyHeaderError::Closed) => return Err(no_header(s, &cut_short(b""))),
        Err(ProxyHeaderError::Io(error)) => return Err(s.complain("recv()", &error)),
    };
    s.until = s.event_loop.handle.now() + s.conf().timeout;
    s.doing = "sending client greeting line";
    Ok(())
}

/// What came of the client is no header.
fn no_header(s: &Session, error: &HeaderError) -> SessionEnd {
    s.log(Level::Error, format_args!("{error}"));
    SessionEnd::Closed
}

/// What stands in the way of a server that is asked or passed on to, as the log is told.
pub fn unreachable(error: &std::io::Error) -> String {
    if fault::is_late(error) {
        return format!("upstream timed out {}", Cause(&fault::late()));
    }
    fault::failed("connect()", error)
}
