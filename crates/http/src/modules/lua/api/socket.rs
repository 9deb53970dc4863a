//! `ngx.socket.tcp`: TCP connections of scripts.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use mlua::{BString, Either, IntoLuaMulti, Lua, MultiValue, UserDataRef, Value};
use weir_engine::Handle;
use weir_log::{Cause, Level};
use weir_proto::http1::Version;
use weir_sys::sockopt::SocketNumber;

use super::log::to_log;
use super::natives::{Natives, done, failed};
use super::tls_socket;
use crate::event_loop::LoopState;
use crate::modules::lua::answer;
use crate::modules::lua::conf::CONF;
use crate::modules::lua::current::{self, NgxError, with, with_answer};
use crate::modules::lua::run::received_reply;
use crate::modules::lua::socket::{
    BodySocket, OwnedSocket, Pattern, PoolOptions, Socket, SocketError, SocketTarget,
};
use crate::modules::lua::vm::vm_of;
use crate::modules::lua::yield_request::{Reply, YieldRequest, failure, reply};
use crate::request::Request;
use crate::site::settings::LocationConf;

/// A socket, as a script holds it.
pub(super) struct TcpHandle(pub(super) Rc<Socket>);

impl mlua::UserData for TcpHandle {}

pub(super) type Tcp = UserDataRef<TcpHandle>;

/// The request's body, as a script holds it.
struct BodyHandle(Rc<BodySocket>);

impl mlua::UserData for BodyHandle {}

/// A socket or body from which a script receives.
type ReceivingHandle = Either<Tcp, UserDataRef<BodyHandle>>;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("socket_new", |lua, ()| {
        current::may_wait()?;
        let conf = CONF.of(settings()?);
        let limits = (conf.connect_timeout, conf.send_timeout, conf.read_timeout);
        let socket = Rc::new(Socket::new(limits));
        own(&socket)?;
        lua.create_userdata(TcpHandle(socket)).map_err(|error| error.to_string().into())
    })?;
    natives.add("socket_timeouts", |_, (socket, times): (ReceivingHandle, (f64, f64, f64))| {
        let time = |ms: f64| (ms > 0.0).then(|| Duration::from_millis(ms as u64));
        let (connect, send, receive) = times;
        match socket {
            Either::Left(socket) => {
                socket.0.set_timeouts([time(connect), time(send), time(receive)]);
            }
            Either::Right(body) => {
                time(receive).into_iter().for_each(|time| body.0.set_timeout(time))
            }
        }
    })?;
    natives.add_waiting(
        "socket_connect",
        |_, (socket, host, port, pool, size, backlog): Connecting| {
            own(&socket.0)?;
            let server = SocketTarget::new(&host.as_bytes(), port)?;
            let name = pool.map_or_else(|| server.name(), |pool| pool.as_bytes().to_vec());
            let pool = PoolOptions { name, size, backlog };
            let event_loop = LoopState::current().ok_or(NgxError::NoRequest)?;
            let vm = vm_of(&event_loop).cloned().ok_or("no Lua VM")?;
            let (core, conf) = (&settings()?.core, CONF.of(settings()?));
            let (socket, name) = (socket.0.clone(), server.clone());
            Ok(YieldRequest::Wait(Box::pin(async move {
                let usual = usize::try_from(conf.pool_size).unwrap_or(usize::MAX);
                let connected = socket.connect((&event_loop, &vm), core, server, pool, usual).await;
                reply(move |lua| match connected {
                    Ok(()) => Ok(MultiValue::from_vec(vec![Value::Integer(1)])),
                    Err(failed) => {
                        if conf.socket_log_errors {
                            tell_unconnected(&name, &failed);
                        }
                        Ok(failure(lua, &failed.to_string()))
                    }
                })
            })))
        },
    )?;
    natives.add("socket_bind", |_, (socket, address, port): (Tcp, mlua::String, u16)| {
        ip(&address).map(|ip| socket.0.bind(SocketAddr::new(ip, port))).is_some()
    })?;
    tls_socket::install(natives)?;
    moving(natives)?;
    natives.add_refusing("socket_close", |_, socket: Tcp| {
        own(&socket.0)?;
        Ok(done(match socket.0.refusal() {
            Some(refusal) => Err(refusal),
            None if socket.0.close() => Ok(()),
            None => Err(SocketError::Closed),
        }))
    })?;
    natives.add("socket_is_open", |_, socket: ReceivingHandle| match &socket {
        Either::Left(socket) => socket.0.is_open(),
        Either::Right(body) => body.0.is_open(),
    })?;
    natives.add("socket_reads", |_, socket: ReceivingHandle| {
        let reads = match &socket {
            Either::Left(socket) => socket.0.reads(),
            Either::Right(body) => body.0.is_open(),
        };
        reads || refused("receive")
    })?;
    natives.add("socket_writes", |_, socket: Tcp| socket.0.writes() || refused("send"))?;
    natives.add("body_socket", |lua, ()| match with_answer(body_socket) {
        Ok(Ok(socket)) => (None, lua.create_userdata(BodyHandle(socket)).ok(), None),
        Ok(Err(why)) => (None, None, Some(why)),
        Err(refusal) => (Some(refusal.to_string()), None, None),
    })?;
    natives.add_waiting("raw_socket", |_, ()| with_answer(raw_socket)?)?;
    natives.add("socket_descriptor", |_, socket: ReceivingHandle| {
        with_descriptor(&socket, |fd| Ok(fd.as_raw_fd())).ok()
    })?;
    natives.add("socket_is_secured", |_, socket: Tcp| socket.0.sessions().is_some())?;
    natives.add(
        "socket_get_option",
        |_, (socket, name): (ReceivingHandle, String)| match option(&name, |option| {
            with_descriptor(&socket, |fd| option.get(fd))
        }) {
            Ok(value) => (Some(value), None),
            Err(why) => (None, Some(why)),
        },
    )?;
    natives.add(
        "socket_set_option",
        |_, (socket, name, value): (ReceivingHandle, String, i32)| match option(&name, |option| {
            with_descriptor(&socket, |fd| option.set(fd, value))
        }) {
            Ok(()) => (Some(true), None),
            Err(why) => (None, Some(why)),
        },
    )?;
    natives.add("socket_trust", |_, (socket, authorities): (Tcp, Option<Vec<BString>>)| {
        let der = |one: BString| Vec::from(one);
        socket.0.trust(authorities.map(|all| all.into_iter().map(der).collect()));
    })?;
    natives.add("socket_reused", |_, socket: Tcp| socket.0.reused())?;
    natives.add_refusing(
        "socket_keep",
        |_, (socket, ms, most): (Tcp, Option<f64>, Option<usize>)| {
            own(&socket.0)?;
            let conf = CONF.of(settings()?);
            let time =
                ms.map_or(conf.keepalive_timeout, |ms| Duration::from_millis(ms.max(0.0) as u64));
            let most = most.unwrap_or(usize::try_from(conf.pool_size).unwrap_or(usize::MAX));
            let event_loop = LoopState::current().ok_or(NgxError::NoRequest)?;
            Ok(done(socket.0.keep(&event_loop, time, most)))
        },
    )
}

