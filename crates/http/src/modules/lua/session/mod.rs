//! Scripts of sessions in `stream`: their state, their clients, and the phases.

use std::future::{Future, pending};
use std::io::ErrorKind;
use std::rc::Rc;

use bytes::Bytes;
use weir_engine::{Chain, Either, Patience, either};
use weir_log::Level;
use weir_ssl::scripted::ScriptedClient;
use weir_tls::Wire;

use super::anchors::Anchor;
use super::conf::CONF;
use super::current::Scripted;
use super::script::SESSIONS;
use super::socket::{OwnSockets, Socket};
use super::vm::Vm;
use crate::carrier::LEFT;
use crate::site::settings::LocationConf;

mod phases;
mod read;

pub use phases::SessionRunner;
pub use read::{finish, is_used};

/// What a session keeps for its scripts.
pub struct SessionContext {
    /// The settings of its server.
    pub conf: &'static LocationConf,
    /// `ngx.ctx`
    pub ctx: Option<Anchor>,
    /// Sockets that close with the session.
    pub sockets: OwnSockets,
    /// Written but not sent.
    pending: Vec<u8>,
    /// Whether `ngx.eof` was called.
    eof: bool,
    /// Whether sending failed.
    broken: bool,
    /// `ngx.on_abort` of the running script.
    pub on_abort: Option<Anchor>,
    /// The client's connection, if the running script uses it, and the number of bytes that were
    /// unread then.
    client: Option<(Rc<Socket>, usize)>,
}

/// The client, as a script gets it.
pub enum ClientHandle {
    /// The connection of a TCP client.
    Socket(Rc<Socket>),
    /// A UDP client. [`take`] returns the received datagram.
    Datagrams,
}

/// Starts a script of the session: sets or creates its context. Returns the settings.
fn begin(s: &mut Scripted, vm: &Vm) -> &'static LocationConf {
    // The server name of a handshake may have chosen another server.
    let of_server = SESSIONS.of(&vm.site.main_confs).servers.get(s.server());
    let conf = of_server.unwrap_or_else(|| vm.side.main(vm.site));
    if let Some(known) =
        s.script_context().as_mut().and_then(|context| context.downcast_mut::<SessionContext>())
    {
        known.conf = conf;
        return conf;
    }
    let (sockets, pending) = Default::default();
    *s.script_context() = Some(Box::new(SessionContext {
        conf,
        ctx: None,
        sockets,
        pending,
        eof: false,
        broken: false,
        on_abort: None,
        client: None,
    }));
    conf
}

/// The context of a session. [`begin`] has created it.
pub fn context(s: &mut Scripted) -> &mut SessionContext {
    match s.script_context().as_mut().and_then(|context| context.downcast_mut()) {
        Some(context) => context,
        None => unreachable!("a script of a session has not begun"),
    }
}

/// `ngx.print`
pub fn print(s: &mut Scripted, bytes: &[u8]) -> Result<(), &'static str> {
    match context(s) {
        SessionContext { eof: true, .. } => return Err("seen eof"),
        SessionContext { broken: true, .. } => return Err("nginx output filter error"),
        _ => {}
    }
    match s.client() {
        ScriptedClient::Connected(_) => context(s).pending.extend_from_slice(bytes),
        ScriptedClient::Sending if bytes.is_empty() || answer(s, bytes) => {}
        ScriptedClient::Sending | ScriptedClient::Gone => return Err("nginx output filter error"),
    }
    Ok(())
}

/// Sends what was written. With `last`, nothing can be written after it.
pub async fn send(s: &mut Scripted, last: bool) -> Result<(), &'static str> {
    let context = self::context(s);
    if last && std::mem::replace(&mut context.eof, true) {
        return Err("seen eof");
    }
    let (bytes, limit) = (std::mem::take(&mut context.pending), CONF.of(context.conf).send_timeout);
    let ScriptedClient::Connected(client) = s.client() else { return Ok(()) };
    if bytes.is_empty() {
        return Ok(());
    }
    let mut chain = Chain::new();
    chain.push(Bytes::from(bytes));
    let length = chain.len();
    let sent = client.send(&mut chain, Patience::Idle(limit)).await;
    s.passed(0, length - chain.len());
    sent.map_err(|_| {
        self::context(s).broken = true;
        "client aborted"
    })
}

/// Sends a datagram to the client.
pub fn answer(s: &mut Scripted, bytes: &[u8]) -> bool {
    let sent = s.answer(bytes);
    if sent {
        s.passed(0, bytes.len() as u64);
    }
    sent
}

/// `ngx.req.socket`: lends the client's connection to the script until it ends.
pub fn client(s: &mut Scripted) -> Result<ClientHandle, &'static str> {
    if let Some((socket, _)) = &context(s).client {
        return Ok(ClientHandle::Socket(socket.clone()));
    }
    match s.client() {
        ScriptedClient::Connected(wire) => {
            let unread = std::mem::take(s.unread());
            let (had, context) = (unread.len(), self::context(s));
            let conf = CONF.of(context.conf);
            let times = (conf.connect_timeout, conf.send_timeout, conf.read_timeout);
            let socket = Rc::new(Socket::of_session(wire, unread, times));
            context.client = Some((socket.clone(), had));
            Ok(ClientHandle::Socket(socket))
        }
        ScriptedClient::Sending => Ok(ClientHandle::Datagrams),
        ScriptedClient::Gone => Err("client aborted"),
    }
}

/// Waits for `what`, or until the client has closed its side and no data of it are unread.
pub async fn client_stays_until(s: &Scripted, what: impl Future<Output = ()>) {
    let ScriptedClient::Connected(wire) = s.client() else { return what.await };
    if matches!(either(what, left(&wire)).await, Either::Right(())) {
        s.log(Level::Info, format_args!("stream {LEFT}"));
    }
}

async fn left(wire: &Wire) {
    while wire.socket().closed().await.is_err_and(|e| e.kind() == ErrorKind::TimedOut) {
        // The deadline of an earlier send.
        wire.set_deadline(None);
    }
    // With TLS, the unread bytes may be the close_notify alert alone.
    if !wire.is_tls() && wire.socket().has_bytes() {
        // The script may receive them. Then this runs again.
        pending().await
    }
}

/// Takes up to `size` bytes of the received datagram. `None` if nothing is left.
pub fn take(s: &mut Scripted, size: Option<usize>) -> Option<Vec<u8>> {
    let unread = s.unread();
    let size = size.unwrap_or(unread.len()).min(unread.len());
    (!unread.is_empty()).then(|| unread.drain(..size).collect())
}

/// Logs that a script wants to peek at more bytes than the preread buffer holds.
pub fn has_no_room(s: &mut Scripted) {
    s.log(Level::Error, format_args!("preread buffer full while prereading client data"));
}

/// Ends the script's use of the client. Bytes that it has not received are left to what comes next.
fn take_back(s: &mut Scripted) {
    context(s).on_abort = None;
    let Some((socket, had)) = context(s).client.take() else { return };
    let (unread, came, sent) = socket.give_back();
    let received = (had as u64 + came).saturating_sub(unread.len() as u64);
    *s.unread() = unread;
    s.passed(received, sent);
}
