//! A VM at its start: what `ngx` is, and `init_by_lua`.

use std::rc::Rc;

use weir_log::Level;

use super::current::Phase;
use super::script::SCRIPTS;
use super::vm::{StartError, Vm};
use super::{api, package};
use crate::event_loop::LoopState;
use crate::site::Site;

/// Makes a loop's VM and runs `init_by_lua`; `None` where the site has no scripts.
pub fn start(event_loop: &LoopState) -> Option<Rc<Vm>> {
    let site = event_loop.site;
    if SCRIPTS.of(&site.main_confs).is_empty() {
        return None;
    }
    let log = &site.main.core.error_log;
    let tell = |error: StartError| log.write(Level::Emerg, None, format_args!("{error}"));
    let vm = Vm::new(site).map_err(tell).ok()?;
    if let Err(error) = begin(&vm, event_loop) {
        tell(error);
        vm.broken.set(true);
    }
    Some(Rc::new(vm))
}

/// Runs `init_by_lua` in a VM of its own.
pub fn try_out(event_loop: &LoopState) -> Result<(), StartError> {
    begin(&Vm::new(event_loop.site)?, event_loop)
}

/// Puts `ngx` into the VM and runs `init_by_lua`.
fn begin(vm: &Vm, event_loop: &LoopState) -> Result<(), StartError> {
    let scripts = vm.known;
    let prefix = prefix(vm.site);
    package::furnish(&vm.lua, scripts, &prefix)
        .and_then(|()| api::install(&vm.lua, &vm.anchors, &prefix, event_loop.identity))
        .map_err(StartError::NotMade)?;
    vm.run(Phase::Init, scripts.init)
}

/// The server's prefix, with a slash at its end.
fn prefix(site: &Site) -> Vec<u8> {
    let mut prefix = site.prefix.clone();
    if prefix.last() != Some(&b'/') {
        prefix.push(b'/');
    }
    prefix
}