/// Socket, host, port, pool name, pool size and backlog.
type Connecting =
    (Tcp, mlua::String, Option<u16>, Option<mlua::String>, Option<usize>, Option<u64>);

/// Calls `f` with the descriptor of a connection. For a body it is the client's.
fn with_descriptor<T>(
    socket: &ReceivingHandle,
    f: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
) -> io::Result<T> {
    match socket {
        Either::Left(socket) => socket.0.with_descriptor(f),
        Either::Right(body) => body.0.with_descriptor(f),
    }
}

/// Calls `f` with the socket option of a name. The error is the system's text.
fn option<T>(name: &str, f: impl FnOnce(SocketNumber) -> io::Result<T>) -> Result<T, String> {
    let option = match name {
        "keepalive" => SocketNumber::KeepAlive,
        "keepintvl" => SocketNumber::KeepAliveInterval,
        "keepcnt" => SocketNumber::KeepAliveCount,
        "reuseaddr" => SocketNumber::ReuseAddress,
        "tcp-nodelay" => SocketNumber::NoDelay,
        "sndbuf" => SocketNumber::SendBuffer,
        "rcvbuf" => SocketNumber::ReceiveBuffer,
        _ => return Err(format!("unsupported option {name}")),
    };
    f(option).map_err(|error| Cause(&error).words())
}

