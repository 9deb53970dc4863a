//! Serves one session: finds the client's address, decides about access, looks at the first bytes,
//! and runs the content. The phases are those of nginx (ngx_stream_core_module): post-accept,
//! preaccess, access, preread, content, log.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use weir_engine::{Chain, Patience, Stream};
use weir_log::{Cause, Level};
use weir_metrics::Metric;
use weir_proto::proxy_protocol::{HeaderError, cut_short};
use weir_ssl::HandedConnection;
use weir_tls::{ProxyHeaderError, Wire};
use weir_upstream::fault;
use weir_values::doing;
use weir_values::listen::{Deferred, Protocols};
use weir_values::presence::Presence;
use weir_values::{Address, Subject, Template, forwarded};

use crate::datagrams::FlowGuard;
use crate::event_loop::LoopState;
use crate::session::{Client, Session, log_client_error};
use crate::settings::{PhaseScripts, SessionContent, listener};
use crate::status::{self, Outcome, SessionError};
use crate::{preread, proxy, scripts, tls};

/// A connection that was passed on this often is taken for a cycle. nginx:
/// NGX_STREAM_PASS_MAX_PASSES.
const MAX_PASSES: u32 = 10;

/// How long a client may leave the text of `return` unread. nginx: ngx_stream_return_write_handler.
const RETURNING: Duration = Duration::from_secs(5);

/// What `pass` does, for the log.
const PASSING: &str = "passing connection to port";

impl LoopState {
    /// Serves an accepted, non-blocking socket of the listening socket number `listen`.
    pub fn accepted(self: &Rc<Self>, fd: OwnedFd, peer: Address, listen: usize) {
        self.metrics.add(Metric::Accepted, 1);
        if let Ok(stream) = self.handle.stream(fd) {
            self.metrics.add(Metric::Handled, 1);
            self.handle.spawn(serve(self.clone(), stream, peer, listen));
        }
    }

    /// Serves a connection that another listener's `pass` has given to the listening socket number
    /// `listen`.
    pub fn take_over(self: &Rc<Self>, handed: HandedConnection, listen: usize) {
        self.handle.spawn(serve_on(self.clone(), handed, listen));
    }
}

/// Serves an accepted connection up to its access log line.
pub async fn serve(event_loop: Rc<LoopState>, stream: Stream, peer: Address, listen: usize) {
    let presence = event_loop.open.begin();
    let local = || Address::local_of(&stream).and_then(|local| local.ip());
    let endpoint = event_loop.site.bound(listen).at(local);
    let server = event_loop.site.server(endpoint.hosts.default);
    if server.conf.tcp_nodelay {
        // Fails on Unix sockets, which do not delay anyway.
        let _ = stream.nodelay(true);
    }
    let client = Client::Connected(Rc::new(Wire::join(stream, None)));
    run(Session::new(event_loop, server, client, peer, listen), presence, &endpoint.protocols)
        .await;
}

/// Serves a connection that another listener has passed on.
pub async fn serve_on(event_loop: Rc<LoopState>, handed: HandedConnection, listen: usize) {
    let presence = event_loop.open.begin();
    let HandedConnection { wire, shown, peer, local, proxy, bytes, times } = handed;
    let endpoint = event_loop.site.bound(listen).at(|| local.ip());
    let server = event_loop.site.server(endpoint.hosts.default);
    let client = Client::Connected(Rc::new(wire));
    let mut s = Session::new(event_loop, server, client, peer, listen).at(local);
    (s.shown, s.proxy, s.passes) = (shown, proxy, times);
    s.unread = bytes;
    run(s, presence, &endpoint.protocols).await;
}

async fn run(s: Session, presence: Presence, protocols: &Protocols) {
    let mut begun = BegunSession::new(s);
    let s = &mut begun.0;
    if protocols.proxy_protocol
        && let Err(error) = read_proxy_header(s).await
    {
        s.outcome = Some(Err(error));
        return begun.log().end().await;
    }
    let outcome = run_phases(s, &presence, protocols.ssl).await;
    if s.is_proxied && outcome.is_err() {
        let deferred = s.event_loop.site.listens()[s.listen].deferred == Deferred::On;
        let reads_first = protocols.proxy_protocol || protocols.ssl || s.conf().ssl_preread;
        proxy::take_unread(s, deferred || reads_first);
    }
    s.outcome = Some(outcome);
    begun.log().end().await;
}

/// Serves a datagram session, which `first` begins.
pub async fn datagrams(place: FlowGuard, first: Vec<u8>, peer: Address) {
    let event_loop = place.event_loop.clone();
    let presence = event_loop.open.begin();
    let (server, listen) = (place.flow.server, place.flow.listen());
    let client = Client::Sending(Rc::new(place));
    let mut begun = BegunSession::new(Session::new(event_loop, server, client, peer, listen));
    let s = &mut begun.0;
    s.received = first.len() as u64;
    s.unread = first;
    s.outcome = Some(run_phases(s, &presence, false).await);
}

/// A running session. Dropping it runs the log phase, so that any end is logged.
struct BegunSession(Session);

