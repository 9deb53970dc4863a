//! What the loop of this thread is at, for requests: see [`weir_values::doing`].

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::Handle;
use weir_log::Log;
use weir_values::doing::{self, Blamed};

pub use weir_values::doing::noting;

use crate::request::Request;
use crate::site::location::Location;

impl Blamed for Location {
    fn name(&self) -> (&'static str, Cow<'_, str>) {
        ("location", String::from_utf8_lossy(&self.name))
    }

    fn log(&self) -> &Arc<Log> {
        &self.conf.core.error_log
    }

    fn threshold(&self) -> Duration {
        self.conf.core.blocked_threshold
    }
}

/// Notes the module that runs for a request, and the phase; the module is empty if there is none in
/// particular.
#[inline]
pub fn note(phase: &'static str, module: &'static str, r: &Request) {
    doing::note(phase, module, r.location);
}

/// Runs a future; also says how long, at worst, the event that it waited for waited for it.
pub async fn blocked<T>(
    handle: &Handle,
    mut future: Pin<&mut impl Future<Output = T>>,
) -> (T, Duration) {
    let mut worst = Duration::ZERO;
    let out = std::future::poll_fn(|cx| {
        worst = worst.max(handle.blocked());
        future.as_mut().poll(cx)
    })
    .await;
    (out, worst)
}
