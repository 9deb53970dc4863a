//! Passes sessions on to servers. nginx: ngx_stream_proxy_module.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::{Chain, Datagram, Patience, SocketAddrAny, Stream};
use weir_log::{Cause, Level};
use weir_proto::proxy_protocol::{self, Extras};
use weir_ssl::client::UpstreamTls;
use weir_tls::{Wire, failed_call};
use weir_upstream::balance::Measure;
use weir_upstream::config::{GroupId, HashKey, Host, Url};
use weir_upstream::fault::{self, Blame};
use weir_upstream::tunnel::{self, TunnelEnd, TunnelError, TunnelOptions};
use weir_upstream::{Choice, Ended, Group, Peer, PeerTimes, Picked};
use weir_values::presence::Presence;
use weir_values::{Address, Subject, Template};

use crate::chooser::{Chooser, Unchosen};
use crate::counts::CountedSession;
use crate::datagrams;
use crate::session::{Attempt, Client, Session, unless_over};
use crate::settings::Proxy;
use crate::status::{Outcome, SessionError};
use crate::tls;

/// Where a session leads.
pub enum ProxyTarget {
    /// A group of the configuration.
    Group(GroupId),
    /// Addresses that were found for this session.
    Found(Arc<Group>),
}

/// Where an address with variables leads.
pub async fn compute(s: &mut Session, address: &Template) -> Result<ProxyTarget, SessionError> {
    s.leads = true;
    let text = address.eval(s).into_owned();
    let shown = String::from_utf8_lossy(&text).into_owned();
    let url = Url::parse(&text, false).map_err(|e| {
        s.log(Level::Error, format_args!("{e} in upstream \"{shown}\""));
        SessionError::Internal
    })?;
    if let Some(id) = s.event_loop.site.upstreams.find(&url.host, url.port, 0) {
        return Ok(ProxyTarget::Group(id));
    }
    let host = String::from_utf8_lossy(&url.host).into_owned();
    let port = url.port.unwrap_or(0);
    if port == 0 && !matches!(url.address, Some(Host::Unix(_))) {
        s.log(Level::Error, format_args!("no port in upstream \"{host}\""));
        return Err(SessionError::Internal);
    }
    let endpoints = match &url.address {
        Some(address) => vec![address.endpoint(port)],
        None => resolve(s, &host, port).await?,
    };
    Ok(ProxyTarget::Found(Group::found(&host, endpoints)))
}

async fn resolve(
    s: &mut Session,
    host: &str,
    port: u16,
) -> Result<Vec<weir_upstream::PeerAddress>, SessionError> {
    let Some(conf) = &s.conf().resolver else {
        s.log(Level::Error, format_args!("no resolver defined to resolve {host}"));
        return Err(SessionError::Internal);
    };
    let resolver = s.event_loop.resolvers.of(conf);
    let handle = s.event_loop.handle.clone();
    let asked = resolver.resolve(&handle, host, s.conf().resolver_timeout);
    match unless_over(s, asked).await {
        None => Err(SessionError::ClientLeft),
        Some(Ok(found)) => {
            Ok(found.addresses.into_iter().map(|ip| Host::Ip(ip).endpoint(port)).collect())
        }
        Some(Err(why)) => {
            s.log(Level::Error, format_args!("{host} could not be resolved ({why})"));
            Err(SessionError::Internal)
        }
    }
}

