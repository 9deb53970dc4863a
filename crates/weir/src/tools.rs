//! The tools: subcommands of `weir`, each with options of its own. Arguments that begin with a dash
//! are the server's, as in nginx.
//!
//! The features `tools` and `manual` decide which tools are built. A server without tools still
//! knows their names, to say where they are.

use std::ffi::OsString;

#[cfg(feature = "manual")]
use clap::{Command, CommandFactory, Parser};

#[cfg(feature = "manual")]
use crate::manual;

/// A tool.
pub struct Tool {
    /// The subcommand.
    pub name: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// The tool, if this binary contains it.
    pub built: Option<Built>,
}

/// A tool that this binary contains.
pub struct Built {
    /// Its options.
    #[cfg(feature = "manual")]
    pub command: fn() -> Command,
    /// Runs the tool. Returns the exit status. The first argument is the tool's name.
    pub run: fn(&[OsString]) -> i32,
}

/// A tool that is built with a feature: its options, and the function that runs it.
macro_rules! built {
    ($feature:literal, $options:ty, $run:path) => {{
        #[cfg(feature = $feature)]
        let built = Some(Built { command: <$options>::command, run: |args| parsed(args, $run) });
        #[cfg(not(feature = $feature))]
        let built = None;
        built
    }};
}

/// All tools, in alphabetical order.
pub const ALL: &[Tool] = &[
    Tool {
        name: "balance",
        about: "steer the reuseport queues of another server to workers that have time",
        built: built!("tools", weir_steer::Options, weir_steer::balance),
    },
    Tool {
        name: "bench",
        about: "load a web server and say what its clients see",
        built: built!("tools", weir_bench::Options, weir_bench::bench),
    },
    Tool {
        name: "completions",
        about: "print what a shell needs to complete this command line",
        built: built!("manual", manual::Completions, manual::completions),
    },
    Tool {
        name: "explain",
        about: "tell which server and location serve a request, and what is in force there",
        built: built!("tools", weir_explain::Options, weir_explain::explain),
    },
    Tool {
        name: "file-server",
        about: "serve a directory at once, without a configuration file",
        built: built!("tools", weir_quick::FileServer, weir_quick::file_server),
    },
    Tool {
        name: "histogram",
        about: "show latencies of bench, or of logs, as a picture",
        built: built!("tools", weir_bench::HistogramOptions, weir_bench::histogram),
    },
    Tool {
        name: "inspect",
        about: "look into any server on this machine: which worker has which connections, and what helps",
        built: built!("tools", weir_inspect::Options, weir_inspect::inspect),
    },
    Tool {
        name: "lab",
        about: "repeat the published experiments on accept queues; advise on a configuration",
        built: built!("tools", weir_lab::Options, weir_lab::lab),
    },
    Tool {
        name: "lint",
        about: "find mistakes in an nginx.conf that are no errors",
        built: built!("tools", weir_lint::Options, weir_lint::lint),
    },
    Tool {
        name: "manual",
        about: "print a page of the manual: weir manual | man -l -",
        built: built!("manual", manual::Manual, manual::manual),
    },
    Tool {
        name: "proxy",
        about: "put weir before an application at once: weir proxy --tls localhost 3000",
        built: built!("tools", weir_quick::Proxy, weir_quick::proxy),
    },
    Tool {
        name: "top",
        about: "show a running weir, live: how even it is, and what holds it up",
        built: built!("tools", weir_top::Options, weir_top::top),
    },
];

/// The tools that this binary contains.
pub fn built() -> impl Iterator<Item = (&'static Tool, &'static Built)> {
    ALL.iter().filter_map(|tool| Some((tool, tool.built.as_ref()?)))
}

/// Parses the options and runs the tool, or reports an error.
#[cfg(feature = "manual")]
fn parsed<O: Parser>(args: &[OsString], run: fn(O) -> i32) -> i32 {
    match O::try_parse_from(args) {
        Ok(options) => run(options),
        Err(said) => {
            // Help goes to standard output, errors to standard error.
            let written = said.print();
            if !said.use_stderr()
                && let Err(e) = weir_print::read(written)
            {
                eprintln!("weir: {e}");
                return 1;
            }
            said.exit_code()
        }
    }
}