/// What remains to do after the log phase. It is small, so that it does not enlarge each session's
/// task.
struct SessionEnding {
    event_loop: Rc<LoopState>,
    client: Option<Rc<Wire>>,
    answered: bool,
}

impl SessionEnding {
    /// Closes the connection once the access log line is written: a client that sees the end finds
    /// the line in the log.
    async fn end(self) {
        let Some(client) = self.client else { return };
        self.event_loop.logs.written(&self.event_loop.handle).await;
        client.close_notify();
        if self.answered {
            linger(&client);
        }
    }
}

impl BegunSession {
    /// Runs the log phase.
    fn log(mut self) -> SessionEnding {
        let s = &mut self.0;
        s.ends_in_order = true;
        SessionEnding { event_loop: s.event_loop.clone(), client: s.wire(), answered: s.answered }
    }

    fn new(s: Session) -> BegunSession {
        if s.conf().error_log.enabled(Level::Info) {
            let (kind, peer) = (s.kind(), &s.connected);
            let address = &s.event_loop.site.listens()[s.listen].address;
            s.log_bare(Level::Info, format_args!("{kind}client {peer} connected to {address}"));
        }
        BegunSession(s)
    }
}

impl Drop for BegunSession {
    fn drop(&mut self) {
        let s = &mut self.0;
        if std::thread::panicking() || matches!(s.client, Client::Gone) {
            return;
        }
        if s.outcome.is_none() {
            proxy::record_passed(s);
        }
        // The worker exits and does not wait for the session any longer.
        if s.outcome.is_none() && s.is_proxied && s.event_loop.retiring() {
            s.log(Level::Info, format_args!("shutdown timeout while {}", proxy::doing(s)));
        }
        let outcome = *s.outcome.get_or_insert(Ok(()));
        doing::note("the log phase", "", s.server);
        s.event_loop.metrics.add(Metric::Received, s.bytes_received());
        s.event_loop.metrics.add(Metric::Sent, s.bytes_sent());
        if let Some(counting) = s.counting.take() {
            counting.ended(status::code(outcome), s.bytes_received(), s.bytes_sent());
        }
        if s.conf().scripts.log {
            scripts::log(s);
        }
        s.script_context = None;
        let event_loop = s.event_loop.clone();
        let conf = &s.conf().log;
        weir_values::log::write(s, conf, &event_loop.logs, |s, name, cache, line| {
            let path = name.eval(s).into_owned();
            let path = std::path::PathBuf::from(String::from_utf8_lossy(&path).into_owned());
            let (line, connection) = (line.to_vec(), s.number());
            let (mut about, log) = (String::new(), s.conf().error_log.clone());
            s.describe_moment(&mut about);
            let root = None;
            Some(weir_values::log::NamedLine { path, root, cache, line, connection, log, about })
        });
        // After an orderly end, `SessionEnding` closes the connection.
        if !s.ends_in_order
            && let Some(client) = s.wire()
        {
            client.close_notify();
        }
    }
}

/// Reads the PROXY header.
async fn read_proxy_header(s: &mut Session) -> Outcome {
    let timeout = s.conf().proxy_protocol_timeout;
    let Some(client) = s.wire() else { return Ok(()) };
    client.set_deadline(Some(s.event_loop.handle.now() + timeout));
    let mut bytes = std::mem::take(&mut s.unread);
    let read = client.read_proxy_header(&mut bytes).await;
    client.set_deadline(None);
    let is_empty = bytes.is_empty();
    s.unread = bytes;
    match read {
        Ok(header) => {
            s.proxy = header;
            Ok(())
        }
        Err(ProxyHeaderError::Invalid(error)) => Err(no_header(s, &error)),
        Err(ProxyHeaderError::Closed) => Err(no_header(s, &cut_short(b""))),
        Err(ProxyHeaderError::Io(error)) => {
            log_client_error(s, &error, "reading PROXY protocol");
            // Part of a header is an error of the client. Without a byte it just left.
            Err(if is_empty { SessionError::ClientLeft } else { SessionError::BadRequest })
        }
    }
}

/// Logs an invalid PROXY header.
fn no_header(s: &Session, error: &HeaderError) -> SessionError {
    s.log(Level::Error, format_args!("{error} while reading PROXY protocol"));
    SessionError::BadRequest
}

