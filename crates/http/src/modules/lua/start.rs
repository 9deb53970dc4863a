//! A VM at its start: what `ngx` is, and `init_by_lua`.

use std::rc::Rc;

use mlua::Lua;
use weir_log::Level;
use weir_values::Identity;

use super::anchors::Anchors;
use super::current::{self, Phase};
use super::script::SCRIPTS;
use super::vm::{StartError, Vm};
use super::{api, package};
use crate::event_loop::LoopState;
use crate::site::Site;

/// Makes a loop's VM and runs `init_by_lua`; `None` where the site has no scripts.
pub fn start(event_loop: &LoopState) -> Option<Rc<Vm>> {
    let site = event_loop.site;
    if SCRIPTS.of(&site.main_confs).is_empty() {
        weir_log::capture(None);
        return None;
    }
    let log = &site.main.core.error_log;
    let tell = |error: StartError| log.write(Level::Emerg, None, format_args!("{error}"));
    let vm = Vm::new(site).map_err(tell).ok()?;
    weir_log::capture(vm.known.captured_log);
    // The process that has tried the script out has logged its lines.
    if let Err(error) = current::mute(|| begin(&vm, event_loop)) {
        tell(error);
        vm.broken.set(true);
    }
    Some(Rc::new(vm))
}

/// Runs `init_by_lua` in a VM of its own.
pub fn try_out(event_loop: &LoopState) -> Result<(), StartError> {
    let vm = Vm::new(event_loop.site)?;
    weir_log::capture(vm.known.captured_log);
    begin(&vm, event_loop)
}

/// Puts `ngx` into the VM and runs `init_by_lua`.
fn begin(vm: &Vm, event_loop: &LoopState) -> Result<(), StartError> {
    furnish(&vm.lua, &vm.anchors, vm.site, event_loop.identity).map_err(StartError::NotMade)?;
    vm.run(Phase::Init, vm.known.init)
}

/// Puts `ngx` into a VM.
pub fn furnish(
    lua: &Lua,
    anchors: &Anchors,
    site: &'static Site,
    identity: Identity,
) -> mlua::Result<()> {
    let prefix = prefix(site);
    package::furnish(lua, SCRIPTS.of(&site.main_confs), &prefix)?;
    api::install(lua, anchors, &prefix, identity)
}

/// The server's prefix, with a slash at its end.
fn prefix(site: &Site) -> Vec<u8> {
    let mut prefix = site.prefix.clone();
    if prefix.last() != Some(&b'/') {
        prefix.push(b'/');
    }
    prefix
}
