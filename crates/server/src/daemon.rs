//! Going to the background. daemon(7), the part of it that nginx does.

use std::io;
use std::ops::ControlFlow;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{setsid, umask};
use weir_sys::process::{Fork, fork};

/// Makes a copy of this process that has no terminal; the one that was started is to end.
///
/// Standard error stays, since the error log may be there.
pub fn detach() -> io::Result<ControlFlow<()>> {
    if let Fork::Parent(_) = fork()? {
        return Ok(ControlFlow::Break(()));
    }
    setsid()?;
    umask(Mode::empty());
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(ControlFlow::Continue(()))
}
