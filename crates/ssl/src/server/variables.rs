//! `$ssl_...`

use std::marker::PhantomData;

use weir_proto::uri::Escape;
use weir_tls::x509::{Certificate, der, name};
use weir_tls::{Negotiated, write_pem};
use weir_values::builtin::write_number;
use weir_values::escape::hex_text;
use weir_values::{Subject, Variables};

use super::Shown;

/// A subject with a client that may speak TLS.
pub trait TlsSubject: Subject {
    /// Calls `look` with the result of the handshake. `None` without TLS.
    fn tls<T>(&self, look: impl FnOnce(&Negotiated<'_>) -> T) -> Option<T>;

    /// What the handshake has shown so far. `None` without TLS.
    fn shown(&self) -> Option<&Shown>;
}

/// Defines the variables that requests and sessions have.
pub fn define<S: TlsSubject>(variables: &mut Variables<S>) {
    for (name, read) in VariableTable::<S>::ROWS {
        variables.define_changeable(name, false, *read);
    }
}

/// Defines the variables that only requests have.
pub fn define_more<S: TlsSubject>(variables: &mut Variables<S>) {
    for (name, read) in VariableTable::<S>::OF_REQUESTS {
        variables.define_changeable(name, false, *read);
    }
}

type ReadVariable<S> = fn(&mut S, &mut Vec<u8>) -> bool;

struct VariableTable<S>(PhantomData<S>);

impl<S: TlsSubject> VariableTable<S> {
    const ROWS: &'static [(&'static str, ReadVariable<S>)] = &[
        ("ssl_protocol", |r, out| agreed(r, out, |c| Some(c.protocol().into()))),
        ("ssl_cipher", |r, out| agreed(r, out, |c| c.cipher())),
        ("ssl_curve", |r, out| agreed(r, out, |c| c.curve())),
        ("ssl_ciphers", |r, out| offered(r, out, |tls| &tls.ciphers, weir_tls::cipher)),
        ("ssl_curves", |r, out| offered(r, out, |tls| &tls.curves, weir_tls::curve)),
        ("ssl_sigalg", |r, out| agreed(r, out, |c| c.signature_scheme())),
        ("ssl_sigalgs", |r, out| offered(r, out, |tls| &tls.schemes, weir_tls::scheme)),
        ("ssl_client_sigalg", |r, out| agreed(r, out, |c| c.peer_signature_scheme())),
        // rustls has no Encrypted ClientHello for servers.
        ("ssl_ech_status", |_, _| false),
        ("ssl_ech_outer_server_name", |_, _| false),
        ("ssl_session_id", |r, out| agreed(r, out, |c| c.session_id().map(|id| hex_text(id)))),
        ("ssl_session_reused", |r, out| {
            agreed(r, out, |c| Some(if c.is_resumed() { "r" } else { "." }.to_owned()))
        }),
        ("ssl_server_name", |r, out| {
            let name = r.shown().and_then(|shown| shown.server_name.as_deref());
            out.extend_from_slice(name.unwrap_or_default().as_bytes());
            name.is_some()
        }),
        ("ssl_alpn_protocol", |r, out| {
            agreed(r, out, |c| c.alpn().map(|name| String::from_utf8_lossy(name).into_owned()))
        }),
        ("ssl_client_cert", |r, out| shown(r, out, |c, out| indented(&pem(c), out))),
        ("ssl_client_raw_cert", |r, out| shown(r, out, |c, out| out.extend(pem(c)))),
        ("ssl_client_escaped_cert", |r, out| {
            shown(r, out, |c, out| weir_proto::uri::escape(Escape::UriComponent, &pem(c), out))
        }),
        ("ssl_client_s_dn", |r, out| {
            shown(r, out, |c, out| out.extend(name::rfc2253(c.subject).bytes()))
        }),
        ("ssl_client_i_dn", |r, out| {
            shown(r, out, |c, out| out.extend(name::rfc2253(c.issuer).bytes()))
        }),
        ("ssl_client_serial", |r, out| shown(r, out, |c, out| out.extend(c.serial_hex().bytes()))),
        ("ssl_client_fingerprint", |r, out| {
            shown(r, out, |c, out| out.extend(hex_text(&weir_tls::sha1(c.der)).bytes()))
        }),
        ("ssl_client_verify", verified),
        ("ssl_client_v_start", |r, out| shown(r, out, |c, out| time(c.not_before, out))),
        ("ssl_client_v_end", |r, out| shown(r, out, |c, out| time(c.not_after, out))),
        ("ssl_client_v_remain", |r, out| {
            let now = r.handle().wall().secs;
            shown(r, out, |c, out| {
                let Some(last) = c.not_after else { return };
                let left = u64::try_from(last.saturating_sub(now)).unwrap_or(0);
                write_number(left / 86_400, out);
            })
        }),
    ];

