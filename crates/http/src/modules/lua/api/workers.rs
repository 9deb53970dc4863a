//! `ngx.worker`, `ngx.config` and other properties of the server.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use mlua::Value;
use rustix::process::Signal;

use super::natives::Natives;
use crate::event_loop::LoopState;
use crate::modules::lua::current::{self, Phase};
use crate::modules::lua::environment;
use crate::modules::lua::vm::vm_of;
use crate::site::Site;
use weir_values::Identity;
use weir_values::listen::Listen;

/// The connection limit of the privileged agent that a script asked for; [`NO_AGENT`] if none did.
/// Each process has its own.
static WANTED_AGENT: AtomicU32 = AtomicU32::new(NO_AGENT);
const NO_AGENT: u32 = u32::MAX;

/// The connection limit of the privileged agent, if a script of this process has asked for one.
pub fn wanted_agent() -> Option<usize> {
    Some(WANTED_AGENT.load(Relaxed)).filter(|n| *n != NO_AGENT).map(|n| n as usize)
}

/// Adds the functions of this part.
pub fn install(
    natives: &Natives<'_>,
    (site, prefix): (&Site, &[u8]),
    identity: Identity,
) -> mlua::Result<()> {
    natives.constant("null", Value::NULL)?;
    natives.constant("worker_pid", identity.pid)?;
    natives.constant("worker_id", (!identity.agent).then_some(identity.worker))?;
    natives.constant("worker_count", identity.workers)?;
    natives.constant("worker_loop", identity.index)?;
    natives.constant("has_master", identity.has_master)?;
    natives.constant("is_agent", identity.agent)?;
    natives
        .add("want_agent", |_, connections: f64| WANTED_AGENT.store(connections as u32, Relaxed))?;
    natives
        .constant("parent_pid", rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()))?;
    let prefix = natives.lua.create_string(prefix)?;
    natives.constant("prefix", prefix)?;
    natives.add("first_env", |lua, name: mlua::String| {
        let value = environment::at_start(&name.as_bytes());
        value.and_then(|value| lua.create_string(value).ok())
    })?;
    natives.constant("configured", site.configured.as_str())?;
    // A process that only tests the configuration is not stopped.
    natives.add("quit", |_, ()| {
        let (own, is_first) = (rustix::process::getpid(), current::phase() == Phase::Init);
        !is_first && rustix::process::kill_process(own, Signal::QUIT).is_ok()
    })?;
    natives.add("worker_pids", |_, ()| {
        // An ended worker may still be counted, so the newest of each index is taken.
        let mut pids = BTreeMap::new();
        if let Some(event_loop) = LoopState::current() {
            let all = event_loop.registry.loops().into_iter().map(|tally| tally.owner);
            for owner in all.filter(|owner| owner.pid != 0) {
                let newest = pids.entry(owner.worker).or_insert((owner.generation, owner.pid));
                *newest = (owner.generation, owner.pid).max(*newest);
            }
        }
        pids.into_values().map(|(_, pid)| pid).collect::<Vec<_>>()
    })?;
    // Only before the loop listens. False later, and if the server has no such socket.
    natives.add("decline_socket", |_, name: mlua::String| {
        let event_loop = LoopState::current().filter(|_| current::phase() == Phase::InitWorker);
        let Some(event_loop) = event_loop else { return false };
        let is_named = |listen: &Listen| listen.address.to_string().as_bytes() == &*name.as_bytes();
        let number = event_loop.site.listens().iter().position(is_named);
        let vm = vm_of(&event_loop);
        let declined = number.zip(vm).map(|(number, vm)| vm.declined.borrow_mut().push(number));
        declined.is_some()
    })?;
    natives.add("worker_exiting", |_, ()| LoopState::current().is_some_and(|w| w.retiring()))
}
