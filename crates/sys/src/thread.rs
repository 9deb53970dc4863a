//! The CPU time of another thread of this process. pthread_getcpuclockid(3).

use std::io;
use std::time::Duration;

/// The CPU time clock of a thread, which all threads of its process can read.
#[derive(Clone, Copy, Debug)]
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// The clock of the calling thread.
    pub fn own() -> io::Result<ThreadClock> {
        let mut clock = 0;
        // SAFETY: `clock` outlives the call, and the calling thread is alive.
        match unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) } {
            0 => Ok(ThreadClock(clock)),
            e => Err(io::Error::from_raw_os_error(e)),
        }
    }

    /// The CPU time that the thread has used. None if it has ended.
    #[must_use]
    pub fn read(self) -> Option<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` outlives the call. The clock's id names a thread by number, and the kernel refuses one
        // that is none of this process's. clock_gettime(2).
        if unsafe { libc::clock_gettime(self.0, &raw mut time) } != 0 {
            return None;
        }
        Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_threads_clock_stands_while_it_waits_and_ends_with_it() {
        let (tell, told) = mpsc::channel();
        let (end, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(ThreadClock::own().unwrap()).unwrap();
            let _ = wait.recv();
        });
        let clock = told.recv().unwrap();
        let (mut last, mut stood) = (clock.read().unwrap(), false);
        for _ in 0..1_000_000 {
            let now = clock.read().unwrap();
            assert!(now >= last);
            if now == last {
                stood = true;
                break;
            }
            last = now;
        }
        assert!(stood, "it waits");
        let own = ThreadClock::own().unwrap();
        assert!(own.read().unwrap() < own.read().unwrap());
        drop(end);
        thread.join().unwrap();
        assert!(clock.read().is_none_or(|time| time >= last));
    }
}