/// Runs the phases before the log phase.
async fn run_phases(s: &mut Session, presence: &Presence, ssl: bool) -> Outcome {
    let conf = s.conf();
    doing::note("the preaccess phase", "", s.server);
    find_real_client(s);
    s.doing = "initializing session";
    for (variable, value) in &conf.sets {
        let value = value.eval(s).into_owned();
        s.store_variable(*variable, value);
    }
    if !conf.limits.is_empty() {
        match conf.limits.take(s, conf.refusal) {
            Ok(held) => s.held = held,
            Err(held) => {
                s.held = held;
                return Err(SessionError::Unavailable);
            }
        }
    }
    doing::note("the access phase", "", s.server);
    if conf.access.allow(s.peer()) == Some(false) {
        s.log(Level::Error, format_args!("access forbidden by rule"));
        return Err(SessionError::Forbidden);
    }
    s.doing = "";
    if ssl {
        // Boxed, to keep the future of each session small: few sessions go through it, and none
        // stays long.
        Box::pin(tls::accept(s)).await?;
    }
    let PhaseScripts { preread: has_script, early, .. } = s.conf().scripts;
    if has_script
        && early
        && let Some(outcome) = preread_script(s).await
    {
        return outcome;
    }
    if s.conf().ssl_preread {
        preread::read_client_hello(s).await?;
    }
    if has_script
        && !early
        && let Some(outcome) = preread_script(s).await
    {
        return outcome;
    }
    doing::note("the content phase", "", s.server);
    match &s.conf().content {
        SessionContent::None => Err(SessionError::Internal),
        SessionContent::Return(text) => return_text(s, text).await,
        SessionContent::Script => Box::pin(scripts::content(s)).await,
        SessionContent::Group(id) => proxy::pass(s, presence, proxy::ProxyTarget::Group(*id)).await,
        SessionContent::Computed(address) => {
            let target = proxy::compute(s, address).await?;
            proxy::pass(s, presence, target).await
        }
        SessionContent::Pass(to) => pass_to_listener(s, to),
        SessionContent::PassTo(to) => {
            s.doing = PASSING;
            let text = to.eval(s).into_owned();
            let to = listener(&text).map_err(|why| {
                let text = String::from_utf8_lossy(&text);
                s.log(Level::Error, format_args!("{why} in pass \"{text}\""));
                SessionError::Internal
            })?;
            pass_to_listener(s, &to)
        }
    }
}

/// Runs the script of the preread phase. Returns the outcome if it ends the session.
async fn preread_script(s: &mut Session) -> Option<Outcome> {
    doing::note("the preread phase", "", s.server);
    Box::pin(scripts::preread(s)).await
}

/// Takes the client's address from the PROXY header, if `set_real_ip_from` trusts its sender.
/// nginx: ngx_stream_realip_module.
fn find_real_client(s: &mut Session) {
    let header = s.proxy.as_ref();
    let introduced = |header| forwarded::introduced(&s.connected, header, &s.conf().believed);
    s.real = header.and_then(|header| introduced(header));
}

/// `return`
async fn return_text(s: &mut Session, text: &Template) -> Outcome {
    s.doing = "returning text";
    let text = text.eval(s).into_owned();
    let length = text.len() as u64;
    s.sent += match s.client.clone() {
        Client::Sending(place) if !text.is_empty() && place.flow.answer(&text) => length,
        Client::Sending(_) => 0,
        Client::Connected(client) => {
            let mut chain = Chain::new();
            chain.push(text);
            let returned = client.send(&mut chain, Patience::Idle(RETURNING)).await;
            if returned.as_ref().is_err_and(fault::is_late) {
                let cause = fault::late();
                s.log(Level::Info, format_args!("connection timed out {}", Cause(&cause)));
            }
            s.answered = returned.is_ok();
            length - chain.len()
        }
        Client::Gone => return Err(SessionError::Internal),
    };
    Ok(())
}

/// Shuts down writing, and reads what the client has sent. Closing a socket with unread bytes would
/// reset the connection and lose the answer.
fn linger(client: &Wire) {
    if client.shutdown_write().is_err() {
        return;
    }
    let mut buf = Vec::with_capacity(4096);
    // Reads only what has arrived: a client that goes on sending must still see the end.
    while matches!(client.try_recv(&mut buf), Ok(Some(n)) if n > 0) {
        buf.clear();
    }
}

/// `pass`: gives the connection to another listener, which also logs it.
fn pass_to_listener(s: &mut Session, to: &Address) -> Outcome {
    s.doing = PASSING;
    if s.wire().is_none() {
        s.log(Level::Error, format_args!("cannot pass udp connection"));
        return Err(SessionError::Internal);
    }
    if s.passes >= MAX_PASSES {
        s.log(Level::Error, format_args!("stream pass cycle"));
        return Err(SessionError::Internal);
    }
    // As nginx, which cannot give back what it has read through TLS.
    if !s.unread.is_empty() && s.wire().is_some_and(|client| client.is_tls()) {
        s.log(Level::Error, format_args!("cannot pass connection with preread data"));
        return Err(SessionError::Internal);
    }
    let lookup = s.event_loop.listener_lookup.borrow().clone();
    let Some(take_over) = lookup.and_then(|lookup| lookup(to)) else {
        s.log(Level::Error, format_args!("port not found for \"{to}\""));
        return Ok(());
    };
    let (peer, local) = (s.peer().clone(), to.clone());
    let (proxy, times) = (s.proxy.take(), s.passes + 1);
    let (shown, bytes) = (s.shown.take(), std::mem::take(&mut s.unread));
    let wire = s.leave().ok_or(SessionError::Internal)?;
    take_over(HandedConnection { wire, shown, peer, local, proxy, bytes, times });
    Ok(())
}
