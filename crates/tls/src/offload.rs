//! Steps of a handshake on the threads of the file pool.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_engine::{Either, Handle, either, operation};

/// How long a step waits for a thread to take it.
const FOR_THREAD: Duration = Duration::from_secs(1);

/// Runs a step on a thread of the file pool. If none takes it, since all wait for a disk that does
/// not respond, the loop does.
pub(crate) async fn offload<T: Send + 'static>(
    handle: &Handle,
    step: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let waiting = Arc::new(Mutex::new(Some(step)));
    let of_pool = Arc::clone(&waiting);
    let mut done = handle.files().run(move || take(&of_pool).map(|step| step()));
    let first = either(&mut done, handle.sleep(FOR_THREAD)).await;
    if let Some(step) = take(&waiting) {
        handle.heavy().await;
        return Ok(operation("TLS handshake", step));
    }
    let done = match first {
        Either::Left(done) => done,
        Either::Right(()) => done.await,
    };
    done?.ok_or_else(|| io::Error::other("a step of a handshake was taken twice"))
}

fn take<S>(waiting: &Mutex<Option<S>>) -> Option<S> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
}
