//! `ngx.socket.udp`: UDP sockets of scripts.

use std::rc::Rc;
use std::time::Duration;

use mlua::{IntoLua, MultiValue, UserDataRef, Value};

use super::natives::Natives;
use super::socket::{handle, ip, own, settings, tell_failed, waiting};
use crate::event_loop::LoopState;
use crate::modules::lua::conf::CONF;
use crate::modules::lua::current::{self, NgxError};
use crate::modules::lua::socket::{SocketTarget, UdpSocket};
use crate::modules::lua::yield_request::{YieldRequest, failure, reply};
use crate::site::settings::LocationConf;

/// A UDP socket, as a script holds it.
struct UdpHandle(Rc<UdpSocket>);

impl mlua::UserData for UdpHandle {}

type Udp = UserDataRef<UdpHandle>;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("udp_new", |lua, ()| {
        current::may_wait()?;
        let socket = Rc::new(UdpSocket::new(CONF.of(settings()?).read_timeout));
        own(&socket)?;
        lua.create_userdata(UdpHandle(socket)).map_err(|error| error.to_string().into())
    })?;
    natives.add("udp_timeout", |_, (socket, ms): (Udp, f64)| {
        socket.0.set_timeout(Duration::from_millis(ms as u64));
    })?;
    natives.add("udp_bind", |_, (socket, address): (Udp, mlua::String)| {
        ip(&address).map(|ip| socket.0.bind(ip)).is_some()
    })?;
    natives.add_waiting("udp_connect", |_, (socket, host, port): (Udp, mlua::String, u16)| {
        own(&socket.0)?;
        let server = SocketTarget::new(&host.as_bytes(), Some(port))?;
        let event_loop = LoopState::current().ok_or(NgxError::NoRequest)?;
        let LocationConf { core, .. } = settings()?;
        let socket = socket.0.clone();
        Ok(waiting(async move {
            let connected = socket.connect(&event_loop, core, server).await;
            connected.map(|()| Value::Integer(1)).map_err(|failed| (failed, None))
        }))
    })?;
    natives.add_waiting("udp_send", |lua, (socket, data): (Udp, Value)| {
        own(&socket.0)?;
        let mut bytes = Vec::new();
        super::natives::write_message(lua, &data, &mut bytes)
            .map_err(|text| format!("bad argument #1 to 'send' ({text})"))?;
        let (socket, handle) = (socket.0.clone(), handle()?);
        Ok(waiting(async move {
            let sent = socket.send(&handle, &bytes).await;
            sent.map(|()| Value::Integer(1)).map_err(|failed| (failed, None))
        }))
    })?;
    natives.add_waiting("udp_receive", |_, (socket, most): (Udp, Option<usize>)| {
        own(&socket.0)?;
        let (socket, handle) = (socket.0.clone(), handle()?);
        let log_errors = CONF.of(settings()?).socket_log_errors;
        Ok(YieldRequest::Wait(Box::pin(async move {
            let received = socket.receive(&handle, most).await;
            reply(move |lua| match received {
                Ok(bytes) => {
                    Ok(MultiValue::from_vec(vec![lua.create_string(bytes)?.into_lua(lua)?]))
                }
                Err(failed) => {
                    if log_errors {
                        tell_failed(&failed, "udp", "read", &socket.peer());
                    }
                    Ok(failure(lua, &failed.to_string()))
                }
            })
        })))
    })?;
    natives.add("udp_is_open", |_, socket: Udp| socket.0.is_open())?;
    natives.add_refusing("udp_close", |_, socket: Udp| {
        own(&socket.0)?;
        Ok(super::natives::Done(socket.0.close().map_err(|failed| failed.to_string())))
    })
}
