//! `weir proxy` and `weir file-server`: a configuration from a few words, served at once in the foreground.
//!
//! `place` finds free ports and the directory of state, `certificate` makes a certificate, `acme` has it made by an authority, `proxy` and `file_server` write the
//! configuration. Its text is an nginx.conf as anybody may write it: `--show-config` prints it.
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
    /// A word of the command line, and what is wrong with it.
    Word(String, &'static str),
    /// No socket can be bound to this address.
    Taken(String, io::Error),
    /// All ports that weir tries are taken.
    NoPort(u16, u16),
    /// The certificate cannot be made.
    Certificate(rcgen::Error),
    /// A file or directory cannot be read or made.
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

/// A configuration, and what is printed when it is served.
struct Written {
    text: String,
    greeting: String,
    state: PathBuf,
}

/// Has stdout and stderr appended to where they are files. Access lines and messages may go to one file through several
/// descriptors, and each of these has a place of its own to write at.
fn append_to_files() {
    for fd in [rustix::stdio::stdout(), rustix::stdio::stderr()] {
        let is_file = fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        if is_file && let Ok(flags) = fcntl_getfl(fd) {
            // A descriptor that takes no flags is written as it is.
            let _ = fcntl_setfl(fd, flags | OFlags::APPEND);
        }
    }
}

/// Serves what was written, or prints it: the exit status.
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
