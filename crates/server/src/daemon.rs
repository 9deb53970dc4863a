//! Going to the background: daemon(7), as far as nginx does it. In addition, the process that was
//! started ends only when the server runs, and its exit code says whether it does.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{setsid, umask};
use weir_sys::process::{Fork, fork};

/// Which of the two processes goes on.
#[derive(Debug)]
pub enum Side {
    /// The one that was started; it is to end with this code.
    Foreground(i32),
    /// The one in the background.
    Background(Waiting),
}

/// The process that was started, which waits to hear that the server runs. When this is dropped
/// without a word, it has failed.
#[derive(Debug)]
pub struct Waiting(OwnedFd);

impl Waiting {
    /// Tells it that the server runs.
    pub fn release(self) {
        // One that was killed needs no answer.
        let _ = rustix::io::write(&self.0, b"+");
    }
}

/// Makes a copy of this process that has no terminal.
///
/// Standard error stays, since the error log may be there.
pub fn detach() -> io::Result<Side> {
    let (hear, tell) = pipe_with(PipeFlags::CLOEXEC)?;
    if let Fork::Parent(_) = fork()? {
        drop(tell);
        return Ok(Side::Foreground(verdict(&hear)));
    }
    drop(hear);
    setsid()?;
    umask(Mode::empty());
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(Side::Background(Waiting(tell)))
}

/// The exit code of the process that was started: 0 when the word came.
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
