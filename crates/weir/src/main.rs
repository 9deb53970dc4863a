//! The weir binary: see `weir -h` and docs/operating.md.

mod manual;
mod tools;

use std::ffi::{OsStr, OsString};
use std::process::exit;

use weir_sys::allocator::{Mimalloc, allow_huge_pages};

/// Of glibc's allocator a rush of connections leaves holes between the few bytes that each idle one keeps;
/// this one keeps sizes apart and gives the pages of ended requests back.
#[global_allocator]
static ALLOCATOR: Mimalloc = Mimalloc;

fn main() {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    let word = args.get(1).and_then(|word| OsStr::to_str(word)).unwrap_or_default().to_owned();
    if let Some(tool) = tools::ALL.iter().find(|tool| tool.name == word) {
        allow_huge_pages();
        exit((tool.run)(args.get(1..).unwrap_or_default()));
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
        for tool in tools::ALL {
            eprintln!("  weir {:<12}: {}", tool.name, tool.about);
        }
    }
    exit(code);
}
