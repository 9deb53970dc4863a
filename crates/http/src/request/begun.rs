//! The log phase, which each request ends with.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Request;
use crate::counts;
use crate::doing;

/// A request that has begun. Dropping it runs the log phase, whether an answer, the end of the loop or a panic ends it.
pub struct Begun<'r>(pub &'r mut Request);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return log(self.0);
        }
        // After a panic the request may panic once more. Then only the log line is lost.
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
