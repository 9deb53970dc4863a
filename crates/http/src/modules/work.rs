//! Blocks the loop on purpose, for experiments and tests. nginx has no such module.

use std::time::Duration;

use weir_conf::{Error, values};
use weir_engine::{block, operation};

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::phases::Step;
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    work: Option<WorkKind>,
}

impl Settings for Conf {}

/// How a request blocks its loop.
#[derive(Debug, Clone, Copy)]
enum WorkKind {
    /// The thread sleeps, as in a blocking system call.
    Sleep(Duration),
    /// The thread computes.
    Spin(Duration),
    /// The handler panics, as a defect would make it do.
    Panic,
}

const DIRECTIVES: &[Directive] = &[Directive {
    name: "work",
    help: "Blocks the loop for a time at each request, for experiments: `sleep` or `spin`; `panic`, without \
           a time, ends the request's task as a defect would.",
    set: Set::Simple(set),
}];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_work", directives: DIRECTIVES, ..Module::NEW };

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).work.is_some()
}

/// Blocks the loop before any other code of the location runs.
pub fn handler(r: &mut Request) -> Step {
    match CONF.of(r.conf()).work {
        None => {}
        Some(WorkKind::Sleep(time)) => operation("sleep", || block(time, false)),
        Some(WorkKind::Spin(time)) => operation("spin", || block(time, true)),
        Some(WorkKind::Panic) => panic(),
    }
    Step::Next
}

fn set(s: &mut Scope<'_, '_>, d: &weir_conf::Directive) -> Result<(), Error> {
    s.once(d)?;
    let time = d.arg(1).map(|word| values::duration(&word.bytes));
    let work = match (d.arg(0).map(|word| word.bytes.as_slice()), time) {
        (Some(b"sleep"), Some(Some(time))) => WorkKind::Sleep(time),
        (Some(b"spin"), Some(Some(time))) => WorkKind::Spin(time),
        (Some(b"panic"), None) => WorkKind::Panic,
        _ => {
            let forms = "it may be: sleep TIME, spin TIME, panic";
            return Err(d.problem("invalid value").hint(forms));
        }
    };
    CONF.change(&mut s.location).work = Some(work);
    Ok(())
}

#[allow(clippy::panic, reason = "it is what was asked for")]
fn panic() {
    panic!("on purpose");
}
