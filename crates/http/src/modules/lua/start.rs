//! A VM at its start: what `ngx` is, and `init_by_lua`.

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

/// Makes a loop's VM and runs `init_by_lua`; `None` where the site has no scripts.
pub fn start(event_loop: &LoopState, side: Side) -> Option<Rc<Vm>> {
    let site = event_loop.site;
    let scripts = side.scripts(site);
    if side == Side::Requests {
        // The lines of a loop are kept for both.
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
    // The process that has tried the script out has logged its lines.
    if let Err(error) = current::mute(|| begin(&vm, event_loop)) {
        tell(error);
        vm.broken.set(true);
    }
    Some(Rc::new(vm))
}

/// Runs `init_by_lua` in a VM of its own.
pub fn try_out(event_loop: &LoopState, side: Side) -> Result<(), StartError> {
    let vm = Vm::new(event_loop.site, side)?;
    weir_log::capture(vm.known.captured_log);
    begin(&vm, event_loop)
}

/// Puts `ngx` into the VM and runs `init_by_lua`.
fn begin(vm: &Vm, event_loop: &LoopState) -> Result<(), StartError> {
    let furnish = || furnish(&vm.lua, &vm.anchors, (vm.site, vm.side), event_loop.identity);
    current::beside(vm.side, furnish).map_err(StartError::NotMade)?;
    vm.run(Phase::Init, vm.known.init)
}

/// Puts `ngx` into a VM.
pub fn furnish(
    lua: &Lua,
    anchors: &Anchors,
    (site, side): (&'static Site, Side),
    identity: Identity,
) -> mlua::Result<()> {
    let prefix = prefix(site);
    package::furnish(lua, side.scripts(site), &prefix)?;
    api::install(lua, anchors, (site, &prefix, side), identity)
}

/// The server's prefix, with a slash at its end.
fn prefix(site: &Site) -> Vec<u8> {
    let mut prefix = site.prefix.clone();
    if prefix.last() != Some(&b'/') {
        prefix.push(b'/');
    }
    prefix
}
