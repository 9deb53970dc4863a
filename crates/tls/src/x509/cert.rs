//! One certificate, parsed as far as its verification and its variables need.

use std::time::Duration;

use super::constraints::NameConstraints;
use super::der::{self, DerReader, DerValue};
use super::name::{is_whole, same as same_name};

/// A certificate's fields; each borrows from its bytes.
#[derive(Debug, Clone)]
pub struct Certificate<'a> {
    /// The whole certificate.
    pub der: &'a [u8],
    /// The signed part (TBSCertificate).
    pub tbs: &'a [u8],
    /// 1 or 3.
    pub version: u8,
    /// The bytes of the serial number.
    pub serial: &'a [u8],
    /// The contents of the issuer's name.
    pub issuer: &'a [u8],
    /// Seconds since 1970. `None` if the time is malformed; then the certificate is never trusted.
    pub not_before: Option<i64>,
    /// As `not_before`.
    pub not_after: Option<i64>,
    /// The contents of the subject's name.
    pub subject: &'a [u8],
    /// The key, with its algorithm.
    pub key: PublicKey<'a>,
    /// What the certificate may be used for.
    pub extensions: Extensions<'a>,
    /// The contents of the signature's algorithm.
    pub algorithm: &'a [u8],
    /// The signature.
    pub signature: &'a [u8],
}

/// A public key.
#[derive(Debug, Clone, Copy)]
pub struct PublicKey<'a> {
    /// The contents of its algorithm.
    pub algorithm: &'a [u8],
    /// The key itself.
    pub key: &'a [u8],
}

/// The extensions that decide what a certificate is trusted for.
#[derive(Debug, Clone, Default)]
pub struct Extensions<'a> {
    /// Basic constraints: whether it is an authority, and how many may stand below it.
    pub constraints: Option<(bool, Option<u32>)>,
    /// Key usage: the first byte of the bits, and the second one above it.
    pub usage: Option<u16>,
    /// Extended key usage: the list of purposes.
    pub purposes: Option<DerReader<'a>>,
    /// Netscape's type of certificate, the first byte of the bits.
    pub netscape: Option<u8>,
    /// Other names of the subject.
    pub alt_names: Option<DerReader<'a>>,
    /// The subject key identifier.
    pub key_id: Option<&'a [u8]>,
    /// The authority key identifier.
    pub issuer_key: Option<IssuerKey<'a>>,
    /// The names that certificates below it may have.
    pub name_constraints: Option<NameConstraints<'a>>,
    /// It is a proxy certificate (RFC 3820), which stands below a certificate that is no authority.
    pub proxy: bool,
    /// Has addresses or autonomous systems of the subject (RFC 3779).
    pub resources: bool,
    /// Has a critical extension that is unknown here.
    pub unknown_critical: bool,
    /// An extension above is malformed or stands there twice. The certificate is never trusted
    /// then.
    pub invalid: bool,
    /// The URL of the OCSP responder.
    pub ocsp: Option<&'a [u8]>,
}

/// The contents of an authority key identifier.
#[derive(Debug, Clone, Copy, Default)]
pub struct IssuerKey<'a> {
    /// The issuer's key identifier.
    id: Option<&'a [u8]>,
    /// The issuer of its certificate.
    name: Option<&'a [u8]>,
    /// The serial number of its certificate.
    serial: Option<&'a [u8]>,
}

/// Bits of `keyUsage`.
pub mod usage {
    /// `digitalSignature`
    pub const SIGNS: u16 = 0x80;
    /// `keyEncipherment`
    pub const ENCIPHERS_KEYS: u16 = 0x20;
    /// `keyAgreement`
    pub const AGREES: u16 = 0x08;
    /// `keyCertSign`
    pub const SIGNS_CERTIFICATES: u16 = 0x04;
    /// `cRLSign`
    pub const SIGNS_LISTS: u16 = 0x02;
}

/// Bits of `nsCertType`.
pub mod netscape {
    /// A client of TLS.
    pub const CLIENT: u8 = 0x80;
    /// A server of TLS.
    pub const SERVER: u8 = 0x40;
    /// An authority for TLS.
    pub const TLS_AUTHORITY: u8 = 0x04;
    /// An authority for anything.
    pub const ANY_AUTHORITY: u8 = 0x07;
}

/// Why a certificate counts as an authority's; OpenSSL's `check_ca`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// The basic constraints say so.
    Declared,
    /// It has no basic constraints, but is a root of version 1, or has a key usage with
    /// `keyCertSign`. It may only be the last of a chain.
    Old,
    /// It has no basic constraints, but `nsCertType` says so. It may only be the last of a chain.
    Netscape,
}

