//! Verifies a chain of certificates. The faults have OpenSSL's numbers and words.

use std::cmp::Reverse;
use std::fmt;

use super::cert::{Authority, Certificate, netscape, usage};
use super::constraints;
use super::crl::{KnownList, RevocationList};
use super::name::same as same_name;
use super::signature;

/// What a certificate is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// By a server, to us.
    Server,
    /// By a client, to us.
    Client,
    /// By an OCSP responder.
    Responder,
}

/// Which roots to trust, and how far.
#[derive(Debug, Clone, Copy)]
pub struct TrustStore<'a> {
    /// Certificates of authorities.
    pub anchors: &'a [Vec<u8>],
    /// Revocation lists; if there is one, every certificate of a chain must be covered.
    pub lists: &'a [KnownList],
    /// How many authorities may stand between the certificate and the root.
    pub depth: u32,
    /// Seconds since 1970.
    pub now: i64,
}

/// Why a certificate is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyError {
    /// OpenSSL's number: X509_V_ERR_... 0 for the faults that OCSP finds.
    pub code: u32,
    /// OpenSSL's words for it.
    pub text: &'static str,
}

macro_rules! faults {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(#[doc = $text] pub const $name: VerifyError = VerifyError { code: $code, text: $text };)*

        /// The fault with this OpenSSL number, if weir knows it.
        pub fn of_code(code: u32) -> Option<VerifyError> {
            [$(VerifyError::$name),*].into_iter().find(|fault| code > 0 && fault.code == code)
        }
    };
}

impl VerifyError {
    faults! {
        NO_ISSUER_YET = 2, "unable to get issuer certificate";
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
        REVOKED = 23, "certificate revoked";
        NO_AUTHORITY = 79, "invalid CA certificate";
        BAD_NOT_BEFORE = 13, "format error in certificate's notBefore field";
        BAD_NOT_AFTER = 14, "format error in certificate's notAfter field";
        PATH_LENGTH = 25, "path length constraint exceeded";
        PURPOSE = 26, "unsuitable certificate purpose";
        NO_CERTIFICATES = 32, "key usage does not include certificate signing";
        CRITICAL = 34, "unhandled critical extension";
        LIST_CRITICAL = 36, "unhandled critical CRL extension";
        PROXY = 40, "proxy certificates not allowed, please set the appropriate flag";
        RESOURCES = 46, "RFC 3779 resource not subset of parent's resources";
        NOT_PERMITTED = 47, "permitted subtree violation";
        EXCLUDED = 48, "excluded subtree violation";
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

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => f.write_str(self.text),
            code => write!(f, "({code}:{})", self.text),
        }
    }
}

/// The most certificates of a peer that are looked at. The rest is ignored.
const MOST_SENT: usize = 16;
/// The longest chain, however large the configured depth is.
const LONGEST: usize = 20;
/// The most certificates of the peer that may have an issuer's name and yet not have signed. Each
/// costs up to a millisecond, and the loop is blocked meanwhile. Afterwards no more are tried.
const MOST_FAILED: usize = 8;

/// What is wrong with a chain. All checks run, in OpenSSL's order, and the last fault is reported.
/// So a fault that may be ignored, such as an unknown root, hides no other.
#[derive(Default)]
struct Faults(Option<VerifyError>);

impl Faults {
    fn add(&mut self, fault: VerifyError) {
        self.0 = Some(fault);
    }
}

/// Builds and verifies the chain from its first certificate to a trusted root. Returns the path, in
/// DER.
pub fn path<'a>(
    chain: &[&'a [u8]],
    trust: &TrustStore<'a>,
    purpose: Purpose,
) -> Result<Vec<&'a [u8]>, VerifyError> {
    let sent: Option<Vec<_>> =
        chain.iter().take(MOST_SENT).map(|der| Certificate::parse(der)).collect();
    let sent = sent.ok_or(VerifyError::REJECTED)?;
    let Some((leaf, others)) = sent.split_first() else { return Err(VerifyError::REJECTED) };
    let anchors: Vec<_> = trust.anchors.iter().filter_map(|der| Certificate::parse(der)).collect();
    let mut faults = Faults::default();
    let built = build(leaf, others, &anchors, trust, &mut faults);
    let path = &built.path;
    check_uses(path, purpose, &mut faults);
    if !trust.lists.is_empty() {
        check_revocation(path, trust, &mut faults);
    }
    check_signatures_and_times(&built, trust.now, &mut faults);
    check_names(path, &mut faults);
    if path.iter().any(|certificate| certificate.extensions.resources) {
        faults.add(VerifyError::RESOURCES);
    }
    match faults.0 {
        Some(fault) => Err(fault),
        None => Ok(path.iter().map(|certificate| certificate.der).collect()),
    }
}

type Path<'c, 'a> = Vec<&'c Certificate<'a>>;

/// A path, with what its construction has shown.
struct Built<'c, 'a> {
    path: Path<'c, 'a>,
    /// The path ends with a certificate that has signed itself.
    to_root: bool,
    /// Indices of the certificates whose issuer, by its name, has not signed them.
    forged: Vec<usize>,
}

