//! What a request above a limit gets, and at which level it is logged: the same for rates and for connections.

use weir_conf::{Directive as Line, Error};
use weir_log::Level;
use weir_metrics::Metric;

use crate::phases::Step;
use crate::request::Request;

/// What a refused request gets: `limit_..._log_level`, `limit_..._status`, `limit_..._dry_run`.
#[derive(Debug, Clone)]
pub struct RejectSettings {
    /// The level of the message.
    pub log_level: Level,
    /// The status of the answer.
    pub status: u16,
    /// The request passes all the same.
    pub dry_run: bool,
}

impl RejectSettings {
    /// Refuses a request, and counts that.
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

/// `info`, `notice`, `warn` or `error`.
pub fn log_level(d: &Line) -> Result<Level, Error> {
    d.choice(&[
        ("info", Level::Info),
        ("notice", Level::Notice),
        ("warn", Level::Warn),
        ("error", Level::Error),
    ])
}

/// A status that tells a client to come back later.
pub fn status(d: &Line) -> Result<u16, Error> {
    d.number_within(400, Some(599)).map(|n| n as u16)
}
