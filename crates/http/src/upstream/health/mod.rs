//! Active health checks: the servers of a group are asked regularly, and one that does not answer as it should gets
//! no requests until it does. nginx's commercial edition: ngx_http_upstream_hc_module.
//!
//! One loop of one worker asks; what it finds stands in the group's zone, where all workers see it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_conf::Error;
use weir_upstream::Thresholds;

use super::groups::{GroupId, Upstreams};
use super::http::fields;
use super::tls;
use crate::config::scope::Spot;

mod conf;
mod matching;
mod probe;
mod watch;

pub use conf::{Line, rules};
pub use matching::Match;
pub use watch::start;

/// One `health_check`.
#[derive(Debug)]
pub struct Check {
    at: Spot,
    group: GroupId,
    interval: Duration,
    jitter: Duration,
    thresholds: Thresholds,
    rules: Option<Arc<Match>>,
    port: Option<u16>,
    mandatory: bool,
    persistent: bool,
    /// How long a connection may serve one check after another.
    kept: Duration,
    uri: Vec<u8>,
    /// `proxy_set_header`, as far as requests have no part in it.
    headers: Vec<(Bytes, Bytes)>,
    /// All of the request; over HTTP/2 its fields.
    request: Bytes,
    http2: bool,
    /// TLS, where the servers are spoken to in it.
    tls: Option<Arc<tls::Settings>>,
    connect_timeout: Duration,
    read_timeout: Duration,
}

impl Check {
    /// The name of its rules, for log lines.
    fn name(&self) -> &str {
        self.rules.as_ref().map_or("", |rules| &rules.name)
    }

    /// Writes the request, now that the group's name is known.
    fn write(&mut self, host: &str) {
        if self.http2 {
            let scheme = if self.tls.is_some() { "https://" } else { "http://" };
            let agent = (Bytes::from_static(b"User-Agent"), Bytes::from_static(AGENT.as_bytes()));
            self.request = fields::get(scheme, &self.uri, host.as_bytes(), &self.headers, agent);
            return;
        }
        let mut out = [b"GET ", self.uri.as_slice(), b" HTTP/1.1\r\n"].concat();
        let has =
            |name: &str| self.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes()));
        let connection = if self.kept.is_zero() { "close" } else { "keep-alive" };
        for (name, value) in [("Host", host), ("Connection", connection), ("User-Agent", AGENT)] {
            if !has(name) {
                out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
            }
        }
        for (name, value) in self.headers.iter().filter(|(_, value)| !value.is_empty()) {
            out.extend_from_slice(&[name, b": ".as_slice(), value, b"\r\n"].concat());
        }
        out.extend_from_slice(b"\r\n");
        self.request = out.into();
    }
}

/// What servers read in their logs.
const AGENT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"), " (health check)");

/// All groups are known: what is checked must be shared.
pub fn finish(mut checks: Vec<Check>, upstreams: &Upstreams) -> Result<Vec<Check>, Error> {
    for check in &mut checks {
        let Some(upstream) = upstreams.get(check.group) else { continue };
        let name = &upstream.group.name;
        if !upstream.group.is_shared() {
            let text = format!("\"health_check\" requires upstream \"{name}\" to have a \"zone\"");
            return Err(check.at.error(text));
        }
        if check.mandatory {
            upstream.group.guard();
        }
        check.write(name);
    }
    Ok(checks)
}
