//! USR1: lines that a loop has gathered go to the files that they were gathered for. Then all files are opened anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use weir_engine::{Handle, Remote};
use weir_values::log::Writers;

/// The longest wait for the loops to write their lines: one may be blocked.
const PATIENCE: Duration = Duration::from_secs(1);
/// When threads for files take no job, they are asked again after this time.
const AGAIN: Duration = Duration::from_millis(20);

struct Reopening<F> {
    /// Opens the files. May wait.
    open: F,
    /// Loops whose lines are not written yet.
    left: AtomicUsize,
    begun: AtomicBool,
}

/// Runs `open`, which opens all log files of the process anew, once each of its `loops` has written what `flush` sends
/// on its way. `handle` is that of one of them.
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

/// Waits until the lines of the loop of this thread are written. The last loop goes on with the files.
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

/// Opens the files, once.
async fn begin(reopening: &Arc<Reopening<impl Fn() + Send + Sync + 'static>>, handle: &Handle) {
    if reopening.begun.swap(true, Ordering::SeqCst) {
        return;
    }
    let job = || {
        let reopening = Arc::clone(reopening);
        move || (reopening.open)()
    };
    // A pool that takes no more jobs is asked again.
    while handle.files().run(job()).await.is_err() {
        handle.sleep(AGAIN).await;
    }
}
