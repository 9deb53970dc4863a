//! Reads a configuration only to report on it. Opens and serves nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use weir_http::Site;
use weir_log::{Log, OpenLogs};

use crate::cli::CommandLine;
use crate::config::Machine;
use crate::cycle::Origin;
use crate::embedded::InMemory;
use crate::paths::Paths;

/// Why there is no site to report on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unjudged {
    /// No file was named, and the default file does not exist.
    NoFile,
    /// The configuration is invalid, which was reported.
    Wrong,
    /// It has no `http` block.
    NoHttp,
}

/// Reads the `http` block of a configuration. Returns it with the path of the file. Errors go to
/// stderr in lines of the tool `name`. `conf` and `prefix` are the values of `-c` and `-p`.
pub fn judge(
    name: &'static str,
    conf: Option<OsString>,
    prefix: Option<OsString>,
) -> Result<(Site, PathBuf), Unjudged> {
    let options = CommandLine { conf, prefix, test: true, ..CommandLine::default() };
    let paths = Paths::new(&options, std::path::Path::exists);
    let path = paths.conf.clone().ok_or(Unjudged::NoFile)?;
    let logs = Arc::new(OpenLogs::new());
    let (in_memory, machine) = (InMemory::built_in(), Machine::here());
    let origin = Origin { paths, in_memory, globals: None, logs, machine };
    let log = Log::echoing(Vec::new(), name);
    let plan = origin.judge(&log).map_err(|_| Unjudged::Wrong)?;
    let site = plan.sites.http.and_then(Arc::into_inner).ok_or(Unjudged::NoHttp)?;
    Ok((site, path))
}