impl<'a> Certificate<'a> {
    /// Reads a certificate.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let whole = DerReader::new(bytes).require(der::SEQUENCE)?;
        let mut outer = whole.inner();
        let tbs = outer.require(der::SEQUENCE)?;
        let algorithm = outer.require(der::SEQUENCE)?.body;
        let signature = outer.require(der::BIT_STRING)?.bits()?;
        let mut fields = tbs.inner();
        let version = match fields.optional(0xa0) {
            None => 1,
            Some(v) => v.inner().require(der::INTEGER)?.body.first()?.checked_add(1)?,
        };
        let serial = fields.require(der::INTEGER)?.body;
        if fields.require(der::SEQUENCE)?.body != algorithm {
            return None;
        }
        let issuer = fields.require(der::SEQUENCE)?.body;
        let mut validity = fields.require(der::SEQUENCE)?.inner();
        let mut time = || validity.next().filter(|v| matches!(v.tag, 0x17 | 0x18));
        let (not_before, not_after) = (der::exact_time(&time()?), der::exact_time(&time()?));
        let subject = fields.require(der::SEQUENCE)?.body;
        if !is_whole(issuer) || !is_whole(subject) {
            return None;
        }
        let key = PublicKey::parse(fields.require(der::SEQUENCE)?)?;
        let mut extensions = Extensions::default();
        fields.each(|field| match field.tag {
            0xa3 => extensions.read(field.inner().require(der::SEQUENCE)?.inner()),
            _ => Some(()),
        })?;
        Some(Certificate {
            der: whole.whole,
            tbs: tbs.whole,
            version,
            serial,
            issuer,
            not_before,
            not_after,
            subject,
            key,
            extensions,
            algorithm,
            signature,
        })
    }

    /// Why peers refuse the certificate at `now`, or will within `notice`. Times are seconds since
    /// 1970.
    pub fn out_of_date(&self, now: i64, notice: Duration) -> Option<String> {
        let notice = i64::try_from(notice.as_secs()).unwrap_or(i64::MAX);
        if let Some(first) = self.not_before.filter(|first| *first > now) {
            return Some(format!("is not valid before {}", der::print_time(first)));
        }
        let last = self.not_after.filter(|last| *last < now.saturating_add(notice))?;
        let word = if last < now { "ended" } else { "ends" };
        Some(format!("{word} on {}", der::print_time(last)))
    }

    /// Issuer and subject are the same.
    pub fn self_issued(&self) -> bool {
        same_name(self.issuer, self.subject)
    }

    /// Issuer and subject are the same, and no identifier names another key.
    pub fn self_signed(&self) -> bool {
        self.self_issued() && self.may_have_issued(self)
    }

    /// Whether this may be the issuer of the other certificate, by names and key identifiers.
    pub fn may_have_issued(&self, other: &Certificate<'_>) -> bool {
        let differs = |said: Option<&[u8]>, is: Option<&[u8]>| {
            said.zip(is).is_some_and(|(said, is)| said != is)
        };
        let key = other.extensions.issuer_key.unwrap_or_default();
        !self.extensions.invalid
            && !other.extensions.invalid
            && same_name(self.subject, other.issuer)
            && !differs(key.id, self.extensions.key_id)
            && !differs(key.serial, Some(self.serial))
            && key.name.is_none_or(|name| same_name(name, self.issuer))
    }

    /// Whether the key usage permits one of these uses.
    pub fn may(&self, uses: u16) -> bool {
        self.extensions.usage.is_none_or(|bits| bits & uses != 0)
    }

    /// Whether `nsCertType`, if present, has one of these bits.
    pub fn is_netscape(&self, kinds: u8) -> bool {
        self.extensions.netscape.is_none_or(|bits| bits & kinds != 0)
    }

    /// Whether the certificate may issue others, by OpenSSL's rules, and why.
    pub fn authority(&self) -> Option<Authority> {
        let extensions = &self.extensions;
        if extensions.invalid || !self.may(usage::SIGNS_CERTIFICATES) {
            return None;
        }
        match extensions.constraints {
            Some((authority, _)) => authority.then_some(Authority::Declared),
            None if self.version == 1 && self.self_signed() => Some(Authority::Old),
            None if extensions.usage.is_some() => Some(Authority::Old),
            None => {
                let bits = extensions.netscape.unwrap_or(0);
                (bits & netscape::ANY_AUTHORITY != 0).then_some(Authority::Netscape)
            }
        }
    }

    /// Whether the extended key usage, if present, permits one of these purposes. OpenSSL does not
    /// count `anyExtendedKeyUsage` for TLS.
    pub fn serves(&self, purposes: &[&[u8]]) -> bool {
        let Some(mut list) = self.extensions.purposes else { return true };
        list.any(|p| purposes.contains(&p.body))
    }

    /// The DNS names among the subject's alternative names.
    pub fn dns_names(&self) -> impl Iterator<Item = &'a [u8]> {
        self.alt_names(0x82)
    }

    /// The URIs among the subject's alternative names.
    pub fn uris(&self) -> impl Iterator<Item = &'a [u8]> {
        self.alt_names(0x86)
    }

    fn alt_names(&self, tag: u8) -> impl Iterator<Item = &'a [u8]> {
        let names = self.extensions.alt_names.unwrap_or(DerReader::new(&[]));
        names.filter(move |v| v.tag == tag).map(|v| v.body)
    }

    /// The serial number as `$ssl_client_serial` shows it.
    pub fn serial_hex(&self) -> String {
        let negative = self.serial.first().is_some_and(|first| *first >= 0x80);
        let mut digits = self.serial.to_vec();
        if negative {
            // The two's complement: all bits inverted, plus one.
            let mut carry = true;
            for byte in digits.iter_mut().rev() {
                (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
            }
        }
        let zeros = digits.iter().take_while(|b| **b == 0).count();
        digits.drain(..zeros.min(digits.len().saturating_sub(1)));
        let sign = if negative { "-" } else { "" };
        std::iter::once(sign.to_owned()).chain(digits.iter().map(|b| format!("{b:02X}"))).collect()
    }
}

