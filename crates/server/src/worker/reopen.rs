//! USR1: lines that a loop has gathered go to the files that they were gathered for. Then all files are opened anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use weir_engine::{Handle, Remote};
use weir_log::{Cause, Log, OpenLogs, log};

use super::turns;

/// The longest wait for the loops to write their lines: one may be blocked.
const PATIENCE: Duration = Duration::from_secs(1);
/// When threads for files take no job, they are asked again after this time.
const AGAIN: Duration = Duration::from_millis(20);

struct Reopening {
    logs: Arc<OpenLogs>,
    log: Arc<Log>,
    /// Loops whose lines are not written yet.
    left: AtomicUsize,
    begun: AtomicBool,
}

/// Opens all log files of the process anew; `handle` is that of one of its `loops`.
pub fn reopen(loops: &[Remote], handle: &Handle, logs: Arc<OpenLogs>, log: Arc<Log>) {
    let (left, begun) = (AtomicUsize::new(loops.len()), AtomicBool::new(false));
    let reopening = Arc::new(Reopening { logs, log, left, begun });
    for remote in loops {
        let reopening = Arc::clone(&reopening);
        remote.post(Box::new(move |handle| write_lines(handle, reopening)));
    }
    let own = handle.clone();
    handle.spawn(async move {
        own.sleep(PATIENCE).await;
        reopening.begin(&own).await;
    });
}

/// Writes what the loop of this thread has gathered. The last loop goes on with the files.
fn write_lines(handle: &Handle, reopening: Arc<Reopening>) {
    let queues = turns::flush_logs();
    let own = handle.clone();
    handle.spawn(async move {
        for queue in &queues {
            queue.written(&own).await;
        }
        if reopening.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            reopening.begin(&own).await;
        }
    });
}

impl Reopening {
    /// Opens the files, once.
    async fn begin(&self, handle: &Handle) {
        if self.begun.swap(true, Ordering::SeqCst) {
            return;
        }
        let job = || {
            let (logs, log) = (Arc::clone(&self.logs), Arc::clone(&self.log));
            move || reopen_all(&logs, &log)
        };
        // A pool that takes no more jobs is asked again.
        while handle.files().run(job()).await.is_err() {
            handle.sleep(AGAIN).await;
        }
    }
}

/// May wait.
fn reopen_all(logs: &OpenLogs, log: &Log) {
    for (path, e) in logs.reopen_all(None) {
        log!(log, Emerg, None, "open() \"{}\" failed {}", path.display(), Cause(&e));
    }
    crate::boot::redirect_stderr(log);
}
