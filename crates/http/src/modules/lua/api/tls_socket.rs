//! TLS on scripts' sockets: `sslhandshake`, `getsslsession` and `setclientcert`.

use mlua::{IntoLuaMulti, UserDataRef};
use weir_tls::{ClientSessions, IdentitySet};

use super::log;
use super::natives::Natives;
use super::socket::{Tcp, handle, own, settings, tell_failed};
use super::ssl::{ChainHandle, KeyHandle};
use crate::modules::lua::conf::CONF;
use crate::modules::lua::yield_request::{YieldRequest, failure, reply};

/// TLS sessions with a server, as a script holds them.
struct SessionHandle(ClientSessions);

impl mlua::UserData for SessionHandle {}

/// Socket, server name, whether to verify the certificate, whether the script wants the session,
/// and the sessions to resume.
type Securing = (Tcp, Option<mlua::String>, bool, bool, Option<UserDataRef<SessionHandle>>);

/// A certificate with its chain, and its key.
type Shown = (Option<UserDataRef<ChainHandle>>, Option<UserDataRef<KeyHandle>>);

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_waiting(
        "socket_secure",
        |_, (socket, name, verify, keeps, session): Securing| {
            own(&socket.0)?;
            let conf = CONF.of(settings()?);
            let name = name.map(|name| name.as_bytes().to_vec());
            if let Some(name) = &name {
                log::debug(|_| format!("lua ssl server name: \"{}\"", weir_log::Bytes(name)));
            }
            let client = conf.tls.client(name, verify, socket.0.identity());
            let client = client.map_err(|error| error.to_string())?;
            let (socket, handle, log_errors) =
                (socket.0.clone(), handle()?, conf.socket_log_errors);
            let sessions = session.map(|session| session.0.clone()).unwrap_or_default();
            Ok(YieldRequest::Wait(Box::pin(async move {
                let secured = socket.secure(&handle, &client, sessions).await;
                reply(move |lua| match secured {
                    Ok(()) if keeps => {
                        let sessions = socket.sessions().unwrap_or_default();
                        lua.create_userdata(SessionHandle(sessions))?.into_lua_multi(lua)
                    }
                    Ok(()) => true.into_lua_multi(lua),
                    Err(failed) => {
                        if log_errors {
                            tell_failed(&failed, "ssl", "handshake", &socket.peer());
                        }
                        Ok(failure(lua, &failed.to_string()))
                    }
                })
            })))
        },
    )?;
    natives.add("socket_session", |lua, socket: Tcp| {
        let sessions = socket.0.sessions();
        sessions
            .map(|sessions| lua.create_userdata(SessionHandle(sessions)))
            .transpose()
            .ok()
            .flatten()
    })?;
    natives.add("socket_shows", |_, (socket, (chain, key)): (Tcp, Shown)| {
        let mut set = IdentitySet::default();
        if let (Some(chain), Some(key)) = (chain, key) {
            if !set.set_chain(chain.0.clone()) {
                return Some("ssl set client certificate failed");
            }
            if set.set_key(key.0.clone()).is_err() {
                return Some("ssl set client private key failed");
            }
        }
        socket.0.show(set.identities().pop());
        None
    })
}
