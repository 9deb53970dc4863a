//! The directive `health_check`: the parameters that `http` and `stream` share.

use std::time::Duration;

use weir_conf::{Directive, Error, Spot, Word, values};

use super::Thresholds;
use crate::Group;

/// When servers are checked, and when their state changes.
#[derive(Debug, Clone)]
pub struct HealthCheckOptions {
    /// The place of the directive, for error messages.
    pub at: Spot,
    /// Time from one check to the next.
    pub interval: Duration,
    /// The most time that is added to the interval at random.
    pub jitter: Duration,
    /// How many equal results in a row change a server's state.
    pub thresholds: Thresholds,
    /// `match`: the name of a `match` block.
    pub rules: Option<String>,
    /// `port`: the port to check, if not the server's own.
    pub port: Option<u16>,
    /// `mandatory`: servers must pass a check before they are used.
    pub mandatory: bool,
    /// `persistent`: servers keep their state at a reload.
    pub persistent: bool,
}

impl HealthCheckOptions {
    /// Reads `health_check [parameter]...`. `own` reads parameters of one protocol: a name, and its
    /// value if any.
    pub fn read(
        d: &Directive,
        mut own: impl FnMut(&[u8], Option<&[u8]>) -> Option<()>,
    ) -> Result<HealthCheckOptions, Error> {
        let mut line = HealthCheckOptions {
            at: Spot::new(d, &d.name),
            interval: Duration::from_secs(5),
            jitter: Duration::ZERO,
            thresholds: Thresholds { fails: 1, passes: 1 },
            rules: None,
            port: None,
            mandatory: false,
            persistent: false,
        };
        for word in &d.args {
            line.parameter(word, &mut own).ok_or_else(|| d.invalid("parameter", word))?;
        }
        if line.persistent && !line.mandatory {
            return Err(d.problem("\"persistent\" requires \"mandatory\""));
        }
        Ok(line)
    }

    fn parameter(
        &mut self,
        word: &Word,
        own: &mut impl FnMut(&[u8], Option<&[u8]>) -> Option<()>,
    ) -> Option<()> {
        let text = word.bytes.as_slice();
        let Some(at) = memchr::memchr(b'=', text) else {
            match text {
                b"mandatory" => self.mandatory = true,
                b"persistent" => self.persistent = true,
                name => own(name, None)?,
            }
            return Some(());
        };
        let (name, value) = (&text[..at], &text[at + 1..]);
        match name {
            b"interval" => self.interval = time(value).filter(|t| !t.is_zero())?,
            b"jitter" => self.jitter = time(value)?,
            b"fails" => self.thresholds.fails = count(value)?,
            b"passes" => self.thresholds.passes = count(value)?,
            b"match" => self.rules = Some(String::from_utf8_lossy(value).into_owned()),
            b"port" => {
                let port = values::number(value).and_then(|n| u16::try_from(n).ok());
                self.port = Some(port.filter(|port| *port > 0)?);
            }
            name => own(name, Some(value))?,
        }
        Some(())
    }

    /// Finds the `match` block that the directive names.
    pub fn find<'m, M>(
        &self,
        all: &'m [M],
        name: impl Fn(&M) -> &str,
    ) -> Result<Option<&'m M>, Error> {
        let Some(wanted) = &self.rules else { return Ok(None) };
        let found = all.iter().find(|rules| name(rules) == wanted);
        let unknown = || self.at.error(format!("unknown match \"{wanted}\""));
        found.ok_or_else(unknown).map(Some)
    }

    /// Checks that the group has a zone. With `mandatory`, bars its peers until they pass a check.
    pub fn apply_to(&self, group: &Group) -> Result<(), Error> {
        if !group.is_shared() {
            let name = &group.name;
            let text = format!("\"health_check\" requires upstream \"{name}\" to have a \"zone\"");
            return Err(self.at.error(text));
        }
        if self.mandatory {
            group.require_check();
        }
        Ok(())
    }
}

/// Parses a time of a parameter.
pub fn time(value: &[u8]) -> Option<Duration> {
    values::msec(value).map(Duration::from_millis)
}

fn count(value: &[u8]) -> Option<u32> {
    values::number(value).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0)
}
