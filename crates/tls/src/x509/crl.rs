//! Lists of revoked certificates.

use super::cert::{Certificate, PublicKey};
use super::der::{self, DerReader, DerValue};

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
        let mut outer = DerReader::new(bytes).expect(der::SEQUENCE)?.inner();
        let tbs = outer.expect(der::SEQUENCE)?;
        let algorithm = outer.expect(der::SEQUENCE)?.body;
        let signature = outer.expect(der::BIT_STRING)?.bits()?;
        let mut fields = tbs.inner();
        fields.optional(der::INTEGER);
        if fields.expect(der::SEQUENCE)?.body != algorithm {
            return None;
        }
        let issuer = fields.expect(der::SEQUENCE)?.body;
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

    /// Whether each entry can be read. Takes as long as the list is: asked once, when the list is loaded.
    pub fn is_whole(&self) -> bool {
        let serial = |entry: DerValue<'_>| entry.inner().expect(der::INTEGER).map(drop);
        self.revoked.is_none_or(|entries| entries.each(serial).is_some())
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
            let serial = fields.expect(der::INTEGER);
            serial.is_some_and(|serial| serial.body == certificate.serial)
                && !is_removed(fields).unwrap_or(false)
        })
    }
}

/// Whether the reason of an entry, of which the serial number was read, is removeFromCRL. RFC 5280, section 5.3.1.
fn is_removed(mut fields: DerReader<'_>) -> Option<bool> {
    const REASON: &[u8] = &[0x55, 0x1d, 0x15];
    const REMOVED: &[u8] = &[0x0a, 1, 8];
    fields.next()?;
    let mut removed = false;
    fields.expect(der::SEQUENCE)?.inner().each(|extension| {
        let mut parts = extension.inner();
        let is_reason = parts.expect(der::OID)?.body == REASON;
        parts.optional(0x01);
        removed |= is_reason && parts.expect(der::OCTET_STRING)?.body == REMOVED;
        Some(())
    })?;
    Some(removed)
}

fn has_critical(mut tagged: DerReader<'_>) -> Option<bool> {
    let mut critical = false;
    tagged.expect(der::SEQUENCE)?.inner().each(|extension| {
        let mut parts = extension.inner();
        parts.expect(der::OID)?;
        critical |= parts.optional(0x01).is_some_and(|v| v.body != [0]);
        Some(())
    })?;
    Some(critical)
}
