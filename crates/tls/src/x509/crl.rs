//! Lists of revoked certificates.

use super::cert::{Certificate, PublicKey};
use super::der::{self, DerReader};

/// A list that was read once, from its first to its last entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KnownList {
    der: Vec<u8>,
    /// An entry has a critical extension that is not known here: the list says nothing of any certificate. RFC 5280, section 5.3.
    unknown_critical: bool,
}

impl KnownList {
    /// Takes the bytes of a list of which every entry can be read.
    pub fn new(der: Vec<u8>) -> Option<KnownList> {
        let unknown_critical = RevocationList::parse(&der)?.read_entries()?;
        Some(KnownList { der, unknown_critical })
    }

    /// Its fields.
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
    /// Seconds since 1970; the list is of no use before.
    pub this_update: i64,
    /// Seconds since 1970; the list is of no use after.
    pub next_update: Option<i64>,
    /// A critical extension is there, such as one that makes the list a partial one.
    pub unknown_critical: bool,
    revoked: Option<DerReader<'a>>,
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> RevocationList<'a> {
    /// Reads a list.
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

    /// Whether an entry has a critical extension that is not known here; none if an entry cannot be read. Takes as long as the
    /// list is: asked once, when the list is loaded.
    fn read_entries(&self) -> Option<bool> {
        let mut critical = false;
        let Some(entries) = self.revoked else { return Some(critical) };
        entries.each(|entry| {
            let mut fields = entry.inner();
            fields.require(der::INTEGER)?;
            // One that cannot be read is no reason to refuse the list.
            critical |= has_unknown(fields).unwrap_or(false);
            Some(())
        })?;
        Some(critical)
    }

    /// Whether this key signed the list.
    pub fn signed_by(&self, key: &PublicKey<'_>) -> bool {
        super::signature::verify(key, self.algorithm, self.tbs, self.signature)
    }

    /// Whether the list names this certificate, other than as one that is revoked no more.
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

/// The extension of an entry that says why it is there.
const REASON: &[u8] = &[0x55, 0x1d, 0x15];

/// Whether the reason of an entry, of which the serial number was read, is removeFromCRL. RFC 5280, section 5.3.1.
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

/// Whether an entry, of which the serial number was read, has an extension that must be understood and is not known here. An
/// entry for another issuer's certificate counts as the list's own, which refuses one certificate too many at worst.
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

/// Calls `take` with the kind of each extension, whether it must be understood, and what stands behind that.
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