/// Passes a session on.
pub async fn pass(s: &mut Session, presence: &Presence, target: ProxyTarget) -> Outcome {
    s.leads = true;
    let site = s.event_loop.site;
    let counts = matches!(target, ProxyTarget::Group(_)).then(|| s.event_loop.clone());
    let (group, key, chooses) = match target {
        ProxyTarget::Found(group) => (group, Vec::new(), false),
        ProxyTarget::Group(id) => match site.upstreams.get(id) {
            Some(upstream) => {
                (upstream.group.clone(), key(s, &upstream.key), upstream.extras.chooses)
            }
            None => return Err(SessionError::Internal),
        },
    };
    let proxy = &s.conf().proxy;
    let from = proxy.bind.as_ref().and_then(|bind| bind.address(s));
    let secure = tls::to_servers(s, group.name.as_bytes());
    let began = s.event_loop.handle.now();
    let mut choice = Choice::new(key);
    let tries = if chooses { group.tries().max(1) } else { group.tries() };
    let mut left = match proxy.tries {
        0 => tries,
        most => tries.min(most),
    };
    let mut chooser = chooses.then(|| Chooser::new(s, &group, left));
    loop {
        let now = s.event_loop.handle.now();
        let chosen = match chooser.as_mut().map(|chooser| chooser.choose(s, &group, &mut left)) {
            None => None,
            Some(Ok(chosen)) => chosen,
            Some(Err(Unchosen::Ends(error))) => return Err(error),
            Some(Err(Unchosen::Fails)) => {
                left = left.saturating_sub(1);
                if !proxy.next || left == 0 {
                    return Err(SessionError::BadGateway);
                }
                continue;
            }
        };
        let picked = match chosen {
            Some(_) => None,
            None => group.pick(&mut choice, now),
        };
        let Some(peer) = chosen.or_else(|| picked.as_ref().map(|picked| picked.peer.clone()))
        else {
            begin(s, group.name.as_str(), now);
            s.log(Level::Error, format_args!("no live upstreams while connecting to upstream"));
            end(s);
            return Err(SessionError::BadGateway);
        };
        // A server that a script has chosen is not the group's.
        let counts = counts.as_ref().filter(|_| picked.is_some());
        let asked = counts.and_then(|all| CountedSession::begin(&all.counts, &group, &peer));
        let asked = asked.as_ref();
        let held = HeldPeer { group: &group, picked: RefCell::new(picked), since: now, asked };
        begin(s, &peer.name, now);
        left = left.saturating_sub(1);
        let (changed, from) = match &chooser {
            Some(chooser) => (chooser.changed(proxy), chooser.from().or(from)),
            None => (None, from),
        };
        let proxy = changed.as_deref().unwrap_or(proxy);
        match reach(s, proxy, &peer, from, secure.as_ref()).await {
            Ok(server) => {
                presence.quiet();
                let passed = match (server, s.client.clone()) {
                    (ConnectedServer::Stream(server), Client::Connected(client)) => {
                        converse(s, proxy, &held, &client, server).await;
                        ProxyEnd { outcome: Ok(()), failed: false }
                    }
                    (ConnectedServer::Datagrams(server), Client::Sending(place)) => {
                        datagrams::converse(s, proxy, &held, &place, server).await
                    }
                    _ => ProxyEnd { outcome: Err(SessionError::Internal), failed: false },
                };
                held.ended(s, if passed.failed { Ended::Failed } else { Ended::Well(times(s)) });
                return passed.outcome;
            }
            Err(Blame::Peer(failure)) => {
                end(s);
                if let Some(attempt) = s.attempts.last() {
                    let errno = attempt.fault.get().and_then(|(_, errno)| errno);
                    attempt.fault.set(Some((failure, errno)));
                }
                held.ended(s, Ended::by(failure));
                chooser.iter_mut().for_each(|chooser| chooser.failed(failure));
                let now = s.event_loop.handle.now();
                let late = !proxy.next_timeout.is_zero()
                    && now.saturating_duration_since(began) >= proxy.next_timeout;
                if !proxy.next || left == 0 || late {
                    return Err(SessionError::BadGateway);
                }
                asked.iter().for_each(|asked| asked.again());
            }
            Err(Blame::Us) => {
                end(s);
                return Err(SessionError::Internal);
            }
        }
    }
}

/// A peer that was chosen, given back whatever happens to the session.
pub struct HeldPeer<'g> {
    group: &'g Arc<Group>,
    picked: RefCell<Option<Picked>>,
    since: Instant,
    /// Counts it, where the configuration names the server.
    asked: Option<&'g CountedSession>,
}

