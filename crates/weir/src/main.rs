//! The weir binary: see `weir -h` and docs/operating.md.

use std::process::exit;

fn main() {
    exit(weir_server::run(std::env::args_os().collect()));
}
