//! Whether a chain of certificates is to be trusted. The faults have OpenSSL's numbers and words.

use std::fmt;

use super::cert::{Certificate, SIGNS_LISTS};
use super::crl::RevocationList;
use super::signature;

/// What a certificate is presented for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// By a server, to us.
    Server,
    /// By a client, to us.
    Client,
    /// By who says what a certificate is worth (OCSP).
    Responder,
}

/// Whom to trust, and how far.
#[derive(Debug, Clone, Copy)]
pub struct Trust<'a> {
    /// Certificates of authorities.
    pub anchors: &'a [Vec<u8>],
    /// Revocation lists; if there is one, every certificate of a chain must be covered.
    pub lists: &'a [Vec<u8>],
    /// How many authorities may stand between the certificate and the root.
    pub depth: u32,
    /// Seconds since 1970.
    pub now: i64,
}

/// Why a certificate is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// OpenSSL's number of it: X509_V_ERR_... 0 for what OCSP has brought.
    pub code: u32,
    /// OpenSSL's words for it.
    pub text: &'static str,
}

macro_rules! faults {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(#[doc = $text] pub const $name: Fault = Fault { code: $code, text: $text };)*
    };
}

impl Fault {
    faults! {
        NO_LIST = 3, "unable to get certificate CRL";
        SIGNATURE = 7, "certificate signature failure";
        LIST_SIGNATURE = 8, "CRL signature failure";
        NOT_YET = 9, "certificate is not yet valid";
        EXPIRED = 10, "certificate has expired";
        LIST_NOT_YET = 11, "CRL is not yet valid";
        LIST_EXPIRED = 12, "CRL has expired";
        SELF_SIGNED = 18, "self-signed certificate";
        SELF_SIGNED_ROOT = 19, "self-signed certificate in certificate chain";
        NO_ISSUER = 20, "unable to get local issuer certificate";
        LEAF = 21, "unable to verify the first certificate";
        TOO_LONG = 22, "certificate chain too long";
        REVOKED = 23, "certificate revoked";
        NO_AUTHORITY = 79, "invalid CA certificate";
        PATH_LENGTH = 25, "path length constraint exceeded";
        PURPOSE = 26, "unsuitable certificate purpose";
        CRITICAL = 34, "unhandled critical extension";
        LIST_CRITICAL = 36, "unhandled critical CRL extension";
        NAME_CONSTRAINTS = 51, "unsupported name constraint type";
        REJECTED = 28, "certificate rejected";
        STATUS_FAILED = 0, "certificate status request failed";
        STATUS_REVOKED = 0, "certificate revoked";
        STATUS_UNKNOWN = 0, "certificate status unknown";
    }

    /// Faults that `ssl_verify_client optional_no_ca` lets pass: only the root is not known.
    pub fn only_unknown_root(self) -> bool {
        matches!(self.code, 18 | 19 | 20 | 21 | 27)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => f.write_str(self.text),
            code => write!(f, "({code}:{})", self.text),
        }
    }
}

/// A peer may send this many certificates; of more, the rest is not looked at.
const MOST_SENT: usize = 16;
/// Longer chains end, however deep trust may reach.
const LONGEST: usize = 20;

/// Follows the chain from its first certificate to a root that is trusted; the way there, in DER.
pub fn path<'a>(
    chain: &[&'a [u8]],
    trust: &Trust<'a>,
    purpose: Purpose,
) -> Result<Vec<&'a [u8]>, Fault> {
    let sent: Option<Vec<_>> =
        chain.iter().take(MOST_SENT).map(|der| Certificate::parse(der)).collect();
    let sent = sent.ok_or(Fault::REJECTED)?;
    let Some((leaf, others)) = sent.split_first() else { return Err(Fault::REJECTED) };
    let anchors: Vec<_> = trust.anchors.iter().filter_map(|der| Certificate::parse(der)).collect();
    let path = build(leaf, others, &anchors)?;
    if path.len() > trust.depth as usize + 2 {
        return Err(Fault::TOO_LONG);
    }
    check_rights(&path, purpose)?;
    if !trust.lists.is_empty() {
        check_revocation(&path, trust)?;
    }
    for certificate in path.iter().rev() {
        if trust.now < certificate.not_before {
            return Err(Fault::NOT_YET);
        }
        if trust.now > certificate.not_after {
            return Err(Fault::EXPIRED);
        }
    }
    Ok(path.iter().map(|certificate| certificate.der).collect())
}

