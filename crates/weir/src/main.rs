//! The weir binary: see `weir -h` and docs/operating.md.

use std::ffi::{OsStr, OsString};
use std::process::exit;

use weir_sys::allocator::Mimalloc;

/// Of glibc's allocator a rush of connections leaves holes between the few bytes that each idle one keeps;
/// this one keeps sizes apart and gives the pages of ended requests back.
#[global_allocator]
static ALLOCATOR: Mimalloc = Mimalloc;

type Tool = fn(&[OsString]) -> i32;

/// Tools are words; whatever begins with a dash is the server's, as in nginx.
const TOOLS: &[(&str, Tool, &str)] = &[
    (
        "balance",
        weir_steer::balance,
        "steer the reuseport queues of another server to workers that have time",
    ),
    ("bench", weir_bench::bench, "load a web server and say what its clients see"),
    ("histogram", weir_bench::histogram, "show latencies of bench, or of logs, as a picture"),
    (
        "inspect",
        weir_inspect::inspect,
        "look into any server on this machine: who has which connections, and what helps",
    ),
    (
        "lab",
        weir_lab::lab,
        "repeat the published experiments on accept queues; advise on a configuration",
    ),
    ("lint", weir_lint::lint, "find mistakes in an nginx.conf that are no errors"),
];

fn main() {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    let word = args.get(1).and_then(|word| OsStr::to_str(word)).unwrap_or_default().to_owned();
    if let Some((_, tool, _)) = TOOLS.iter().find(|(name, ..)| *name == word) {
        exit(tool(args.get(1..).unwrap_or_default()));
    }
    // What other programs call them.
    let helps = ["-h", "-?", "--help", "help"].contains(&word.as_str());
    let shows_version = ["--version", "version"].contains(&word.as_str());
    if let Some(word) = args.get_mut(1).filter(|_| helps || shows_version) {
        *word = if helps { "-h" } else { "-v" }.into();
    }
    let code = weir_server::run(args);
    if helps {
        eprintln!("Tools, each with --help of its own:");
        for (name, _, about) in TOOLS {
            eprintln!("  weir {name:<10}: {about}");
        }
    }
    exit(code);
}