/// Builds the path to a trusted root, or as far as it leads. Trusted issuers are preferred, and
/// issuers whose key has signed. Among several, one that is valid now is preferred: a renewed
/// authority may have the same name and key as before.
fn build<'c, 'a>(
    leaf: &'c Certificate<'a>,
    others: &'c [Certificate<'a>],
    anchors: &'c [Certificate<'a>],
    trust: &TrustStore<'_>,
    faults: &mut Faults,
) -> Built<'c, 'a> {
    let longest = LONGEST.min((trust.depth as usize).saturating_add(2));
    let is_trusted = |c: &Certificate<'_>| anchors.iter().any(|a| a.der == c.der);
    let mut built = Built { path: vec![leaf], to_root: false, forged: Vec::new() };
    let mut left = MOST_FAILED;
    let mut signed = |issuer: &Certificate<'_>, certificate: &Certificate<'_>| {
        let has_signed = left > 0 && issued(issuer, certificate);
        left = left.saturating_sub(usize::from(!has_signed));
        has_signed
    };
    let mut current = leaf;
    loop {
        let path = &mut built.path;
        let is_root = match current.self_signed() {
            true if is_trusted(current) => issued(current, current),
            is_possible => is_possible && signed(current, current),
        };
        if is_root {
            match path.len() {
                _ if is_trusted(current) => {}
                1 => faults.add(VerifyError::SELF_SIGNED),
                _ => faults.add(VerifyError::SELF_SIGNED_ROOT),
            }
            built.to_root = true;
            return built;
        }
        let unused = |c: &&Certificate<'_>| path.iter().all(|p| p.der != c.der);
        // No certificate of the peer comes above a trusted one.
        let others = if is_trusted(current) { &[] } else { others };
        let may_have = |all: &'c [Certificate<'a>]| {
            let named = all.iter().filter(unused).filter(|c| c.may_have_issued(current));
            let mut named: Vec<_> = named.collect();
            named.sort_by_key(|c| age(c, trust.now));
            named
        };
        let (trusted, sent) = (may_have(anchors), may_have(others));
        let signer = trusted.iter().find(|c| issued(c, current));
        let signer = signer.or_else(|| sent.iter().find(|c| signed(c, current))).copied();
        // An issuer beyond the permitted depth counts as none.
        let issuer = signer.or_else(|| trusted.iter().chain(&sent).next().copied());
        let Some(issuer) = issuer.filter(|_| path.len() < longest) else {
            faults.add(if is_trusted(current) {
                VerifyError::NO_ISSUER_YET
            } else {
                VerifyError::NO_ISSUER
            });
            return built;
        };
        if signer.is_none() {
            built.forged.push(path.len() - 1);
        }
        path.push(issuer);
        current = issuer;
    }
}

/// `None` for a certificate that is valid now. Otherwise a key that sorts later ends first.
fn age(certificate: &Certificate<'_>, now: i64) -> Option<Reverse<Option<i64>>> {
    let has_begun = certificate.not_before.is_some_and(|first| first <= now);
    let has_ended = certificate.not_after.is_none_or(|last| last < now);
    (!has_begun || has_ended).then_some(Reverse(certificate.not_after))
}

/// Whether the issuer's key has signed the certificate.
pub fn issued(issuer: &Certificate<'_>, certificate: &Certificate<'_>) -> bool {
    let Certificate { algorithm, tbs, signature, .. } = certificate;
    signature::verify(&issuer.key, algorithm, tbs, signature)
}

/// Checks what each certificate of the path may be used for.
fn check_uses(path: &Path<'_, '_>, purpose: Purpose, faults: &mut Faults) {
    let mut between = 0;
    for (below, certificate) in path.iter().enumerate() {
        let extensions = &certificate.extensions;
        if extensions.unknown_critical {
            faults.add(VerifyError::CRITICAL);
        }
        if extensions.proxy {
            faults.add(VerifyError::PROXY);
        }
        if below > 0 {
            let last = below + 1 == path.len();
            if !certificate.authority().is_some_and(|why| last || why == Authority::Declared) {
                faults.add(VerifyError::NO_AUTHORITY);
            }
        }
        if !is_for(certificate, purpose, below > 0) {
            faults.add(VerifyError::PURPOSE);
        }
        let most = extensions.constraints.and_then(|(_, length)| length);
        if below > 1 && most.is_some_and(|most| between > most) {
            faults.add(VerifyError::PATH_LENGTH);
        }
        between += u32::from(below > 0 && !certificate.self_issued());
    }
}

