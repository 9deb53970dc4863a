//! What the crates that read blocks of the configuration are given.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use weir_conf::{Directive, Error, Sources, Word};
use weir_log::{Log, OpenLogs, Reject};
use weir_zone::Declarations;

/// What the configuration's reader gives to the rooms of its blocks.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// What `-V` says of the words with which the program was configured.
    pub configured: &'a str,
    /// `-p`: where relative paths begin.
    pub prefix: &'a Path,
    /// The directory of the configuration file, for `include`-like names.
    pub conf_prefix: &'a Path,
    /// Files that logs are written to, reopened together.
    pub logs: &'a OpenLogs,
    /// Where servers log requests that say nothing of it.
    pub access_log: &'a Path,
    /// Where files stand that requests need for a while, unless the configuration says.
    pub temporary: &'a Path,
    /// The main context's error log, in force where a block says nothing.
    pub error_log: &'a Arc<Log>,
    /// Shared memory that is asked for here and elsewhere.
    pub zones: &'a Declarations,
    /// Names of pools of threads for files, besides the default one.
    pub pools: &'a [&'a str],
    /// The texts of the configuration.
    pub sources: &'a Sources,
    /// The `stream` block, for the room that has its scripts.
    pub sessions: Option<&'a Directive>,
    /// What the process serves while it reads another configuration: the room knows the type. What has not changed is
    /// taken from there.
    pub before: Option<&'a (dyn Any + Send + Sync)>,
    /// What the process has compiled before with the same words outside of the block: what says the same need not be compiled
    /// again.
    pub known: Option<&'a (dyn Any + Send + Sync)>,
}

impl Inputs<'_> {
    /// `error_log`: the lines of one block add up; the first replaces what was inherited.
    pub fn error_log(&self, d: &Directive, first: bool, before: &Log) -> Result<Arc<Log>, Error> {
        let args: Vec<_> = d.args.iter().map(Word::lossy).collect();
        let args: Vec<&str> = args.iter().map(|text| &**text).collect();
        let sink = weir_log::sink(&args, self.prefix, self.logs);
        // nginx opens files when all is read, and then knows no line.
        let sink = sink.map_err(|reject| match reject {
            Reject::Open(..) => Error::emerg(reject.to_string()),
            _ => d.error(reject.to_string()),
        })?;
        let mut sinks = if first { Vec::new() } else { before.sinks().to_vec() };
        sinks.push(sink);
        Ok(Arc::new(Log::bounded(sinks)))
    }
}
