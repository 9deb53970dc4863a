//! The functions of `ngx` in Rust, one file for each part.

use mlua::Lua;

use weir_sys::lua::direct;

use super::anchors::Anchors;
use super::prelude::PRELUDE;
use super::script::Side;
use super::yield_request::{failed_mark, mark};
use crate::site::Site;
use natives::Natives;
use weir_values::Identity;

mod balancer;
mod capture;
mod control;
mod digest;
mod encode;
mod headers;
mod log;
mod natives;
mod ocsp;
mod output;
mod pipe;
mod re;
mod request;
mod semaphore;
mod session;
mod shared;
mod socket;
mod ssl;
mod time;
mod timer;
mod tls_socket;
mod to_server;
mod udp;
mod upstreams;
mod variables;
mod worker_thread;
mod workers;

pub use socket::{raw_socket_reply, tell_failed};
pub use workers::wanted_agent;

/// Installs `ngx` in a VM.
pub fn install(
    lua: &Lua,
    anchors: &Anchors,
    (site, prefix, side): (&Site, &[u8], Side),
    identity: Identity,
) -> mlua::Result<()> {
    let natives = Natives { lua, table: lua.create_table()?, direct: lua.create_table()? };
    natives.constant("direct", &natives.direct)?;
    natives.constant("declarations", direct::DECLARATIONS)?;
    let (answer, room) = direct::answer();
    natives.constant("answer", answer)?;
    natives.constant("room", room)?;
    natives.add("long_text", |lua, ()| lua.create_string(direct::long_text()))?;
    natives.constant("WAIT", mark())?;
    natives.constant("kept", anchors.table())?;
    natives.constant("unyielding", anchors.unyielding())?;
    natives.constant("FAILED", failed_mark())?;
    let chunks: Vec<&str> = PRELUDE.iter().map(|(name, _)| *name).collect();
    natives.constant("prelude", chunks)?;
    natives.constant("of_sessions", side == Side::Sessions)?;
    balancer::install(&natives)?;
    capture::install(&natives)?;
    control::install(&natives)?;
    digest::install(&natives)?;
    encode::install(&natives)?;
    headers::install(&natives)?;
    log::install(&natives)?;
    ocsp::install(&natives)?;
    output::install(&natives)?;
    pipe::install(&natives)?;
    re::install(&natives)?;
    request::install(&natives)?;
    semaphore::install(&natives)?;
    session::install(&natives)?;
    shared::install(&natives)?;
    socket::install(&natives)?;
    ssl::install(&natives)?;
    time::install(&natives)?;
    timer::install(&natives)?;
    to_server::install(&natives)?;
    udp::install(&natives)?;
    upstreams::install(&natives)?;
    variables::install(&natives)?;
    worker_thread::install(&natives)?;
    workers::install(&natives, (site, prefix), identity)?;
    for (name, text) in PRELUDE {
        lua.load(*text).set_name(*name).call::<()>(&natives.table)?;
    }
    anchors.before_end(natives.table.raw_get("refuse_all")?);
    Ok(())
}
