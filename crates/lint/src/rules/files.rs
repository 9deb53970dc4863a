//! Rules about files that the configuration names.

use std::path::Path;
use std::time::Duration;

use weir_conf::{Directive, Error};
use weir_health::CERTIFICATE_ENDS;

use super::found;

/// A certificate that has expired or soon will. Unreadable certificates are errors of the server,
/// and names with variables cannot be read.
pub(super) fn certificate_ends(prefix: &Path, d: &Directive) -> Option<Error> {
    d.name.str()?.ends_with("ssl_certificate").then_some(())?;
    let name = d.arg(0)?;
    let path = name.str()?;
    let text = std::fs::read(prefix.join(path)).ok()?;
    let chain = weir_tls::certificates(&text).ok()?;
    let why = weir_tls::out_of_date(chain.first()?, Duration::from_millis(CERTIFICATE_ENDS))?;
    let remedy = "renew it and reload weir; see that what renews it also reloads";
    found(d, name, format!("the certificate \"{path}\" {why}"), remedy)
}
