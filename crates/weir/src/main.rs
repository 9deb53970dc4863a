//! The weir binary: see `weir -h` and docs/operating.md.

use std::ffi::{OsStr, OsString};
use std::process::exit;

use weir_sys::allocator::Mimalloc;

/// Of glibc's allocator a rush of connections leaves holes between the few bytes that each idle one keeps;
/// this one keeps sizes apart and gives the pages of ended requests back.
#[global_allocator]
static ALLOCATOR: Mimalloc = Mimalloc;

fn main() {
    let args: Vec<OsString> = std::env::args_os().collect();
    // Tools are words; whatever begins with a dash is the server's, as in nginx.
    let rest = args.get(1..).unwrap_or_default();
    exit(match rest.first().and_then(|word: &OsString| OsStr::to_str(word)) {
        Some("balance") => weir_steer::balance(rest),
        Some("bench") => weir_bench::bench(rest),
        Some("histogram") => weir_bench::histogram(rest),
        Some("lab") => weir_lab::lab(rest),
        _ => weir_server::run(args),
    });
}
