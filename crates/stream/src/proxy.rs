//! Relays sessions to upstream servers. nginx: ngx_stream_proxy_module.

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
use crate::session::{Attempt, Client, Session, unless_ended};
use crate::settings::Proxy;
use crate::status::{Outcome, SessionError};
use crate::tls;

/// The servers of a session.
pub enum ProxyTarget {
    /// A group of the configuration.
    Group(GroupId),
    /// Addresses that `proxy_pass` with variables gave for this session.
    Found(Arc<Group>),
}

/// Finds the servers of a `proxy_pass` with variables.
pub async fn compute(s: &mut Session, address: &Template) -> Result<ProxyTarget, SessionError> {
    s.is_proxied = true;
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
    let lookup = resolver.resolve(&handle, host, s.conf().resolver_timeout);
    match unless_ended(s, lookup).await {
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

/// Relays a session to a server of `target`.
pub async fn pass(s: &mut Session, presence: &Presence, target: ProxyTarget) -> Outcome {
    s.is_proxied = true;
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
            begin_attempt(s, group.name.as_str(), now);
            s.log(Level::Error, format_args!("no live upstreams while connecting to upstream"));
            end_attempt(s);
            return Err(SessionError::BadGateway);
        };
        // A server that a script has chosen is not counted as one of the group's.
        let counts = counts.as_ref().filter(|_| picked.is_some());
        let counted = counts.and_then(|all| CountedSession::start(&all.counts, &group, &peer));
        let counted = counted.as_ref();
        let held = HeldPeer { group: &group, picked: RefCell::new(picked), since: now, counted };
        begin_attempt(s, &peer.name, now);
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
                        relay(s, proxy, &held, &client, server).await;
                        ProxyEnd { outcome: Ok(()), failed: false }
                    }
                    (ConnectedServer::Datagrams(server), Client::Sending(place)) => {
                        datagrams::relay(s, proxy, &held, &place, server).await
                    }
                    _ => ProxyEnd { outcome: Err(SessionError::Internal), failed: false },
                };
                held.ended(s, if passed.failed { Ended::Failed } else { Ended::Well(times(s)) });
                return passed.outcome;
            }
            Err(Blame::Peer(failure)) => {
                end_attempt(s);
                if let Some(attempt) = s.attempts.last() {
                    let errno = attempt.fault.get().and_then(|(_, errno)| errno);
                    attempt.fault.set(Some((failure, errno)));
                }
                held.ended(s, Ended::by(failure));
                chooser.iter_mut().for_each(|chooser| chooser.failed(failure));
                let now = s.event_loop.handle.now();
                let out_of_time = !proxy.next_timeout.is_zero()
                    && now.saturating_duration_since(began) >= proxy.next_timeout;
                if !proxy.next || left == 0 || out_of_time {
                    return Err(SessionError::BadGateway);
                }
                counted.iter().for_each(|counted| counted.retried());
            }
            Err(Blame::Us) => {
                end_attempt(s);
                return Err(SessionError::Internal);
            }
        }
    }
}

/// A chosen peer. It is given back to its group however the session ends.
pub struct HeldPeer<'g> {
    group: &'g Arc<Group>,
    picked: RefCell<Option<Picked>>,
    since: Instant,
    /// The peer's metrics, if the configuration names the server.
    counted: Option<&'g CountedSession>,
}

impl HeldPeer<'_> {
    /// Tells the balancing method how long the session took to reach this moment.
    pub fn reached(&self, moment: Measure, now: Instant) {
        if let Some(picked) = &mut *self.picked.borrow_mut() {
            self.group.reached(picked, moment, now.saturating_duration_since(self.since), now);
        }
    }

    /// The TCP connection is established, so the server is alive. A UDP server shows that only by
    /// an answer.
    fn connected(&self, s: &Session) {
        let handle = &s.event_loop.handle;
        if let Some(picked) = &mut *self.picked.borrow_mut() {
            self.group.connected(picked, handle.now());
        }
        self.counted.iter().for_each(|counted| counted.accepted(handle.wall()));
    }

    fn ended(self, s: &Session, how: Ended) {
        let Some(picked) = self.picked.take() else { return };
        if let (Some(counted), Some(attempt)) = (self.counted, s.attempts.last()) {
            counted.ended(attempt, how, s.event_loop.handle.wall());
        }
        if self.group.ended(&picked, how, s.event_loop.handle.now()) {
            // Only a UDP server can be disabled after it was reached: it did not answer.
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

/// The times of the last attempt.
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

/// What a proxied session does at present, for the log.
pub fn doing(s: &Session) -> &'static str {
    match s.attempts.last() {
        Some(attempt) if attempt.connect.is_some() => "proxying connection",
        Some(attempt) if attempt.secures => "SSL handshaking to upstream",
        _ => "connecting to upstream",
    }
}

/// Begins an attempt.
fn begin_attempt(s: &mut Session, name: &str, started: Instant) {
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

fn end_attempt(s: &mut Session) {
    let now = s.event_loop.handle.now();
    if let Some(attempt) = s.attempts.last_mut() {
        attempt.whole = Some(now.saturating_duration_since(attempt.started));
    }
}

/// A server that is ready for the session's bytes, after the TLS handshake if there is one.
enum ConnectedServer {
    Stream(Wire),
    Datagrams(Datagram),
}

/// A socket to a server, before anything is sent.
enum ServerSocket {
    Connected(Stream),
    Sending(Datagram),
}

/// The end of a relay.
pub struct ProxyEnd {
    /// The session's outcome.
    pub outcome: Outcome,
    /// Whether the server failed.
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
        // Boxed: the future is large, and a session spends little time in it.
        Some(secure) => Box::pin(open_tls(s, proxy, stream, secure, peer)).await,
    }
}

/// Sends the PROXY header, if there is one, and makes the TLS handshake.
async fn open_tls(
    s: &mut Session,
    proxy: &Proxy,
    stream: Stream,
    secure: &UpstreamTls,
    peer: &Peer,
) -> Result<ConnectedServer, Blame> {
    if let Some(version) = proxy.proxy_protocol {
        let mut head = Vec::new();
        write_proxy_header(s, version, &mut head);
        let length = head.len() as u64;
        let mut chain = Chain::new();
        chain.push(head);
        if let Err(error) = stream.send(&mut chain, Patience::Idle(proxy.timeout)).await {
            let doing = "while sending PROXY protocol to upstream";
            s.log(Level::Error, format_args!("send() failed {} {doing}", Cause(&error)));
            return Err(fault::blame(&error));
        }
        count_sent(s, length);
    }
    if let Some(attempt) = s.attempts.last_mut() {
        attempt.secures = true;
    }
    let secured = tls::connect(s, &stream, secure, &peer.name).await?;
    Ok(ConnectedServer::Stream(Wire::join(stream, Some(secured))))
}

/// Relays bytes both ways until one side is done.
async fn relay(
    s: &mut Session,
    proxy: &Proxy,
    held: &HeldPeer<'_>,
    client: &Rc<Wire>,
    server: Wire,
) {
    let handle = s.event_loop.handle.clone();
    held.connected(s);
    connected(s, held, || server.socket().local_addr());
    let head = first_bytes(s, proxy.proxy_protocol.filter(|_| !server.is_tls()));
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
            end_attempt(s);
            return;
        }
        count_sent(s, length);
    }
    let options = TunnelOptions {
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
    let result = tunnel::run(&handle, client, &server, options, &passed, answered).await;
    server.close_notify();
    record_passed(s);
    log_end(s, result);
}

