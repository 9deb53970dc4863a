//! Active health checks of the upstream servers of sessions, over TCP or UDP. nginx's commercial
//! edition: ngx_stream_upstream_hc_module. `weir-upstream` decides when a check runs, and what
//! follows from its result.

use std::sync::Arc;
use std::time::Duration;

use weir_ssl::client::Settings;
use weir_upstream::config::GroupId;
use weir_upstream::health;

use crate::settings::Proxy;

mod directive;
mod matching;
mod probe;

pub use directive::{HealthCheckDirective, finish, rules};
pub use matching::Match;

/// One `health_check`.
#[derive(Debug)]
pub struct StreamCheck {
    line: health::HealthCheckOptions,
    pub(crate) group: GroupId,
    rules: Option<Arc<Match>>,
    /// Whether datagrams are sent instead of opening a connection.
    udp: bool,
    /// `health_check_timeout`: how long an answer may take.
    timeout: Duration,
    proxy: Proxy,
    /// `proxy_ssl`
    tls: Option<Settings>,
}
