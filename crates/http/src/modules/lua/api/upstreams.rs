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
        let seats = group(&name).ok_or(UNKNOWN)?.seats(current::now());
        servers(lua, &seats).map_err(|_| "no memory")
    })?;
    natives.add("upstream_peers", |lua, (name, backup): (mlua::String, bool)| {
        let now = current::now();
        let seats = group(&name).ok_or(UNKNOWN)?.seats(now);
        let seats = seats.iter().filter(|seat| seat.peer.options.backup == backup);
        let peers = seats.enumerate().map(|(id, seat)| peer(lua, id, seat, now));
        let peers = peers.collect::<mlua::Result<Vec<_>>>();
        peers.map_err(|_| "no memory")
    })?;
    natives.add("upstream_down", |_, (name, backup, id, down): (mlua::String, bool, f64, bool)| {
        let group = group(&name).ok_or(UNKNOWN)?;
        let now = current::now();
        let seats = group.seats(now);
        let mut tier = seats.iter().filter(|seat| seat.peer.options.backup == backup);
        let wanted = (id >= 0.0).then(|| tier.nth(id as usize)).flatten();
        let wanted = wanted.ok_or("bad peer id")?;
        let is_it = |seat: &PeerState| Arc::ptr_eq(&seat.peer, &wanted.peer);
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
fn servers(lua: &Lua, seats: &[PeerState]) -> mlua::Result<Vec<Table>> {
    let is_same = |a: &PeerState, b: &PeerState| {
        a.peer.server == b.peer.server && a.peer.options == b.peer.options
    };
    seats.chunk_by(is_same).map(|seats| server(lua, seats)).collect()
}

fn server(lua: &Lua, seats: &[PeerState]) -> mlua::Result<Table> {
    let shown = lua.create_table()?;
    let [PeerState { peer, .. }, others @ ..] = seats else { return Ok(shown) };
    if others.is_empty() {
        shown.raw_set("addr", &*peer.name)?;
    } else {
        let all = seats.iter().map(|seat| &*seat.peer.name);
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
fn peer(lua: &Lua, id: usize, seat: &PeerState, now: Instant) -> mlua::Result<Table> {
    let shown = lua.create_table()?;
    shown.raw_set("id", id)?;
    shown.raw_set("name", &*seat.peer.name)?;
    shown.raw_set("weight", seat.weight())?;
    shown.raw_set("current_weight", seat.current)?;
    shown.raw_set("effective_weight", seat.effective)?;
    shown.raw_set("conns", seat.conns)?;
    shown.raw_set("fails", seat.fails)?;
    shown.raw_set("max_fails", seat.peer.options.max_fails)?;
    shown.raw_set("fail_timeout", seat.peer.options.fail_timeout.as_secs())?;
    shown.raw_set("accessed", seat.accessed.map_or(0, |then| at(now, then)))?;
    shown.raw_set("checked", seat.checked.map_or(0, |then| at(now, then)))?;
    if seat.duty() == Duty::Down {
        shown.raw_set("down", true)?;
    }
    Ok(shown)
}
