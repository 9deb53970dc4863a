//! How requests above a limit are refused and logged, for `limit_req` and `limit_conn`.

use weir_conf::{Directive as Line, Error};
use weir_log::Level;
use weir_metrics::Metric;

use crate::phases::Step;
use crate::request::Request;

/// `limit_..._log_level`, `limit_..._status` and `limit_..._dry_run`.
#[derive(Debug, Clone)]
pub struct RejectSettings {
    /// The level of the message.
    pub log_level: Level,
    /// The status of the answer.
    pub status: u16,
    /// Whether a request above the limit is only logged.
    pub dry_run: bool,
}

impl RejectSettings {
    /// Refuses a request and counts the refusal.
    pub fn refuse(&self, r: &Request) -> Step {
        let metrics = &r.event_loop.metrics;
        metrics.add(Metric::Limited, 1);
        if self.status >= 500 {
            metrics.add(Metric::LimitedErrors, 1);
        }
        Step::Status(self.status)
    }
}

impl Default for RejectSettings {
    fn default() -> Self {
        RejectSettings { log_level: Level::Error, status: 503, dry_run: false }
    }
}

/// Reads `info`, `notice`, `warn` or `error`.
pub fn log_level(d: &Line) -> Result<Level, Error> {
    d.choice(&[
        ("info", Level::Info),
        ("notice", Level::Notice),
        ("warn", Level::Warn),
        ("error", Level::Error),
    ])
}

/// Reads a status between 400 and 599.
pub fn status(d: &Line) -> Result<u16, Error> {
    d.number_within(400, Some(599)).map(|n| n as u16)
}