/// Logs a failed connection, in the words for upstream servers. A full pool and a busy socket are
/// not logged.
fn tell_unconnected(server: &SocketTarget, failed: &SocketError) {
    let name = String::from_utf8_lossy(&server.name()).into_owned();
    match (failed, server) {
        (SocketError::PoolFull | SocketError::Busy(_), _) => {}
        (SocketError::Kernel(code), SocketTarget::Unix(_)) => {
            let error = std::io::Error::from_raw_os_error(*code);
            let text = format!("connect() to {name} failed {}", weir_log::Cause(&error));
            to_log(Level::Crit, &text);
        }
        (SocketError::Kernel(code), SocketTarget::Host(..)) => {
            let error = std::io::Error::from_raw_os_error(*code);
            let cause = weir_log::Cause(&error);
            to_log(
                Level::Error,
                &format!("lua tcp socket connect to {name}: connect() failed {cause}"),
            );
        }
        (SocketError::Timeout, _) => {
            let text = format!("lua tcp socket connect timed out, when connecting to {name}");
            to_log(Level::Error, &text);
        }
        _ => {
            let text = format!("lua tcp socket connect to {name} failed: {failed}");
            to_log(Level::Error, &text);
        }
    }
}

/// Logs a failed operation of a socket.
pub fn tell_failed(failed: &SocketError, kind: &str, doing: &str, peer: &str) {
    if let Some(line) = failed.in_log(kind, doing) {
        to_log(Level::Error, &(line + peer));
    }
}

/// Logs that a script used a socket without a connection. Returns false: there is none.
fn refused(doing: &str) -> bool {
    if settings().is_ok_and(|conf| CONF.of(conf).socket_log_errors) {
        to_log(Level::Error, &format!("attempt to {doing} data on a closed socket: not connected"));
    }
    false
}

/// Sending and receiving.
fn moving(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_waiting("socket_send", |lua, (socket, data): (Tcp, Value)| {
        own(&socket.0)?;
        let mut bytes = Vec::new();
        super::natives::write_message(lua, &data, &mut bytes)
            .map_err(|text| format!("bad argument #1 to 'send' ({text})"))?;
        let (socket, handle) = (socket.0.clone(), handle()?);
        let log_errors = CONF.of(settings()?).socket_log_errors;
        Ok(YieldRequest::Wait(Box::pin(async move {
            let sent = bytes.len() as i64;
            let done = socket.send(&handle, bytes).await;
            reply(move |lua| match done {
                Ok(()) => Ok(MultiValue::from_vec(vec![Value::Integer(sent)])),
                Err(failed) => {
                    if log_errors {
                        tell_failed(&failed, "tcp", "write", &socket.peer());
                    }
                    Ok(failure(lua, &failed.to_string()))
                }
            })
        })))
    })?;
    natives.add_refusing(
        "socket_receive",
        |lua, (socket, pattern): (ReceivingHandle, Value)| {
            let pattern = match &pattern {
                Value::Nil => Pattern::Line,
                Value::Integer(n) => {
                    Pattern::Bytes(usize::try_from(*n).map_err(|_| "bad number argument")?)
                }
                Value::String(text) => match &*text.as_bytes() {
                    b"*l" => Pattern::Line,
                    b"*a" => Pattern::All,
                    _ => return Err("bad pattern argument".into()),
                },
                _ => return Err("bad pattern argument".into()),
            };
            receive(lua, &socket, pattern)
        },
    )?;
    natives.add_refusing(
        "socket_receive_any",
        |lua, (socket, most): (ReceivingHandle, usize)| {
            if most == 0 {
                return Err("bad argument #2 to 'receiveany' (bad max argument)".into());
            }
            receive(lua, &socket, Pattern::Any(most))
        },
    )?;
    natives.add_refusing(
        "socket_until",
        |lua, (socket, mark, inclusive, most): (ReceivingHandle, mlua::String, bool, Option<usize>)| {
            let mark = mark.as_bytes().to_vec();
            if mark.is_empty() {
                return Err("pattern is empty".into());
            }
            receive(lua, &socket, Pattern::Until { mark, inclusive, most })
        },
    )
}

/// The bytes that a receive returns without a wait, and whether a delimiter was reached.
type ReceivedNow = (Option<mlua::String>, bool);

/// Receives what has arrived before, or asks for a yield. The first needs no yield, so that it is
/// fast, and works where a script cannot yield.
fn receive(lua: &Lua, socket: &ReceivingHandle, pattern: Pattern) -> Result<ReceivedNow, NgxError> {
    if let Either::Left(socket) = socket {
        current::may_wait()?;
        own(&socket.0)?;
        if let Some((bytes, reached)) = socket.0.receive_now(&pattern) {
            let bytes = lua.create_string(bytes).map_err(failed)?;
            return Ok((Some(bytes), reached));
        }
    }
    current::request_yield(receive_later(socket, pattern).map_err(NgxError::in_phase)?)?;
    Ok((None, false))
}

