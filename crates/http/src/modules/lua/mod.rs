//! Scripts in Lua, on LuaJIT. nginx: lua-nginx-module of OpenResty.
//!
//! A loop has a VM (`vm`) for requests, which `start` initializes, and one for sessions of
//! `stream`. A phase with a script enters through `phases` (those that may answer), `filters`
//! (those that may not yield) or `balancer`. They lend the request to the script (`current`) and
//! run it as a coroutine (`run`). A script that yields says why in a `YieldRequest`; its run
//! carries that out and resumes it.
//!
//! - `api` has the functions of `ngx` in Rust, a file for each part. `prelude` wraps them in Lua
//!   where they raise errors or yield, since only Lua can do that. The most called ones are called
//!   by FFI (`prelude/direct.lua`, `weir_sys::lua::direct`).
//! - `anchors` keeps Lua values that outlive a step of a script. `answer` collects and sends what a
//!   script writes.
//! - `worker_thread` runs functions on threads beside the loops, in VMs of their own. `session`
//!   reads and runs the scripts of `stream`.
//!
//! docs/lua.md says what `ngx` offers.

use std::rc::Rc;

use crate::config::module::Module;
use crate::event_loop::{LoopPart, LoopState};
use crate::site::settings::LocationConf;

mod anchors;
mod answer;
mod api;
mod balancer;
mod conf;
mod current;
mod dict;
mod directives;
mod environment;
mod filters;
mod handshake;
mod limit;
mod package;
mod phases;
mod pipe;
mod prelude;
mod run;
mod script;
mod semaphore;
mod session;
mod socket;
mod start;
mod timers;
mod tls;
mod to_server;
mod vm;
mod worker_thread;
mod yield_request;

pub use answer::Context;
pub use api::wanted_agent;
pub use conf::CONF;
pub use filters::{header_filter, log, value};
pub use handshake::{certificate, client_hello, session_fetch, session_store};
pub use phases::{access, precontent, rewrite, server_rewrite};
pub use script::{SCRIPTS, SESSIONS, Script, Scripts, StreamScripts, read};
pub use session::{SessionRunner, is_used as is_used_by_sessions};
pub use vm::VM;

use script::Side;
use vm::LoopVm;

/// The module.
pub const MODULE: Module = Module {
    name: "http_lua",
    directives: directives::DIRECTIVES,
    finish: session::finish,
    ..Module::NEW
};

/// The indices of the listening sockets from which this loop must not accept, because a script
/// declined them.
pub fn declined(event_loop: &LoopState) -> Vec<usize> {
    let vm = VM.of(event_loop).requests.get();
    vm.map(|vm| vm.declined.borrow().clone()).unwrap_or_default()
}

/// Whether a server has a script that runs before the location is chosen.
pub fn wants_server_rewrite(conf: &LocationConf) -> bool {
    CONF.of(conf).server_rewrite.is_some()
}

/// Whether a location has a script before the other directives of the rewrite phase.
pub fn wants_early_rewrite(conf: &LocationConf) -> bool {
    CONF.of(conf).rewrite.is_some() && CONF.of(conf).early_rewrite
}

/// Whether a script may run at the end of the rewrite phase: the location's, or one of its `if`
/// blocks.
pub fn wants_rewrite(conf: &LocationConf, has_blocks: bool) -> bool {
    !CONF.of(conf).early_rewrite && (CONF.of(conf).rewrite.is_some() || has_blocks)
}

/// Whether a location has a script before the other handlers of the access phase.
pub fn wants_early_access(conf: &LocationConf) -> bool {
    CONF.of(conf).access.is_some() && CONF.of(conf).early_access
}

/// Whether a location has a script at the end of the access phase.
pub fn wants_access(conf: &LocationConf) -> bool {
    CONF.of(conf).access.is_some() && !CONF.of(conf).early_access
}

/// Whether a location has a script before the other handlers of the precontent phase.
pub fn wants_early_precontent(conf: &LocationConf) -> bool {
    CONF.of(conf).precontent.is_some() && CONF.of(conf).early_precontent
}

/// Whether a location has a script at the end of the precontent phase.
pub fn wants_precontent(conf: &LocationConf) -> bool {
    CONF.of(conf).precontent.is_some() && !CONF.of(conf).early_precontent
}

/// Whether a server has a script for the client hello.
pub fn wants_client_hello(conf: &LocationConf) -> bool {
    CONF.of(conf).client_hello.is_some()
}

/// Whether a server has a script that fetches TLS sessions.
pub fn wants_session_fetch(conf: &LocationConf) -> bool {
    CONF.of(conf).session_fetch.is_some()
}

/// Whether a server has a script that stores TLS sessions.
pub fn wants_session_store(conf: &LocationConf) -> bool {
    CONF.of(conf).session_store.is_some()
}

/// Whether a server has a script that chooses certificates.
pub fn wants_certificate(conf: &LocationConf) -> bool {
    CONF.of(conf).certificate.is_some()
}

/// Whether a location has a script for the log phase.
pub fn wants_log(conf: &LocationConf) -> bool {
    CONF.of(conf).log.is_some()
}

/// Whether a location has a script that filters the answer.
pub fn wants_filter(conf: &LocationConf) -> bool {
    CONF.of(conf).header_filter.is_some() || CONF.of(conf).body_filter.is_some()
}

impl LoopPart for LoopVm {
    /// Makes the loop's VMs, if the site has scripts.
    fn init_process(&self, event_loop: &Rc<LoopState>) {
        for (side, place) in [(Side::Requests, &self.requests), (Side::Sessions, &self.sessions)] {
            if let Some(vm) = start::start(event_loop, side)
                && place.set(vm.clone()).is_ok()
            {
                vm.started();
            }
        }
    }

    /// Runs `init_by_lua` as a loop would, in a VM that is then dropped.
    fn try_out(&self, event_loop: &LoopState) -> Result<(), String> {
        let sides = [Side::Requests, Side::Sessions].into_iter();
        let mut used = sides.filter(|side| !side.scripts(event_loop.site).is_empty());
        used.try_for_each(|side| start::try_out(event_loop, side))
            .map_err(|error| error.to_string())
    }

    /// The loop takes no new requests: pending timers run at once.
    fn retire(&self, _: &LoopState) {
        for vm in self.each() {
            vm.timers.run_early();
            vm.pools.clear();
        }
    }

    /// Whether no timer is pending or running.
    fn is_flushed(&self, _: &LoopState) -> bool {
        self.each().all(|vm| vm.timers.are_done())
    }

    fn exit_process(&self, _: &LoopState) {
        self.each().for_each(|vm| vm.ending());
    }
}
