//! The certificates of Gateways and listeners: their own, and the authorities of their clients.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;

use weir_conf::Directive;

use super::grants::{Referrer, Refused};
use super::listeners::{Listener, Served};
use super::objects::{FrontendValidation, Reference};
use super::status::Condition;
use crate::translate::{InUse, Work, line};

/// The verification of client certificates.
#[derive(Clone, Debug)]
pub(super) struct ClientCheck {
    /// The file of authorities.
    pub(super) authorities: String,
    /// Whether clients without a valid certificate are served, too.
    pub(super) optional: bool,
}

impl ClientCheck {
    /// The directives of a server. If any certificate is accepted, no authority is named. Otherwise
    /// a certificate with an authority's name and another signature would be refused.
    pub(super) fn lines(&self) -> Vec<Directive> {
        if self.optional {
            return vec![line("ssl_verify_client", ["optional_no_ca"])];
        }
        vec![
            line("ssl_client_certificate", [self.authorities.as_str()]),
            line("ssl_verify_client", ["on"]),
            line("ssl_verify_depth", ["9"]),
        ]
    }
}

/// The TLS option of a listener that requests a certificate by ACME, if its value is `true`.
pub(crate) const ACME_OPTION: &str = "weir.internal/acme";

/// Why no certificate can be requested for a listener's hostname, if so.
pub(super) fn unproved(work: &Work<'_>, hostname: &str) -> Option<Refused> {
    let why = match hostname {
        "" => Some("a certificate is asked for a hostname, which the listener does not have"),
        hostname => work.settings.unprovable(hostname),
    };
    why.map(|why| Refused::new("InvalidCertificateRef", why))
}

/// The files of a listener's certificates, and the first error among them.
pub(super) fn of_listener(
    work: &mut Work<'_>,
    from: Referrer<'_>,
    refs: &[Reference],
) -> (Vec<String>, Option<Refused>) {
    let (mut files, mut error) = (Vec::new(), None);
    if refs.is_empty() {
        error = Some(Refused::new("InvalidCertificateRef", "TLS needs a certificate"));
    }
    for reference in refs {
        let wrong = match of_secret(work, from, reference, "InvalidCertificateRef") {
            Ok((file, wrong)) => {
                files.push(file);
                wrong
            }
            Err(refused) => Some(refused),
        };
        error = error.or(wrong);
    }
    (files, error)
}

/// The file of a certificate with its key. If the one before stays in use, there is an error, too.
pub(super) fn of_secret(
    work: &mut Work<'_>,
    from: Referrer<'_>,
    reference: &Reference,
    reason: &'static str,
) -> Result<(String, Option<Refused>), Refused> {
    let (namespace, name, _) = work.referred(from, reference, &["Secret"], reason)?;
    let wrong = |text: String| Refused::new(reason, format!("{namespace}/{name}: {text}"));
    let data = work.secret_of(&namespace, &name).map_err(wrong)?;
    let InUse { certificate, wrong: why } = work.certificate_in_use(&namespace, &name, data);
    let refused = why.map(wrong);
    match certificate {
        Some(certificate) => Ok((certificate.path, refused)),
        None => Err(refused.unwrap_or_else(|| wrong("it has no certificate".to_owned()))),
    }
}

/// The file with the authorities of all references, and the first error.
pub(super) fn authorities(
    work: &mut Work<'_>,
    from: Referrer<'_>,
    refs: &[Reference],
    (invalid, wrong_kind): (&'static str, &'static str),
) -> (Option<String>, Option<Refused>) {
    let (mut text, mut error) = (Vec::new(), None);
    for reference in refs {
        match bundle(work, from, reference, (invalid, wrong_kind)) {
            Ok(bytes) => {
                text.extend_from_slice(&bytes);
                text.push(b'\n');
            }
            Err(refused) => drop(error.get_or_insert(refused)),
        }
    }
    if text.is_empty() {
        return (None, error);
    }
    let data = BTreeMap::from([("ca.crt".to_owned(), ByteString(text))]);
    match work.authorities(&data) {
        Ok(file) => (Some(file), error),
        Err(why) => (None, Some(Refused::new(invalid, why))),
    }
}