/// Counts bytes that the server was sent before the relay.
fn count_sent(s: &mut Session, bytes: u64) {
    if let Some(attempt) = s.attempts.last_mut() {
        attempt.sent += bytes;
    }
}

/// Notes that an attempt is connected: the connect time, and in the log the local address.
pub fn connected(
    s: &mut Session,
    held: &HeldPeer<'_>,
    local: impl FnOnce() -> io::Result<SocketAddrAny>,
) {
    let now = s.event_loop.handle.now();
    held.reached(Measure::Connect, now);
    let Some(attempt) = s.attempts.last_mut() else { return };
    let elapsed = now.saturating_duration_since(attempt.started);
    attempt.connect = Some(elapsed);
    held.counted.iter().for_each(|counted| counted.connected(elapsed));
    let name = attempt.name.clone();
    if s.conf().error_log.enabled(Level::Info) {
        let (kind, local) = (s.kind(), Address::from_any(local().ok()));
        s.log_bare(Level::Info, format_args!("{kind}proxy {local} connected to {name}"));
    }
}

/// The first bytes for the server: the PROXY header, and what was already read from the client.
pub fn first_bytes(s: &mut Session, proxy_protocol: Option<u8>) -> Vec<u8> {
    if s.wire().is_some() {
        // Preread bytes count as received when they are relayed.
        s.received += s.unread.len() as u64;
    }
    let mut head = Vec::new();
    match proxy_protocol {
        None => return std::mem::take(&mut s.unread),
        Some(version) => write_proxy_header(s, version, &mut head),
    }
    head.append(&mut s.unread);
    head
}

/// Reads and drops what the client has sent to a session without a server, as much as nginx reads:
/// closing a socket with unread bytes resets the connection. `counts`: whether these bytes count as
/// received. They do if something was read from the client before, since nginx then goes on reading
/// while it connects. Otherwise nginx reads nothing.
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

/// Ends the attempt after the relay, with its times and bytes.
pub fn record_passed(s: &mut Session) {
    let (now, passed) = (s.event_loop.handle.now(), &s.passed);
    if let Some(attempt) = s.attempts.last_mut().filter(|attempt| attempt.whole.is_none()) {
        let since = |at: Instant| -> Duration { at.saturating_duration_since(attempt.started) };
        (attempt.first, attempt.whole) = (passed.first.get().copied().map(since), Some(since(now)));
        (attempt.sent, attempt.received) = (attempt.sent + passed.up_sent.get(), passed.down.get());
    }
}

fn log_end(s: &Session, result: Result<TunnelEnd, TunnelError>) {
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

/// The rate in bytes a second. 0: no limit.
pub fn rate(s: &mut Session, rate: Option<&Template>) -> u64 {
    let before = std::mem::replace(&mut s.doing, "connecting to upstream");
    let size = rate.map_or(0, |rate| rate.size(s));
    s.doing = before;
    size
}

/// Writes the PROXY header with the client's address.
fn write_proxy_header(s: &Session, version: u8, out: &mut Vec<u8>) {
    let ends = match (s.peer(), s.local()) {
        (Address::Inet(from), Address::Inet(to)) => Some((*from, *to)),
        _ => None,
    };
    let datagrams = s.wire().is_none();
    let extras = if version == 2 { tls::proxy_header_extras(s) } else { Extras::default() };
    proxy_protocol::write(version, ends, datagrams, &extras, out);
}
