//! Reads `health_check`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_conf::{Directive, Error};
use weir_proto::http1::Version;
use weir_upstream::health;

use crate::config::scope::Scope;
use crate::escape::within_word;
use crate::modules::proxy;
use crate::upstream::health::{CHECKS, Check, Match};

/// A `health_check` line, until all settings of the location are known.
#[derive(Debug, Clone)]
pub struct HealthCheckLine {
    line: health::HealthCheckOptions,
    uri: Vec<u8>,
    kept: Duration,
}

impl HealthCheckLine {
    /// `health_check [parameter]...`
    pub fn read(d: &Directive) -> Result<HealthCheckLine, Error> {
        let (mut uri, mut kept) = (b"/".to_vec(), Duration::ZERO);
        let line = health::HealthCheckOptions::read(d, |name, value| {
            match (name, value?) {
                (b"uri", value) if value.first() == Some(&b'/') => {
                    uri = value.to_vec();
                    within_word(&mut uri, 0);
                }
                (b"type", b"http") => {}
                (b"keepalive_time", value) => kept = health::time(value)?,
                _ => return None,
            }
            Some(())
        })?;
        Ok(HealthCheckLine { line, uri, kept })
    }

    /// The check, when all settings of the location are known.
    pub fn finish(self, s: &mut Scope<'_, '_>) -> Result<Check, Error> {
        let passed = proxy::group(&s.location);
        let Some((group, scheme)) = passed else {
            let text = "\"health_check\" requires \"proxy_pass\" to an upstream in its location";
            return Err(self.line.at.error(text));
        };
        let matches = &CHECKS.draft(&mut s.setup.drafts).matches;
        let rules = self.line.find(matches, |rules| &rules.name)?.cloned();
        let passing = &proxy::CONF.of(&s.location).passing;
        Ok(Check {
            line: self.line,
            group,
            rules,
            kept: self.kept,
            request: Bytes::new(),
            http2: proxy::CONF.of(&s.location).version == Version::Http20,
            uri: self.uri,
            headers: proxy::constant_headers(proxy::CONF.of(&s.location)),
            tls: (scheme == "https://").then(|| passing.tls.clone()),
            connect_timeout: passing.connect_timeout,
            read_timeout: passing.read_timeout,
        })
    }
}

/// `match NAME { }`
pub fn rules(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let rules = Match::read(s, d)?;
    let matches = &mut CHECKS.draft(&mut s.setup.drafts).matches;
    if matches.iter().any(|known| known.name == rules.name) {
        return Err(d.error(format!("duplicate match \"{}\"", rules.name)));
    }
    matches.push(Arc::new(rules));
    Ok(())
}
