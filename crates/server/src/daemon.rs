//! Runs the server in the background: daemon(7), as nginx does it. In addition, the process that
//! was started ends only once the server runs, with an exit code that says whether it does.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{setsid, umask};
use weir_sys::process::{Fork, fork};

/// Which of the two processes this is.
#[derive(Debug)]
pub enum Side {
    /// The process that was started. It ends with this code.
    Foreground(i32),
    /// The process in the background.
    Background(Waiting),
}

/// Notifies the process that was started. If this is dropped without [`Waiting::release`], that
/// process fails.
#[derive(Debug)]
pub struct Waiting(OwnedFd);

impl Waiting {
    /// Reports that the server runs.
    pub fn release(self) {
        // The process may have been killed.
        let _ = rustix::io::write(&self.0, b"+");
    }
}

/// Forks a process without a terminal.
///
/// It keeps stderr, which may be the error log. An error comes with the call that failed.
pub fn detach() -> Result<Side, (&'static str, io::Error)> {
    let (hear, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| ("pipe2()", e.into()))?;
    if let Fork::Parent(_) = fork().map_err(|e| ("fork()", e))? {
        drop(tell);
        return Ok(Side::Foreground(verdict(&hear)));
    }
    drop(hear);
    setsid().map_err(|e| ("setsid()", e.into()))?;
    umask(Mode::empty());
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| ("open() of /dev/null", e.into()))?;
    rustix::stdio::dup2_stdin(&null).map_err(|e| ("dup2(STDIN)", e.into()))?;
    rustix::stdio::dup2_stdout(&null).map_err(|e| ("dup2(STDOUT)", e.into()))?;
    Ok(Side::Background(Waiting(tell)))
}

/// The exit code of the process that was started: 0 once the server runs.
fn verdict(hear: &OwnedFd) -> i32 {
    let mut word = [0; 1];
    loop {
        match rustix::io::read(hear, &mut word) {
            Ok(1..) => return 0,
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return 1,
        }
    }
}