impl<'a> PublicKey<'a> {
    fn parse(info: DerValue<'a>) -> Option<Self> {
        let mut inner = info.inner();
        let algorithm = inner.require(der::SEQUENCE)?.body;
        Some(PublicKey { algorithm, key: inner.require(der::BIT_STRING)?.bits()? })
    }
}

impl<'a> Extensions<'a> {
    fn read(&mut self, list: DerReader<'a>) -> Option<()> {
        let mut seen = Vec::new();
        list.each(|extension| {
            let mut parts = extension.inner();
            let oid = parts.require(der::OID)?.body;
            let critical = parts.optional(0x01).is_some_and(|v| v.body != [0]);
            let value = DerReader::new(parts.require(der::OCTET_STRING)?.body);
            match self.one(oid, value) {
                ExtensionState::Read if seen.contains(&oid) => self.invalid = true,
                ExtensionState::Read => seen.push(oid),
                ExtensionState::Unchecked => {}
                ExtensionState::Malformed => self.invalid = true,
                ExtensionState::Uncritical => self.unknown_critical |= critical,
            }
            Some(())
        })
    }

    fn one(&mut self, oid: &[u8], value: DerReader<'a>) -> ExtensionState {
        // These extensions must be well-formed.
        let read = match oid {
            [0x55, 0x1d, 15] => usage_bits(value).map(|bits| self.usage = Some(bits)),
            [0x55, 0x1d, 17] => alt_names(value).map(|names| self.alt_names = Some(names)),
            [0x55, 0x1d, 19] => constraints(value).map(|found| self.constraints = Some(found)),
            [0x55, 0x1d, 31] => places_of_lists(value),
            [0x55, 0x1d, 37] => purposes(value).map(|list| self.purposes = Some(list)),
            [0x60, 0x86, 0x48, 0x01, 0x86, 0xf8, 0x42, 1, 1] => {
                bits(value).map(|[first, _]| self.netscape = Some(first))
            }
            [0x55, 0x1d, 30] => {
                NameConstraints::read(value).map(|found| self.name_constraints = Some(found))
            }
            [0x2b, 6, 1, 5, 5, 7, 1, 14] => sequence(value).map(|_| self.proxy = true),
            [0x2b, 6, 1, 5, 5, 7, 1, 7 | 8] => sequence(value).map(|_| self.resources = true),
            // Policies only matter if a configuration asks for them, and no directive does.
            [0x55, 0x1d, 32 | 33 | 36 | 54] => return ExtensionState::Unchecked,
            // `id-pkix-ocsp-nocheck`
            [0x2b, 6, 1, 5, 5, 7, 0x30, 1, 5] => return ExtensionState::Unchecked,
            _ => return self.uncritical(oid, value),
        };
        if read.is_some() { ExtensionState::Read } else { ExtensionState::Malformed }
    }

