//! USR1: reopens log files. Buffered lines of loops are written to the old files first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use weir_engine::{Handle, Remote};
use weir_values::log::Writers;

/// How long to wait for loops to write their lines, since a loop may be blocked.
const PATIENCE: Duration = Duration::from_secs(1);
/// How soon to try again if the file pool takes no job.
const AGAIN: Duration = Duration::from_millis(20);

struct Reopening<F> {
    /// Opens the files. May block.
    open: F,
    /// The number of loops whose lines are not written yet.
    left: AtomicUsize,
    begun: AtomicBool,
}

/// Calls `open`, which reopens all log files of the process, once each of `loops` has written the
/// lines that `flush` hands over. `handle` is that of one of the loops.
pub fn reopen(
    loops: &[Remote],
    handle: &Handle,
    flush: fn() -> Vec<Writers>,
    open: impl Fn() + Send + Sync + 'static,
) {
    let (left, begun) = (AtomicUsize::new(loops.len()), AtomicBool::new(false));
    let reopening = Arc::new(Reopening { open, left, begun });
    for remote in loops {
        let reopening = Arc::clone(&reopening);
        remote.post(Box::new(move |handle| write_lines(handle, flush(), reopening)));
    }
    let own = handle.clone();
    handle.spawn(async move {
        own.sleep(PATIENCE).await;
        begin(&reopening, &own).await;
    });
}

/// Waits until the lines of this thread's loop are written. The last loop then reopens the files.
fn write_lines(
    handle: &Handle,
    queues: Vec<Writers>,
    reopening: Arc<Reopening<impl Fn() + Send + Sync + 'static>>,
) {
    let own = handle.clone();
    handle.spawn(async move {
        for queue in &queues {
            queue.written(&own).await;
        }
        if reopening.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            begin(&reopening, &own).await;
        }
    });
}

/// Reopens the files, once.
async fn begin(reopening: &Arc<Reopening<impl Fn() + Send + Sync + 'static>>, handle: &Handle) {
    if reopening.begun.swap(true, Ordering::SeqCst) {
        return;
    }
    let job = || {
        let reopening = Arc::clone(reopening);
        move || (reopening.open)()
    };
    // A full pool is tried again.
    while handle.files().run(job()).await.is_err() {
        handle.sleep(AGAIN).await;
    }
}
