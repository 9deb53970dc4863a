//! Ends the threads of a retiring worker while they wait.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Shared by all threads of a worker.
#[derive(Debug, Default)]
pub struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

/// The worker retires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

impl Stop {
    /// Wakes all waiting threads, since the worker retires. The lock is only ever held briefly.
    pub fn stop(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for this time.
    ///
    /// # Errors
    ///
    /// The worker retires. It is returned at once.
    pub fn wait(&self, time: Duration) -> Result<(), Stopped> {
        let until = Instant::now() + time;
        let mut stopped = self.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if *stopped {
                return Err(Stopped);
            }
            if left.is_zero() {
                return Ok(());
            }
            let waited = self.changed.wait_timeout(stopped, left);
            stopped = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Runs a blocking job on a thread of its own and waits for its result. There is none if no thread can be started.
    ///
    /// # Errors
    ///
    /// The worker retires. It is returned at once, and the job's result is dropped.
    pub fn run<T: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>, Stopped> {
        let result = Arc::new(Mutex::new(JobResult::Runs));
        let ended = Ended { result: Arc::clone(&result), stop: Arc::clone(self) };
        let started = thread::Builder::new().name("weir: acme ask".to_owned()).spawn(move || {
            let came = job();
            *lock(&ended.result) = JobResult::Came(came);
        });
        if started.is_err() {
            return Ok(None);
        }
        let mut stopped = self.lock();
        loop {
            if *stopped {
                return Err(Stopped);
            }
            match std::mem::replace(&mut *lock(&result), JobResult::Runs) {
                JobResult::Came(came) => return Ok(Some(came)),
                JobResult::Panicked => return Ok(None),
                JobResult::Runs => {}
            }
            stopped = self.changed.wait(stopped).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        lock(&self.stopped)
    }
}

enum JobResult<T> {
    Runs,
    Came(T),
    Panicked,
}

/// Wakes the waiting thread when the job ends, even by a panic.
struct Ended<T> {
    result: Arc<Mutex<JobResult<T>>>,
    stop: Arc<Stop>,
}

impl<T> Drop for Ended<T> {
    fn drop(&mut self) {
        let mut result = lock(&self.result);
        if matches!(*result, JobResult::Runs) {
            *result = JobResult::Panicked;
        }
        drop(result);
        // The lock makes sure that the waiting thread is not between its check and its wait.
        let _stopped = self.stop.lock();
        self.stop.changed.notify_all();
    }
}

/// Locks a mutex, also after a panic of another holder.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_hanging_job_is_abandoned_at_once() {
        let stop = Arc::new(Stop::default());
        let (hold, held) = mpsc::channel::<()>();
        let (runs, running) = mpsc::channel();
        let waiting = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                stop.run(move || {
                    runs.send(()).unwrap();
                    held.recv().is_ok()
                })
            }
        });
        running.recv().unwrap();
        stop.stop();
        assert_eq!(waiting.join().unwrap(), Err(Stopped));
        drop(hold);
        assert_eq!(stop.wait(Duration::from_secs(3600)), Err(Stopped));
    }

    #[test]
    fn a_job_gives_its_result_and_a_panic_none() {
        let stop = Arc::new(Stop::default());
        assert_eq!(stop.run(|| 7), Ok(Some(7)));
        assert_eq!(stop.run(|| -> u8 { panic!("on purpose") }), Ok(None));
    }
}
