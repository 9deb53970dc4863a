//! Active health checks of HTTP servers: the request and the judgement of the answer. nginx's
//! commercial edition: ngx_http_upstream_hc_module.
//!
//! `weir-upstream` decides when servers are checked and what follows from the results.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_conf::Error;
use weir_upstream::health::{self, Watcher};

use super::groups::{GROUPS, GroupId};
use super::http::fields;
use super::tls;
use crate::event_loop::LoopState;
use crate::site::main_conf::{BlockEnd, MainDraft, MainKey};

mod matching;
mod probe;

pub use matching::Match;

/// One `health_check`.
#[derive(Debug)]
pub struct Check {
    /// When servers are checked, and when their state changes.
    pub line: health::HealthCheckOptions,
    /// The group whose servers are checked.
    pub group: GroupId,
    /// The conditions for the answer.
    pub rules: Option<Arc<Match>>,
    /// How long a connection is kept for further checks.
    pub kept: Duration,
    /// The requested URI.
    pub uri: Vec<u8>,
    /// `proxy_set_header` lines without variables of a request.
    pub headers: Vec<(Bytes, Bytes)>,
    /// The serialized request; over HTTP/2 its fields.
    pub request: Bytes,
    /// Whether HTTP/2 is used.
    pub http2: bool,
    /// The TLS settings, if TLS is used.
    pub tls: Option<Arc<tls::Settings>>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a read may take.
    pub read_timeout: Duration,
}

impl Check {
    /// Serializes the request, after the group's name is known.
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

/// The `User-Agent` of checks.
const AGENT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"), " (health check)");

/// The checks of a site.
pub static CHECKS: MainKey<ChecksDraft> = MainKey::new();

/// The checks while the configuration is read.
#[derive(Default)]
pub struct ChecksDraft {
    /// `health_check`s.
    pub checks: Vec<Check>,
    /// `match` blocks.
    pub matches: Vec<Arc<Match>>,
}

impl MainDraft for ChecksDraft {
    type MainConf = Vec<Arc<Check>>;

    /// Runs after all groups are built. A checked group must have a zone.
    fn finish(mut self, end: &mut BlockEnd<'_>) -> Result<Vec<Arc<Check>>, Error> {
        for check in &mut self.checks {
            let Some(upstream) = GROUPS.of(end.made).get(check.group) else { continue };
            check.line.apply_to(&upstream.group)?;
            check.write(&upstream.group.name);
        }
        Ok(self.checks.into_iter().map(Arc::new).collect())
    }
}

/// Starts the checks of a configuration, on one loop of one worker.
pub fn start(event_loop: &Rc<LoopState>) {
    let told = Rc::downgrade(event_loop);
    let watcher = Rc::new(Watcher {
        handle: event_loop.handle.clone(),
        log: event_loop.site.main.core.error_log.clone(),
        retiring: Box::new(move || told.upgrade().is_none_or(|event_loop| event_loop.is_over())),
    });
    let main_confs = &event_loop.site.main_confs;
    for check in CHECKS.of(main_confs) {
        if let Some(upstream) = GROUPS.of(main_confs).get(check.group) {
            health::start(&watcher, Arc::clone(check), upstream.group.clone());
        }
    }
}
