//! The weir binary: see `weir -h` and docs/operating.md.

#[cfg(feature = "manual")]
mod manual;
mod tools;

use std::ffi::{OsStr, OsString};
use std::process::exit;

use weir_sys::allocator::{Mimalloc, allow_huge_pages};

/// glibc's allocator fragments memory after many connections: each idle one keeps a few bytes
/// between freed blocks. mimalloc separates sizes and returns the pages of ended requests.
#[global_allocator]
static ALLOCATOR: Mimalloc = Mimalloc;

fn main() {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    let word = args.get(1).and_then(|word| OsStr::to_str(word)).unwrap_or_default().to_owned();
    if let Some(tool) = tools::ALL.iter().find(|tool| tool.name == word) {
        let Some(built) = &tool.built else {
            eprintln!(
                "weir: this weir was built without its tools; \"weir {word}\" is in the Debian package \"weir\" and in a \
                 build with default features"
            );
            exit(1);
        };
        allow_huge_pages();
        exit((built.run)(args.get(1..).unwrap_or_default()));
    }
    // Other common words for help and version.
    if let Some(first) = args.get_mut(1) {
        match word.as_str() {
            "--help" | "help" => *first = "-h".into(),
            "--version" | "version" => *first = "-v".into(),
            _ => {}
        }
    }
    let tools: Vec<_> = tools::built().map(|(tool, _)| (tool.name, tool.about)).collect();
    exit(weir_server::run(args, &tools));
}
