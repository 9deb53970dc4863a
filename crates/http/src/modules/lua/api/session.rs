//! The client of a session, for its scripts: `ngx.req.socket` of `stream`.

use std::os::fd::AsFd;
use std::rc::Rc;

use mlua::{MultiValue, Value};
use rustix::net::{AddressFamily, sockopt};
use weir_ssl::scripted::ScriptedClient;

use super::natives::Natives;
use super::socket::{Tcp, TcpHandle, handle};
use crate::modules::lua::current::{self, NgxError, Scripted};
use crate::modules::lua::session;
use crate::modules::lua::socket::SocketError;
use crate::modules::lua::yield_request::{YieldRequest, failure, reply};

/// The status of a session whose peek fails, and of one that asks for too many bytes.
const OVER: i64 = 200;
const TOO_MUCH: i64 = 400;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    // A socket, or true for a UDP client.
    natives.add_refusing("session_client", |lua, ()| {
        let phase = current::phase();
        // During a handshake, TLS uses the connection.
        let client = phase.is_session().then(|| current::with_session(session::client)).flatten();
        match client.ok_or(NgxError::Disabled(phase))? {
            Ok(session::ClientHandle::Socket(socket)) => {
                let socket = lua.create_userdata(TcpHandle(socket)).map(Value::UserData);
                Ok((socket.ok(), None))
            }
            Ok(session::ClientHandle::Datagrams) => Ok((Some(Value::Boolean(true)), None)),
            Err(why) => Ok((None, Some(why))),
        }
    })?;
    natives.add_refusing("session_take", |lua, size: Option<usize>| {
        let taken = current::with_session(|s| session::take(s, size)).ok_or(NgxError::NoRequest)?;
        Ok(taken.map(|bytes| lua.create_string(bytes).map(Value::String).unwrap_or(Value::Nil)))
    })?;
    natives.add_refusing("session_answer", |lua, data: Value| {
        let mut bytes = Vec::new();
        super::natives::write_message(lua, &data, &mut bytes)
            .map_err(|text| format!("bad argument #1 to 'send' ({text})"))?;
        let sent = current::with_session(|s| session::answer(s, &bytes));
        let sent = sent.ok_or(NgxError::NoRequest)?;
        Ok(sent.then_some(bytes.len()))
    })?;
    natives.add_refusing("session_original_address", |_, ()| {
        let address = current::with_session(original_address).ok_or(NgxError::NoRequest)?;
        Ok(address.map_or_else(|why| (None, Some(why)), |address| (Some(address), None)))
    })?;
    natives.add("session_shut_down", |_, socket: Tcp| socket.0.shut_down())?;
    // The bytes, or nil and the status with which the session ends.
    natives.add_waiting("session_peek", |_, (socket, size): (Tcp, usize)| {
        let (most, limit) =
            current::with_session(|s| s.preread_limits()).ok_or(NgxError::NoRequest)?;
        let (socket, handle) = (Rc::clone(&socket.0), handle()?);
        Ok(YieldRequest::Wait(Box::pin(async move {
            let came = socket.peek(&handle, size.min(most), limit).await;
            reply(move |lua| match came {
                Ok((bytes, _)) if size <= most => {
                    Ok(MultiValue::from_vec(vec![Value::String(lua.create_string(bytes)?)]))
                }
                Ok(_) => {
                    current::with_session(session::has_no_room);
                    Ok(MultiValue::from_vec(vec![Value::Nil, Value::Integer(TOO_MUCH)]))
                }
                Err((SocketError::Busy(_), _)) => Ok(failure(lua, "socket busy reading")),
                Err(_) => Ok(MultiValue::from_vec(vec![Value::Nil, Value::Integer(OVER)])),
            })
        })))
    })
}

/// The address to which the client connected before a rule of the kernel redirected it.
fn original_address(s: &mut Scripted) -> Result<String, &'static str> {
    let ScriptedClient::Connected(wire) = s.client() else {
        return Err("failed to get IPv4 origin addr");
    };
    let socket = wire.socket().as_fd();
    match sockopt::socket_domain(socket) {
        Ok(AddressFamily::INET6) => sockopt::ipv6_original_dst(socket)
            .map(|address| address.to_string())
            .map_err(|_| "failed to get IPv6 origin addr"),
        Ok(AddressFamily::INET) => sockopt::ip_original_dst(socket)
            .map(|address| address.to_string())
            .map_err(|_| "failed to get IPv4 origin addr"),
        _ => Err("unsupported address family"),
    }
}
