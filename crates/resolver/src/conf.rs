//! The directive `resolver`. The modules that resolve names decide how to use the answers.

use std::time::Duration;

use weir_conf::{Directive as Line, Error, values};

use weir_values::address::{self, Address};

/// The port of DNS.
const PORT: u16 = 53;
/// How long a name that does not exist is not asked for again, without `valid=`. As in nginx.
const ABSENT: Duration = Duration::from_secs(10);

/// One `resolver` line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolverConf {
    /// The name servers, asked in turn.
    pub servers: Vec<Address>,
    /// `valid=`: how long answers are cached, instead of their TTL.
    pub valid: Option<Duration>,
    /// `ipv4=`
    pub ipv4: bool,
    /// `ipv6=`
    pub ipv6: bool,
}

impl ResolverConf {
    /// How long the answer holds that a name does not exist. Such an answer has no TTL of its own.
    pub fn absent_for(&self) -> Duration {
        self.valid.unwrap_or(ABSENT)
    }

    /// Reads `resolver ADDRESS ... [valid=TIME] [ipv4=on|off] [ipv6=on|off]`, in any block.
    pub fn read(d: &Line) -> Result<ResolverConf, Error> {
        let mut resolver =
            ResolverConf { servers: Vec::new(), valid: None, ipv4: true, ipv6: true };
        for word in &d.args {
            let text = word.lossy();
            let bad = || d.error_at(word, format!("invalid parameter: {text}"));
            let flag = |value: &str| match value {
                "on" => Ok(true),
                "off" => Ok(false),
                _ => Err(bad()),
            };
            match text.split_once('=') {
                Some(("valid", time)) => {
                    let seconds = values::sec(time.as_bytes()).ok_or_else(bad)?;
                    resolver.valid = Some(Duration::from_secs(seconds));
                }
                Some(("ipv4", value)) => resolver.ipv4 = flag(value)?,
                Some(("ipv6", value)) => resolver.ipv6 = flag(value)?,
                _ => {
                    let found = address::server(&text, PORT)
                        .map_err(|e| d.error_at(word, format!("{e} in resolver \"{text}\"")))?;
                    resolver.servers.extend(found);
                }
            }
        }
        if !resolver.ipv4 && !resolver.ipv6 {
            return Err(d.error("\"ipv4\" and \"ipv6\" cannot both be \"off\""));
        }
        if resolver.servers.is_empty() {
            return Err(d.error("no name servers defined"));
        }
        Ok(resolver)
    }
}
