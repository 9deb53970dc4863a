//! Forking a single-threaded process, fork(2), and the id of the process.

use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Pid;

/// Which of the two processes this is.
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
/// If the process has several threads, since the copy would keep locks of threads that it does not
/// have. Otherwise the error of fork(2).
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

/// The cached result of [`id`]; 0 if it is unknown.
static ID: AtomicU32 = AtomicU32::new(0);

/// The id of this process, as getpid(2) returns it, but cached.
#[must_use]
pub fn id() -> u32 {
    match ID.load(Ordering::Relaxed) {
        0 => find_id(),
        known => known,
    }
}

#[cold]
fn find_id() -> u32 {
    extern "C" fn forget() {
        ID.store(0, Ordering::Relaxed);
    }
    // Registered once, since it cannot be undone. Forked processes inherit it.
    static IS_FORGOTTEN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    // SAFETY: the handler, which runs in each child of a fork before anything else does, stores to an atomic and
    // no more. pthread_atfork(3).
    let forgets = || unsafe { libc::pthread_atfork(None, None, Some(forget)) } == 0;
    let id = std::process::id();
    if *IS_FORGOTTEN.get_or_init(forgets) {
        ID.store(id, Ordering::Relaxed);
    }
    id
}

/// Prepares a program that is no part of the server: no signal is blocked or ignored in it. The
/// kernel kills it when the thread that started it ends. pthread_sigmask(3), signal(2), prctl(2).
pub fn with_clean_signals(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    let begin = || {
        // SAFETY: the calls read their arguments only, and the set is initialised before it is used. They are made in a
        // child that is alone in its memory, and take no lock: sigemptyset, sigprocmask and signal are async-signal-safe,
        // prctl is a plain system call.
        unsafe {
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock, see above.
    unsafe { command.pre_exec(begin) };
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
        // If a sandbox forbids unshare, count the threads.
        _ => Ok(std::fs::read_dir("/proc/self/task")?.count() == 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_its_own_id() {
        assert_eq!((id(), id()), (std::process::id(), std::process::id()));
        // SAFETY: the child reads an id and ends with _exit, so nothing that another thread of this test process
        // held at the fork is used.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_own = id() == std::process::id() && id() == std::process::id();
            // SAFETY: ends the child without running this process's destructors.
            unsafe { libc::_exit(i32::from(!is_own)) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: `status` outlives the call; the child is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

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
