//! `weir proxy` and `weir file-server`: write a configuration from a few words and serve it in the
//! foreground.
//!
//! `place` finds free ports and the state directory. `certificate` creates a self-signed
//! certificate, `acme` has one ordered. `proxy` and `file_server` write the configuration, an
//! ordinary nginx.conf, which `--show-config` prints.
//!
//! - In: a command line.
//! - Out: a running server, or the text.
//! - Callers: the binary `weir`.

mod acme;
mod certificate;
mod file_server;
mod place;
mod proxy;
mod target;

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use weir_server::{InMemory, run_in_memory};

pub use file_server::{FileServer, file_server};
pub use proxy::{Proxy, proxy};

/// Why nothing is served.
#[derive(Debug)]
enum QuickError {
    /// A bad argument, and what is wrong with it.
    Word(String, &'static str),
    /// A socket cannot be bound to this address.
    Taken(String, io::Error),
    /// All ports of this range are in use.
    NoPort(u16, u16),
    /// The certificate cannot be created.
    Certificate(rcgen::Error),
    /// A file or directory cannot be read or created.
    File(PathBuf, io::Error),
    /// There is neither `XDG_STATE_HOME` nor `HOME`.
    NoHome,
}

impl fmt::Display for QuickError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuickError::Word(word, what) => write!(f, "\"{word}\" {what}"),
            QuickError::Taken(address, e) => {
                let hint = match e.kind() {
                    io::ErrorKind::AddrInUse => "another program listens there",
                    io::ErrorKind::PermissionDenied => "ports below 1024 are for root",
                    _ => "this machine may not have the address",
                };
                write!(f, "cannot listen on {address}: {e}; {hint}, --listen names another address")
            }
            QuickError::NoPort(from, to) => {
                write!(f, "the ports {from} to {to} are all taken; --listen names another one")
            }
            QuickError::Certificate(e) => write!(f, "the certificate cannot be made: {e}"),
            QuickError::File(path, e) => write!(f, "{}: {e}", path.display()),
            QuickError::NoHome => f.write_str(
                "there is no directory for certificates and temporary files: set HOME or XDG_STATE_HOME",
            ),
        }
    }
}

/// A configuration, and the text to print when it is served.
struct Written {
    text: String,
    greeting: String,
    state: PathBuf,
}

/// Sets O_APPEND on stdout and stderr if they are files. Several descriptors may write to one file,
/// and each has an offset of its own.
fn append_to_files() {
    for fd in [rustix::stdio::stdout(), rustix::stdio::stderr()] {
        let is_file = fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        if is_file && let Ok(flags) = fcntl_getfl(fd) {
            // If the flag cannot be set, the descriptor is used as it is.
            let _ = fcntl_setfl(fd, flags | OFlags::APPEND);
        }
    }
}

/// Serves the configuration, or prints it. Returns the exit status.
fn serve(name: &'static str, show: bool, written: Result<Written, QuickError>) -> i32 {
    match written {
        Err(e) => {
            eprintln!("{name}: {e}");
            1
        }
        Ok(written) if show => weir_print::ending(name, written.text, 0),
        Ok(Written { text, greeting, state }) => {
            append_to_files();
            run_in_memory(InMemory { name, text, temporary: Some(state) }, &greeting)
        }
    }
}
