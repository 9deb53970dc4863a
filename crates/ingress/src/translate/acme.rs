//! Certificates that weir requests itself, by an `acme_issuer` of the administrator's file.

use weir_conf::Directive;

use super::lines::line;
use crate::settings::Settings;

impl Settings {
    /// The name of the issuer, if the administrator's file lacks it.
    pub(crate) fn missing_issuer(&self) -> Option<&str> {
        self.acme_issuer.as_deref().filter(|_| self.issuer().is_none())
    }

    fn issuer(&self) -> Option<&Directive> {
        let name = self.acme_issuer.as_deref()?;
        self.base_http()
            .find(|d| d.name.is("acme_issuer") && d.arg(0).is_some_and(|word| word.is(name)))
    }

    /// Why the issuer's challenge cannot prove a host, if it cannot.
    pub(crate) fn unprovable(&self, host: &str) -> Option<&'static str> {
        if !host.starts_with("*.") {
            return None;
        }
        let lines = self.issuer().map(Directive::block).unwrap_or_default();
        let challenge = lines.iter().find(|d| d.name.is("challenge"));
        let by_dns = challenge.and_then(|line| line.arg(0)).is_some_and(|word| {
            ["dns", "dns-01", "dns-persist", "dns-persist-01"].iter().any(|kind| word.is(kind))
        });
        (!by_dns).then_some("a wildcard needs an acme_issuer with the challenge dns-01")
    }

    /// The directive that requests a certificate for these names.
    pub(crate) fn acme_line(&self, names: &[&str]) -> Option<Directive> {
        let issuer = self.acme_issuer.as_deref()?;
        Some(line("acme_certificate", std::iter::once(issuer).chain(names.iter().copied())))
    }
}
