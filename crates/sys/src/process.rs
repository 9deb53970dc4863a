//! Forking, by a process that has one thread. fork(2).

use std::io;

use rustix::process::Pid;

/// Which of the two processes goes on.
#[derive(Debug)]
pub enum Fork {
    /// The new process.
    Child,
    /// The process that forked, with the child's id.
    Parent(Pid),
}

/// Makes a copy of this process.
///
/// # Errors
///
/// Refuses when the process has more than one thread, since the copy would hold locks of
/// threads that it does not have; otherwise what fork(2) answers.
pub fn fork() -> io::Result<Fork> {
    if !has_one_thread()? {
        return Err(io::Error::other("a process with threads cannot fork"));
    }
    // SAFETY: there is one thread, this one, so the child's memory is in the same consistent
    // state as the parent's and every function may be called there.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Pid::from_raw(pid).map(Fork::Parent).ok_or_else(|| io::ErrorKind::Other.into()),
    }
}

/// Whether the calling thread is the only one of the process.
pub(crate) fn has_one_thread() -> io::Result<bool> {
    // SAFETY: unshare takes flags only. CLONE_THREAD changes nothing in a process of one thread
    // and is refused with EINVAL in any other. unshare(2).
    if unsafe { libc::unshare(libc::CLONE_THREAD) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        // A sandbox that forbids unshare: count the threads.
        _ => Ok(std::fs::read_dir("/proc/self/task")?.count() == 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_does_not_fork() {
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv().is_err());
        assert!(!has_one_thread().unwrap());
        assert!(fork().is_err());
        drop(stop);
        assert!(thread.join().unwrap());
    }
}