type Path<'c, 'a> = Vec<&'c Certificate<'a>>;

/// The chain up to a trusted root, every link's signature checked; trusted issuers are preferred.
fn build<'c, 'a>(
    leaf: &'c Certificate<'a>,
    others: &'c [Certificate<'a>],
    anchors: &'c [Certificate<'a>],
) -> Result<Path<'c, 'a>, Fault> {
    let mut path = vec![leaf];
    let mut current = leaf;
    while path.len() < LONGEST {
        let root = current.self_issued() && issued(current, current);
        if root {
            if anchors.iter().any(|a| a.der == current.der) {
                return Ok(path);
            }
            return Err(match path.len() {
                1 => Fault::SELF_SIGNED,
                _ => Fault::SELF_SIGNED_ROOT,
            });
        }
        let unused = |c: &&Certificate<'_>| path.iter().all(|p| p.der != c.der);
        let candidates = anchors.iter().chain(others).filter(unused);
        let mut named = candidates.filter(|c| c.subject == current.issuer).peekable();
        if named.peek().is_none() {
            return Err(if path.len() == 1 { Fault::LEAF } else { Fault::NO_ISSUER });
        }
        let Some(issuer) = named.find(|c| issued(c, current)) else {
            return Err(Fault::SIGNATURE);
        };
        path.push(issuer);
        current = issuer;
    }
    Err(Fault::TOO_LONG)
}

/// Whether the issuer's key has signed the certificate.
pub fn issued(issuer: &Certificate<'_>, certificate: &Certificate<'_>) -> bool {
    let Certificate { algorithm, tbs, signature, .. } = certificate;
    signature::verify(&issuer.key, algorithm, tbs, signature)
}

/// What each certificate of the path may do.
fn check_rights(path: &Path<'_, '_>, purpose: Purpose) -> Result<(), Fault> {
    const SERVER: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
    const CLIENT: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
    let wanted = match purpose {
        Purpose::Server => Some(SERVER),
        Purpose::Client => Some(CLIENT),
        Purpose::Responder => None,
    };
    for (below, certificate) in path.iter().enumerate() {
        if certificate.extensions.unknown_critical {
            return Err(Fault::CRITICAL);
        }
        if wanted.is_some_and(|wanted| !certificate.serves(wanted)) {
            return Err(Fault::PURPOSE);
        }
        if below == 0 {
            continue;
        }
        if !certificate.is_authority() {
            return Err(Fault::NO_AUTHORITY);
        }
        if certificate.extensions.name_constraints {
            return Err(Fault::NAME_CONSTRAINTS);
        }
        let most = certificate.extensions.constraints.and_then(|(_, length)| length);
        let between = path.get(1..below).unwrap_or_default();
        let counted = between.iter().filter(|c| !c.self_issued()).count();
        if most.is_some_and(|most| counted > most as usize) {
            return Err(Fault::PATH_LENGTH);
        }
    }
    Ok(())
}

/// Every certificate of the path must stand on no list, and its issuer must have one.
fn check_revocation(path: &Path<'_, '_>, trust: &Trust<'_>) -> Result<(), Fault> {
    let lists: Vec<_> = trust.lists.iter().filter_map(|der| RevocationList::parse(der)).collect();
    for (at, certificate) in path.iter().enumerate() {
        let issuer = path.get(at + 1).unwrap_or(certificate);
        let mut own = lists.iter().filter(|l| l.issuer == certificate.issuer).peekable();
        if own.peek().is_none() {
            return Err(Fault::NO_LIST);
        }
        if issuer.extensions.usage.is_some_and(|bits| bits & SIGNS_LISTS == 0) {
            return Err(Fault::NO_LIST);
        }
        let mut covered = Err(Fault::LIST_SIGNATURE);
        for list in own.filter(|l| l.signed_by(&issuer.key)) {
            if list.revokes(certificate) {
                return Err(Fault::REVOKED);
            }
            if covered.is_err() {
                covered = usable(list, trust.now);
            }
        }
        covered?;
    }
    Ok(())
}

fn usable(list: &RevocationList<'_>, now: i64) -> Result<(), Fault> {
    if list.unknown_critical {
        return Err(Fault::LIST_CRITICAL);
    }
    if now < list.this_update {
        return Err(Fault::LIST_NOT_YET);
    }
    if list.next_update.is_some_and(|next| now > next) {
        return Err(Fault::LIST_EXPIRED);
    }
    Ok(())
}
