//! Hosts for which weir itself asks for certificates: by an `acme_issuer` of the administrator's file.

use weir_conf::Directive;

use super::lines::line;
use crate::settings::Settings;

/// Whether the file has an issuer of this name.
pub(crate) fn has_issuer(base: &[Directive], name: &str) -> bool {
    issuer(base, name).is_some()
}

fn issuer<'b>(base: &'b [Directive], name: &str) -> Option<&'b Directive> {
    let http = base.iter().filter(|directive| directive.name.is("http"));
    http.flat_map(Directive::block)
        .find(|d| d.name.is("acme_issuer") && d.arg(0).is_some_and(|word| word.is(name)))
}

impl Settings {
    /// Why the issuer cannot prove a host, if it cannot.
    pub(crate) fn unproved(&self, host: &str) -> Option<&'static str> {
        if !host.starts_with("*.") {
            return None;
        }
        let issuer = issuer(&self.base, self.acme_issuer.as_deref()?);
        let challenge = issuer.iter().flat_map(|d| d.block()).find(|d| d.name.is("challenge"));
        let by_dns = challenge.and_then(|line| line.arg(0)).is_some_and(|word| {
            ["dns", "dns-01", "dns-persist", "dns-persist-01"].iter().any(|kind| word.is(kind))
        });
        (!by_dns).then_some("a wildcard needs an acme_issuer with the challenge dns-01")
    }

    /// The line of a server that asks for a certificate for these names.
    pub(crate) fn asks_for(&self, names: &[&str]) -> Option<Directive> {
        let issuer = self.acme_issuer.as_deref()?;
        Some(line("acme_certificate", std::iter::once(issuer).chain(names.iter().copied())))
    }
}
