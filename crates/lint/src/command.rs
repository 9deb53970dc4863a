//! The command line of `weir lint`.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Parser;

use crate::{findings, rules};

/// Finds what is no error in an nginx.conf and yet a mistake: each with line, reason and remedy. The exit status is 0 when there
/// is nothing, 1 when there is something, 2 when the configuration cannot be read
#[derive(Debug, Parser)]
#[command(name = "weir lint", bin_name = "weir lint")]
pub struct Options {
    /// The configuration [default: /etc/nginx/nginx.conf, or conf/nginx.conf under the prefix]
    #[arg(short, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Where its relative path begins, as the server's -p
    #[arg(short, value_name = "PREFIX")]
    prefix: Option<PathBuf>,
    /// Rules to leave out
    #[arg(long, value_name = "RULE,...", value_delimiter = ',')]
    allow: Vec<String>,
    /// Names the rules
    #[arg(long)]
    list: bool,
}

/// Runs `weir lint`. Returns the exit status.
pub fn lint(options: Options) -> i32 {
    if options.list {
        let names: String = rules::names().map(|name| format!("{name}\n")).collect();
        return ending(names, 0);
    }
    let known = |name: &&String| rules::names().any(|rule| rule == *name);
    if let Some(unknown) = options.allow.iter().find(|name| !known(name)) {
        eprintln!("weir lint: there is no rule \"{unknown}\"; --list names them");
        return 2;
    }
    let path = configuration(options.prefix, options.conf);
    let path = path.canonicalize().unwrap_or(path);
    let tree = weir_conf::read(&path, None);
    if let Some(error) = &tree.broken {
        eprintln!("weir lint: {}", tree.sources.explain(error));
        return 2;
    }
    let findings = findings(&tree, path.parent().unwrap_or(&path), &options.allow);
    let mut text = String::new();
    for finding in &findings {
        let _ = writeln!(text, "[{}] {}\n", finding.rule, tree.sources.explain(&finding.error));
    }
    let rest = if findings.len() == 1 { "" } else { "s" };
    let _ = writeln!(text, "{} finding{rest}", findings.len());
    ending(text, i32::from(!findings.is_empty()))
}

/// Prints the result. Returns the exit status: 2 if printing fails.
fn ending(text: String, status: i32) -> i32 {
    weir_print::ending_or("weir lint", text, status, 2)
}

/// The file that the server would read. Without a prefix, a relative path begins at the current
/// directory.
fn configuration(prefix: Option<PathBuf>, conf: Option<PathBuf>) -> PathBuf {
    match (prefix, conf) {
        (Some(prefix), conf) => prefix.join(conf.unwrap_or_else(|| "conf/nginx.conf".into())),
        (None, Some(conf)) => conf,
        (None, None) => "/etc/nginx/nginx.conf".into(),
    }
}
