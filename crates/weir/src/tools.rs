//! The tools: words behind `weir`, each with options of its own. Whatever begins with a dash is the server's, as in nginx.

use std::ffi::OsString;

use clap::{Command, CommandFactory, Parser};

use crate::manual;

/// A tool.
pub struct Tool {
    /// The word.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Its options.
    pub command: fn() -> Command,
    /// Runs it: the exit status. Its arguments begin with its name.
    pub run: fn(&[OsString]) -> i32,
}

/// All of them.
pub const ALL: &[Tool] = &[
    Tool {
        name: "balance",
        about: "steer the reuseport queues of another server to workers that have time",
        command: weir_steer::Options::command,
        run: |args| parsed(args, weir_steer::balance),
    },
    Tool {
        name: "bench",
        about: "load a web server and say what its clients see",
        command: weir_bench::Options::command,
        run: |args| parsed(args, weir_bench::bench),
    },
    Tool {
        name: "completions",
        about: "print what a shell needs to complete this command line",
        command: manual::Completions::command,
        run: |args| parsed(args, manual::completions),
    },
    Tool {
        name: "explain",
        about: "tell which server and location serve a request, and what is in force there",
        command: weir_explain::Options::command,
        run: |args| parsed(args, weir_explain::explain),
    },
    Tool {
        name: "histogram",
        about: "show latencies of bench, or of logs, as a picture",
        command: weir_bench::HistogramOptions::command,
        run: |args| parsed(args, weir_bench::histogram),
    },
    Tool {
        name: "inspect",
        about: "look into any server on this machine: who has which connections, and what helps",
        command: weir_inspect::Options::command,
        run: |args| parsed(args, weir_inspect::inspect),
    },
    Tool {
        name: "lab",
        about: "repeat the published experiments on accept queues; advise on a configuration",
        command: weir_lab::Options::command,
        run: |args| parsed(args, weir_lab::lab),
    },
    Tool {
        name: "lint",
        about: "find mistakes in an nginx.conf that are no errors",
        command: weir_lint::Options::command,
        run: |args| parsed(args, weir_lint::lint),
    },
    Tool {
        name: "manual",
        about: "print a page of the manual: weir manual | man -l -",
        command: manual::Manual::command,
        run: |args| parsed(args, manual::manual),
    },
    Tool {
        name: "top",
        about: "show a running weir, live: how even it is, and what holds it up",
        command: weir_top::Options::command,
        run: |args| parsed(args, weir_top::top),
    },
];

/// Reads the options, or says what is wrong with them.
fn parsed<O: Parser>(args: &[OsString], run: fn(O) -> i32) -> i32 {
    match O::try_parse_from(args) {
        Ok(options) => run(options),
        Err(said) => {
            // Nobody reads it, then.
            let _ = said.print();
            said.exit_code()
        }
    }
}