impl HeldPeer<'_> {
    /// The session has come to this moment.
    pub fn reached(&self, moment: Measure, now: Instant) {
        if let Some(picked) = &mut *self.picked.borrow_mut() {
            self.group.reached(picked, moment, now.saturating_duration_since(self.since), now);
        }
    }

    /// A connection is there. Datagrams say so only when the server answers.
    fn connected(&self, s: &Session) {
        let handle = &s.event_loop.handle;
        if let Some(picked) = &mut *self.picked.borrow_mut() {
            self.group.connected(picked, handle.now());
        }
        self.asked.iter().for_each(|asked| asked.serves(handle.wall()));
    }

    fn ended(self, s: &Session, how: Ended) {
        let Some(picked) = self.picked.take() else { return };
        if let (Some(asked), Some(attempt)) = (self.asked, s.attempts.last()) {
            asked.ended(attempt, how, s.event_loop.handle.wall());
        }
        if self.group.ended(&picked, how, s.event_loop.handle.now()) {
            // A server that was reached and is disabled all the same is one of datagrams that did not answer.
            let text = "upstream server temporarily disabled";
            s.log(Level::Warn, format_args!("{text} while {}", doing(s)));
        }
    }
}

impl Drop for HeldPeer<'_> {
    fn drop(&mut self) {
        if let Some(picked) = self.picked.take() {
            self.group.ended(&picked, Ended::Next, self.since);
        }
    }
}

/// What the last try took.
fn times(s: &Session) -> PeerTimes<Option<Duration>> {
    let of = |a: &Attempt| PeerTimes { connect: a.connect, first: a.first, last: a.whole };
    s.attempts.last().map(of).unwrap_or_default()
}

fn key(s: &mut Session, key: &HashKey) -> Vec<u8> {
    match key {
        HashKey::Nothing => Vec::new(),
        HashKey::Address => s.peer().host().into_bytes(),
        HashKey::Value(template) => template.eval(s).into_owned(),
    }
}

/// What the log says that a session does which leads to a server.
pub fn doing(s: &Session) -> &'static str {
    match s.attempts.last() {
        Some(attempt) if attempt.connect.is_some() => "proxying connection",
        Some(attempt) if attempt.secures => "SSL handshaking to upstream",
        _ => "connecting to upstream",
    }
}

/// Another try.
fn begin(s: &mut Session, name: &str, started: Instant) {
    let (connect, first, whole) = (None, None, None);
    s.attempts.push(Attempt {
        name: name.into(),
        started,
        secures: false,
        connect,
        first,
        whole,
        sent: 0,
        received: 0,
        fault: Cell::new(None),
    });
}

fn end(s: &mut Session) {
    let now = s.event_loop.handle.now();
    if let Some(attempt) = s.attempts.last_mut() {
        attempt.whole = Some(now.saturating_duration_since(attempt.started));
    }
}

/// A server, as it was reached.
enum ConnectedServer {
    Stream(Wire),
    Datagrams(Datagram),
}

/// A socket to a server, before anything is spoken.
enum ServerSocket {
    Connected(Stream),
    Sending(Datagram),
}

/// How passing on ended.
pub struct ProxyEnd {
    /// The session's.
    pub outcome: Outcome,
    /// The server is to blame.
    pub failed: bool,
}

async fn reach(
    s: &mut Session,
    proxy: &Proxy,
    peer: &Peer,
    from: Option<SocketAddr>,
    secure: Option<&UpstreamTls>,
) -> Result<ConnectedServer, Blame> {
    let handle = s.event_loop.handle.clone();
    let options = proxy.options(from, handle.now() + proxy.connect_timeout);
    let connecting = async {
        let to = peer.endpoint.to_any()?;
        match &s.client {
            Client::Sending(_) => {
                handle.connect_datagrams(&to, &options).map(ServerSocket::Sending)
            }
            _ => handle.connect(&to, &options).await.map(ServerSocket::Connected),
        }
    };
    let stream =
        match connecting.await.map_err(|error| s.log_failed(fault::connecting(peer, &error)))? {
            ServerSocket::Connected(stream) => stream,
            ServerSocket::Sending(server) => return Ok(ConnectedServer::Datagrams(server)),
        };
    if s.conf().tcp_nodelay {
        let _ = stream.nodelay(true);
    }
    match secure {
        None => Ok(ConnectedServer::Stream(Wire::join(stream, None))),
        // It is large, and no session rests in it.
        Some(secure) => Box::pin(open(s, proxy, stream, secure, peer)).await,
    }
}

