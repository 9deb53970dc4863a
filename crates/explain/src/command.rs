//! The command line of `weir explain`.

use std::ffi::OsString;
use std::fmt;
use std::io;

use clap::Parser;
use weir_http::explain::follow;
use weir_server::Unjudged;

use crate::ask::{AskError, AskedRequest};
use crate::report::Report;

/// Tells what a configuration does with a request: which server and location serve it, which rewrites it takes, and each setting that
/// is in force there, with the line that it comes from. Nothing is sent anywhere, written or logged
#[derive(Debug, Parser)]
#[command(name = "weir explain", bin_name = "weir explain")]
pub struct Options {
    /// http[s]://host[:port]/path
    url: String,
    /// The configuration [default: /etc/nginx/nginx.conf, or conf/nginx.conf under the prefix]
    #[arg(short, value_name = "FILE")]
    conf: Option<OsString>,
    /// Where its relative paths begin [default: /usr/share/nginx/]
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
    /// A header line with which the server behind might answer, to be told whether the cache would store that
    #[arg(long, value_name = "LINE")]
    answer: Vec<String>,
    /// The status of that answer [default: 200]
    #[arg(long, value_name = "NUMBER")]
    status: Option<u16>,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Why a request cannot be explained.
enum ExplainError {
    /// There is no usable configuration.
    NoSite(Unjudged),
    /// The request is not valid.
    Ask(AskError),
    /// The site did not complete the request.
    Failed(io::Error),
}

impl fmt::Display for ExplainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExplainError::NoSite(why) => f.write_str(match why {
                Unjudged::NoFile => "there is no /etc/nginx/nginx.conf; -c names a configuration",
                Unjudged::Wrong => "the configuration is wrong",
                Unjudged::NoHttp => "the configuration has no http block",
            }),
            ExplainError::Ask(e) => e.fmt(f),
            ExplainError::Failed(e) => write!(f, "the request failed: {e}"),
        }
    }
}

impl From<AskError> for ExplainError {
    fn from(e: AskError) -> ExplainError {
        ExplainError::Ask(e)
    }
}

/// Runs `weir explain`. Returns the exit status.
pub fn explain(options: Options) -> i32 {
    match run(options) {
        Ok(text) => weir_print::ending("weir explain", text, 0),
        // The errors of the configuration are already printed.
        Err(ExplainError::NoSite(Unjudged::Wrong)) => 1,
        Err(e) => {
            eprintln!("weir explain: {e}");
            1
        }
    }
}

fn run(options: Options) -> Result<String, ExplainError> {
    let asked = AskedRequest::read(&options.url, &options.method, &options.headers)?;
    let asked = asked.supposing(options.status, &options.answer)?;
    let judged = weir_server::judge("weir explain", options.conf, options.prefix);
    let (site, path) = judged.map_err(ExplainError::NoSite)?;
    // The same files in the same order, so that positions of both trees match.
    let tree = weir_conf::read(&path, None);
    let question = asked.question(&site, options.to.as_deref())?;
    let listen = site.listens().get(question.listen).map(|l| l.address.to_string());
    let (course, answer_bytes) = follow(site, question).map_err(ExplainError::Failed)?;
    let report = Report::of(
        &asked,
        listen.unwrap_or_default(),
        (&tree.main, &tree.sources),
        &course,
        &answer_bytes,
    );
    Ok(if options.json { report.json() + "\n" } else { report.text() })
}
