//! The parameters of `error_log`, and the sink that they mean.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Cause, Level, MemoryLog, OpenLogs, Sink, Syslog, SyslogError};

/// Why an `error_log` line is refused; [`std::fmt::Display`] gives nginx's text.
#[derive(Debug)]
pub enum Reject {
    /// The parameter does not exist, or has no meaning here.
    Parameter(String),
    /// There is no such level.
    Level(String),
    /// A second level.
    DuplicateLevel(String),
    /// The size of the ring in memory is wrong.
    Size(String),
    /// The ring of this size cannot be made.
    Memory(String, io::Error),
    /// The parameters of a syslog server are wrong.
    Syslog(SyslogError),
    /// The file cannot be opened.
    Open(PathBuf, io::Error),
}

impl std::fmt::Display for Reject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reject::Parameter(text) => write!(f, "invalid parameter \"{text}\""),
            Reject::Level(name) => write!(f, "invalid log level \"{name}\""),
            Reject::DuplicateLevel(name) => write!(f, "duplicate log level \"{name}\""),
            Reject::Size(size) => write!(f, "invalid buffer size \"{size}\""),
            Reject::Memory(size, e) => write!(f, "mmap({size}) failed {}", Cause(e)),
            Reject::Syslog(e) => e.fmt(f),
            Reject::Open(path, e) => {
                write!(f, "open() \"{}\" failed {}", path.display(), Cause(e))
            }
        }
    }
}

/// Further levels of nginx's debug build. Here they mean `debug`.
const DEBUG_PARTS: [&str; 7] = [
    "debug_core",
    "debug_alloc",
    "debug_mutex",
    "debug_event",
    "debug_http",
    "debug_mail",
    "debug_stream",
];

/// The level and sink of `error_log ARGS...`. Relative paths are below `prefix`.
pub fn sink(args: &[&str], prefix: &Path, logs: &OpenLogs) -> Result<(Level, Sink), Reject> {
    let (target, words) = args.split_first().unwrap_or((&"stderr", &[]));
    let (forms, levels): (Vec<&str>, Vec<&str>) =
        words.iter().partition(|word| word.starts_with("format="));
    let level = level(&levels)?;
    if let Some(form) = forms.first() {
        if *form != "format=json" || forms.len() > 1 || target.starts_with("syslog:") {
            return Err(Reject::Parameter((*form).to_owned()));
        }
        let (level, place) = sink(&[&[*target], levels.as_slice()].concat(), prefix, logs)?;
        return Ok((level, Sink::Json(Box::new(place))));
    }
    if matches!(*target, "stderr" | "") {
        return Ok((level, Sink::Stderr));
    }
    if let Some(size) = target.strip_prefix("memory:") {
        return Ok((level, Sink::Memory(Arc::new(memory(size)?))));
    }
    if let Some(parameters) = target.strip_prefix("syslog:") {
        let server = Syslog::parse(parameters).map_err(Reject::Syslog)?;
        return Ok((level, Sink::Syslog(Arc::new(server))));
    }
    let path = prefix.join(target);
    match logs.open_later(&path) {
        Ok(file) => Ok((level, Sink::File(file))),
        Err(e) => Err(Reject::Open(path, e)),
    }
}

/// A ring of this size, which may end in `k` or `m`.
fn memory(size: &str) -> Result<MemoryLog, Reject> {
    let (digits, unit) = match size.as_bytes().last() {
        Some(b'k' | b'K') => (size.get(..size.len() - 1), 1 << 10),
        Some(b'm' | b'M') => (size.get(..size.len() - 1), 1 << 20),
        _ => (Some(size), 1),
    };
    let digits = digits.filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let bytes = digits.and_then(|text| text.parse::<u64>().ok()).and_then(|n| n.checked_mul(unit));
    let memory = bytes.and_then(MemoryLog::new);
    let memory = memory.ok_or_else(|| Reject::Size(size.to_owned()))?;
    memory.map_err(|e| Reject::Memory(size.to_owned(), e))
}

fn level(names: &[&str]) -> Result<Level, Reject> {
    let mut found = None;
    for name in names {
        if DEBUG_PARTS.contains(name) {
            found = Some(Level::Debug);
            continue;
        }
        let known = Level::parse(name);
        let known = known.ok_or_else(|| Reject::Level((*name).to_owned()))?;
        if found.is_some() {
            return Err(Reject::DuplicateLevel((*name).to_owned()));
        }
        found = Some(known);
    }
    Ok(found.unwrap_or(Level::Error))
}
