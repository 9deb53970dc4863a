//! The end of a request: its log phase.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Request;
use crate::counts;
use crate::doing;

/// A request that has begun. Its end is the log phase, whatever ends it: an answer, a loop that stops, a panic.
pub struct Begun<'r>(pub &'r mut Request);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return log(self.0);
        }
        // What the panic left may panic once more: then the line is lost, and not the process.
        let _ = catch_unwind(AssertUnwindSafe(|| log(self.0)));
    }
}

fn log(r: &mut Request) {
    counts::ended(r);
    r.is_logged = true;
    for handler in &r.location.plan.log {
        doing::note("the log phase", handler.module, r);
        (handler.run)(r);
    }
}
