//! Reads `health_check` and `match`.

use std::sync::Arc;

use weir_conf::{Directive, Error};
use weir_upstream::health;

use super::StreamCheck;
use super::matching::{Expect, Match};
use crate::config::StreamScope;
use crate::settings::{Groups, SessionContent};

/// A `health_check` line, kept until the rest of its server block is read.
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

    /// Makes the check, once the rest of the server block is read.
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

/// Applies the checks to their groups, once all groups are read. A checked group must be in shared
/// memory.
pub fn finish(checks: &[StreamCheck], groups: &Groups) -> Result<(), Error> {
    for check in checks {
        if let Some(upstream) = groups.get(check.group) {
            check.line.apply_to(&upstream.group)?;
        }
    }
    Ok(())
}

impl Match {
    fn read(s: &mut StreamScope<'_, '_>, d: &Directive) -> Result<Match, Error> {
        let name = d.arg(0).map(|word| word.lossy().into_owned()).unwrap_or_default();
        let (mut send, mut expect) = (None, None);
        for line in d.block() {
            match &*line.name.lossy() {
                "send" if send.is_some() => return Err(line.problem("is duplicate")),
                "expect" if expect.is_some() => return Err(line.problem("is duplicate")),
                "send" => match line.args.as_slice() {
                    [text] => send = Some(unescaped(&text.bytes)),
                    _ => return Err(line.problem("is not understood")),
                },
                "expect" => expect = Some(Expect::read(s, line)?),
                other => return Err(line.error(format!("unknown directive \"{other}\""))),
            }
        }
        Ok(Match { name, send: send.unwrap_or_default(), expect })
    }
}

impl Expect {
    fn read(s: &mut StreamScope<'_, '_>, d: &Directive) -> Result<Expect, Error> {
        let pattern = |caseless| {
            move |s: &mut StreamScope<'_, '_>, word: &weir_conf::Word| {
                s.setup.reading().regex(d, word, &word.bytes, caseless).map(Expect::Pattern)
            }
        };
        match d.args.as_slice() {
            [text] => Ok(Expect::Text(unescaped(&text.bytes))),
            [operator, word] if operator.is("~") => pattern(false)(s, word),
            [operator, word] if operator.is("~*") => pattern(true)(s, word),
            _ => Err(d.problem("is not understood")),
        }
    }
}

/// Decodes `\x80` and the like into bytes.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| (*text.get(at)? as char).to_digit(16);
    let (mut out, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(byte) = text.get(at) {
        match (text.get(at..at + 2), digit(at + 2), digit(at + 3)) {
            (Some(b"\\x"), Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 4;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

/// `match NAME { }`
pub fn rules(s: &mut StreamScope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let rules = Match::read(s, d)?;
    if s.setup.matches.iter().any(|known| known.name == rules.name) {
        return Err(d.error(format!("duplicate match \"{}\"", rules.name)));
    }
    s.setup.matches.push(Arc::new(rules));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_in_hexadecimal() {
        assert_eq!(unescaped(br"a\x00\xFFz"), b"a\0\xffz");
        assert_eq!(unescaped(br"\x0"), br"\x0");
        assert_eq!(unescaped(br"\xg0\y\"), br"\xg0\y\");
    }
}
