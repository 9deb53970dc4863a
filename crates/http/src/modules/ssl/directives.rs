//! The directives.

use std::time::Duration;

use weir_conf::{Directive as Line, Error};
use weir_tls::{BadCurve, Curves};

use super::read::{self, file, named};
use super::{Conf, Named, Verify, commands, kept, ocsp, sessions};
use crate::config::scope::{Directive, Scope, Set, setting};

pub const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "ssl_certificate",
        help: "A certificate with its chain; more than one may be given, of different kinds of keys.",
        set: Set::Simple(|s, d| add(s, d, |conf| &mut conf.certificates)),
    },
    Directive {
        name: "ssl_certificate_key",
        help: "The private key of the certificate.",
        set: Set::Simple(|s, d| add(s, d, |conf| &mut conf.keys)),
    },
    setting!(
        "ssl_certificate_cache",
        ssl.certificate_cache,
        kept::read,
        "How many certificates and keys with variables in their names a loop keeps, and how long."
    ),
    Directive {
        name: "ssl_password_file",
        help: "Passwords of private keys, one a line (keys in PKCS#8).",
        set: Set::Simple(password_file),
    },
    Directive {
        name: "ssl_protocols",
        help: "Versions of TLS: TLSv1.2 and TLSv1.3, older ones do not exist here.",
        set: Set::Simple(protocols),
    },
    Directive {
        name: "ssl_ciphers",
        help: "Ciphers of TLS 1.2, as OpenSSL's cipher list.",
        set: Set::Simple(ciphers),
    },
    Directive {
        name: "ssl_ecdh_curve",
        help: "Curves for the exchange of keys, the preferred first.",
        set: Set::Simple(curves),
    },
    setting!(
        "ssl_prefer_server_ciphers",
        ssl.prefer_server_ciphers,
        Line::flag,
        "Whether the server's order of ciphers counts, not the client's."
    ),
    Directive {
        name: "ssl_dhparam",
        help: "Accepted: weir has no ciphers with finite-field Diffie-Hellman.",
        set: Set::Simple(|_, _| Ok(())),
    },
    setting!("ssl_buffer_size", ssl.buffer_size, Line::size, "The largest record that is sent."),
    setting!(
        "ssl_verify_client",
        ssl.verify,
        |d: &Line| d.choice(&[
            ("off", Verify::Off),
            ("on", Verify::On),
            ("optional", Verify::Optional),
            ("optional_no_ca", Verify::OptionalNoCa),
        ]),
        "Whether clients are asked for a certificate, and what one must be."
    ),
    setting!(
        "ssl_verify_depth",
        ssl.verify_depth,
        Line::number,
        "How many authorities may stand between a client's certificate and the root."
    ),
    setting!(
        "ssl_client_certificate",
        ssl.client_certificate,
        file,
        "Authorities that vouch for clients; clients are told their names."
    ),
    setting!(
        "ssl_trusted_certificate",
        ssl.trusted_certificate,
        file,
        "Authorities that vouch for clients; nobody is told."
    ),
    setting!("ssl_crl", ssl.crl, file, "Lists of revoked certificates."),
    Directive {
        name: "ssl_session_cache",
        help: "Where sessions are kept that clients resume; a shared one is for all workers.",
        set: Set::Simple(sessions::cache),
    },
    setting!(
        "ssl_session_tickets",
        ssl.tickets,
        Line::flag,
        "Whether clients keep their sessions, sealed."
    ),
    Directive {
        name: "ssl_session_ticket_key",
        help: "Files of 48 or 80 bytes that tickets are sealed with; the first seals, all open.",
        set: Set::Simple(|s, d| add(s, d, |conf| &mut conf.ticket_keys)),
    },
    setting!(
        "ssl_session_timeout",
        ssl.session_timeout,
        |d: &Line| d.sec().map(Duration::from_secs),
        "How long a session may be resumed."
    ),
    setting!(
        "ssl_early_data",
        ssl.early_data,
        Line::flag,
        "Whether a resumed session may bring a request with its first flight (TLS 1.3). The request is served before \
         the handshake is complete: see `$ssl_early_data`. Tickets hold no sessions then."
    ),
    setting!(
        "ssl_reject_handshake",
        ssl.reject_handshake,
        Line::flag,
        "Refuses the handshake of clients that ask for this server."
    ),
    setting!(
        "ssl_stapling",
        ssl.stapling,
        Line::flag,
        "Whether an OCSP response is sent along, from a file or fetched."
    ),
    setting!("ssl_stapling_file", ssl.stapling_file, file, "The OCSP response."),
    setting!(
        "ssl_stapling_responder",
        ssl.stapling_responder,
        file,
        "Who is asked for the response, in place of whom the certificate names."
    ),
    setting!(
        "ssl_stapling_verify",
        ssl.stapling_verify,
        Line::flag,
        "Whether a response must come of the certificate's issuer before it is sent along."
    ),
    setting!(
        "ssl_ocsp",
        ssl.ocsp,
        ocsp::which,
        "Whether responders are asked about clients' certificates, or about the first of each chain only."
    ),
    setting!(
        "ssl_ocsp_responder",
        ssl.ocsp_responder,
        file,
        "Who is asked about clients' certificates, in place of whom they name."
    ),
    Directive {
        name: "ssl_ocsp_cache",
        help: "Shared memory for what responders said of clients' certificates.",
        set: Set::Simple(ocsp::cache),
    },
    setting!(
        "ssl_certificate_compression",
        ssl.compress,
        Line::flag,
        "Whether certificates are compressed for clients that can read it (TLS 1.3, zlib and Brotli)."
    ),
    Directive {
        name: "ssl_ech_file",
        help: "Ignored with a warning: rustls has no encrypted client hello for servers.",
        set: Set::Simple(|s, d| {
            let text = "\"ssl_ech_file\" is not supported on this platform, ignored";
            s.setup.warnings.push(d.warning(text));
            Ok(())
        }),
    },
    Directive {
        name: "ssl_conf_command",
        help: "Options, certificates, ciphers and versions by OpenSSL's names.",
        set: Set::Simple(command),
    },
];

/// Adds to a list; the first in a block replaces what was inherited.
fn add(
    s: &mut Scope<'_, '_>,
    d: &Line,
    list: fn(&mut Conf) -> &mut Vec<Named>,
) -> Result<(), Error> {
    let first = s.first(d);
    let list = list(Scope::change(&mut s.location.ssl));
    if first {
        list.clear();
    }
    list.extend(named(d));
    Ok(())
}

fn password_file(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let passwords = read::passwords(s.setup, d)?;
    Scope::change(&mut s.location.ssl).passwords = passwords;
    Ok(())
}

fn protocols(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let before = (!s.first(d)).then_some(s.location.ssl.versions);
    let versions = read::versions(s, d, before)?;
    Scope::change(&mut s.location.ssl).versions = versions;
    Ok(())
}

fn ciphers(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let ciphers = read::ciphers(s.setup, d)?;
    Scope::change(&mut s.location.ssl).ciphers = ciphers;
    Ok(())
}

fn curves(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.args.first() else { return Ok(()) };
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
        s.setup.warnings.push(d.warning(text).mark(word.pos));
    }
    Scope::change(&mut s.location.ssl).curves = curves;
    Ok(())
}

fn command(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    let conf = Scope::change(&mut s.location.ssl);
    if first {
        conf.commands.clear();
    }
    conf.commands.extend(commands::command(d));
    Ok(())
}
