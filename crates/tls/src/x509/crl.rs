//! Certificate revocation lists (CRLs).

use super::cert::{Certificate, PublicKey};
use super::der::{self, DerReader};

/// A list whose entries have all been read once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KnownList {
    der: Vec<u8>,
    /// An entry has a critical extension that is unknown here, so the list decides nothing for any
    /// certificate. RFC 5280, section 5.3.
    unknown_critical: bool,
}

impl KnownList {
    /// Parses a list. `None` if the list or an entry is malformed.
    pub fn new(der: Vec<u8>) -> Option<KnownList> {
        let unknown_critical = RevocationList::parse(&der)?.read_entries()?;
        Some(KnownList { der, unknown_critical })
    }

    /// The fields of the list.
    pub fn list(&self) -> Option<RevocationList<'_>> {
        let mut list = RevocationList::parse(&self.der)?;
        list.unknown_critical |= self.unknown_critical;
        Some(list)
    }
}

/// A revocation list's fields; each borrows from its bytes.
#[derive(Debug, Clone)]
pub struct RevocationList<'a> {
    tbs: &'a [u8],
    /// The contents of the issuer's name.
    pub issuer: &'a [u8],
    /// Seconds since 1970. The list is not valid before.
    pub this_update: i64,
    /// Seconds since 1970. The list is not valid after.
    pub next_update: Option<i64>,
    /// A critical extension is unknown here, such as that of a delta CRL.
    pub unknown_critical: bool,
    revoked: Option<DerReader<'a>>,
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> RevocationList<'a> {
    /// Parses a list, except for its entries.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut outer = DerReader::new(bytes).require(der::SEQUENCE)?.inner();
        let tbs = outer.require(der::SEQUENCE)?;
        let algorithm = outer.require(der::SEQUENCE)?.body;
        let signature = outer.require(der::BIT_STRING)?.bits()?;
        let mut fields = tbs.inner();
        fields.optional(der::INTEGER);
        if fields.require(der::SEQUENCE)?.body != algorithm {
            return None;
        }
        let issuer = fields.require(der::SEQUENCE)?.body;
        let this_update = der::time(&fields.next()?)?;
        let (mut next_update, mut revoked, mut unknown_critical) = (None, None, false);
        fields.each(|field| {
            match field.tag {
                0x17 | 0x18 => next_update = Some(der::time(&field)?),
                der::SEQUENCE => revoked = Some(field.inner()),
                0xa0 => unknown_critical = has_critical(field.inner())?,
                _ => {}
            }
            Some(())
        })?;
        Some(RevocationList {
            tbs: tbs.whole,
            issuer,
            this_update,
            next_update,
            unknown_critical,
            revoked,
            algorithm,
            signature,
        })
    }

    /// Whether an entry has a critical extension that is unknown here. `None` if an entry is
    /// malformed. Takes time in proportion to the list, so it is called once, when the list is
    /// loaded.
    fn read_entries(&self) -> Option<bool> {
        let mut critical = false;
        let Some(entries) = self.revoked else { return Some(critical) };
        entries.each(|entry| {
            let mut fields = entry.inner();
            fields.require(der::INTEGER)?;
            // Malformed extensions of an entry are no reason to refuse the list.
            critical |= has_unknown(fields).unwrap_or(false);
            Some(())
        })?;
        Some(critical)
    }

    /// Whether this key signed the list.
    pub fn signed_by(&self, key: &PublicKey<'_>) -> bool {
        super::signature::verify(key, self.algorithm, self.tbs, self.signature)
    }

    /// Whether the list revokes this certificate. An entry with the reason removeFromCRL does not.
    pub fn revokes(&self, certificate: &Certificate<'_>) -> bool {
        let Some(mut entries) = self.revoked else { return false };
        entries.by_ref().any(|entry| {
            let mut fields = entry.inner();
            let serial = fields.require(der::INTEGER);
            serial.is_some_and(|serial| serial.body == certificate.serial)
                && !is_removed(fields).unwrap_or(false)
        })
    }
}

/// The extension of an entry with the reason for it.
const REASON: &[u8] = &[0x55, 0x1d, 0x15];

/// Whether an entry's reason is removeFromCRL. RFC 5280, section 5.3.1. `fields` begin behind the
/// serial number.
fn is_removed(mut fields: DerReader<'_>) -> Option<bool> {
    const REMOVED: &[u8] = &[0x0a, 1, 8];
    fields.next()?;
    let mut removed = false;
    each_extension(fields, |kind, _, mut rest| {
        removed |= kind == REASON && rest.require(der::OCTET_STRING)?.body == REMOVED;
        Some(())
    })?;
    Some(removed)
}

/// Whether an entry has a critical extension that is unknown here. `fields` begin behind the serial
/// number. An entry for a certificate of another issuer counts as one for the list's issuer. At
/// worst, that refuses one certificate too many.
fn has_unknown(mut fields: DerReader<'_>) -> Option<bool> {
    const CERTIFICATE_ISSUER: &[u8] = &[0x55, 0x1d, 0x1d];
    fields.next()?;
    let mut unknown = false;
    each_extension(fields, |kind, critical, _| {
        unknown |= critical && ![REASON, CERTIFICATE_ISSUER].contains(&kind);
        Some(())
    })?;
    Some(unknown)
}

fn has_critical(tagged: DerReader<'_>) -> Option<bool> {
    let mut any = false;
    each_extension(tagged, |_, critical, _| {
        any |= critical;
        Some(())
    })?;
    Some(any)
}

/// Calls `take` for each extension, with its identifier, whether it is critical, and a reader of
/// its value.
fn each_extension<'a>(
    mut tagged: DerReader<'a>,
    mut take: impl FnMut(&'a [u8], bool, DerReader<'a>) -> Option<()>,
) -> Option<()> {
    tagged.require(der::SEQUENCE)?.inner().each(|extension| {
        let mut parts = extension.inner();
        let kind = parts.require(der::OID)?.body;
        let critical = parts.optional(0x01).is_some_and(|v| v.body != [0]);
        take(kind, critical, parts)
    })
}
