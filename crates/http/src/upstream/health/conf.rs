//! `health_check` as it is written.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_conf::{Directive, Error, Word, values};
use weir_proto::http1::Version;
use weir_upstream::Thresholds;

use super::{Check, Match};
use crate::config::scope::{Scope, Spot};
use crate::modules::proxy;

/// A line, until the location's other settings are known.
#[derive(Debug, Clone)]
pub struct Line {
    at: Spot,
    interval: Duration,
    jitter: Duration,
    thresholds: Thresholds,
    uri: Vec<u8>,
    rules: Option<String>,
    port: Option<u16>,
    mandatory: bool,
    persistent: bool,
    kept: Duration,
}

impl Line {
    /// `health_check [parameter]...`
    pub fn read(d: &Directive) -> Result<Line, Error> {
        let mut line = Line {
            at: Spot::new(d, &d.name),
            interval: Duration::from_secs(5),
            jitter: Duration::ZERO,
            thresholds: Thresholds { fails: 1, passes: 1 },
            uri: b"/".to_vec(),
            rules: None,
            port: None,
            mandatory: false,
            persistent: false,
            kept: Duration::ZERO,
        };
        for word in &d.args {
            line.parameter(word).ok_or_else(|| d.invalid("parameter", word))?;
        }
        if line.persistent && !line.mandatory {
            return Err(d.problem("\"persistent\" requires \"mandatory\""));
        }
        Ok(line)
    }

    fn parameter(&mut self, word: &Word) -> Option<()> {
        let text = word.bytes.as_slice();
        match text {
            b"mandatory" => self.mandatory = true,
            b"persistent" => self.persistent = true,
            _ => {
                let at = memchr::memchr(b'=', text)?;
                let (name, value) = (&text[..at], &text[at + 1..]);
                match name {
                    b"interval" => self.interval = time(value).filter(|t| !t.is_zero())?,
                    b"jitter" => self.jitter = time(value)?,
                    b"fails" => self.thresholds.fails = count(value)?,
                    b"passes" => self.thresholds.passes = count(value)?,
                    b"uri" if value.first() == Some(&b'/') => self.uri = value.to_vec(),
                    b"match" => self.rules = Some(String::from_utf8_lossy(value).into_owned()),
                    b"port" => {
                        let port = values::number(value).and_then(|n| u16::try_from(n).ok());
                        self.port = Some(port.filter(|port| *port > 0)?);
                    }
                    b"type" if value == b"http" => {}
                    b"keepalive_time" => self.kept = time(value)?,
                    _ => return None,
                }
            }
        }
        Some(())
    }

    /// The check, when all of its location is known.
    pub fn finish(self, s: &Scope<'_, '_>) -> Result<Check, Error> {
        let passed = proxy::group(&s.location.proxy);
        let Some((group, scheme)) = passed else {
            let text = "\"health_check\" requires \"proxy_pass\" to an upstream in its location";
            return Err(self.at.error(text));
        };
        let rules = match &self.rules {
            None => None,
            Some(name) => match s.setup.matches.iter().find(|m| m.name == *name) {
                Some(found) => Some(found.clone()),
                None => return Err(self.at.error(format!("unknown match \"{name}\""))),
            },
        };
        let passing = &s.location.proxy.passing;
        Ok(Check {
            at: self.at,
            group,
            interval: self.interval,
            jitter: self.jitter,
            thresholds: self.thresholds,
            rules,
            port: self.port,
            mandatory: self.mandatory,
            persistent: self.persistent,
            kept: self.kept,
            request: Bytes::new(),
            http2: s.location.proxy.version == Version::Http20,
            uri: self.uri,
            headers: proxy::constant_headers(&s.location.proxy),
            tls: (scheme == "https://").then(|| passing.tls.clone()),
            connect_timeout: passing.connect_timeout,
            read_timeout: passing.read_timeout,
        })
    }
}

fn time(value: &[u8]) -> Option<Duration> {
    values::msec(value).map(Duration::from_millis)
}

fn count(value: &[u8]) -> Option<u32> {
    values::number(value).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0)
}

/// `match NAME { }`
pub fn rules(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let rules = Match::read(s, d)?;
    if s.setup.matches.iter().any(|known| known.name == rules.name) {
        return Err(d.error(format!("duplicate match \"{}\"", rules.name)));
    }
    s.setup.matches.push(Arc::new(rules));
    Ok(())
}
