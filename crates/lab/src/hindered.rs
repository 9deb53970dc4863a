//! Stops a worker process, permanently or repeatedly.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long a slow worker is stopped.
pub(crate) const STOPPED: Duration = Duration::from_millis(50);
/// How long a slow worker runs between two stops.
pub(crate) const WORKING: Duration = Duration::from_millis(20);

/// A stopped or slow worker. It runs normally again when this is dropped.
pub(crate) struct Hindered {
    worker: Pid,
    slow: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Hindered {
    /// Stops the worker.
    pub(crate) fn stopped(worker: u32) -> Result<Hindered, String> {
        let worker = pid(worker)?;
        kill_process(worker, Signal::STOP).map_err(|e| format!("cannot stop a worker: {e}"))?;
        Ok(Hindered { worker, slow: None })
    }

    /// Stops the worker repeatedly, like one that waits for a slow disk.
    pub(crate) fn slow(worker: u32) -> Result<Hindered, String> {
        let hindered = Hindered::stopped(worker)?;
        let (worker, (over, is_over)) = (hindered.worker, channel());
        let signals = [(Signal::CONT, STOPPED), (Signal::STOP, WORKING)];
        let thread = std::thread::spawn(move || {
            for (signal, after) in signals.into_iter().cycle() {
                if is_over.recv_timeout(after) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                let _ = kill_process(worker, signal);
            }
        });
        Ok(Hindered { slow: Some((over, thread)), ..hindered })
    }
}

impl Drop for Hindered {
    fn drop(&mut self) {
        if let Some((over, thread)) = self.slow.take() {
            drop(over);
            let _ = thread.join();
        }
        let _ = kill_process(self.worker, Signal::CONT);
    }
}

fn pid(worker: u32) -> Result<Pid, String> {
    let pid = i32::try_from(worker).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| "the worker has gone".to_owned())
}