/// Goes through the handshake. The client's address is sent before it.
async fn open(
    s: &mut Session,
    proxy: &Proxy,
    stream: Stream,
    secure: &UpstreamTls,
    peer: &Peer,
) -> Result<ConnectedServer, Blame> {
    if let Some(version) = proxy.proxy_protocol {
        let mut head = Vec::new();
        introduce(s, version, &mut head);
        let length = head.len() as u64;
        let mut chain = Chain::new();
        chain.push(head);
        if let Err(error) = stream.send(&mut chain, Patience::Idle(proxy.timeout)).await {
            let doing = "while sending PROXY protocol to upstream";
            s.log(Level::Error, format_args!("send() failed {} {doing}", Cause(&error)));
            return Err(fault::blame(&error));
        }
        sent(s, length);
    }
    if let Some(attempt) = s.attempts.last_mut() {
        attempt.secures = true;
    }
    let secured = tls::connect(s, &stream, secure, &peer.name).await?;
    Ok(ConnectedServer::Stream(Wire::join(stream, Some(secured))))
}

/// Bytes both ways, until one side is done.
async fn converse(
    s: &mut Session,
    proxy: &Proxy,
    held: &HeldPeer<'_>,
    client: &Rc<Wire>,
    server: Wire,
) {
    let handle = s.event_loop.handle.clone();
    held.connected(s);
    connected(s, held, || server.socket().local_addr());
    let head = head(s, proxy.proxy_protocol.filter(|_| !server.is_tls()));
    let length = head.len() as u64;
    if !head.is_empty() {
        let mut chain = Chain::new();
        chain.push(head);
        if let Err(error) = server.send(&mut chain, Patience::Idle(proxy.timeout)).await {
            s.log(
                Level::Info,
                format_args!(
                    "send() failed {} while proxying and sending to upstream",
                    Cause(&error)
                ),
            );
            end(s);
            return;
        }
        sent(s, length);
    }
    let ways = TunnelOptions {
        timeout: proxy.timeout,
        piece: proxy.buffer,
        most: proxy.most,
        up_rate: rate(s, proxy.upload_rate.as_ref()),
        down_rate: rate(s, proxy.download_rate.as_ref()),
        up_patience: None,
        down_patience: None,
        half_close: proxy.half_close,
    };
    let passed = s.passed.clone();
    let answered = || held.reached(Measure::First, handle.now());
    let result = tunnel::run(&handle, client, &server, ways, &passed, answered).await;
    server.close_notify();
    note_end(s);
    say_end(s, result);
}

/// So many bytes have gone to the server before others pass.
fn sent(s: &mut Session, bytes: u64) {
    if let Some(attempt) = s.attempts.last_mut() {
        attempt.sent += bytes;
    }
}

/// There is a server: how long that took, and from where it is spoken to.
pub fn connected(
    s: &mut Session,
    held: &HeldPeer<'_>,
    local: impl FnOnce() -> io::Result<SocketAddrAny>,
) {
    let now = s.event_loop.handle.now();
    held.reached(Measure::Connect, now);
    let Some(attempt) = s.attempts.last_mut() else { return };
    let took = now.saturating_duration_since(attempt.started);
    attempt.connect = Some(took);
    held.asked.iter().for_each(|asked| asked.connected(took));
    let name = attempt.name.clone();
    if s.conf().error_log.enabled(Level::Info) {
        let (kind, local) = (s.kind(), Address::from_any(local().ok()));
        s.log_bare(Level::Info, format_args!("{kind}proxy {local} connected to {name}"));
    }
}

