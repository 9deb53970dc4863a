//! The environment in which crates read the blocks of the configuration.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use weir_conf::{Directive, Error, Sources, Word};
use weir_log::{Log, OpenLogs, Reject};
use weir_zone::Declarations;

/// The values that the configuration's reader passes to the crates that read its blocks.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The configure arguments that `-V` prints.
    pub configured: &'a str,
    /// `-p`: the directory where relative paths begin.
    pub prefix: &'a Path,
    /// The directory of the configuration file, where names of included files begin.
    pub conf_prefix: &'a Path,
    /// The log files, which are reopened together.
    pub logs: &'a OpenLogs,
    /// The default access log.
    pub access_log: &'a Path,
    /// The default directory of temporary files.
    pub temporary: &'a Path,
    /// The error log of the main context, for blocks without their own.
    pub error_log: &'a Arc<Log>,
    /// The shared memory that directives declare.
    pub zones: &'a Declarations,
    /// Names of thread pools, besides the default one.
    pub pools: &'a [&'a str],
    /// The texts of the configuration.
    pub sources: &'a Sources,
    /// The `stream` block, for the crate that compiles its scripts.
    pub sessions: Option<&'a Directive>,
    /// The site that the process serves while it reads another configuration, as the type that the
    /// crate knows. Unchanged parts are taken from it.
    pub before: Option<&'a (dyn Any + Send + Sync)>,
    /// Earlier compiled parts for the same directives outside of the block. Equal parts need not be
    /// compiled again.
    pub known: Option<&'a (dyn Any + Send + Sync)>,
}

impl Inputs<'_> {
    /// `error_log`: the lines of one block add up. The first one replaces inherited logs.
    pub fn error_log(&self, d: &Directive, first: bool, before: &Log) -> Result<Arc<Log>, Error> {
        let args: Vec<_> = d.args.iter().map(Word::lossy).collect();
        let args: Vec<&str> = args.iter().map(|text| &**text).collect();
        let sink = weir_log::sink(&args, self.prefix, self.logs);
        // nginx opens files once all is read, so its message has no line.
        let sink = sink.map_err(|reject| match reject {
            Reject::Open(..) => Error::emerg(reject.to_string()),
            _ => d.error(reject.to_string()),
        })?;
        let mut sinks = if first { Vec::new() } else { before.sinks().to_vec() };
        sinks.push(sink);
        Ok(Arc::new(Log::bounded(sinks)))
    }
}
