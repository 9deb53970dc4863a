//! The current activity of this thread's loop, for requests: see [`weir_values::doing`].

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

/// Notes the phase and module that run for a request. The module is empty if no particular one
/// runs.
#[inline]
pub fn note(phase: &'static str, module: &'static str, r: &Request) {
    doing::note(phase, module, r.location);
}

/// Runs a future. Also returns how long, at worst, an event for it waited because the loop was
/// blocked.
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
