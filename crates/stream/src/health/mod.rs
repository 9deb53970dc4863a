//! Active health checks of the servers that sessions are passed to: over a connection, or in
//! datagrams. nginx's commercial edition: ngx_stream_upstream_hc_module. `weir-upstream` decides
//! when they are made, and what follows.

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
    /// Datagrams are sent; else a connection is opened.
    udp: bool,
    /// How long an answer may take.
    timeout: Duration,
    proxy: Proxy,
    /// TLS, where the servers are spoken to in it.
    tls: Option<Settings>,
}