fn receive_later(socket: &ReceivingHandle, pattern: Pattern) -> Result<YieldRequest, NgxError> {
    match socket {
        Either::Left(socket) => {
            own(&socket.0)?;
            let (socket, handle) = (socket.0.clone(), handle()?);
            let log_errors = CONF.of(settings()?).socket_log_errors;
            Ok(YieldRequest::Wait(Box::pin(async move {
                let received = socket.receive(&handle, &pattern).await;
                received_reply(received, log_errors.then(|| socket.peer()))
            })))
        }
        Either::Right(body) => with(|r| {
            let own = answer::context(r).body_socket.as_ref();
            match own.is_some_and(|own| Rc::ptr_eq(own, &body.0)) {
                true => Ok(YieldRequest::ReceiveBody(pattern)),
                false => Err("bad request".into()),
            }
        })?,
    }
}

/// `ngx.req.socket()`: only this socket reads the body from now on.
fn body_socket(r: &mut Request) -> Result<Rc<BodySocket>, &'static str> {
    let is_taken = r.body.is_whole() || r.body.is_half_read();
    if is_taken || answer::context(r).body_socket.is_some() {
        return Err("request body already exists");
    }
    if r.body.is_read() {
        return Err("no body");
    }
    // A stream has no connection of its own.
    let is_stream = matches!(r.version, Version::Http20 | Version::Http30);
    let conn = (!is_stream).then(|| r.conn.clone());
    let socket = Rc::new(BodySocket::new(CONF.of(r.conf()).read_timeout, conn));
    answer::context(r).body_socket = Some(socket.clone());
    Ok(socket)
}

/// `ngx.req.socket(true)`. A client of HTTP/2 or HTTP/3 has no connection of its own for the
/// request.
fn raw_socket(r: &mut Request) -> Result<YieldRequest, NgxError> {
    match r.version {
        Version::Http20 => Err("http v2 not supported yet".into()),
        Version::Http30 => Err("http v3 not supported yet".into()),
        _ => Ok(YieldRequest::TakeOver),
    }
}

/// The result of `ngx.req.socket(true)`.
pub fn raw_socket_reply(taken: Result<Rc<Socket>, &'static str>) -> Reply {
    reply(move |lua| match taken {
        Ok(socket) => lua.create_userdata(TcpHandle(socket))?.into_lua_multi(lua),
        Err(text) => Ok(failure(lua, text)),
    })
}

/// A wait that returns one value, or nil, the error, and the bytes received before it.
pub(super) fn waiting(
    work: impl Future<Output = Result<Value, (SocketError, Option<Vec<u8>>)>> + 'static,
) -> YieldRequest {
    YieldRequest::Wait(Box::pin(async move {
        let done = work.await;
        let told: Reply = reply(move |lua| match done {
            Ok(value) => Ok(MultiValue::from_vec(vec![value])),
            Err((failed, part)) => fail(lua, &failed, part.as_deref()),
        });
        told
    }))
}

fn fail(lua: &Lua, failed: &SocketError, part: Option<&[u8]>) -> mlua::Result<MultiValue> {
    let mut values = failure(lua, &failed.to_string());
    if let Some(part) = part {
        values.push_back(Value::String(lua.create_string(part)?));
    }
    Ok(values)
}

/// An IP address.
pub(super) fn ip(address: &mlua::String) -> Option<IpAddr> {
    std::str::from_utf8(&address.as_bytes()).ok()?.parse().ok()
}

pub(super) fn handle() -> Result<Handle, NgxError> {
    LoopState::current().map(|event_loop| event_loop.handle.clone()).ok_or(NgxError::NoRequest)
}

/// Lets the running request, session or timer own a socket. An error if it belongs to another.
pub(super) fn own<S: OwnedSocket + 'static>(socket: &Rc<S>) -> Result<(), NgxError> {
    match current::with_sockets(|sockets| sockets.own(socket)) {
        Some(false) => Err("bad request".into()),
        _ => Ok(()),
    }
}

/// The settings of the place that the script runs for.
pub(super) fn settings() -> Result<&'static LocationConf, NgxError> {
    current::settings().ok_or(NgxError::NoRequest)
}
