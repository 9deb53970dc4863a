//! The command line of `weir explain`.

use std::ffi::OsString;
use std::io::Write;

use clap::Parser;
use weir_http::explain::follow;

use crate::ask::AskedRequest;
use crate::report::Report;

/// Tells what a configuration does with a request: which server and location serve it, which rewrites it takes, and each setting that
/// is in force there, with the line that it comes from. Nothing is served, opened or logged
#[derive(Debug, Parser)]
#[command(name = "weir explain", bin_name = "weir explain")]
pub struct Options {
    /// http[s]://host[:port]/path
    url: String,
    /// The configuration
    #[arg(short, value_name = "FILE")]
    conf: Option<OsString>,
    /// Where its relative paths begin
    #[arg(short, value_name = "PREFIX")]
    prefix: Option<OsString>,
    /// The request's method
    #[arg(short = 'X', long, value_name = "NAME", default_value = "GET")]
    method: String,
    /// A header line of the request: "Name: value"
    #[arg(short = 'H', long = "header", value_name = "LINE")]
    headers: Vec<String>,
    /// The address that the client connects to: address:port, or unix:/path [default: what the URL says]
    #[arg(long, value_name = "ADDRESS")]
    to: Option<String>,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// `weir explain`: the exit status.
pub fn explain(options: Options) -> i32 {
    match run(options) {
        Ok(text) => {
            // The reader has gone, then.
            let _ = std::io::stdout().write_all(text.as_bytes());
            0
        }
        Err(text) => {
            eprintln!("weir explain: {text}");
            1
        }
    }
}

fn run(options: Options) -> Result<String, String> {
    let asked = AskedRequest::read(&options.url, &options.method, &options.headers)?;
    let judged = weir_server::judge(options.conf, options.prefix);
    let (site, path) =
        judged.ok_or("there is no configuration with an http block to be explained")?;
    // The same files in the same order, so places mean the same.
    let tree = weir_conf::read(&path, None);
    let question = asked.question(&site, options.to.as_deref())?;
    let listen = site.listens().get(question.listen).map(|l| l.address.to_string());
    let (course, heard) = follow(site, question).map_err(|e| format!("the request failed: {e}"))?;
    let report = Report::of(
        &asked,
        listen.unwrap_or_default(),
        (&tree.main, &tree.sources),
        &course,
        &heard,
    );
    Ok(if options.json { report.json() + "\n" } else { report.text() })
}
