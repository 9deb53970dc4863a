//! OCSP responses: about the server's own certificates, to be stapled, and about clients'. nginx:
//! ngx_event_openssl_stapling.c.

use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Directive as Line, Error};
use weir_resolver::ResolverConf as Resolver;
use weir_zone::{Declarations, Use, ZoneRef};

mod cache;
mod clients;
mod fetch;
mod responder;
pub mod staple;

pub use clients::{ClientOcsp, WaitingConnection};
pub use responder::Responder;
pub use staple::Stapling;

/// `ssl_ocsp`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OcspMode {
    /// No responder is asked.
    #[default]
    Off,
    /// Every certificate of the client's chain is checked, except for the root.
    All,
    /// Only the client's own certificate is checked.
    Leaf,
}

/// How names of responders are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookUp {
    /// `resolver`
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub timeout: Duration,
}

/// nginx wants eight pages at least.
const SMALLEST: u64 = 8 * 4096;

/// Reads `ssl_ocsp`.
pub fn mode(d: &Line) -> Result<OcspMode, Error> {
    d.choice(&[("off", OcspMode::Off), ("on", OcspMode::All), ("leaf", OcspMode::Leaf)])
}

/// `ssl_ocsp_cache off | shared:NAME:SIZE`
pub fn zone(d: &Line, zones: &Declarations) -> Result<Option<ZoneRef>, Error> {
    let Some(word) = d.args.first().filter(|word| word.bytes != b"off") else { return Ok(None) };
    let text = word.lossy();
    let named = text.strip_prefix("shared:").and_then(|rest| rest.split_once(':'));
    let read = named
        .filter(|(name, _)| !name.is_empty())
        .and_then(|(name, size)| Some((name, weir_conf::values::size(size.as_bytes())?)));
    let invalid = || d.error_at(word, format!("invalid OCSP cache \"{text}\""));
    let (name, size) = read.ok_or_else(invalid)?;
    if size < SMALLEST {
        return Err(d.error(format!("OCSP cache \"{text}\" is too small")));
    }
    let purpose = Use::of("ssl_ocsp_cache", cache::VALUES);
    let zone = zones.declare(name, size, purpose);
    zone.map(Some).map_err(|text| d.error(text))
}
