//! Rewrites URIs, sets variables and returns responses, by the code of servers and locations.
//! nginx: ngx_http_rewrite_module, ngx_http_script.c.
//!
//! `compile` and `condition` compile directives to the operations of `code`, and `run` runs them.

use crate::config::module::Module;
use crate::config::scope::{Directive, Set, setting};
use crate::phases::{Answer, Step};
use crate::request::Request;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};
use weir_engine::Boxed;

mod code;
mod compile;
mod condition;
mod run;

#[cfg(test)]
mod tests;

use code::Op;
use weir_conf::{Directive as Line, Pos};

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    /// The code of this block. It is not inherited.
    code: Vec<Op>,
    /// Whether an operation tests a file, so that the code may wait.
    tests_files: bool,
    /// `rewrite_log`
    log: bool,
    /// `uninitialized_variable_warn`
    warn: bool,
    /// Called with the place of the directive that answers the request, before it does.
    on_answer: Option<fn(&Request, Pos)>,
}

impl Default for Conf {
    fn default() -> Self {
        Conf { code: Vec::new(), tests_files: false, log: false, warn: true, on_answer: None }
    }
}

impl Settings for Conf {
    fn enter(conf: &mut std::sync::Arc<Self>, _: &crate::site::location::Kind) {
        if !conf.code.is_empty() {
            let (log, warn) = (conf.log, conf.warn);
            *conf = Conf { log, warn, ..Conf::default() }.into();
        }
    }
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "rewrite",
        help: "Changes the path where it matches a pattern, or sends the client elsewhere.",
        set: Set::Simple(compile::line),
    },
    Directive { name: "return", help: "Answers at once.", set: Set::Simple(compile::line) },
    Directive {
        name: "break",
        help: "Ends the code of this block; the path stays as it is now.",
        set: Set::Simple(compile::line),
    },
    Directive { name: "set", help: "Gives a variable a value.", set: Set::Simple(compile::line) },
    Directive {
        name: "set_by_lua",
        help: "Gives a variable the value that a Lua script returns.",
        set: Set::Simple(compile::line),
    },
    Directive {
        name: "set_by_lua_block",
        help: "Gives a variable the value that a Lua script returns.",
        set: Set::Simple(compile::line),
    },
    Directive {
        name: "set_by_lua_file",
        help: "Gives a variable the value that a Lua script returns.",
        set: Set::Simple(compile::line),
    },
    Directive {
        name: "if",
        help: "Code, and in a location settings, under a condition.",
        set: Set::Both(compile::line, compile::settings_of_if),
    },
    setting!("rewrite_log", CONF.log, Line::flag, "Logs what the code does, at `notice`."),
    setting!(
        "uninitialized_variable_warn",
        CONF.warn,
        Line::flag,
        "Warns in the log of variables that no `set` has reached."
    ),
];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module { name: "http_rewrite", directives: DIRECTIVES, ..Module::NEW };

/// Makes the code log what it does, and report the directive that answers.
pub fn trace(conf: &mut Conf, on_answer: fn(&Request, Pos)) {
    (conf.log, conf.on_answer) = (true, Some(on_answer));
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    !CONF.of(conf).code.is_empty()
}

/// Whether an `if` of a location may change the settings during the rewrite phase. Later handlers
/// of the phase may then be needed by the block alone, so the location's plan includes them in any
/// case.
pub fn has_blocks(conf: &LocationConf) -> bool {
    CONF.of(conf).code.iter().any(|op| matches!(op, Op::If { block: Some(_), .. }))
}

/// Runs the server's code.
pub fn server(r: &mut Request) -> Answer<'_> {
    start(r)
}

/// Runs the location's code.
pub fn location(r: &mut Request) -> Answer<'_> {
    if r.location.kind.is_server() {
        return Answer::Now(Step::Next);
    }
    start(r)
}

fn start(r: &mut Request) -> Answer<'_> {
    let conf = CONF.of(r.conf());
    if conf.tests_files || r.site.asks_realpath {
        Answer::Later(Boxed::new(move || run::with_files(r, conf)))
    } else {
        Answer::Now(run::at_once(r, conf))
    }
}