    const OF_REQUESTS: &'static [(&'static str, ReadVariable<S>)] = &[
        ("ssl_early_data", |r, out| agreed(r, out, |c| c.is_early().then(|| "1".to_owned()))),
        ("ssl_client_s_dn_legacy", |r, out| {
            shown(r, out, |c, out| out.extend(name::oneline(c.subject).bytes()))
        }),
        ("ssl_client_i_dn_legacy", |r, out| {
            shown(r, out, |c, out| out.extend(name::oneline(c.issuer).bytes()))
        }),
    ];
}

/// A negotiated value.
fn agreed(
    r: &impl TlsSubject,
    out: &mut Vec<u8>,
    look: fn(&Negotiated<'_>) -> Option<String>,
) -> bool {
    match r.tls(look).flatten() {
        Some(text) => {
            out.extend_from_slice(text.as_bytes());
            true
        }
        None => false,
    }
}

/// A list that the client offered.
fn offered(
    r: &impl TlsSubject,
    out: &mut Vec<u8>,
    list: fn(&Shown) -> &[u16],
    name: fn(u16) -> String,
) -> bool {
    let Some(shown) = r.shown() else { return false };
    // GREASE values (RFC 8701), such as 0x0a0a, have no meaning.
    let grease = |id: &&u16| **id & 0x0f0f == 0x0a0a && **id >> 8 == **id & 0xff;
    let names: Vec<_> = list(shown).iter().filter(|id| !grease(id)).map(|id| name(*id)).collect();
    out.extend_from_slice(names.join(":").as_bytes());
    true
}

/// A part of the client's certificate.
fn shown(
    r: &impl TlsSubject,
    out: &mut Vec<u8>,
    write: impl FnOnce(&Certificate<'_>, &mut Vec<u8>),
) -> bool {
    let found = r.tls(|connection| {
        let certificate = connection.peer_certificates().first()?;
        write(&Certificate::parse(certificate)?, out);
        Some(())
    });
    found.flatten().is_some()
}

/// A time of a certificate, as OpenSSL prints it.
fn time(time: Option<i64>, out: &mut Vec<u8>) {
    let text = time.map_or_else(|| "Bad time value".to_owned(), der::print_time);
    out.extend_from_slice(text.as_bytes());
}

/// `$ssl_client_verify`
fn verified(r: &mut impl TlsSubject, out: &mut Vec<u8>) -> bool {
    let asked = r.tls(|connection| !connection.peer_certificates().is_empty());
    let fault = r.shown().and_then(|shown| shown.fault);
    match (asked, fault) {
        (None, _) => return false,
        (Some(false), _) => out.extend_from_slice(b"NONE"),
        (Some(true), None) => out.extend_from_slice(b"SUCCESS"),
        (Some(true), Some(fault)) => {
            out.extend_from_slice(b"FAILED:");
            out.extend_from_slice(fault.text.as_bytes());
        }
    }
    true
}

fn pem(certificate: &Certificate<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    write_pem("CERTIFICATE", certificate.der, &mut text);
    text
}

/// In a form for header fields: each line but the first begins with a tab, and the last has no end.
fn indented(pem: &[u8], out: &mut Vec<u8>) {
    for (i, line) in pem.trim_ascii_end().split(|b| *b == b'\n').enumerate() {
        if i > 0 {
            out.extend_from_slice(b"\n\t");
        }
        out.extend_from_slice(line);
    }
}
