//! The directives of TLS to clients.

use std::marker::PhantomData;
use std::time::Duration;

use weir_conf::{Directive as Line, Error};
use weir_tls::{BadCurve, Curves};
use weir_values::Subject;

use super::{Conf, Verify, sessions};
use crate::read::{self, Listed, file, named};
use crate::reader::{DirectiveUse, SslDirective, SslReader};
use crate::{certificate_cache, commands, ocsp};

/// The directives that requests and sessions have in common.
pub const fn rows<S: Subject>() -> &'static [SslDirective<S, Conf>] {
    Rows::<S>::ALL
}

struct Rows<S>(PhantomData<S>);

const fn row<S>(
    name: &'static str,
    help: &'static str,
    set: fn(&mut Conf, DirectiveUse<'_>, &mut SslReader<'_, '_, S>) -> Result<(), Error>,
) -> SslDirective<S, Conf> {
    SslDirective { name, help, set }
}

impl<S: Subject> Rows<S> {
    const ALL: &'static [SslDirective<S, Conf>] = &[
        row(
            "ssl_certificate",
            "A certificate with its chain; more than one may be given, of different kinds of keys.",
            |c, d, _| d.add(&mut c.certificates, named(d.line)),
        ),
        row("ssl_certificate_key", "The private key of the certificate.", |c, d, _| {
            d.add(&mut c.keys, named(d.line))
        }),
        row(
            "ssl_certificate_cache",
            "How many certificates and keys with variables in their names a loop keeps, and how long.",
            |c, d, _| d.set(&mut c.certificate_cache, certificate_cache::read),
        ),
        row(
            "ssl_password_file",
            "Passwords of private keys, one a line (keys in PKCS#8).",
            |c, d, r| d.set(&mut c.passwords, |line| read::passwords(r.files, line)),
        ),
        row(
            "ssl_protocols",
            "Versions of TLS: TLSv1.2 and TLSv1.3, older ones do not exist here.",
            |c, d, r| {
                let before = (!d.first).then_some(c.versions);
                c.versions = read::versions(r.warnings, d.line, before)?;
                Ok(())
            },
        ),
        row("ssl_ciphers", "Ciphers of TLS 1.2, as OpenSSL's cipher list.", |c, d, r| {
            d.set(&mut c.ciphers, |line| Ok(read::ciphers(r.warnings, line)))
        }),
        row(
            "ssl_ecdh_curve",
            "Curves for the exchange of keys, the preferred first.",
            |c, d, r| d.set(&mut c.curves, |line| Ok(curves(r.warnings, line))),
        ),
        row(
            "ssl_prefer_server_ciphers",
            "Whether the server's order of ciphers counts, not the client's.",
            |c, d, _| d.set(&mut c.prefer_server_ciphers, Line::flag),
        ),
        row(
            "ssl_dhparam",
            "Accepted: weir has no ciphers with finite-field Diffie-Hellman.",
            |c, d, _| d.set(&mut c.dhparam, |line| Ok(named(line))),
        ),
        row(
            "ssl_verify_client",
            "Whether clients are asked for a certificate, and what one must be.",
            |c, d, _| {
                let choices = [
                    ("off", Verify::Off),
                    ("on", Verify::On),
                    ("optional", Verify::Optional),
                    ("optional_no_ca", Verify::OptionalNoCa),
                ];
                d.set(&mut c.verify, |line| line.choice(&choices))
            },
        ),
        row(
            "ssl_verify_depth",
            "How many authorities may stand between a client's certificate and the root.",
            |c, d, _| d.set(&mut c.verify_depth, Line::number),
        ),
        row(
            "ssl_client_certificate",
            "Authorities that vouch for clients; clients are told their names.",
            |c, d, _| d.set(&mut c.client_certificate, file),
        ),
        row(
            "ssl_trusted_certificate",
            "Authorities that vouch for clients, and are not sent to them.",
            |c, d, _| d.set(&mut c.trusted_certificate, file),
        ),
        row("ssl_crl", "Lists of revoked certificates.", |c, d, _| d.set(&mut c.crl, file)),
        row(
            "ssl_session_cache",
            "Where sessions are kept that clients resume; a shared one is for all workers.",
            |c, d, r| {
                c.cache = sessions::cache(d.line, r.inputs.zones, S::BLOCK)?;
                Ok(())
            },
        ),
        row("ssl_session_tickets", "Whether clients keep their sessions, sealed.", |c, d, _| {
            d.set(&mut c.tickets, Line::flag)
        }),
        row(
            "ssl_session_ticket_key",
            "Files of 48 or 80 bytes that tickets are sealed with; the first seals, all open.",
            |c, d, _| d.add(&mut c.ticket_keys, named(d.line)),
        ),
        row("ssl_session_timeout", "How long a session may be resumed.", |c, d, _| {
            d.set(&mut c.session_timeout, |line| line.sec().map(Duration::from_secs))
        }),
        row(
            "ssl_reject_handshake",
            "Refuses the handshake of clients that ask for this server.",
            |c, d, _| d.set(&mut c.reject_handshake, Line::flag),
        ),
        row(
            "ssl_stapling",
            "Whether an OCSP response is sent along, from a file or fetched.",
            |c, d, _| d.set(&mut c.stapling, Line::flag),
        ),
        row("ssl_stapling_file", "The OCSP response.", |c, d, _| d.set(&mut c.stapling_file, file)),
        row(
            "ssl_stapling_responder",
            "The responder for the response, instead of the certificate's.",
            |c, d, _| d.set(&mut c.stapling_responder, file),
        ),
        row(
            "ssl_stapling_verify",
            "Whether a response must come of the certificate's issuer before it is sent along.",
            |c, d, _| d.set(&mut c.stapling_verify, Line::flag),
        ),
        row(
            "ssl_ocsp",
            "Whether responders are asked about clients' certificates, or about the first of each chain only.",
            |c, d, _| d.set(&mut c.ocsp, ocsp::mode),
        ),
        row(
            "ssl_ocsp_responder",
            "The responder for clients' certificates, instead of theirs.",
            |c, d, _| d.set(&mut c.ocsp_responder, file),
        ),
        row(
            "ssl_ocsp_cache",
            "Shared memory for what responders said of clients' certificates.",
            |c, d, r| d.set(&mut c.ocsp_cache, |line| ocsp::zone(line, r.inputs.zones)),
        ),
        row(
            "ssl_certificate_compression",
            "Whether certificates are compressed for clients that can read it (TLS 1.3, zlib and Brotli).",
            |c, d, _| d.set(&mut c.compress, Line::flag),
        ),
        row(
            "ssl_ech_file",
            "Ignored with a warning: rustls has no encrypted client hello for servers.",
            |_, d, r| {
                let text = "\"ssl_ech_file\" is not supported on this platform, ignored";
                r.warnings.push(d.line.warning(text));
                Ok(())
            },
        ),
        row(
            "ssl_conf_command",
            "Options, certificates, ciphers and versions by OpenSSL's names.",
            |c, d, _| d.add(&mut c.commands, commands::command(d.line)),
        ),
    ];
}

fn curves(warnings: &mut Vec<Error>, d: &Line) -> Listed<Curves> {
    let Some(word) = d.args.first() else { return Ok(Curves::default()) };
    let text = word.lossy();
    let (curves, missing) = Curves::parse(&text).map_err(|bad| {
        let why = match bad {
            BadCurve::Unknown(name) => format!("unknown curve \"{name}\""),
            BadCurve::Missing(name) => format!("weir does not have \"{name}\""),
        };
        d.error_at(word, format!("SSL_CTX_set1_curves_list(\"{text}\") failed (SSL: {why})"))
    })?;
    if !missing.is_empty() {
        let text = format!("weir does not have the curve \"{}\", ignored", missing.join(":"));
        warnings.push(d.warning(text).mark(word.pos));
    }
    Ok(curves)
}
