//! Access logs: formats, and writing to files.
//!
//! A line is formatted on the loop and written by a thread of the file pool, so that no disk stalls
//! a request; see `writer`. The lines of one loop stay in order, and no line is torn. All queued
//! lines are written before a loop ends.

use std::sync::Arc;

use weir_log::Syslog;

use crate::subject::Subject;
use crate::template::Template;

mod directives;
mod file;
mod format;
mod path;
mod writer;

pub use directives::{Files, access_log, default_log, log_format, open, open_log_file_cache};
pub use file::LogTarget;
pub use format::{Escape, Format};
pub use path::{NamedLine, OpenLogFiles};
pub use writer::Writers;

/// The settings of access logs.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// `log_format`s
    pub formats: Arc<Vec<Arc<Format>>>,
    /// The logs of the block.
    pub logs: Logs,
    /// `open_log_file_cache`
    pub cache: Option<OpenLogFiles>,
}

/// The access logs of a location.
#[derive(Debug, Clone, Default)]
pub enum Logs {
    /// Not set: the server's default file.
    #[default]
    Unset,
    /// `access_log off`
    Off,
    /// Each `access_log` of the block.
    To(Arc<Vec<AccessLog>>),
}

/// One `access_log`.
#[derive(Debug, Clone)]
pub struct AccessLog {
    pub(crate) place: LogDestination,
    pub(crate) format: Arc<Format>,
    /// `if=`
    pub(crate) condition: Option<Template>,
}

/// Where lines are written.
#[derive(Debug, Clone)]
pub enum LogDestination {
    /// A file, by its index among the site's [`LogTarget`]s.
    File(usize),
    /// A file with variables in its name: its index, and the name.
    Named(usize, Template),
    /// A syslog server.
    Syslog(Arc<Syslog>),
}

/// Writes the log lines of a subject. `named` computes the file of a line, if the file's name has
/// variables. False if a line could not be sent to a syslog server.
pub fn write<S: Subject>(
    r: &mut S,
    conf: &Conf,
    writers: &Writers,
    named: impl Fn(&mut S, &Template, Option<OpenLogFiles>, &[u8]) -> Option<NamedLine>,
) -> bool {
    let Logs::To(logs) = &conf.logs else { return true };
    let mut taken = true;
    for log in logs.iter() {
        if let Some(condition) = &log.condition
            && matches!(&*condition.eval(r), b"" | b"0")
        {
            continue;
        }
        let mut line = r.handle().take_buf(512);
        log.format.write(r, &mut line);
        match &log.place {
            LogDestination::Syslog(server) => {
                taken &= server.write(server.severity(), &line).unwrap_or_else(|fault| {
                    writers.complain(server, &fault);
                    false
                });
            }
            LogDestination::File(target) => {
                line.push(b'\n');
                writers.line(r.handle(), *target, &line);
            }
            LogDestination::Named(target, name) => {
                line.push(b'\n');
                if let Some(named) = named(r, name, conf.cache, &line) {
                    writers.named(r.handle(), *target, named);
                }
            }
        }
        r.handle().give_buf(line);
    }
    taken
}