/// What a server is sent first: the client's address, and what was read of the client before.
pub fn head(s: &mut Session, proxy_protocol: Option<u8>) -> Vec<u8> {
    if s.wire().is_some() {
        // What was only looked at has come when it goes on.
        s.received += s.unread.len() as u64;
    }
    let mut head = Vec::new();
    match proxy_protocol {
        None => return std::mem::take(&mut s.unread),
        Some(version) => introduce(s, version, &mut head),
    }
    head.append(&mut s.unread);
    head
}

/// Takes what the client has sent to a session that has no server, as much of it as nginx reads: a
/// socket that is closed with unread bytes is reset. `counts`: something was read of the client before, so that nginx goes on
/// reading while it looks for a server. Otherwise nginx has read nothing.
pub fn take_unread(s: &mut Session, counts: bool) {
    let Some(client) = s.wire() else { return };
    s.received += std::mem::take(&mut s.unread).len() as u64;
    let (mut buf, most) = (Vec::new(), s.conf().proxy.buffer);
    let mut taken = 0;
    while taken < most {
        buf.clear();
        buf.reserve(most - taken);
        match client.try_recv(&mut buf) {
            Ok(Some(n)) if n > 0 => taken += n,
            _ => break,
        }
    }
    if counts {
        s.received += taken as u64;
    }
}

/// All has passed that will.
pub fn note_end(s: &mut Session) {
    let (now, passed) = (s.event_loop.handle.now(), &s.passed);
    if let Some(attempt) = s.attempts.last_mut().filter(|attempt| attempt.whole.is_none()) {
        let since = |at: Instant| -> Duration { at.saturating_duration_since(attempt.started) };
        (attempt.first, attempt.whole) = (passed.first.get().copied().map(since), Some(since(now)));
        (attempt.sent, attempt.received) = (attempt.sent + passed.up_sent.get(), passed.down.get());
    }
}

fn say_end(s: &Session, result: Result<TunnelEnd, TunnelError>) {
    let end = match result {
        Err(TunnelError { error, .. }) if fault::is_late(&error) => {
            let (text, cause) = ("while proxying connection", fault::late());
            s.log(Level::Info, format_args!("connection timed out {} {text}", Cause(&cause)));
            return;
        }
        Err(TunnelError { end, sending, error }) => {
            let (name, level) = match end {
                TunnelEnd::Client => ("client", Level::Info),
                TunnelEnd::Server => ("upstream", Level::Error),
            };
            let (call, doing) =
                if sending { ("send()", "sending to") } else { ("recv()", "reading from") };
            let (call, cause) = (failed_call(call, &error), Cause(&error));
            s.log(level, format_args!("{call} failed {cause} while proxying and {doing} {name}"));
            if sending {
                return;
            }
            end
        }
        Ok(end) => end,
    };
    let Some(attempt) = s.attempts.last() else { return };
    let who = if end == TunnelEnd::Server { "upstream" } else { "client" };
    s.log_bare(
        Level::Info,
        format_args!(
            "{who} disconnected, bytes from/to client:{}/{}, bytes from/to upstream:{}/{}",
            s.bytes_received(),
            s.bytes_sent(),
            attempt.received,
            attempt.sent
        ),
    );
}

/// Bytes a second; 0: no limit.
pub fn rate(s: &mut Session, rate: Option<&Template>) -> u64 {
    let before = std::mem::replace(&mut s.doing, "connecting to upstream");
    let size = rate.map_or(0, |rate| rate.size(s));
    s.doing = before;
    size
}

/// Tells the server the client's address.
fn introduce(s: &Session, version: u8, out: &mut Vec<u8>) {
    let ends = match (s.peer(), s.local()) {
        (Address::Inet(from), Address::Inet(to)) => Some((*from, *to)),
        _ => None,
    };
    let datagrams = s.wire().is_none();
    let said = if version == 2 { tls::told(s) } else { Extras::default() };
    proxy_protocol::write(version, ends, datagrams, &said, out);
}
