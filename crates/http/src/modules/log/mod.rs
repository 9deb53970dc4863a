//! Access logs. nginx: ngx_http_log_module.
//!
//! A line is made on the loop and written by a thread of the file pool, so that no disk holds up a request; see
//! `writer`. Lines of one loop keep their order, none is torn, and what waits is written before a loop ends.

use std::sync::Arc;

use weir_log::{Level, Syslog};

use crate::config::scope::{Directive, Scope, Set};
use crate::modules::{Module, Settings};
use crate::request::Request;
use weir_values::Template;

mod directives;
mod file;
mod format;
mod path;
mod writer;

pub use file::Target;
pub use writer::Writers;

use format::Format;
use path::Cache;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    formats: Arc<Vec<Arc<Format>>>,
    logs: Logs,
    /// `open_log_file_cache`
    cache: Option<Cache>,
}

/// What a location logs to.
#[derive(Debug, Clone, Default)]
enum Logs {
    /// Nothing was said: the server's default file.
    #[default]
    Unset,
    /// `access_log off`
    Off,
    /// Each `access_log` of the block.
    To(Arc<Vec<AccessLog>>),
}

/// One `access_log`.
#[derive(Debug, Clone)]
struct AccessLog {
    place: Place,
    format: Arc<Format>,
    /// `if=`
    condition: Option<Template>,
}

/// Where the lines go.
#[derive(Debug, Clone)]
enum Place {
    /// A file: its index among the site's [`Target`]s.
    File(usize),
    /// A file whose name has variables: likewise, and the name.
    Named(usize, Template),
    /// A syslog server.
    Syslog(Arc<Syslog>),
}

impl Settings for Conf {
    fn finish(s: &mut Scope<'_, '_>) -> Result<(), weir_conf::Error> {
        directives::default_log(s)
    }
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "log_format",
        help: "A named form of access log lines.",
        set: Set::Simple(directives::log_format),
    },
    Directive {
        name: "access_log",
        help: "Where requests are logged, in which form, under which condition.",
        set: Set::Simple(directives::access_log),
    },
    Directive {
        name: "open_log_file_cache",
        help: "Keeps logs open whose names have variables.",
        set: Set::Simple(directives::open_log_file_cache),
    },
];

/// The module.
pub const MODULE: Module = Module { name: "http_log", directives: DIRECTIVES, init: |_| {} };

/// Writes the request's lines.
pub fn handler(r: &mut Request) {
    let conf = &r.conf().log;
    let Logs::To(logs) = &conf.logs else { return };
    for log in logs.iter() {
        if let Some(condition) = &log.condition
            && matches!(&*condition.eval(r), b"" | b"0")
        {
            continue;
        }
        let mut line = r.worker.handle.take_buf(512);
        log.format.write(r, &mut line);
        match &log.place {
            Place::Syslog(server) => {
                if server.write(server.severity(), &line).is_err() {
                    r.log(Level::Warn, format_args!("send() to syslog failed"));
                }
            }
            Place::File(target) => {
                line.push(b'\n');
                r.worker.logs.line(&r.worker, *target, &line);
            }
            Place::Named(target, name) => {
                line.push(b'\n');
                if let Some(named) = path::named(r, name, conf.cache, &line) {
                    r.worker.logs.named(&r.worker, *target, named);
                }
            }
        }
        r.worker.handle.give_buf(line);
    }
}