/// Whether a certificate may be used for this: as an authority if it `issues`, otherwise as the
/// leaf.
fn is_for(certificate: &Certificate<'_>, purpose: Purpose, issues: bool) -> bool {
    const SERVER: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
    const CLIENT: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
    /// Netscape's and Microsoft's step-up, from the days of weak ciphers.
    const STEP_UP: [&[u8]; 2] = [
        &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf8, 0x42, 4, 1],
        &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 10, 3, 3],
    ];
    let (purposes, uses, kind): (&[&[u8]], _, _) = match purpose {
        Purpose::Server => (
            &[SERVER, STEP_UP[0], STEP_UP[1]],
            usage::SIGNS | usage::ENCIPHERS_KEYS | usage::AGREES,
            netscape::SERVER,
        ),
        Purpose::Client => (&[CLIENT], usage::SIGNS | usage::AGREES, netscape::CLIENT),
        // The verification of the response checks the leaf.
        Purpose::Responder => return !issues || certificate.authority().is_some(),
    };
    let fits = match issues {
        false => certificate.may(uses) && certificate.is_netscape(kind),
        true => certificate.authority().is_some_and(|why| {
            why != Authority::Netscape || certificate.is_netscape(netscape::TLS_AUTHORITY)
        }),
    };
    fits && certificate.serves(purposes)
}

/// Each certificate must be signed by the one above it and be valid now. Checked from the root
/// down.
fn check_signatures_and_times(built: &Built<'_, '_>, now: i64, faults: &mut Faults) {
    let path = &built.path;
    if path.len() == 1 && !built.to_root {
        faults.add(VerifyError::LEAF);
    }
    // If the end is no root, its times do not count: the chain is not trusted anyway.
    let judged = if built.to_root { path.len() } else { path.len().saturating_sub(1).max(1) };
    for (at, certificate) in path.iter().enumerate().take(judged).rev() {
        if path.get(at + 1).is_some_and(|issuer| !issuer.may(usage::SIGNS_CERTIFICATES)) {
            faults.add(VerifyError::NO_CERTIFICATES);
        }
        if built.forged.contains(&at) {
            faults.add(VerifyError::SIGNATURE);
        }
        match certificate.not_before {
            None => faults.add(VerifyError::BAD_NOT_BEFORE),
            Some(first) if now < first => faults.add(VerifyError::NOT_YET),
            Some(_) => {}
        }
        match certificate.not_after {
            None => faults.add(VerifyError::BAD_NOT_AFTER),
            Some(last) if now > last => faults.add(VerifyError::EXPIRED),
            Some(_) => {}
        }
    }
}

/// No certificate may have a name that an authority above it does not permit. Checked from the root
/// down.
fn check_names(path: &Path<'_, '_>, faults: &mut Faults) {
    let mut left = constraints::MOST;
    for (at, certificate) in path.iter().enumerate().rev() {
        // A self-issued authority may have its own name. RFC 5280, section 6.1.3.
        if at > 0 && certificate.self_issued() {
            continue;
        }
        let above = path.iter().skip(at + 1).rev();
        for constraints in above.filter_map(|c| c.extensions.name_constraints) {
            let checked = constraints.check(certificate, at == 0, &mut left);
            checked.err().into_iter().for_each(|fault| faults.add(fault));
        }
    }
}

/// No certificate of the path may be on a list, and each issuer must have a list.
fn check_revocation(path: &Path<'_, '_>, trust: &TrustStore<'_>, faults: &mut Faults) {
    let lists: Vec<_> = trust.lists.iter().filter_map(KnownList::list).collect();
    for (at, certificate) in path.iter().enumerate() {
        let issuer = path.get(at + 1).unwrap_or(certificate);
        if let Err(fault) = listed(certificate, issuer, &lists, trust.now) {
            faults.add(fault);
        }
    }
}

fn listed(
    certificate: &Certificate<'_>,
    issuer: &Certificate<'_>,
    lists: &[RevocationList<'_>],
    now: i64,
) -> Result<(), VerifyError> {
    let own = || lists.iter().filter(|l| same_name(l.issuer, certificate.issuer));
    if own().next().is_none() {
        return Err(VerifyError::NO_LIST);
    }
    if !issuer.may(usage::SIGNS_LISTS) {
        return Err(VerifyError::NO_LIST);
    }
    let mut covered = None;
    for list in own().filter(|l| l.signed_by(&issuer.key)) {
        if list.revokes(certificate) {
            return Err(VerifyError::REVOKED);
        }
        if !matches!(covered, Some(Ok(()))) {
            covered = Some(usable(list, now));
        }
    }
    covered.unwrap_or_else(|| {
        // As in OpenSSL, an entry counts for the report even if its list's signature is not this
        // issuer's.
        let named = own().any(|list| list.revokes(certificate));
        Err(if named { VerifyError::REVOKED } else { VerifyError::LIST_SIGNATURE })
    })
}

fn usable(list: &RevocationList<'_>, now: i64) -> Result<(), VerifyError> {
    if list.unknown_critical {
        return Err(VerifyError::LIST_CRITICAL);
    }
    if now < list.this_update {
        return Err(VerifyError::LIST_NOT_YET);
    }
    if list.next_update.is_some_and(|next| now > next) {
        return Err(VerifyError::LIST_EXPIRED);
    }
    Ok(())
}
