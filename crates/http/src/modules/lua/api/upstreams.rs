//! `ngx.upstream`: upstream groups, their peers, and which are down. nginx:
//! lua-upstream-nginx-module.

use std::sync::Arc;
use std::time::Instant;

use mlua::{Lua, Table};
use weir_upstream::{Duty, Group, PeerState};

use super::natives::Natives;
use super::time::at;
use crate::modules::lua::current;
use crate::upstream::groups::{self, GROUPS};

const UNKNOWN: &str = "upstream not found";

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add("upstream_names", |_, ()| {
        let all = current::site().map(groups::of).unwrap_or_default();
        all.iter().map(|group| group.name.clone()).collect::<Vec<_>>()
    })?;
    natives.add("upstream_servers", |lua, name: mlua::String| {
        let states = group(&name).ok_or(UNKNOWN)?.states(current::now());
        servers(lua, &states).map_err(|_| "no memory")
    })?;
    natives.add("upstream_peers", |lua, (name, backup): (mlua::String, bool)| {
        let now = current::now();
        let states = group(&name).ok_or(UNKNOWN)?.states(now);
        let states = states.iter().filter(|state| state.peer.options.backup == backup);
        let peers = states.enumerate().map(|(id, state)| peer(lua, id, state, now));
        let peers = peers.collect::<mlua::Result<Vec<_>>>();
        peers.map_err(|_| "no memory")
    })?;
    natives.add("upstream_down", |_, (name, backup, id, down): (mlua::String, bool, f64, bool)| {
        let group = group(&name).ok_or(UNKNOWN)?;
        let now = current::now();
        let states = group.states(now);
        let mut tier = states.iter().filter(|state| state.peer.options.backup == backup);
        let wanted = (id >= 0.0).then(|| tier.nth(id as usize)).flatten();
        let wanted = wanted.ok_or("bad peer id")?;
        let is_it = |state: &PeerState| Arc::ptr_eq(&state.peer, &wanted.peer);
        let duty = match (down, wanted.peer.options.down) {
            (true, _) => Some(Duty::Down),
            (false, true) => Some(Duty::Up),
            (false, false) => None,
        };
        group.change(is_it, &|changes| changes.duty = duty, now);
        Ok::<_, &str>(true)
    })
}

fn group(name: &mlua::String) -> Option<Arc<Group>> {
    let name = name.as_bytes();
    let groups = GROUPS.of(&current::site()?.main_confs);
    let mut all = groups.all().map(|upstream| &upstream.group);
    all.find(|group| group.name.as_bytes() == &*name).cloned()
}

/// A table for each `server` line, which may have several addresses.
fn servers(lua: &Lua, states: &[PeerState]) -> mlua::Result<Vec<Table>> {
    let is_same = |a: &PeerState, b: &PeerState| {
        a.peer.server == b.peer.server && a.peer.options == b.peer.options
    };
    states.chunk_by(is_same).map(|states| server(lua, states)).collect()
}

fn server(lua: &Lua, states: &[PeerState]) -> mlua::Result<Table> {
    let shown = lua.create_table()?;
    let [PeerState { peer, .. }, others @ ..] = states else { return Ok(shown) };
    if others.is_empty() {
        shown.raw_set("addr", &*peer.name)?;
    } else {
        let all = states.iter().map(|state| &*state.peer.name);
        shown.raw_set("addr", lua.create_sequence_from(all)?)?;
    }
    shown.raw_set("name", &*peer.server)?;
    shown.raw_set("weight", peer.options.weight)?;
    shown.raw_set("max_conns", peer.options.max_conns)?;
    shown.raw_set("max_fails", peer.options.max_fails)?;
    shown.raw_set("fail_timeout", peer.options.fail_timeout.as_secs())?;
    for (name, is_so) in [("backup", peer.options.backup), ("down", peer.options.down)] {
        if is_so {
            shown.raw_set(name, true)?;
        }
    }
    Ok(shown)
}

/// The state of a peer.
fn peer(lua: &Lua, id: usize, state: &PeerState, now: Instant) -> mlua::Result<Table> {
    let shown = lua.create_table()?;
    shown.raw_set("id", id)?;
    shown.raw_set("name", &*state.peer.name)?;
    shown.raw_set("weight", state.weight())?;
    shown.raw_set("current_weight", state.current)?;
    shown.raw_set("effective_weight", state.effective)?;
    shown.raw_set("conns", state.conns)?;
    shown.raw_set("fails", state.fails)?;
    shown.raw_set("max_fails", state.peer.options.max_fails)?;
    shown.raw_set("fail_timeout", state.peer.options.fail_timeout.as_secs())?;
    shown.raw_set("accessed", state.accessed.map_or(0, |then| at(now, then)))?;
    shown.raw_set("checked", state.checked.map_or(0, |then| at(now, then)))?;
    if state.duty() == Duty::Down {
        shown.raw_set("down", true)?;
    }
    Ok(shown)
}
