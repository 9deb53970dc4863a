//! Active health checks of the servers that sessions are passed to: a connection, or datagrams, and what is said in
//! them. nginx's commercial edition: ngx_stream_upstream_hc_module. When they are made, and what follows, is
//! `weir-upstream`'s.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Directive, Error};
use weir_ssl::client::Settings;
use weir_upstream::config::GroupId;
use weir_upstream::health::{self, Watcher};

use crate::config::{Groups, Proxy, SessionContent, StreamScope};
use crate::event_loop::LoopState;

mod matching;
mod probe;

pub use matching::{Match, rules};

/// One `health_check`.
#[derive(Debug)]
pub struct StreamCheck {
    line: health::HealthCheckOptions,
    group: GroupId,
    rules: Option<Arc<Match>>,
    /// Datagrams are sent; else a connection is opened.
    udp: bool,
    /// How long an answer may take.
    timeout: Duration,
    proxy: Proxy,
    /// TLS, where the servers are spoken to in it.
    tls: Option<Settings>,
}

/// A line, until the server's other settings are known.
#[derive(Debug, Clone)]
pub struct HealthCheckDirective {
    line: health::HealthCheckOptions,
    udp: bool,
}

impl HealthCheckDirective {
    /// `health_check [parameter]...`
    pub fn read(d: &Directive) -> Result<HealthCheckDirective, Error> {
        let mut udp = false;
        let line = health::HealthCheckOptions::read(d, |name, value| match (name, value) {
            (b"udp", None) => {
                udp = true;
                Some(())
            }
            _ => None,
        })?;
        Ok(HealthCheckDirective { line, udp })
    }

    /// The check, when all of its server is known.
    pub fn finish(self, s: &StreamScope<'_, '_>) -> Result<StreamCheck, Error> {
        let HealthCheckDirective { line, udp } = self;
        let SessionContent::Group(group) = s.conf.content else {
            let text = "\"health_check\" requires \"proxy_pass\" to an upstream in its server";
            return Err(line.at.error(text));
        };
        let rules = line.find(&s.setup.matches, |rules| &rules.name)?.cloned();
        if udp && !rules.as_ref().is_some_and(|rules| rules.is_complete()) {
            let text = "\"udp\" requires a \"match\" with \"send\" and \"expect\"";
            return Err(line.at.error(text));
        }
        let tls = s.conf.tls.to_servers.then(|| s.conf.tls.client.clone());
        let (timeout, proxy) = (s.conf.health_timeout, s.conf.proxy.clone());
        Ok(StreamCheck { line, group, rules, udp, timeout, proxy, tls })
    }
}

/// All groups are known: what is checked must be shared.
pub fn finish(checks: &[StreamCheck], groups: &Groups) -> Result<(), Error> {
    for check in checks {
        if let Some(upstream) = groups.get(check.group) {
            check.line.guard(&upstream.group)?;
        }
    }
    Ok(())
}

/// Starts the checks of a configuration, on one loop of one worker.
pub fn start(event_loop: &Rc<LoopState>) {
    let told = Rc::downgrade(event_loop);
    let watcher = Rc::new(Watcher {
        handle: event_loop.handle.clone(),
        log: event_loop.site.main_log.clone(),
        retiring: Box::new(move || told.upgrade().is_none_or(|event_loop| event_loop.retiring())),
    });
    for check in &event_loop.site.checks {
        if let Some(upstream) = event_loop.site.upstreams.get(check.group) {
            health::start(&watcher, check, upstream.group.clone());
        }
    }
}