fn bundle(
    work: &mut Work<'_>,
    from: Referrer<'_>,
    reference: &Reference,
    (invalid, wrong_kind): (&'static str, &'static str),
) -> Result<Vec<u8>, Refused> {
    let (namespace, name, kind) =
        work.referred(from, reference, &["ConfigMap", "Secret"], wrong_kind)?;
    let wrong = |text: &str| Refused::new(invalid, format!("{kind} {namespace}/{name}: {text}"));
    let bytes = match kind {
        "Secret" => {
            let data = work.secret_of(&namespace, &name).map_err(|why| wrong(&why))?;
            data.get("ca.crt").map(|bytes| bytes.0.clone())
        }
        _ => {
            let found = work.config_map_of(&namespace, &name);
            let found = found.ok_or_else(|| wrong("there is none"))?;
            found
                .data
                .as_ref()
                .and_then(|data| data.get("ca.crt"))
                .map(|text| text.clone().into_bytes())
        }
    };
    let bytes = bytes.ok_or_else(|| wrong("it has no ca.crt"))?;
    let data = BTreeMap::from([("ca.crt".to_owned(), ByteString(bytes.clone()))]);
    work.authorities(&data).map_err(|why| wrong(&why))?;
    Ok(bytes)
}

/// The validation of client certificates that a Gateway sets for a port.
fn validation<'a>(served: &Served<'a>, port: u16) -> Option<&'a FrontendValidation> {
    let frontend = served.gateway.spec.tls.as_ref()?.frontend.as_ref()?;
    let own = frontend.per_port.iter().find(|one| one.port == i32::from(port));
    own.map_or(&frontend.default, |one| &one.tls).validation.as_ref()
}

/// Reads the verification of client certificates of a listener. Without a valid authority no client
/// can be verified, so the listener is refused.
pub(super) fn of_clients(
    work: &mut Work<'_>,
    served: &Served<'_>,
    listener: &mut Listener<'_>,
    wrong: &mut Option<Refused>,
) {
    let Some(wanted) = validation(served, listener.port) else { return };
    let from = Referrer { kind: "Gateway", namespace: &served.id.namespace };
    let reasons = ("InvalidCACertificateRef", "InvalidCACertificateKind");
    let (file, error) = authorities(work, from, &wanted.ca_certificate_refs, reasons);
    if let Some(error) = error {
        *wrong = Some(error);
    }
    match file {
        Some(authorities) => {
            let optional = wanted.mode.as_deref() == Some("AllowInsecureFallback");
            listener.clients = Some(ClientCheck { authorities, optional });
        }
        None => {
            listener.accepted = false;
            let text = "no authority for clients' certificates is left";
            listener.conditions.push(Condition::no("Accepted", "NoValidCACertificate", text));
        }
    }
}

/// The condition of a Gateway that serves clients without a valid certificate although it asks for
/// one.
pub(super) fn insecure(served: &Served<'_>) -> Option<Condition> {
    let frontend = served.gateway.spec.tls.as_ref()?.frontend.as_ref()?;
    let mut all = frontend.per_port.iter().map(|one| &one.tls).chain([&frontend.default]);
    let open = all.any(|tls| {
        let mode = tls.validation.as_ref().and_then(|validation| validation.mode.as_deref());
        mode == Some("AllowInsecureFallback")
    });
    open.then(|| Condition::yes("InsecureFrontendValidationMode", "ConfigurationChanged"))
}

/// Reads the certificate that a Gateway presents to backends.
pub(super) fn for_servers(work: &mut Work<'_>, served: &mut Served<'_>) {
    let backend = served.gateway.spec.tls.as_ref().and_then(|tls| tls.backend.as_ref());
    let Some(reference) = backend.and_then(|backend| backend.client_certificate_ref.as_ref())
    else {
        return;
    };
    let from = Referrer { kind: "Gateway", namespace: &served.id.namespace };
    served.client = Some(of_secret(work, from, reference, "InvalidClientCertificateRef"));
}
