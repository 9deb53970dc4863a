//! Starts a VM: installs `ngx` and runs `init_by_lua`.

use std::rc::Rc;

use mlua::Lua;
use weir_log::Level;
use weir_values::Identity;

use super::anchors::Anchors;
use super::current::{self, Phase};
use super::script::Side;
use super::vm::{StartError, Vm};
use super::{api, package};
use crate::event_loop::LoopState;
use crate::site::Site;

/// Makes a loop's VM and runs `init_by_lua`. `None` if the side has no scripts.
pub fn start(event_loop: &LoopState, side: Side) -> Option<Rc<Vm>> {
    let site = event_loop.site;
    let scripts = side.scripts(site);
    if side == Side::Requests {
        // The captured log lines of a loop are for both VMs.
        let all = [scripts, Side::Sessions.scripts(site)].into_iter();
        let used = all.filter(|scripts| !scripts.is_empty());
        weir_log::capture(used.filter_map(|scripts| scripts.captured_log).max());
    }
    if scripts.is_empty() {
        return None;
    }
    let log = &side.main(site).core.error_log;
    let tell = |error: StartError| log.write(Level::Emerg, None, format_args!("{error}"));
    let vm = Vm::new(site, side).map_err(tell).ok()?;
    // The process that tested the configuration has logged these lines.
    if let Err(error) = current::mute(|| initialize(&vm, event_loop)) {
        tell(error);
        vm.broken.set(true);
    }
    Some(Rc::new(vm))
}

/// Runs `init_by_lua` in a VM that is then dropped.
pub fn try_out(event_loop: &LoopState, side: Side) -> Result<(), StartError> {
    let vm = Vm::new(event_loop.site, side)?;
    weir_log::capture(vm.known.captured_log);
    initialize(&vm, event_loop)
}

/// Installs `ngx` in the VM and runs `init_by_lua`.
fn initialize(vm: &Vm, event_loop: &LoopState) -> Result<(), StartError> {
    let install = || install_ngx(&vm.lua, &vm.anchors, (vm.site, vm.side), event_loop.identity);
    current::beside(vm.side, install).map_err(StartError::NotMade)?;
    vm.run(Phase::Init, vm.known.init)
}

/// Sets the search paths of a VM, and installs `ngx` in it.
pub fn install_ngx(
    lua: &Lua,
    anchors: &Anchors,
    (site, side): (&'static Site, Side),
    identity: Identity,
) -> mlua::Result<()> {
    let prefix = prefix(site);
    package::set_paths(lua, side.scripts(site), &prefix)?;
    api::install(lua, anchors, (site, &prefix, side), identity)
}

/// The server's prefix, with a trailing slash.
fn prefix(site: &Site) -> Vec<u8> {
    let mut prefix = site.prefix.clone();
    if prefix.last() != Some(&b'/') {
        prefix.push(b'/');
    }
    prefix
}