    /// Extensions that OpenSSL reads but does not accept as critical.
    fn uncritical(&mut self, oid: &[u8], mut value: DerReader<'a>) -> ExtensionState {
        match oid {
            [0x55, 0x1d, 14] => match value.require(der::OCTET_STRING) {
                Some(id) if self.key_id.is_none() => self.key_id = Some(id.body),
                _ => self.invalid = true,
            },
            [0x55, 0x1d, 35] => match issuer_key(value) {
                Some(key) if self.issuer_key.is_none() => self.issuer_key = Some(key),
                _ => self.invalid = true,
            },
            [0x2b, 6, 1, 5, 5, 7, 1, 1] if self.ocsp.is_none() => self.ocsp = responder(value),
            _ => {}
        }
        ExtensionState::Uncritical
    }
}

/// The result of reading an extension.
enum ExtensionState {
    /// It was read.
    Read,
    /// It has no effect, whatever its contents.
    Unchecked,
    /// It limits the certificate and is malformed.
    Malformed,
    /// It is unknown, or may not be critical. The certificate is refused if it is.
    Uncritical,
}

fn sequence(mut value: DerReader<'_>) -> Option<DerReader<'_>> {
    Some(value.require(der::SEQUENCE)?.inner())
}

/// The first two bytes of a BIT STRING. Unused bits are zero.
fn bits(mut value: DerReader<'_>) -> Option<[u8; 2]> {
    let (unused, bytes) = value.require(der::BIT_STRING)?.body.split_first()?;
    let mask = 0xffu8.checked_shl(u32::from(*unused)).filter(|_| *unused < 8)?;
    let at = |n: usize| match bytes.get(n) {
        Some(byte) if n + 1 == bytes.len() => byte & mask,
        byte => byte.copied().unwrap_or(0),
    };
    Some([at(0), at(1)])
}

/// The bits of the key usage. An extension without any bit is malformed.
fn usage_bits(value: DerReader<'_>) -> Option<u16> {
    bits(value).map(u16::from_le_bytes).filter(|bits| *bits != 0)
}

fn constraints(value: DerReader<'_>) -> Option<(bool, Option<u32>)> {
    let mut inner = sequence(value)?;
    let authority = inner.optional(0x01).is_some_and(|v| v.body != [0]);
    let length = match inner.optional(der::INTEGER) {
        Some(v) if v.body.first()? & 0x80 != 0 => return None,
        // A number of more than 32 bits is no limit.
        Some(v) => {
            v.body.iter().try_fold(0u32, |n, b| n.checked_mul(256).map(|n| n | u32::from(*b)))
        }
        None => None,
    };
    inner.is_empty().then_some((authority, length))
}

/// The elements of a SEQUENCE, if all of them pass `fits`.
fn list_of<'a>(
    value: DerReader<'a>,
    fits: impl Fn(&DerValue<'a>) -> bool,
) -> Option<DerReader<'a>> {
    let list = sequence(value)?;
    list.each(|one| fits(&one).then_some(()))?;
    Some(list)
}

fn purposes(value: DerReader<'_>) -> Option<DerReader<'_>> {
    list_of(value, |one| one.tag == der::OID)
}

fn alt_names(value: DerReader<'_>) -> Option<DerReader<'_>> {
    list_of(value, |one| matches!(one.tag, 0xa0 | 0x81 | 0x82 | 0xa3..=0xa5 | 0x86..=0x88))
}

/// Checks that each distribution point has a name or an issuer. Revocation lists come from files
/// alone, so the rest is not used.
fn places_of_lists(value: DerReader<'_>) -> Option<()> {
    let named = |one: &DerValue<'_>| one.inner().any(|part| matches!(part.tag, 0xa0 | 0xa2));
    list_of(value, |one| one.tag == der::SEQUENCE && named(one)).map(drop)
}

fn issuer_key(value: DerReader<'_>) -> Option<IssuerKey<'_>> {
    let mut inner = sequence(value)?;
    let id = inner.optional(0x80).map(|v| v.body);
    // Of the issuer's names, the first directory name counts.
    let name = inner.optional(0xa1).and_then(|names| names.inner().find(|name| name.tag == 0xa4));
    let name = match name {
        Some(name) => Some(name.inner().require(der::SEQUENCE)?.body),
        None => None,
    };
    let serial = inner.optional(0x82).map(|v| v.body);
    inner.is_empty().then_some(IssuerKey { id, name, serial })
}

/// The URL of the OCSP responder in the authority information access.
fn responder(value: DerReader<'_>) -> Option<&[u8]> {
    const OCSP: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1];
    sequence(value)?.find_map(|one| {
        let mut one = one.inner();
        let method = one.require(der::OID)?.body;
        one.next().filter(|place| method == OCSP && place.tag == 0x86).map(|place| place.body)
    })
}
