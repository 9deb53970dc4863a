//! `blocked_threshold` and `$event_loop_blocked`: how long handlers block the loop, and from when
//! that is logged. nginx has no such module.

use crate::config::Setup;
use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};

const DIRECTIVES: &[Directive] = &[Directive {
    name: "blocked_threshold",
    help: "The error log names a handler that blocks its loop for longer, with phase, module, operation, location and time.",
    set: Set::Simple(|s, d| {
        s.once(d)?;
        let threshold = d.duration()?;
        Scope::change(&mut s.location.core).blocked_threshold = threshold;
        Ok(())
    }),
}];

/// The module.
pub const MODULE: Module =
    Module { name: "http_event_loop", directives: DIRECTIVES, init, ..Module::NEW };

fn init(setup: &mut Setup<'_>) {
    setup.variables.define_changeable("event_loop_blocked", false, |r, out| {
        let micros = r.blocked.as_micros();
        let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
        out.extend_from_slice(text.as_bytes());
        true
    });
}
